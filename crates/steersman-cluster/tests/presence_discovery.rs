// SPDX-License-Identifier: Apache-2.0
//! Kinds that only discovery can tell of, and how much is asked at a time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::PostParams, client::Body};
use serde_json::{Value, json};
use steersman_cache::Resource;
use steersman_cluster::{Cluster, POLL_EVERY, PresenceWatch};
use steersman_core::{Presence, PresenceStatus, Spawner, TestClock};
use steersman_testing::{
    Fixture,
    proxy::{Exchange, Fault, Matching},
};
use support::object;
use tower::service_fn;

/// A server of this test, with a response for each path. A path with `null` is not answered.
#[derive(Clone, Default)]
struct Canned {
    answers: Arc<Mutex<BTreeMap<String, Value>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Canned {
    /// Creates one that forbids watches of CRDs and APIServices.
    fn polled() -> Self {
        let canned = Self::default();
        canned.set(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json!(403),
        );
        canned.set("/apis/apiregistration.k8s.io/v1/apiservices", json!(403));
        canned
    }

    fn set(&self, path: &str, answer: Value) {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// Number of requests by path.
    fn asked(&self, path: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|asked| *asked == path).count()
    }

    /// All that it does is done by the task of the test.
    async fn cluster(&self, clock: &TestClock) -> Cluster {
        let canned = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let answer = canned.answers.lock().unwrap().get(&path).cloned();
            canned.asked.lock().unwrap().push(path);
            async move {
                let (code, body) = match answer {
                    Some(Value::Null) => std::future::pending().await,
                    Some(Value::Number(code)) => (code.as_u64().unwrap() as u16, String::new()),
                    Some(answer) => (200, answer.to_string()),
                    None => (404, String::new()),
                };
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Full::new(Bytes::from(body))).unwrap())
            }
        });
        Cluster::builder("canned")
            .service(kube::Client::new(service, "default"))
            .clock(Arc::new(clock.clone()))
            .spawner(Spawner::current())
            .build()
            .await
            .unwrap()
    }
}

/// Lets everything that can be done be done.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

fn widgets(group: &str) -> Resource {
    Resource::new(group, "v1", "Widget", "widgets")
}

// R24, R32
#[tokio::test]
async fn guarantee_1_the_minimum_poll_interval_is_50_ms() {
    let (clock, canned) = (TestClock::new(), Canned::polled());
    canned.set("/apis", json!({"kind": "APIGroupDiscoveryList", "items": []}));
    let cluster = canned.cluster(&clock).await;
    let mut presence = cluster.presence(&widgets("example.com"), Duration::ZERO);
    presence.when(PresenceStatus::is_absent).await;
    settle().await;
    assert_eq!(canned.asked("/apis"), 1);
    clock.advance(Duration::from_millis(49));
    settle().await;
    assert_eq!(canned.asked("/apis"), 1);
    clock.advance(Duration::from_millis(1));
    settle().await;
    assert_eq!(canned.asked("/apis"), 2);
}

fn of_discovery(exchanges: &[Exchange]) -> usize {
    exchanges.iter().filter(|one| one.path == "/apis").count()
}

#[steersman_testing::test]
async fn guarantee_3_a_new_watcher_does_not_get_outdated_discovery(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let builder = support::builder(&fixture, &proxy).clock(Arc::new(clock.clone()));
    let cluster = builder.build().await.unwrap();
    // While this watcher exists, the tracker runs, and nothing is requested.
    let mut another = cluster.presence(&widgets(fixture.group()), POLL_EVERY);
    another.when(PresenceStatus::is_absent).await;
    let no_such = widgets("apps");
    let mut presence = cluster.presence(&no_such, POLL_EVERY);
    presence.when(PresenceStatus::is_absent).await;
    drop(presence);
    let asked = of_discovery(&proxy.exchanges());

    // A moment later it counts.
    clock.advance(POLL_EVERY / 2);
    let mut presence = cluster.presence(&no_such, POLL_EVERY);
    presence.when(PresenceStatus::is_absent).await;
    assert_eq!(of_discovery(&proxy.exchanges()), asked);
    drop(presence);

    clock.advance(Duration::from_secs(3600));
    let stalled = proxy.inject(Matching::reads().path("/apis"), Fault::stall());
    let mut presence = cluster.presence(&no_such, POLL_EVERY);
    proxy
        .wait_for(|all| (of_discovery(all) > asked).then_some(()))
        .await;
    assert!(presence.now().is_pending, "{}", presence.now());
    drop(stalled);
    presence.when(PresenceStatus::is_absent).await;
}

// R24
#[tokio::test]
async fn guarantee_3_a_failing_group_does_not_affect_the_others() {
    let (clock, canned) = (TestClock::new(), Canned::polled());
    canned.set("/apis", json!({"kind": "APIGroupList", "groups": []}));
    let groups = ["a.example.com", "b.example.com", "c.example.com", "d.example.com"];
    let [silent, serving, refusing, absent] = groups;
    canned.set(&format!("/apis/{silent}"), Value::Null);
    canned.set(
        &format!("/apis/{serving}"),
        json!({"kind": "APIGroup", "versions": [{"version": "v1"}]}),
    );
    let resources = json!([{"name": "widgets", "namespaced": true, "kind": "Widget", "verbs": ["get"]}]);
    canned.set(&format!("/apis/{serving}/v1"), json!({"resources": resources}));
    canned.set(&format!("/apis/{refusing}"), json!(403));
    let cluster = canned.cluster(&clock).await;
    let mut followed = groups.map(|group| cluster.presence(&widgets(group), POLL_EVERY));
    let standing = |followed: &[PresenceWatch]| -> Vec<_> {
        followed
            .iter()
            .map(|one| (one.now().presence, one.now().is_pending))
            .collect()
    };
    followed[1].when(PresenceStatus::is_present).await;
    settle().await;
    let told = [
        (Presence::Present, false),
        (Presence::Unknown, false),
        (Presence::Absent, false),
    ];
    assert_eq!(standing(&followed)[1..], told);
    assert_eq!(
        standing(&followed)[0],
        (Presence::Unknown, true),
        "it may answer yet"
    );
    let first = canned.asked(&format!("/apis/{absent}"));

    // After the timeout of the request it fails, and no other kind does.
    clock.advance(Duration::from_secs(30));
    followed[0].when(|now| !now.is_pending).await;
    assert!(followed[0].now().reason.contains(silent), "{}", followed[0].now());
    assert_eq!(standing(&followed)[1..], told);
    settle().await;
    assert_eq!(
        canned.asked(&format!("/apis/{absent}")),
        first,
        "it is not time yet"
    );

    // The others are queried again, and an installed one is found although the first still does not answer.
    canned.set(
        &format!("/apis/{absent}"),
        json!({"kind": "APIGroup", "versions": [{"version": "v1"}]}),
    );
    canned.set(&format!("/apis/{absent}/v1"), json!({"resources": resources}));
    clock.advance(POLL_EVERY);
    followed[3].when(PresenceStatus::is_present).await;
    assert_eq!(standing(&followed)[0], (Presence::Unknown, false));
    let names: Vec<_> = cluster
        .presences()
        .into_iter()
        .map(|(kind, _)| kind.group().to_owned())
        .collect();
    assert_eq!(names, groups, "in an order that is the same each time");
}

/// Defines many kinds at once.
async fn define_many(fixture: &Fixture, count: usize) -> Vec<Resource> {
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let define = async |number: usize| {
        let (kind, plural) = (format!("Kind{number}"), format!("kind{number}s"));
        let definition: CustomResourceDefinition = object(json!({
            "metadata": {"name": format!("{plural}.{}", fixture.group())},
            "spec": {
                "group": fixture.group(),
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": format!("kind{number}")},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
            },
        }));
        definitions
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
        Resource::new(fixture.group(), "v1", &kind, &plural)
    };
    join_all((0..count).map(define)).await
}

#[steersman_testing::test]
async fn guarantee_1_probes_at_most_sixteen_kinds_at_once(fixture: Fixture) {
    const COUNT: usize = 24;
    const AT_ONCE: usize = 16;
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let builder = support::builder(&fixture, &proxy).clock(Arc::new(clock.clone()));
    let cluster = builder.build().await.unwrap();
    let kinds = define_many(&fixture, COUNT).await;
    let stalled = proxy.inject(Matching::watches().path(fixture.group()), Fault::stall());
    let mut followed: Vec<_> = kinds
        .iter()
        .map(|kind| cluster.presence(kind, POLL_EVERY))
        .collect();
    stalled.hit_times(AT_ONCE).await;
    for _ in 0..20 {
        fixture.client().apiserver_version().await.unwrap();
    }
    assert_eq!(stalled.hits(), AT_ONCE);
    drop(stalled);
    for presence in &mut followed {
        // The server itself might not be ready yet.
        let asked_again = async {
            loop {
                clock.advance_to(support::next_deadline(&clock, Duration::from_secs(1)).await);
            }
        };
        tokio::select! {
            _ = presence.when(PresenceStatus::is_present) => {}
            () = asked_again => {}
        }
    }
}

/// One that is refused for ever waits most of the time, and leaves its turn to others.
#[steersman_testing::test]
async fn guarantee_1_unserved_kinds_do_not_delay_others(fixture: Fixture) {
    const REFUSED: usize = 20;
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let builder = support::builder(&fixture, &proxy).clock(Arc::new(clock.clone()));
    let cluster = builder.build().await.unwrap();
    let kinds = define_many(&fixture, REFUSED + 1).await;
    let (last, refused) = kinds.split_last().unwrap();
    let refusing: Vec<_> = refused
        .iter()
        .map(|kind| {
            let path = format!("/{}", kind.plural());
            proxy.inject(Matching::watches().path(path), Fault::answer(404))
        })
        .collect();
    let _followed: Vec<_> = refused
        .iter()
        .map(|kind| cluster.presence(kind, POLL_EVERY))
        .collect();
    for refusing in &refusing {
        refusing.hit().await;
    }
    let mut presence = cluster.presence(last, POLL_EVERY);
    let asked_again = async {
        loop {
            clock.advance_to(support::next_deadline(&clock, Duration::from_secs(1)).await);
        }
    };
    tokio::select! {
        _ = presence.when(PresenceStatus::is_present) => {}
        () = asked_again => {}
    }
}
