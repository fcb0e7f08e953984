// SPDX-License-Identifier: Apache-2.0
//! Reads through the cache, and of what was just written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Secret},
    rbac::v1::Role,
};
use kube::{api::Patch, core::DynamicObject};
use serde_json::json;
use steersman_cache::{CacheMissPolicy, Index, InformerOptions, Query, Resource, Scope};
use steersman_cluster::{Cluster, ConnectError, DeleteOptions, Error};
use steersman_core::ObjectKey;
use steersman_testing::{
    Fixture,
    proxy::{Ended, Fault, Matching},
};
use support::{builder, cluster, config, config_map, key, names, object, requests, value};

fn by_value() -> Index<String> {
    Index::on("value", |map: &ConfigMap| {
        map.data.as_ref()?.get("value").cloned()
    })
}

// R52, R54
#[steersman_testing::test]
async fn guarantee_1_a_cached_read_sends_no_request(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    assert!(
        proxy.exchanges().is_empty(),
        "nothing is sent before somebody asks"
    );
    let here = Query::new().namespace(fixture.namespace());
    for client in [cluster.client(), cluster.client().for_run(), cluster.client()] {
        assert!(
            client
                .get::<ConfigMap>(&key(&fixture, "a"))
                .await
                .unwrap()
                .is_none()
        );
        client.list::<ConfigMap>(&here).await.unwrap();
        client.of(&Resource::of::<ConfigMap>()).list(&here).await.unwrap();
        client.metadata::<ConfigMap>().list(&here).await.unwrap();
    }
    let [watch] = proxy.exchanges().try_into().unwrap();
    assert!(watch.is_watch());
}

#[steersman_testing::test]
async fn rejects_an_incomplete_key(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let lacking = [ObjectKey::new("", "a"), ObjectKey::new(fixture.namespace(), "")];
    for client in [cluster.client(), cluster.live()] {
        for key in &lacking {
            let whole = client.get::<ConfigMap>(key).await.unwrap_err();
            let metadata = client.metadata::<ConfigMap>().get(key).await.unwrap_err();
            for error in [whole, metadata] {
                assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            }
        }
    }
    let error = cluster.client().get::<ConfigMap>(&lacking[0]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot get configmaps/v1 a: the kind is namespaced; set the namespace of the key"
    );
    assert!(proxy.exchanges().is_empty());
    // A kind that is in none has such keys.
    let namespace = ObjectKey::new("", "default");
    assert!(
        cluster
            .client()
            .get::<Namespace>(&namespace)
            .await
            .unwrap()
            .is_some()
    );
}

// R102
#[steersman_testing::test]
async fn a_changed_copy_does_not_change_the_cache(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.client();
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let read = async || {
        client
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap()
            .unwrap()
    };
    // A read returns a shared immutable object; a change needs a copy.
    let first: Arc<ConfigMap> = read().await;
    let mut copy = ConfigMap::clone(&first);
    copy.data
        .get_or_insert_default()
        .insert("value".to_owned(), "mine".to_owned());
    assert_eq!(value(&first), "first");
    assert_eq!(value(&*read().await), "first");
    let all = client
        .list::<ConfigMap>(&Query::new().namespace(fixture.namespace()))
        .await
        .unwrap();
    let is_mine = |map: &Arc<ConfigMap>| map.data.iter().flatten().any(|(_, value)| value == "mine");
    assert!(!all.iter().any(is_mine));
}

// R53
#[steersman_testing::test]
async fn indexes_exist_from_the_start_and_have_unique_names(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let by_value = by_value();
    let cluster = builder(&fixture, &proxy)
        .cache(|cache| cache.index::<ConfigMap, _>(&by_value))
        .build()
        .await
        .unwrap();
    let client = cluster.client();
    for (name, value) in [("a", "first"), ("b", "second"), ("c", "first")] {
        client.create(&config_map(&fixture, name, value)).await.unwrap();
    }
    let query = Query::new()
        .namespace(fixture.namespace())
        .index(&by_value, "first");
    for client in [client, cluster.live()] {
        assert_eq!(names(&client.list(&query).await.unwrap()), ["a", "c"]);
    }
    let other = Index::<String>::on_header("value", |_| None);
    let informer = cluster.cache().informer(&Resource::of::<ConfigMap>());
    assert!(informer.store().add_index(&other).is_err());
    let refused = builder(&fixture, &proxy)
        .cache(|cache| {
            cache
                .index::<ConfigMap, _>(&by_value)
                .index::<ConfigMap, _>(&other)
        })
        .build()
        .await;
    assert!(matches!(refused, Err(ConnectError::Index { .. })), "{refused:?}");
}

#[steersman_testing::test]
async fn guarantee_2_reads_show_a_write_at_once(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let by_value = by_value();
    let cluster = builder(&fixture, &proxy)
        .cache(|cache| cache.index::<ConfigMap, _>(&by_value))
        .build()
        .await
        .unwrap();
    let client = cluster.client();
    let here = Query::new().namespace(fixture.namespace());
    let doomed = client
        .create(&config_map(&fixture, "doomed", "first"))
        .await
        .unwrap();
    assert!(doomed.metadata.uid.is_some());
    let known = names(&client.list::<ConfigMap>(&here).await.unwrap());

    // From now on no watch delivers events.
    let stall = proxy.inject(Matching::watches(), Fault::stall());
    let map = client
        .create(&config_map(&fixture, "a", "created"))
        .await
        .unwrap();
    let seen = async |value: &str| {
        let by_value = here.clone().index(&by_value, value);
        let listed = client.list::<ConfigMap>(&here).await.unwrap();
        let metadata = client
            .metadata::<ConfigMap>()
            .get(&key(&fixture, "a"))
            .await
            .unwrap();
        let got = client
            .get_required::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap();
        assert_eq!(support::value(&got), value);
        assert_eq!(
            metadata.unwrap().metadata.resource_version,
            got.metadata.resource_version
        );
        assert!(names(&listed).contains(&"a".to_owned()));
        assert_eq!(names(&client.list(&by_value).await.unwrap()), ["a"]);
    };
    seen("created").await;
    let mut map = map;
    map.data
        .as_mut()
        .unwrap()
        .insert("value".into(), "updated".into());
    client.update(&map).await.unwrap();
    seen("updated").await;
    let patch = Patch::Merge(json!({"data": {"value": "patched"}}));
    client
        .patch::<ConfigMap>(&key(&fixture, "a"), &patch)
        .await
        .unwrap();
    seen("patched").await;
    client
        .force()
        .apply(&config_map(&fixture, "a", "applied"))
        .await
        .unwrap();
    seen("applied").await;
    let dynamic: DynamicObject = object(json!({
        "metadata": {"name": "a", "namespace": fixture.namespace()}, "data": {"value": "dynamic"},
    }));
    client
        .force()
        .of(&Resource::of::<ConfigMap>())
        .apply(&dynamic)
        .await
        .unwrap();
    seen("dynamic").await;

    client
        .delete::<ConfigMap>(&key(&fixture, "doomed"), DeleteOptions::default())
        .await
        .unwrap();
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "doomed"))
            .await
            .unwrap()
            .is_none()
    );
    let listed = names(&client.list::<ConfigMap>(&here).await.unwrap());
    assert_eq!(listed.len(), known.len(), "one went and one came: {listed:?}");
    // Made again, it is another one.
    client
        .create(&config_map(&fixture, "doomed", "again"))
        .await
        .unwrap();
    let again = client
        .get_required::<ConfigMap>(&key(&fixture, "doomed"))
        .await
        .unwrap();
    assert_ne!(again.metadata.uid, doomed.metadata.uid);

    drop(stall);
    let live = cluster.live().list::<ConfigMap>(&here).await.unwrap();
    assert_eq!(
        names(&client.list::<ConfigMap>(&here).await.unwrap()),
        names(&live)
    );
}

#[steersman_testing::test]
async fn guarantee_2_removing_the_last_finalizer_hides_the_object(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.client();
    let mut map = config_map(&fixture, "a", "first");
    map.metadata.finalizers = Some(vec!["steersman.example/held".to_owned()]);
    client.create(&map).await.unwrap();
    let (key, here) = (key(&fixture, "a"), Query::new().namespace(fixture.namespace()));
    client
        .delete::<ConfigMap>(&key, DeleteOptions::default())
        .await
        .unwrap();
    let mut doomed = client.live().get_required::<ConfigMap>(&key).await.unwrap();
    let is_held = async || client.get::<ConfigMap>(&key).await.unwrap().is_some();
    assert!(is_held().await);

    // From now on no watch delivers events.
    let _stall = proxy.inject(Matching::watches(), Fault::stall());
    Arc::make_mut(&mut doomed).metadata.finalizers = None;
    client.update(&*doomed).await.unwrap();
    assert!(!is_held().await);
    let left = names(&client.list::<ConfigMap>(&here).await.unwrap());
    assert!(!left.contains(&"a".to_owned()), "{left:?}");
    // Reads show the object that replaces it.
    client.create(&config_map(&fixture, "a", "second")).await.unwrap();
    assert!(is_held().await);
}

#[steersman_testing::test]
async fn reads_show_a_written_status_at_once(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.client();
    let budgets = Resource::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets");
    let (budgets, key) = (client.of(&budgets), key(&fixture, "a"));
    let mut budget = budgets
        .create(&object(json!({
            "metadata": {"name": "a", "namespace": fixture.namespace()},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        })))
        .await
        .unwrap();
    assert!(budgets.get(&key).await.unwrap().is_some());
    let _stall = proxy.inject(Matching::watches(), Fault::stall());
    let status =
        json!({"currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 1, "expectedPods": 7});
    budget.data["status"] = status;
    budgets.update_status(&budget).await.unwrap();
    let seen = budgets.get_required(&key).await.unwrap();
    assert_eq!(seen.data["status"]["expectedPods"], 7);
    let patch = Patch::Merge(json!({"status": {"expectedPods": 8}}));
    budgets.patch_status(&key, &patch).await.unwrap();
    assert_eq!(
        budgets.get_required(&key).await.unwrap().data["status"]["expectedPods"],
        8
    );
}

#[steersman_testing::test]
async fn reads_do_not_show_objects_outside_the_scope(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let front = Scope::all()
        .namespace(fixture.namespace())
        .labels("tier in (front, side)");
    let client = builder(&fixture, &proxy)
        .cache(|cache| cache.kind::<ConfigMap>(front, InformerOptions::default()))
        .build()
        .await
        .unwrap()
        .client();
    let here = Query::new().namespace(fixture.namespace());
    assert!(client.list::<ConfigMap>(&here).await.unwrap().is_empty());
    let _stall = proxy.inject(Matching::watches(), Fault::stall());
    for (name, tier) in [("a", "front"), ("b", "back"), ("c", "side")] {
        let mut map = config_map(&fixture, name, "first");
        map.metadata.labels = Some([("tier".to_owned(), tier.to_owned())].into());
        client.create(&map).await.unwrap();
    }
    assert_eq!(names(&client.list::<ConfigMap>(&here).await.unwrap()), ["a", "c"]);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": "back"}}}));
    client
        .patch::<ConfigMap>(&key(&fixture, "a"), &patch)
        .await
        .unwrap();
    assert_eq!(names(&client.list::<ConfigMap>(&here).await.unwrap()), ["c"]);
}

#[steersman_testing::test]
async fn informers_of_a_run_end_with_it(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let run = cluster.client().for_run();
    let live = run.live();
    run.get::<ConfigMap>(&key(&fixture, "a")).await.unwrap();
    assert_eq!(cluster.cache().informers().len(), 1);
    drop(run);
    assert!(
        proxy.exchanges()[0].is_open(),
        "what was derived from it belongs to the run"
    );
    drop(live);
    assert_eq!(proxy.wait_for(|all| all[0].ended).await, Ended::ClientGone);
}

#[steersman_testing::test]
async fn the_cache_miss_policy_applies_to_kinds_without_informer(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let with = async |missing| {
        let builder = builder(&fixture, &proxy).cache(|cache| cache.missing(missing));
        builder.build().await.unwrap()
    };
    let refusing = with(CacheMissPolicy::Refuse).await;
    let error = refusing
        .client()
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with("cannot get configmaps/v1 "),
        "{error}"
    );
    assert!(requests(&proxy).is_empty());
    let live = with(CacheMissPolicy::Live).await;
    assert!(
        live.client()
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(requests(&proxy).len(), 1);
    assert!(live.cache().informers().is_empty());
    // An existing informer is used.
    let _held = live.cache().informer(&Resource::of::<ConfigMap>());
    live.client().get::<ConfigMap>(&key(&fixture, "a")).await.unwrap();
    assert_eq!(requests(&proxy).len(), 1);
}

// R52
#[steersman_testing::test]
async fn reads_an_uncached_kind_from_the_server(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = builder(&fixture, &proxy)
        .cache(|cache| cache.uncached::<Secret>())
        .build()
        .await
        .unwrap();
    let client = cluster.client();
    for _ in 0..2 {
        assert!(client.get::<Secret>(&key(&fixture, "a")).await.unwrap().is_none());
        assert!(
            client
                .get::<ConfigMap>(&key(&fixture, "a"))
                .await
                .unwrap()
                .is_none()
        );
    }
    let secrets = requests(&proxy)
        .into_iter()
        .filter(|one| one.path.ends_with("/secrets/a"));
    assert_eq!(secrets.count(), 2);
    assert_eq!(cluster.cache().informers().len(), 1);
}

#[steersman_testing::test]
async fn errors_show_no_content_of_an_object(fixture: Fixture) {
    #[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
    struct Numbers {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
        data: std::collections::BTreeMap<String, u8>,
    }
    impl kube::Resource for Numbers {
        type DynamicType = ();
        type Scope = kube::core::NamespaceResourceScope;
        fn kind((): &()) -> std::borrow::Cow<'_, str> {
            Secret::kind(&())
        }
        fn group((): &()) -> std::borrow::Cow<'_, str> {
            Secret::group(&())
        }
        fn version((): &()) -> std::borrow::Cow<'_, str> {
            Secret::version(&())
        }
        fn plural((): &()) -> std::borrow::Cow<'_, str> {
            Secret::plural(&())
        }
        fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            &self.metadata
        }
        fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            &mut self.metadata
        }
    }
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let secret: Secret = object(json!({
        "metadata": {"name": "a", "namespace": fixture.namespace()}, "data": {"password": "aHVudGVyMg=="},
    }));
    cluster.live().create(&secret).await.unwrap();
    let here = Query::new().namespace(fixture.namespace());
    let live = cluster.live();
    for error in [
        live.get::<Numbers>(&key(&fixture, "a")).await.unwrap_err(),
        live.list::<Numbers>(&here).await.unwrap_err(),
    ] {
        let shown = format!("{error} {error:?}");
        assert!(
            shown.contains("password") && !shown.contains("aHVudGVy"),
            "{shown}"
        );
    }
}

// R51, R75
#[steersman_testing::test]
async fn builds_a_cluster_from_a_configuration(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let config = config(&fixture, &proxy);
    let cluster = Cluster::new(config.clone()).unwrap();
    assert_eq!(cluster.name().as_str(), "default");
    assert_eq!(
        cluster.config().map(|config| &config.cluster_url),
        Some(&config.cluster_url)
    );
    let client = cluster.client().field_manager("tester");
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let found = client
        .get_required::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap();
    assert_eq!(value(&found), "first");
}

#[steersman_testing::test]
async fn an_empty_namespace_means_all_in_cache_and_server(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let config = support::config(&fixture, &proxy);
    let cluster = Cluster::new(config).unwrap();
    let client = cluster.client().field_manager("tester");
    let mut map = config_map(&fixture, "a", "first");
    map.metadata.labels = Some([("test".to_owned(), fixture.namespace().to_owned())].into());
    client.create(&map).await.unwrap();
    let everywhere = Query::new().namespace("").label("test", fixture.namespace());
    for client in [client.live(), client] {
        let found = client.list::<ConfigMap>(&everywhere).await.unwrap();
        assert_eq!(names(&found), ["a"]);
    }
}

// D1
#[steersman_testing::test]
async fn a_live_list_is_a_list(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = cluster(&fixture, &proxy).await.live();
    let query = Query::new().namespace(fixture.namespace());
    let list = async |body: &str| {
        let _answer = proxy.inject(
            Matching::reads().path("/configmaps"),
            Fault::respond(200, "application/json", body),
        );
        client.list::<ConfigMap>(&query).await
    };
    let null =
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":null}"#;
    assert_eq!(list(null).await.unwrap().len(), 0);
    for body in [
        "{}",
        r#"{"status":"ok"}"#,
        r#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#,
        r#"{"kind":"Status","apiVersion":"v1","items":[]}"#,
        r#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]}"#,
        "<html>It works!</html>",
        "",
    ] {
        let error = list(body).await.unwrap_err();
        assert!(error.is_undecodable(), "{body}: {error}");
    }
}

// D4
#[steersman_testing::test]
async fn reads_and_writes_an_object_whose_name_needs_escapes(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let key = key(&fixture, r#"CORP\admins "eu""#);
    let role: Role =
        object(json!({"metadata": {"name": key.name(), "namespace": key.namespace()}, "rules": []}));
    cluster.client().create(&role).await.unwrap();
    for client in [cluster.client(), cluster.live()] {
        let found = client.get::<Role>(&key).await.unwrap().unwrap();
        assert_eq!(found.metadata.name.as_deref(), Some(key.name()));
        let patch = json!({"metadata": {"labels": {"a": "b"}}});
        client.patch::<Role>(&key, &Patch::Merge(patch)).await.unwrap();
    }
    cluster
        .client()
        .delete::<Role>(&key, Default::default())
        .await
        .unwrap();
    for client in [cluster.client(), cluster.live()] {
        assert!(client.get::<Role>(&key).await.unwrap().is_none());
    }
}
