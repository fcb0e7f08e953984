// SPDX-License-Identifier: Apache-2.0
//! Finalizers and deletions that overwrite nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Resource as _, api::Patch};
use serde_json::json;
use steersman_cache::Resource;
use steersman_cluster::{Client, DeleteOptions, Deletion, ObjectExt};
use steersman_core::ObjectKey;
use steersman_testing::Fixture;
use support::{cluster, config_map, key};

const OURS: &str = "steersman.example/ours";
const THEIRS: &str = "steersman.example/theirs";

async fn finalizers(client: &Client, key: &ObjectKey) -> Vec<String> {
    let map = client.get_required::<ConfigMap>(key).await.unwrap();
    map.meta().finalizers.clone().unwrap_or_default()
}

#[steersman_testing::test]
async fn guarantee_1_keeps_finalizers_that_others_add_meanwhile(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let read = client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    // Read before the other one was added.
    client.add_finalizer(&read, THEIRS).await.unwrap();
    client.add_finalizer(&read, OURS).await.unwrap();
    assert_eq!(finalizers(&client, &read.key()).await, [THEIRS, OURS]);
    // Adding it once more changes nothing, and is not even sent where it was read.
    let read = client.get_required::<ConfigMap>(&read.key()).await.unwrap();
    let before = proxy.exchanges().len();
    client.add_finalizer(&*read, OURS).await.unwrap();
    assert_eq!(proxy.exchanges().len(), before);
    client.remove_finalizer(&*read, THEIRS).await.unwrap();
    client.remove_finalizer(&*read, OURS).await.unwrap();
    assert!(finalizers(&client, &read.key()).await.is_empty());
    client.remove_finalizer(&*read, OURS).await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_2_a_write_to_another_part_of_the_object_is_no_conflict(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let read = client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let other = json!({"data": {"value": "2"}, "metadata": {"annotations": {"a": "b"}}});
    client
        .patch::<ConfigMap>(&read.key(), &Patch::Merge(other))
        .await
        .unwrap();
    let before = proxy.exchanges().len();
    client.add_finalizer(&read, OURS).await.unwrap();
    assert_eq!(proxy.exchanges().len(), before + 1, "one patch is enough");
    let now = client.get_required::<ConfigMap>(&read.key()).await.unwrap();
    assert_eq!(support::value(&now), "2");
    assert!(now.has_finalizer(OURS) && !now.is_being_deleted());
}

#[steersman_testing::test]
async fn guarantee_3_does_not_touch_another_object_of_the_same_name(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let first = client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let deleted = client
        .delete::<ConfigMap>(&first.key(), DeleteOptions::default())
        .await;
    assert!(matches!(deleted.unwrap(), Deletion::Done));
    let error = client.add_finalizer(&first, OURS).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    client.create(&config_map(&fixture, "a", "2")).await.unwrap();
    let error = client.add_finalizer(&first, OURS).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    assert!(finalizers(&client, &first.key()).await.is_empty());
    // The same with one that has it: what is to be removed belongs to the former object.
    let second = client.get_required::<ConfigMap>(&first.key()).await.unwrap();
    client.add_finalizer(&*second, OURS).await.unwrap();
    let mut former = first.clone();
    former.metadata.finalizers = Some(vec![OURS.to_owned()]);
    client.remove_finalizer(&former, OURS).await.unwrap();
    assert_eq!(finalizers(&client, &first.key()).await, [OURS]);
    client
        .remove_finalizer(
            &*client.get_required::<ConfigMap>(&first.key()).await.unwrap(),
            OURS,
        )
        .await
        .unwrap();
}

#[steersman_testing::test]
async fn a_finalizer_that_the_server_rejects_is_an_error(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let read = client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let error = client.add_finalizer(&read, "not a name").await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert!(finalizers(&client, &read.key()).await.is_empty());
}

#[steersman_testing::test]
async fn removing_the_last_finalizer_finishes_a_deletion(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let maps = client.of(&Resource::of::<ConfigMap>());
    let read = client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    client.add_finalizer(&read, OURS).await.unwrap();
    let deleted = client
        .delete_if_exists::<ConfigMap>(&read.key(), DeleteOptions::default())
        .await
        .unwrap();
    let Deletion::Begun(map) = deleted else {
        panic!("the finalizer holds it")
    };
    assert!(map.is_being_deleted());
    let object = maps.get_required(&read.key()).await.unwrap();
    maps.remove_finalizer(&object, OURS).await.unwrap();
    assert!(client.get::<ConfigMap>(&read.key()).await.unwrap().is_none());
    // A second removal finds no object, which is what was wanted.
    maps.remove_finalizer(&object, OURS).await.unwrap();
    let deleted = client
        .delete_if_exists::<ConfigMap>(&key(&fixture, "a"), DeleteOptions::default())
        .await;
    assert!(matches!(deleted.unwrap(), Deletion::Done));
}
