// SPDX-License-Identifier: Apache-2.0
//! The store that readers see when handlers are called, and the objects that remain when parts are added and removed.

use std::sync::{Mutex as StdMutex, PoisonError};

use steersman_core::{Clock, TestClock};

use super::*;
use crate::{
    Overlay, StoreOptions,
    informer::{EventHandler, Registration},
    store,
};

fn object(namespace: &str, name: &str, revision: u32) -> Object {
    let json = format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{name}","resourceVersion":"{revision}"}}}}"#
    );
    Object::from_slice(json.as_bytes()).unwrap()
}

/// An informer without its reflectors.
struct Scene {
    dispatch: Arc<Dispatch>,
    store: Store,
    overlay: Overlay,
    clock: TestClock,
}

fn scene() -> Scene {
    let kind = Resource::new("", "v1", "ConfigMap", "configmaps");
    let (writer, store) = store(StoreOptions::new());
    let clock = TestClock::new();
    let of_overlay: Arc<dyn Clock> = Arc::new(clock.clone());
    let overlay = Overlay::of_informer(&store, &of_overlay);
    let dispatch = Dispatch::new(kind, writer, store.clone(), Arc::new(clock.clone()));
    Scene {
        dispatch: Arc::new(dispatch),
        store,
        overlay,
        clock,
    }
}

impl Scene {
    fn parts<const N: usize>(&self, namespaces: [&str; N]) -> [NamespaceSink; N] {
        let wanted: BTreeSet<String> = namespaces.map(str::to_owned).into();
        let parts = self.dispatch.set_parts(&wanted, wanted.clone(), false);
        parts.try_into().expect("a place for each")
    }

    fn handle(&self, handler: impl EventHandler) -> Registration {
        let counters = self.dispatch.counters().of_handler("test");
        let registered = Arc::new(Registered::new("test", Box::new(handler), counters));
        self.dispatch.register(&registered);
        Registration::new(registered, None)
    }

    /// Returns true if a reader of written objects sees the object.
    fn sees(&self, namespace: &str, name: &str) -> bool {
        self.overlay.store().get(namespace, name).is_some()
    }

    fn names(&self) -> Vec<String> {
        let keys = self.store.keys(&Query::new());
        let mut names: Vec<String> = keys.iter().map(|key| key.name().to_owned()).collect();
        names.sort();
        names
    }
}

/// Delivers a whole list.
fn list(part: &mut NamespaceSink, objects: &[Object], revision: u32) {
    list_as(part, ReadConsistency::Watch, objects, revision);
}

fn list_as(part: &mut NamespaceSink, consistency: ReadConsistency, objects: &[Object], revision: u32) {
    part.begin(consistency);
    for object in objects {
        part.listed(Arc::new(Object::from_slice(object.bytes()).unwrap()));
    }
    part.end(&Revision::new(&revision.to_string()));
}

#[test]
fn a_deleted_object_is_not_readable_in_its_event() {
    for part in ["", "a"] {
        let scene = scene();
        let [mut part] = scene.parts([part]);
        list(&mut part, &[object("a", "x", 90)], 90);
        // The object is written while no watch is open, and another client deletes it.
        scene.overlay.wrote(object("a", "x", 100));
        let seen = Arc::new(StdMutex::new(Vec::new()));
        let (writes, view) = (Arc::clone(&seen), scene.overlay.store());
        let _handler = scene.handle(move |event: &Event| {
            let is_seen = view.get("a", "x").is_some();
            let mut seen = writes.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push((event.is_deletion(), is_seen));
        });
        list(&mut part, &[], 110);
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(*seen, [(false, true), (true, false)]);
    }
}

#[test]
fn a_late_response_restores_no_deleted_object() {
    let scene = scene();
    let [mut a, mut b] = scene.parts(["a", "b"]);
    list(&mut a, &[], 80);
    list(&mut b, &[], 80);
    b.progressed(&Revision::new("90"));
    // We write it, another client deletes it, and the watch reports both before we receive the response.
    a.changed(Arc::new(object("a", "x", 100)));
    a.deleted(Arc::new(object("a", "x", 101)));
    assert_eq!(scene.store.revision().as_str(), "90");
    scene.overlay.wrote(object("a", "x", 100));
    assert!(!scene.sees("a", "x") && scene.overlay.is_empty());
    // A write that the watch of the other namespace has not reported yet is shown.
    scene.overlay.wrote(object("b", "y", 100));
    assert!(scene.sees("b", "y"));
    a.progressed(&Revision::new("120"));
    assert!(scene.sees("b", "y"));
    b.progressed(&Revision::new("110"));
    assert!(!scene.sees("b", "y") && scene.overlay.is_empty());
}

#[test]
fn shows_a_write_until_its_new_namespace_is_listed() {
    let scene = scene();
    let [mut a] = scene.parts(["a"]);
    list(&mut a, &[], 150);
    let mut b = scene.dispatch.add_part("b", false);
    scene.overlay.wrote(object("b", "y", 120));
    assert!(scene.sees("b", "y"));
    list(&mut b, &[], 160);
    assert!(!scene.sees("b", "y"));
}

#[test]
fn a_list_of_all_namespaces_advances_each_namespace() {
    let scene = scene();
    let [mut all] = scene.parts([""]);
    list(&mut all, &[object("a", "x", 100), object("b", "y", 100)], 150);
    let [_a] = scene.parts(["a"]);
    assert_eq!(scene.names(), ["x"]);
    scene.overlay.wrote(object("a", "z", 120));
    assert!(scene.overlay.is_empty());
}

#[test]
fn shows_an_object_again_that_a_list_still_contains() {
    for part in ["", "a"] {
        let scene = scene();
        let [mut part] = scene.parts([part]);
        list(&mut part, &[object("a", "x", 100)], 100);
        scene.overlay.deleted(&ObjectKey::new("a", "x"), "x", None);
        scene.clock.advance(Overlay::LIMIT);
        assert!(!scene.sees("a", "x"));
        list(&mut part, &[object("a", "x", 100)], 110);
        assert!(scene.sees("a", "x"));
    }
}

#[test]
fn ignores_a_part_after_a_switch_to_all_namespaces() {
    let scene = scene();
    let [mut a] = scene.parts(["a"]);
    list(&mut a, &[object("a", "x", 80)], 90);
    let [mut all] = scene.parts([""]);
    assert_eq!(
        scene.names(),
        ["x"],
        "what was there stays until the list says otherwise"
    );
    all.begin(ReadConsistency::Watch);
    // Its deletion would never be reported.
    a.changed(Arc::new(object("a", "late", 100)));
    all.listed(Arc::new(object("a", "x", 80)));
    all.end(&Revision::new("110"));
    assert_eq!(scene.names(), ["x"]);
}

#[test]
fn replaces_parts_atomically() {
    let scene = scene();
    let [mut a, mut b] = scene.parts(["a", "b"]);
    list(&mut a, &[object("a", "x", 80)], 90);
    list(&mut b, &[object("b", "y", 80)], 90);
    let wanted: BTreeSet<String> = ["b", "c"].map(str::to_owned).into();
    let new = BTreeSet::from(["c".to_owned()]);
    let mut c = scene.dispatch.set_parts(&wanted, new, false).pop().unwrap();
    assert_eq!(scene.names(), ["y"]);
    let handler = scene.handle(|_: &Event| {});
    assert!(!handler.is_synced());
    a.changed(Arc::new(object("a", "x", 100)));
    b.changed(Arc::new(object("b", "z", 100)));
    assert_eq!(scene.names(), ["y", "z"]);
    list(&mut c, &[object("c", "w", 80)], 90);
    assert!(handler.is_synced());
}

// D8
#[test]
fn a_deletion_in_a_streamed_list_does_not_advance_the_revision() {
    for namespace in ["", "a"] {
        let scene = scene();
        let [mut part] = scene.parts([namespace]);
        list(&mut part, &[object("a", "x", 80), object("a", "y", 80)], 90);
        scene.overlay.wrote(object("a", "y", 95));
        scene.overlay.wrote(object("a", "x", 96));
        part.begin(ReadConsistency::Watch);
        part.listed(Arc::new(object("a", "x", 80)));
        part.unlisted(Arc::new(object("a", "x", 100)));
        assert!(
            !scene.sees("a", "x"),
            "what was written is older than the deletion"
        );
        assert_eq!(scene.store.revision().as_str(), "90");
        let shown = scene.overlay.store().get("a", "y").unwrap();
        assert_eq!(shown.resource_version(), "95", "the list has not shown it yet");
        part.listed(Arc::new(object("a", "y", 97)));
        part.end(&Revision::new("101"));
        assert_eq!(scene.names(), ["y"]);
        assert!(scene.overlay.is_empty());
    }
}

// D7
#[test]
fn a_quorum_list_replaces_the_store_at_any_revision() {
    for namespace in ["", "a"] {
        let scene = scene();
        let [mut part] = scene.parts([namespace]);
        list(
            &mut part,
            &[
                object("a", "x", 900),
                object("a", "y", 910),
                object("a", "z", 920),
            ],
            1000,
        );
        scene.overlay.wrote(object("a", "x", 1010));
        // A backup is restored.
        list_as(
            &mut part,
            ReadConsistency::Quorum,
            &[object("a", "x", 500), object("a", "y", 490)],
            600,
        );
        assert_eq!(scene.names(), ["x", "y"]);
        let shown = scene.overlay.store().get("a", "x").unwrap();
        assert_eq!(shown.resource_version(), "500");
        assert!(scene.overlay.is_empty());
        assert_eq!(scene.store.revision().as_str(), "600");
        // Changes continue from there.
        part.changed(Arc::new(object("a", "x", 601)));
        assert_eq!(scene.store.get("a", "x").unwrap().resource_version(), "601");
        scene.overlay.wrote(object("a", "y", 602));
        assert_eq!(scene.overlay.len(), 1);
        part.progressed(&Revision::new("602"));
        assert!(scene.overlay.is_empty());
    }
}

/// Collects later events as text.
fn events(scene: &Scene) -> (Registration, Arc<StdMutex<Vec<String>>>) {
    let events: Arc<StdMutex<Vec<String>>> = Arc::default();
    let handler = Arc::clone(&events);
    let registration = scene.handle(move |event: &Event| {
        let verb = if event.is_deletion() { "deleted" } else { "has" };
        let (name, version) = (event.object().name(), event.object().resource_version());
        let mut events = handler.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(format!("{verb} {name} {version}"));
    });
    (registration, events)
}

fn take(events: &StdMutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut events.lock().unwrap_or_else(PoisonError::into_inner))
}

// D29
#[test]
fn reports_an_object_deleted_between_two_lists() {
    for (namespace, consistency) in [
        ("", ReadConsistency::Watch),
        ("a", ReadConsistency::Watch),
        ("", ReadConsistency::Quorum),
    ] {
        let scene = scene();
        let [mut part] = scene.parts([namespace]);
        list(&mut part, &[object("a", "y", 80)], 90);
        let (_registration, seen) = events(&scene);
        take(&seen);
        scene.overlay.wrote(object("a", "x", 100));
        assert!(scene.sees("a", "x"));

        part.begin(consistency);
        part.listed(Arc::new(object("a", "y", 80)));
        part.abandon();
        assert_eq!(take(&seen), Vec::<String>::new(), "the list broke off");

        list_as(&mut part, consistency, &[object("a", "y", 80)], 110);
        assert!(!scene.sees("a", "x"));
        assert_eq!(take(&seen), ["deleted x 100"]);
        list_as(&mut part, consistency, &[object("a", "y", 80)], 120);
        assert_eq!(take(&seen), Vec::<String>::new(), "once");
    }
}

// D29
#[test]
fn reports_one_deletion_of_an_object_changed_before_a_list() {
    let scene = scene();
    let [mut part] = scene.parts([""]);
    list(&mut part, &[object("a", "x", 80)], 90);
    let (_registration, seen) = events(&scene);
    take(&seen);
    scene.overlay.wrote(object("a", "x", 100));
    list(&mut part, &[], 110);
    assert_eq!(take(&seen), ["deleted x 80"]);
}

// D29
#[test]
fn a_replacement_does_not_hide_a_deletion() {
    let scene = scene();
    let [mut part] = scene.parts([""]);
    list(&mut part, &[], 90);
    let (_registration, seen) = events(&scene);
    scene.overlay.wrote(object("a", "x", 100));
    let other = br#"{"metadata":{"namespace":"a","name":"x","uid":"other","resourceVersion":"105"}}"#;
    list(&mut part, &[Object::from_slice(other).unwrap()], 110);
    assert_eq!(take(&seen), ["deleted x 100", "has x 105"]);
    assert!(scene.sees("a", "x"));
}

// D7
#[test]
fn an_older_event_means_that_the_server_moved_backwards() {
    for namespace in ["", "a"] {
        let scene = scene();
        let [mut part] = scene.parts([namespace]);
        list(&mut part, &[object("a", "x", 990), object("a", "y", 80)], 1000);
        assert!(part.changed(Arc::new(object("a", "y", 1001))));
        assert!(part.changed(Arc::new(object("a", "y", 1001))), "the same again");
        assert!(!part.changed(Arc::new(object("a", "x", 501))));
        assert!(!part.deleted(Arc::new(object("a", "x", 502))));
        assert_eq!(scene.names(), ["x", "y"], "only a list says what there is");
        list_as(&mut part, ReadConsistency::Quorum, &[object("a", "y", 500)], 503);
        assert_eq!(scene.names(), ["y"]);
        assert!(part.changed(Arc::new(object("a", "y", 504))));
    }
}

// D7
#[test]
fn a_write_with_another_revision_format_does_not_hide_later_events() {
    let scene = scene();
    let [mut part] = scene.parts([""]);
    list(&mut part, &[object("a", "x", 500)], 500);
    scene.overlay.wrote(object("a", "x", 1000));
    let shown = || {
        let found = scene.overlay.store().get("a", "x").unwrap();
        found.resource_version().to_owned()
    };
    part.changed(Arc::new(object("a", "x", 501)));
    assert_eq!(shown(), "1000", "the event may be from before the write");
    scene.clock.advance(Overlay::LIMIT);
    part.changed(Arc::new(object("a", "x", 502)));
    assert_eq!(shown(), "502");

    let other = br#"{"metadata":{"namespace":"a","name":"x","uid":"other","resourceVersion":"990"}}"#;
    scene.overlay.wrote(object("a", "x", 1000));
    scene.overlay.wrote(Object::from_slice(other).unwrap());
    assert_eq!(shown(), "990", "another uid has replaced it");
}
