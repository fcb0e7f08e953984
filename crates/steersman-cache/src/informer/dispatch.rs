// SPDX-License-Identifier: Apache-2.0
//! Writes the store and calls handlers, under one lock: so everybody hears of changes in the order in which the store
//! takes them, and one who comes late sees the store between two changes.

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

use super::{Event, registration::Registered, stats::Figures};
use crate::{
    Change, InvalidObject, Object, Query, Resource, Revision, Store, StoreWriter,
    reflector::Sink,
    revision::compare,
    store::Came,
    sync::{Mutex, MutexGuard},
};

/// A call of a handler that takes longer is worth a word.
const SLOW: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Dispatch {
    resource: Resource,
    clock: Arc<dyn Clock>,
    figures: Figures,
    /// Whole objects are wanted, and what is listed is metadata: nobody is in sync until they are listed.
    expects_whole: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    writer: StoreWriter,
    store: Store,
    /// How many reflectors there were.
    reflectors: u64,
    /// Held by their registrations. Here a handler would keep alive what holds this informer.
    handlers: Vec<Weak<Registered>>,
    /// One for each reflector, by its namespace.
    parts: BTreeMap<String, Progress>,
    /// No event will come any more.
    ended: bool,
}

/// How far one reflector has got.
#[derive(Debug, Default)]
struct Progress {
    /// Which reflector this is of: one that ends late may not add to what its successor says.
    number: u64,
    listed: bool,
    revision: String,
}

impl Dispatch {
    pub(super) fn new(
        resource: Resource,
        (writer, store): (StoreWriter, Store),
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            resource,
            clock,
            figures: Figures::default(),
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

    /// A handler panicked under the lock at worst, after the store was written: the state is whole.
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
        // Those that are gone are taken off here, too: it may be long until something is dispatched.
        state.handlers.retain(|handler| handler.strong_count() > 0);
        state.handlers.push(Arc::downgrade(registered));
    }

    /// Makes the parts those that are wanted, and gives a place for the reflector of each that is new: of a namespace, or
    /// of all of them as the empty name.
    ///
    /// All at one moment: what those tell that went is not taken from then on, and nothing that they told of can be mixed
    /// up with what those tell that come. What is in no part any more goes.
    pub(super) fn set_parts(
        self: &Arc<Self>,
        wanted: &BTreeSet<String>,
        new: BTreeSet<String>,
        metadata_only: bool,
    ) -> Vec<Part> {
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
            .map(|(namespace, number)| Part {
                dispatch: Arc::clone(self),
                namespace,
                number,
                metadata_only,
                came: Came::InOrder,
                seen: None,
                revision: String::new(),
            })
            .collect()
    }

    /// Says that the parts are about to be those of whole objects. It waits for no handler.
    pub(super) fn expect_whole(&self) {
        self.expects_whole.store(true, Release);
    }

    fn is_synced(&self, state: &State) -> bool {
        !self.expects_whole.load(Acquire) && state.parts.values().all(|part| part.listed)
    }

    /// Says so to the handlers, if all is listed now.
    fn settle(&self, state: &State) {
        if self.is_synced(state) {
            let handlers = state.handlers.iter().filter_map(Weak::upgrade);
            handlers.for_each(|handler| handler.set_synced());
        }
    }

    #[cfg(test)]
    pub(super) fn add_part(self: &Arc<Self>, namespace: &str, metadata_only: bool) -> Part {
        let new = BTreeSet::from([namespace.to_owned()]);
        let wanted = self.lock().parts.keys().chain(&new).cloned().collect();
        let mut places = self.set_parts(&wanted, new, metadata_only);
        places.pop().expect("a place for each that is new")
    }

    /// No event will come any more.
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
            handler.figures().panicked.fetch_add(1, Relaxed);
            tracing::error!(%resource, handler = name, "a handler panicked when its informer was ended");
        }
        handler.set_synced();
    }

    /// These went unseen, and are out of the store already.
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

    /// Calls one handler for those of these objects that are there now.
    pub(super) fn resync(&self, registered: &Registered, keys: &[ObjectKey]) {
        let state = self.lock();
        if state.ended {
            return;
        }
        for object in keys.iter().filter_map(|key| state.store.get_key(key)) {
            self.call(registered, &Event::Resynced { object });
        }
    }

    pub(super) fn figures(&self) -> &Figures {
        &self.figures
    }

    fn dispatch(&self, state: &mut State, event: &Event) {
        self.figures.events.fetch_add(1, Relaxed);
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
            handler.figures().panicked.fetch_add(1, Relaxed);
            tracing::error!(
                %resource, handler = name, %key,
                "a handler panicked; what it has not done about this event is not done before the next one"
            );
        }
        if took >= SLOW {
            handler.figures().slow.fetch_add(1, Relaxed);
            tracing::warn!(%resource, handler = name, ?took, "a handler is slow and delays all others");
        }
    }

    /// Enters an object, and says what that means to handlers.
    fn enter(state: &mut State, object: Arc<Object>, came: Came, initial: bool) -> [Option<Event>; 2] {
        match state.writer.enter(object, came) {
            None => [None, None],
            Some(Change::Added(object)) => [Some(Event::Added { object, initial }), None],
            // Another uid under the same name: one object went unseen and another came.
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
            // Nobody has seen it whole, so that it is new to those who want it so; and it may have changed, too.
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
        self.figures.heard(self.clock.now());
    }
}

impl State {
    /// A place for a new reflector, in that of the one that the part had before, if any.
    fn place(&mut self, namespace: &str) -> u64 {
        self.reflectors += 1;
        let progress = Progress {
            number: self.reflectors,
            ..Progress::default()
        };
        if !namespace.is_empty() {
            self.writer.part(namespace, self.parts.contains_key(""));
        }
        self.parts.insert(namespace.to_owned(), progress);
        self.reflectors
    }

    /// Gives up the parts that are not wanted, and takes out what only they had.
    fn leave(&mut self, wanted: &BTreeSet<String>) -> Vec<Arc<Object>> {
        let is_left = |part: &&String| !wanted.contains(*part);
        let left: Vec<String> = self.parts.keys().filter(is_left).cloned().collect();
        let mut gone = Vec::new();
        for part in left {
            self.parts.remove(&part);
            self.writer.unite(&part);
            if !wanted.contains("") {
                gone.extend(self.take_out(&part, |object| wanted.contains(object.namespace())));
            }
        }
        gone
    }

    /// Takes out what is in this namespace, or in any if it is empty, and is not to stay.
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

    /// One part has got this far.
    fn progress(&mut self, namespace: &str, revision: &str, came: Came) {
        let Some(part) = self.parts.get_mut(namespace) else {
            return;
        };
        part.revision.clear();
        part.revision.push_str(revision);
        let slowest = slowest(&self.parts);
        if namespace.is_empty() {
            self.writer.advance(revision, came);
        } else {
            self.writer.advance_part(namespace, revision, slowest, came);
        }
    }
}

/// How far the store has got: as far as the slowest of the parts, once all have got anywhere.
fn slowest(parts: &BTreeMap<String, Progress>) -> Option<&str> {
    let is_slower = |a: &str, b: &str| compare(a, b).is_some_and(Ordering::is_lt);
    let mut all = parts.values().map(|part| part.revision.as_str());
    let first = all.next()?;
    let slowest = all.try_fold(first, |slowest, other| {
        (!other.is_empty()).then(|| if is_slower(other, slowest) { other } else { slowest })
    });
    slowest.filter(|slowest| !slowest.is_empty())
}

/// Where a reflector says what it learns.
#[derive(Debug)]
pub(super) struct Part {
    dispatch: Arc<Dispatch>,
    namespace: String,
    number: u64,
    metadata_only: bool,
    /// What is known of the list that is under way.
    came: Came,
    /// What the list that is under way had so far. Not needed where there is one list for the whole store, which marks
    /// what it saw itself.
    seen: Option<HashSet<ObjectKey>>,
    /// Room for the revision of the object in hand.
    revision: String,
}

impl Part {
    /// Which one it is: empty for all.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    fn is_whole(&self) -> bool {
        self.namespace.is_empty()
    }

    /// The state, unless this part is not wanted any more.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.dispatch.lock();
        let is_current = state
            .parts
            .get(&self.namespace)
            .is_some_and(|part| part.number == self.number);
        is_current.then_some(state)
    }
}

impl Part {
    fn mark(&self, object: &mut Arc<Object>) {
        if self.metadata_only
            && let Some(object) = Arc::get_mut(object)
        {
            object.mark_metadata_only();
        }
    }

    /// Takes an object out that was deleted. Outside of a list, that says how far the part has got. Returns false if the store
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
            state.progress(&self.namespace, object.resource_version(), Came::InOrder);
        }
        if removed.is_some() {
            // As the store would keep it: what a transform drops is nobody's to see.
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

impl Sink for Part {
    fn begin(&mut self, came: Came) {
        self.came = came;
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
        let events = Dispatch::enter(&mut state, object, self.came, initial);
        if !initial && matches!(events, [Some(Event::Added { .. }), _]) {
            // An object that was written under the same name is told as deleted before this one is told as added.
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
                state.writer.end_part(&self.namespace, self.came);
                state.take_out(&self.namespace, |object| seen.contains(&object.key()))
            }
            None if self.is_whole() => state.writer.end_list(self.came),
            None => Vec::new(),
        };
        if let Some(part) = state.parts.get_mut(&self.namespace) {
            part.listed = true;
        }
        // Not before all of them are out, or an overlay would end too early; not after handlers, who may look.
        state.progress(&self.namespace, revision.as_str(), self.came);
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
        let events = Dispatch::enter(&mut state, object, Came::InOrder, false);
        if events.iter().all(Option::is_none) && state.writer.take_refused_older() {
            return false;
        }
        // Not before the object is there, or an overlay would end too early; not after handlers, who may look.
        state.progress(&self.namespace, &self.revision, Came::InOrder);
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
        state.progress(&self.namespace, revision.as_str(), Came::InOrder);
        self.dispatch.heard();
    }

    fn invalid(&mut self, error: &InvalidObject) {
        let resource = &self.dispatch.resource;
        tracing::warn!(%resource, %error, "an object cannot be read and is left out");
        self.dispatch.figures.invalid.fetch_add(1, Relaxed);
    }
}
