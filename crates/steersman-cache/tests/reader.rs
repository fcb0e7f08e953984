// SPDX-License-Identifier: Apache-2.0
//! Typed reads through the cache, past it, and of what was just written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{borrow::Cow, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::json;
use steersman_cache::{CacheMissPolicy, Index, Object, Overlay, Query, ReadError, Resource, WatchError};
use steersman_core::{ObjectKey, TokioClock};
use steersman_testing::{
    Fixture,
    proxy::{Ended, Fault, Matching},
};
use support::{
    Heard, Maps, cache, config_maps, context, informer, is_list, requests, sorted, through, value,
};

fn name(map: &Arc<ConfigMap>) -> String {
    map.metadata.name.clone().unwrap()
}

fn index_by_value() -> Index<String> {
    Index::on("value", |map: &ConfigMap| {
        map.data.as_ref()?.get("value").cloned()
    })
}

// R129
#[steersman_testing::test]
async fn objects_are_read_by_name_namespace_label_index_and_limit(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    for (name, tier) in [("a", "front"), ("b", "front"), ("c", "back")] {
        maps.create_with(name, json!({"tier": tier})).await;
    }
    maps.set("c", "second").await;
    maps.set("a", "second").await;
    let cache = cache(&fixture, context(fixture.client())).build();
    let reader = cache.reader(CacheMissPolicy::Start);
    let namespace = fixture.namespace();
    assert_eq!(
        value(&reader.get::<ConfigMap>(namespace, "a").await.unwrap().unwrap()),
        "second"
    );
    assert!(reader.get::<ConfigMap>(namespace, "z").await.unwrap().is_none());

    let by_value = index_by_value();
    cache
        .informer(&config_maps())
        .store()
        .add_index(&by_value)
        .unwrap();
    let all = Query::new().namespace(namespace);
    let list = async |query: &Query| {
        let found = reader.list::<ConfigMap>(query).await.unwrap();
        sorted(found.iter().map(name).collect())
    };
    assert_eq!(list(&all).await, ["a", "b", "c"]);
    assert_eq!(list(&all.clone().label("tier", "front")).await, ["a", "b"]);
    assert_eq!(list(&all.clone().index(&by_value, "second")).await, ["a", "c"]);
    let both = all.clone().label("tier", "front").index(&by_value, "second");
    assert_eq!(list(&both).await, ["a"]);
    assert_eq!(list(&all.clone().limit(2)).await.len(), 2);
}

// R128
#[steersman_testing::test]
async fn a_late_index_is_complete_and_kept_current(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    let informer = informer(&fixture, &context(fixture.client()));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let by_value = index_by_value();
    informer.store().add_index(&by_value).unwrap();
    let found = |value: &str| {
        let found = informer.store().keys(&Query::new().index(&by_value, value));
        sorted(found.iter().map(|key| key.name().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(found("first"), ["a", "b"]);
    maps.set("a", "second").await;
    maps.delete("b").await;
    heard.count(4).await;
    assert_eq!((found("first"), found("second")), (vec![], vec!["a".to_owned()]));
    let other = Index::<String>::on_header("value", |_| None);
    assert_eq!(informer.store().add_index(&other).unwrap_err().name, "value");
}

// R52
#[steersman_testing::test]
async fn a_cached_read_sends_no_request(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let readers = [
        CacheMissPolicy::Start,
        CacheMissPolicy::Live,
        CacheMissPolicy::Refuse,
    ]
    .map(|missing| cache.reader(missing));
    // The first one starts what the others find.
    for reader in readers.iter().cycle().take(9) {
        let found = reader.get::<ConfigMap>(fixture.namespace(), "a").await;
        assert!(found.unwrap().is_some());
    }
    let [request] = proxy.exchanges().try_into().unwrap();
    assert!(is_list(&request) && request.is_watch());
}

// R52, R143
#[steersman_testing::test]
async fn a_live_read_sends_one_request(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_with("a", json!({"tier": "front"})).await;
    maps.create("b").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let (reader, namespace) = (cache.reader(CacheMissPolicy::Live), fixture.namespace());
    assert_eq!(
        value(&reader.get::<ConfigMap>(namespace, "a").await.unwrap().unwrap()),
        "first"
    );
    maps.set("a", "second").await;
    assert_eq!(
        value(&reader.get::<ConfigMap>(namespace, "a").await.unwrap().unwrap()),
        "second"
    );
    assert!(reader.get::<ConfigMap>(namespace, "z").await.unwrap().is_none());
    let front = Query::new().namespace(namespace).label("tier", "front");
    let found = reader.list::<ConfigMap>(&front).await.unwrap();
    assert_eq!(found.iter().map(name).collect::<Vec<_>>(), ["a"]);
    let limited = Query::new().namespace(namespace).limit(1);
    assert_eq!(reader.list::<ConfigMap>(&limited).await.unwrap().len(), 1);
    // Of a kind that has no namespaces.
    assert!(reader.get::<Namespace>("", namespace).await.unwrap().is_some());

    let requests = proxy.exchanges();
    assert_eq!(requests.len(), 6);
    assert!(requests.iter().all(|one| one.method == "GET" && !one.is_watch()));
    assert!(
        requests[0]
            .path
            .ends_with(&format!("/namespaces/{namespace}/configmaps/a"))
    );
    // The server sends no more than is wanted.
    assert_eq!(requests[3].query, "labelSelector=tier%3Dfront");
    assert_eq!(requests[4].query, "limit=1");
    assert!(cache.informers().is_empty());
}

/// A type of the test's group cannot be known when the test is compiled, but it must be one that no server has.
#[derive(Clone, Debug, serde::Deserialize)]
struct Unheard {
    metadata: ObjectMeta,
}

impl kube::Resource for Unheard {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;
    fn kind((): &()) -> Cow<'_, str> {
        "Unheard".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "unheard.steersman.example".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "unheards".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[steersman_testing::test]
async fn a_failed_read_reports_the_cause(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let (starting, live, refusing) = (
        cache.reader(CacheMissPolicy::Start),
        cache.reader(CacheMissPolicy::Live),
        cache.reader(CacheMissPolicy::Refuse),
    );
    let namespace = fixture.namespace();

    let error = refusing.get::<ConfigMap>(namespace, "a").await.unwrap_err();
    assert!(matches!(&error, ReadError::NotCached { resource } if *resource == config_maps()));
    assert!(error.to_string().starts_with("configmaps/v1 is not cached"));

    let error = starting.get::<ConfigMap>("elsewhere", "a").await.unwrap_err();
    assert!(
        matches!(&error, ReadError::UnknownNamespace { cached, asked, .. } if cached == namespace && asked == "elsewhere")
    );
    // A list without a namespace covers the namespaces of the cache.
    starting.list::<ConfigMap>(&Query::new()).await.unwrap();

    let unheard = Resource::of::<Unheard>();
    let error = starting.get::<Unheard>(namespace, "a").await.unwrap_err();
    assert!(
        matches!(&error, ReadError::Absent { resource } if *resource == unheard),
        "{error:?}"
    );
    // So that there is nothing to read from but the server.
    cache.remove(&unheard);
    let error = live
        .list::<Unheard>(&Query::new().namespace(namespace))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ReadError::Absent { resource } if *resource == unheard),
        "{error:?}"
    );
    let error = live.get::<Unheard>(namespace, "a").await.unwrap_err();
    assert!(
        matches!(&error, ReadError::Absent { resource } if *resource == unheard),
        "{error:?}"
    );

    let _forbidden = proxy.inject(Matching::any().path("/secrets"), Fault::answer(403));
    let error = live.get::<Secret>(namespace, "a").await.unwrap_err();
    assert!(
        matches!(
            &error,
            ReadError::Live {
                source: WatchError::Forbidden { .. },
                ..
            }
        ),
        "{error:?}"
    );
    let starting = cache.reader(CacheMissPolicy::Start);
    let error = starting.get::<Secret>(namespace, "a").await.unwrap_err();
    assert!(
        matches!(&error, ReadError::NotSynced { reason, .. } if matches!(**reason, WatchError::Forbidden { .. })),
        "{error:?}"
    );
}

#[steersman_testing::test]
async fn a_read_from_a_removed_informer_is_an_error(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let reader = cache.reader(CacheMissPolicy::Start);
    let stall = proxy.inject(Matching::any().path("/configmaps"), Fault::stall());
    let (read, removed) = futures::join!(reader.get::<ConfigMap>(fixture.namespace(), "a"), async {
        stall.hit().await;
        cache.remove(&config_maps())
    });
    assert_eq!(removed, 1);
    assert!(matches!(read, Err(ReadError::NotCached { .. })), "{read:?}");
}

#[steersman_testing::test]
async fn informers_of_a_reader_end_with_it(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let reader = cache.reader(CacheMissPolicy::Start);
    for _ in 0..2 {
        assert!(
            reader
                .get::<ConfigMap>(fixture.namespace(), "a")
                .await
                .unwrap()
                .is_none()
        );
    }
    let [request] = requests(&proxy, "configmaps").try_into().unwrap();
    assert!(request.is_open(), "it is not the one call that holds it");
    drop(reader);
    let ended = proxy.wait_for(|all| all[0].ended).await;
    assert_eq!(ended, Ended::ClientGone);
}

/// A ConfigMap as read by another client.
#[derive(Clone, Debug, serde::Deserialize)]
struct Sized {
    metadata: ObjectMeta,
    data: Size,
}

#[derive(Clone, Debug, serde::Deserialize)]
struct Size {
    value: Word,
}

#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
enum Word {
    #[serde(rename = "first")]
    First,
}

impl kube::Resource for Sized {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;
    fn kind((): &()) -> Cow<'_, str> {
        ConfigMap::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        ConfigMap::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        ConfigMap::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        ConfigMap::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// R165
#[steersman_testing::test]
async fn a_decode_error_names_key_and_field(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["fine", "odd"]).await;
    maps.set("odd", "unheard-of").await;
    let cache = cache(&fixture, context(fixture.client())).build();
    let (reader, namespace) = (cache.reader(CacheMissPolicy::Start), fixture.namespace());
    let fine = reader.get::<Sized>(namespace, "fine").await.unwrap().unwrap();
    assert_eq!(fine.data.value, Word::First);
    let all = Query::new().namespace(namespace);
    for error in [
        reader.get::<Sized>(namespace, "odd").await.unwrap_err(),
        reader.list::<Sized>(&all).await.unwrap_err(),
    ] {
        let ReadError::Decode(error) = error else {
            panic!("{error:?}")
        };
        assert_eq!(*error.key(), ObjectKey::new(namespace, "odd"));
        assert_eq!(error.path(), Some("data.value"));
    }
    assert_eq!(reader.list::<ConfigMap>(&all).await.unwrap().len(), 2);
}

#[steersman_testing::test]
async fn reads_show_a_write_before_the_watch_does(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["old", "doomed"]).await;
    let proxy = fixture.proxy().await;
    let informer = informer(&fixture, &through(&fixture, &proxy));
    let by_value = index_by_value();
    informer.store().add_index(&by_value).unwrap();
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let overlay = Overlay::limited(
        informer.store(),
        Arc::new(TokioClock::new()),
        Duration::from_secs(3600),
    );
    let object = |map: &ConfigMap| Object::from_slice(&serde_json::to_vec(map).unwrap()).unwrap();
    let namespace = fixture.namespace();

    let stall = proxy.inject(Matching::watches(), Fault::stall());
    let created = maps.create_with("new", json!({"tier": "front"})).await;
    overlay.wrote(object(&created));
    overlay.wrote(object(&maps.set("old", "second").await));
    let doomed = maps.0.get("doomed").await.unwrap();
    maps.delete("doomed").await;
    overlay.deleted(
        &ObjectKey::new(namespace, "doomed"),
        &doomed.metadata.uid.unwrap(),
        None,
    );

    let mine = overlay.store();
    let names = |query: &Query| {
        let found = mine.list(query);
        sorted(
            found
                .iter()
                .map(|object| object.name().to_owned())
                .collect::<Vec<_>>(),
        )
    };
    let stored = mine.get_as::<ConfigMap>(namespace, "new").unwrap().unwrap();
    assert_eq!(
        stored.metadata.resource_version,
        created.metadata.resource_version
    );
    assert_eq!(
        value(&mine.get_as::<ConfigMap>(namespace, "old").unwrap().unwrap()),
        "second"
    );
    assert!(mine.get(namespace, "doomed").is_none());
    assert_eq!(names(&Query::new().namespace(namespace)), ["new", "old"]);
    assert_eq!(names(&Query::new().label("tier", "front")), ["new"]);
    assert_eq!(names(&Query::new().index(&by_value, "first")), ["new"]);
    assert_eq!(names(&Query::new().index(&by_value, "second")), ["old"]);
    assert_eq!(overlay.len(), 3);
    assert_eq!(
        support::names(&informer),
        ["doomed", "old"],
        "the store itself waits for the watch"
    );

    drop(stall);
    assert_eq!(
        heard.count(5).await[2..],
        ["added new", "updated old", "deleted doomed"]
    );
    assert!(overlay.is_empty());
    assert_eq!(names(&Query::new()), ["new", "old"]);
    assert_eq!(support::names(&informer), ["new", "old"]);
}

#[steersman_testing::test]
async fn guarantee_6_all_readers_show_a_write(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["old", "doomed"]).await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let (reader, other) = (
        cache.reader(CacheMissPolicy::Start),
        cache.reader(CacheMissPolicy::Refuse),
    );
    let (namespace, resource) = (fixture.namespace(), config_maps());
    // There is no reader yet.
    cache.deleted(&resource, &ObjectKey::new(namespace, "old"), "1", None);
    assert!(reader.get::<ConfigMap>(namespace, "old").await.unwrap().is_some());

    let _stall = proxy.inject(Matching::watches(), Fault::stall());
    let json = |map: &ConfigMap| serde_json::to_vec(map).unwrap();
    cache.wrote(&resource, &json(&maps.create("new").await)).unwrap();
    cache
        .wrote(&resource, &json(&maps.set("old", "second").await))
        .unwrap();
    let doomed = maps.0.get("doomed").await.unwrap();
    maps.delete("doomed").await;
    let key = ObjectKey::new(namespace, "doomed");
    cache.deleted(&resource, &key, doomed.metadata.uid.as_deref().unwrap(), None);
    let mut elsewhere = doomed.clone();
    elsewhere.metadata.namespace = Some("elsewhere".to_owned());
    cache.wrote(&resource, &json(&elsewhere)).unwrap();
    assert!(cache.wrote(&resource, b"{}").is_err());
    for reader in [&reader, &other] {
        let all = Query::new().namespace(namespace);
        let found = reader.list::<ConfigMap>(&all).await.unwrap();
        assert_eq!(sorted(found.iter().map(name).collect()), ["new", "old"]);
        let old = reader.get::<ConfigMap>(namespace, "old").await.unwrap().unwrap();
        assert_eq!(value(&old), "second");
        assert!(
            reader
                .get::<ConfigMap>(namespace, "doomed")
                .await
                .unwrap()
                .is_none()
        );
    }
}

#[steersman_testing::test]
async fn every_store_has_the_indexes_of_the_cache(fixture: Fixture) {
    Maps::of(&fixture).create_all(&["a", "b"]).await;
    let by_value = index_by_value();
    let cache = cache(&fixture, context(fixture.client()))
        .index(config_maps(), &by_value)
        .unwrap();
    let other = Index::<String>::on_header("value", |_| None);
    assert!(cache.index(config_maps(), &other).is_err());
    let cache = self::cache(&fixture, context(fixture.client()))
        .index(config_maps(), &by_value)
        .unwrap()
        .build();
    for _ in 0..2 {
        let informer = cache.informer(&config_maps());
        informer.synced().await;
        let query = Query::new().index(&by_value, "first");
        assert_eq!(informer.store().keys(&query).len(), 2);
        assert!(informer.store().add_index(&other).is_err());
        cache.remove(&config_maps());
    }
}
