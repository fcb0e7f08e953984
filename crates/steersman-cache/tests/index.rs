// SPDX-License-Identifier: Apache-2.0
//! Indexes of a store: added before or while it runs, complete or refused.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cache::{Index, Object, Query, StoreOptions, StoreWriter, store};

fn config(name: &str, revision: usize, keys: &[&str]) -> Object {
    let data: Vec<String> = keys.iter().map(|key| format!(r#""{key}":"""#)).collect();
    let json = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{revision}"}},"data":{{{}}}}}"#,
        data.join(",")
    );
    Object::from_slice(json.as_bytes()).expect("an object")
}

/// By the keys of the data, and how often that was asked.
fn by_key() -> (Index<String>, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let index = Index::on("keys", move |config: &ConfigMap| {
        counted.fetch_add(1, Ordering::Relaxed);
        let data = config.data.iter().flatten();
        data.map(|(key, _)| key.clone()).collect::<Vec<_>>()
    });
    (index, runs)
}

fn fill(writer: &mut StoreWriter, count: usize) {
    for number in 0..count {
        let keys: &[&str] = if number % 2 == 0 {
            &["even", "any"]
        } else {
            &["any"]
        };
        writer.apply(config(&number.to_string(), number + 1, keys));
    }
}

#[test]
fn guarantee_1_values_are_computed_once_per_change() {
    let (mut writer, store) = store(StoreOptions::new());
    let (index, runs) = by_key();
    store.add_index(&index).unwrap();
    writer.apply(config("a", 1, &["x", "y"]));
    writer.apply(config("a", 1, &["x", "y"]));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let both = Query::new().index(&index, "x").index(&index, "y");
    assert_eq!(store.list(&both).len(), 1);
    assert!(store.list(&both.index(&index, "z")).is_empty());
    assert_eq!(runs.load(Ordering::Relaxed), 1, "lookups run it for no object");
}

// R128
#[test]
fn guarantee_2_an_index_added_to_a_running_store_is_complete() {
    let (mut writer, store) = store(StoreOptions::new());
    fill(&mut writer, 100);
    let (index, runs) = by_key();
    store.add_index(&index).unwrap();
    store.add_index(&index).unwrap();
    assert_eq!(store.list(&Query::new().index(&index, "even")).len(), 50);
    assert_eq!(runs.load(Ordering::Relaxed), 100);
}

// R128
#[test]
fn guarantee_2_an_index_added_amid_changes_misses_none() {
    for _ in 0..20 {
        let (mut writer, store) = store(StoreOptions::new());
        let (index, _) = by_key();
        fill(&mut writer, 50);
        std::thread::scope(|scope| {
            let (reader, index) = (store.clone(), index.clone());
            scope.spawn(move || reader.add_index(&index).unwrap());
            for number in 0..100 {
                writer.apply(config(&number.to_string(), 1000 + number, &["late"]));
            }
            for number in (0..100).step_by(3) {
                writer.remove(&config(&number.to_string(), 2000, &[]));
            }
        });
        assert!(store.list(&Query::new().index(&index, "any")).is_empty());
        assert_eq!(store.list(&Query::new().index(&index, "late")).len(), store.len());
    }
}

// R128
#[test]
fn guarantee_3_another_index_of_the_same_name_is_refused_by_name() {
    let (_writer, store) = store(StoreOptions::new());
    let (first, _) = by_key();
    store.add_index(&first).unwrap();
    let error = store.add_index(&by_key().0).unwrap_err();
    assert_eq!(error.name, "keys");
    assert!(error.to_string().contains("another index `keys`"), "{error}");
    let of_another_type = Index::on_header("keys", |object| [object.name().len()]);
    assert!(store.add_index(&of_another_type).is_err());
    store.add_index(&first).unwrap();
}

#[test]
fn guarantee_4_a_lookup_gives_the_same_with_and_without_the_index() {
    let (mut writer, store) = store(StoreOptions::new());
    fill(&mut writer, 20);
    let (index, _) = by_key();
    let query = Query::new().index(&index, "even").namespace("n");
    let without = store.keys(&query);
    let limited = store.keys(&query.clone().limit(3));
    store.add_index(&index).unwrap();
    assert_eq!(store.keys(&query), without);
    assert_eq!(store.keys(&query.limit(3)), limited);
    assert_eq!((without.len(), limited.len()), (10, 3));
}

#[test]
fn guarantee_5_an_index_goes_with_the_last_who_holds_it() {
    let (mut writer, store) = store(StoreOptions::new());
    let (first, runs) = by_key();
    store.add_index(&first).unwrap();
    drop(first);
    writer.apply(config("a", 1, &[]));
    let before = runs.load(Ordering::Relaxed);
    writer.apply(config("a", 2, &["x"]));
    assert_eq!(runs.load(Ordering::Relaxed), before);
    let (second, _) = by_key();
    store.add_index(&second).unwrap();
    assert_eq!(store.list(&Query::new().index(&second, "x")).len(), 1);
}

#[test]
fn guarantee_6_an_object_for_which_the_function_fails_is_not_in_the_index() {
    let (mut writer, store) = store(StoreOptions::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let by_number = Index::try_on("number", move |config: &ConfigMap| {
        counted.fetch_add(1, Ordering::Relaxed);
        let keys = config.data.iter().flatten().map(|(key, _)| key.parse::<u32>());
        keys.collect::<Result<Vec<_>, _>>()
    });
    store.add_index(&by_number).unwrap();
    writer.apply(config("good", 1, &["1", "2"]));
    writer.apply(config("bad", 2, &["1", "two"]));
    let found = |number: u32| store.list(&Query::new().index(&by_number, number)).len();
    assert_eq!((found(1), found(2)), (1, 1));
    assert_eq!(runs.load(Ordering::Relaxed), 2, "once for each object");
    writer.apply(config("bad", 3, &["1", "2"]));
    assert_eq!((found(1), found(2)), (2, 2));
    writer.apply(config("good", 4, &["1", "two"]));
    assert_eq!(
        (found(1), found(2)),
        (1, 1),
        "a value that an object no longer has"
    );
}
