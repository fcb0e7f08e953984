// SPDX-License-Identifier: Apache-2.0
//! From changes to keys.
//!
//! A handler runs where the change is dispatched: synchronously, once for each change and in order. It must be quick. What
//! has to look at the world belongs into the reconciler.

use std::{collections::HashMap, fmt, time::Duration};

use serde::de::DeserializeOwned;
use steersman_cache::Object;
use steersman_cluster::ClusterName;
use steersman_core::{ObjectKey, error_chain};
use steersman_queue::{Add, Queue};

use crate::{ObjectEvent, Request, RequestKey, owner::Primaries, source::EnqueueSink};

/// The priority of what is not urgent: first lists, resyncs, and everything after a change of leadership.
pub const LOW_PRIORITY: i32 = -100;

/// Turns changes of objects of type `T` into keys.
pub trait Handler<T, R: RequestKey>: Send + Sync + 'static {
    /// Enqueues what is to be reconciled because of this change.
    fn handle(&self, occurrence: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>);
}

/// Where handlers put keys. A key that waits already is merged with, and one that a change means twice counts once.
pub struct Enqueue<'q, R: RequestKey> {
    intake: &'q EnqueueSink<R>,
    cluster: &'q ClusterName,
    priority: i32,
    seen: Option<Seen<R>>,
}

/// What was enqueued because of one change. A worker may be so quick that it has taken a key between two adds, and would
/// do it again.
struct Seen<R> {
    /// Most changes mean one key.
    first: Option<(R, Add)>,
    others: HashMap<R, Add>,
}

impl<'q, R: RequestKey> Enqueue<'q, R> {
    /// For the keys of one change.
    pub(crate) fn of_change(intake: &'q EnqueueSink<R>, cluster: &'q ClusterName, is_replay: bool) -> Self {
        Self {
            intake,
            cluster,
            priority: if is_replay { LOW_PRIORITY } else { 0 },
            seen: Some(Seen {
                first: None,
                others: HashMap::new(),
            }),
        }
    }

    /// For keys that have nothing to do with each other.
    pub(crate) fn plain(intake: &'q EnqueueSink<R>, cluster: &'q ClusterName) -> Self {
        Self {
            intake,
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

    pub(crate) fn queue(&self) -> &'q Queue<R> {
        self.intake.queue()
    }

    /// Enqueues a key: with [`LOW_PRIORITY`] if nothing changed, with normal priority otherwise.
    pub fn add(&mut self, key: impl IntoRequest<R>) {
        self.add_with(key, Add::new().priority(self.priority));
    }

    /// Enqueues a key that becomes ready after that time.
    pub fn add_after(&mut self, key: impl IntoRequest<R>, delay: Duration) {
        self.add_with(key, Add::new().priority(self.priority).after(delay));
    }

    /// Enqueues a key with a priority and a delay of its own.
    pub fn add_with(&mut self, key: impl IntoRequest<R>, how: Add) {
        let key = key.into_request(self.cluster);
        if self.seen.as_mut().is_none_or(|seen| seen.is_new(&key, how)) {
            self.intake.add(key, how);
        }
    }

    /// Enqueues the key of an object of the primary kind, because of that object or of one that it owns. A standby replica
    /// can take the key out again when the object is deleted.
    pub(crate) fn add_own(&mut self, key: ObjectKey)
    where
        ObjectKey: IntoRequest<R>,
    {
        self.add_with(key, Add::new().priority(self.priority).retractable());
    }

    /// The same for an object that was not found.
    pub(crate) fn add_missing(&mut self, key: ObjectKey, primaries: &Primaries)
    where
        ObjectKey: IntoRequest<R>,
    {
        self.add_own(key.clone());
        let to_request = |cluster: &ClusterName, key: ObjectKey| key.into_request(cluster);
        primaries.bound_missing(self.cluster, key, self.intake, to_request);
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

/// What can be a key of a controller: the key itself, or the key of an object in the cluster where the change happened.
#[diagnostic::on_unimplemented(message = "a `{Self}` is no key of a controller whose keys are `{R}`s")]
pub trait IntoRequest<R> {
    /// The key.
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

/// The object itself; from [`same_object`].
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
    fn handle(&self, occurrence: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        enqueue.add(occurrence.object().key());
    }
}

/// Enqueues the object of the primary kind that changed.
pub(crate) struct PrimaryObject;

impl<T, R: RequestKey> Handler<T, R> for PrimaryObject
where
    ObjectKey: IntoRequest<R>,
{
    fn handle(&self, occurrence: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        enqueue.add_own(occurrence.object().key());
    }
}

/// A mapping; from [`map_fn`].
#[derive(Clone)]
pub struct MapFn<F>(F);

/// Enqueues what a pure function makes of an object: of what it is, and of what it was before, so that one who is not
/// meant any more is woken too.
///
/// An object that cannot be decoded is left out. That is logged with its key, and counted as
/// `steersman_cache_decode_failures_total`. A function that panics has said nothing about the object until that changes
/// again; that is logged and counted, too, as `steersman_cache_handler_panics_total`.
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
    fn handle(&self, occurrence: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        for object in occurrence.states() {
            match object.decoded::<T>() {
                Ok(object) => (self.0)(&object).into_iter().for_each(|key| enqueue.add(key)),
                Err(error) => tracing::warn!(
                    controller = enqueue.queue().name(),
                    cluster = %enqueue.cluster(),
                    key = %object.key(),
                    error = %error_chain(&error),
                    "an object is left out that cannot be decoded: nobody is woken because of it"
                ),
            }
        }
    }
}

impl<F> fmt::Debug for MapFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Related")
    }
}

/// A mapping of headers; from [`map_metadata`].
#[derive(Clone)]
pub struct MapMetadata<F>(F);

/// As [`map_fn`], by what the header says: key, labels, annotations, owners. Nothing is decoded.
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
    fn handle(&self, occurrence: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        for object in occurrence.states() {
            (self.0)(object).into_iter().for_each(|key| enqueue.add(key));
        }
    }
}

impl<F> fmt::Debug for MapMetadata<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelatedHeader")
    }
}

/// A handler from a function; from [`handle_fn`].
#[derive(Clone)]
pub struct HandleFn<F>(F);

/// A handler from a function that sees the whole change and enqueues what it likes.
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
    fn handle(&self, occurrence: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        (self.0)(occurrence, enqueue);
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
