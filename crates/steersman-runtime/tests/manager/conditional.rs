// SPDX-License-Identifier: Apache-2.0
//! Controllers that run only while their kind is installed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{kinds, managed, support};
use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Patch;
use serde_json::json;
use steersman_cluster::{Client, POLL_EVERY};
use steersman_core::{Clock, TokioClock};
use steersman_runtime::{
    Conditional, Controller, Manager, RunCondition, RunContext, RunError, RunnableStatus, dynamic,
    map_metadata, run_fn,
};
use steersman_testing::{Fixture, proxy::Exchange};
use tokio::sync::watch;

use kinds::{TestKind, Uids};
use managed::{Log, cluster_through, config_map, is_dormant, key, manager_of, run, stands};

/// The requests for a kind's collection.
fn requests_for(exchanges: &[Exchange], kind: &TestKind) -> usize {
    let suffix = format!("/{}", kind.resource.plural());
    exchanges
        .iter()
        .filter(|exchange| exchange.path.ends_with(&suffix))
        .count()
}

// R1, R2, R3, R4, R6, R8, R10, R26, R37, R38, R39, R40, R168
#[steersman_testing::test]
async fn a_controller_starts_stops_and_starts_again_with_its_kind(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let client = fixture_client(&fixture).await;
    let manager = Manager::builder().cluster(cluster).health(support::HERE);
    let manager = manager.build().await.unwrap();
    let healthy = async || {
        let reply = support::get(manager.addresses().health.unwrap(), "/healthz").await;
        assert_eq!(reply.parts(), (200, "ok"));
    };
    let widgets = TestKind::new(&fixture, "Widget");
    let (seen, others) = (Uids::of(&widgets), Log::new());
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .add_to(&manager, seen.clone())
        .unwrap();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, others.clone())
        .unwrap();
    let running = run(&manager);

    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    others.saw("a", Some("1")).await;
    stands(&manager, "widgets", is_dormant).await;
    healthy().await;
    assert_eq!(
        requests_for(&proxy.exchanges(), &widgets),
        0,
        "an absent kind costs no request"
    );
    let watch = proxy.wait_for(maps_watch).await;

    let (mut former, clock) = (Vec::new(), TokioClock::new());
    for cycle in 0..3 {
        widgets.install().await;
        widgets.apply(&client, "one").await;
        let created = clock.now();
        let uid = seen.saw("one").await;
        let took = clock.now().saturating_since(created);
        assert!(took <= POLL_EVERY + Duration::from_secs(5), "{took:?}");
        assert!(
            !former.contains(&uid),
            "an object of a former incarnation was reconciled"
        );
        former.push(uid);
        seen.clear();
        widgets.uninstall().await;
        stands(&manager, "widgets", is_dormant).await;
        healthy().await;
        let is_open = |exchange: &Exchange| {
            exchange.path.ends_with("/widgets") && exchange.is_watch() && exchange.is_open()
        };
        proxy
            .wait_for(|exchanges| (!exchanges.iter().any(is_open)).then_some(()))
            .await;
        let name = format!("other-{cycle}");
        client.create(&config_map(&fixture, &name, "1")).await.unwrap();
        others.saw(&name, Some("1")).await;
    }
    assert_eq!(
        maps_watch(&proxy.exchanges()),
        Some(watch),
        "another controller's watch was disturbed"
    );
    running.stop().await.unwrap();
}

// R170
#[steersman_testing::test]
async fn a_version_that_is_not_served_is_not_installed(fixture: Fixture) {
    let scene = Scene::new(&fixture, "Widget").await;
    let running = run(&scene.manager);
    scene.kind.install().await;
    scene.kind.apply(&scene.client, "one").await;
    scene.seen.saw("one").await;
    scene.kind.serve(false).await;
    scene.dormant().await;
    scene.seen.clear();
    scene.kind.serve(true).await;
    scene.seen.saw("one").await;
    running.stop().await.unwrap();
}

// R171
#[steersman_testing::test]
async fn a_recreated_crd_is_another_incarnation(fixture: Fixture) {
    let scene = Scene::new(&fixture, "Widget").await;
    let running = run(&scene.manager);
    scene.kind.install().await;
    scene.kind.apply(&scene.client, "one").await;
    let first = scene.seen.saw("one").await;
    for _ in 0..3 {
        scene.kind.uninstall().await;
        scene.seen.clear();
        scene.kind.install().await;
        scene.kind.apply(&scene.client, "one").await;
        assert_ne!(scene.seen.saw("one").await, first);
        let seen = scene.seen.seen();
        assert!(
            seen.iter().all(|(_, uid)| uid.as_ref() != Some(&first)),
            "{seen:?}"
        );
    }
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn a_kind_is_present_until_its_last_finalizer_is_removed(fixture: Fixture) {
    let scene = Scene::new(&fixture, "Widget").await;
    let running = run(&scene.manager);
    scene.kind.install().await;
    scene.kind.apply(&scene.client, "one").await;
    scene.seen.saw("one").await;
    let objects = scene.client.of(&scene.kind.resource);
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/held"]}}));
    objects.patch(&scene.kind.key("one"), &hold).await.unwrap();
    scene.seen.clear();
    scene.kind.begin_uninstall().await;
    // The server deletes the object, which its finalizer holds; the controller hears of it, because it still runs.
    scene.seen.saw("one").await;
    let standing = scene.manager.statuses().of("widgets");
    assert_eq!(standing, Some(RunnableStatus::Ready));
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    objects.patch(&scene.kind.key("one"), &release).await.unwrap();
    scene.dormant().await;
    running.stop().await.unwrap();
}

// R5, R31, R168
#[steersman_testing::test]
async fn a_controller_works_without_an_optional_kind_and_watches_it_once_it_is_installed(fixture: Fixture) {
    let cluster = managed::cluster(&fixture).await;
    let client = cluster.live();
    let manager = manager_of(cluster).await;
    let (gadgets, log) = (TestKind::new(&fixture, "Gadget"), Log::new());
    let of_gadget = map_metadata(|gadget| Some(gadget.key()));
    Controller::of::<ConfigMap>("maps")
        .watches(dynamic(gadgets.resource.clone()).optional(), of_gadget)
        .add_to(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    log.saw("a", Some("1")).await;
    for _ in 0..2 {
        gadgets.install().await;
        let before = log.count("of-a-gadget");
        gadgets.apply(&client, "of-a-gadget").await;
        log.when(|log| {
            log.iter()
                .filter(|(request, _)| request.name() == "of-a-gadget")
                .count()
                > before
        })
        .await;
        gadgets.uninstall().await;
    }
    running.stop().await.unwrap();
}

// R34
#[steersman_testing::test]
async fn without_the_option_a_missing_kind_ends_the_run_with_its_name_and_the_option(fixture: Fixture) {
    let cluster = managed::cluster(&fixture).await;
    let manager = manager_of(cluster).await;
    let widgets = TestKind::new(&fixture, "Widget");
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .sync_timeout(Duration::from_millis(300))
        .add_to(&manager, Uids::of(&widgets))
        .unwrap();
    let RunError::Runnable { name, source } = run(&manager).ended().await.unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(name, "widgets");
    let text = source.to_string();
    assert!(
        text.contains(&widgets.resource.to_string()) && text.contains(".when_installed()"),
        "{text}"
    );
}

// R14, R23, R28, R35, R36
#[steersman_testing::test]
async fn any_runnable_hangs_on_any_condition(fixture: Fixture) {
    let cluster = managed::cluster(&fixture).await;
    let client = cluster.live();
    let manager = Manager::builder().cluster(cluster.clone()).build().await.unwrap();
    let runs = Arc::new(watch::Sender::new(0_i32));
    let counted = Arc::clone(&runs);
    let task = run_fn("task", move |cx: RunContext| {
        let runs = Arc::clone(&counted);
        async move {
            runs.send_modify(|runs| *runs += 1);
            cx.stop().requested().await;
            runs.send_modify(|runs| *runs -= 1);
            Ok(())
        }
    });
    let is_on = |map: &ConfigMap| map.data.as_ref().is_some_and(|data| data["value"] == "on");
    let flag = |name: &str| RunCondition::object_is(&cluster, key(&fixture, name), is_on);
    let nested = Conditional::new(Conditional::new(task, flag("inner")), flag("outer"));
    manager.add(nested).unwrap();
    let running = run(&manager);
    client.create(&config_map(&fixture, "inner", "on")).await.unwrap();
    let mut counted = runs.subscribe();
    for _ in 0..3 {
        client.apply(&config_map(&fixture, "outer", "on")).await.unwrap();
        counted.wait_for(|runs| *runs == 1).await.unwrap();
        client.apply(&config_map(&fixture, "outer", "off")).await.unwrap();
        counted.wait_for(|runs| *runs == 0).await.unwrap();
    }
    running.stop().await.unwrap();
}

// R24, R32
#[steersman_testing::test]
async fn discovery_is_polled_if_crds_cannot_be_watched(fixture: Fixture) {
    let user = fixture.user("limited").await;
    let _ = user.grant(fixture.group(), &["*"], &["*"]).await.unwrap();
    let proxy = fixture.proxy().await;
    proxy.announce(user.identity());
    let config = proxy.endpoint().config(user.identity()).unwrap();
    let cluster = managed::cluster_builder(&fixture, "default")
        .config(config)
        .build()
        .await
        .unwrap();
    let client = fixture_client(&fixture).await;
    let manager = manager_of(cluster).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let seen = Uids::of(&widgets);
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .poll_every(Duration::from_millis(200))
        .add_to(&manager, seen.clone())
        .unwrap();
    let running = run(&manager);
    stands(&manager, "widgets", is_dormant).await;
    widgets.install().await;
    widgets.apply(&client, "one").await;
    seen.saw("one").await;
    widgets.uninstall().await;
    stands(&manager, "widgets", is_dormant).await;
    running.stop().await.unwrap();
}

// R7
#[steersman_testing::test]
async fn kinds_are_installed_in_any_order(fixture: Fixture) {
    let cluster = managed::cluster(&fixture).await;
    let client = cluster.live();
    let manager = manager_of(cluster).await;
    let names = ["Alpha", "Beta", "Gamma", "Delta", "Epsilon"];
    let kinds: Vec<_> = names.iter().map(|name| TestKind::new(&fixture, name)).collect();
    let seen: Vec<_> = kinds.iter().map(Uids::of).collect();
    for (kind, seen) in kinds.iter().zip(&seen) {
        Controller::of_kind(kind.resource.kind(), dynamic(kind.resource.clone()))
            .when_installed()
            .add_to(&manager, seen.clone())
            .unwrap();
    }
    let running = run(&manager);
    for index in [3, 0, 4, 1, 2] {
        kinds[index].install().await;
        kinds[index].apply(&client, "one").await;
    }
    for seen in &seen {
        seen.saw("one").await;
    }
    for index in [1, 4] {
        kinds[index].uninstall().await;
        stands(&manager, kinds[index].resource.kind(), is_dormant).await;
    }
    running.stop().await.unwrap();
}

/// A manager with a controller that waits for its kind.
struct Scene {
    manager: Manager,
    kind: TestKind,
    seen: Uids,
    client: Client,
}

impl Scene {
    async fn new(fixture: &Fixture, kind: &str) -> Self {
        let cluster = managed::cluster(fixture).await;
        let client = fixture_client(fixture).await;
        let manager = manager_of(cluster).await;
        let kind = TestKind::new(fixture, kind);
        let seen = Uids::of(&kind);
        Controller::of_kind("widgets", dynamic(kind.resource.clone()))
            .when_installed()
            .add_to(&manager, seen.clone())
            .unwrap();
        Self {
            manager,
            kind,
            seen,
            client,
        }
    }

    async fn dormant(&self) {
        stands(&self.manager, "widgets", is_dormant).await;
    }
}

/// The number of the one connection by which config maps are watched.
fn maps_watch(exchanges: &[Exchange]) -> Option<usize> {
    let mut open = exchanges.iter().enumerate().filter(|(_, exchange)| {
        exchange.path.ends_with("/configmaps") && exchange.is_watch() && exchange.is_open()
    });
    let (index, _) = open.next()?;
    assert!(open.next().is_none(), "config maps are watched twice");
    Some(index)
}

async fn fixture_client(fixture: &Fixture) -> steersman_cluster::Client {
    managed::cluster(fixture).await.live()
}
