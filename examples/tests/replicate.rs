// SPDX-License-Identifier: Apache-2.0
//! Copies of Secrets follow their originals to another cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    events::v1::Event,
};
use kube::api::Patch;
use serde_json::json;
use steersman::cache::Query;
use steersman::cluster::{Client, DeleteOptions};
use steersman::core::ObjectKey;
use steersman::runtime::Manager;
use steersman_examples::replicate;
use steersman_testing::{Fixture, OwnServerOptions};
use support::{cluster, eventually, run};

fn secret(fixture: &Fixture, name: &str, value: &str) -> Secret {
    let secret = json!({
        "metadata": {
            "name": name,
            "namespace": fixture.namespace(),
            "labels": {"examples.steersman.dev/replicate": "true"},
        },
        "stringData": {"value": value},
    });
    serde_json::from_value(secret).unwrap()
}

async fn value(client: &Client, key: &ObjectKey) -> Option<String> {
    let secret = client.get::<Secret>(key).await.unwrap()?;
    let value = secret.data.as_ref()?.get("value")?;
    Some(String::from_utf8(value.0.clone()).unwrap())
}

async fn set(client: &Client, key: &ObjectKey, value: &str) {
    let patch = Patch::Merge(json!({"stringData": {"value": value}}));
    client.patch::<Secret>(key, &patch).await.unwrap();
}

// R41
#[steersman_testing::test]
async fn copies_follow_changes_and_deletions_and_foreign_secrets_are_left_alone(fixture: Fixture) {
    let server = fixture.own_server(OwnServerOptions::default()).await;
    let namespace = json!({"metadata": {"name": fixture.namespace()}});
    let near = cluster(fixture.endpoint(), fixture.admin(), "near", fixture.namespace());
    let far = cluster(server.endpoint(), server.admin(), "far", fixture.namespace());
    let (near, far) = (near.build().await.unwrap(), far.build().await.unwrap());
    let (here, there) = (near.live(), far.live());
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    there.create(&namespace).await.unwrap();
    let manager = Manager::builder()
        .cluster(near)
        .cluster(far.clone())
        .build()
        .await
        .unwrap();
    replicate::add(&manager, &far).unwrap();
    let running = run(&manager);
    let key = |name: &str| ObjectKey::new(fixture.namespace(), name);

    here.create(&secret(&fixture, "a", "1")).await.unwrap();
    eventually(async || value(&there, &key("a")).await.as_deref() == Some("1")).await;
    set(&here, &key("a"), "2").await;
    eventually(async || value(&there, &key("a")).await.as_deref() == Some("2")).await;
    // A changed or deleted copy is restored.
    set(&there, &key("a"), "wrong").await;
    eventually(async || value(&there, &key("a")).await.as_deref() == Some("2")).await;
    there
        .delete::<Secret>(&key("a"), DeleteOptions::default())
        .await
        .unwrap();
    eventually(async || value(&there, &key("a")).await.as_deref() == Some("2")).await;

    there
        .create(&secret(&fixture, "foreign", "theirs"))
        .await
        .unwrap();
    here.create(&secret(&fixture, "foreign", "ours")).await.unwrap();
    eventually(async || {
        let query = Query::new().namespace(fixture.namespace());
        let events = here.list::<Event>(&query).await.unwrap();
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("NotReplicated"))
    })
    .await;
    here.delete::<Secret>(&key("foreign"), DeleteOptions::default())
        .await
        .unwrap();
    here.delete::<Secret>(&key("a"), DeleteOptions::default())
        .await
        .unwrap();
    eventually(async || value(&there, &key("a")).await.is_none()).await;
    assert_eq!(value(&there, &key("foreign")).await.as_deref(), Some("theirs"));
    running.stop().await;
}
