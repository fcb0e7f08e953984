// SPDX-License-Identifier: Apache-2.0
//! Writes the store and calls handlers under one lock. So every handler receives changes in the order in which the store
//! applies them, and a handler that registers late sees the store between two changes.

#[cfg(test)]
mod tests;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use steersman_core::{Clock, ObjectKey};

use super::{Event, registration::Registered, stats::Counters};
use crate::{
    Change, InvalidObject, Object, Query, Resource, Revision, Store, StoreWriter,
    reflector::Sink,
    revision::compare,
    store::ReadConsistency,
    sync::{Mutex, MutexGuard},
};

/// Threshold above which a handler call is logged as slow.
const SLOW: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Dispatch {
    resource: Resource,
    clock: Arc<dyn Clock>,
    counters: Counters,
    /// True while whole objects are wanted but only metadata is listed: no handler is in sync until whole objects are listed.
    expects_whole: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    writer: StoreWriter,
    store: Store,
    /// Number of reflectors started so far.
    reflectors: u64,
    /// Weak: the registrations own the handlers. A strong reference would keep alive a handler that holds this informer.
    handlers: Vec<Weak<Registered>>,
    /// Progress of each reflector, by namespace.
    parts: BTreeMap<String, Progress>,
    /// True if no further event follows.
    ended: bool,
}

/// Progress of one reflector.
#[derive(Debug, Default)]
struct Progress {
    /// Number of the reflector: one that ends late must not report progress for its successor.
    number: u64,
    listed: bool,
    revision: String,
}

impl Dispatch {
    pub(super) fn new(resource: Resource, writer: StoreWriter, store: Store, clock: Arc<dyn Clock>) -> Self {
        Self {
            resource,
            clock,
            counters: Counters::default(),
            expects_whole: AtomicBool::new(false),
            state: Mutex::new(State {
                reflectors: 0,
                writer,
                store,
                handlers: Vec::new(),
                parts: BTreeMap::new(),
                ended: false,
            }),
        }
    }

    /// Locks the state. At worst a handler panicked under the lock, after the store was written: the state is consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn register(&self, registered: &Arc<Registered>) {
        let mut state = self.lock();
        for object in state.store.list(&Query::new()) {
            self.call(
                registered,
                &Event::Added {
                    object,
                    initial: true,
                },
            );
        }
        if state.ended {
            return self.end_of(registered);
        }
        if self.is_synced(&state) {
            registered.set_synced();
        }
        // Dropped handlers are removed here too, since the next dispatch can be far off.
        state.handlers.retain(|handler| handler.strong_count() > 0);
        state.handlers.push(Arc::downgrade(registered));
    }

    /// Sets the wanted parts, and returns a [`NamespaceSink`] for the reflector of each new one. A part is a namespace; an empty name
    /// means all namespaces.
    ///
    /// The change is atomic: from then on, reports of removed parts are ignored and cannot mix with reports of new parts. Objects
    /// that no part contains are removed.
    pub(super) fn set_parts(
        self: &Arc<Self>,
        wanted: &BTreeSet<String>,
        new: BTreeSet<String>,
        metadata_only: bool,
    ) -> Vec<NamespaceSink> {
        let mut state = self.lock();
        let numbers: Vec<u64> = new.iter().map(|part| state.place(part)).collect();
        if !metadata_only {
            self.expects_whole.store(false, Release);
        }
        let gone = state.leave(wanted);
        self.went(&mut state, gone);
        self.settle(&state);
        let places = new.into_iter().zip(numbers);
        places
            .map(|(namespace, number)| NamespaceSink {
                dispatch: Arc::clone(self),
                namespace,
                number,
                metadata_only,
                consistency: ReadConsistency::Watch,
                seen: None,
                revision: String::new(),
            })
            .collect()
    }

    /// Announces that the parts will switch to whole objects. Does not wait for handlers.
    pub(super) fn expect_whole(&self) {
        self.expects_whole.store(true, Release);
    }

    fn is_synced(&self, state: &State) -> bool {
        !self.expects_whole.load(Acquire) && state.parts.values().all(|part| part.listed)
    }

    /// Notifies the handlers if every part is listed.
    fn settle(&self, state: &State) {
        if self.is_synced(state) {
            let handlers = state.handlers.iter().filter_map(Weak::upgrade);
            handlers.for_each(|handler| handler.set_synced());
        }
    }

    #[cfg(test)]
    pub(super) fn add_part(self: &Arc<Self>, namespace: &str, metadata_only: bool) -> NamespaceSink {
        let new = BTreeSet::from([namespace.to_owned()]);
        let wanted = self.lock().parts.keys().chain(&new).cloned().collect();
        let mut places = self.set_parts(&wanted, new, metadata_only);
        places.pop().expect("one part for each new namespace")
    }

    /// Ends the dispatch: no further event follows.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.parts.clear();
        for handler in state.handlers.drain(..).filter_map(|handler| handler.upgrade()) {
            self.end_of(&handler);
        }
    }

    fn end_of(&self, handler: &Registered) {
        if catch_unwind(AssertUnwindSafe(|| handler.end())).is_err() {
            let (resource, name) = (&self.resource, handler.name());
            handler.counters().panicked.fetch_add(1, Relaxed);
            tracing::error!(%resource, handler = name, "handler panicked at the end of its informer");
        }
        handler.set_synced();
    }

    /// Dispatches missed deletions of objects that the store no longer has.
    fn went(&self, state: &mut State, gone: Vec<Arc<Object>>) {
        for object in gone {
            let event = Event::Deleted {
                object,
                final_state_known: false,
            };
            self.dispatch(state, &event);
        }
    }

    pub(super) fn keys(&self) -> Vec<ObjectKey> {
        self.lock().store.keys(&Query::new())
    }

    /// Calls one handler with the objects of these keys that still exist.
    pub(super) fn resync(&self, registered: &Registered, keys: &[ObjectKey]) {
        let state = self.lock();
        if state.ended {
            return;
        }
        for object in keys.iter().filter_map(|key| state.store.get_key(key)) {
            self.call(registered, &Event::Resynced { object });
        }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    fn dispatch(&self, state: &mut State, event: &Event) {
        self.counters.events.fetch_add(1, Relaxed);
        state.handlers.retain(|handler| {
            let handler = handler.upgrade();
            handler.is_some_and(|handler| {
                self.call(&handler, event);
                true
            })
        });
    }

    fn call(&self, handler: &Registered, event: &Event) {
        let start = self.clock.now();
        let result = catch_unwind(AssertUnwindSafe(|| handler.call(event)));
        let took = self.clock.now().saturating_since(start);
        let (resource, name) = (&self.resource, handler.name());
        if result.is_err() {
            let key = event.object().key();
            handler.counters().panicked.fetch_add(1, Relaxed);
            tracing::error!(
                %resource, handler = name, %key,
                "handler panicked; the event is not redelivered"
            );
        }
        if took >= SLOW {
            handler.counters().slow.fetch_add(1, Relaxed);
            tracing::warn!(%resource, handler = name, ?took, "slow handler delays all handlers of the informer");
        }
    }

    /// Writes an object into the store, and returns the events for handlers.
    fn enter(
        state: &mut State,
        object: Arc<Object>,
        consistency: ReadConsistency,
        initial: bool,
    ) -> [Option<Event>; 2] {
        match state.writer.enter(object, consistency) {
            None => [None, None],
            Some(Change::Added(object)) => [Some(Event::Added { object, initial }), None],
            // A different uid under the same name: one object was deleted unseen and another was created.
            Some(Change::Updated { old, new }) if old.uid() != new.uid() => [
                Some(Event::Deleted {
                    object: old,
                    final_state_known: false,
                }),
                Some(Event::Added {
                    object: new,
                    initial: false,
                }),
            ],
            // No handler has seen the whole object, so it is new to handlers of whole objects. It can also have changed.
            Some(Change::Updated { old, new }) if old.is_metadata_only() && !new.is_metadata_only() => {
                let whole = Event::Added {
                    object: Arc::clone(&new),
                    initial: true,
                };
                let update = Event::Updated { old, new };
                [update.is_change().then_some(update), Some(whole)]
            }
            Some(Change::Updated { old, new }) => [Some(Event::Updated { old, new }), None],
            Some(Change::Removed(object)) => [
                Some(Event::Deleted {
                    object,
                    final_state_known: true,
                }),
                None,
            ],
        }
    }

    fn heard(&self) {
        self.counters.heard(self.clock.now());
    }
}

impl State {
    /// Registers a new reflector for a part, replacing the previous one, if any. Returns its number.
    fn place(&mut self, namespace: &str) -> u64 {
        self.reflectors += 1;
        let progress = Progress {
            number: self.reflectors,
            ..Progress::default()
        };
        if !namespace.is_empty() {
            self.writer.add_namespace(namespace, self.parts.contains_key(""));
        }
        self.parts.insert(namespace.to_owned(), progress);
        self.reflectors
    }

    /// Removes the parts that are not wanted, and returns the objects that only these contained.
    fn leave(&mut self, wanted: &BTreeSet<String>) -> Vec<Arc<Object>> {
        let is_left = |part: &&String| !wanted.contains(*part);
        let left: Vec<String> = self.parts.keys().filter(is_left).cloned().collect();
        let mut gone = Vec::new();
        for part in left {
            self.parts.remove(&part);
            self.writer.remove_namespace(&part);
            if !wanted.contains("") {
                gone.extend(self.take_out(&part, |object| wanted.contains(object.namespace())));
            }
        }
        gone
    }

    /// Removes and returns the objects of this namespace, or of all if it is empty, for which `stays` is false.
    fn take_out(&mut self, namespace: &str, stays: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        let query = if namespace.is_empty() {
            Query::new()
        } else {
            Query::new().namespace(namespace)
        };
        let mut gone = self.store.list(&query);
        gone.retain(|object| !stays(object) && self.writer.remove(object).is_some());
        gone
    }

    /// Records the resourceVersion that the reflector of one namespace has reached.
    fn progress(&mut self, namespace: &str, revision: &str, consistency: ReadConsistency) {
        let Some(part) = self.parts.get_mut(namespace) else {
            return;
        };
        part.revision.clear();
        part.revision.push_str(revision);
        let slowest = slowest(&self.parts);
        if namespace.is_empty() {
            self.writer.advance(revision, consistency);
        } else {
            self.writer
                .advance_part(namespace, revision, slowest, consistency);
        }
    }
}

/// Returns the oldest resourceVersion of all reflectors, or `None` until each has completed a list.
fn slowest(parts: &BTreeMap<String, Progress>) -> Option<&str> {
    let is_slower = |a: &str, b: &str| compare(a, b).is_some_and(Ordering::is_lt);
    let mut all = parts.values().map(|part| part.revision.as_str());
    let first = all.next()?;
    let slowest = all.try_fold(first, |slowest, other| {
        (!other.is_empty()).then(|| if is_slower(other, slowest) { other } else { slowest })
    });
    slowest.filter(|slowest| !slowest.is_empty())
}

/// The sink of one reflector.
#[derive(Debug)]
pub(super) struct NamespaceSink {
    dispatch: Arc<Dispatch>,
    namespace: String,
    number: u64,
    metadata_only: bool,
    /// The source of the list in progress.
    consistency: ReadConsistency,
    /// Keys in the list in progress. `None` for a list of the whole store, since the store marks the objects itself.
    seen: Option<HashSet<ObjectKey>>,
    /// Buffer for the revision of the current object.
    revision: String,
}

impl NamespaceSink {
    /// Returns the namespace of the part; empty for all.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    fn is_whole(&self) -> bool {
        self.namespace.is_empty()
    }

    /// Locks the state, unless this part is no longer wanted.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.dispatch.lock();
        let is_current = state
            .parts
            .get(&self.namespace)
            .is_some_and(|part| part.number == self.number);
        is_current.then_some(state)
    }

    fn mark(&self, object: &mut Arc<Object>) {
        if self.metadata_only
            && let Some(object) = Arc::get_mut(object)
        {
            object.mark_metadata_only();
        }
    }

    /// Removes a deleted object. Outside a list, the deletion also advances the revision of the part. Returns false if the store
    /// has a newer state of the object.
    fn take_out(&self, mut object: Arc<Object>, is_progress: bool) -> bool {
        self.mark(&mut object);
        let Some(mut state) = self.lock() else {
            return true;
        };
        let removed = state.writer.remove(&object);
        if removed.is_none() && state.writer.take_refused_older() {
            return false;
        }
        if is_progress {
            state.progress(&self.namespace, object.resource_version(), ReadConsistency::Watch);
        }
        if removed.is_some() {
            // Shaped as in the store: handlers must not see content that a transform drops.
            let object = state.store.shape(object);
            let event = Event::Deleted {
                object,
                final_state_known: true,
            };
            self.dispatch.dispatch(&mut state, &event);
        }
        true
    }
}

impl Sink for NamespaceSink {
    fn begin(&mut self, consistency: ReadConsistency) {
        self.consistency = consistency;
        if self.is_whole() {
            let Some(mut state) = self.lock() else { return };
            state.writer.begin_replace();
        } else {
            self.seen = Some(HashSet::new());
            let Some(mut state) = self.lock() else { return };
            state.writer.begin_part(&self.namespace);
        }
    }

    fn listed(&mut self, mut object: Arc<Object>) {
        self.mark(&mut object);
        if let Some(seen) = &mut self.seen {
            seen.insert(object.key());
        }
        let Some(mut state) = self.lock() else { return };
        let initial = state.parts.get(&self.namespace).is_some_and(|part| !part.listed);
        let events = Dispatch::enter(&mut state, object, self.consistency, initial);
        if !initial && matches!(events, [Some(Event::Added { .. }), _]) {
            // Report a written object of the same name as deleted before this one is reported as added.
            let lost = state.writer.take_lost();
            self.dispatch.went(&mut state, lost);
        }
        for event in events.iter().flatten() {
            self.dispatch.dispatch(&mut state, event);
        }
    }

    fn unlisted(&mut self, object: Arc<Object>) {
        if let Some(seen) = &mut self.seen {
            seen.remove(&object.key());
        }
        self.take_out(object, false);
    }

    fn end(&mut self, revision: &Revision) {
        let seen = self.seen.take();
        let Some(mut state) = self.lock() else { return };
        let gone = match seen {
            Some(seen) => {
                state.writer.end_part(&self.namespace, self.consistency);
                state.take_out(&self.namespace, |object| seen.contains(&object.key()))
            }
            None if self.is_whole() => state.writer.end_list(self.consistency),
            None => Vec::new(),
        };
        if let Some(part) = state.parts.get_mut(&self.namespace) {
            part.listed = true;
        }
        // After all removals, or an overlay would end too early; before the handlers, since they can read the revision.
        state.progress(&self.namespace, revision.as_str(), self.consistency);
        state.writer.take_refused_older();
        let mut lost = state.writer.take_all_lost();
        lost.retain(|object| !gone.iter().any(|gone| gone.uid() == object.uid()));
        self.dispatch.went(&mut state, gone);
        self.dispatch.went(&mut state, lost);
        self.dispatch.settle(&state);
        self.dispatch.heard();
    }

    fn abandon(&mut self) {
        self.seen = None;
        if self.is_whole()
            && let Some(mut state) = self.lock()
        {
            state.writer.abandon_replace();
        }
    }

    fn changed(&mut self, mut object: Arc<Object>) -> bool {
        self.mark(&mut object);
        self.revision.clear();
        self.revision.push_str(object.resource_version());
        let Some(mut state) = self.lock() else {
            return true;
        };
        let events = Dispatch::enter(&mut state, object, ReadConsistency::Watch, false);
        if events.iter().all(Option::is_none) && state.writer.take_refused_older() {
            return false;
        }
        // After the object is stored, or an overlay would end too early; before the handlers, since they can read the revision.
        state.progress(&self.namespace, &self.revision, ReadConsistency::Watch);
        for event in events.iter().flatten() {
            self.dispatch.dispatch(&mut state, event);
        }
        self.dispatch.heard();
        true
    }

    fn deleted(&mut self, object: Arc<Object>) -> bool {
        self.dispatch.heard();
        self.take_out(object, true)
    }

    fn progressed(&mut self, revision: &Revision) {
        let Some(mut state) = self.lock() else { return };
        state.progress(&self.namespace, revision.as_str(), ReadConsistency::Watch);
        self.dispatch.heard();
    }

    fn invalid(&mut self, error: &InvalidObject) {
        let resource = &self.dispatch.resource;
        tracing::warn!(%resource, %error, "skipping invalid object");
        self.dispatch.counters.invalid.fetch_add(1, Relaxed);
    }
}
