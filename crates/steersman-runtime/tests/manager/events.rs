// SPDX-License-Identifier: Apache-2.0
//! Events that are recorded at the end of a run, and what metrics say of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, managed};
use std::{sync::Arc, time::Duration};

use elected::{figure, steady};
use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::Api;
use managed::{cluster, config_map, manager_of, run};
use steersman_cluster::{Cluster, ClusterName, EventType, Fence, Recorder};
use steersman_core::{Clock, TestClock};
use steersman_runtime::{
    BoxError, Election, Manager, ManagerBuilder, RunContext, RunPolicy, Runnable, run_fn,
};
use steersman_testing::Fixture;
use tokio::sync::watch;

/// As many as there may be about one object. Each is a request: none of them is written by chance before the end.
const MANY: usize = 25;

fn record(recorder: &Recorder, map: &ConfigMap) {
    for number in 0..MANY {
        recorder.event(map, EventType::Normal, "Stopped", "Stopping", &number.to_string());
    }
}

/// How many events are on the server.
async fn written(fixture: &Fixture) -> usize {
    let events: Api<Event> = Api::namespaced(fixture.client(), fixture.namespace());
    let about = |event: &&Event| event.reason.as_deref() == Some("Stopped");
    let all = events.list(&Default::default()).await.unwrap();
    all.items.iter().filter(about).count()
}

/// Something that records when it is stopped, and says when it runs.
fn last_words(
    fixture: &Fixture,
    cluster: &Cluster,
    needs: RunPolicy,
) -> (impl Runnable, watch::Receiver<bool>) {
    let (runs, is_running) = watch::channel(false);
    let (cluster, map) = (cluster.clone(), config_map(fixture, "a", "1"));
    let run = move |cx: RunContext| {
        let (recorder, runs, map) = (cluster.recorder("last"), runs.clone(), map.clone());
        async move {
            let term = cx.leadership().try_term();
            let fence = term
                .as_ref()
                .map_or_else(Fence::open, |term| term.fence().clone());
            let recorder = recorder.fenced(fence);
            runs.send_replace(true);
            cx.stop().requested().await;
            record(&recorder, &map);
            Ok::<_, BoxError>(())
        }
    };
    (run_fn("last-words", run).with_policy(needs), is_running)
}

/// Time stands still for it: however slow the server is, it is waited for.
fn unhurried(cluster: Cluster) -> ManagerBuilder {
    Manager::builder()
        .cluster(cluster)
        .clock(Arc::new(TestClock::new()))
}

async fn stopped(fixture: &Fixture, election: Option<Election>, needs: RunPolicy) -> usize {
    let cluster = cluster(fixture).await;
    let mut builder = unhurried(cluster.clone());
    if let Some(election) = election {
        builder = builder.leader_election(election);
    }
    let manager = builder.build().await.unwrap();
    let (runnable, mut is_running) = last_words(fixture, &cluster, needs);
    manager.add(runnable).unwrap();
    let running = run(&manager);
    is_running.wait_for(|runs| *runs).await.unwrap();
    running.stop().await.unwrap();
    let written = written(fixture).await;
    assert_eq!(cluster.events().dropped, 0);
    written
}

// R55
#[steersman_testing::test]
async fn guarantee_10_events_recorded_during_shutdown_are_written(fixture: Fixture) {
    assert_eq!(stopped(&fixture, None, RunPolicy::LeaderElected).await, MANY);
}

#[steersman_testing::test]
async fn guarantee_10_events_of_the_last_runnable_are_written(fixture: Fixture) {
    assert_eq!(stopped(&fixture, None, RunPolicy::BeforeCaches).await, MANY);
}

#[steersman_testing::test]
async fn guarantee_10_a_leader_holds_its_lease_until_its_events_are_written(fixture: Fixture) {
    let election = steady(&fixture, "a");
    assert_eq!(
        stopped(&fixture, Some(election), RunPolicy::LeaderElected).await,
        MANY
    );
}

#[steersman_testing::test]
async fn guarantee_10_a_leader_with_a_lease_for_each_runnable_holds_it_until_its_events_are_written(
    fixture: Fixture,
) {
    let election = steady(&fixture, "a").per_runnable();
    assert_eq!(
        stopped(&fixture, Some(election), RunPolicy::LeaderElected).await,
        MANY
    );
}

#[steersman_testing::test]
async fn guarantee_10_a_cluster_is_closed_after_its_events_are_written(fixture: Fixture) {
    let cluster = cluster(&fixture).await;
    let manager = unhurried(cluster.clone()).build().await.unwrap();
    record(&cluster.recorder("last"), &config_map(&fixture, "a", "1"));
    let grace = Duration::from_secs(30);
    manager
        .remove_cluster(&ClusterName::default(), grace)
        .await
        .unwrap();
    assert_eq!(written(&fixture).await, MANY);
}

#[steersman_testing::test]
async fn guarantee_10_a_server_that_takes_none_does_not_hold_up_the_end(fixture: Fixture) {
    use steersman_testing::proxy::{Fault, Matching};
    let proxy = fixture.proxy().await;
    let cluster = managed::cluster_through(&fixture, &proxy, "default").await;
    let manager = Manager::builder()
        .cluster(cluster.clone())
        .shutdown_timeout(Duration::from_secs(2))
        .build()
        .await
        .unwrap();
    let stall = proxy.inject(Matching::method("POST").path("/events"), Fault::stall());
    record(&cluster.recorder("last"), &config_map(&fixture, "a", "1"));
    stall.hit().await;
    run(&manager).stop().await.unwrap();
    assert!(written(&fixture).await < MANY);
}

// D19
#[steersman_testing::test]
async fn guarantee_10_a_lease_is_given_up_before_a_cluster_elsewhere_takes_its_events(fixture: Fixture) {
    use steersman_testing::proxy::{Fault, Matching};
    let proxy = fixture.proxy().await;
    let (near, clock) = (cluster(&fixture).await, TestClock::new());
    let far = managed::cluster_through(&fixture, &proxy, "far").await;
    let manager = Manager::builder()
        .cluster(near)
        .cluster(far.clone())
        .leader_election(steady(&fixture, "a").unsynced_acquire_delay(Duration::ZERO))
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let running = run(&manager);
    manager.elected().await;
    let stall = proxy.inject(Matching::method("POST").path("/events"), Fault::stall());
    record(&far.recorder("last"), &config_map(&fixture, "a", "1"));
    stall.hit().await;
    let stopping = steersman_core::Spawner::current().spawn("stop", async { _ = running.stop().await });
    manager.leadership_lost().await;
    let begun = clock.now();
    elected::until(async || {
        // Less than the time that the cluster of the lease gets.
        if clock.now().saturating_since(begun) < Duration::from_secs(4) {
            clock.advance(Duration::from_millis(100));
        }
        elected::holder(&fixture).await.is_empty()
    })
    .await;
    drop(stall);
    elected::until(async || stopping.is_finished()).await;
}

#[steersman_testing::test]
async fn metrics_count_recorded_and_dropped_events(fixture: Fixture) {
    let user = fixture.user("poor").await;
    let config = fixture.endpoint().config(user.identity()).unwrap();
    let cluster = Cluster::builder("home")
        .field_manager("test")
        .config(config)
        .build()
        .await
        .unwrap();
    let manager = manager_of(cluster.clone()).await;
    let counts = || {
        ["recorded", "dropped"].map(|what| {
            figure(
                &manager,
                &format!(r#"steersman_events_{what}_total{{cluster="home"}}"#),
            )
        })
    };
    assert_eq!(counts(), [Some(0.0); 2]);
    let recorder = cluster.recorder("web");
    recorder.event(
        &config_map(&fixture, "a", "1"),
        EventType::Normal,
        "Made",
        "Making",
        "",
    );
    recorder.flush().await;
    assert_eq!(counts(), [Some(1.0); 2]);
}
