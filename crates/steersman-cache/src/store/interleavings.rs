// SPDX-License-Identifier: Apache-2.0
//! All interleavings of a writer, its readers and overlays. [`crate::sync`] explains how to run them.

use std::sync::Arc;

use loom::thread;
use steersman_core::TestClock;

use super::{Query, Store, StoreOptions, StoreWriter, store};
use crate::{Index, Object, Overlay, sync::explore};

/// Creates an object with a revision and a label.
fn object(name: &str, revision: u32, tier: &str) -> Object {
    of_uid(name, "1", revision, tier)
}

fn of_uid(name: &str, uid: &str, revision: u32, tier: &str) -> Object {
    let json = format!(
        r#"{{"metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"{revision}","labels":{{"tier":"{tier}"}}}}}}"#
    );
    Object::from_slice(json.as_bytes()).unwrap()
}

fn revision(object: &Object) -> u32 {
    object.resource_version().parse().unwrap()
}

fn store_of(objects: impl IntoIterator<Item = Object>) -> (StoreWriter, Store) {
    let (mut writer, store) = store(StoreOptions::new());
    for object in objects {
        let at = object.resource_version().to_owned();
        writer.apply(object);
        writer.advance_to(&at);
    }
    (writer, store)
}

fn by_tier() -> Index<String> {
    Index::on_header("tier", |object| {
        object.label("tier").map(|tier| tier.into_owned())
    })
}

#[test]
fn guarantee_3_a_change_is_visible_in_store_and_indexes_together() {
    explore(|| {
        let (mut writer, store) = store_of([object("a", 1, "front")]);
        let index = by_tier();
        store.add_index(&index).unwrap();
        let reader = {
            let (store, index) = (store.clone(), index.clone());
            thread::spawn(move || {
                // The label query adds a label index, which is built while the writer writes.
                let query = |label: &str, value: &str| Query::new().label("tier", label).index(&index, value);
                assert!(store.list(&query("front", "back")).is_empty(), "torn");
                for (tier, expected) in [("front", 1), ("back", 2)] {
                    let found = store.list(&query(tier, tier));
                    assert!(found.iter().all(|object| revision(object) == expected), "{tier}");
                }
            })
        };
        writer.apply(object("a", 2, "back"));
        reader.join().unwrap();
        assert_eq!(store.list(&Query::new().index(&index, "back")).len(), 1);
        assert_eq!(store.list(&Query::new().label("tier", "back")).len(), 1);
    });
}

#[test]
fn guarantee_3_lookups_are_repeatable() {
    explore(|| {
        let (mut writer, store) = store_of([]);
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let by_key = store.get("", "a").is_some();
                let by_label = !store.list(&Query::new().label("tier", "front")).is_empty();
                assert!(by_label || !by_key, "it is in the store and not in the index");
            })
        };
        writer.apply(object("a", 1, "front"));
        reader.join().unwrap();
    });
}

#[test]
fn an_index_added_during_changes_is_complete() {
    explore(|| {
        let (mut writer, store) = store_of([object("a", 1, "front"), object("b", 2, "front")]);
        let index = by_tier();
        let adding = {
            let (store, index) = (store.clone(), index.clone());
            thread::spawn(move || store.add_index(&index).unwrap())
        };
        writer.apply(object("a", 3, "back"));
        writer.remove(&object("b", 4, "front"));
        writer.apply(object("c", 5, "front"));
        adding.join().unwrap();
        let named = |tier: &str| -> Vec<String> {
            let found = store.list(&Query::new().index(&index, tier));
            found.iter().map(|object| object.name().to_owned()).collect()
        };
        assert_eq!(
            (named("front"), named("back")),
            (vec!["c".to_owned()], vec!["a".to_owned()])
        );
    });
}

#[test]
fn guarantee_2_a_relist_is_never_half_empty() {
    explore(|| {
        let (mut writer, store) = store_of([object("a", 1, "x"), object("b", 2, "x")]);
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let found = store.list(&Query::new());
                let named: Vec<&str> = found.iter().map(|object| object.name()).collect();
                assert!(named.contains(&"a"), "{named:?}");
            })
        };
        writer.begin_replace();
        writer.apply(object("a", 3, "x"));
        let gone = writer.end_replace();
        assert_eq!(gone.len(), 1);
        reader.join().unwrap();
    });
}

fn over(store: &Store) -> Overlay {
    Overlay::new(store, Arc::new(TestClock::new()))
}

/// Returns the results of two reads in a row.
fn two_reads(store: &Store) -> [Option<u32>; 2] {
    let get = || store.get("", "a").map(|object| revision(&object));
    let list = || {
        store
            .list(&Query::new().label("tier", "x"))
            .first()
            .map(|object| revision(object))
    };
    [get(), list()]
}

#[test]
fn guarantee_1_the_store_takes_over_without_a_gap() {
    explore(|| {
        let (mut writer, store) = store_of([object("a", 7, "x")]);
        let overlay = over(&store);
        overlay.wrote(object("a", 8, "x"));
        let reader = {
            let store = overlay.store();
            thread::spawn(move || two_reads(&store))
        };
        writer.apply(object("a", 8, "x"));
        writer.advance_to("8");
        writer.apply(object("a", 9, "x"));
        writer.advance_to("9");
        let [first, second] = reader.join().unwrap();
        assert!(first >= Some(8) && second >= first, "{first:?} {second:?}");
        assert!(overlay.is_empty());
    });
}

#[test]
fn guarantee_1_a_late_write_does_not_hide_a_newer_state() {
    explore(|| {
        let (mut writer, store) = store_of([object("a", 7, "x")]);
        let overlay = over(&store);
        let reader = {
            let overlay = overlay.clone();
            thread::spawn(move || {
                overlay.wrote(object("a", 8, "x"));
                two_reads(&overlay.store())
            })
        };
        writer.apply(object("a", 8, "x"));
        writer.apply(object("a", 9, "x"));
        writer.advance_to("9");
        let [first, second] = reader.join().unwrap();
        assert!(first >= Some(8) && second >= first, "{first:?} {second:?}");
        assert_eq!(two_reads(&overlay.store()), [Some(9), Some(9)]);
    });
}

#[test]
fn guarantee_2_a_tombstone_hides_its_uid_until_the_deletion_arrives() {
    explore(|| {
        let (mut writer, store) = store_of([object("a", 7, "x")]);
        let overlay = over(&store);
        let reader = {
            let overlay = overlay.clone();
            thread::spawn(move || {
                overlay.deleted(&object("a", 7, "x").key(), "1", None);
                let found = overlay.store().get("", "a");
                assert!(found.is_none_or(|object| object.uid() == "2"));
            })
        };
        writer.remove(&object("a", 8, "x"));
        writer.advance_to("8");
        writer.apply(of_uid("a", "2", 9, "x"));
        writer.advance_to("9");
        reader.join().unwrap();
        let found = overlay.store().get("", "a").map(|object| object.uid().to_owned());
        assert_eq!(found.as_deref(), Some("2"));
    });
}
