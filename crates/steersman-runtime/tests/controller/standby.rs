// SPDX-License-Identifier: Apache-2.0
//! Keys and caches of a standby replica.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{collections::HashSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use steersman_cluster::Fence;
use steersman_core::{ObjectKey, Random, Spawner, TestClock};
use steersman_runtime::{
    Controller, Request, kind, stream,
    testing::{LeadershipKeeper, RuntimeContext},
};
use steersman_testing::Fixture;
use support::{Calls, GRACE, Stage, cluster_builder, config_map, key, let_go_on, object, until};

// R77, D3
#[steersman_testing::test]
async fn a_standby_keeps_keys_without_an_object_for_its_term(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let (calls, namespace) = (Calls::new(), fixture.namespace().to_owned());
    // As namespaces trigger a controller of policies, which most of them do not have yet.
    let keys = move || {
        let namespace = namespace.clone();
        futures::stream::iter(
            (0..1500).map(move |number| ObjectKey::new(&namespace, &format!("key-{number}"))),
        )
    };
    let controller = Controller::of::<ConfigMap>("maps")
        .source(stream("triggers", keys))
        .build(&stage.cluster, calls.only());
    let (keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    stage.stands("maps", |is| is == "ready").await;
    let request = |name: &str| Request::new("default".into(), key(&fixture, name));
    until(|| controller.status(&request("key-1499")).is_some()).await;
    // An hour of standby.
    for _ in 0..60 {
        clock.advance(Duration::from_secs(61));
        let_go_on().await;
    }
    assert!(controller.depth().warm() >= 1501, "{:?}", controller.depth());
    keeper.grant(Fence::open());
    until(|| controller.depth() == Default::default()).await;
    let reconciled: HashSet<String> = calls.keys().into_iter().collect();
    let is_missing = |number: &i32| !reconciled.contains(&request(&format!("key-{number}")).to_string());
    assert_eq!((0..1500).find(is_missing), None);
    calls.reach("a", 1).await;
    running.stop(GRACE).await.unwrap();
}

// D3
#[steersman_testing::test]
async fn a_standby_bounds_the_keys_of_owners_that_do_not_exist(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let living = client.create(&config_map(&fixture, "living", "1")).await.unwrap();
    let controller = Controller::of::<ConfigMap>("maps")
        .owns_shared(kind::<Secret>())
        .build(&stage.cluster, Calls::new().only());
    let (_keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    stage.stands("maps", |is| is == "ready").await;
    let request = |name: &str| Request::new("default".into(), key(&fixture, name));
    let waits = |name: &str| controller.status(&request(name)).is_some();
    // Another source than the child.
    controller.enqueue(request("map-0"));
    let owner =
        |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid});
    let child = |name: &str, owners: Vec<Value>| {
        let metadata = json!({"name": name, "namespace": fixture.namespace(), "ownerReferences": owners});
        object::<Secret>(json!({ "metadata": metadata }))
    };
    let missing = (0..2100).map(|number| owner(&format!("map-{number}"), &format!("uid-{number}")));
    let mut owners = vec![owner("living", living.metadata.uid.as_deref().unwrap())];
    owners.extend(missing);
    client.create(&child("first", owners)).await.unwrap();
    client
        .create(&child("last", vec![owner("last", "uid")]))
        .await
        .unwrap();
    until(|| waits("last") && controller.depth().warm() <= 2 * 1000).await;
    assert!(waits("living") && waits("map-0") && !waits("map-1"));
    running.stop(GRACE).await.unwrap();
}

// R47
#[steersman_testing::test]
async fn the_keys_of_a_removed_cluster_are_removed(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let cluster_set = stage.runtime.clusters();
    let b = cluster_builder(&fixture, "b").build().await.unwrap();
    cluster_set.insert(b).unwrap();
    let controller = Controller::of::<ConfigMap>("maps")
        .on_every_cluster()
        .build(&stage.cluster, Calls::new().only());
    let (_keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    let request = |cluster: &str| Request::new(cluster.into(), key(&fixture, "a"));
    until(|| controller.status(&request("b")).is_some()).await;
    let removal = cluster_set.begin_removal(&"b".into()).unwrap();
    removal.vacated().await;
    until(|| controller.status(&request("b")).is_none()).await;
    until(|| controller.status(&request("default")).is_some()).await;
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_reconcile_is_timed_by_the_clock_of_its_cluster(fixture: Fixture) {
    let (_, mut stage) = Stage::timed(&fixture).await;
    // That of what runs the controller counts from long before.
    let clock = TestClock::new();
    clock.advance(Duration::from_secs(86_400));
    let runtime = RuntimeContext::new(
        Arc::new(clock),
        Arc::new(Random::from_seed(7)),
        Spawner::current(),
    );
    runtime.clusters().insert(stage.cluster.clone()).unwrap();
    stage.runtime = Arc::new(runtime);
    let calls = Calls::new();
    let controller = Controller::<Request>::named("keys").build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    controller.enqueue(Request::new("default".into(), key(&fixture, "a")));
    calls.reach("a", 1).await;
    until(|| stage.reconciled("keys", "success") == 1).await;
    let took = stage.metric("controller_runtime_reconcile_time_seconds_sum{controller=\"keys\"}");
    assert!(took < 1.0, "{took} s");
    running.stop(GRACE).await.unwrap();
}
