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
fn guarantee_1_a_write_is_seen_by_get_list_and_lookups_alike() {
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
fn guarantee_1_an_older_answer_that_comes_late_covers_nothing() {
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
fn guarantee_3_a_write_goes_when_the_store_has_reached_it() {
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
fn a_write_stays_however_long_the_watch_is_away() {
    let it = setting();
    it.overlay.wrote(object("a", "1", "7", ""));
    it.clock.advance(Duration::from_secs(3600));
    assert_eq!(it.revision_of("a"), "7");
}

#[test]
fn guarantee_2_what_was_deleted_is_not_seen() {
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
fn guarantee_2_what_came_and_went_before_the_watch_saw_it_does_not_come_up() {
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
fn guarantee_4_a_tombstone_goes_with_its_uid_or_for_another_or_by_revision() {
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
fn guarantee_2_what_left_a_selector_comes_back_with_a_newer_write() {
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
    // And the answer that it had left it comes late.
    it.overlay.deleted(&key("a"), "1", Some(&Revision::new("7")));
    assert_eq!(it.revision_of("a"), "8");
}

#[test]
fn guarantee_4_what_left_a_selector_comes_back_with_the_watch() {
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
fn guarantee_4_a_list_from_before_the_deletion_does_not_end_a_tombstone() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    it.overlay.deleted(&key("a"), "1", None);
    it.overlay.deleted(&key("b"), "2", None);
    it.writer.begin_replace();
    it.writer.apply(object("a", "1", "6", ""));
    it.writer.end_replace();
    it.writer.advance_to("6");
    assert_eq!(it.revision_of("a"), "");
    // What was created and deleted while that list was on its way.
    it.writer.apply(object("b", "2", "7", ""));
    assert_eq!(it.revision_of("b"), "");
    it.writer.remove(&object("b", "2", "8", ""));
    it.writer.remove(&object("a", "1", "9", ""));
    assert!(it.overlay.is_empty());
}

#[test]
fn guarantee_5_what_was_not_deleted_after_all_is_shown_again() {
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
fn guarantee_4_what_was_not_deleted_after_all_is_shown_again_with_newer_events_alone() {
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
fn a_tombstone_hides_what_went_before_it() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    // Somebody else created it again; we learnt that from the answer to a write, and deleted it.
    it.overlay.wrote(object("a", "2", "9", ""));
    it.overlay.deleted(&key("a"), "2", None);
    assert_eq!(it.revision_of("a"), "");
    it.writer.apply(object("a", "1", "6", ""));
    assert_eq!(it.revision_of("a"), "");
    it.writer.apply(object("a", "3", "12", ""));
    assert_eq!(it.revision_of("a"), "12");
}

#[test]
fn what_is_created_in_place_of_a_deleted_one_is_seen() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "5", ""));
    it.overlay.deleted(&key("a"), "1", None);
    it.overlay.wrote(object("a", "2", "7", ""));
    assert_eq!(it.revision_of("a"), "7");
    it.overlay.deleted(&key("a"), "1", None);
    assert_eq!(it.revision_of("a"), "7", "a late answer about the old one");
}

#[test]
fn guarantee_5_without_an_order_nothing_stays_for_good() {
    let mut it = setting();
    it.writer.apply(object("a", "1", "red", ""));
    it.overlay.wrote(object("a", "1", "blue", ""));
    assert_eq!(it.revision_of("a"), "blue");
    // It came, and something newer came before anybody looked.
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
fn the_store_itself_does_not_show_what_was_only_written() {
    let (_writer, raw) = store(StoreOptions::new());
    let overlay = Overlay::new(&raw, Arc::new(TestClock::new()));
    overlay.wrote(object("a", "1", "1", ""));
    assert!(raw.get("n", "a").is_none());
    assert!(overlay.store().get("n", "a").is_some());
}
