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
//! 7. Namespaces come and go at one moment: what a watch tells that is not wanted any more is not taken.
//!
//! # Where handlers run
//! On the task that reads from the server, one after the other, so they must be quick: turn events into keys and put
//! them into a queue. They must not change the namespaces of the informer that calls them, nor end it, nor register with it.
//! They can ask it and its cache how things stand, ask a cache for any informer, and drop some: no lock of a cache is held
//! while handlers run or are waited for.

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
    Health, Liveness, ReflectorOptions, Resource, Scope, Store, StoreOptions, WatchError,
    health::{Board, Reporter, Standing},
    known::Known,
    reflector::Reflector,
    resource::Namespaces,
    store::store,
};
use dispatch::{Dispatch, Part};
use registration::Registered;

/// What every informer of a cluster has in common: connection, time, chance and tasks.
#[derive(Clone)]
pub struct InformerContext {
    client: Client,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    spawner: Spawner,
    known: Known,
    liveness: Liveness,
}

impl std::fmt::Debug for InformerContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl InformerContext {
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
            liveness: Liveness::default(),
        }
    }

    /// The same, where those who send requests to the same server say when it answers. Reflectors that wait after a failure
    /// ask again then.
    #[must_use]
    pub fn liveness(self, liveness: Liveness) -> Self {
        Self { liveness, ..self }
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
    /// later. Default, and with zero: not at all.
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
    surroundings: InformerContext,
    reflector: ReflectorOptions,
    resync: Option<Duration>,
    store: Store,
    dispatch: Arc<Dispatch>,
    board: Arc<Board>,
    /// By namespace, what ends with the last handle, and the watches with it. Whoever changes it waits for handlers with
    /// this lock in hand, so that nobody takes it who only asks: what they ask for is on the board.
    running: Mutex<BTreeMap<String, Running>>,
    /// Has whole objects asked for, after somebody has said that they are wanted.
    widening: Mutex<Option<Task>>,
}

/// A reflector that runs.
#[derive(Debug)]
struct Running {
    metadata_only: bool,
    _task: Task,
}

impl Informer {
    /// Starts listing and watching.
    pub fn start(
        surroundings: &InformerContext,
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
            board: Board::about(scope),
            running: Mutex::default(),
            widening: Mutex::default(),
        }));
        informer.adjust();
        informer
    }

    /// Changes the namespaces while it runs: those that are new are listed, those that are not wanted go, and nothing
    /// else is touched. None, or an empty name, means all of them. For an informer that others share there is
    /// [`Cache::set_namespaces`](crate::Cache::set_namespaces).
    pub fn set_namespaces<'a>(&self, namespaces: impl IntoIterator<Item = &'a str>) {
        self.want_namespaces(namespaces.into_iter().collect());
        self.adjust();
    }

    /// Asks for whole objects from now on, if it asked for metadata only: they are listed anew and replace what is there.
    /// It is in sync again when that is done. Handlers hear of each as of one that was there when they came.
    ///
    /// It waits for nobody, so that a handler of this informer can call it.
    pub fn widen(&self) {
        if !self.want_whole() {
            return;
        }
        let shared = Arc::downgrade(&self.0);
        let widening = async move {
            if let Some(shared) = shared.upgrade() {
                shared.adjust(&mut shared.lock());
            }
        };
        let task = self.0.surroundings.spawner.spawn("widening", widening);
        *self.0.widening.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    /// Notes that other namespaces are wanted. It waits for nobody; [`adjust`](Self::adjust) does what it takes.
    pub(crate) fn want_namespaces(&self, namespaces: Namespaces) {
        self.0.board.want(|scope| Some(scope.with_namespaces(namespaces)));
    }

    /// Notes that whole objects are wanted, and says whether that is new. It waits for nobody.
    fn want_whole(&self) -> bool {
        self.0.board.want(|scope| {
            scope.is_metadata_only().then(|| {
                self.0.dispatch.expect_whole();
                scope.whole()
            })
        })
    }

    /// Starts and ends reflectors until they are those of what is wanted. It waits for handlers of this informer, and
    /// calls them for what is not wanted any more.
    pub(crate) fn adjust(&self) {
        self.0.adjust(&mut self.0.lock());
    }

    /// Which resource it is about.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.0.resource
    }

    /// Which part of it.
    pub fn scope(&self) -> Scope {
        self.0.board.scope()
    }

    /// The objects.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// How it stands with the server now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.board.health()
    }

    /// Waits until its standing satisfies `condition`, and gives it; the last there was, if the informer ends before.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn health_when(&self, mut condition: impl FnMut(&Health) -> bool) -> Health {
        let mut standing = self.0.board.subscribe();
        let mut is_met = |health: &Health| health.ended || condition(health);
        let found = standing
            .wait_for(|standing| is_met(standing.combined()))
            .await
            .map(|found| found.combined().clone());
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
    pub async fn settled(&self) -> Result<(), Arc<WatchError>> {
        let health = self.health_when(Health::is_settled).await;
        health
            .in_the_way()
            .map_or(Ok(()), |trouble| Err(Arc::clone(trouble)))
    }

    /// As [`settled`](Self::settled), for one who asks about the objects of one namespace only, or of all of them as the
    /// empty name: how that part stands then. Other namespaces may be in trouble, or be listed for the first time.
    ///
    /// # Errors
    /// What it is about instead, if these objects are not in it.
    pub(crate) async fn settled_in(&self, namespace: &str) -> Result<Health, Scope> {
        // It has no parts.
        if self.0.resource.is_namespaced() == Some(false) {
            return Ok(self.health_when(Health::is_settled).await);
        }
        let is_settled = |standing: &Standing| {
            standing.combined().ended
                || !standing.scope().covers(namespace)
                || standing.of(namespace).is_some_and(Health::is_settled)
        };
        let answer = |standing: &Standing| match standing.scope().covers(namespace) {
            true => Ok(standing.of(namespace).cloned().unwrap_or_default()),
            false => Err(standing.scope().clone()),
        };
        // Nearly always it is settled: then a read does not subscribe.
        if let Some(answer) = self
            .0
            .board
            .look(|standing| is_settled(standing).then(|| answer(standing)))
        {
            return answer;
        }
        let mut changes = self.0.board.subscribe();
        let standing = changes.wait_for(is_settled).await;
        // The sender lives as long as `self`.
        standing.map_or_else(|_| Ok(self.health()), |standing| answer(&standing))
    }

    /// Ends it for everybody: the watch is closed, and what handles see is what was there last.
    pub fn end(&self) {
        // First, so that nobody who waits for the lock starts anything.
        self.0.board.end();
        self.0.lock().clear();
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
        self.0.board.has_ended()
    }

    /// Calls `handler` for every object that is there and for every change from now on, until the registration drops; and
    /// again for every object at the [interval](InformerOptions::resync) that the informer has, if any. If the informer was
    /// ended, the handler is told at once that nothing will come any more.
    pub fn handle(&self, name: &str, handler: impl Handler) -> Registration {
        self.register(name, Box::new(handler), self.0.resync)
    }

    /// As [`Self::handle`], with an interval of its own; zero is never.
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
        self.0.dispatch.register(&registered);
        let task = resync.map(|every| {
            let resync = registration::resync(
                Arc::downgrade(&registered),
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
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts and ends reflectors until they are those of the scope; starts none for an informer that was ended.
    fn adjust(&self, running: &mut BTreeMap<String, Running>) {
        if self.board.has_ended() {
            return;
        }
        // Somebody may want something else by now: then they wait for the lock that we have.
        let scope = self.board.scope();
        let (wanted, metadata_only) = (scope.parts(), scope.is_metadata_only());
        let is_there = |part: &String| {
            running
                .get(part)
                .is_some_and(|running| running.metadata_only == metadata_only)
        };
        let new = wanted.iter().filter(|part| !is_there(part)).cloned().collect();
        let places = self.dispatch.set_parts(&wanted, new, metadata_only);
        for place in places {
            let part = place.namespace().to_owned();
            let reporter = self.board.reporter_of(&part, metadata_only);
            let _task = match self.refused(&scope, &part) {
                Some(trouble) => self.refuse(trouble, (place, reporter)),
                None => self.start(&scope, &part, (place, reporter)),
            };
            running.insert(part, Running { metadata_only, _task });
        }
        running.retain(|part, _| wanted.contains(part));
    }

    /// Why this part of the resource cannot be asked for, if that is known.
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

    /// Says so, for as long as the task is held. The server would say that it does not have the kind.
    fn refuse(&self, trouble: WatchError, (place, reporter): (Part, Reporter)) -> Task {
        let resource = &self.resource;
        tracing::warn!(%resource, %trouble, "an informer has nothing to ask for");
        reporter.update(|health| health.trouble = Some(Arc::new(trouble)));
        self.surroundings.spawner.spawn("refused", async move {
            let _held = (place, reporter);
            std::future::pending::<()>().await;
        })
    }

    fn start(&self, scope: &Scope, part: &str, (place, reporter): (Part, Reporter)) -> Task {
        let reflector = Reflector::new(
            self.surroundings.client.clone(),
            (self.resource.clone(), scope.clone(), part),
            self.reflector.clone(),
            (
                Arc::clone(&self.surroundings.clock),
                Arc::clone(&self.surroundings.random),
                self.surroundings.known.clone(),
            ),
            place,
            reporter,
        );
        let reflector = reflector.sharing(&self.surroundings.liveness);
        self.surroundings.spawner.spawn("reflector", reflector.run())
    }
}
