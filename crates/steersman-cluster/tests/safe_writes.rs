// SPDX-License-Identifier: Apache-2.0
//! Writes that overwrite nothing of others: finalizers, deletions, create-or-update, and the field manager of each write.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::{
    Resource as _,
    api::Patch,
    core::{DynamicObject, ObjectMeta},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_cache::Resource;
use steersman_cluster::{Client, Cluster, DeleteOptions, Deletion, Error, ObjectExt, OperationResult};
use steersman_core::ObjectKey;
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Fault, Injected, Matching},
};
use support::{cluster, config, config_map, key, requests, value};

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

/// Sets the value of a ConfigMap with create-or-update.
async fn set(client: &Client, map: &ConfigMap, to: &str) -> OperationResult<ConfigMap> {
    let change = |map: &mut ConfigMap| {
        map.data
            .get_or_insert_default()
            .insert("value".to_owned(), to.to_owned());
        Ok(())
    };
    client.create_or_update(map.clone(), change).await.unwrap()
}

fn methods(proxy: &FaultProxy) -> Vec<String> {
    requests(proxy)
        .into_iter()
        .map(|exchange| exchange.method)
        .collect()
}

#[steersman_testing::test]
async fn guarantee_1_create_or_update_writes_only_a_difference(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let map = config_map(&fixture, "a", "");
    let created = set(&client, &map, "1").await;
    assert!(matches!(created, OperationResult::Created(_)), "{created:?}");
    assert_eq!(value(created.object()), "1");
    let unchanged = set(&client, &map, "1").await;
    assert!(
        matches!(unchanged, OperationResult::Unchanged(_)),
        "{unchanged:?}"
    );
    let updated = set(&client, &map, "2").await;
    assert!(matches!(updated, OperationResult::Updated(_)), "{updated:?}");
    assert_eq!(value(updated.object()), "2");
    assert_eq!(methods(&proxy), ["GET", "POST", "GET", "GET", "PATCH"]);
}

/// A client whose cache does not follow the server any more, and one of another cluster that the cache does not know of.
async fn stale(fixture: &Fixture, proxy: &FaultProxy) -> (Client, Client, Injected) {
    let client = cluster(fixture, proxy).await.client();
    client.get::<ConfigMap>(&key(fixture, "a")).await.unwrap();
    let stall = proxy.inject(Matching::watches(), Fault::stall());
    let direct = fixture.endpoint().config(fixture.admin()).unwrap();
    let other = Cluster::new(direct).unwrap().live().field_manager("other");
    (client, other, stall)
}

#[steersman_testing::test]
async fn guarantee_2_create_or_update_keeps_a_change_by_another_client(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let admin = cluster(&fixture, &proxy).await.live();
    let map = admin.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let (client, other, _stall) = stale(&fixture, &proxy).await;
    let theirs = Patch::Merge(json!({"data": {"theirs": "1"}}));
    other.patch::<ConfigMap>(&map.key(), &theirs).await.unwrap();
    let before = requests(&proxy).len();
    let result = set(&client, &map, "2").await;
    assert!(matches!(result, OperationResult::Updated(_)), "{result:?}");
    assert_eq!(value(result.object()), "2");
    assert_eq!(result.object().data.as_ref().unwrap()["theirs"], "1");
    let sent = requests(&proxy).split_off(before);
    let sent: Vec<_> = sent.iter().map(|sent| (&*sent.method, sent.status)).collect();
    assert_eq!(
        sent,
        [("PATCH", Some(409)), ("GET", Some(200)), ("PATCH", Some(200))]
    );
}

#[steersman_testing::test]
async fn guarantee_2_create_or_update_returns_the_conflict_after_ten_attempts(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let map = client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let conflict = proxy.inject(Matching::method("PATCH"), Fault::answer(409));
    let mut runs = 0;
    let change = |map: &mut ConfigMap| {
        runs += 1;
        map.data = None;
        Ok(())
    };
    let error = client.create_or_update(map, change).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert_eq!((runs, conflict.hits()), (10, 10));
}

#[steersman_testing::test]
async fn guarantee_3_create_or_update_finds_an_object_that_the_cache_does_not_show(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (client, other, _stall) = stale(&fixture, &proxy).await;
    let map = other.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let result = set(&client, &config_map(&fixture, "a", ""), "2").await;
    assert!(matches!(result, OperationResult::Updated(_)), "{result:?}");
    assert_eq!(result.object().metadata.uid, map.metadata.uid);

    // The answer of that write is in the cache; the deletion by the other client is not.
    let deleted = other
        .delete::<ConfigMap>(&map.key(), DeleteOptions::default())
        .await;
    assert!(matches!(deleted.unwrap(), Deletion::Done));
    let result = set(&client, &config_map(&fixture, "a", ""), "3").await;
    assert!(matches!(result, OperationResult::Created(_)), "{result:?}");
    assert_eq!(value(result.object()), "3");
    assert_ne!(result.object().metadata.uid, map.metadata.uid);
}

/// A type of ConfigMaps without `binaryData`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Texts {
    metadata: ObjectMeta,
    data: BTreeMap<String, String>,
}

impl k8s_openapi::Resource for Texts {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "ConfigMap";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "configmaps";
    type Scope = k8s_openapi::NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Texts {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[steersman_testing::test]
async fn guarantee_4_create_or_update_keeps_fields_that_the_type_does_not_have(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let mut map = config_map(&fixture, "a", "1");
    map.binary_data = Some([("raw".to_owned(), ByteString(vec![1, 2]))].into());
    client.create(&map).await.unwrap();
    let texts = Texts {
        metadata: map.metadata.clone(),
        data: BTreeMap::new(),
    };
    let change = |texts: &mut Texts| {
        // Metadata that the server sets is not part of the patch, even if the closure drops it.
        texts.metadata = map.metadata.clone();
        texts.data.insert("value".to_owned(), "2".to_owned());
        Ok(())
    };
    client.create_or_update(texts, change).await.unwrap();
    let now = client.get_required::<ConfigMap>(&map.key()).await.unwrap();
    assert_eq!(value(&now), "2");
    assert_eq!(now.binary_data, map.binary_data);
    assert!(now.metadata.managed_fields.is_some());
}

#[steersman_testing::test]
async fn create_or_update_changes_kinds_that_are_known_at_run_time(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.client();
    let maps = client.of(&Resource::of::<ConfigMap>());
    let map: DynamicObject = support::object(json!({
        "metadata": {"name": "a", "namespace": fixture.namespace()},
    }));
    for (count, expected) in [(1, "1"), (1, "1"), (2, "2")] {
        let change = |map: &mut DynamicObject| {
            map.data["data"] = json!({"value": count.to_string()});
            Ok(())
        };
        let result = maps.create_or_update(map.clone(), change).await.unwrap();
        assert_eq!(result.object().data["data"]["value"], expected);
    }
    let writes = methods(&proxy).into_iter().filter(|method| method != "GET");
    assert_eq!(writes.collect::<Vec<_>>(), ["POST", "PATCH"]);
}

#[steersman_testing::test]
async fn create_or_update_sends_nothing_if_the_closure_fails(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let map = config_map(&fixture, "a", "1");
    let fails = |_: &mut ConfigMap| Err("no".into());
    let error = client.create_or_update(map.clone(), fails).await.unwrap_err();
    let shown = steersman_core::error_chain(&error).to_string();
    let expected = format!(
        "cannot create or update configmaps/v1 {}: the closure failed: no",
        map.key()
    );
    assert_eq!(shown, expected);
    let renames = |map: &mut ConfigMap| {
        map.metadata.name = Some("b".to_owned());
        Ok(())
    };
    let error = client.create_or_update(map, renames).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert_eq!(methods(&proxy), ["GET", "GET"]);
}

#[steersman_testing::test]
async fn a_write_without_a_field_manager_is_an_error_with_advice(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = Cluster::new(config(&fixture, &proxy)).unwrap().live();
    let map = config_map(&fixture, "a", "1");
    let error = client.create(&map).await.unwrap_err();
    let shown = error.to_string();
    for part in [
        "cannot create configmaps/v1",
        "no field manager",
        "`ClusterBuilder::field_manager` or `Client::field_manager`",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!error.may_be_applied() && requests(&proxy).is_empty());

    let created = client.field_manager("tester").create(&map).await.unwrap();
    let managers = created.metadata.managed_fields.unwrap_or_default();
    let managers: Vec<_> = managers.iter().map(|entry| entry.manager.as_deref()).collect();
    assert_eq!(managers, [Some("tester")]);
    // A deletion owns no fields.
    client
        .delete::<ConfigMap>(&map.key(), DeleteOptions::default())
        .await
        .unwrap();
}
