// SPDX-License-Identifier: Apache-2.0
//! Kinds that are installed and uninstalled, as clients of a cluster see them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use steersman_cache::{Query, ReadError, Resource};
use steersman_cluster::{Client, Cluster, Error, POLL_EVERY};
use steersman_core::TestClock;
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Cut, Exchange, Fault, Injected, Matching},
};
use support::{cluster, key, next_deadline, object};

fn widgets(fixture: &Fixture) -> Resource {
    Resource::new(fixture.group(), "v1", "Widget", "widgets")
}

fn definition_name(fixture: &Fixture) -> String {
    format!("widgets.{}", fixture.group())
}

async fn install(fixture: &Fixture) {
    define(fixture, "Widget").await;
}

async fn define(fixture: &Fixture, kind: &str) {
    let singular = kind.to_lowercase();
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition: CustomResourceDefinition = object(json!({
        "metadata": {"name": format!("{singular}s.{}", fixture.group())},
        "spec": {
            "group": fixture.group(),
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": format!("{singular}s"), "singular": singular},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    }));
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
}

async fn uninstall(fixture: &Fixture) {
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    let name = definition_name(fixture);
    definitions.delete(&name, &DeleteParams::default()).await.unwrap();
}

/// Applies a widget, as soon as the server takes it.
async fn apply(fixture: &Fixture, client: &Client) {
    let widget: DynamicObject = object(json!({
        "apiVersion": format!("{}/v1", fixture.group()), "kind": "Widget",
        "metadata": {"name": "one", "namespace": fixture.namespace()},
    }));
    while let Err(error) = client.of(&widgets(fixture)).apply(&widget).await {
        assert!(error.is_absent() || error.is_not_found(), "{error:?}");
        tokio::task::yield_now().await;
    }
}

fn of_widgets(exchanges: &[Exchange]) -> usize {
    let is_widgets = |one: &&Exchange| one.path.ends_with("/widgets");
    exchanges.iter().filter(is_widgets).count()
}

#[track_caller]
fn assert_absent<T>(read: Result<T, Error>, resource: &Resource) {
    let error = read.map(|_| ()).unwrap_err();
    assert!(error.is_absent(), "{error:?}");
    let Error::Read { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(
        matches!(&**source, ReadError::Absent { resource: found } if found == resource),
        "{error:?}"
    );
}

// R2, R17
#[steersman_testing::test]
async fn a_cached_read_of_an_absent_kind_leaves_no_informer_behind(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    // Unused informers linger, except this one.
    let cluster = support::builder(&fixture, &proxy)
        .cache(|cache| cache.linger(std::time::Duration::from_secs(3600)))
        .build()
        .await
        .unwrap();
    let (client, widgets) = (cluster.client(), widgets(&fixture));
    let here = Query::new().namespace(fixture.namespace());
    for reads in 1..=3 {
        let read = client.of(&widgets).get(&key(&fixture, "one")).await;
        assert_absent(read, &widgets);
        assert!(cluster.cache().informers().is_empty());
        assert_eq!(of_widgets(&proxy.exchanges()), 2 * reads - 1, "each asks once");
        assert_absent(client.of(&widgets).list(&here).await, &widgets);
        assert!(cluster.cache().informers().is_empty());
    }
    install(&fixture).await;
    apply(&fixture, &client).await;
    // A server that accepts writes might not serve watches yet.
    let found = steersman_testing::eventually("widgets from the cache", async || {
        client.of(&widgets).list(&here).await.ok()
    });
    assert_eq!(found.await.len(), 1);
}

// R2, R17
#[steersman_testing::test]
async fn guarantee_7_a_cached_read_of_an_absent_kind_sends_no_request(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let (client, widgets) = (cluster.client(), widgets(&fixture));
    let mut presence = cluster.presence(&widgets, POLL_EVERY);
    presence.when(|presence_status| presence_status.is_absent()).await;
    for _ in 0..100 {
        let read = client.of(&widgets).get(&key(&fixture, "one")).await;
        assert_absent(read, &widgets);
    }
    assert_eq!(of_widgets(&proxy.exchanges()), 0);
    assert!(cluster.cache().informers().is_empty());

    install(&fixture).await;
    apply(&fixture, &client).await;
    presence
        .when(|presence_status| presence_status.is_present())
        .await;
    let read = client.of(&widgets).get(&key(&fixture, "one")).await;
    assert!(read.unwrap().is_some());

    uninstall(&fixture).await;
    presence.when(|presence_status| presence_status.is_absent()).await;
    // The first read that finds the kind absent drops the informers, at the latest when the server closes the watch.
    let is_absent = async || match client.of(&widgets).get(&key(&fixture, "one")).await {
        Err(error) => error.is_absent(),
        Ok(_) => false,
    };
    while !is_absent().await {
        tokio::task::yield_now().await;
    }
    assert!(cluster.cache().informers().is_empty());
    let before = of_widgets(&proxy.exchanges());
    assert!(is_absent().await);
    assert_eq!(of_widgets(&proxy.exchanges()), before);
}

/// A cluster of a user without permission to watch CRDs.
async fn without_definitions(fixture: &Fixture, proxy: &FaultProxy) -> Cluster {
    let user = fixture.user("limited").await;
    let _ = user.grant(fixture.group(), &["*"], &["*"]).await.unwrap();
    proxy.announce(user.identity());
    let config = proxy.endpoint().config(user.identity()).unwrap();
    support::builder(fixture, proxy)
        .config(config)
        .build()
        .await
        .unwrap()
}

fn of_discovery(exchanges: &[Exchange]) -> usize {
    exchanges.iter().filter(|one| one.path == "/apis").count()
}

/// Shows that a kind is found absent by discovery, which is then left alone until it is time to ask again.
async fn is_absent_and_not_asked_for_again(
    fixture: &Fixture,
    proxy: &FaultProxy,
    cluster: &Cluster,
    kind: &Resource,
) {
    let mut presence = cluster.presence(kind, Duration::from_secs(3600));
    presence.when(|presence_status| presence_status.is_absent()).await;
    let asked = of_discovery(&proxy.exchanges());
    // Long enough for a tracker that does not pause to ask many times.
    for _ in 0..20 {
        fixture.client().apiserver_version().await.unwrap();
    }
    let again = presence.changed().now_or_never();
    assert!(again.is_none(), "{again:?}");
    assert_eq!(of_discovery(&proxy.exchanges()), asked);
}

// R24, R32
#[steersman_testing::test]
async fn guarantee_1_polls_an_absent_kind_of_a_served_group(fixture: Fixture) {
    define(&fixture, "Gadget").await;
    let proxy = fixture.proxy().await;
    let cluster = without_definitions(&fixture, &proxy).await;
    let gadgets = Resource::new(fixture.group(), "v1", "Gadget", "gadgets");
    let mut presence = cluster.presence(&gadgets, Duration::from_millis(50));
    presence
        .when(|presence_status| presence_status.is_present())
        .await;
    drop(presence);
    is_absent_and_not_asked_for_again(&fixture, &proxy, &cluster, &widgets(&fixture)).await;
    let another_version = Resource::new(fixture.group(), "v3", "Gadget", "gadgets");
    is_absent_and_not_asked_for_again(&fixture, &proxy, &cluster, &another_version).await;
}

// R24
#[steersman_testing::test]
async fn guarantee_1_polls_an_absent_kind_of_an_aggregated_version(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let no_such = Resource::new("apps", "v1", "Widget", "widgets");
    is_absent_and_not_asked_for_again(&fixture, &proxy, &cluster, &no_such).await;
}

// R24
#[steersman_testing::test]
async fn guarantee_3_polls_kinds_without_crd_if_api_services_are_forbidden(fixture: Fixture) {
    define(&fixture, "Gadget").await;
    let proxy = fixture.proxy().await;
    let _refused = proxy.inject(Matching::any().path("/apiservices"), Fault::answer(403));
    let cluster = cluster(&fixture, &proxy).await;
    // The presence of a kind with a CRD follows the CRD.
    let gadgets = Resource::new(fixture.group(), "v1", "Gadget", "gadgets");
    let mut presence = cluster.presence(&gadgets, POLL_EVERY);
    presence
        .when(|presence_status| presence_status.is_present())
        .await;
    proxy
        .wait_for(|all| all.iter().find(|one| one.path.ends_with("/apiservices"))?.status)
        .await;

    // An aggregated server can have another kind or version: discovery decides.
    let [mut others, mut another_version] = [
        widgets(&fixture),
        Resource::new(fixture.group(), "v3", "Gadget", "gadgets"),
    ]
    .map(|kind| cluster.presence(&kind, Duration::from_millis(50)));
    for absent in [&mut others, &mut another_version] {
        let told = absent.when(|presence_status| presence_status.is_absent()).await;
        assert!(told.reason.ends_with("is not served"), "{told}");
    }
    let asked = of_discovery(&proxy.exchanges());
    proxy
        .wait_for(|all| (of_discovery(all) > asked).then_some(()))
        .await;
    drop((others, another_version));
    let mut others = cluster.presence(&widgets(&fixture), Duration::from_secs(3600));
    others.when(|presence_status| presence_status.is_absent()).await;
    install(&fixture).await;
    others.when(|presence_status| presence_status.is_present()).await;
}

/// A kind that is defined, and of which the server does not know yet.
async fn about_to_be_served(fixture: &Fixture, proxy: &FaultProxy) -> (TestClock, Cluster, Injected) {
    not_ready(fixture, proxy, Fault::answer(404)).await
}

/// A kind that is defined, and with which the server is not ready.
async fn not_ready(fixture: &Fixture, proxy: &FaultProxy, fault: Fault) -> (TestClock, Cluster, Injected) {
    let clock = TestClock::new();
    let cluster = support::builder(fixture, proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let refused = proxy.inject(Matching::method("GET").path("/widgets"), fault);
    install(fixture).await;
    (clock, cluster, refused)
}

// R2, R17
#[steersman_testing::test]
async fn guarantee_7_a_cached_read_of_a_kind_absent_in_discovery_sends_no_request(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = without_definitions(&fixture, &proxy).await;
    let (client, widgets) = (cluster.client(), widgets(&fixture));
    let mut presence = cluster.presence(&widgets, Duration::from_secs(3600));
    presence.when(|presence_status| presence_status.is_absent()).await;
    for _ in 0..10 {
        assert_absent(client.of(&widgets).get(&key(&fixture, "one")).await, &widgets);
    }
    assert_eq!(of_widgets(&proxy.exchanges()), 0);
}

// R2, R17
#[steersman_testing::test]
async fn guarantee_7_a_cached_read_of_an_unserved_kind_sends_no_request(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let clock = TestClock::new();
    let cluster = support::builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let (client, widgets) = (cluster.client(), widgets(&fixture));
    let mut presence = cluster.presence(&widgets, POLL_EVERY);
    presence.when(|presence_status| presence_status.is_absent()).await;
    let refused = proxy.inject(Matching::method("GET").path("/widgets"), Fault::answer(404));
    install(&fixture).await;
    refused.hit().await;
    assert_absent(client.of(&widgets).get(&key(&fixture, "one")).await, &widgets);
    assert_eq!(refused.hits(), 1, "only the tracker asks");
    assert!(cluster.cache().informers().is_empty());
}

// R38
#[steersman_testing::test]
async fn guarantee_6_does_not_wait_for_an_unreachable_server(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (clock, cluster, swallowed) = not_ready(&fixture, &proxy, Fault::stall()).await;
    let mut presence = cluster.presence(&widgets(&fixture), POLL_EVERY);
    swallowed.hit().await;
    assert!(!presence.now().is_present());
    clock.advance_to(next_deadline(&clock, Duration::from_secs(2)).await);
    presence
        .when(|presence_status| presence_status.is_present())
        .await;
    assert_eq!(swallowed.hits(), 1);
}

/// Advances the clock, and checks that the kind is not requested any more.
async fn is_not_asked_for(fixture: &Fixture, clock: &TestClock, unknown: &Injected) {
    let asked = unknown.hits();
    for _ in 0..5 {
        clock.advance(Duration::from_secs(10));
        for _ in 0..5 {
            fixture.client().apiserver_version().await.unwrap();
        }
    }
    assert_eq!(unknown.hits(), asked);
}

// R38
#[steersman_testing::test]
async fn guarantee_6_probes_a_new_kind_every_50_ms(fixture: Fixture) {
    // It does not know the kind yet, or knows it and does not take watches of it.
    for fault in [Fault::answer(404), Fault::initializing()] {
        let proxy = fixture.proxy().await;
        let (clock, cluster, refused) = not_ready(&fixture, &proxy, fault).await;
        let mut presence = cluster.presence(&widgets(&fixture), POLL_EVERY);
        for asked in 1..=2 {
            refused.hit_times(asked).await;
            assert!(!presence.now().is_present());
            clock.advance_to(next_deadline(&clock, Duration::from_millis(50)).await);
        }
        refused.hit_times(3).await;
        drop(refused);
        // The server itself might not be ready yet.
        let asked_again = async {
            loop {
                clock.advance_to(next_deadline(&clock, Duration::from_secs(1)).await);
            }
        };
        tokio::select! {
            _ = presence.when(|presence_status| presence_status.is_present()) => {}
            () = asked_again => {}
        }
        uninstall(&fixture).await;
        presence.when(|presence_status| presence_status.is_absent()).await;
    }
}

#[steersman_testing::test]
async fn guarantee_6_a_busy_server_counts_as_an_answer(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let busy = Fault::answer_retry_after(429, 1);
    let (_clock, cluster, refused) = not_ready(&fixture, &proxy, busy).await;
    let mut presence = cluster.presence(&widgets(&fixture), POLL_EVERY);
    presence
        .when(|presence_status| presence_status.is_present())
        .await;
    assert_eq!(refused.hits(), 1);
}

// R2
#[steersman_testing::test]
async fn guarantee_2_stops_probing_a_removed_kind(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (clock, cluster, unknown) = about_to_be_served(&fixture, &proxy).await;
    let mut presence = cluster.presence(&widgets(&fixture), POLL_EVERY);
    unknown.hit().await;
    uninstall(&fixture).await;
    presence
        .when(|presence_status| presence_status.reason.ends_with("is not installed"))
        .await;
    is_not_asked_for(&fixture, &clock, &unknown).await;
}

#[steersman_testing::test]
async fn stops_polling_a_kind_without_watchers(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (clock, cluster, unknown) = about_to_be_served(&fixture, &proxy).await;
    let _another = cluster.presence(&Resource::of::<CustomResourceDefinition>(), POLL_EVERY);
    let presence = cluster.presence(&widgets(&fixture), POLL_EVERY);
    unknown.hit().await;
    drop(presence);
    is_not_asked_for(&fixture, &clock, &unknown).await;
}

// R24
#[steersman_testing::test]
async fn polls_discovery_at_the_shortest_interval_with_an_etag(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let _refused = ["/customresourcedefinitions", "/apiservices"]
        .map(|path| proxy.inject(Matching::any().path(path), Fault::answer(403)));
    let clock = TestClock::new();
    let cluster = support::builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let mut slow = cluster.presence(&widgets(&fixture), Duration::from_secs(30));
    slow.when(|presence_status| presence_status.is_absent()).await;
    assert_eq!(of_discovery(&proxy.exchanges()), 1);
    // After how many seconds it is asked again, and what the server says.
    let next_question = async || {
        let before = of_discovery(&proxy.exchanges());
        for seconds in 1.. {
            clock.advance(Duration::from_secs(1));
            // Time enough to ask, if it is time to.
            tokio::time::sleep(Duration::from_millis(20)).await;
            if of_discovery(&proxy.exchanges()) > before {
                let answered = |all: &[Exchange]| all.iter().rfind(|one| one.path == "/apis")?.status;
                return (seconds, proxy.wait_for(answered).await);
            }
        }
        unreachable!("it is asked some time")
    };
    // Reading a response and noticing a deadline take some seconds.
    let is_about = |(found, status): (u32, u16), seconds: u32| {
        assert!(
            (seconds..seconds + 10).contains(&found),
            "{found} s instead of {seconds} s"
        );
        // Other tests that install kinds on a shared server change its discovery.
        if fixture.embedded_server().is_some() {
            assert_eq!(status, 304);
        }
    };
    is_about(next_question().await, 30);
    let gadgets = Resource::new(fixture.group(), "v1", "Gadget", "gadgets");
    let quick = cluster.presence(&gadgets, Duration::from_secs(10));
    is_about(next_question().await, 10);
    is_about(next_question().await, 10);
    drop(quick);
    is_about(next_question().await, 30);
}

#[steersman_testing::test]
async fn guarantee_3_a_kind_whose_definition_cannot_be_decoded_is_not_absent(fixture: Fixture) {
    install(&fixture).await;
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    // Once the server takes an object, it no longer changes the definition.
    apply(&fixture, &cluster.client()).await;
    // The first list of definitions has one of a form that this program does not know.
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let mut list: Value =
        serde_json::from_str(&fixture.client().request_text(request).await.unwrap()).unwrap();
    let items = list["items"].as_array_mut().unwrap();
    let of_widgets = |item: &&mut Value| item["metadata"]["name"] == definition_name(&fixture);
    items.iter_mut().find(of_widgets).unwrap()["spec"]["names"]["plural"] = json!(7);
    let streamed = Matching::watches().path(path).query("sendInitialEvents=true");
    let _no_stream = proxy.inject(streamed, Fault::answer(400));
    let listed = Fault::respond(200, "application/json", list.to_string());
    let _unknown_form = proxy.inject(Matching::reads().path(path), listed);
    let mut presence = cluster.presence(&widgets(&fixture), Duration::from_millis(50));
    let is_present = presence.when(|presence_status| presence_status.is_present());
    let found = tokio::time::timeout(Duration::from_secs(20), is_present).await;
    found.expect("discovery knows that the kind is served");
}

// D5
#[steersman_testing::test]
async fn a_404_removes_no_objects_of_a_present_kind(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let (client, widgets) = (cluster.client(), widgets(&fixture));
    install(&fixture).await;
    apply(&fixture, &client).await;
    let mut presence = cluster.presence(&widgets, POLL_EVERY);
    presence
        .when(|presence_status| presence_status.is_present())
        .await;
    let read = async || client.of(&widgets).get(&key(&fixture, "one")).await.unwrap();
    assert!(read().await.is_some());
    for fault in [
        Fault::respond(404, "text/plain", "404 page not found\n"),
        Fault::respond(404, "text/html", "<html>Not Found</html>"),
    ] {
        let refused = proxy.inject(Matching::any().path("/widgets"), fault);
        proxy.cut(&Matching::watches().path("/widgets"), Cut::Abrupt);
        // By the second time, the result of the first is known.
        refused.hit_times(2).await;
        assert!(read().await.is_some());
        drop(refused);
        let mut informers = cluster.cache().informers().into_iter();
        let informer = informers
            .find(|informer| *informer.resource() == widgets)
            .unwrap();
        informer.health_when(|health| health.error.is_none()).await;
    }
}
