// SPDX-License-Identifier: Apache-2.0
//! Resources outside of the cluster, such as a bucket of a cloud or a record of an HTTP service.
//!
//! A process can die between the call that creates a resource and the write that stores its identifier. Without more, the next
//! process creates a second one, and nothing ever deletes the first. Therefore an [`ExternalResource`] stores an intent with a
//! token in an annotation of the parent before it calls [`External::create`], and the identifier after that.
//!
//! # Guarantees
//! 1. The intent is stored before the create call. The write is a compare-and-swap: a replica with an outdated object writes
//!    nothing and calls nothing.
//! 2. If [`create`](External::create) takes the token, a crash at any point leaves exactly one resource: the next attempt has the
//!    same token, and no other token is used while the outcome of the first is unknown.
//! 3. If it does not, an intent without an identifier delays the next create call until the [grace
//!    period](ExternalResource::grace) has passed and [`observe`](External::observe) finds nothing. Until then the resource is
//!    found by its token, which it has as its name or a tag.
//! 4. [`remove`](ExternalResource::remove) is done only when `observe` does not find the resource any more. It does not trust that
//!    answer before the grace period has passed since the intent, because a create call can still be under way.
//! 5. A resource that was deleted by others is created again, with another token.
//! 6. A copy of the parent has another uid and does not share its resource: a record of another uid is ignored.
//! 7. A resource in its desired state costs one `observe` and no request to the API server.
//!
//! # Not promised
//! A resource whose API neither takes a token nor becomes visible within the grace period can be created twice.

mod record;

use std::{fmt, future::Future, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use steersman_cluster::{Error, Kind};
use steersman_runtime::{BoxError, Context};

use self::record::{Record, Slot};
use crate::Cleaned;

/// Default grace period.
const GRACE: Duration = Duration::from_secs(60);

/// Default interval of observations while a resource changes.
const POLL: Duration = Duration::from_secs(5);

/// Client of an API outside of the cluster, for one kind of resource.
pub trait External: Send + Sync {
    /// Desired state.
    type Desired: Sync + ?Sized;
    /// Observed state.
    type Observed: Send;

    /// True if the API takes a token: calls of [`create`](Self::create) with the same token create one resource.
    const TAKES_TOKEN: bool;

    /// Finds the resource: by its identifier if that is known, otherwise by the token. `None` if the API has no such resource.
    fn observe(
        &self,
        id: &ExternalId,
    ) -> impl Future<Output = Result<Option<Observation<Self::Observed>>, BoxError>> + Send;

    /// Creates the resource, and returns its identifier. The token is unique for the parent and stable over retries. An API
    /// without tokens gets it as the name or a tag of the resource.
    fn create(
        &self,
        token: &str,
        desired: &Self::Desired,
    ) -> impl Future<Output = Result<String, BoxError>> + Send;

    /// Reports whether the observed state differs from the desired one.
    fn differs(&self, observed: &Self::Observed, desired: &Self::Desired) -> bool;

    /// Brings the resource into its desired state. Repeated calls must have the same effect as one.
    fn update(&self, id: &str, desired: &Self::Desired) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Begins to delete the resource. A resource that does not exist is not an error.
    fn delete(&self, id: &str) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Identity of an external resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExternalId {
    /// Token of its create call.
    pub token: String,
    /// Identifier that [`External::create`] returned; `None` while the outcome of that call is unknown.
    pub id: Option<String>,
}

/// A resource that [`External::observe`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_structs,
    reason = "implementations of `External` create it"
)]
pub struct Observation<O> {
    /// Its identifier.
    pub id: String,
    /// Its state.
    pub state: O,
}

/// State of an external resource after a reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExternalState<O> {
    /// The resource has its desired state.
    Ready(O),
    /// It does not exist yet, or does not have its desired state yet: reconcile again after this delay.
    Waiting(Duration),
}

/// An external resource of a parent.
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap as Site;
/// # use steersman_core::Action;
/// # use steersman_kit::*;
/// # use steersman_runtime::BoxError;
/// # trait Bucketlike: External<Desired = str> {}
/// # struct Sites<B> { buckets: B }
/// impl<B: Bucketlike + 'static> KindReconciler for Sites<B> {
/// #   type Kind = Site;
/// #   type Status = NoStatus;
/// #   type Children = ();
///     type Finalizer = RunsCleanup;
///     // …
///     async fn reconcile(&self, site: &Site, work: &mut Work<Self>) -> Result<Action, BoxError> {
///         let bucket = ExternalResource::new("bucket", &self.buckets);
///         match bucket.ensure(site, "eu-1", work.context()).await? {
///             ExternalState::Ready(_) => Ok(Action::requeue_after(std::time::Duration::from_secs(300))),
///             ExternalState::Waiting(delay) => Ok(Action::requeue_after(delay)),
/// #           _ => Ok(Action::await_change()),
///         }
///     }
/// }
///
/// impl<B: Bucketlike + 'static> Cleanup for Sites<B> {
///     const FINALIZER: &str = "example.com/bucket";
///
///     async fn cleanup(&self, site: &Site, work: &mut Work<Self>) -> Result<Cleaned, BoxError> {
///         ExternalResource::new("bucket", &self.buckets).remove(site, work.context()).await
///     }
/// }
/// ```
///
/// The parent needs a finalizer, so that [`remove`](Self::remove) is called; with `type Finalizer = RunsCleanup` it is added before
/// the first reconcile. The API server has to serve the version of the parent that is passed.
#[must_use = "a resource is created by `ensure`"]
pub struct ExternalResource<'a, E> {
    name: &'a str,
    api: &'a E,
    grace: Duration,
    poll: Duration,
}

/// The record of an external resource could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalError {
    /// A request to the API server failed.
    #[error("cannot store the record of the external resource `{name}`")]
    Request {
        /// Name of the resource.
        name: String,
        /// The cause.
        source: Error,
    },
    /// The record was changed since the parent was read. Nothing was written or called; the next reconcile sees the change.
    #[error("the record of the external resource `{name}` has changed; reconciling again")]
    Outdated {
        /// Name of the resource.
        name: String,
    },
}

impl<'a, E: External> ExternalResource<'a, E> {
    /// Names a resource. The name is a part of the annotation `external.steersman.dev/NAME` and of the token; it must be a valid
    /// label name, and must not change.
    pub fn new(name: &'a str, api: &'a E) -> Self {
        Self {
            name,
            api,
            grace: GRACE,
            poll: POLL,
        }
    }

    /// Time after which a create call has either failed, or its resource can be observed. Default: 60 s.
    pub fn grace(mut self, period: Duration) -> Self {
        self.grace = period;
        self
    }

    /// Interval of observations while the resource is being updated or deleted. Default: 5 s.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = interval;
        self
    }

    /// Creates the resource if it does not exist, and updates it if it differs from `desired`. For an object that is
    /// [only observed](crate::Switches), it does neither.
    ///
    /// # Errors
    /// When the API or the API server rejects a call or does not answer, or if the object is outdated.
    ///
    /// # Cancel safety
    /// It can be dropped at any time: the next call continues.
    pub async fn ensure<K: Kind>(
        &self,
        parent: &K,
        desired: &E::Desired,
        cx: &Context,
    ) -> Result<ExternalState<E::Observed>, BoxError> {
        let mut slot = Slot::of(parent, self.name);
        if cx.is_observe_only() {
            return self.observe(slot.record(), desired).await;
        }
        let mut record = match slot.record() {
            Some(record) if record.id.is_some() || !E::TAKES_TOKEN => record,
            // The next call with the same token has the effect of the first.
            Some(mut record) => {
                // The grace period begins with the last call.
                if self.rest_of_grace(&record, cx).is_zero() {
                    record.requested = now(cx);
                    slot.store(&record, cx).await?;
                }
                self.create(&mut slot, record, desired, cx).await?
            }
            None => {
                let intent = slot.intent(0, now(cx));
                slot.store(&intent, cx).await?;
                self.create(&mut slot, intent, desired, cx).await?
            }
        };
        let mut found = self.api.observe(&record.external_id()).await?;
        if found.is_none() {
            let rest = self.rest_of_grace(&record, cx);
            if !rest.is_zero() {
                return Ok(ExternalState::Waiting(rest.min(self.poll)));
            }
            // The call before has failed, or the resource was deleted by others.
            let incarnation = record.incarnation + u64::from(record.id.is_some());
            let intent = slot.intent(incarnation, now(cx));
            slot.store(&intent, cx).await?;
            record = self.create(&mut slot, intent, desired, cx).await?;
            found = self.api.observe(&record.external_id()).await?;
        }
        let Some(Observation { id, state }) = found else {
            return Ok(ExternalState::Waiting(self.poll));
        };
        if record.id.as_ref() != Some(&id) {
            record.id = Some(id.clone());
            slot.store(&record, cx).await?;
        }
        if !self.api.differs(&state, desired) {
            return Ok(ExternalState::Ready(state));
        }
        self.api.update(&id, desired).await?;
        match self.api.observe(&record.external_id()).await? {
            Some(now) if !self.api.differs(&now.state, desired) => Ok(ExternalState::Ready(now.state)),
            _ => Ok(ExternalState::Waiting(self.poll)),
        }
    }

    /// Returns the state of the resource without changing it. Nothing reports a change, so the caller has to ask again.
    async fn observe(
        &self,
        record: Option<Record>,
        desired: &E::Desired,
    ) -> Result<ExternalState<E::Observed>, BoxError> {
        let Some(record) = record else {
            return Ok(ExternalState::Waiting(self.poll));
        };
        match self.api.observe(&record.external_id()).await? {
            Some(found) if !self.api.differs(&found.state, desired) => Ok(ExternalState::Ready(found.state)),
            _ => Ok(ExternalState::Waiting(self.poll)),
        }
    }

    /// Deletes the resource. It is [done](Cleaned::Done) when the API does not have the resource any more.
    ///
    /// # Errors
    /// When the API rejects a call or does not answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time: the next call continues.
    pub async fn remove<K: Kind>(&self, parent: &K, cx: &Context) -> Result<Cleaned, BoxError> {
        // Without an intent, nothing was ever created.
        let Some(record) = Slot::of(parent, self.name).record() else {
            return Ok(Cleaned::Done);
        };
        if let Some(found) = self.api.observe(&record.external_id()).await? {
            self.api.delete(&found.id).await?;
            if self.api.observe(&record.external_id()).await?.is_some() {
                return Ok(Cleaned::RetryAfter(self.poll));
            }
            return Ok(Cleaned::Done);
        }
        let rest = self.rest_of_grace(&record, cx);
        Ok(match rest.is_zero() {
            true => Cleaned::Done,
            false => Cleaned::RetryAfter(rest.min(self.poll)),
        })
    }

    /// Calls `create` for a stored intent, and stores the identifier.
    async fn create<K: Kind>(
        &self,
        slot: &mut Slot<'_, K>,
        intent: Record,
        desired: &E::Desired,
        cx: &Context,
    ) -> Result<Record, BoxError> {
        let id = self.api.create(&intent.token, desired).await?;
        let record = Record {
            id: Some(id),
            requested: now(cx),
            ..intent
        };
        slot.store(&record, cx).await?;
        Ok(record)
    }

    /// Time until the answer that the resource does not exist can be trusted.
    fn rest_of_grace(&self, record: &Record, cx: &Context) -> Duration {
        let since = now(cx).duration_since(record.requested).max(SignedDuration::ZERO);
        self.grace.saturating_sub(since.unsigned_abs())
    }
}

fn now(cx: &Context) -> Timestamp {
    Timestamp::try_from(cx.clock().wall()).unwrap_or(Timestamp::UNIX_EPOCH)
}

impl<E> fmt::Debug for ExternalResource<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalResource")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
