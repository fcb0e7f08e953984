// SPDX-License-Identifier: Apache-2.0
//! Async mapping functions: from changes to keys, outside of the dispatch of changes.
//!
//! A handler runs under the dispatch lock of its informer and must not wait. The changes for a function of
//! [`map_async`](crate::map_async) are therefore recorded at dispatch, and mapped by a task of the source.
//!
//! # Guarantees
//! 1. Objects are mapped one after the other, in the order of their first change that is not mapped yet. Other sources and
//!    the informer do not wait.
//! 2. No change is lost while the source runs. An object that changes again before it is mapped waits once, with its
//!    oldest and its newest state: the number of waiting states is at most twice the number of objects.
//! 3. A call that fails, panics or takes longer than 30 s is retried after a back-off of 1 s, doubled up to 1 min, with
//!    the newest state. It does not delay other objects.
//! 4. The source is ready once each object that existed has been mapped, or has failed once.
//! 5. Nothing is mapped after the run has ended, or after the cluster was removed.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use serde::de::DeserializeOwned;
use steersman_cache::{DecodeError, Object};
use steersman_cluster::{Client, Cluster, ClusterName, Fence};
use steersman_core::{Clock, Mutex, ObjectKey, error_chain, panic_message};
use steersman_queue::{Backoff, Item, Options, Outcome, Queue};
use tokio::sync::Notify;

use super::SourceOptions;
use crate::{
    BoxError, Enqueue, Handler, IntoRequest, ObjectEvent, RequestKey, controller::LateSeries,
    gate::EnqueueSink,
};

/// Timeout of one call of a mapping function.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Handler that maps decoded objects to keys with an async function; from [`map_async`].
#[derive(Clone)]
pub struct MapAsync<F>(Arc<F>);

/// Context of an async mapping function. Cheap to clone.
#[derive(Clone)]
pub struct MapContext {
    cluster: ClusterName,
    client: Client,
}

/// Same as [`map_fn`](crate::map_fn), with an async function that can read other objects and can fail.
///
/// The function gets the object and a [`MapContext`] with a client that reads from the cache of the object's cluster. It
/// is called for the new state of an object and for its state before the change. It does not run while changes are
/// dispatched: no informer waits for it, and objects are mapped one after the other. An object that changes several times
/// before it is mapped is mapped once.
///
/// A call that returns an error, panics, or takes longer than 30 s is logged, counted as
/// `steersman_map_failures_total`, and retried after 1 s, then after twice as long each time, up to 1 min. Other objects
/// are mapped meanwhile. The controller begins to reconcile after each existing object was mapped or has failed once. An
/// object that cannot be decoded is skipped, as by `map_fn`.
///
/// Declare the kinds that the function reads with [`reads`](crate::Builder::reads), unless the controller watches them.
/// A change of such a kind alone enqueues nothing.
///
/// ```
/// use std::sync::Arc;
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use steersman_cache::Query;
/// use steersman_core::ObjectKey;
/// use steersman_runtime::{Controller, MapContext, kind, map_async};
///
/// // A secret concerns every map of its namespace.
/// let all_of_namespace = map_async(|secret: Arc<Secret>, cx: MapContext| async move {
///     let namespace = secret.metadata.namespace.clone().unwrap_or_default();
///     let maps = cx.client().list::<ConfigMap>(&Query::new().namespace(&namespace)).await?;
///     let names = maps.iter().filter_map(|map| map.metadata.name.clone());
///     let keys: Vec<_> = names.map(|name| ObjectKey::new(&namespace, &name)).collect();
///     Ok::<_, steersman_cluster::Error>(keys)
/// });
/// let maps = Controller::of::<ConfigMap>("maps").watches(kind::<Secret>(), all_of_namespace);
/// # let _ = maps;
/// ```
pub fn map_async<T, F, Fut, I, E>(map: F) -> MapAsync<F>
where
    F: Fn(Arc<T>, MapContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<I, E>> + Send,
    I: IntoIterator,
    E: Into<BoxError>,
{
    MapAsync(Arc::new(map))
}

impl MapContext {
    /// Client that reads from the cache of the object's cluster. Its writes fail: mapping functions run in every replica
    /// that watches, leader or standby.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Cluster of the object.
    #[must_use]
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }
}

/// An async mapping function without its types.
#[derive(Clone)]
#[doc(hidden)]
pub struct AsyncMapping<R>(Arc<dyn Fn(Arc<Object>, MapContext) -> Mapped<R> + Send + Sync>);

type Mapped<R> = Pin<Box<dyn Future<Output = Result<Vec<R>, CallError>> + Send>>;

/// Failure of one call of a mapping function.
enum CallError {
    Decode(DecodeError),
    Failed(BoxError),
}

impl<R> fmt::Debug for AsyncMapping<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AsyncMapping")
    }
}

impl<T, R, F, Fut, I, E> Handler<T, R> for MapAsync<F>
where
    T: DeserializeOwned + Send + Sync + 'static,
    R: RequestKey,
    F: Fn(Arc<T>, MapContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<I, E>> + Send,
    I: IntoIterator,
    I::Item: IntoRequest<R>,
    E: Into<BoxError>,
{
    /// Does nothing: the source calls the mapping function.
    fn handle(&self, _: &ObjectEvent<'_, T>, _: &mut Enqueue<'_, R>) {}

    fn mapping(&self) -> Option<AsyncMapping<R>> {
        let map = Arc::clone(&self.0);
        Some(AsyncMapping(Arc::new(move |object, cx| {
            let map = Arc::clone(&map);
            Box::pin(async move {
                let cluster = cx.cluster.clone();
                let object = object.decoded::<T>().map_err(CallError::Decode)?;
                let keys = map(object, cx).await;
                let keys = keys.map_err(|error| CallError::Failed(error.into()))?.into_iter();
                Ok(keys.map(|key| key.into_request(&cluster)).collect())
            })
        })))
    }
}

impl<F> fmt::Debug for MapAsync<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MapAsync")
    }
}

impl fmt::Debug for MapContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapContext")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// Changes in one cluster that wait for an async mapping function.
pub(super) struct Deferred<R: RequestKey> {
    mapping: AsyncMapping<R>,
    cx: MapContext,
    sink: Arc<EnqueueSink<R>>,
    clock: Arc<dyn Clock>,
    series: Arc<LateSeries>,
    /// The objects with changes, in order.
    queue: Queue<ObjectKey>,
    changes: Mutex<Changes>,
    /// Notified when no object is awaited any more.
    caught_up: Notify,
}

#[derive(Default)]
struct Changes {
    by_object: HashMap<ObjectKey, Change>,
    in_flight: Option<ObjectKey>,
    /// The objects without which the source is not ready.
    awaited: HashSet<ObjectKey>,
}

/// All changes of an object since it was last mapped.
struct Change {
    old: Option<Arc<Object>>,
    new: Arc<Object>,
    is_replay: bool,
    has_failed: bool,
}

impl Change {
    /// Adds a later change.
    fn extend(&mut self, later: Self) {
        let between = std::mem::replace(&mut self.new, later.new);
        self.old.get_or_insert(between);
        self.is_replay &= later.is_replay;
    }
}

impl<R: RequestKey> Deferred<R> {
    pub(super) fn new(
        mapping: &AsyncMapping<R>,
        cluster: &Cluster,
        sink: &Arc<EnqueueSink<R>>,
        options: &SourceOptions,
    ) -> Self {
        let clock = Arc::clone(cluster.clock());
        // A fence without its keeper is closed.
        let (_, no_writes) = Fence::new(Arc::clone(&clock));
        let backoff = Backoff::new()
            .base(Duration::from_secs(1))
            .max(Duration::from_secs(60));
        Self {
            mapping: mapping.clone(),
            cx: MapContext {
                cluster: cluster.name().clone(),
                client: options.reads.client(cluster).fenced(no_writes),
            },
            sink: Arc::clone(sink),
            queue: Queue::new(Arc::clone(&clock), Options::new().rate_limiter(backoff)),
            clock,
            series: Arc::clone(&options.series),
            changes: Mutex::default(),
            caught_up: Notify::new(),
        }
    }

    /// Records a change. Called while changes are dispatched.
    pub(super) fn add(&self, new: &Arc<Object>, old: Option<&Arc<Object>>, is_replay: bool) {
        let key = new.key();
        let change = Change {
            old: old.cloned(),
            new: Arc::clone(new),
            is_replay,
            has_failed: false,
        };
        self.changes.lock().add(key.clone(), change);
        self.queue.add(key);
    }

    /// Waits until each object with a change so far has been mapped, or has failed once.
    pub(super) async fn caught_up(&self) {
        self.changes.lock().await_untried();
        loop {
            let mut caught_up = std::pin::pin!(self.caught_up.notified());
            caught_up.as_mut().enable();
            if self.changes.lock().awaited.is_empty() {
                return;
            }
            caught_up.await;
        }
    }

    /// Maps changes for as long as the source runs.
    async fn run(&self) {
        while let Some(item) = self.queue.next().await {
            let key = item.key().clone();
            let Some(change) = self.changes.lock().take(&key) else {
                item.done(); // An earlier call has mapped this change.
                continue;
            };
            match self.map(&change).await {
                Ok(()) => item.done(),
                Err(error) => self.retry(item, change, &error),
            }
            if self.changes.lock().tried(&key) {
                self.caught_up.notify_waiters();
            }
        }
    }

    /// Maps the states of an object, and enqueues the keys.
    async fn map(&self, change: &Change) -> Result<(), BoxError> {
        let mut enqueue = Enqueue::of_change(&self.sink, &self.cx.cluster, change.is_replay);
        for object in std::iter::once(&change.new).chain(&change.old) {
            let call = (self.mapping.0)(Arc::clone(object), self.cx.clone());
            let (call, deadline) = (
                AssertUnwindSafe(call).catch_unwind(),
                self.clock.now() + CALL_TIMEOUT,
            );
            let Some(called) = self.clock.timeout_at(deadline, call).await else {
                return Err(format!("it took longer than {CALL_TIMEOUT:?}").into());
            };
            match called {
                Ok(Ok(keys)) => keys.into_iter().for_each(|key| enqueue.add(key)),
                Ok(Err(CallError::Decode(error))) => enqueue.skip_undecodable(object, &error),
                Ok(Err(CallError::Failed(error))) => return Err(error),
                Err(panic) => {
                    if let Some(series) = self.series.get() {
                        series.other_panics.inc();
                    }
                    return Err(format!("it panicked: {}", panic_message(&*panic)).into());
                }
            }
        }
        Ok(())
    }

    /// Retries a failed change together with later changes of the object.
    fn retry(&self, item: Item<ObjectKey>, change: Change, error: &BoxError) {
        let (key, text) = (item.key().clone(), error_chain(&**error));
        self.changes.lock().put_back(key.clone(), change);
        if let Some(series) = self.series.get() {
            series.map_failures.inc();
        }
        let finished = item.finish(Outcome::retry(&text));
        let (controller, cluster) = (self.sink.queue().name(), &self.cx.cluster);
        let next_try = finished.delay().map(tracing::field::debug);
        if finished.repeats_error() {
            tracing::debug!(controller, %cluster, %key, error = text, next_try, "mapping function failed as before; retrying");
        } else {
            tracing::warn!(controller, %cluster, %key, error = text, next_try, "mapping function failed; retrying");
        }
    }
}

impl Changes {
    fn add(&mut self, key: ObjectKey, change: Change) {
        match self.by_object.entry(key) {
            Entry::Occupied(mut known) => known.get_mut().extend(change),
            Entry::Vacant(none) => _ = none.insert(change),
        }
    }

    fn take(&mut self, key: &ObjectKey) -> Option<Change> {
        let change = self.by_object.remove(key)?;
        self.in_flight = Some(key.clone());
        Some(change)
    }

    /// Puts a failed change back, merged with later changes of the object.
    fn put_back(&mut self, key: ObjectKey, failed: Change) {
        let later = self.by_object.remove(&key);
        let mut change = Change {
            has_failed: true,
            ..failed
        };
        if let Some(later) = later {
            change.extend(later);
        }
        self.by_object.insert(key, change);
    }

    /// Awaits all objects that were not tried yet.
    fn await_untried(&mut self) {
        let untried = self.by_object.iter().filter(|(_, change)| !change.has_failed);
        let untried = untried.map(|(key, _)| key.clone()).chain(self.in_flight.clone());
        self.awaited = untried.collect();
    }

    /// Notes that an object was mapped or has failed. Returns true if no object is awaited any more.
    fn tried(&mut self, key: &ObjectKey) -> bool {
        self.in_flight = None;
        self.awaited.remove(key) && self.awaited.is_empty()
    }
}

/// Maps changes for as long as the source runs, if its handler has an async mapping function.
pub(super) async fn run<R: RequestKey>(deferred: Option<&Deferred<R>>) {
    match deferred {
        Some(deferred) => deferred.run().await,
        None => std::future::pending().await,
    }
}
