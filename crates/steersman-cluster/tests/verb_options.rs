// SPDX-License-Identifier: Apache-2.0
//! Options of requests, and the verbs of dynamic kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::{
    api::{apps::v1::Deployment, authentication::v1::SelfSubjectReview, core::v1::ConfigMap},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{Patch, PostParams, WatchParams},
    core::{DynamicObject, WatchEvent},
};
use serde_json::{Value, json};
use steersman_cache::{Query, Resource};
use steersman_cluster::{
    Client, Cluster, DeleteOptions, Deletion, FieldValidation, Impersonation, ImpersonationError, KindClient,
};
use steersman_testing::{
    Fixture,
    proxy::{Cut, Fault, Matching},
};
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
async fn a_read_can_set_a_minimum_resource_version(fixture: Fixture) {
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
async fn strict_field_validation_rejects_unknown_fields(fixture: Fixture) {
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
async fn dynamic_kinds_have_metadata_verbs(fixture: Fixture) {
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
        // The write is visible.
        let found = metadata.get(&a).await.unwrap().unwrap();
        assert_eq!(found.metadata.labels.as_ref().unwrap()["tier"], "front");
        let deleted = metadata.delete(&a, DeleteOptions::default()).await.unwrap();
        assert!(matches!(deleted, Deletion::Done));
        assert!(metadata.get(&a).await.unwrap().is_none());
    }
}

// R142
#[steersman_testing::test]
async fn watches_and_deletes_collections_of_dynamic_kinds(fixture: Fixture) {
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
async fn reads_and_writes_subresources_of_dynamic_kinds(fixture: Fixture) {
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
async fn a_dynamic_kind_can_be_uncached(fixture: Fixture) {
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

// C5
#[steersman_testing::test]
async fn lists_page_by_hand_with_their_metadata(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    create(&fixture, &client, &["a", "b", "c", "d", "e"]).await;
    let ours = Query::new().namespace(fixture.namespace()).limit(2);
    let ours = ours.labels(kube::core::Expression::DoesNotExist("unwanted".to_owned()));

    let first = client.list_page::<ConfigMap>(&ours, None).await.unwrap();
    assert_eq!(first.items.len(), 2);
    // Later pages show the same state, whatever changes meanwhile.
    client
        .delete::<ConfigMap>(&key(&fixture, "e"), DeleteOptions::default())
        .await
        .unwrap();
    let (version, mut pages) = (first.resource_version.clone(), vec![first]);
    while let Some(token) = pages.last().and_then(|page| page.continue_token.clone()) {
        pages.push(client.list_page(&ours, Some(&token)).await.unwrap());
    }
    assert!(!version.is_empty());
    assert!(pages.iter().all(|page| page.resource_version == version));
    let mut found: Vec<_> = pages
        .iter()
        .flat_map(|page| &page.items)
        .filter_map(|map| map.metadata.name.clone())
        .filter(|name| name.len() == 1)
        .collect();
    found.sort();
    assert_eq!(found, ["a", "b", "c", "d", "e"]);
    assert!(cluster.cache().informers().is_empty(), "the server is asked");

    // Without a selector, the server reports how many objects follow.
    let all = Query::new().namespace(fixture.namespace()).limit(1);
    let page = client.list_page::<ConfigMap>(&all, None).await.unwrap();
    assert!(page.remaining.is_some_and(|remaining| remaining >= 3), "{page:?}");
    let metadata = client.metadata_of(&maps()).list_page(&all, None).await.unwrap();
    assert!(metadata.continue_token.is_some() && metadata.items.len() == 1);
    // Zero lists everything in one answer.
    let page = client.list_page::<ConfigMap>(&all.limit(0), None).await.unwrap();
    assert!(page.continue_token.is_none() && page.items.len() >= 4);
}

// C5
#[steersman_testing::test]
async fn an_expired_continue_token_is_recognised(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.client();
    create(&fixture, &client, &["a", "b"]).await;
    let query = Query::new().namespace(fixture.namespace()).limit(1);
    let page = client.list_page::<ConfigMap>(&query, None).await.unwrap();
    let _fault = proxy.inject(Matching::reads().path("/configmaps").first(1), Fault::answer(410));
    let token = page.continue_token.as_deref();
    let error = client.list_page::<ConfigMap>(&query, token).await.unwrap_err();
    assert!(error.is_expired(), "{error}");
    assert_eq!(
        client
            .list_page::<ConfigMap>(&query, token)
            .await
            .unwrap()
            .items
            .len(),
        1
    );
}

// C5
#[steersman_testing::test]
async fn an_impersonating_client_has_the_permissions_of_the_user(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    let a = config_map(&fixture, "a", "first");
    client.create(&a).await.unwrap();
    client
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap()
        .unwrap();

    let jane = Impersonation::user("jane").group("developers");
    let as_jane = client.impersonate(&jane).unwrap();
    let review: SelfSubjectReview = object(json!({}));
    for reviewed in [
        Api::<SelfSubjectReview>::all(as_jane.kube())
            .create(&PostParams::default(), &review)
            .await
            .unwrap(),
        as_jane.create(&review).await.unwrap(),
    ] {
        let user = reviewed.status.unwrap().user_info.unwrap();
        assert_eq!(user.username.as_deref(), Some("jane"));
        assert_eq!(user.groups.unwrap(), ["developers", "system:authenticated"]);
    }
    // The cache has the object, but the user must not read it.
    let error = as_jane.get::<ConfigMap>(&key(&fixture, "a")).await.unwrap_err();
    assert!(
        error.is_forbidden() && error.to_string().contains("jane"),
        "{error}"
    );
    let error = as_jane
        .create(&config_map(&fixture, "b", "first"))
        .await
        .unwrap_err();
    assert!(error.is_forbidden(), "{error}");
    let a = key(&fixture, "a");
    let deleted = as_jane.delete::<ConfigMap>(&a, DeleteOptions::default()).await;
    assert!(deleted.unwrap_err().is_forbidden());

    let admin = client
        .impersonate(&Impersonation::user("root").group("system:masters"))
        .unwrap();
    admin.update(&config_map(&fixture, "a", "second")).await.unwrap();
    let read = client
        .get_required::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap();
    assert_eq!(support::value(&read), "second", "the cache sees the write");
    // The client that it is derived from is not affected.
    client.create(&config_map(&fixture, "b", "first")).await.unwrap();
}

// C5
#[steersman_testing::test]
async fn a_configured_impersonation_is_not_mixed_with_another(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let mut config = support::config(&fixture, &proxy);
    config.auth_info.impersonate = Some("joe".to_owned());
    let client = Cluster::new(config).unwrap().client();
    let error = client.impersonate(&Impersonation::user("jane")).unwrap_err();
    assert!(matches!(&error, ImpersonationError::Configured { configured, .. } if configured == "joe"));
    let error = client.impersonate(&Impersonation::user("")).unwrap_err();
    assert!(error.to_string().contains("joe"), "{error}");
}

/// Two versions of a kind, and a client of each.
async fn versions(fixture: &Fixture, client: &Client) -> [KindClient<DynamicObject>; 2] {
    let version = |name: &str| {
        json!({
            "name": name, "served": true, "storage": name == "v1",
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        })
    };
    let group = fixture.group();
    let definition: CustomResourceDefinition = object(json!({
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [version("v1"), version("v1beta1")],
        },
    }));
    fixture.install(&definition).await;
    ["v1", "v1beta1"].map(|version| client.of(&Resource::new(group, version, "Widget", "widgets")))
}

// C5: the limit of `client.rs`, and its remedy.
#[steersman_testing::test]
async fn a_write_through_another_version_is_visible_at_its_revision(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let [stable, beta] = versions(&fixture, &cluster.client()).await;
    let widget: DynamicObject = object(json!({
        "metadata": {"name": "a", "namespace": fixture.namespace()}, "spec": {"size": 1},
    }));
    let mut widget = stable.create(&widget).await.unwrap();
    let size = |widget: &DynamicObject| widget.data["spec"]["size"].clone();
    assert_eq!(size(&beta.get_required(&key(&fixture, "a")).await.unwrap()), 1);
    assert_eq!(size(&stable.get_required(&key(&fixture, "a")).await.unwrap()), 1);

    // While the watches deliver nothing, only reads of the written version see the write.
    let stall = proxy.inject(Matching::watches().path("/widgets"), Fault::stall());
    proxy.cut(&Matching::watches().path("/widgets"), Cut::Clean);
    widget.data["spec"]["size"] = json!(2);
    let written = stable.update(&widget).await.unwrap();
    assert_eq!(size(&stable.get_required(&key(&fixture, "a")).await.unwrap()), 2);
    let version = written.metadata.resource_version.unwrap();
    let brief = cluster
        .client()
        .timeout(Duration::from_millis(50))
        .of(beta.resource());
    let error = brief
        .wait_for_revision(fixture.namespace(), &version)
        .await
        .unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(
        std::error::Error::source(&error).is_some_and(|source| source.to_string().contains(&version)),
        "{error:?}"
    );
    assert_eq!(size(&beta.get_required(&key(&fixture, "a")).await.unwrap()), 1);

    drop(stall);
    beta.wait_for_revision(fixture.namespace(), &version)
        .await
        .unwrap();
    assert_eq!(size(&beta.get_required(&key(&fixture, "a")).await.unwrap()), 2);
    // A client that reads from the server does not wait.
    let live = cluster.live().of(beta.resource());
    live.wait_for_revision(fixture.namespace(), "99999999999999")
        .await
        .unwrap();
}
