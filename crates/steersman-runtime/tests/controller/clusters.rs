// SPDX-License-Identifier: Apache-2.0
//! One controller, several clusters, which come and go. They are different ways to one server, each with a name.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::json;
use steersman_cache::Resource;
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Action, ObjectKey, PresenceStatus};
use steersman_runtime::{
    Builder, Context, Controller, Options, Reconciler, Request, RequestKey, RunnableStatus, dynamic, kind,
    map_metadata, reconcile_fn, same_object,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Fault, Matching},
};
use support::{
    Calls, GRACE, Stage, cluster_through, config_map, delete, key, let_go_on, object, secret, until,
};

/// Remembers keys with the cluster that they are worked on in.
fn by_cluster<R: RequestKey>(
    calls: &Calls,
    name: impl Fn(&R) -> String + Send + Sync + 'static,
) -> impl Reconciler<R> {
    let calls = calls.clone();
    reconcile_fn(move |key: R, cx: Context| {
        calls.add(&format!("{}:{}", cx.cluster().name(), name(&key)), &cx);
        std::future::ready(Ok::<_, std::convert::Infallible>(Action::await_change()))
    })
}

fn everywhere(
    stage: &Stage,
    calls: &Calls,
    change: impl FnOnce(Builder<Request, ConfigMap>) -> Builder<Request, ConfigMap>,
) -> Controller {
    let builder = change(Controller::of::<ConfigMap>("maps"));
    builder.on_every_cluster().build(
        &stage.cluster,
        by_cluster(calls, |request: &Request| request.name().to_owned()),
    )
}

async fn joining(fixture: &Fixture, name: &str) -> (FaultProxy, Cluster) {
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(fixture, &proxy, name).build().await.unwrap();
    (proxy, cluster)
}

// R72, R173
#[steersman_testing::test]
async fn an_object_is_reconciled_in_each_cluster_with_the_client_of_that_cluster(fixture: Fixture) {
    let home = fixture.proxy().await;
    let stage = Stage::through(&fixture, &home).await;
    let (proxy, b) = joining(&fixture, "b").await;
    stage.runtime.clusters().insert(b.clone()).unwrap();
    let calls = Calls::new();
    let reconciler = calls.then(|request: Request, cx: Context, _| async move {
        let name = format!("{}-of-{}", request.name(), cx.cluster().name());
        let made = json!({"metadata": {"name": name, "namespace": request.namespace()}});
        cx.client().apply(&object::<Secret>(made)).await?;
        Ok(Action::await_change())
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .labels("app=test")
        .on_every_cluster()
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    let direct = support::cluster_builder(&fixture, "direct")
        .build()
        .await
        .unwrap();
    let mut map = config_map(&fixture, "a", "1");
    map.metadata.labels = Some([("app".to_owned(), "test".to_owned())].into());
    direct.live().create(&map).await.unwrap();
    // Two of the first, and two more after its removal.
    calls.reach("a", 2).await;
    until(|| stage.reconciled("maps", "success") == 2).await;
    delete::<ConfigMap>(&direct.live(), &key(&fixture, "a")).await;
    until(|| stage.reconciled("maps", "success") == 4).await;
    running.stop(GRACE).await.unwrap();
    for (proxy, secret) in [(&home, "a-of-default"), (&proxy, "a-of-b")] {
        let all = proxy.exchanges();
        assert!(all.iter().any(|one| one.is_watch()));
        let written: Vec<_> = all.iter().filter(|one| one.is_write()).collect();
        let is_meant = written
            .iter()
            .all(|one| one.path.ends_with(&format!("/secrets/{secret}")));
        assert!(is_meant && written.len() == 2, "{secret}: {written:?}");
    }
}

// R9, R59
#[steersman_testing::test]
async fn informers_of_another_cluster_are_kept_until_the_run_or_the_cluster_ends(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let cluster_set = stage.runtime.clusters().clone();
    let calls = Calls::new();
    let reconciler = calls.then(|key: ObjectKey, cx: Context, _| async move {
        if let Some(client) = cx.client_of(&"b".into()) {
            client.get::<Secret>(&key).await?;
        }
        Ok(Action::await_change())
    });
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, reconciler);
    let (proxy, b) = joining(&fixture, "b").await;
    cluster_set.insert(b.clone()).unwrap();
    let watches = || {
        let all = proxy.exchanges();
        all.iter().filter(|one| one.is_watch()).count()
    };
    let mut running = stage.run(&controller);
    for run in 1..=3 {
        for name in ["one", "two", "three"] {
            controller.enqueue(key(&fixture, name));
            calls.reach(name, run).await;
            until(|| controller.depth() == Default::default()).await;
            assert_eq!(b.cache().informers().len(), 1);
        }
        // Not exactly so many: a streamed list that takes too long is repeated in pages.
        until(|| watches() >= run).await;
        let stopped = running.stop(GRACE).await.unwrap();
        until(|| b.cache().informers().is_empty()).await;
        running = stage.run(&stopped);
    }
    controller.enqueue(key(&fixture, "four"));
    calls.reach("four", 1).await;
    until(|| controller.depth() == Default::default()).await;
    // It is removed while the controller runs, and another one is added.
    let removal = cluster_set.begin_removal(&"b".into()).unwrap();
    until(|| b.cache().informers().is_empty()).await;
    let (_other_proxy, other) = joining(&fixture, "b").await;
    cluster_set.insert(other.clone()).unwrap();
    controller.enqueue(key(&fixture, "five"));
    calls.reach("five", 1).await;
    until(|| controller.depth() == Default::default()).await;
    assert_eq!(other.cache().informers().len(), 1);
    assert!(b.cache().informers().is_empty());
    running.stop(GRACE).await.unwrap();
    drop(removal);
}

// R5, R168
#[steersman_testing::test]
async fn a_cluster_with_an_unknown_kind_is_not_degraded(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let missing = Resource::new(fixture.group(), "v1", "Widget", "widgets");
    let calls = Calls::new();
    let controller = Controller::of_kind("widgets", dynamic(missing))
        .on_every_cluster()
        .when_installed()
        .options(Options::new().strict(true))
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    stage.stands("widgets", |is| is == "ready").await;
    let (proxy, b) = joining(&fixture, "b").await;
    let held = proxy.inject(Matching::any().path("customresourcedefinitions"), Fault::stall());
    let standings = stage.runtime.statuses();
    let degraded = standings.when(|all| !all.values().all(RunnableStatus::is_ready));
    let joined = async {
        stage.runtime.clusters().insert(b.clone()).unwrap();
        held.hit().await;
        let_go_on().await;
        drop(held);
        let is_known = |(_, presence_status): (_, PresenceStatus)| presence_status.is_absent();
        until(|| b.presences().into_iter().any(is_known)).await;
        let_go_on().await;
    };
    tokio::select! {
        biased;
        _ = degraded => panic!("{:?}", standings.of("widgets")),
        () = joined => {}
    }
    running.stop(GRACE).await.unwrap();
}

// R168
#[steersman_testing::test]
async fn a_strict_controller_waits_until_the_presence_of_an_optional_kind_is_known(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let held = proxy.inject(Matching::any().path("customresourcedefinitions"), Fault::stall());
    let missing = Resource::new(fixture.group(), "v1", "Widget", "widgets");
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps")
        .watches(
            dynamic(missing).optional(),
            map_metadata(|widget| Some(widget.key())),
        )
        .options(Options::new().strict(true))
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    held.hit().await;
    stage
        .stands("maps", |is| is.starts_with("waiting") && is.contains("widgets"))
        .await;
    drop(held);
    stage.stands("maps", |is| is == "ready").await;
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn clusters_are_added_removed_and_added_again(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let cluster_set = stage.runtime.clusters().clone();
    let home = cluster_set.begin_removal(&ClusterName::default()).unwrap();
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let calls = Calls::new();
    let controller = everywhere(&stage, &calls, |builder| builder);
    let running = stage.run(&controller);
    // There is none yet.
    stage.stands("maps", |is| is == "ready").await;
    let name = ClusterName::from("b");
    for time in 1..=3 {
        let (proxy, b) = joining(&fixture, "b").await;
        cluster_set.insert(b.clone()).unwrap();
        calls.reach("b:a", time).await;
        stage.stands("maps", |is| is == "ready").await;
        let removal = cluster_set.begin_removal(&name).unwrap();
        removal.vacated().await;
        proxy
            .wait_for(|all| all.iter().all(|one| !one.is_open()).then_some(()))
            .await;
        // Keys that are enqueued for it after that are dropped.
        controller.enqueue(Request::new(name.clone(), key(&fixture, "late")));
        until(|| controller.depth() == Default::default()).await;
        removal.cluster().close("the test says so");
    }
    assert_eq!(calls.count("b:late"), 0);
    running.stop(GRACE).await.unwrap();
    drop(home);
}

#[steersman_testing::test]
async fn a_cluster_that_replaces_another_of_its_name_is_worked_on(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let cluster_set = stage.runtime.clusters().clone();
    let (first, b) = joining(&fixture, "b").await;
    cluster_set.insert(b).unwrap();
    let calls = Calls::new();
    let controller = everywhere(&stage, &calls, |builder| builder);
    let running = stage.run(&controller);
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    calls.reach("b:a", 1).await;
    // No reader sees the gap in between.
    let (second, other) = joining(&fixture, "b").await;
    let removal = cluster_set.begin_removal(&"b".into()).unwrap();
    cluster_set.insert(other).unwrap();
    removal.vacated().await;
    removal.cluster().close("another one took its place");
    calls.reach("b:a", 2).await;
    stage
        .live()
        .create(&config_map(&fixture, "b", "1"))
        .await
        .unwrap();
    calls.reach("b:b", 1).await;
    first
        .wait_for(|all| all.iter().all(|one| !one.is_open()).then_some(()))
        .await;
    assert!(second.exchanges().iter().any(|one| one.is_open()));
    running.stop(GRACE).await.unwrap();
}

// R71
#[steersman_testing::test]
async fn a_slow_or_unreachable_cluster_delays_only_its_own_keys(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let cluster_set = stage.runtime.clusters().clone();
    let (slow_proxy, slow) = joining(&fixture, "slow").await;
    let (dead_proxy, dead) = joining(&fixture, "dead").await;
    let stall = slow_proxy.inject(Matching::any().path("/secrets"), Fault::stall());
    let unplugged = dead_proxy.unplug();
    cluster_set.insert(slow).unwrap();
    cluster_set.insert(dead).unwrap();
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let calls = Calls::new();
    // The first report does not matter.
    let controller = everywhere(&stage, &calls, |builder| builder.owns::<Secret>());
    let running = stage.run(&controller);
    calls.reach("default:a", 1).await;
    stall.hit().await;
    // The maps of the slow one are known, and wait for the secrets there.
    let maps = steersman_cache::Resource::of::<ConfigMap>();
    cluster_set
        .get(&"slow".into())
        .unwrap()
        .cache()
        .informer(&maps)
        .synced()
        .await;
    stage
        .live()
        .create(&config_map(&fixture, "b", "1"))
        .await
        .unwrap();
    calls.reach("default:b", 1).await;
    assert!(
        calls.keys().iter().all(|key| key.starts_with("default:")),
        "{:?}",
        calls.keys()
    );
    drop(stall);
    calls.reach("slow:a", 1).await;
    calls.reach("slow:b", 1).await;
    let is = stage.stands("maps", |is| is.contains("(cluster dead)")).await;
    assert!(is.starts_with("degraded: ") && is.contains("unreachable"), "{is}");
    drop(unplugged);
    calls.reach("dead:a", 1).await;
    calls.reach("dead:b", 1).await;
    stage.stands("maps", |is| is == "ready").await;
    assert_eq!(calls.count("slow:a"), 1, "what was held back is worked on once");
    running.stop(GRACE).await.unwrap();
}

// R95
#[steersman_testing::test]
async fn keys_enqueued_for_a_slow_cluster_wait_for_it_and_outlive_the_run(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (proxy, slow) = joining(&fixture, "slow").await;
    let stall = proxy.inject(Matching::any().path("/configmaps"), Fault::stall());
    stage.runtime.clusters().insert(slow).unwrap();
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let calls = Calls::new();
    let controller = everywhere(&stage, &calls, |builder| builder.workers(1));
    let asked = Request::new("slow".into(), key(&fixture, "asked"));
    controller.enqueue(asked.clone());
    for time in 1..=2 {
        let running = stage.run(&controller);
        stall.hit().await;
        calls.reach("default:a", time).await;
        until(|| controller.depth().in_flight() == 0).await;
        assert_eq!(calls.count("slow:asked"), 0);
        running.stop(GRACE).await.unwrap();
        until(|| controller.status(&asked).is_some()).await;
    }
    drop(stall);
    let running = stage.run(&controller);
    calls.reach("slow:asked", 1).await;
    calls.reach("slow:a", 1).await;
    running.stop(GRACE).await.unwrap();
}

// R95, D11
#[steersman_testing::test]
async fn a_key_that_waits_for_a_slow_cluster_keeps_its_failure_count(fixture: Fixture) {
    // Time stands still, so the key fails once in the first run.
    let (clock, stage) = Stage::timed(&fixture).await;
    let (proxy, slow) = joining(&fixture, "slow").await;
    stage.runtime.clusters().insert(slow.clone()).unwrap();
    let calls = Calls::new();
    let reconciler = calls.then(|_: Request, _, _| async { Err("not yet".into()) });
    let controller = Controller::of::<ConfigMap>("maps")
        .on_every_cluster()
        .build(&stage.cluster, reconciler);
    let asked = Request::new("slow".into(), key(&fixture, "asked"));
    controller.enqueue(asked.clone());
    let running = stage.run(&controller);
    calls.reach("asked", 1).await;
    running.stop(GRACE).await.unwrap();
    assert_eq!(controller.status(&asked).unwrap().failures(), 1);
    until(|| slow.cache().informers().is_empty()).await;

    // In the next run the cluster is not in sync when the key is handed out.
    let stall = proxy.inject(Matching::any().path("/configmaps"), Fault::stall());
    let running = stage.run(&controller);
    stall.hit().await;
    clock.advance(Duration::from_secs(1));
    until(|| controller.status(&asked).is_none()).await;
    assert_eq!(calls.count("asked"), 1);
    drop(stall);
    calls.reach("asked", 2).await;
    assert_eq!(calls.all()[1].attempt, 1);
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn children_in_a_cluster_wake_their_owner_in_that_cluster(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (proxy, b) = joining(&fixture, "b").await;
    stage.runtime.clusters().insert(b).unwrap();
    let calls = Calls::new();
    let controller = everywhere(&stage, &calls, |builder| builder.owns::<Secret>());
    let running = stage.run(&controller);
    let client = stage.live();
    let map = client.create(&config_map(&fixture, "parent", "1")).await.unwrap();
    calls.reach("default:parent", 1).await;
    calls.reach("b:parent", 1).await;
    let mut child = secret(&fixture, "child", &json!({}));
    let owner = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "parent", "uid": map.metadata.uid, "controller": true,
    });
    child.metadata.owner_references = Some(vec![object(owner)]);
    // One of both ways is blind for a while.
    let frozen = proxy.freeze();
    client.create(&child).await.unwrap();
    calls.reach("default:parent", 2).await;
    assert_eq!(calls.count("b:parent"), 1);
    drop(frozen);
    calls.reach("b:parent", 2).await;
    running.stop(GRACE).await.unwrap();
}

// R95
#[steersman_testing::test]
async fn the_scope_of_a_kind_is_queried_in_the_cluster_that_is_watched(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    // The controller's own cluster cannot say it.
    let _unplugged = proxy.unplug();
    let (_b_proxy, b) = joining(&fixture, "b").await;
    b.live().create(&config_map(&fixture, "a", "1")).await.unwrap();
    stage.runtime.clusters().insert(b).unwrap();
    let calls = Calls::new();
    let maps = steersman_cache::Resource::new("", "v1", "ConfigMap", "configmaps");
    let controller = Controller::of_kind("maps", dynamic(maps))
        .owns::<Secret>()
        .on_every_cluster()
        .build(
            &stage.cluster,
            by_cluster(&calls, |request: &Request| request.name().to_owned()),
        );
    let running = stage.run(&controller);
    calls.reach("b:a", 1).await;
    running.stop(GRACE).await.unwrap();
}

// R72
#[steersman_testing::test]
async fn the_same_object_in_two_clusters_can_have_one_key(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let (mirror_proxy, mirror) = joining(&fixture, "mirror").await;
    stage.runtime.clusters().insert(mirror.clone()).unwrap();
    let calls = Calls::new();
    let controller = Controller::<ObjectKey>::named("mirror")
        .watches(kind::<Secret>(), same_object())
        .watches(kind::<Secret>().on(&mirror), same_object())
        .build(
            &stage.cluster,
            by_cluster(&calls, |key: &ObjectKey| key.name().to_owned()),
        );
    let client = support::cluster_builder(&fixture, "direct")
        .build()
        .await
        .unwrap()
        .live();
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    let running = stage.run(&controller);
    calls.reach("default:a", 1).await;
    assert_eq!(calls.all().len(), 1, "the two first lists collapse");
    // Each of them wakes it.
    for (blind, time) in [(&mirror_proxy, 2), (&proxy, 4)] {
        let frozen = blind.freeze();
        let tier = secret(&fixture, "a", &json!({"time": time.to_string()}));
        client.update(&tier).await.unwrap();
        calls.reach("default:a", time).await;
        drop(frozen);
        calls.reach("default:a", time + 1).await;
    }
    let clusters: BTreeSet<_> = calls.keys().into_iter().collect();
    assert_eq!(clusters, BTreeSet::from(["default:a".to_owned()]));
    running.stop(GRACE).await.unwrap();
}
