// SPDX-License-Identifier: Apache-2.0
//! The first sync of all Pods, and a forced relist.

use std::{error::Error, time::Duration};

use bench_cache::surroundings;
use bench_protocol::participant::{self, Start, Told, rounded, variable};
use k8s_openapi::api::core::v1::Pod;
use steersman_cache::{Informer, InformerOptions, Resource, Scope};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let told = Told::from_environment();
    let driver = participant::lifeline();
    let surroundings = surroundings().await?;
    let start = Start::now();
    let pods = Informer::start(
        &surroundings,
        Resource::of::<Pod>(),
        Scope::all(),
        InformerOptions::default(),
    );
    pods.synced().await;
    let taken = start.taken();
    assert_eq!(pods.store().len(), told.n, "every Pod is in the store");
    if told.mode == "sync" {
        told.row(taken)
            .with("case", "sync")
            .with("stored_mb", rounded(pods.store().bytes() as f64 / 1e6))
            .print();
        return Ok(());
    }

    participant::say("synced");
    let driver = tokio::task::spawn_blocking(move || {
        driver.recv().expect("the driver asks for a relist");
        driver
    });
    let _driver = driver.await?;
    let steady = participant::resident_mb();
    participant::reset_peak();
    let start = Start::now();
    participant::say("armed");
    let marker = variable("BENCH_MARKER");
    let (namespace, name) = marker.split_once('/').expect("a namespace and a name");
    while pods.store().get(namespace, name).is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let peak = participant::peak_mb();
    told.row(start.taken())
        .with("case", "relist")
        .with("steady_mb", rounded(steady))
        .with("relist_ratio", rounded(peak / steady))
        .print();
    Ok(())
}
