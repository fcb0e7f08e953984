// SPDX-License-Identifier: Apache-2.0
//! Metrics of controllers, with the names and buckets of controller-runtime and client-go.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{sync::Arc, time::Duration};

use prometheus_client::{encoding::text::encode, registry::Registry};
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{Context, Controller};
use steersman_testing::Fixture;
use support::{Calls, GRACE, Stage, key, until};
use tokio::sync::Semaphore;

fn exposition(stage: &Stage) -> String {
    let mut registry = Registry::default();
    stage.runtime.metrics().register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// The upper ends of the buckets of a histogram.
fn buckets(text: &str, name: &str) -> Vec<f64> {
    let prefix = format!("{name}_bucket{{");
    let of_name = text.lines().filter(|line| line.starts_with(&prefix));
    let ends = of_name.filter_map(|line| line.split_once("le=\"")?.1.split_once('"'));
    ends.filter_map(|(end, _)| end.parse().ok())
        .filter(|end: &f64| end.is_finite())
        .collect()
}

#[steersman_testing::test]
async fn series_have_the_names_and_buckets_of_controller_runtime(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let (calls, gate) = (Calls::new(), Arc::new(Semaphore::new(0)));
    let reconciler = {
        let gate = Arc::clone(&gate);
        calls.then(move |_: ObjectKey, _, time| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await?.forget();
                match time {
                    1 => Err("not yet".into()),
                    _ => Ok(Action::await_change()),
                }
            }
        })
    };
    let controller = Controller::<ObjectKey>::named("keys")
        .workers(2)
        .build(&stage.cluster, reconciler);
    // Keys that were enqueued before the run count too.
    controller.enqueue(key(&fixture, "a"));
    let running = stage.run(&controller);
    calls.reach("a", 1).await;
    clock.advance(Duration::from_secs(2));
    controller.enqueue(key(&fixture, "b"));
    calls.reach("b", 1).await;
    clock.advance(Duration::from_secs(1));
    let of_queue = |name: &str| stage.metric(&format!("{name}{{name=\"keys\",controller=\"keys\"}}"));
    assert_eq!(stage.count("controller_runtime_active_workers", "keys"), 2);
    assert_eq!(
        stage.count("controller_runtime_max_concurrent_reconciles", "keys"),
        2
    );
    assert_eq!(of_queue("workqueue_unfinished_work_seconds"), 4.0);
    assert_eq!(of_queue("workqueue_longest_running_processor_seconds"), 3.0);
    gate.add_permits(10);
    until(|| {
        clock.advance(Duration::from_millis(1));
        calls.all().len() == 4 && controller.depth() == Default::default()
    })
    .await;
    // A queue counts after it has done what it counts.
    until(|| {
        ["adds_total", "work_duration_seconds_count"]
            .iter()
            .all(|name| of_queue(&format!("workqueue_{name}")) == 4.0)
            && of_queue("workqueue_retries_total") == 2.0
    })
    .await;
    assert_eq!(stage.count("controller_runtime_active_workers", "keys"), 0);
    assert_eq!(of_queue("workqueue_unfinished_work_seconds"), 0.0);
    assert_eq!(of_queue("workqueue_queue_duration_seconds_count"), 4.0);
    assert!(of_queue("workqueue_work_duration_seconds_sum") >= 4.0);
    assert_eq!(
        stage.count("controller_runtime_reconcile_time_seconds_count", "keys"),
        4
    );
    assert_eq!(
        stage.count("controller_runtime_reconcile_errors_total", "keys"),
        2
    );
    assert_eq!(
        stage.count("controller_runtime_terminal_reconcile_errors_total", "keys"),
        0
    );
    assert_eq!(
        stage.count("controller_runtime_reconcile_panics_total", "keys"),
        0
    );
    assert_eq!(stage.reconciled("keys", "error"), 2);
    assert_eq!(stage.reconciled("keys", "success"), 2);
    running.stop(GRACE).await.unwrap();

    let text = exposition(&stage);
    // pkg/internal/controller/metrics/metrics.go
    let reconcile = [
        0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
        1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0,
        40.0, 50.0, 60.0,
    ];
    assert_eq!(
        buckets(&text, "controller_runtime_reconcile_time_seconds"),
        reconcile
    );
    // pkg/metrics/workqueue.go: from ten nanoseconds on, each ten times the one before.
    for name in [
        "workqueue_queue_duration_seconds",
        "workqueue_work_duration_seconds",
    ] {
        let found = buckets(&text, name);
        assert_eq!(found.len(), 12, "{name}");
        let is_near = |(power, end): (usize, &f64)| (end / 10f64.powi(power as i32 - 8) - 1.0).abs() < 1e-9;
        assert!(found.iter().enumerate().all(is_near), "{name}: {found:?}");
    }
}

#[steersman_testing::test]
async fn guarantee_3_a_dropped_controller_keeps_the_series_of_a_namesake(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let calls = Calls::new();
    let make = || Controller::<ObjectKey>::named("keys").build(&stage.cluster, calls.only());
    let first = make();
    let stopped = stage.run(&first).stop(GRACE).await.unwrap();
    let second = make();
    let running = stage.run(&second);
    second.enqueue(key(&fixture, "a"));
    until(|| stage.reconciled("keys", "success") == 1 && second.depth() == Default::default()).await;
    drop((first, stopped));
    assert_eq!(stage.reconciled("keys", "success"), 1);
    let of_queue = |name: &str| stage.metric(&format!("{name}{{name=\"keys\",controller=\"keys\"}}"));
    assert_eq!(of_queue("workqueue_unfinished_work_seconds"), 0.0);
    assert_eq!(of_queue("workqueue_adds_total"), 1.0);
    drop((running.stop(GRACE).await.unwrap(), second));
    // Its tasks have ended, and are about to be dropped.
    until(|| !exposition(&stage).contains("controller=\"keys\"")).await;
}

// R152, D26
#[steersman_testing::test]
async fn gauges_of_a_queue_are_zero_after_a_stop_and_removed_with_the_controller(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|_: ObjectKey, cx: Context, _| async move {
        cx.stop().requested().await;
        Ok(Action::await_change())
    });
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    for name in ["a", "b", "c"] {
        controller.enqueue(key(&fixture, name));
    }
    calls.when(|calls| !calls.is_empty()).await;
    clock.advance(Duration::from_secs(2));
    let of_queue = |name: &str| stage.metric(&format!("{name}{{name=\"keys\",controller=\"keys\"}}"));
    let depth = || stage.metric(r#"workqueue_depth{name="keys",controller="keys",priority="0"}"#);
    assert_eq!(depth(), 2.0);
    assert_eq!(of_queue("workqueue_unfinished_work_seconds"), 2.0);
    assert_eq!(of_queue("workqueue_longest_running_processor_seconds"), 2.0);

    let stopped = running.stop(GRACE).await.unwrap();
    assert_eq!(depth(), 0.0, "keys that are kept for the next run are not ready");
    assert_eq!(of_queue("workqueue_unfinished_work_seconds"), 0.0);
    assert_eq!(of_queue("workqueue_longest_running_processor_seconds"), 0.0);
    assert_eq!(stage.count("controller_runtime_active_workers", "keys"), 0);
    drop((stopped, controller));
    until(|| !exposition(&stage).contains("controller=\"keys\"")).await;
}
