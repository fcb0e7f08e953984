// SPDX-License-Identifier: Apache-2.0
//! Each verb with its options, as it is on the wire.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::{
    apps::v1::Deployment,
    authentication::v1::TokenRequest,
    autoscaling::v1::Scale,
    core::v1::{ConfigMap, Namespace, Pod, ServiceAccount},
};
use kube::{
    api::{Patch, WatchParams},
    core::{DynamicObject, Status, WatchEvent},
};
use serde_json::json;
use steersman_cache::{Query, Resource};
use steersman_cluster::{DeleteOptions, Deletion};
use steersman_core::ObjectKey;
use steersman_testing::Fixture;
use support::{cluster, config_map, key, names, object, parameter, requests, value};

// R142
#[steersman_testing::test]
async fn create_update_and_delete_are_one_request_each(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let created = client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    assert_eq!(value(&created), "first");

    let mut changed = created.clone();
    changed
        .data
        .as_mut()
        .unwrap()
        .insert("value".into(), "second".into());
    let updated = client.update(&changed).await.unwrap();
    assert_eq!(value(&updated), "second");
    let error = client.update(&changed).await.unwrap_err();
    assert!(error.is_conflict() && !error.is_already_exists(), "{error:?}");
    let error = client
        .create(&config_map(&fixture, "a", "third"))
        .await
        .unwrap_err();
    assert!(error.is_already_exists() && !error.is_conflict(), "{error:?}");

    let deleted = client
        .delete::<ConfigMap>(&key(&fixture, "a"), DeleteOptions::default())
        .await;
    assert!(matches!(deleted, Ok(Deletion::Done)), "{deleted:?}");
    let error = client
        .delete::<ConfigMap>(&key(&fixture, "a"), DeleteOptions::default())
        .await
        .unwrap_err();
    assert!(error.is_not_found() && !error.is_absent(), "{error:?}");

    let sent = requests(&proxy);
    let methods: Vec<_> = sent.iter().map(|one| one.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PUT", "PUT", "POST", "DELETE", "DELETE"]);
    let collection = format!("/api/v1/namespaces/{}/configmaps", fixture.namespace());
    assert_eq!(sent[0].path, collection);
    assert_eq!(sent[1].path, format!("{collection}/a"));
    assert_eq!(parameter(&sent[0], "fieldManager").as_deref(), Some("tester"));
    assert_eq!(parameter(&sent[0], "dryRun"), None);
    // The server knows how long somebody waits.
    assert!(
        sent.iter()
            .all(|one| parameter(one, "timeout").is_some_and(|time| time.ends_with("ms")))
    );
}

// R142, R143, R57
#[steersman_testing::test]
async fn live_reads_are_one_request_each(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    for name in ["a", "b", "c"] {
        client.create(&config_map(&fixture, name, "first")).await.unwrap();
    }
    proxy.forget_ended();
    let here = Query::new().namespace(fixture.namespace());
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "z"))
            .await
            .unwrap()
            .is_none()
    );
    let error = client
        .get_required::<ConfigMap>(&key(&fixture, "z"))
        .await
        .unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(
        error.to_string(),
        format!(
            "cannot get configmaps/v1 {}/z: there is none",
            fixture.namespace()
        )
    );
    let found = client
        .list::<ConfigMap>(&here.clone().label("tier", "front"))
        .await
        .unwrap();
    assert!(found.is_empty());
    assert_eq!(
        client
            .list::<ConfigMap>(&here.clone().limit(2))
            .await
            .unwrap()
            .len(),
        2
    );
    // Of a kind without namespaces.
    let namespace = ObjectKey::new("", fixture.namespace());
    assert!(client.get::<Namespace>(&namespace).await.unwrap().is_some());

    let sent = requests(&proxy);
    assert_eq!(sent.len(), 6);
    assert!(sent.iter().all(|one| one.method == "GET"));
    assert_eq!(
        parameter(&sent[3], "labelSelector").as_deref(),
        Some("tier=front")
    );
    assert_eq!(parameter(&sent[4], "limit").as_deref(), Some("2"));
    assert_eq!(
        sent[5].path,
        format!("/api/v1/namespaces/{}", fixture.namespace())
    );
}
