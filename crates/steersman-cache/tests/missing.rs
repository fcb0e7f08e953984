// SPDX-License-Identifier: Apache-2.0
//! Readers that must not start informers read from existing ones, and do not keep them alive.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cache::{CacheMissPolicy, ReadError};
use steersman_testing::Fixture;
use support::{Maps, cache, config_maps, requests, through};

// R129
#[steersman_testing::test]
async fn a_reader_without_permission_to_start_informers_keeps_none_alive(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let (refusing, live) = (
        cache.reader(CacheMissPolicy::Refuse),
        cache.reader(CacheMissPolicy::Live),
    );
    let held = cache.informer(&config_maps());
    for reader in [&refusing, &live] {
        let found = reader.get::<ConfigMap>(fixture.namespace(), "a").await;
        assert!(found.unwrap().is_some());
    }
    assert_eq!(proxy.exchanges().len(), 1, "both were served");

    drop(held);
    proxy
        .wait_for(|seen| seen.iter().all(|one| !one.is_open()).then_some(()))
        .await;
    match refusing.get::<ConfigMap>(fixture.namespace(), "a").await {
        Err(ReadError::NotCached { .. }) => {}
        other => panic!("an error, not {other:?}"),
    }
    let found = live.get::<ConfigMap>(fixture.namespace(), "a").await;
    assert!(found.unwrap().is_some());
    let sent = proxy.exchanges();
    assert!(sent.last().unwrap().path.ends_with("/configmaps/a"));
    assert!(cache.informers().is_empty() && requests(&proxy, "configmaps").len() == 1);
}

// R129
#[steersman_testing::test]
async fn a_restricted_reader_does_not_use_a_lingering_informer(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy))
        .linger(Duration::from_secs(3600))
        .build();
    let held = cache.informer(&config_maps());
    held.synced().await;
    drop(held);
    assert_eq!(cache.informers().len(), 1, "it lingers");
    let refusing = cache.reader(CacheMissPolicy::Refuse);
    let found = refusing.get::<ConfigMap>(fixture.namespace(), "a").await;
    assert!(matches!(found, Err(ReadError::NotCached { .. })), "{found:?}");
    // A reader that starts informers uses it again.
    let found = cache
        .reader(CacheMissPolicy::Start)
        .get::<ConfigMap>(fixture.namespace(), "a")
        .await;
    assert!(found.unwrap().is_some());
    assert_eq!(requests(&proxy, "configmaps").len(), 1);
}
