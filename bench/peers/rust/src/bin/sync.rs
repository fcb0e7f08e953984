// SPDX-License-Identifier: Apache-2.0
//! kube-runtime's reflector: the first sync of all Pods, and a forced relist.

use std::{future, pin::pin, time::Duration};

use bench_protocol::participant::{self, Start, Told, rounded, variable};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let told = Told::from_environment();
    let driver = participant::lifeline();
    let client = Client::try_default().await?;
    let start = Start::now();
    let (store, writer) = reflector::store::<Pod>();
    let watch = watcher(Api::<Pod>::all(client), watcher::Config::default()).default_backoff();
    let reflect = reflector::reflector(writer, watch);
    tokio::spawn(async move {
        pin!(reflect)
            .for_each(|event| {
                if let Err(error) = event {
                    eprintln!("kube-runtime: {error}");
                }
                future::ready(())
            })
            .await;
    });
    store.wait_until_ready().await?;
    let taken = start.taken();
    assert_eq!(store.len(), told.n, "every Pod is in the store");
    if told.mode == "sync" {
        told.row(taken).with("case", "sync").print();
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
    wait_for_marker(&store).await;
    let peak = participant::peak_mb();
    told.row(start.taken())
        .with("case", "relist")
        .with("steady_mb", rounded(steady))
        .with("relist_ratio", rounded(peak / steady))
        .print();
    Ok(())
}

async fn wait_for_marker(store: &Store<Pod>) {
    let marker = variable("BENCH_MARKER");
    let (namespace, name) = marker.split_once('/').expect("a namespace and a name");
    let key = ObjectRef::new(name).within(namespace);
    while store.get(&key).is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
