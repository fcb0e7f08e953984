// SPDX-License-Identifier: Apache-2.0
//! Guarantees of a store.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::Expression;
use serde::Deserialize;
use steersman_cache::{
    Change, Index, Object, Query, Representation, Revision, Store, StoreOptions, StoreWriter, Transform,
    store,
};
use steersman_core::ObjectKey;

fn object(namespace: &str, name: &str, revision: &str, rest: &str) -> Object {
    let json = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","uid":"{namespace}-{name}","resourceVersion":"{revision}"{rest}}}}}"#
    );
    Object::from_slice(json.as_bytes()).expect("an object")
}

fn labelled(name: &str, revision: &str, tier: &str) -> Object {
    object(
        "web",
        name,
        revision,
        &format!(r#","labels":{{"tier":"{tier}"}}"#),
    )
}

fn config(name: &str, revision: &str, data: &str) -> Object {
    let json = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{revision}"}},"data":{data}}}"#
    );
    Object::from_slice(json.as_bytes()).expect("an object")
}

fn bytes() -> (StoreWriter, Store) {
    store(StoreOptions::new())
}

fn kept_as(representation: Representation) -> (StoreWriter, Store) {
    store(StoreOptions::new().representation(representation))
}

fn names(objects: &[Arc<Object>]) -> Vec<&str> {
    objects.iter().map(|object| object.name()).collect()
}

fn by_tier() -> Index<String> {
    Index::on_header("tier", |object| {
        object.label("tier").map(|tier| tier.into_owned())
    })
}

// R121
#[test]
fn finds_an_object_by_key_until_it_is_removed() {
    let (mut writer, store) = bytes();
    writer.apply(object("web", "a", "1", ""));
    writer.apply(object("", "web", "2", ""));
    assert_eq!(store.len(), 2);
    assert_eq!(store.get("web", "a").unwrap().resource_version(), "1");
    let cluster_scoped = store.get_key(&ObjectKey::new("", "web")).unwrap();
    assert_eq!(cluster_scoped.resource_version(), "2");
    assert!(store.get("", "a").is_none());
    let weight = store.bytes();
    let removed = writer.remove(&object("web", "a", "3", "")).unwrap();
    assert_eq!(removed.resource_version(), "1");
    assert_eq!(store.bytes(), weight - removed.bytes().len());
    assert!(store.get("web", "a").is_none());
    assert!(writer.remove(&object("web", "a", "3", "")).is_none());
}

#[test]
fn guarantee_1_the_store_never_moves_backwards() {
    let (mut writer, store) = bytes();
    let first = writer.apply(object("n", "a", "9", ""));
    assert!(matches!(first, Some(Change::Added(_))));
    assert!(writer.apply(object("n", "a", "9", "")).is_none());
    assert!(writer.apply(object("n", "a", "8", "")).is_none());
    assert!(writer.remove(&object("n", "a", "8", "")).is_none());
    let change = writer.apply(object("n", "a", "10", "")).unwrap();
    assert_eq!(change.before().unwrap().resource_version(), "9");
    assert_eq!(change.after().unwrap().resource_version(), "10");
    assert_eq!(store.get("n", "a").unwrap().resource_version(), "10");
}

#[test]
fn guarantee_1_incomparable_revisions_replace_each_other_unless_equal() {
    let (mut writer, store) = bytes();
    writer.apply(object("n", "a", "blue", ""));
    assert!(writer.apply(object("n", "a", "blue", "")).is_none());
    assert!(writer.apply(object("n", "a", "green", "")).is_some());
    assert_eq!(store.get("n", "a").unwrap().resource_version(), "green");
    // Without any revision the content decides.
    writer.apply(object("n", "b", "", ""));
    assert!(writer.apply(object("n", "b", "", "")).is_none());
    assert!(writer.apply(object("n", "b", "", r#","labels":{}"#)).is_some());
}

#[test]
fn the_revision_of_the_store_only_increases() {
    let (mut writer, store) = bytes();
    assert!(!store.revision().is_known());
    for (told, is) in [("10", "10"), ("9", "10"), ("11", "11"), ("", "11"), ("0", "11")] {
        writer.set_revision(&Revision::new(told));
        assert_eq!(store.revision().as_str(), is);
    }
}

// D7
#[test]
fn guarantee_1_another_uid_replaces_the_object_at_any_revision() {
    let (mut writer, store) = bytes();
    writer.apply(object("n", "a", "900", ""));
    let json = br#"{"metadata":{"name":"a","namespace":"n","uid":"another","resourceVersion":"7"}}"#;
    let change = writer.apply(Object::from_slice(json).unwrap()).unwrap();
    assert_eq!(change.before().unwrap().resource_version(), "900");
    assert_eq!(store.get("n", "a").unwrap().uid(), "another");
}

/// Of the same revision each time.
fn sized(size: u32, status: &str) -> Object {
    let json = format!(
        r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"}},"spec":{{"size":{size}}},"status":"{status}"}}"#
    );
    Object::from_slice(json.as_bytes()).expect("an object")
}

#[derive(Debug, Deserialize, PartialEq)]
struct Sized {
    spec: Size,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Size {
    size: u32,
}

// D2
#[test]
fn guarantee_1_other_content_of_the_same_revision_replaces_the_object() {
    let transform = || Transform::drop_fields(["status"]);
    let stores = [
        StoreOptions::new(),
        StoreOptions::new().transform(transform()),
        StoreOptions::new().representation(Representation::decoded::<Sized>()),
        StoreOptions::new().representation(Representation::projection_only::<Sized>()),
        StoreOptions::new()
            .representation(Representation::projection_only::<Sized>())
            .transform(transform()),
    ];
    for options in stores {
        let named = format!("{options:?}");
        let (mut writer, store) = store(options);
        let size = || store.get_as::<Sized>("n", "a").unwrap().unwrap().spec.size;
        writer.apply(sized(1, "fine"));
        for (now, is_change) in [(1, false), (2, true), (2, false), (1, true)] {
            writer.begin_replace();
            let change = writer.apply(sized(now, "fine"));
            assert_eq!(change.is_some(), is_change, "{named}");
            assert!(writer.end_replace().is_empty(), "{named}");
            assert_eq!(size(), now, "{named}");
        }
    }
}

// D2
#[test]
fn guarantee_1_dropped_content_is_not_a_change() {
    let options = StoreOptions::new().transform(Transform::drop_fields(["status"]));
    let (mut writer, store) = store(options);
    writer.apply(sized(1, "fine"));
    let weight = store.bytes();
    for status in ["bad", "fine", "fine"] {
        assert!(writer.apply(sized(1, status)).is_none());
        assert_eq!(store.bytes(), weight);
    }
}

// R150
#[test]
fn guarantee_2_a_relist_returns_the_objects_it_did_not_contain() {
    let (mut writer, store) = bytes();
    for (name, revision) in [("a", "1"), ("b", "2"), ("c", "3")] {
        writer.apply(object("n", name, revision, ""));
    }
    writer.begin_replace();
    let same = writer.apply(object("n", "a", "1", ""));
    assert!(same.is_none(), "the same object changes nothing");
    assert!(writer.apply(object("n", "b", "5", "")).is_some());
    assert_eq!(store.len(), 3, "readers see no half of a relist");
    assert_eq!(names(&writer.end_replace()), ["c"]);
    assert_eq!(names(&store.list(&Query::new())), ["a", "b"]);
    assert!(writer.end_replace().is_empty(), "none was begun");
}

#[test]
fn guarantee_2_an_abandoned_relist_loses_nothing() {
    let (mut writer, store) = bytes();
    writer.apply(object("n", "a", "1", ""));
    writer.begin_replace();
    writer.abandon_replace();
    assert!(writer.end_replace().is_empty());
    writer.begin_replace();
    writer.apply(object("n", "b", "2", ""));
    writer.begin_replace();
    writer.apply(object("n", "a", "1", ""));
    let gone = writer.end_replace();
    assert_eq!(
        names(&gone),
        ["b"],
        "what only the first saw is not in the second"
    );
    assert_eq!(store.len(), 1);
}

// R127
#[test]
fn guarantee_3_indexes_change_with_the_store() {
    let (mut writer, store) = bytes();
    let tier = by_tier();
    store.add_index(&tier).unwrap();
    let queries = [
        Query::new().index(&tier, "front"),
        Query::new().label("tier", "front").namespace("web"),
    ];
    writer.apply(labelled("a", "1", "front"));
    for query in &queries {
        assert_eq!(names(&store.list(query)), ["a"]);
    }
    writer.apply(labelled("a", "2", "back"));
    writer.apply(labelled("b", "3", "front"));
    for query in &queries {
        assert_eq!(names(&store.list(query)), ["b"]);
    }
    writer.begin_replace();
    writer.end_replace();
    for query in &queries {
        assert!(store.list(query).is_empty());
    }
}

#[test]
fn guarantee_6_lists_have_one_order_with_any_query() {
    let (mut writer, store) = bytes();
    for (name, tier) in [("c", "x"), ("a", "y"), ("b", "x"), ("d", "x")] {
        writer.apply(labelled(name, "1", tier));
    }
    let in_set = Expression::In("tier".into(), ["x".into(), "z".into()].into());
    assert_eq!(names(&store.list(&Query::new().labels(in_set))), ["c", "b", "d"]);
    let looked_up = Query::new().label("tier", "x");
    assert_eq!(names(&store.list(&looked_up)), ["c", "b", "d"]);
    assert_eq!(names(&store.list(&looked_up.limit(2))), ["c", "b"]);
    let keys = store.keys(&Query::new().label("tier", "y"));
    assert_eq!(keys, [ObjectKey::new("web", "a")]);
}

#[derive(Debug, Deserialize, PartialEq)]
struct Data {
    data: BTreeMap<String, String>,
}

// R129
#[test]
fn every_representation_gives_the_same_values() {
    for representation in [
        Representation::bytes(),
        Representation::decoded::<ConfigMap>(),
        Representation::budget(1 << 20),
        Representation::projection::<Data>(),
    ] {
        let shown = format!("{representation:?}");
        let (mut writer, store) = kept_as(representation);
        writer.apply(config("a", "1", r#"{"x":"y"}"#));
        let typed = store.get_as::<ConfigMap>("n", "a").unwrap().unwrap();
        assert_eq!(typed.data.as_ref().unwrap()["x"], "y", "{shown}");
        let again = store.get_as::<ConfigMap>("n", "a").unwrap().unwrap();
        assert!(Arc::ptr_eq(&typed, &again), "{shown}");
        assert_eq!(store.get_as::<Data>("n", "a").unwrap().unwrap().data["x"], "y");
        assert!(store.get_as::<Data>("n", "b").unwrap().is_none());
        assert_eq!(store.list_as::<ConfigMap>(&Query::new()).count(), 1);
    }
}

#[test]
fn decodes_once_per_change_and_counts_the_memory() {
    let (mut writer, store) = kept_as(Representation::decoded::<ConfigMap>());
    writer.apply(config("a", "1", "{}"));
    let place = || Arc::as_ptr(&store.get_as::<ConfigMap>("n", "a").unwrap().unwrap());
    assert_eq!(place(), place(), "nobody held it in between");
    assert_eq!(store.decoded_bytes(), store.bytes());
    writer.clear();
    assert_eq!((store.decoded_bytes(), store.bytes(), store.len()), (0, 0, 0));
}

#[test]
fn a_projection_reports_missing_fields() {
    let (mut writer, store) = kept_as(Representation::projection_only::<Data>());
    writer.apply(config("a", "1", r#"{"x":"a long text"}"#));
    let object = store.get("n", "a").unwrap();
    let header = br#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"1"}}"#;
    assert_eq!(object.bytes(), header);
    assert_eq!(object.projection::<Data>().unwrap().data["x"], "a long text");
    assert!(store.get_as::<Data>("n", "a").unwrap().is_some());
    let error = store.get_as::<ConfigMap>("n", "a").unwrap_err();
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("keeps only a projection"), "{reason}");
}

// R150
#[test]
fn guarantee_5_an_undecodable_object_does_not_affect_others() {
    for representation in [
        Representation::bytes(),
        Representation::decoded::<ConfigMap>(),
        Representation::projection_only::<ConfigMap>(),
    ] {
        let (mut writer, store) = kept_as(representation);
        let index = Index::on("name", |config: &ConfigMap| config.metadata.name.clone());
        store.add_index(&index).unwrap();
        writer.apply(config("bad", "1", r#"{"x":7}"#));
        writer.apply(config("good", "2", r#"{"x":"7"}"#));
        assert!(store.decode_failures() > 0);
        assert_eq!(store.len(), 2);
        assert_eq!(store.list(&Query::new().index(&index, "good")).len(), 1);
        assert!(store.list(&Query::new().index(&index, "bad")).is_empty());
        let error = store.get_as::<ConfigMap>("n", "bad").unwrap_err();
        assert_eq!(error.key(), &ObjectKey::new("n", "bad"));
        assert_eq!(error.path(), Some("data.x"));
        let (good, bad): (Vec<_>, Vec<_>) =
            store.list_as::<ConfigMap>(&Query::new()).partition(Result::is_ok);
        assert_eq!((good.len(), bad.len()), (1, 1));
        // Smaller queries still find it.
        assert!(store.get_as::<serde_json::Value>("n", "bad").unwrap().is_some());
    }
}

// R144
#[test]
fn a_transform_drops_fields_and_objects() {
    let is_in = |object: &Object| object.label("tier").as_deref() != Some("out");
    let transform = Transform::drop_fields(["data"]).only(is_in);
    let (mut writer, store) = store(StoreOptions::new().transform(transform));
    writer.apply(config("a", "1", r#"{"x":"y"}"#));
    let found = store.get_as::<ConfigMap>("n", "a").unwrap().unwrap();
    assert!(found.data.is_none());
    assert!(writer.apply(labelled("b", "2", "out")).is_none());
    assert!(writer.apply(labelled("b", "3", "in")).is_some());
    let change = writer.apply(labelled("b", "4", "out")).unwrap();
    assert!(matches!(change, Change::Removed(old) if old.resource_version() == "3"));
    assert_eq!(store.len(), 1);
}

#[test]
fn guarantee_2_concurrent_readers_see_complete_states() {
    let (mut writer, store) = bytes();
    let tier = by_tier();
    store.add_index(&tier).unwrap();
    for number in 0..200 {
        writer.apply(labelled(&number.to_string(), "1", "a"));
    }
    std::thread::scope(|scope| {
        let reader = store.clone();
        let query = Query::new().index(&tier, "a");
        let reading = scope.spawn(move || {
            for _ in 0..200 {
                assert_eq!(reader.list(&query).len(), 200);
                assert_eq!(reader.list(&Query::new().label("tier", "a")).len(), 200);
            }
        });
        for round in 2..12 {
            writer.begin_replace();
            for number in 0..200 {
                writer.apply(labelled(&number.to_string(), &round.to_string(), "a"));
            }
            assert!(writer.end_replace().is_empty());
        }
        reading.join().unwrap();
    });
}

#[test]
fn handles_are_send_and_sync() {
    fn goes<T: Send + Sync + 'static>() {}
    goes::<Store>();
    goes::<StoreWriter>();
    goes::<Object>();
    goes::<Query>();
    goes::<Index<String>>();
    goes::<steersman_cache::Overlay>();
}

/// Decodes everything but what says `boom`.
#[derive(Debug)]
struct Fuse;

impl<'de> Deserialize<'de> for Fuse {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        assert_ne!(
            value["data"]["value"], "boom",
            "a type of the test panics on purpose"
        );
        Ok(Self)
    }
}

// R165
#[test]
fn guarantee_5_a_panic_while_decoding_is_a_decode_error() {
    let (mut writer, store) = kept_as(Representation::projection::<Fuse>());
    assert!(writer.apply(config("bad", "1", r#"{"value":"boom"}"#)).is_some());
    assert!(writer.apply(config("good", "2", r#"{"value":"fine"}"#)).is_some());
    assert_eq!(store.decode_failures(), 1);
    assert!(store.get_as::<Fuse>("n", "good").is_ok());
    let error = store.get_as::<Fuse>("n", "bad").unwrap_err();
    assert_eq!(error.key(), &ObjectKey::new("n", "bad"));
    assert_eq!(error.path(), None);
    assert!(store.get_as::<ConfigMap>("n", "bad").is_ok());
}

// R167
#[test]
fn guarantee_5_a_panicking_index_function_has_no_values() {
    let (mut writer, store) = bytes();
    let fragile = Index::on_header("fragile", |object| {
        assert_ne!(object.name(), "bad", "a function of the test panics on purpose");
        Some(object.name().to_owned())
    });
    // Before and after the index is there.
    writer.apply(object("web", "bad", "1", ""));
    store.add_index(&fragile).unwrap();
    for (name, revision) in [("bad", "2"), ("good", "3")] {
        assert!(writer.apply(object("web", name, revision, "")).is_some());
    }
    let found = |name: &str| store.list(&Query::new().index(&fragile, name)).len();
    assert_eq!((found("bad"), found("good")), (0, 1));
    assert_eq!(store.get("web", "bad").unwrap().resource_version(), "2");
    assert_eq!(store.decode_failures(), 2);
}

// R167
#[test]
fn guarantee_5_keeps_an_object_whose_transform_panics() {
    let fragile = Transform::new().only(|object| {
        assert_ne!(object.name(), "bad", "a function of the test panics on purpose");
        object.name() != "other"
    });
    let (mut writer, store) = store(StoreOptions::new().transform(fragile));
    for name in ["bad", "good", "other"] {
        writer.apply(object("web", name, "1", ""));
    }
    assert_eq!(names(&store.list(&Query::new())), ["bad", "good"]);
    assert_eq!(store.decode_failures(), 1);
}
