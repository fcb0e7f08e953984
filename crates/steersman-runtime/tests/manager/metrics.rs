// SPDX-License-Identifier: Apache-2.0
//! The metrics of a manager.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::managed;
use k8s_openapi::api::core::v1::ConfigMap;
use managed::{Log, cluster, config_map, manager_of, run};
use steersman_endpoints::Exposition;
use steersman_runtime::Controller;
use steersman_testing::Fixture;

/// Returns the bounds of a histogram's buckets as they are written.
fn bounds(text: &str, name: &str) -> Vec<String> {
    text.lines()
        .filter(|line| line.starts_with(&format!("{name}_bucket{{")))
        .map(|line| {
            line.split("le=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect()
}

// D26
#[steersman_testing::test]
async fn histograms_of_controllers_have_the_buckets_of_controller_runtime(fixture: Fixture) {
    let manager = manager_of(cluster(&fixture).await).await;
    let log = Log::new();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    log.saw("a", Some("1")).await;
    running.stop().await.unwrap();
    let text = manager.metrics().encode(Exposition::Text);
    // As Go writes them.
    let reconcile = "0.005 0.01 0.025 0.05 0.1 0.15 0.2 0.25 0.3 0.35 0.4 0.45 0.5 0.6 0.7 0.8 0.9 1 1.25 1.5 1.75 2 2.5 3 3.5 4 4.5 5 6 7 8 9 10 15 20 25 30 40 50 60 +Inf";
    let queue =
        "1e-08 1e-07 1e-06 9.999999999999999e-06 9.999999999999999e-05 0.001 0.01 0.1 1 10 100 1000 +Inf";
    for (name, expected) in [
        ("controller_runtime_reconcile_time_seconds", reconcile),
        ("workqueue_queue_duration_seconds", queue),
        ("workqueue_work_duration_seconds", queue),
    ] {
        assert_eq!(bounds(&text, name).join(" "), expected, "{name}");
    }
}
