// SPDX-License-Identifier: Apache-2.0
//! What a replica keeps, and what it does not, while another one leads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cluster::Fence;
use steersman_controller::{Controller, LeadershipKeeper, Request, RunSurroundings};
use steersman_core::{Random, Spawner, TestClock};
use steersman_testing::{Fixture, eventually};
use support::{Calls, GRACE, Stage, cluster_builder, config_map, key, until};

// R77
#[steersman_testing::test]
async fn keys_of_what_came_and_went_do_not_pile_up(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps")
        .namespace(fixture.namespace())
        .build(&stage.cluster, calls.only());
    let (keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    stage.stands("maps", |is| is == "ready").await;
    let living = controller.depth().warm();
    let request = |name: &str| Request::new("default".into(), key(&fixture, name));
    let enqueue =
        |count: usize| (0..count).for_each(|number| controller.enqueue(request(&format!("gone-{number}"))));

    // A few may be left of what happens all the time.
    enqueue(100);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(61));
        tokio::task::yield_now().await;
    }
    assert_eq!(controller.depth().warm(), living + 100);
    enqueue(2000);
    // It may be looked while they come, and then those that come after that are left.
    eventually("what is gone is taken out", async || {
        clock.advance(Duration::from_secs(61));
        let is_out = controller.status(&request("gone-0")).is_none();
        (is_out && controller.depth().warm() <= living + 1000).then_some(())
    })
    .await;
    assert!(controller.status(&request("a")).is_some());
    keeper.grant(Fence::open());
    calls.reach("a", 1).await;
    running.stop(GRACE).await.unwrap();
}

// R47
#[steersman_testing::test]
async fn a_cluster_that_goes_takes_its_keys_along(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let fleet = stage.surroundings.fleet();
    let b = cluster_builder(&fixture, "b").build().await.unwrap();
    fleet.insert(b).unwrap();
    let controller = Controller::of::<ConfigMap>("maps")
        .on_every_cluster()
        .build(&stage.cluster, Calls::new().only());
    let (_keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    let request = |cluster: &str| Request::new(cluster.into(), key(&fixture, "a"));
    until(|| controller.status(&request("b")).is_some()).await;
    let departure = fleet.depart(&"b".into()).unwrap();
    departure.vacated().await;
    until(|| controller.status(&request("b")).is_none()).await;
    until(|| controller.status(&request("default")).is_some()).await;
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_reconcile_takes_as_long_as_the_clock_of_its_cluster_says(fixture: Fixture) {
    let (_, mut stage) = Stage::timed(&fixture).await;
    // That of what runs the controller counts from long before.
    let clock = TestClock::new();
    clock.advance(Duration::from_secs(86_400));
    let surroundings = RunSurroundings::new(
        Arc::new(clock),
        Arc::new(Random::from_seed(7)),
        Spawner::current(),
    );
    surroundings.fleet().insert(stage.cluster.clone()).unwrap();
    stage.surroundings = Arc::new(surroundings);
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
