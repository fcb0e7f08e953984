// SPDX-License-Identifier: Apache-2.0
//! The client that caches are given.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use steersman_cache::{Query, ReflectorOptions};
use steersman_testing::{Fixture, Identity};
use support::{Heard, Maps, context, informer_with, value};

#[steersman_testing::test]
async fn the_client_reads_and_writes(fixture: Fixture) {
    let config = fixture.endpoint().config(fixture.admin()).unwrap();
    let client = steersman_cache::client(&config).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, fixture.namespace());
    let map = serde_json::from_value(json!({"metadata": {"name": "a"}, "data": {"value": "first"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    assert_eq!(value(&maps.get("a").await.unwrap()), "first");
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[steersman_testing::test]
async fn the_client_uses_the_given_credentials(fixture: Fixture) {
    let stranger = Identity::new("stranger", "no-such-token");
    let config = fixture.endpoint().config(&stranger).unwrap();
    let client = steersman_cache::client(&config).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, fixture.namespace());
    match maps.list(&Default::default()).await.unwrap_err() {
        kube::Error::Api(status) => assert!(matches!(status.code, 401 | 403), "{status}"),
        other => panic!("the server should have answered: {other}"),
    }
}

/// Streams of the size at which sockets are polled, and what follows them on the same connection.
#[steersman_testing::test]
async fn delivers_a_long_list_and_its_changes(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let long = "x".repeat(200_000);
    for number in 0..20 {
        let name = format!("map-{number}");
        maps.create(&name).await;
        maps.set(&name, &format!("{number} {long}")).await;
    }
    let config = fixture.endpoint().config(fixture.admin()).unwrap();
    let context = context(steersman_cache::client(&config).unwrap());
    for streaming in [true, false] {
        let options = ReflectorOptions::default().streaming(streaming);
        let informer = informer_with(&fixture, &context, options);
        informer.synced().await;
        let listed: Vec<_> = informer
            .store()
            .list_as::<ConfigMap>(&Query::new().namespace(fixture.namespace()))
            .filter_map(Result::ok)
            .filter(|map| value(map).ends_with(&long))
            .collect();
        assert_eq!(listed.len(), 20);

        let heard = Heard::default();
        let _registration = informer.handle("test", heard.handler());
        maps.create("late").await;
        heard
            .until(|all| all.iter().any(|event| event.object().name() == "late"))
            .await;
        maps.delete("late").await;
        heard
            .until(|all| all.iter().any(|event| event.is_deletion()))
            .await;
    }
}
