// SPDX-License-Identifier: Apache-2.0
//! Discovery and its requests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Node},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::client::Body;
use serde_json::{Value, json};
use steersman_cache::Resource;
use steersman_cluster::{Client, Cluster, DeleteOptions, MapError, ResourceQuery};
use steersman_core::{Clock, ObjectKey, TestClock};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Fault, Matching},
};
use support::{builder, cluster, object, requests};
use tower::service_fn;

/// So long an answer counts that there is none.
const NEGATIVE: Duration = Duration::from_secs(2);

/// Defines a kind of the test's group. Whether the server serves it yet is another matter.
async fn define(fixture: &Fixture, client: &Client, kind: &str) {
    let (group, plural) = (fixture.group(), format!("{}s", kind.to_lowercase()));
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        })
    };
    let definition: CustomResourceDefinition = object(json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [version("v1beta1", false), version("v1", true)],
        },
    }));
    client.create(&definition).await.unwrap();
}

/// Asks until discovery reports both versions, which it learns one by one.
async fn served(clock: &TestClock, cluster: &Cluster, ask: &ResourceQuery) {
    let (mapper, old) = (cluster.mapper(), ask.clone().version("v1beta1"));
    loop {
        clock.advance(NEGATIVE);
        let found = mapper.resolve_anew(ask).await;
        let is_new = found.is_ok_and(|found| found.resource().version() == "v1");
        if is_new && mapper.known(&old).is_some() {
            return;
        }
    }
}

// R56
#[steersman_testing::test]
async fn guarantee_1_a_known_kind_sends_no_request(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let mapper = cluster.mapper();
    assert!(requests(&proxy).is_empty());
    for _ in 0..3 {
        let maps = mapper.resolve(&ResourceQuery::of::<ConfigMap>()).await.unwrap();
        assert_eq!(maps.resource().to_string(), "configmaps/v1");
        assert!(maps.is_namespaced() && maps.verbs().contains(&"watch".to_owned()));
        let nodes = mapper.resolve(&ResourceQuery::of::<Node>()).await.unwrap();
        assert!(!nodes.is_namespaced() && nodes.has_subresource("status"));
        // A query by plural is sent unchanged.
        assert_eq!(nodes.resource().is_namespaced(), Some(false));
        assert_eq!(maps.resource().is_namespaced(), Some(true));
        let deployments = mapper
            .resolve(&ResourceQuery::plural("apps", "deployments"))
            .await
            .unwrap();
        assert_eq!(
            deployments.resource(),
            &steersman_cache::Resource::of::<Deployment>()
        );
        assert!(deployments.has_subresource("scale"));
        mapper
            .resolve(&ResourceQuery::kind("batch", "CronJob"))
            .await
            .unwrap();
    }
    let paths: Vec<_> = requests(&proxy).into_iter().map(|one| one.path).collect();
    assert_eq!(paths, ["/api", "/apis"]);
    assert!(mapper.known(&ResourceQuery::kind("batch", "Job")).is_some());
}

// R56
#[steersman_testing::test]
async fn guarantee_2_limits_requests_for_absent_kinds(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let (mapper, ask) = (cluster.mapper(), ResourceQuery::kind(fixture.group(), "Widget"));
    for _ in 0..5 {
        let error = mapper.resolve(&ask).await.unwrap_err();
        assert!(matches!(error, MapError::NoMatch { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            format!("the server does not have Widget.{}", fixture.group())
        );
    }
    assert_eq!(requests(&proxy).len(), 1);
    define(&fixture, &cluster.live(), "Widget").await;
    proxy.forget_ended();
    // It takes a moment until the server serves it.
    served(&clock, &cluster, &ask).await;
    let widgets = mapper.resolve(&ask).await.unwrap();
    assert_eq!(widgets.resource().version(), "v1", "the server prefers it");
    assert!(widgets.is_namespaced() && widgets.has_subresource("status"));
    let old = mapper.resolve(&ask.clone().version("v1beta1")).await.unwrap();
    assert_eq!(old.resource().version(), "v1beta1");
}

#[steersman_testing::test]
async fn guarantee_3_concurrent_queries_share_a_request(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let (mapper, ask) = (cluster.mapper(), ResourceQuery::of::<Deployment>());
    let stall = proxy.inject(Matching::any(), Fault::stall());
    let mut first = Box::pin(mapper.resolve(&ask));
    let mut others = futures::future::join_all((0..9).map(|_| mapper.resolve(&ask)));
    tokio::select! {
        biased;
        _ = &mut first => panic!("it is stalled"),
        _ = &mut others => panic!("it is stalled"),
        () = stall.hit() => {}
    }
    // The first query is dropped, and the others continue.
    drop((first, stall));
    let others = others.await;
    assert!(others.iter().all(Result::is_ok), "{others:?}");
    let asked = requests(&proxy);
    assert_eq!(asked.len(), 1, "{asked:#?}");
}

// R140
#[steersman_testing::test]
async fn finds_a_kind_installed_before_the_deadline(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let (mapper, live) = (cluster.mapper(), cluster.live());
    let ask = ResourceQuery::kind(fixture.group(), "Gadget");
    let error = mapper.resolve_until(&ask, clock.now()).await.unwrap_err();
    assert!(matches!(error, MapError::NoMatch { .. }), "{error:?}");

    let found = mapper.resolve_until(&ask, clock.now() + Duration::from_secs(1_000_000_000));
    let later = async {
        clock.advance(Duration::from_secs(3));
        define(&fixture, &live, "Gadget").await;
        loop {
            // Not while the server is asked, which may take so long and no longer.
            clock.advance_to(support::next_deadline(&clock, NEGATIVE).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        biased;
        found = found => assert_eq!(found.unwrap().resource().plural(), "gadgets"),
        () = later => {}
    }
}

/// A cluster with a manual clock, and its kind, which the server serves in two versions.
async fn with_kind(fixture: &Fixture, proxy: &FaultProxy, kind: &str) -> (TestClock, Cluster, ResourceQuery) {
    let clock = TestClock::new();
    let builder = builder(fixture, proxy).clock(Arc::new(clock.clone()));
    let cluster = builder.build().await.unwrap();
    define(fixture, &cluster.live(), kind).await;
    let ask = ResourceQuery::kind(fixture.group(), kind);
    served(&clock, &cluster, &ask).await;
    (clock, cluster, ask)
}

/// Asks for an object until there is no such kind, and then some more times.
async fn find_gone(fixture: &Fixture, cluster: &Cluster, resource: &Resource) {
    let (objects, key) = (cluster.live().of(resource), support::key(fixture, "a"));
    while !objects.get(&key).await.is_err_and(|error| error.is_absent()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..5 {
        assert!(objects.get(&key).await.unwrap_err().is_absent());
    }
}

fn discovered(proxy: &FaultProxy) -> usize {
    let all = requests(proxy);
    all.iter().filter(|one| one.path == "/apis").count()
}

// R56
#[steersman_testing::test]
async fn guarantee_6_forgets_a_kind_that_a_client_finds_absent(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (clock, cluster, ask) = with_kind(&fixture, &proxy, "Gizmo").await;
    let (mapper, live) = (cluster.mapper(), cluster.live());
    let ask = ask.version("v1");
    let gizmos = mapper.resolve(&ask).await.unwrap();
    let others = ResourceQuery::of::<Deployment>();
    mapper.resolve(&others).await.unwrap();
    let definition = ObjectKey::new("", &format!("gizmos.{}", fixture.group()));
    let _ = live
        .delete::<CustomResourceDefinition>(&definition, DeleteOptions::default())
        .await
        .unwrap();
    assert!(mapper.known(&ask).is_some());
    let before = discovered(&proxy);
    find_gone(&fixture, &cluster, gizmos.resource()).await;
    assert!(mapper.known(&ask).is_none());
    assert!(mapper.known(&others).is_some());
    for _ in 0..5 {
        let error = mapper.resolve(&ask).await.unwrap_err();
        assert!(matches!(error, MapError::NoMatch { .. }), "{error:?}");
    }
    assert_eq!(discovered(&proxy), before, "it was asked just now");
    // Discovery of the server can lag behind.
    let mut asked = 1;
    clock.advance(NEGATIVE);
    while mapper.resolve(&ask).await.is_ok() {
        find_gone(&fixture, &cluster, gizmos.resource()).await;
        clock.advance(NEGATIVE);
        asked += 1;
    }
    assert_eq!(discovered(&proxy), before + asked);
    clock.advance(NEGATIVE);
    cluster.close("the test is over");
    let deadline = clock.now() + Duration::from_secs(3600);
    let error = mapper.resolve_until(&ask, deadline).await.unwrap_err();
    assert!(matches!(error, MapError::Discovery { .. }), "{error:?}");
}

// R56
#[steersman_testing::test]
async fn guarantee_6_finds_a_kind_in_its_remaining_version(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (clock, cluster, ask) = with_kind(&fixture, &proxy, "Gizmo").await;
    let mapper = cluster.mapper();
    let gizmos = mapper.resolve(&ask).await.unwrap();
    assert_eq!(gizmos.resource().version(), "v1");
    let definition = ObjectKey::new("", &format!("gizmos.{}", fixture.group()));
    loop {
        let found = cluster.live().get::<CustomResourceDefinition>(&definition).await;
        let mut found = (*found.unwrap().unwrap()).clone();
        found.spec.versions[1].served = false;
        match cluster.live().update(&found).await {
            Err(error) if error.is_conflict() => {}
            updated => break drop(updated.unwrap()),
        }
    }
    find_gone(&fixture, &cluster, gizmos.resource()).await;
    let left = mapper.resolve(&ask).await.unwrap();
    assert_eq!(left.resource().version(), "v1beta1");
    // The server reports the same.
    loop {
        clock.advance(NEGATIVE);
        let gone = mapper.resolve(&ask.clone().version("v1")).await;
        if gone.is_err() {
            break;
        }
        find_gone(&fixture, &cluster, gizmos.resource()).await;
    }
    let left = mapper.resolve(&ask).await.unwrap();
    assert_eq!(left.resource().version(), "v1beta1");
}

// R56
#[steersman_testing::test]
async fn guarantee_4_finds_a_newly_preferred_version(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (_clock, cluster, ask) = with_kind(&fixture, &proxy, "Gizmo").await;
    let (mapper, live) = (cluster.mapper(), cluster.live());
    let definition = ObjectKey::new("", &format!("gizmos.{}", fixture.group()));
    loop {
        let found = live.get::<CustomResourceDefinition>(&definition).await;
        let mut found = (*found.unwrap().unwrap()).clone();
        let mut newer = found.spec.versions[1].clone();
        (newer.name, newer.storage) = ("v2".to_owned(), false);
        let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
        newer.subresources = Some(object(json!({"status": {}, "scale": scale})));
        found.spec.versions.push(newer);
        match live.update(&found).await {
            Err(error) if error.is_conflict() => {}
            updated => break drop(updated.unwrap()),
        }
    }
    // It takes a moment until the server serves it.
    let newer = loop {
        let found = mapper.resolve_anew(&ask).await.unwrap();
        if found.resource().version() == "v2" {
            break found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(newer.has_subresource("scale"));
    let asked = discovered(&proxy);
    assert_eq!(mapper.resolve(&ask).await.unwrap(), newer);
    assert_eq!(discovered(&proxy), asked, "now it is known");
}

/// A server of this test's own, with what it has at each path.
#[derive(Clone, Default)]
struct Canned {
    answers: Arc<Mutex<Vec<(&'static str, Value)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Canned {
    fn set(&self, path: &'static str, answer: Value) {
        let mut answers = self.answers.lock().unwrap();
        answers.retain(|(known, _)| *known != path);
        answers.push((path, answer));
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    async fn cluster(&self, clock: &TestClock) -> Cluster {
        let canned = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let answers = canned.answers.lock().unwrap();
            let found = answers.iter().find(|(known, _)| *known == path);
            let (code, body) = match found {
                Some((_, Value::Number(code))) => (code.as_u64().unwrap() as u16, String::new()),
                Some((_, answer)) => (200, answer.to_string()),
                None => (404, String::new()),
            };
            let tag = request.headers().get(header::IF_NONE_MATCH);
            let is_known = tag.is_some_and(|tag| tag.as_bytes() == body.len().to_string().as_bytes());
            canned
                .asked
                .lock()
                .unwrap()
                .push(if is_known { format!("{path} again") } else { path });
            let response = Response::builder()
                .status(if is_known { 304 } else { code })
                .header(header::ETAG, body.len())
                .body(Full::new(Bytes::from(if is_known {
                    String::new()
                } else {
                    body
                })));
            std::future::ready(Ok::<_, Infallible>(response.unwrap()))
        });
        Cluster::builder("canned")
            .service(kube::Client::new(service, "default"))
            .clock(Arc::new(clock.clone()))
            .build()
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn queries_one_group_without_aggregated_discovery() {
    let (clock, canned) = (TestClock::new(), Canned::default());
    canned.set("/api", json!({"kind": "APIVersions", "versions": ["v1"]}));
    canned.set("/apis", json!({"kind": "APIGroupList", "groups": []}));
    let pods = json!([{"name": "pods", "namespaced": true, "kind": "Pod", "verbs": ["get"]},
        {"name": "pods/status", "namespaced": true, "kind": "Pod", "verbs": ["get"]}]);
    canned.set("/api/v1", json!({"kind": "APIResourceList", "resources": pods}));
    let versions = json!([{"version": "v2", "groupVersion": "example.com/v2"},
        {"version": "v1", "groupVersion": "example.com/v1"}]);
    canned.set(
        "/apis/example.com",
        json!({"kind": "APIGroup", "versions": versions,
        "preferredVersion": {"version": "v1", "groupVersion": "example.com/v1"}}),
    );
    let widgets =
        json!({"resources": [{"name": "widgets", "namespaced": false, "kind": "Widget", "verbs": []}]});
    canned.set("/apis/example.com/v1", widgets.clone());
    canned.set("/apis/example.com/v2", widgets);
    let cluster = canned.cluster(&clock).await;
    let mapper = cluster.mapper();

    let pods = mapper.resolve(&ResourceQuery::kind("", "Pod")).await.unwrap();
    assert!(pods.is_namespaced() && pods.has_subresource("status"));
    assert_eq!(canned.asked(), ["/api", "/api/v1"]);
    let widgets = mapper
        .resolve(&ResourceQuery::kind("example.com", "Widget"))
        .await
        .unwrap();
    assert_eq!(widgets.resource().to_string(), "widgets.example.com/v1");
    let expected = [
        "/apis",
        "/apis/example.com",
        "/apis/example.com/v1",
        "/apis/example.com/v2",
    ];
    assert_eq!(canned.asked(), expected);

    // From now on it is known that there is no list.
    let error = mapper
        .resolve(&ResourceQuery::kind("absent.example.com", "Widget"))
        .await
        .unwrap_err();
    assert!(matches!(error, MapError::NoMatch { .. }), "{error:?}");
    assert_eq!(canned.asked(), ["/apis/absent.example.com"]);

    // A version that cannot be discovered removes nothing.
    canned.set("/apis/example.com/v1", json!(503));
    let gadget = ResourceQuery::kind("example.com", "Gadget");
    let asking = async |ask: &ResourceQuery| {
        clock.advance(NEGATIVE);
        let walk = async {
            loop {
                tokio::task::yield_now().await;
                clock.advance(Duration::from_secs(1));
            }
        };
        tokio::select! {
            biased;
            found = mapper.resolve(ask) => found,
            () = walk => unreachable!(),
        }
    };
    let error = asking(&gadget).await.unwrap_err();
    assert!(matches!(error, MapError::Undecided { .. }), "{error:?}");
    assert!(
        mapper
            .known(&ResourceQuery::kind("example.com", "Widget").version("v1"))
            .is_some()
    );
}

#[tokio::test]
async fn guarantee_5_a_failing_group_removes_nothing() {
    let (clock, canned) = (TestClock::new(), Canned::default());
    let list = |freshness: &str, resources: Value| {
        let version = json!({"version": "v1", "freshness": freshness, "resources": resources});
        json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": "metrics.example.com"}, "versions": [version]},
        ]})
    };
    let nodes = json!([{"resource": "nodes", "responseKind": {"kind": "NodeMetrics"}, "scope": "Cluster", "verbs": ["get"]}]);
    canned.set("/apis", list("Current", nodes.clone()));
    let cluster = canned.cluster(&clock).await;
    let (mapper, nodes_of) = (
        cluster.mapper(),
        ResourceQuery::kind("metrics.example.com", "NodeMetrics"),
    );
    let pods = ResourceQuery::kind("metrics.example.com", "PodMetrics");
    mapper.resolve(&nodes_of).await.unwrap();
    let error = mapper.resolve(&pods).await.unwrap_err();
    assert!(matches!(error, MapError::NoMatch { .. }), "{error:?}");

    canned.set("/apis", list("Stale", json!([])));
    clock.advance(NEGATIVE);
    let error = mapper.resolve(&pods).await.unwrap_err();
    assert!(matches!(error, MapError::Undecided { .. }), "{error:?}");
    mapper.resolve(&nodes_of).await.unwrap();

    // A whole list that fails does not, either.
    canned.set("/apis", json!(500));
    clock.advance(NEGATIVE);
    let error = mapper.resolve(&pods).await.unwrap_err();
    assert!(matches!(error, MapError::Discovery { .. }), "{error:?}");
    mapper.resolve(&nodes_of).await.unwrap();

    canned.set("/apis", list("Current", nodes));
    clock.advance(NEGATIVE);
    canned.asked();
    mapper.resolve(&pods).await.unwrap_err();
    clock.advance(NEGATIVE);
    mapper.resolve(&pods).await.unwrap_err();
    assert_eq!(
        canned.asked(),
        ["/apis", "/apis again"],
        "what is known already is not sent again"
    );
}
