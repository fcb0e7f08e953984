// SPDX-License-Identifier: Apache-2.0
//! What the server can be asked for besides, and the verbs of kinds that no type is known of.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use futures::StreamExt;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    api::{Patch, WatchParams},
    core::WatchEvent,
};
use serde_json::{Value, json};
use steersman_cache::{Query, Resource};
use steersman_cluster::{Client, DeleteOptions, Deletion, FieldValidation};
use steersman_testing::Fixture;
use support::{cluster, config_map, key, names, object, parameter, requests};

fn maps() -> Resource {
    Resource::new("", "v1", "ConfigMap", "configmaps")
}

async fn create(fixture: &Fixture, client: &Client, names: &[&str]) {
    for name in names {
        client.create(&config_map(fixture, name, "first")).await.unwrap();
    }
}

// R142
#[steersman_testing::test]
async fn lists_and_deletions_can_be_selected_by_field(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    create(&fixture, &client, &["a", "b", "c"]).await;
    let here = Query::new().namespace(fixture.namespace());
    let only_b = client.fields("metadata.name=b");
    assert_eq!(names(&only_b.list::<ConfigMap>(&here).await.unwrap()), ["b"]);
    let metadata = only_b.metadata_of(&maps()).list(&here).await.unwrap();
    assert_eq!(metadata.len(), 1);
    assert!(cluster.cache().informers().is_empty(), "the server is asked");
    // A field that objects of this kind are not selected by.
    let error = client.fields("data.value=first").list::<ConfigMap>(&here).await;
    assert!(error.is_err_and(|error| error.status().is_some()));

    only_b
        .delete_collection::<ConfigMap>(&here, DeleteOptions::default())
        .await
        .unwrap();
    let left = names(&cluster.live().list::<ConfigMap>(&here).await.unwrap());
    assert!(left.contains(&"a".to_owned()) && left.contains(&"c".to_owned()));
    assert!(!left.contains(&"b".to_owned()), "{left:?}");
}

// R142
#[steersman_testing::test]
async fn a_read_can_be_content_with_a_state_that_is_not_older_than_a_version(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.client();
    create(&fixture, &client, &["a"]).await;
    let made = client.create(&config_map(&fixture, "b", "first")).await.unwrap();
    let version = made.metadata.resource_version.unwrap();
    let here = Query::new().namespace(fixture.namespace());
    let client = client.not_older_than(&version);
    let listed = names(&client.list::<ConfigMap>(&here.clone().limit(10)).await.unwrap());
    assert!(listed.contains(&"a".to_owned()) && listed.contains(&"b".to_owned()));
    let found = client
        .get_required::<ConfigMap>(&key(&fixture, "b"))
        .await
        .unwrap();
    assert_eq!(found.metadata.resource_version.as_deref(), Some(&*version));
    client.not_older_than("0").list::<ConfigMap>(&here).await.unwrap();
    let reads = requests(&proxy).into_iter().filter(|one| one.method == "GET");
    let asked: Vec<_> = reads
        .map(|one| {
            (
                parameter(&one, "resourceVersion").unwrap_or_default(),
                parameter(&one, "resourceVersionMatch").unwrap_or_default(),
            )
        })
        .collect();
    let pair = |version: &str, how: &str| (version.to_owned(), how.to_owned());
    assert_eq!(
        asked,
        [
            pair(&version, "NotOlderThan"),
            pair(&version, ""),
            pair("0", "NotOlderThan")
        ]
    );
    let nonsense = client
        .not_older_than("nonsense")
        .get::<ConfigMap>(&key(&fixture, "b"))
        .await;
    assert!(nonsense.is_err());
}

// R142
#[steersman_testing::test]
async fn a_field_that_the_server_does_not_know_is_refused_if_that_is_asked_for(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    create(&fixture, &client, &["a"]).await;
    let (a, typo) = (key(&fixture, "a"), json!({"dota": {"value": "second"}}));
    let strict = client.field_validation(FieldValidation::Strict);
    let error = strict
        .patch::<ConfigMap>(&a, &Patch::Merge(&typo))
        .await
        .unwrap_err();
    assert!(error.status().unwrap().message.contains("dota"), "{error:?}");
    let mut with_typo = typo.clone();
    with_typo["metadata"] = json!({"name": "b", "namespace": fixture.namespace()});
    let error = strict.of(&maps()).create(&object(with_typo)).await.unwrap_err();
    assert!(error.status().unwrap().message.contains("dota"), "{error:?}");
    let lax = client.field_validation(FieldValidation::Ignore);
    lax.patch::<ConfigMap>(&a, &Patch::Merge(&typo)).await.unwrap();
    client.patch::<ConfigMap>(&a, &Patch::Merge(&typo)).await.unwrap();
    let writes = requests(&proxy).into_iter().filter(|one| one.is_write());
    let said: Vec<_> = writes.map(|one| parameter(&one, "fieldValidation")).collect();
    let [strict, lax] = ["Strict", "Ignore"].map(|text| Some(text.to_owned()));
    assert_eq!(said, [None, strict.clone(), strict, lax, None]);
}

// R142
#[steersman_testing::test]
async fn metadata_has_its_own_verbs_also_if_no_type_is_known(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let here = Query::new().namespace(fixture.namespace());
    for client in [cluster.live(), cluster.client()] {
        let made = client.create(&config_map(&fixture, "a", "first")).await.unwrap();
        let (metadata, a) = (client.metadata_of(&maps()), key(&fixture, "a"));
        let found = metadata.get(&a).await.unwrap().unwrap();
        assert_eq!(found.metadata.uid, made.metadata.uid);
        let listed = metadata.list(&here).await.unwrap();
        assert!(listed.iter().any(|one| one.metadata.name.as_deref() == Some("a")));

        let options = WatchParams::default().fields("metadata.name=a").timeout(60);
        let from = made.metadata.resource_version.unwrap();
        let watch = metadata.watch(fixture.namespace(), &options, &from);
        let mut watch = watch.await.unwrap();
        let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": "front"}}}));
        let patched = metadata.patch(&a, &patch).await.unwrap();
        assert_eq!(patched.metadata.labels.unwrap()["tier"], "front");
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Modified(heard) => {
                assert_eq!(heard.metadata.labels.unwrap()["tier"], "front");
                assert_eq!(heard.types.unwrap().kind, "PartialObjectMetadata");
            }
            other => panic!("{other:?}"),
        }
        // What was written is read.
        let found = metadata.get(&a).await.unwrap().unwrap();
        assert_eq!(found.metadata.labels.as_ref().unwrap()["tier"], "front");
        let deleted = metadata.delete(&a, DeleteOptions::default()).await.unwrap();
        assert!(matches!(deleted, Deletion::Done));
        assert!(metadata.get(&a).await.unwrap().is_none());
    }
}

// R142
#[steersman_testing::test]
async fn kinds_that_no_type_is_known_of_are_watched_and_deleted_together(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.live().of(&maps());
    let map = |name: &str, tier: &str| {
        object(json!({
            "metadata": {"name": name, "namespace": fixture.namespace(), "labels": {"tier": tier}},
        }))
    };
    let first = client.create(&map("a", "front")).await.unwrap();
    let from = first.metadata.resource_version.unwrap();
    let options = WatchParams::default().labels("tier=back").timeout(60);
    let mut watch = client.watch(fixture.namespace(), &options, &from).await.unwrap();
    client.create(&map("b", "front")).await.unwrap();
    client.create(&map("c", "back")).await.unwrap();
    match watch.next().await.unwrap().unwrap() {
        WatchEvent::Added(heard) => assert_eq!(heard.metadata.name.as_deref(), Some("c")),
        other => panic!("{other:?}"),
    }
    let here = Query::new().namespace(fixture.namespace());
    client
        .delete_collection(&here.clone().label("tier", "front"), DeleteOptions::default())
        .await
        .unwrap();
    let left = client.list(&here).await.unwrap();
    let tiers = left.iter().filter_map(|map| map.metadata.labels.as_ref());
    assert_eq!(tiers.map(|labels| &*labels["tier"]).collect::<Vec<_>>(), ["back"]);
}

// R142
#[steersman_testing::test]
async fn subresources_of_kinds_that_no_type_is_known_of_are_read_and_written(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let deployments = Resource::new("apps", "v1", "Deployment", "deployments");
    let (client, a) = (cluster.live().of(&deployments), key(&fixture, "a"));
    let deployment = object(json!({
        "metadata": {"name": "a", "namespace": fixture.namespace()},
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            },
        },
    }));
    let made = client.create(&deployment).await.unwrap();
    let mut scale: Value = client.get_subresource(&a, "scale").await.unwrap();
    scale["spec"]["replicas"] = json!(3);
    let scaled: Value = client.update_subresource(&a, "scale", &scale).await.unwrap();
    assert_eq!(scaled["spec"]["replicas"], 3);
    let four = Patch::Merge(json!({"spec": {"replicas": 4}}));
    let scaled: Value = client.patch_subresource(&a, "scale", &four).await.unwrap();
    assert_eq!(scaled["spec"]["replicas"], 4);

    let seen = Patch::Merge(json!({"status": {"observedGeneration": 1}}));
    let patched = client.patch_status(&a, &seen).await.unwrap();
    assert_eq!(patched.data["status"]["observedGeneration"], 1);
    let mut status = made;
    status.metadata.resource_version = patched.metadata.resource_version;
    status.data["status"] = json!({"observedGeneration": 2});
    let updated = client.update_status(&status).await.unwrap();
    assert_eq!(updated.data["status"]["observedGeneration"], 2);

    // Applied, once by name and once by type.
    let condition =
        json!({"type": "Available", "status": "True", "reason": "Test", "message": "it is there"});
    let said = json!({"metadata": {"name": "a"}, "status": {"conditions": [condition]}});
    let applied: Value = client.apply_subresource(&a, "status", &said).await.unwrap();
    assert_eq!(applied["status"]["conditions"][0]["reason"], "Test");
    let said = json!({"metadata": {"name": "a"}, "status": {"conditions": []}});
    let applied: Deployment = cluster
        .live()
        .apply_subresource::<Deployment, _>(&a, "status", &said)
        .await
        .unwrap();
    assert_eq!(applied.status.unwrap().conditions.unwrap_or_default().len(), 0);
    let mut written = requests(&proxy).into_iter().filter(|one| one.is_write());
    let last = written.next_back().unwrap();
    assert!(last.path.ends_with("/deployments/a/status"), "{}", last.path);
}

// R142
#[steersman_testing::test]
async fn a_kind_that_no_type_is_known_of_can_be_left_out_of_the_cache(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    proxy.announce(fixture.admin());
    let cluster = steersman_cluster::Cluster::builder("test")
        .field_manager("tester")
        .config(proxy.endpoint().config(fixture.admin()).unwrap())
        .cache(|cache| cache.uncached_resource(maps()))
        .build()
        .await
        .unwrap();
    let client = cluster.client();
    create(&fixture, &client, &["a"]).await;
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        client
            .of(&maps())
            .get(&key(&fixture, "a"))
            .await
            .unwrap()
            .is_some()
    );
    assert!(cluster.cache().informers().is_empty());
}
