// SPDX-License-Identifier: Apache-2.0
//! The clusters of a manager: how they stand is seen from outside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod managed;
mod support;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cache::Resource;
use steersman_cluster::{ClusterName, ClusterState};
use steersman_controller::{BoxError, Context, Controller, Request, Standing, reconcile_fn};
use steersman_core::Action;
use steersman_manager::Manager;
use steersman_testing::Fixture;
use tokio::sync::Notify;

use managed::{Steps, cluster_builder, cluster_through, key, run};
use support::{HERE, get};

async fn readyz(manager: &Manager) -> (u16, String) {
    let reply = get(manager.addresses().health.unwrap(), "/readyz?verbose").await;
    (reply.status, reply.body)
}

/// The states that metrics say a cluster is in. They say of all others that it is not.
async fn states(manager: &Manager, cluster: &str) -> Vec<String> {
    let metrics = get(manager.addresses().metrics.unwrap(), "/metrics").await.body;
    let beginning = format!(r#"steersman_cluster_state{{cluster="{cluster}",state=""#);
    let series = metrics.lines().filter_map(|line| line.strip_prefix(&beginning));
    let series: Vec<(&str, f64)> = series
        .filter_map(|line| line.split_once("\"} "))
        .map(|(state, value)| (state, value.parse().unwrap()))
        .collect();
    assert!(series.is_empty() || series.len() == ClusterState::NAMES.len());
    let inside = series.iter().filter(|(_, value)| *value != 0.0);
    inside.map(|(state, _)| (*state).to_owned()).collect()
}

// R52, R65
#[steersman_testing::test]
async fn how_each_cluster_stands_is_in_metrics_and_readiness(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let far = cluster_through(&fixture, &proxy, "far").await;
    let manager = Manager::builder()
        .cluster(cluster_builder(&fixture, "near").build().await.unwrap())
        .cluster(far.clone())
        .health(HERE)
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let running = run(&manager);
    manager.elected().await;
    assert_eq!(states(&manager, "far").await, ["connecting"]);
    assert!(readyz(&manager).await.1.contains("cluster far: connecting\n"));
    let near = manager.cluster().unwrap();
    let maps = [&near, &far].map(|cluster| cluster.cache().informer(&Resource::of::<ConfigMap>()));
    for cluster in [&near, &far] {
        cluster.state_when(ClusterState::is_ready).await;
        assert_eq!(states(&manager, cluster.name().as_str()).await, ["ready"]);
    }

    let unplugged = proxy.unplug();
    let degraded = far
        .state_when(|state| matches!(state, ClusterState::Degraded { .. }))
        .await;
    assert_eq!(states(&manager, "far").await, ["degraded"]);
    assert_eq!(states(&manager, "near").await, ["ready"]);
    // One out of reach does not take the others along: nothing that runs needs it.
    let (status, body) = readyz(&manager).await;
    assert_eq!(status, 200, "{body}");
    let ClusterState::Degraded { reason } = degraded else {
        panic!("it was waited for");
    };
    let first_words: String = reason.split(": ").next().unwrap().to_owned();
    assert!(
        body.contains(&format!("cluster far: degraded: {first_words}")),
        "{body}"
    );
    assert!(body.contains("cluster near: ready\n"), "{body}");
    assert_eq!(
        get(manager.addresses().health.unwrap(), "/readyz").await.parts(),
        (200, "ok")
    );
    drop(unplugged);
    far.state_when(ClusterState::is_ready).await;
    assert_eq!(states(&manager, "far").await, ["ready"]);
    drop(maps);
    running.stop().await.unwrap();
}

// R174
#[steersman_testing::test]
async fn a_cluster_is_seen_to_drain_until_it_is_removed(fixture: Fixture) {
    let manager = Manager::builder()
        .cluster(cluster_builder(&fixture, "near").build().await.unwrap())
        .cluster(cluster_builder(&fixture, "far").build().await.unwrap())
        .health(HERE)
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let (steps, go_on) = (Steps::new(), Arc::new(Notify::new()));
    let reconciler = {
        let (steps, go_on) = (steps.clone(), Arc::clone(&go_on));
        reconcile_fn(move |_: Request, cx: Context| {
            let (steps, go_on) = (steps.clone(), Arc::clone(&go_on));
            async move {
                if cx.cluster().name().as_str() == "far" {
                    steps.add("begun");
                    go_on.notified().await;
                }
                Ok::<_, BoxError>(Action::await_change())
            }
        })
    };
    let controller = Controller::of::<ConfigMap>("everywhere")
        .on_every_cluster()
        .run_on(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    let is_ready = |standing: &Standing| *standing == Standing::Ready;
    let standings = manager.standings();
    standings
        .when(|all| all.get("everywhere").is_some_and(is_ready))
        .await;
    let far = ClusterName::from("far");
    controller.enqueue(Request::new(far.clone(), key(&fixture, "a")));
    steps.saw("begun").await;
    assert!(!states(&manager, "far").await.contains(&"draining".to_owned()));

    let mut removed = Box::pin(manager.remove_cluster(&far, Duration::from_secs(60)));
    assert!(removed.as_mut().now_or_never().is_none());
    assert_eq!(states(&manager, "far").await, ["draining"]);
    let (status, body) = readyz(&manager).await;
    assert_eq!(status, 200, "{body}");
    for line in ["cluster far: draining\n", "runnable everywhere: ready\n"] {
        assert!(body.contains(line), "{body}");
    }
    go_on.notify_one();
    removed.await.unwrap();
    assert!(states(&manager, "far").await.is_empty());
    assert!(!readyz(&manager).await.1.contains("cluster far"));
    running.stop().await.unwrap();
}
