// SPDX-License-Identifier: Apache-2.0
//! A manager from its start to its end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod managed;

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cluster::DeleteOptions;
use steersman_controller::Controller;
use steersman_manager::Manager;
use steersman_testing::Fixture;

use managed::{Log, cluster, config_map, key, run};

// R67, R99, R145
#[steersman_testing::test]
async fn what_is_there_what_comes_and_what_goes_is_reconciled(fixture: Fixture) {
    let cluster = cluster(&fixture).await;
    let client = cluster.live();
    client.create(&config_map(&fixture, "before", "1")).await.unwrap();
    let manager = Manager::builder().cluster(cluster).build().await.unwrap();
    let log = Log::new();
    let controller = Controller::of::<ConfigMap>("maps")
        .run_on(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    log.saw("before", Some("1")).await;
    client.create(&config_map(&fixture, "after", "2")).await.unwrap();
    log.saw("after", Some("2")).await;
    let after = key(&fixture, "after");
    client
        .delete::<ConfigMap>(&after, DeleteOptions::default())
        .await
        .unwrap();
    log.saw("after", None).await;
    running.stop().await.unwrap();
    assert_eq!(controller.depth().in_flight(), 0);
}
