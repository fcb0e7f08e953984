// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests of clusters: clusters through a proxy, and objects.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod logged;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Config;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{Cluster, ClusterBuilder};
use steersman_core::{MonotonicTime, ObjectKey, TestClock};
use steersman_testing::{FaultProxy, Fixture, proxy::Exchange};

/// A cluster through a proxy, with a cache of the namespace of the test. Unused informers end at once.
pub fn builder(fixture: &Fixture, proxy: &FaultProxy) -> ClusterBuilder {
    let here = Scope::all().namespace(fixture.namespace());
    Cluster::builder("test")
        .config(config(fixture, proxy))
        .field_manager("tester")
        .cache(|cache| {
            cache
                .defaults(here, InformerOptions::default())
                .linger(Duration::ZERO)
        })
}

pub async fn cluster(fixture: &Fixture, proxy: &FaultProxy) -> Cluster {
    builder(fixture, proxy).build().await.unwrap()
}

pub fn config(fixture: &Fixture, proxy: &FaultProxy) -> Config {
    proxy.announce(fixture.admin());
    proxy.endpoint().config(fixture.admin()).unwrap()
}

/// A typed object from what it looks like.
pub fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub fn config_map(fixture: &Fixture, name: &str, value: &str) -> ConfigMap {
    object(json!({
        "metadata": {"name": name, "namespace": fixture.namespace()},
        "data": {"value": value},
    }))
}

pub fn key(fixture: &Fixture, name: &str) -> ObjectKey {
    ObjectKey::new(fixture.namespace(), name)
}

pub fn value(map: &ConfigMap) -> &str {
    &map.data.as_ref().unwrap()["value"]
}

pub fn names(maps: &[Arc<ConfigMap>]) -> Vec<String> {
    let mut names: Vec<_> = maps
        .iter()
        .map(|map| map.metadata.name.clone().unwrap())
        .collect();
    names.sort();
    names
}

/// The value of a parameter of a request.
pub fn parameter(exchange: &Exchange, name: &str) -> Option<String> {
    form_urlencoded::parse(exchange.query.as_bytes())
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.into_owned())
}

/// The requests that are not those of informers.
pub fn requests(proxy: &FaultProxy) -> Vec<Exchange> {
    let all = proxy.exchanges().into_iter();
    all.filter(|exchange| !exchange.is_watch()).collect()
}

/// Waits until there is a deadline up to `latest`, and returns it.
pub async fn next_deadline(clock: &TestClock, latest: Duration) -> MonotonicTime {
    use steersman_core::Clock;
    let latest = clock.now() + latest;
    loop {
        if let Some(deadline) = clock.next_deadline().filter(|deadline| *deadline <= latest) {
            return deadline;
        }
        tokio::task::yield_now().await;
    }
}
