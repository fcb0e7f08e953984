// SPDX-License-Identifier: Apache-2.0
//! All interleavings of changes with handlers that register meanwhile. [`crate::sync`] explains how to run them.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use loom::thread;
use steersman_core::TestClock;

use super::{
    Event, EventHandler, Registration,
    dispatch::{Dispatch, NamespaceSink},
    registration::Registered,
};
use crate::{
    Object, Resource, Store, StoreOptions,
    reflector::Sink,
    store::{ReadConsistency, store},
    sync::explore,
};

fn object(revision: u32) -> Arc<Object> {
    let json = format!(r#"{{"metadata":{{"name":"a","uid":"1","resourceVersion":"{revision}"}}}}"#);
    Object::shared_from_slice(json.as_bytes()).unwrap()
}

fn revision(object: &Object) -> u32 {
    object.resource_version().parse().unwrap()
}

/// Creates an informer without its reflector.
fn begin() -> (Arc<Dispatch>, NamespaceSink, Store) {
    begin_with("")
}

/// Same as [`begin`], for one namespace; an empty name means all namespaces.
fn begin_with(namespace: &str) -> (Arc<Dispatch>, NamespaceSink, Store) {
    let kind = Resource::new("", "v1", "ConfigMap", "configmaps");
    let (writer, store) = store(StoreOptions::new());
    let dispatch = Dispatch::new(kind, writer, store.clone(), Arc::new(TestClock::new()));
    let dispatch = Arc::new(dispatch);
    let part = dispatch.add_part(namespace, false);
    (dispatch, part, store)
}

fn register(dispatch: &Dispatch, handler: impl EventHandler) -> Registration {
    let counters = dispatch.counters().of_handler("test");
    let registered = Arc::new(Registered::new("test", Box::new(handler), counters));
    dispatch.register(&registered);
    Registration::new(registered, None)
}

/// The events that a handler receives, as text.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn handler(&self) -> impl Fn(&Event) + Send + Sync + use<> {
        let heard = Arc::clone(&self.0);
        move |event: &Event| {
            let word = match event {
                Event::Added { initial: true, .. } => "initial",
                Event::Added { .. } => "added",
                Event::Updated { .. } => "updated",
                Event::Deleted { .. } => "deleted",
                Event::Resynced { .. } => "resynced",
            };
            let said = format!("{word} {}", revision(event.object()));
            heard.lock().unwrap_or_else(PoisonError::into_inner).push(said);
        }
    }

    fn said(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).join(", ")
    }
}

#[test]
fn guarantee_2_a_handler_added_during_changes_receives_each_once() {
    explore(|| {
        let (dispatch, mut part, _store) = begin();
        let late = Heard::default();
        let registering = {
            let (dispatch, handler) = (Arc::clone(&dispatch), late.handler());
            thread::spawn(move || register(&dispatch, handler))
        };
        part.changed(object(1));
        part.changed(object(2));
        part.deleted(object(3));
        let _registration = registering.join().unwrap();
        let said = late.said();
        let possible = [
            "added 1, updated 2, deleted 3",
            "initial 1, updated 2, deleted 3",
            "initial 2, deleted 3",
            "",
        ];
        assert!(possible.contains(&said.as_str()), "{said}");
    });
}

#[test]
fn guarantee_7_ignores_reports_of_a_removed_namespace() {
    explore(|| {
        let (dispatch, mut one, store) = begin_with("n");
        let heard = Heard::default();
        let _registration = register(&dispatch, heard.handler());
        let telling = thread::spawn(move || {
            one.changed(object(1));
            // It ends before it could report the deletion.
        });
        let whole = BTreeSet::from([String::new()]);
        let mut all = dispatch.set_parts(&whole, whole.clone(), false).pop().unwrap();
        all.begin(ReadConsistency::Watch);
        all.end(&crate::Revision::new("2"));
        telling.join().unwrap();
        assert!(store.is_empty());
        let said = heard.said();
        assert!(["added 1, deleted 1", ""].contains(&said.as_str()), "{said}");
    });
}

#[test]
fn guarantee_1_handlers_receive_the_same_events_and_the_store_is_as_new() {
    explore(|| {
        let (dispatch, mut part, store) = begin();
        let (early, late) = (Heard::default(), Heard::default());
        let _early = register(&dispatch, early.handler());
        let registering = {
            let (dispatch, handler) = (Arc::clone(&dispatch), late.handler());
            thread::spawn(move || {
                register(&dispatch, move |event: &Event| {
                    let stored = store.get("", "a").map(|object| revision(&object));
                    assert!(stored >= Some(revision(event.object())), "the store is behind");
                    handler(event);
                })
            })
        };
        part.changed(object(1));
        part.changed(object(2));
        let _late = registering.join().unwrap();
        assert_eq!(early.said(), "added 1, updated 2");
        assert!(late.said().ends_with('2'), "{}", late.said());
    });
}

#[test]
fn guarantee_2_a_handler_added_at_the_end_of_a_list_is_in_sync() {
    explore(|| {
        let (dispatch, mut part, _store) = begin();
        let late = Heard::default();
        let registering = {
            let (dispatch, handler) = (Arc::clone(&dispatch), late.handler());
            thread::spawn(move || {
                let registration = register(&dispatch, handler);
                // A handler in sync has received everything that was listed.
                let is_synced = registration.is_synced();
                (registration, is_synced)
            })
        };
        part.begin(ReadConsistency::Watch);
        part.listed(object(1));
        part.end(&crate::Revision::new("1"));
        let (registration, was_synced) = registering.join().unwrap();
        assert_eq!(late.said(), "initial 1");
        assert!(registration.is_synced(), "{was_synced}");
    });
}
