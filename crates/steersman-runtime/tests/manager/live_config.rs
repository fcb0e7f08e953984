// SPDX-License-Identifier: Apache-2.0
//! Configuration that changes while the process runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{io, sync::Arc, time::Duration};

use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::Api;
use serde::Deserialize;
use serde_json::json;
use steersman_cluster::DeleteOptions;
use steersman_core::{Action, Clock, Random, Spawner, TestClock};
use steersman_endpoints::Exposition;
use steersman_runtime::{
    BoxError, Context, Controller, LOW_PRIORITY, Leadership, LiveConfig, Logging, Manager, Request, Runnable,
    StopHandle, reconcile_fn, testing::RuntimeContext,
};
use steersman_testing::{Fixture, eventually};
use tokio::sync::watch;

use super::managed::{cluster, config_map, key, manager_of, run};

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Config {
    replicas: u32,
    log_filter: Option<String>,
}

/// The map of the configuration.
fn settings(fixture: &Fixture, text: &str) -> ConfigMap {
    let map = json!({
        "metadata": {"name": "settings", "namespace": fixture.namespace()},
        "data": {"config.yaml": text},
    });
    serde_json::from_value(map).unwrap()
}

async fn counts(manager: &Manager, result: &str, count: u32) {
    let series = format!("steersman_config_updates_total{{config=\"config\",result=\"{result}\"}} {count}\n");
    eventually(&series, async || {
        let metrics = manager.metrics().encode(Exposition::Text);
        metrics.contains(&series).then_some(())
    })
    .await;
}

// R117: guarantees 1 to 5
#[steersman_testing::test]
async fn a_configuration_follows_its_config_map_and_survives_a_bad_value(fixture: Fixture) {
    let manager = manager_of(cluster(&fixture).await).await;
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "one", "1")).await.unwrap();
    let config = LiveConfig::new(Config::default());
    let (_dispatch, handle) = Logging::new().filter("info").writer(io::sink).build().unwrap();
    let used = config.clone();
    let seen = Arc::new(watch::Sender::new(Vec::new()));
    let calls = Arc::clone(&seen);
    let reconciler = reconcile_fn(move |request: Request, cx: Context| {
        if request.name() == "one" {
            calls.send_modify(|calls| calls.push((used.current().replicas, cx.priority())));
        }
        std::future::ready(Ok::<_, BoxError>(Action::await_change()))
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .add_to(&manager, reconciler)
        .unwrap();
    let source = config
        .config_map(&manager.cluster().unwrap(), key(&fixture, "settings"))
        .resyncs(&controller)
        .log_filter(handle.clone(), |config| config.log_filter.clone());
    manager.add(source).unwrap();
    let running = run(&manager);
    let mut calls = seen.subscribe();
    calls
        .wait_for(|calls| calls.contains(&(0, LOW_PRIORITY)))
        .await
        .unwrap();
    let good = settings(&fixture, "replicas: 2\nlogFilter: debug\n");
    client.create(&good).await.unwrap();
    calls
        .wait_for(|calls| calls.contains(&(2, LOW_PRIORITY)))
        .await
        .unwrap();
    assert_eq!(handle.filter(), "debug");
    counts(&manager, "applied", 1).await;
    // A bad type, an unknown field, and a bad log filter: the last good value stays.
    let bad = [
        "replicas: many",
        "replicsa: 3",
        "replicas: 3\nlogFilter: loud=very",
    ];
    for (number, bad) in (1..).zip(bad) {
        client.update(&settings(&fixture, bad)).await.unwrap();
        counts(&manager, "rejected", number).await;
        assert_eq!((config.current().replicas, &*handle.filter()), (2, "debug"));
    }
    let events: Api<Event> = Api::namespaced(fixture.client(), fixture.namespace());
    eventually("an event about the bad value", async || {
        let all = events.list(&Default::default()).await.unwrap();
        let about = |event: &&Event| {
            event
                .regarding
                .as_ref()
                .is_some_and(|it| it.name.as_deref() == Some("settings"))
        };
        let mut reasons = all
            .items
            .iter()
            .filter(about)
            .filter_map(|event| event.reason.as_deref());
        reasons.any(|reason| reason == "InvalidConfig").then_some(())
    })
    .await;
    client
        .update(&settings(&fixture, r#"{"replicas": 4}"#))
        .await
        .unwrap();
    calls
        .wait_for(|calls| calls.contains(&(4, LOW_PRIORITY)))
        .await
        .unwrap();
    assert_eq!(handle.filter(), "info", "the filter of the start");
    counts(&manager, "applied", 2).await;
    // Another change of the map is no new value.
    let mut labelled = settings(&fixture, r#"{"replicas": 4}"#);
    labelled.metadata.labels = Some([("seen".to_owned(), "yes".to_owned())].into());
    client.update(&labelled).await.unwrap();
    let map = key(&fixture, "settings");
    let deleted = client.delete::<ConfigMap>(&map, DeleteOptions::default());
    deleted.await.unwrap();
    counts(&manager, "applied", 3).await;
    assert_eq!(config.current().replicas, 0, "the initial value");
    counts(&manager, "rejected", 3).await;
    running.stop().await.unwrap();
}

// R117: guarantees 2 and 5, of a file
#[tokio::test]
async fn a_configuration_follows_its_file_and_keeps_the_last_good_value() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.yaml");
    let clock = TestClock::new();
    let runtime = RuntimeContext::new(
        Arc::new(clock.clone()),
        Arc::new(Random::from_seed(7)),
        Spawner::current(),
    );
    let (runtime, (stopper, stop)) = (Arc::new(runtime), StopHandle::new());
    let config = LiveConfig::new(Config::default());
    let source = config.file(&path).poll_every(Duration::from_secs(10));
    let cx = runtime.context("config", Leadership::always(), stop);
    let rejections = || {
        let mut registry = prometheus_client::registry::Registry::default();
        runtime.metrics().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = "steersman_config_updates_total{config=\"config\",result=\"rejected\"} ";
        let found = text.lines().find_map(|line| line.strip_prefix(series));
        found.map_or(0, |count| count.parse::<u32>().unwrap())
    };
    let story = async {
        let until = async |condition: &dyn Fn() -> bool| {
            while !condition() {
                clock.advance(Duration::from_secs(1));
                tokio::task::yield_now().await;
            }
        };
        until(&|| rejections() == 1).await; // There is no file.
        std::fs::write(&path, "replicas: 2").unwrap();
        until(&|| config.current().replicas == 2).await;
        std::fs::write(&path, "replicas: many").unwrap();
        until(&|| rejections() == 2).await;
        assert_eq!(config.current().replicas, 2);
        std::fs::write(&path, "replicas: 3").unwrap();
        until(&|| config.current().replicas == 3).await;
        std::fs::remove_file(&path).unwrap();
        until(&|| rejections() == 3).await;
        assert_eq!(config.current().replicas, 3);
        stopper.stop_by(clock.now());
    };
    let (ended, ()) = tokio::join!(source.run(cx), story);
    ended.unwrap();
}
