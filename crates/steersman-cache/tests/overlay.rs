// SPDX-License-Identifier: Apache-2.0
//! Readers see what was written before the watch brings it.

use std::{sync::Arc, time::Duration};

use steersman_cache::{Index, Object, Overlay, Query, Revision, Store, StoreOptions, StoreWriter, store};
use steersman_core::{ObjectKey, TestClock};

struct Setting {
    writer: StoreWriter,
    overlay: Overlay,
    store: Store,
    clock: TestClock,
}

fn setting() -> Setting {
    let clock = TestClock::new();
    let (writer, store) = store(StoreOptions::new());
    let overlay = Overlay::new(&store, Arc::new(clock.clone()));
    Setting {
        writer,
        store: overlay.store(),
        overlay,
        clock,
    }
}

fn object(name: &str, uid: &str, revision: &str, tier: &str) -> Object {
    let json = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"{uid}","resourceVersion":"{revision}","labels":{{"tier":"{tier}"}}}}}}"#
    );
    Object::from_slice(json.as_bytes()).expect("an object")
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("n", name)
}

impl Setting {
    fn revision_of(&self, name: &str) -> String {
        let object = self.store.get("n", name);
        object.map_or_else(String::new, |object| object.resource_version().to_owned())
    }

    fn revisions(&self, query: &Query) -> Vec<String> {
        let objects = self.store.list(query).into_iter();
        objects
            .map(|object| object.resource_version().to_owned())
            .collect()
    }
}

#[test]
fn guarantee_1_get_list_and_lookups_show_a_write() {
    let mut it = setting();
    let tier = Index::on_header("tier", |object| {
        object.label("tier").map(|tier| tier.into_owned())
    });
    it.store.add_index(&tier).unwrap();
    it.writer.apply(object("a", "1", "5", "back"));
    it.writer.apply(object("b", "2", "6", "back"));
    it.overlay.wrote(object("a", "1", "7", "front"));
    it.overlay.wrote(object("c", "3", "8", "front"));
    assert_eq!(it.revision_of("a"), "7");
    assert_eq!(it.revisions(&Query::new()), ["7", "6", "8"]);
    for query in [
        Query::new().label("tier", "front"),
        Query::new().index(&tier, "front"),
    ] {
        assert_eq!(it.revisions(&query), ["7", "8"]);
        assert_eq!(it.store.keys(&query), [key("a"), key("c")]);
        assert_eq!(it.revisions(&query.clone().limit(1)), ["7"]);
        assert!(it.revisions(&query.namespace("other")).is_empty());
    }
    assert_eq!(it.revisions(&Query::new().index(&tier, "back")), ["6"]);
    assert_eq!(it.revisions(&Query::new().limit(2)), ["7", "6"]);
}

#[test]
fn guarantee_1_ignores_an_older_response() {
    let mut it = setting();
    it.overlay.wrote(object("a", "1", "7", ""));
    it.overlay.wrote(object("a", "1", "6", ""));
    assert_eq!(it.revision_of("a"), "7");
    it.writer.apply(object("a", "1", "9", ""));
    assert_eq!(it.revision_of("a"), "9");
    it.overlay.wrote(object("a", "1", "8", ""));
    assert_eq!(it.revision_of("a"), "9");
    assert!(it.overlay.is_empty());
}

#[test]
fn guarantee_3_drops_a_write_that_the_store_has_reached() {
    let mut it = setting();
    // By its own event.
    it.overlay.wrote(object("a", "1", "7", ""));
    it.writer.apply(object("a", "1", "6", ""));
    it.writer.advance_to("6");
    assert_eq!(it.revision_of("a"), "7");
    it.writer.apply(object("a", "1", "7", ""));
    assert!(it.overlay.is_empty());
    // By a bookmark, though the selector leaves it out.
    it.overlay.wrote(object("b", "2", "8", ""));
    assert_eq!(it.revision_of("b"), "8");
    it.writer.advance_to("9");
    assert_eq!(it.revision_of("b"), "");
    assert!(it.overlay.is_empty());
}

#[test]
fn keeps_a_write_while_the_watch_is_interrupted() {
    let it = setting();
    it.overlay.wrote(object("a", "1", "7", ""));
    it.clock.advance(Duration::from_secs(3600));
    assert_eq!(it.revision_of("a"), "7");
}

#[test]
fn guarantee_2_hides_a_deleted_object() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", "x"));
    it.overlay.deleted(&key("a"), "1", None);
    assert_eq!(it.revision_of("a"), "");
    assert!(it.revisions(&Query::new()).is_empty());
    assert!(it.revisions(&Query::new().label("tier", "x")).is_empty());
    // An event from before the deletion, and a watch that is late.
    it.writer.apply(object("a", "1", "6", "x"));
    it.clock.advance(Duration::from_secs(3600));
    assert_eq!(it.revision_of("a"), "");
}

#[test]
fn guarantee_2_hides_an_object_created_and_deleted_before_the_watch() {
    let mut it = setting();
    it.overlay.wrote(object("a", "1", "5", ""));
    it.overlay.deleted(&key("a"), "1", None);
    assert_eq!(it.revision_of("a"), "");
    it.overlay.wrote(object("a", "1", "5", ""));
    assert_eq!(
        it.revision_of("a"),
        "",
        "the answer to an earlier write came late"
    );
    it.writer.apply(object("a", "1", "5", ""));
    assert_eq!(it.revision_of("a"), "");
    it.writer.remove(&object("a", "1", "6", ""));
    assert!(it.overlay.is_empty());
}

#[test]
fn guarantee_4_drops_a_tombstone_by_deletion_replacement_or_revision() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    it.overlay.deleted(&key("a"), "1", None);
    it.writer.apply(object("a", "2", "7", ""));
    assert_eq!(it.revision_of("a"), "7");
    assert!(it.overlay.is_empty());

    it.overlay.deleted(&key("a"), "2", Some(&Revision::new("9")));
    it.writer.advance_to("8");
    assert_eq!(it.revision_of("a"), "");
    it.writer.remove(&object("a", "2", "9", ""));
    assert!(it.overlay.is_empty());

    it.overlay.deleted(&key("b"), "3", Some(&Revision::new("12")));
    assert_eq!(it.overlay.len(), 1);
    it.writer.advance_to("12");
    assert!(it.overlay.is_empty());
}

#[test]
fn guarantee_2_a_newer_write_shows_an_object_that_left_a_selector() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", "front"));
    it.overlay.deleted(&key("a"), "1", Some(&Revision::new("7")));
    assert_eq!(it.revision_of("a"), "");
    it.overlay.wrote(object("a", "1", "6", "front"));
    assert_eq!(
        it.revision_of("a"),
        "",
        "the answer to an earlier write came late"
    );
    it.overlay.wrote(object("a", "1", "8", "front"));
    assert_eq!(it.revision_of("a"), "8");
    // And the late answer that it had left it.
    it.overlay.deleted(&key("a"), "1", Some(&Revision::new("7")));
    assert_eq!(it.revision_of("a"), "8");
}

#[test]
fn guarantee_4_the_watch_shows_an_object_that_left_a_selector() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", "front"));
    it.overlay.deleted(&key("a"), "1", Some(&Revision::new("7")));
    // The store as a whole has not got that far, because another part of it is slow.
    it.writer.apply(object("a", "1", "9", "front"));
    assert_eq!(it.revision_of("a"), "9");
    it.overlay.deleted(&key("a"), "1", Some(&Revision::new("8")));
    assert_eq!(it.revision_of("a"), "9", "the answer came late");
    assert!(it.overlay.is_empty());
}

#[test]
fn guarantee_4_an_older_list_does_not_drop_a_tombstone() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    it.overlay.deleted(&key("a"), "1", None);
    it.overlay.deleted(&key("b"), "2", None);
    it.writer.begin_replace();
    it.writer.apply(object("a", "1", "6", ""));
    it.writer.end_replace();
    it.writer.advance_to("6");
    assert_eq!(it.revision_of("a"), "");
    // Created and deleted while the list was in progress.
    it.writer.apply(object("b", "2", "7", ""));
    assert_eq!(it.revision_of("b"), "");
    it.writer.remove(&object("b", "2", "8", ""));
    it.writer.remove(&object("a", "1", "9", ""));
    assert!(it.overlay.is_empty());
}

#[test]
fn guarantee_5_shows_an_object_again_that_was_not_deleted() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    it.overlay.deleted(&key("a"), "1", None);
    it.clock.advance(it.overlay.limit());
    assert_eq!(it.revision_of("a"), "", "the watch may be late");
    it.writer.begin_replace();
    it.writer.apply(object("a", "1", "5", ""));
    it.writer.end_replace();
    assert_eq!(it.revision_of("a"), "5");
    assert!(it.overlay.is_empty());
}

// D8
#[test]
fn guarantee_4_newer_events_show_an_object_that_was_not_deleted() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    it.overlay.deleted(&key("a"), "1", None);
    it.writer.apply(object("a", "1", "6", ""));
    assert_eq!(it.revision_of("a"), "", "it may be from before the deletion");
    it.clock.advance(Overlay::LIMIT);
    it.writer.apply(object("a", "1", "6", ""));
    it.writer.apply(object("a", "1", "7", ""));
    assert_eq!(it.revision_of("a"), "7");
    assert!(it.overlay.is_empty());
}

#[test]
fn a_tombstone_hides_older_objects() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    // Another client recreated it; the response to a write showed that, and this client deleted it.
    it.overlay.wrote(object("a", "2", "9", ""));
    it.overlay.deleted(&key("a"), "2", None);
    assert_eq!(it.revision_of("a"), "");
    it.writer.apply(object("a", "1", "6", ""));
    assert_eq!(it.revision_of("a"), "");
    it.writer.apply(object("a", "3", "12", ""));
    assert_eq!(it.revision_of("a"), "12");
}

#[test]
fn shows_an_object_that_replaces_a_deleted_one() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    it.overlay.deleted(&key("a"), "1", None);
    it.overlay.wrote(object("a", "2", "7", ""));
    assert_eq!(it.revision_of("a"), "7");
    it.overlay.deleted(&key("a"), "1", None);
    assert_eq!(it.revision_of("a"), "7", "a late answer about the old one");
}

#[test]
fn guarantee_5_drops_writes_without_comparable_revisions() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "red", ""));
    it.overlay.wrote(object("a", "1", "blue", ""));
    assert_eq!(it.revision_of("a"), "blue");
    // The event arrived, and a newer one arrived before the check.
    it.writer.apply(object("a", "1", "blue", ""));
    it.writer.apply(object("a", "1", "green", ""));
    assert_eq!(it.revision_of("a"), "green");

    it.overlay.wrote(object("a", "1", "white", ""));
    assert_eq!(it.revision_of("a"), "white");
    it.clock.advance(it.overlay.limit());
    assert_eq!(it.revision_of("a"), "green");

    it.overlay.wrote(object("a", "1", "black", ""));
    it.writer.begin_replace();
    it.writer.apply(object("a", "1", "gold", ""));
    assert_eq!(it.revision_of("a"), "black");
    it.writer.end_replace();
    assert_eq!(it.revision_of("a"), "gold");

    it.overlay.deleted(&key("nowhere"), "9", None);
    it.clock.advance(it.overlay.limit());
    assert!(it.overlay.is_empty());
}

#[test]
fn the_store_does_not_show_the_overlay() {
    let (_writer, raw) = store(StoreOptions::new());
    let overlay = Overlay::new(&raw, Arc::new(TestClock::new()));
    overlay.wrote(object("a", "1", "1", ""));
    assert!(raw.get("n", "a").is_none());
    assert!(overlay.store().get("n", "a").is_some());
}
