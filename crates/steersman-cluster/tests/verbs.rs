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
    // The request has a timeout parameter.
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
        format!("cannot get configmaps/v1 {}/z: not found", fixture.namespace())
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

// R142
#[steersman_testing::test]
async fn lists_in_pages(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let many: Vec<_> = (0..510)
        .map(|number| config_map(&fixture, &format!("map-{number:03}"), "first"))
        .collect();
    let created = futures::stream::iter(&many)
        .map(|map| client.create(map))
        .buffer_unordered(16);
    created.for_each(async |created| _ = created.unwrap()).await;
    proxy.forget_ended();
    let here = Query::new().namespace(fixture.namespace());
    assert_eq!(client.list::<ConfigMap>(&here).await.unwrap().len(), 510);
    let sent = requests(&proxy);
    assert_eq!(sent.len(), 2);
    assert!(parameter(&sent[0], "continue").is_none() && parameter(&sent[1], "continue").is_some());
}

// R142
#[steersman_testing::test]
async fn sends_each_type_of_patch(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let key = key(&fixture, "a");
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let merged = client
        .patch::<ConfigMap>(&key, &Patch::Merge(json!({"data": {"value": "second"}})))
        .await;
    assert_eq!(value(&merged.unwrap()), "second");
    let strategic = client
        .patch::<ConfigMap>(&key, &Patch::Strategic(json!({"data": {"value": "third"}})))
        .await;
    assert_eq!(value(&strategic.unwrap()), "third");
    let steps = json!([{"op": "test", "path": "/data/value", "value": "third"},
        {"op": "replace", "path": "/data/value", "value": "fourth"}]);
    let steps = Patch::Json::<()>(object(steps));
    assert_eq!(
        value(&client.patch::<ConfigMap>(&key, &steps).await.unwrap()),
        "fourth"
    );
    let error = client.patch::<ConfigMap>(&key, &steps).await.unwrap_err();
    assert!(error.is_invalid(), "{error:?}");

    let sent = requests(&proxy);
    assert!(
        sent[1..]
            .iter()
            .all(|one| one.method == "PATCH" && parameter(one, "force").is_none())
    );
}

// R142
#[steersman_testing::test]
async fn apply_owns_its_fields_and_force_takes_over_others(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let applied = client.apply(&config_map(&fixture, "a", "first")).await.unwrap();
    let owners: Vec<_> = applied.metadata.managed_fields.clone().unwrap_or_default();
    assert_eq!(owners[0].manager.as_deref(), Some("tester"));

    let other = client.field_manager("other");
    let mine = config_map(&fixture, "a", "second");
    let error = other.apply(&mine).await.unwrap_err();
    assert!(error.is_apply_conflict() && !error.is_conflict(), "{error:?}");
    assert_eq!(value(&other.force().apply(&mine).await.unwrap()), "second");
    // As it was read, with managed fields.
    let read = client
        .get_required::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap();
    assert!(read.metadata.managed_fields.is_some());
    other.force().apply(&*read).await.unwrap();

    let sent = requests(&proxy);
    assert_eq!(parameter(&sent[1], "fieldManager").as_deref(), Some("other"));
    assert_eq!(parameter(&sent[1], "force"), None);
    assert_eq!(parameter(&sent[2], "force").as_deref(), Some("true"));
}

// R142
#[steersman_testing::test]
async fn a_dry_run_changes_nothing(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let (cached, dry) = (cluster.client(), cluster.client().dry_run());
    let key = key(&fixture, "a");
    assert!(cached.get::<ConfigMap>(&key).await.unwrap().is_none());
    dry.create(&config_map(&fixture, "a", "first")).await.unwrap();
    assert!(cached.get::<ConfigMap>(&key).await.unwrap().is_none());
    assert!(cluster.live().get::<ConfigMap>(&key).await.unwrap().is_none());

    cached.create(&config_map(&fixture, "a", "first")).await.unwrap();
    dry.patch::<ConfigMap>(&key, &Patch::Merge(json!({"data": {"value": "second"}})))
        .await
        .unwrap();
    dry.apply(&config_map(&fixture, "b", "first")).await.unwrap();
    dry.delete::<ConfigMap>(&key, DeleteOptions::default())
        .await
        .unwrap();
    // It selects all that is there.
    let here = Query::new().namespace(fixture.namespace());
    dry.delete_collection::<ConfigMap>(&here, DeleteOptions::default())
        .await
        .unwrap();
    for client in [cached, cluster.live()] {
        assert_eq!(value(&client.get_required(&key).await.unwrap()), "first");
    }
    let b = support::key(&fixture, "b");
    assert!(cluster.live().get::<ConfigMap>(&b).await.unwrap().is_none());
}

// R142
#[steersman_testing::test]
async fn a_collection_is_deleted_by_label(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    for (name, tier) in [("a", "front"), ("b", "front"), ("c", "back")] {
        let mut map = config_map(&fixture, name, "first");
        map.metadata.labels = Some([("tier".to_owned(), tier.to_owned())].into());
        client.create(&map).await.unwrap();
    }
    let here = Query::new().namespace(fixture.namespace());
    let front = here.clone().label("tier", "front");
    client
        .delete_collection::<ConfigMap>(&front, DeleteOptions::default())
        .await
        .unwrap();
    let left = names(&client.list::<ConfigMap>(&here).await.unwrap());
    assert!(
        left.contains(&"c".to_owned()) && !left.contains(&"a".to_owned()) && !left.contains(&"b".to_owned())
    );

    let error = client
        .delete_collection::<ConfigMap>(&front.limit(1), DeleteOptions::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("leave out index and limit"), "{error}");
    let error = client
        .delete::<ConfigMap>(&key(&fixture, ""), DeleteOptions::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("set metadata.name"), "{error}");
    let deletions = requests(&proxy).into_iter().filter(|one| one.method == "DELETE");
    assert_eq!(deletions.count(), 1, "what makes no sense is not sent");
}

// R142
#[steersman_testing::test]
async fn a_started_deletion_returns_the_object(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.client();
    let mut map = config_map(&fixture, "a", "first");
    map.metadata.finalizers = Some(vec!["steersman.example/held".to_owned()]);
    let created = client.create(&map).await.unwrap();
    let key = key(&fixture, "a");
    let others = DeleteOptions::default().preconditions(kube::api::Preconditions {
        uid: Some("00000000-0000-0000-0000-000000000000".to_owned()),
        ..Default::default()
    });
    let error = client.delete::<ConfigMap>(&key, others).await.unwrap_err();
    assert!(error.is_conflict(), "{error:?}");
    match client
        .delete::<ConfigMap>(&key, DeleteOptions::foreground())
        .await
        .unwrap()
    {
        Deletion::Begun(map) => assert_eq!(map.metadata.uid, created.metadata.uid),
        Deletion::Done => panic!("it has a finalizer"),
    }
    let seen = client.get_required::<ConfigMap>(&key).await.unwrap();
    assert!(seen.metadata.deletion_timestamp.is_some());
    client
        .patch::<ConfigMap>(&key, &Patch::Merge(json!({"metadata": {"finalizers": null}})))
        .await
        .unwrap();
    assert!(client.live().get::<ConfigMap>(&key).await.unwrap().is_none());
}

fn deployment(fixture: &Fixture) -> Deployment {
    object(json!({
        "metadata": {"name": "a", "namespace": fixture.namespace()},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            },
        },
    }))
}

// R142
#[steersman_testing::test]
async fn writes_the_status_separately(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let key = key(&fixture, "a");
    let mut deployment = client.create(&deployment(&fixture)).await.unwrap();
    deployment.spec.replicas = Some(7);
    deployment.status.get_or_insert_default().observed_generation = Some(1);
    let updated = client.update_status(&deployment).await.unwrap();
    assert_eq!(updated.spec.replicas, Some(1), "only the status is taken");
    assert_eq!(updated.status.unwrap().observed_generation, Some(1));

    let patch = Patch::Merge(json!({"status": {"observedGeneration": 2}}));
    let patched: Deployment = client.patch_status(&key, &patch).await.unwrap();
    assert_eq!(patched.status.unwrap().observed_generation, Some(2));
    let status: DynamicObject = object(json!({
        "metadata": {"name": "a", "namespace": fixture.namespace()}, "status": {"observedGeneration": 3},
    }));
    let deployments = client.of(&Resource::of::<Deployment>());
    let error = deployments.apply_status(&status).await;
    assert!(
        error.is_err_and(|error| error.is_apply_conflict()),
        "others own it"
    );
    let applied = client
        .force()
        .of(&Resource::of::<Deployment>())
        .apply_status(&status)
        .await
        .unwrap();
    assert_eq!(applied.data["status"]["observedGeneration"], 3);
    let status_path = requests(&proxy)[1..]
        .iter()
        .all(|one| one.path.ends_with("/deployments/a/status"));
    assert!(status_path);
}

// R142
#[steersman_testing::test]
async fn subresources_are_read_and_written(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    client.create(&deployment(&fixture)).await.unwrap();
    let key = key(&fixture, "a");
    let mut scale: Scale = client
        .get_subresource::<Deployment, _>(&key, "scale")
        .await
        .unwrap();
    scale.spec.as_mut().unwrap().replicas = Some(3);
    let scaled: Scale = client
        .update_subresource::<Deployment, _>(&key, "scale", &scale)
        .await
        .unwrap();
    assert_eq!(scaled.spec.unwrap().replicas, Some(3));
    let patch = Patch::Merge(json!({"spec": {"replicas": 4}}));
    let scaled: Scale = client
        .patch_subresource::<Deployment, _>(&key, "scale", &patch)
        .await
        .unwrap();
    assert_eq!(scaled.spec.unwrap().replicas, Some(4));

    let account: ServiceAccount =
        object(json!({"metadata": {"name": "a", "namespace": fixture.namespace()}}));
    client.create(&account).await.unwrap();
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "metadata": {}, "spec": {"audiences": [], "expirationSeconds": 600}});
    let token: TokenRequest = client
        .create_subresource::<ServiceAccount, _>(&key, "token", &request)
        .await
        .unwrap();
    assert!(token.status.unwrap().token.is_some());

    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "absent"}});
    let absent = ObjectKey::new(fixture.namespace(), "absent");
    let evicted: Result<Status, _> = client
        .create_subresource::<Pod, _>(&absent, "eviction", &eviction)
        .await;
    assert!(evicted.is_err_and(|error| error.is_not_found()));
    let paths: Vec<_> = requests(&proxy).into_iter().map(|one| one.path).collect();
    assert!(
        paths[1].ends_with("/deployments/a/scale") && paths[6].ends_with("/pods/absent/eviction"),
        "{paths:?}"
    );
}

// R142
#[steersman_testing::test]
async fn a_watch_returns_events_until_the_server_closes_it(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let first = client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let from = first.metadata.resource_version.unwrap();
    client.create(&config_map(&fixture, "b", "first")).await.unwrap();
    client
        .delete::<ConfigMap>(&key(&fixture, "b"), DeleteOptions::default())
        .await
        .unwrap();
    // Behind the writes, so that these need not be over within its time.
    let options = WatchParams::default().fields("metadata.name=b").timeout(3);
    let mut watch = client
        .watch::<ConfigMap>(fixture.namespace(), &options, &from)
        .await
        .unwrap();
    let mut heard = Vec::new();
    while let Some(event) = watch.next().await {
        match event.unwrap() {
            WatchEvent::Added(map) => heard.push(format!("added {}", map.metadata.name.unwrap())),
            WatchEvent::Deleted(map) => heard.push(format!("deleted {}", map.metadata.name.unwrap())),
            WatchEvent::Bookmark(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(heard, ["added b", "deleted b"]);
    let error = client
        .watch::<ConfigMap>(fixture.namespace(), &options, "nonsense")
        .await
        .unwrap_err();
    assert!(error.status().is_some(), "{error:?}");
}

// R142, R58
#[steersman_testing::test]
async fn dynamic_kinds_have_the_same_verbs(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
    let key = key(&fixture, "a");
    for client in [cluster.live().of(&maps), cluster.client().of(&maps)] {
        let map = object(json!({
            "metadata": {"name": "a", "namespace": fixture.namespace()}, "data": {"value": "first"},
        }));
        let mut map = client.create(&map).await.unwrap();
        map.data["data"]["value"] = "second".into();
        map.types = None;
        client.update(&map).await.unwrap();
        let found: Arc<DynamicObject> = client.get_required(&key).await.unwrap();
        assert_eq!(found.data["data"]["value"], "second");
        let here = Query::new().namespace(fixture.namespace());
        let listed = client.list(&here).await.unwrap();
        assert!(listed.iter().any(|map| map.metadata.name.as_deref() == Some("a")));
        client
            .patch(&key, &Patch::Merge(json!({"data": {"value": "third"}})))
            .await
            .unwrap();
        let applied = object(json!({
            "metadata": {"name": "a", "namespace": fixture.namespace()}, "data": {"other": "x"},
        }));
        assert_eq!(client.apply(&applied).await.unwrap().data["data"]["other"], "x");
        client.delete(&key, DeleteOptions::default()).await.unwrap();
        assert!(client.get(&key).await.unwrap().is_none());
    }
    let unheard = Resource::new(fixture.group(), "v1", "Unheard", "unheards");
    let error = cluster.live().of(&unheard).get(&key).await.unwrap_err();
    assert!(error.is_absent() && error.is_not_found(), "{error:?}");
}

#[steersman_testing::test]
async fn reads_metadata_until_whole_objects_are_requested(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let (key, here) = (key(&fixture, "a"), Query::new().namespace(fixture.namespace()));
    for client in [cluster.live(), cluster.client()] {
        let metadata = client.metadata::<ConfigMap>();
        let found = metadata.get(&key).await.unwrap().unwrap();
        assert_eq!(found.metadata.name.as_deref(), Some("a"));
        assert!(
            metadata
                .get(&support::key(&fixture, "z"))
                .await
                .unwrap()
                .is_none()
        );
        let listed = metadata.list(&here).await.unwrap();
        assert!(listed.iter().any(|one| one.metadata.name.as_deref() == Some("a")));
    }
    let [informer] = cluster.cache().informers().try_into().unwrap();
    assert!(
        informer
            .store()
            .get(fixture.namespace(), "a")
            .unwrap()
            .is_metadata_only()
    );
    assert_eq!(value(&client.get_required(&key).await.unwrap()), "first");
    let [informer] = cluster.cache().informers().try_into().unwrap();
    assert!(
        !informer
            .store()
            .get(fixture.namespace(), "a")
            .unwrap()
            .is_metadata_only()
    );
}
