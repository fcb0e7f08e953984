// SPDX-License-Identifier: Apache-2.0
//! Conditional controllers where not everything is as it should be: permissions that come and go, a kind that one cluster
//! has and another has not, and objects that cannot be converted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, kinds, managed, support};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use steersman_cache::Resource;
use steersman_cluster::{Client, Cluster};
use steersman_endpoints::Exposition;
use steersman_runtime::{Controller, Manager, RunnableStatus, dynamic};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Cut, Exchange, Fault, Matching},
};

use kinds::{TestKind, Uids, conditional, is_watch};
use managed::{
    Log, cluster, cluster_builder, cluster_through, config_map, is_dormant, manager_of, run, stands,
};

const GROUP: &str = "apiextensions.k8s.io";
const DEFINITIONS: &str = "customresourcedefinitions";

fn is_degraded(standing: &RunnableStatus) -> bool {
    matches!(standing, RunnableStatus::Degraded { .. })
}

/// How often the widgets were listed or watched anew.
fn watches_of_widgets(exchanges: &[Exchange]) -> usize {
    exchanges.iter().filter(|one| is_watch(one, "widgets")).count()
}

/// Watches that were accepted: a server can close a watch before the deletion of the CRD is seen.
fn opened_watches(exchanges: &[Exchange]) -> usize {
    let is_open = |one: &&Exchange| is_watch(one, "widgets") && one.status == Some(200);
    exchanges.iter().filter(is_open).count()
}

// R24
#[steersman_testing::test]
async fn a_permission_to_watch_crds_that_is_revoked_and_granted_restarts_nothing(fixture: Fixture) {
    let user = fixture.user("limited").await;
    let _ = user.grant(fixture.group(), &["*"], &["*"]).await.unwrap();
    let granted = user.grant(GROUP, &[DEFINITIONS], &["*"]).await.unwrap();
    let proxy = fixture.proxy().await;
    proxy.announce(user.identity());
    let watched = cluster_builder(&fixture, "default")
        .config(proxy.endpoint().config(user.identity()).unwrap())
        .build()
        .await
        .unwrap();
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let seen = Uids::of(&widgets);
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .poll_every(Duration::from_millis(100))
        .add_to(&manager, seen.clone())
        .unwrap();
    let running = run(&manager);
    widgets.install().await;
    widgets.apply(&client, "one").await;
    seen.saw("one").await;

    // Revoked: the watch that is open ends some time, and cannot be opened again.
    granted.revoke().await.unwrap();
    let definitions = Matching::watches().path(DEFINITIONS);
    assert!(proxy.cut(&definitions, Cut::Clean) > 0);
    proxy
        .wait_for(|all| {
            let is_refused = |one: &&Exchange| one.path.ends_with(DEFINITIONS) && one.status == Some(403);
            let refused = all.iter().position(|one| is_refused(&one))?;
            let polled = |one: &Exchange| one.path == "/apis" && one.status.is_some();
            all[refused..].iter().any(polled).then_some(())
        })
        .await;
    widgets.apply(&client, "two").await;
    seen.saw("two").await;
    assert_eq!(watches_of_widgets(&proxy.exchanges()), 1, "it was started anew");

    // Now polling reports changes.
    widgets.uninstall().await;
    stands(&manager, "widgets", is_dormant).await;
    seen.clear();
    widgets.install().await;
    widgets.apply(&client, "one").await;
    seen.saw("one").await;
    let watches = watches_of_widgets(&proxy.exchanges());

    // Granted again: definitions are watched again, and discovery is left alone.
    let _ = user.grant(GROUP, &[DEFINITIONS], &["*"]).await.unwrap();
    proxy
        .wait_for(|all| {
            let mut open = all.iter().filter(|one| one.path.ends_with(DEFINITIONS));
            open.any(|one| one.is_watch() && one.is_open() && one.status == Some(200))
                .then_some(())
        })
        .await;
    widgets.apply(&client, "three").await;
    seen.saw("three").await;
    assert_eq!(
        watches_of_widgets(&proxy.exchanges()),
        watches,
        "it was started anew"
    );
    widgets.uninstall().await;
    stands(&manager, "widgets", is_dormant).await;
    running.stop().await.unwrap();
}

// R2, R24
#[steersman_testing::test]
async fn a_server_that_fails_after_a_permission_went_stops_nothing_that_polling_found(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched.clone()).await;
    let (widgets, gadgets) = (
        TestKind::new(&fixture, "Widget"),
        TestKind::new(&fixture, "Gadget"),
    );
    let [seen, former] = [&widgets, &gadgets].map(|kind| {
        let seen = Uids::of(kind);
        Controller::of_kind(kind.resource.plural(), dynamic(kind.resource.clone()))
            .when_installed()
            .poll_every(Duration::from_millis(100))
            .add_to(&manager, seen.clone())
            .unwrap();
        seen
    });
    let running = run(&manager);
    stands(&manager, "widgets", is_dormant).await;
    gadgets.install().await;
    gadgets.apply(&client, "one").await;
    former.saw("one").await;

    // Watches of CRDs are forbidden from now on. Polling reports installs and removals.
    let definitions = || Matching::any().path(DEFINITIONS);
    let revoked = proxy.inject(definitions(), Fault::answer(403));
    assert!(proxy.cut(&definitions(), Cut::Clean) > 0);
    revoked.hit().await;
    widgets.install().await;
    widgets.apply(&client, "one").await;
    seen.saw("one").await;
    gadgets.uninstall().await;
    stands(&manager, "gadgets", is_dormant).await;

    // Now they cannot be watched for another reason, which does not bring back what was known of them before.
    let broken = proxy.inject(definitions(), Fault::answer(503));
    drop(revoked);
    broken.hit_times(2).await;
    widgets.apply(&client, "two").await;
    seen.saw("two").await;
    assert_eq!(watches_of_widgets(&proxy.exchanges()), 1, "it was started anew");
    assert_eq!(manager.statuses().of("widgets"), Some(RunnableStatus::Ready));
    let standing = manager.statuses().of("gadgets").unwrap();
    assert!(is_dormant(&standing), "{standing}");
    running.stop().await.unwrap();
}

// R5, R170
#[steersman_testing::test]
async fn each_cluster_is_worked_on_while_it_has_the_kind(fixture: Fixture) {
    let own = fixture.own_server(Default::default()).await;
    let admin = own.client();
    let other = Cluster::builder("other")
        .field_manager("test")
        .config(own.endpoint().config(own.admin()).unwrap())
        .build()
        .await
        .unwrap();
    let here = TestKind::new(&fixture, "Widget");
    let there = TestKind::at(&fixture, &admin, "default", "Widget");
    let clients = [cluster(&fixture).await.live(), other.live()];
    let proxy = fixture.proxy().await;
    let manager = Manager::builder()
        .cluster(cluster_through(&fixture, &proxy, "default").await)
        .cluster(other)
        .build()
        .await
        .unwrap();
    let seen = Uids::of(&here);
    Controller::of_kind("widgets", dynamic(here.resource.clone()))
        .on_every_cluster()
        .when_installed()
        .add_to(&manager, seen.clone())
        .unwrap();
    let running = run(&manager);
    // One has it, which does not wait for the other.
    there.install().await;
    there.apply(&clients[1], "there").await;
    seen.saw("there").await;
    stands(&manager, "widgets", RunnableStatus::is_ready).await;
    assert_eq!(watches_of_widgets(&proxy.exchanges()), 0);
    for cycle in 0..3 {
        here.install().await;
        let name = format!("here-{cycle}");
        here.apply(&clients[0], &name).await;
        seen.saw(&name).await;
        here.uninstall().await;
        proxy
            .wait_for(|all| {
                let is_open = |one: &Exchange| one.path.ends_with("/widgets") && one.is_open();
                (!all.iter().any(is_open)).then_some(())
            })
            .await;
        let name = format!("there-{cycle}");
        there.apply(&clients[1], &name).await;
        seen.saw(&name).await;
        assert_eq!(manager.statuses().of("widgets"), Some(RunnableStatus::Ready));
    }
    running.stop().await.unwrap();
}

/// Sets the conversion of objects to an unreachable webhook, or to none.
async fn convert_by_webhook(client: &Client, kind: &TestKind, proxy: &FaultProxy, by_webhook: bool) {
    let webhook = json!({
        "conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/convert"},
    });
    let conversion = if by_webhook {
        json!({"strategy": "Webhook", "webhook": webhook})
    } else {
        json!({"strategy": "None", "webhook": null})
    };
    kind.change(json!({"spec": {"conversion": conversion}})).await;
    // A server takes a moment until it acts on it.
    while client.of(&kind.resource).get(&kind.key("one")).await.is_ok() == by_webhook {
        tokio::task::yield_now().await;
    }
    // A real server closes open watches.
    proxy.cut(&Matching::watches().path("/widgets"), Cut::Clean);
}

/// Applies an object in the version that is stored, which no conversion is needed for.
async fn apply_stored(client: &Client, kind: &TestKind, name: &str) {
    let stored = Resource::new(
        kind.resource.group(),
        "v2",
        kind.resource.kind(),
        kind.resource.plural(),
    );
    let mut object = kind.object(name);
    object.types.as_mut().unwrap().api_version = stored.api_version();
    while let Err(error) = client.of(&stored).apply(&object).await {
        assert!(kinds::is_early(&error), "{error:?}");
        tokio::task::yield_now().await;
    }
}

// R171
#[steersman_testing::test]
async fn a_kind_whose_objects_cannot_be_converted_is_present_and_degraded(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched).await;
    let (widgets, maps) = (TestKind::new(&fixture, "Widget"), Log::new());
    let seen = conditional(&manager, "widgets", &widgets);
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, maps.clone())
        .unwrap();
    let other_works = async |name: &str| {
        client.create(&config_map(&fixture, name, "1")).await.unwrap();
        maps.saw(name, Some("1")).await;
    };

    // From the start: it is not absent, and reports what it waits for. Nothing else waits.
    widgets.install().await;
    apply_stored(&client, &widgets, "one").await;
    convert_by_webhook(&client, &widgets, &proxy, true).await;
    let running = run(&manager);
    stands(&manager, "widgets", is_degraded).await;
    let Some(RunnableStatus::Degraded { reason }) = manager.statuses().of("widgets") else {
        panic!("{:?}", manager.statuses().of("widgets"));
    };
    assert!(reason.contains(&widgets.resource.to_string()), "{reason}");
    other_works("a").await;
    convert_by_webhook(&client, &widgets, &proxy, false).await;
    seen.saw("one").await;
    stands(&manager, "widgets", RunnableStatus::is_ready).await;

    // While it runs: it keeps running with its stored objects, and continues when they can be converted again.
    convert_by_webhook(&client, &widgets, &proxy, true).await;
    apply_stored(&client, &widgets, "two").await;
    stands(&manager, "widgets", is_degraded).await;
    other_works("b").await;
    assert!(seen.seen().iter().all(|(name, _)| name == "one"));
    convert_by_webhook(&client, &widgets, &proxy, false).await;
    seen.saw("two").await;
    stands(&manager, "widgets", RunnableStatus::is_ready).await;
    running.stop().await.unwrap();
}

/// A map that a widget owns.
fn owned(fixture: &Fixture, widgets: &TestKind, name: &str, uid: &str) -> ConfigMap {
    let mut map = config_map(fixture, name, "1");
    let owner = json!([{
        "apiVersion": widgets.resource.api_version(), "kind": widgets.resource.kind(),
        "name": "one", "uid": uid, "controller": true,
    }]);
    map.metadata.owner_references = serde_json::from_value(owner).unwrap();
    map
}

// R171
#[steersman_testing::test]
async fn a_kind_that_is_installed_again_with_another_scope_is_watched_in_it(fixture: Fixture) {
    let watched = Cluster::builder("default")
        .field_manager("test")
        .config(fixture.endpoint().config(fixture.admin()).unwrap())
        .build()
        .await
        .unwrap();
    let client = watched.live();
    let manager = manager_of(watched).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let seen = Uids::of(&widgets);
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .owns::<ConfigMap>()
        .add_to(&manager, seen.clone())
        .unwrap();
    let running = run(&manager);
    for (round, scope) in ["Namespaced", "Cluster", "Namespaced"].into_iter().enumerate() {
        widgets.install_as(scope).await;
        let mut one = widgets.object("one");
        if scope == "Cluster" {
            one.metadata.namespace = None;
        }
        while let Err(error) = client.of(&widgets.resource).apply(&one).await {
            assert!(kinds::is_early(&error), "{error:?}");
            tokio::task::yield_now().await;
        }
        let uid = seen.saw("one").await;
        stands(&manager, "widgets", RunnableStatus::is_ready).await;
        // The key of an owner has a namespace or none.
        seen.clear();
        let child = owned(&fixture, &widgets, &format!("child-{round}"), &uid);
        client.create(&child).await.unwrap();
        assert_eq!(seen.saw("one").await, uid);
        widgets.uninstall().await;
        stands(&manager, "widgets", is_dormant).await;
        seen.clear();
    }
    running.stop().await.unwrap();
}

async fn probe(manager: &Manager, path: &str) -> (u16, String) {
    let reply = support::get(manager.addresses().health.unwrap(), path).await;
    (reply.status, reply.body)
}

// R2, R24, R37, R93
#[steersman_testing::test]
async fn an_unknown_presence_starts_nothing_stops_nothing_and_is_named(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let client = cluster(&fixture).await.live();
    let definitions = || Matching::any().path(DEFINITIONS);
    let broken = proxy.inject(definitions(), Fault::answer(503));
    let manager = Manager::builder()
        .cluster(watched)
        .health(support::HERE)
        .build()
        .await
        .unwrap();
    let widgets = TestKind::new(&fixture, "Widget");
    let seen = conditional(&manager, "widgets", &widgets);
    widgets.install().await;
    widgets.apply(&client, "one").await;
    let running = run(&manager);

    // From the start: nothing runs, and the status contains the reason.
    let is_waiting = |standing: &RunnableStatus| standing.to_string().contains("cannot determine");
    stands(&manager, "widgets", is_waiting).await;
    let (status, body) = probe(&manager, "/readyz").await;
    assert_eq!(status, 500);
    assert!(body.contains(&widgets.resource.to_string()), "{body}");
    assert_eq!(probe(&manager, "/healthz").await.0, 200);
    assert_eq!(watches_of_widgets(&proxy.exchanges()), 0);
    drop(broken);
    seen.saw("one").await;
    assert_eq!(probe(&manager, "/readyz").await.0, 200);

    let shown = async |line: String| {
        let (_, body) = probe(&manager, "/readyz?verbose").await;
        assert!(body.lines().any(|found| found == line), "{line}\n{body}");
    };
    let kind = &widgets.resource;
    shown(format!(
        "kind {kind} (cluster default): present: {kind} is installed"
    ))
    .await;
    shown("runnable widgets: ready".to_owned()).await;

    // While it runs: it continues.
    let broken = proxy.inject(definitions(), Fault::answer(503));
    proxy.cut(&definitions(), Cut::Clean);
    broken.hit().await;
    widgets.apply(&client, "two").await;
    seen.saw("two").await;
    assert_eq!(manager.statuses().of("widgets"), Some(RunnableStatus::Ready));
    assert_eq!(watches_of_widgets(&proxy.exchanges()), 1);
    drop(broken);

    // A runnable whose kind is absent is ready, and reported as dormant.
    widgets.uninstall().await;
    stands(&manager, "widgets", is_dormant).await;
    assert_eq!(probe(&manager, "/readyz").await.0, 200);
    shown(format!(
        "kind {kind} (cluster default): absent: {kind} is not installed"
    ))
    .await;
    shown(format!("runnable widgets: dormant: {kind} is not installed")).await;
    let metrics = manager.metrics().encode(Exposition::Text);
    let counted = |series: &str, name: &str, value: &str| {
        let mut lines = metrics.lines().filter(|line| line.starts_with(series));
        lines.any(|line| line.contains(name) && line.ends_with(value))
    };
    assert!(
        counted("steersman_runnable_state{", "widgets", r#"state="dormant"} 1.0"#),
        "{metrics}"
    );
    assert!(
        counted("steersman_kind_presence{", fixture.group(), "} 0.0"),
        "{metrics}"
    );
    running.stop().await.unwrap();
}

// R83, R86, R169
#[steersman_testing::test]
async fn a_standby_warms_up_for_a_kind_that_is_installed_meanwhile(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let client = cluster(&fixture).await.live();
    elected::occupy(&fixture, 60).await;
    let manager = Manager::builder()
        .cluster(watched)
        .leader_election(elected::steady(&fixture, "one"))
        .build()
        .await
        .unwrap();
    let widgets = TestKind::new(&fixture, "Widget");
    let seen = Uids::of(&widgets);
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .warm()
        .add_to(&manager, seen.clone())
        .unwrap();
    let running = run(&manager);
    for install in 1..=2 {
        stands(&manager, "widgets", is_dormant).await;
        widgets.install().await;
        widgets.apply(&client, "one").await;
        stands(&manager, "widgets", |standing| *standing == RunnableStatus::Ready).await;
        proxy
            .wait_for(|all| (opened_watches(all) == install).then_some(()))
            .await;
        if install == 1 {
            widgets.uninstall().await;
            let has_ended = |one: &Exchange| !is_watch(one, "widgets") || !one.is_open();
            proxy
                .wait_for(|all| all.iter().all(has_ended).then_some(()))
                .await;
        }
    }
    assert!(!manager.is_leading() && seen.seen().is_empty());
    let written: Vec<_> = proxy.exchanges();
    let written: Vec<_> = written.iter().filter(|one| one.is_write()).collect();
    assert!(written.is_empty(), "a standby writes nothing: {written:?}");
    let free = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
    elected::leases(&fixture)
        .patch(elected::LEASE, &PatchParams::default(), &free)
        .await
        .unwrap();
    seen.saw("one").await;
    assert_eq!(opened_watches(&proxy.exchanges()), 2, "it had what it needs");
    running.stop().await.unwrap();
}
