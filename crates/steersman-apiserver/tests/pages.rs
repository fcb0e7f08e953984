// SPDX-License-Identifier: Apache-2.0
//! Pages of lists, and when they expire.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::time::Duration;

use harness::{Raw, builder};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, ObjectMeta, PostParams},
};
use serde_json::json;
use steersman_apiserver::clock::ManualClock;
use steersman_testing::{Fixture, OwnServerOptions};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn named(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

#[steersman_testing::test]
async fn expires_a_page_of_a_compacted_revision(fixture: Fixture) {
    let server = fixture
        .own_server(OwnServerOptions::default().short_history())
        .await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    for name in ["a", "b"] {
        maps.create(&PostParams::default(), &named(name)).await.unwrap();
    }
    let page = ListParams::default().limit(1);
    let first = maps.list(&page).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    maps.create(&PostParams::default(), &named("c")).await.unwrap();
    let revision = first.metadata.resource_version.unwrap();
    server.compacted(&revision).await;
    let next = page.continue_token(&token);
    let kube::Error::Api(status) = maps.list(&next).await.unwrap_err() else {
        panic!("the API server answers");
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert!(
        status
            .message
            .starts_with("The provided continue parameter is too old"),
        "{}",
        status.message
    );
}

#[tokio::test]
async fn expires_a_page_after_ten_minutes() {
    let clock = ManualClock::default();
    let server = builder().clock(clock.clone()).build();
    let create = async |name: &str| {
        let object = json!({"metadata": {"name": name}});
        Raw::new("POST", MAPS).json(&object).send(&server).await.ok();
    };
    create("a").await;
    create("b").await;
    let first = Raw::get(&format!("{MAPS}?limit=1")).send(&server).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let next = format!("{MAPS}?limit=1&continue={token}");
    create("c").await;
    clock.advance(Duration::from_secs(240));
    assert_eq!(Raw::get(&next).send(&server).await.code, 200);
    clock.advance(Duration::from_secs(600));
    assert_eq!(Raw::get(&next).send(&server).await.code, 410);
}
