// SPDX-License-Identifier: Apache-2.0
//! A reflector, its store and everybody who wants to hear of changes.
//!
//! # Guarantees
//! 1. A handler hears of every change once and in order, and the store is at least as new as what it hears.
//! 2. A handler that comes late hears of every object that is there, marked as initial, and misses nothing after that.
//! 3. An object that went unseen is reported as deleted, marked as of unknown final state.
//! 4. A handler that panics or is slow is named, and harms no other.
//! 5. A raw subscriber delays nobody. If it falls behind it gets the newest state of each object once, and is told how
//!    much it skipped; a deletion followed by a creation is never merged away.
//! 6. When the last handle drops, the watch is closed and the store's memory is free.
//!
//! # Where handlers run
//! On the task that reads from the server, one after the other, so they must be quick: turn events into keys and put
//! them into a queue. They must not call the informer that calls them.

mod dispatch;
mod event;
#[cfg(all(test, loom))]
mod interleavings;
mod registration;
mod stats;
mod subscription;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use kube::Client;
use steersman_core::{Clock, Random, Spawner, Task};

pub use event::Event;
pub use registration::{Handler, Registration};
pub use stats::Stats;
pub use subscription::{Delivery, Subscription};

use crate::{
    Health, ReflectorOptions, Resource, Scope, Store, StoreOptions, Trouble, health::Board, known::Known,
    reflector::Reflector, store::store,
};
use dispatch::Dispatch;
use registration::Registered;

/// What every informer of a cluster has in common: connection, time, chance and tasks.
#[derive(Clone)]
pub struct Surroundings {
    client: Client,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    spawner: Spawner,
    known: Known,
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl Surroundings {
    /// Requests go through `client`, and tasks run on `spawner`.
    ///
    /// For large caches take a client from [`client`](crate::client), and give it and the spawner a thread of their own (a
    /// current-thread runtime): then bytes are read where they are parsed, and do not travel between threads, which would
    /// double the cost of a list.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>, random: Arc<Random>, spawner: Spawner) -> Self {
        Self {
            client,
            clock,
            random,
            spawner,
            known: Known::default(),
        }
    }

    /// The same, where somebody knows which kinds there are.
    pub(crate) fn knowing(self, known: Known) -> Self {
        Self { known, ..self }
    }

    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// What starts tasks.
    #[must_use]
    pub fn spawner(&self) -> &Spawner {
        &self.spawner
    }
}

/// How an informer works.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct InformerOptions {
    reflector: ReflectorOptions,
    store: StoreOptions,
    resync: Option<Duration>,
}

impl InformerOptions {
    /// How it lists and watches.
    pub fn reflector(mut self, options: ReflectorOptions) -> Self {
        self.reflector = options;
        self
    }

    /// How it keeps objects.
    pub fn store(mut self, options: StoreOptions) -> Self {
        self.store = options;
        self
    }

    /// At which interval handlers that do not ask for one of their own see every object again, up to a tenth earlier or
    /// later. Default: not at all.
    pub fn resync(mut self, every: Duration) -> Self {
        self.resync = Some(every);
        self
    }
}

/// A handle on an informer. Clones share it; it ends with the last one.
#[derive(Clone, Debug)]
pub struct Informer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    resource: Resource,
    surroundings: Surroundings,
    reflector: ReflectorOptions,
    resync: Option<Duration>,
    store: Store,
    dispatch: Arc<Dispatch>,
    board: Arc<Board>,
    running: Mutex<Running>,
}

/// What ends with the last handle, and the watches with it.
#[derive(Debug)]
struct Running {
    scope: Scope,
    /// The task of each reflector, by its namespace.
    tasks: BTreeMap<String, Task>,
}

impl Informer {
    /// Starts listing and watching.
    pub fn start(
        surroundings: &Surroundings,
        resource: Resource,
        scope: Scope,
        options: InformerOptions,
    ) -> Self {
        let (writer, store) = store(options.store);
        let clock = Arc::clone(&surroundings.clock);
        let informer = Self(Arc::new(Shared {
            dispatch: Arc::new(Dispatch::new(resource.clone(), (writer, store.clone()), clock)),
            resource,
            surroundings: surroundings.clone(),
            reflector: options.reflector,
            resync: options.resync,
            store,
            board: Board::new(),
            running: Mutex::new(Running {
                scope: Scope::all(),
                tasks: BTreeMap::new(),
            }),
        }));
        informer.0.run(&mut informer.0.lock(), scope);
        informer
    }

    /// Changes the namespaces while it runs: those that are new are listed, those that are not wanted go, and nothing
    /// else is touched. None means all of them. For an informer that others share there is
    /// [`Cache::set_namespaces`](crate::Cache::set_namespaces).
    pub fn set_namespaces<'a>(&self, namespaces: impl IntoIterator<Item = &'a str>) {
        let mut running = self.0.lock();
        let scope = running
            .scope
            .with_namespaces(namespaces.into_iter().map(str::to_owned).collect());
        self.0.run(&mut running, scope);
    }

    /// Asks for whole objects from now on, if it asked for metadata only: they are listed anew and replace what is there.
    /// It is in sync again when that is done. Handlers hear of each as of one that was there when they came.
    pub fn widen(&self) {
        let mut running = self.0.lock();
        if running.scope.is_metadata_only() {
            running.tasks.clear();
            let scope = running.scope.whole();
            self.0.run(&mut running, scope);
        }
    }

    /// Which resource it is about.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.0.resource
    }

    /// Which part of it.
    pub fn scope(&self) -> Scope {
        self.0.lock().scope.clone()
    }

    /// The objects.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// How it stands with the server now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.board.subscribe().borrow().clone()
    }

    /// Waits until its standing satisfies `condition`, and gives it; the last there was, if the informer ends before.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn health_when(&self, mut condition: impl FnMut(&Health) -> bool) -> Health {
        let mut health = self.0.board.subscribe();
        let found = health
            .wait_for(|health| health.ended || condition(health))
            .await
            .map(|found| found.clone());
        // The sender lives as long as `self`.
        found.unwrap_or_else(|_| self.health())
    }

    /// Waits until a whole list was handed on, or the informer was ended.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn synced(&self) {
        self.health_when(|health| health.synced).await;
    }

    /// Waits until a whole list was handed on, or something is known to be in the way. A kind that the server does not
    /// have any more is in the way, too, whatever there was of it.
    ///
    /// # Errors
    /// What is in the way. The informer goes on trying.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn settled(&self) -> Result<(), Arc<Trouble>> {
        let health = self
            .health_when(|health| health.synced || health.trouble.is_some())
            .await;
        match health.trouble {
            Some(trouble) if !health.synced || *trouble == Trouble::Absent => Err(trouble),
            _ => Ok(()),
        }
    }

    /// Ends it for everybody: the watch is closed, and what handles see is what was there last.
    pub fn end(&self) {
        // First, so that nobody who waits for the lock starts anything.
        self.0.board.end();
        self.0.lock().tasks.clear();
        self.0.dispatch.end();
    }

    /// Waits until somebody has ended it, or its cache was told to remove it.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn ended(&self) {
        self.health_when(|health| health.ended).await;
    }

    /// Whether somebody has ended it.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.health().ended
    }

    /// Calls `handler` for every object that is there and for every change from now on, until the registration drops; and
    /// again for every object at the [interval](InformerOptions::resync) that the informer has, if any. If the informer was
    /// ended, the handler is told at once that nothing will come any more.
    pub fn handle(&self, name: &str, handler: impl Handler) -> Registration {
        self.register(name, Box::new(handler), self.0.resync)
    }

    /// As [`Self::handle`], with an interval of its own.
    pub fn handle_with_resync(&self, name: &str, every: Duration, handler: impl Handler) -> Registration {
        self.register(name, Box::new(handler), Some(every))
    }

    /// A stream of events for those who cannot turn them into keys. It may fall behind by `lag` events before it skips.
    #[must_use]
    pub fn subscribe(&self, name: &str, lag: usize) -> Subscription {
        let (subscriber, queue) = subscription::subscription(lag);
        Subscription::new(self.handle(name, subscriber), queue)
    }

    /// As [`Self::subscribe`], with an interval of its own at which every object comes again.
    #[must_use]
    pub fn subscribe_with_resync(&self, name: &str, lag: usize, every: Duration) -> Subscription {
        let (subscriber, queue) = subscription::subscription(lag);
        Subscription::new(self.handle_with_resync(name, every, subscriber), queue)
    }

    fn register(&self, name: &str, handler: Box<dyn Handler>, resync: Option<Duration>) -> Registration {
        let figures = self.0.dispatch.figures().of_handler(name);
        let registered = Arc::new(Registered::new(name, handler, figures));
        self.0.dispatch.register(Arc::clone(&registered));
        let task = resync.map(|every| {
            let resync = registration::resync(
                Arc::clone(&registered),
                Arc::downgrade(&self.0.dispatch),
                every,
                (
                    Arc::clone(&self.0.surroundings.clock),
                    Arc::clone(&self.0.surroundings.random),
                ),
            );
            self.0.surroundings.spawner.spawn("resync", resync)
        });
        Registration::new(registered, task)
    }

    /// What it has seen and what it holds. It waits for no handler.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let store = &self.0.store;
        let (health, figures) = (self.health(), self.0.dispatch.figures());
        let silent_for = figures
            .last_event()
            .map(|last| self.0.surroundings.clock.now().saturating_since(last));
        Stats {
            resource: self.0.resource.clone(),
            scope: self.scope(),
            synced: health.synced,
            trouble: health.trouble,
            objects: store.len(),
            bytes: store.bytes(),
            decoded_bytes: store.decoded_bytes(),
            events: figures.events.load(Relaxed),
            silent_for,
            invalid: figures.invalid.load(Relaxed),
            decode_failures: store.decode_failures(),
            lists: health.lists,
            relists: health.relists,
            watches: health.watches,
            watch_restarts: health.watch_restarts,
            slow_handlers: figures.handlers(|of| &of.slow),
            panicked_handlers: figures.handlers(|of| &of.panicked),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts and ends reflectors until they are those of the scope; starts none for an informer that was ended.
    fn run(&self, running: &mut Running, scope: Scope) {
        if self.board.has_ended() {
            return;
        }
        let parts = scope.parts();
        // Those that are new come first, or it would seem for a moment as if all that is wanted were listed.
        for part in &parts {
            if running.tasks.contains_key(part) {
                continue;
            }
            let reflector = Reflector::new(
                self.surroundings.client.clone(),
                (self.resource.clone(), scope.clone(), part),
                self.reflector.clone(),
                (
                    Arc::clone(&self.surroundings.clock),
                    Arc::clone(&self.surroundings.random),
                    self.surroundings.known.clone(),
                ),
                self.dispatch.add_part(part, scope.is_metadata_only()),
                self.board.reporter(),
            );
            let task = self.surroundings.spawner.spawn("reflector", reflector.run());
            running.tasks.insert(part.clone(), task);
        }
        running.tasks.retain(|part, _| {
            let is_wanted = parts.contains(part);
            if !is_wanted {
                self.dispatch.remove_part(part, &parts);
            }
            is_wanted
        });
        running.scope = scope;
    }
}
