// SPDX-License-Identifier: Apache-2.0
//! Writes the store and calls handlers, under one lock: so everybody hears of changes in the order in which the store
//! takes them, and one who comes late sees the store between two changes.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use steersman_core::{Clock, Moment, ObjectKey};

use super::{Event, registration::Registered};
use crate::{Change, InvalidObject, Object, Query, Resource, Revision, Store, StoreWriter, reflector::Sink};

/// A call of a handler that takes longer is worth a word.
const SLOW: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Dispatch {
    resource: Resource,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    writer: StoreWriter,
    store: Store,
    handlers: Vec<Arc<Registered>>,
    synced: bool,
    counters: Counters,
}

/// What happened so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) events: u64,
    pub(super) invalid: u64,
    pub(super) last_event: Option<Moment>,
    pub(super) slow: Vec<(String, u64)>,
}

impl Dispatch {
    pub(super) fn new(
        resource: Resource,
        (writer, store): (StoreWriter, Store),
        clock: Arc<dyn Clock>,
    ) -> Self {
        let state = State {
            writer,
            store,
            handlers: Vec::new(),
            synced: false,
            counters: Counters::default(),
        };
        Self {
            resource,
            clock,
            state: Mutex::new(state),
        }
    }

    /// A handler panicked under the lock at worst, after the store was written: the state is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, registered: Arc<Registered>) {
        let mut state = self.lock();
        for object in state.store.list(&Query::new()) {
            self.call(
                &registered,
                &Event::Added {
                    object,
                    initial: true,
                },
            );
        }
        if state.synced {
            registered.set_synced();
        }
        state.handlers.push(registered);
    }

    pub(super) fn keys(&self) -> Vec<ObjectKey> {
        self.lock().store.keys(&Query::new())
    }

    /// Calls one handler for those of these objects that are there now.
    pub(super) fn resync(&self, registered: &Registered, keys: &[ObjectKey]) {
        let state = self.lock();
        for object in keys.iter().filter_map(|key| state.store.get_key(key)) {
            self.call(registered, &Event::Resynced { object });
        }
    }

    pub(super) fn counters(&self) -> Counters {
        let state = self.lock();
        let slow = state
            .handlers
            .iter()
            .map(|handler| (handler.name().to_owned(), handler.slow()));
        Counters {
            slow: slow.filter(|(_, times)| *times > 0).collect(),
            ..state.counters.clone()
        }
    }

    fn dispatch(&self, state: &mut State, event: &Event) {
        state.counters.events += 1;
        state.handlers.retain(|handler| handler.is_active());
        for handler in &state.handlers {
            self.call(handler, event);
        }
    }

    fn call(&self, handler: &Registered, event: &Event) {
        if !handler.is_active() {
            return;
        }
        let start = self.clock.now();
        let result = catch_unwind(AssertUnwindSafe(|| handler.call(event)));
        let took = self.clock.now().saturating_since(start);
        let (resource, name) = (&self.resource, handler.name());
        if result.is_err() {
            let key = event.object().key();
            tracing::error!(%resource, handler = name, %key, "a handler panicked; the event is lost to it");
        }
        if took >= SLOW {
            handler.was_slow();
            tracing::warn!(%resource, handler = name, ?took, "a handler is slow and delays all others");
        }
    }

    fn changed(&self, state: &mut State, object: Object) {
        let event = match state.writer.apply(object) {
            None => return,
            Some(Change::Added(object)) => Event::Added {
                object,
                initial: !state.synced,
            },
            // Another uid under the same name: one object went unseen and another came.
            Some(Change::Updated { old, new }) if old.uid() != new.uid() => {
                self.dispatch(
                    state,
                    &Event::Deleted {
                        object: old,
                        final_state_known: false,
                    },
                );
                Event::Added {
                    object: new,
                    initial: false,
                }
            }
            Some(Change::Updated { old, new }) => Event::Updated { old, new },
            Some(Change::Removed(object)) => Event::Deleted {
                object,
                final_state_known: true,
            },
        };
        self.dispatch(state, &event);
    }

    fn heard(&self, state: &mut State) {
        state.counters.last_event = Some(self.clock.now());
    }
}

impl Sink for Arc<Dispatch> {
    fn begin(&mut self) {
        self.lock().writer.begin_replace();
    }

    fn listed(&mut self, object: Object) {
        let mut state = self.lock();
        Dispatch::changed(self, &mut state, object);
    }

    fn end(&mut self, revision: &Revision) {
        let mut state = self.lock();
        for object in state.writer.end_replace() {
            self.dispatch(
                &mut state,
                &Event::Deleted {
                    object,
                    final_state_known: false,
                },
            );
        }
        state.writer.set_revision(revision);
        state.synced = true;
        state.handlers.iter().for_each(|handler| handler.set_synced());
        self.heard(&mut state);
    }

    fn abandon(&mut self) {
        self.lock().writer.abandon_replace();
    }

    fn changed(&mut self, object: Object) {
        let mut state = self.lock();
        state.writer.advance_to(object.resource_version());
        Dispatch::changed(self, &mut state, object);
        self.heard(&mut state);
    }

    fn deleted(&mut self, object: Object) {
        let mut state = self.lock();
        let removed = state.writer.remove(&object);
        state.writer.advance_to(object.resource_version());
        if removed.is_some() {
            // As the store would keep it: what a transform drops is nobody's to see.
            let object = state.store.shape(object);
            let event = Event::Deleted {
                object,
                final_state_known: true,
            };
            self.dispatch(&mut state, &event);
        }
        self.heard(&mut state);
    }

    fn progressed(&mut self, revision: &Revision) {
        let mut state = self.lock();
        state.writer.set_revision(revision);
        self.heard(&mut state);
    }

    fn invalid(&mut self, error: &InvalidObject) {
        let resource = &self.resource;
        tracing::warn!(%resource, %error, "an object cannot be read and is left out");
        self.lock().counters.invalid += 1;
    }
}
