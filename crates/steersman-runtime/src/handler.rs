// SPDX-License-Identifier: Apache-2.0
//! Handlers: from changes to keys.
//!
//! A handler runs where the change is dispatched: synchronously, once for each change and in order. It must be quick. Reads
//! of other state belong into the reconciler, or into a function of [`map_async`](crate::map_async), which runs later.

use std::{collections::HashMap, fmt, time::Duration};

use serde::de::DeserializeOwned;
use steersman_cache::{DecodeError, Object};
use steersman_cluster::ClusterName;
use steersman_core::{ObjectKey, error_chain};
use steersman_queue::Add;

use crate::{ObjectEvent, Request, RequestKey, gate::EnqueueSink, owner::Primaries, source::AsyncMapping};

/// Priority of keys that are not urgent: first lists, resyncs, and everything after a change of leadership.
pub const LOW_PRIORITY: i32 = -100;

/// Turns changes of objects of type `T` into keys.
pub trait Handler<T, R: RequestKey>: Send + Sync + 'static {
    /// Enqueues the keys to reconcile because of this change.
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>);

    /// Async function that the source calls instead of `handle`; see [`map_async`](crate::map_async).
    #[doc(hidden)]
    fn mapping(&self) -> Option<AsyncMapping<R>> {
        None
    }
}

/// Sink for the keys of a handler. A key that already waits is merged; a key that one change adds twice counts once.
pub struct Enqueue<'q, R: RequestKey> {
    sink: &'q EnqueueSink<R>,
    cluster: &'q ClusterName,
    priority: i32,
    seen: Option<Seen<R>>,
}

/// Keys enqueued because of one change. Without this, a worker that takes a key between two adds would reconcile it twice.
struct Seen<R> {
    /// Most changes enqueue one key.
    first: Option<(R, Add)>,
    others: HashMap<R, Add>,
}

impl<'q, R: RequestKey> Enqueue<'q, R> {
    /// Sink for the keys of one change.
    pub(crate) fn of_change(sink: &'q EnqueueSink<R>, cluster: &'q ClusterName, is_replay: bool) -> Self {
        Self {
            sink,
            cluster,
            priority: if is_replay { LOW_PRIORITY } else { 0 },
            seen: Some(Seen {
                first: None,
                others: HashMap::new(),
            }),
        }
    }

    /// Sink for unrelated keys.
    pub(crate) fn plain(sink: &'q EnqueueSink<R>, cluster: &'q ClusterName) -> Self {
        Self {
            sink,
            cluster,
            priority: 0,
            seen: None,
        }
    }

    /// The cluster in which the change happened.
    #[must_use]
    pub fn cluster(&self) -> &'q ClusterName {
        self.cluster
    }

    /// Logs that an object cannot be decoded, so that its change enqueues nothing.
    pub(crate) fn skip_undecodable(&self, object: &Object, error: &DecodeError) {
        tracing::warn!(
            controller = self.sink.queue().name(),
            cluster = %self.cluster,
            key = %object.key(),
            error = %error_chain(error),
            "cannot decode object; its change enqueues nothing"
        );
    }

    /// Enqueues a key: with [`LOW_PRIORITY`] if nothing changed (first list, resync), with normal priority otherwise.
    pub fn add(&mut self, key: impl IntoRequest<R>) {
        self.add_with(key, Add::new().priority(self.priority));
    }

    /// Enqueues a key that becomes ready after `delay`.
    pub fn add_after(&mut self, key: impl IntoRequest<R>, delay: Duration) {
        self.add_with(key, Add::new().priority(self.priority).after(delay));
    }

    /// Enqueues a key with your own priority and delay.
    pub fn add_with(&mut self, key: impl IntoRequest<R>, how: Add) {
        let key = key.into_request(self.cluster);
        if self.seen.as_mut().is_none_or(|seen| seen.is_new(&key, how)) {
            self.sink.add(key, how);
        }
    }

    /// Enqueues the key of an object of the primary kind, because of that object or of one that it owns or names. A standby replica
    /// removes the key again when the object is deleted.
    pub(crate) fn add_own(&mut self, key: impl IntoRequest<R>) {
        self.add_with(key, Add::new().priority(self.priority).retractable());
    }

    /// As `add_own`, for an object that was not found.
    pub(crate) fn add_missing(&mut self, key: ObjectKey, primaries: &Primaries)
    where
        ObjectKey: IntoRequest<R>,
    {
        self.add_own(key.clone());
        let to_request = |cluster: &ClusterName, key: ObjectKey| key.into_request(cluster);
        primaries.bound_missing(self.cluster, key, self.sink, to_request);
    }
}

impl<R: RequestKey> Seen<R> {
    fn is_new(&mut self, key: &R, how: Add) -> bool {
        match &self.first {
            None => {
                self.first = Some((key.clone(), how));
                true
            }
            Some((first, with)) if first == key && *with == how => false,
            Some(_) => self.others.insert(key.clone(), how) != Some(how),
        }
    }
}

impl<R: RequestKey> fmt::Debug for Enqueue<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueue")
            .field("cluster", self.cluster)
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

/// A value that converts into a key of a controller: the key itself, or an object key in the cluster of the change.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of a controller whose keys are of type `{R}`"
)]
pub trait IntoRequest<R> {
    /// Converts into the key.
    fn into_request(self, cluster: &ClusterName) -> R;
}

impl<R: RequestKey> IntoRequest<R> for R {
    fn into_request(self, _cluster: &ClusterName) -> R {
        self
    }
}

impl IntoRequest<Request> for ObjectKey {
    fn into_request(self, cluster: &ClusterName) -> Request {
        Request::new(cluster.clone(), self)
    }
}

/// Handler that enqueues the changed object; from [`same_object`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SameObject;

/// Enqueues the object that changed.
#[must_use]
pub fn same_object() -> SameObject {
    SameObject
}

impl<T, R: RequestKey> Handler<T, R> for SameObject
where
    ObjectKey: IntoRequest<R>,
{
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        enqueue.add(event.object().key());
    }
}

/// Enqueues the object of the primary kind that changed.
pub(crate) struct PrimaryObject;

impl<T, R: RequestKey> Handler<T, R> for PrimaryObject
where
    ObjectKey: IntoRequest<R>,
{
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        enqueue.add_own(event.object().key());
    }
}

/// Handler that maps decoded objects to keys; from [`map_fn`].
#[derive(Clone)]
pub struct MapFn<F>(F);

/// Enqueues the keys that a pure function returns for an object: for its new state and for its state before the change, so
/// that an object that is no longer referenced is reconciled too.
///
/// An object that cannot be decoded is skipped, logged with its key, and counted as
/// `steersman_cache_decode_failures_total`. If the function panics, this change enqueues nothing until the object changes
/// again; the panic is logged and counted as `steersman_cache_handler_panics_total`.
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use steersman_runtime::map_fn;
/// use steersman_core::ObjectKey;
///
/// let by_annotation = map_fn(|secret: &Secret| {
///     let annotations = secret.metadata.annotations.as_ref();
///     let web = annotations.and_then(|annotations| annotations.get("example.com/web"));
///     web.map(|web| ObjectKey::new(secret.metadata.namespace.as_deref().unwrap_or_default(), web))
/// });
/// # let _ = by_annotation;
/// ```
pub fn map_fn<T, F, I>(map: F) -> MapFn<F>
where
    F: Fn(&T) -> I + Send + Sync + 'static,
    I: IntoIterator,
{
    MapFn(map)
}

impl<T, R, F, I> Handler<T, R> for MapFn<F>
where
    T: DeserializeOwned + Send + Sync + 'static,
    R: RequestKey,
    F: Fn(&T) -> I + Send + Sync + 'static,
    I: IntoIterator,
    I::Item: IntoRequest<R>,
{
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        for object in event.states() {
            match object.decoded::<T>() {
                Ok(object) => (self.0)(&object).into_iter().for_each(|key| enqueue.add(key)),
                Err(error) => enqueue.skip_undecodable(object, &error),
            }
        }
    }
}

impl<F> fmt::Debug for MapFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MapFn")
    }
}

/// Handler that maps object metadata to keys; from [`map_metadata`].
#[derive(Clone)]
pub struct MapMetadata<F>(F);

/// Same as [`map_fn`], from metadata only: key, labels, annotations, owners. Nothing is decoded.
pub fn map_metadata<F, I>(map: F) -> MapMetadata<F>
where
    F: Fn(&Object) -> I + Send + Sync + 'static,
    I: IntoIterator,
{
    MapMetadata(map)
}

impl<T, R, F, I> Handler<T, R> for MapMetadata<F>
where
    R: RequestKey,
    F: Fn(&Object) -> I + Send + Sync + 'static,
    I: IntoIterator,
    I::Item: IntoRequest<R>,
{
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        for object in event.states() {
            (self.0)(object).into_iter().for_each(|key| enqueue.add(key));
        }
    }
}

impl<F> fmt::Debug for MapMetadata<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MapMetadata")
    }
}

/// Handler made of a function; from [`handle_fn`].
#[derive(Clone)]
pub struct HandleFn<F>(F);

/// Makes a handler of a function that sees the whole change and enqueues any keys.
pub fn handle_fn<T, R, F>(handle: F) -> HandleFn<F>
where
    R: RequestKey,
    F: Fn(&ObjectEvent<'_, T>, &mut Enqueue<'_, R>) + Send + Sync + 'static,
{
    HandleFn(handle)
}

impl<T, R, F> Handler<T, R> for HandleFn<F>
where
    R: RequestKey,
    F: Fn(&ObjectEvent<'_, T>, &mut Enqueue<'_, R>) + Send + Sync + 'static,
{
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        (self.0)(event, enqueue);
    }
}

impl<F> fmt::Debug for HandleFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleFn")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_a_change_means_twice_is_new_once() {
        let mut seen = Seen {
            first: None,
            others: HashMap::new(),
        };
        let (soon, late) = (Add::new(), Add::new().after(Duration::from_secs(1)));
        let new = [
            ("a", soon),
            ("a", soon),
            ("b", soon),
            ("a", late),
            ("b", soon),
            ("a", soon),
        ]
        .map(|(name, how)| seen.is_new(&ObjectKey::new("", name), how));
        assert_eq!(new, [true, false, true, true, false, false]);
    }
}
