// SPDX-License-Identifier: Apache-2.0
//! A reflector, its store and the handlers that receive its events.
//!
//! # Guarantees
//! 1. A handler receives every change once and in order. The store is at least as new as the event that a handler receives.
//! 2. A handler that registers late receives every existing object, marked as initial, and misses no later change.
//! 3. If the watch misses a deletion, the object is reported as deleted, with an unknown final state.
//! 4. A handler that panics or is slow is logged and counted by name, and other handlers still receive the event.
//! 5. A raw subscriber delays no other handler. If it falls behind, it receives the newest state of each object once, and the
//!    number of skipped events. A deletion followed by a creation is never merged away.
//! 6. When the last handle is dropped, the watch is closed and the store's memory is freed.
//! 7. Namespaces are added and removed atomically: events of a watch whose namespace is no longer wanted are ignored.
//!
//! # Execution of handlers
//! Handlers run on the task that reads from the server, one after another. So they must be quick: turn events into keys and
//! put these into a queue. A handler must not change the namespaces of the informer that calls it, end it, or register with
//! it. A handler can read the state of its informer and cache, ask a cache for any informer, and drop handles: no lock of a
//! cache is held while handlers run or while the cache waits for them.

mod context;
mod dispatch;
mod event;
#[cfg(all(test, loom))]
mod interleavings;
mod registration;
mod stats;
mod subscription;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use steersman_core::{Mutex, Task};

pub use context::{InformerContext, InformerOptions};
pub use event::Event;
pub use registration::{EventHandler, Registration};
pub use stats::Stats;
pub use subscription::{Delivery, Subscription};

use crate::{
    Health, ReflectorOptions, Resource, Scope, Store, WatchError,
    health::{HealthState, HealthTracker, Reporter},
    reflector::{Reflector, Watched},
    resource::Namespaces,
    store::store,
};
use dispatch::{Dispatch, NamespaceSink};
use registration::Registered;

/// A handle to an informer. Clones share the informer; it ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Informer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    resource: Resource,
    context: InformerContext,
    reflector: ReflectorOptions,
    resync: Option<Duration>,
    store: Store,
    dispatch: Arc<Dispatch>,
    health_tracker: Arc<HealthTracker>,
    /// The running reflectors, by namespace; dropped with the last handle, which closes the watches. A change waits for handlers
    /// under this lock. Therefore reads never take it: they use the board.
    running: Mutex<BTreeMap<String, Running>>,
    /// The task that requests whole objects after a call of `widen`.
    widening: Mutex<Option<Task>>,
}

/// A running reflector.
#[derive(Debug)]
struct Running {
    metadata_only: bool,
    _task: Task,
}

impl Informer {
    /// Starts an informer, which lists and watches.
    pub fn start(
        context: &InformerContext,
        resource: Resource,
        scope: Scope,
        options: InformerOptions,
    ) -> Self {
        let (writer, store) = store(options.store);
        let clock = Arc::clone(&context.clock);
        let informer = Self(Arc::new(Shared {
            dispatch: Arc::new(Dispatch::new(resource.clone(), writer, store.clone(), clock)),
            resource,
            context: context.clone(),
            reflector: options.reflector,
            resync: options.resync,
            store,
            health_tracker: HealthTracker::about(scope),
            running: Mutex::default(),
            widening: Mutex::default(),
        }));
        informer.adjust();
        informer
    }

    /// Changes the namespaces of the running informer. It lists new namespaces, removes the objects of namespaces that are no
    /// longer wanted, and leaves the rest untouched. No namespace, or an empty name, means all namespaces. For a shared informer
    /// use [`Cache::set_namespaces`](crate::Cache::set_namespaces).
    pub fn set_namespaces<'a>(&self, namespaces: impl IntoIterator<Item = &'a str>) {
        self.want_namespaces(namespaces.into_iter().collect());
        self.adjust();
    }

    /// Switches a metadata-only informer to full objects. It relists, and full objects replace the metadata. The informer is in sync again after the list. Handlers receive each object as added and initial.
    ///
    /// Does not wait, so a handler of this informer can call it.
    pub fn widen(&self) {
        if !self.want_whole() {
            return;
        }
        let shared = Arc::downgrade(&self.0);
        let widening = async move {
            if let Some(shared) = shared.upgrade() {
                shared.adjust(&mut shared.running.lock());
            }
        };
        let task = self.0.context.spawner.spawn("widening", widening);
        *self.0.widening.lock() = Some(task);
    }

    /// Records the wanted namespaces without waiting. [`adjust`](Self::adjust) applies them.
    pub(crate) fn want_namespaces(&self, namespaces: Namespaces) {
        self.0
            .health_tracker
            .want(|scope| Some(scope.with_namespaces(namespaces)));
    }

    /// Records that whole objects are wanted, without waiting. Returns true if that is new.
    fn want_whole(&self) -> bool {
        self.0.health_tracker.want(|scope| {
            scope.is_metadata_only().then(|| {
                self.0.dispatch.expect_whole();
                scope.whole()
            })
        })
    }

    /// Starts and ends reflectors to match the wanted scope. Waits for handlers of this informer, and calls them for objects that
    /// are no longer wanted.
    pub(crate) fn adjust(&self) {
        self.0.adjust(&mut self.0.running.lock());
    }

    /// Returns the resource that the informer watches.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.0.resource
    }

    /// Returns the scope that the informer watches.
    pub fn scope(&self) -> Scope {
        self.0.health_tracker.scope()
    }

    /// Returns the store of its objects.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Returns the current state of its connection to the server.
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.health_tracker.health()
    }

    /// Waits until the health satisfies `condition`, and returns it. If the informer ends before, returns the last health.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn health_when(&self, mut condition: impl FnMut(&Health) -> bool) -> Health {
        let mut state = self.0.health_tracker.subscribe();
        let mut is_met = |health: &Health| health.ended || condition(health);
        let found = state
            .wait_for(|state| is_met(state.combined()))
            .await
            .map(|found| found.combined().clone());
        // The sender lives as long as `self`.
        found.unwrap_or_else(|_| self.health())
    }

    /// Waits until the informer is in sync, that is, a whole list was delivered, or until it ends.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn synced(&self) {
        self.health_when(|health| health.synced).await;
    }

    /// Waits until synced or failed. A kind that the server no longer has is an error, even if the store
    /// has objects of it.
    ///
    /// # Errors
    /// The error that keeps the informer from being in sync. The informer keeps retrying.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn settled(&self) -> Result<(), Arc<WatchError>> {
        let health = self.health_when(Health::is_settled).await;
        health.in_the_way().map_or(Ok(()), |error| Err(Arc::clone(error)))
    }

    /// Same as [`settled`](Self::settled), for the objects of one namespace; an empty name means all namespaces of the scope. Returns
    /// the error that prevents reads of them. Other namespaces can be failing or not yet listed.
    ///
    /// # Errors
    /// The scope of the informer, if it does not contain the namespace.
    pub(crate) async fn settled_in(&self, namespace: &str) -> Result<Option<Arc<WatchError>>, Scope> {
        // A cluster-scoped kind has no parts.
        if self.0.resource.is_namespaced() == Some(false) {
            let health = self.health_when(Health::is_settled).await;
            return Ok(health.in_the_way().cloned());
        }
        let mut changes = self.0.health_tracker.subscribe();
        let is_settled = |state: &HealthState| {
            state.combined().ended || !state.scope().covers(namespace) || state.is_settled_in(namespace)
        };
        let answer = |state: &HealthState| match state.scope().covers(namespace) {
            true => Ok(state.in_the_way_of(namespace).cloned()),
            false => Err(state.scope().clone()),
        };
        let state = changes.wait_for(is_settled).await;
        // The sender lives as long as `self`.
        state.map_or_else(|_| Ok(None), |state| answer(&state))
    }

    /// Returns true if the objects of a namespace can be read now: they are in sync, and the kind is installed. An empty name means
    /// all namespaces of the scope.
    pub(crate) fn is_readable_in(&self, namespace: &str) -> bool {
        self.0.health_tracker.look(|state| {
            !state.combined().ended && state.scope().covers(namespace) && state.is_readable_in(namespace)
        })
    }

    /// Ends the informer for all holders: the watch is closed, and handles keep showing the last state.
    pub fn end(&self) {
        // First, so that a caller that waits for the lock starts nothing.
        self.0.health_tracker.end();
        self.0.running.lock().clear();
        self.0.dispatch.end();
    }

    /// Waits until the informer is ended, by [`end`](Self::end) or because its cache removed it.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn ended(&self) {
        self.health_when(|health| health.ended).await;
    }

    /// Returns true if the informer was ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.health_tracker.has_ended()
    }

    /// Registers a handler for every existing object and every later change, until the registration is dropped.
    ///
    /// If the informer has a [resync interval](InformerOptions::resync), the handler also receives all objects at each interval.
    /// If the informer was ended, [`EventHandler::ended`] is called at once.
    pub fn handle(&self, name: &str, handler: impl EventHandler) -> Registration {
        self.register(name, Box::new(handler), self.0.resync)
    }

    /// Same as [`Self::handle`], with a separate resync interval; zero means no resync.
    pub fn handle_with_resync(
        &self,
        name: &str,
        every: Duration,
        handler: impl EventHandler,
    ) -> Registration {
        self.register(name, Box::new(handler), Some(every))
    }

    /// Returns a stream of events, for code that cannot turn them into keys. It can lag by `lag` events before it skips.
    #[must_use]
    pub fn subscribe(&self, name: &str, lag: usize) -> Subscription {
        let (subscriber, queue) = subscription::subscription(lag);
        Subscription::new(self.handle(name, subscriber), queue)
    }

    /// Same as [`Self::subscribe`], with a separate resync interval.
    #[must_use]
    pub fn subscribe_with_resync(&self, name: &str, lag: usize, every: Duration) -> Subscription {
        let (subscriber, queue) = subscription::subscription(lag);
        Subscription::new(self.handle_with_resync(name, every, subscriber), queue)
    }

    fn register(&self, name: &str, handler: Box<dyn EventHandler>, resync: Option<Duration>) -> Registration {
        let counters = self.0.dispatch.counters().of_handler(name);
        let registered = Arc::new(Registered::new(name, handler, counters));
        self.0.dispatch.register(&registered);
        let task = resync.map(|every| {
            let resync = registration::resync(
                Arc::downgrade(&registered),
                Arc::downgrade(&self.0.dispatch),
                every,
                Arc::clone(&self.0.context.clock),
                Arc::clone(&self.0.context.random),
            );
            self.0.context.spawner.spawn("resync", resync)
        });
        Registration::new(registered, task)
    }

    /// Returns counters for metrics. Does not wait for handlers.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let store = &self.0.store;
        let (health, counters) = (self.health(), self.0.dispatch.counters());
        let silent_for = counters
            .last_event()
            .map(|last| self.0.context.clock.now().saturating_since(last));
        Stats {
            resource: self.0.resource.clone(),
            scope: self.scope(),
            synced: health.synced,
            error: health.error,
            objects: store.len(),
            bytes: store.bytes(),
            decoded_bytes: store.decoded_bytes(),
            events: counters.events.load(Relaxed),
            silent_for,
            invalid: counters.invalid.load(Relaxed),
            decode_failures: store.decode_failures(),
            lists: health.lists,
            relists: health.relists,
            watches: health.watches,
            watch_restarts: health.watch_restarts,
            slow_handlers: counters.handlers(|of| &of.slow),
            panicked_handlers: counters.handlers(|of| &of.panicked),
        }
    }
}

impl Shared {
    /// Starts and ends reflectors to match the scope. Starts none if the informer was ended.
    fn adjust(&self, running: &mut BTreeMap<String, Running>) {
        if self.health_tracker.has_ended() {
            return;
        }
        // The wanted scope can change after this line: then its caller waits for the lock held here and adjusts again.
        let scope = self.health_tracker.scope();
        let (wanted, metadata_only) = (scope.parts(), scope.is_metadata_only());
        let is_there = |part: &String| {
            running
                .get(part)
                .is_some_and(|running| running.metadata_only == metadata_only)
        };
        let new = wanted.iter().filter(|part| !is_there(part)).cloned().collect();
        let sinks = self.dispatch.set_parts(&wanted, new, metadata_only);
        for sink in sinks {
            let part = sink.namespace().to_owned();
            let reporter = self.health_tracker.reporter_of(&part, metadata_only);
            let _task = match self.refused(&scope, &part) {
                Some(error) => self.refuse(error, sink, reporter),
                None => self.start(&scope, sink, reporter),
            };
            running.insert(part, Running { metadata_only, _task });
        }
        running.retain(|part, _| wanted.contains(part));
    }

    /// Returns the reason why this part of the resource cannot be listed, if known in advance.
    fn refused(&self, scope: &Scope, part: &str) -> Option<WatchError> {
        if !Namespaces::is_valid(part) {
            let name = part.to_owned();
            return Some(WatchError::InvalidNamespace { name });
        }
        let is_refused = self.resource.is_namespaced() == Some(false) && !scope.is_everywhere();
        is_refused.then(|| WatchError::NotNamespaced {
            namespaces: scope.parts().into_iter().collect::<Vec<_>>().join(", "),
        })
    }

    /// Reports the error as long as the task is held. A request would make the server answer that the kind is unknown.
    fn refuse(&self, error: WatchError, sink: NamespaceSink, reporter: Reporter) -> Task {
        let resource = &self.resource;
        tracing::warn!(%resource, %error, "invalid informer scope; not listing");
        reporter.update(|health| health.error = Some(Arc::new(error)));
        self.context.spawner.spawn("refused", async move {
            let _held = (sink, reporter);
            std::future::pending::<()>().await;
        })
    }

    fn start(&self, scope: &Scope, sink: NamespaceSink, reporter: Reporter) -> Task {
        let watched = Watched {
            resource: self.resource.clone(),
            scope: scope.clone(),
            namespace: sink.namespace().to_owned(),
        };
        let options = self.reflector.clone();
        let reflector = Reflector::new(&self.context, watched, options, sink, reporter);
        self.context.spawner.spawn("reflector", reflector.run())
    }
}
