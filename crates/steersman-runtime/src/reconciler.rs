// SPDX-License-Identifier: Apache-2.0
//! The user's code: a function that brings the object of a key into its desired state.

#[cfg(test)]
mod tests;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use kube::core::Status;
use steersman_cache::{ReadError, Resource};
use steersman_cluster::{Closed, Conflict};
use steersman_core::Action;

use crate::{Context, Request};

/// An error of user code or of a library.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Brings the object of a key into its desired state. A controller calls it whenever something relevant changes: possibly
/// twice for one change, and once for many changes. Look at the current state, never at the event.
///
/// No two calls for one key run at the same time. The table shows the effect of each result:
///
/// | result | the key | counted as |
/// |---|---|---|
/// | [`Action::await_change`] | waits for a change, its back-off is reset | `success` |
/// | [`Action::requeue_after`] | waits that long, its back-off is reset | `requeue_after` |
/// | [`Action::requeue`] | waits for its back-off | `requeue` |
/// | an error, a panic, a timeout | waits for its back-off | `error` |
/// | a [`retry_after`] error | waits that long; its back-off increases by one step | `error` |
/// | a [`terminal`] error | waits for a change; its back-off is kept | `error` |
///
/// ```
/// use std::sync::Arc;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use steersman_runtime::{Context, Reconciler, Request};
/// use steersman_core::Action;
///
/// struct Greeter;
///
/// impl Reconciler for Greeter {
///     type Error = steersman_cluster::Error;
///
///     async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, Self::Error> {
///         let Some(map) = cx.client().get::<ConfigMap>(request.key()).await? else {
///             return Ok(Action::await_change()); // The object was deleted; nothing to do.
///         };
///         tracing::info!(name = map.metadata.name, "hello");
///         Ok(Action::await_change())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reconciler of `{R}`",
    note = "implement `Reconciler`, or wrap an async function with `reconcile_fn`"
)]
pub trait Reconciler<R = Request>: Send + Sync + 'static {
    /// Error of a reconcile.
    type Error: Into<BoxError> + Send;

    /// Reads the object of `request` and makes the missing changes.
    fn reconcile(&self, request: R, cx: Context) -> impl Future<Output = Result<Action, Self::Error>> + Send;
}

/// Makes a reconciler of an async function or closure.
///
/// ```
/// use steersman_runtime::{Context, Request, reconcile_fn};
/// use steersman_core::Action;
///
/// async fn look(request: Request, _cx: Context) -> Result<Action, std::convert::Infallible> {
///     println!("{request}");
///     Ok(Action::await_change())
/// }
///
/// let reconciler = reconcile_fn(look);
/// # let _ = reconciler;
/// ```
pub fn reconcile_fn<F, R, Fut, E>(function: F) -> ReconcileFn<F>
where
    F: Fn(R, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Action, E>> + Send,
    E: Into<BoxError> + Send,
{
    ReconcileFn(function)
}

/// Reconciler made of an async function; from [`reconcile_fn`].
#[derive(Clone)]
pub struct ReconcileFn<F>(F);

impl<F, R, Fut, E> Reconciler<R> for ReconcileFn<F>
where
    F: Fn(R, Context) -> Fut + Send + Sync + 'static,
    R: Send + 'static,
    Fut: Future<Output = Result<Action, E>> + Send,
    E: Into<BoxError> + Send,
{
    type Error = E;

    fn reconcile(&self, request: R, cx: Context) -> impl Future<Output = Result<Action, E>> + Send {
        (self.0)(request, cx)
    }
}

impl<F> fmt::Debug for ReconcileFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReconcileFn")
    }
}

/// A reconciler with its type erased.
pub struct BoxReconciler<R = Request>(Arc<dyn Erased<R>>);

pub(crate) type Reconciling<'a> = Pin<Box<dyn Future<Output = Result<Action, BoxError>> + Send + 'a>>;

trait Erased<R>: Send + Sync {
    fn reconcile(&self, request: R, cx: Context) -> Reconciling<'_>;
}

impl<R: Send + 'static, T: Reconciler<R>> Erased<R> for T {
    fn reconcile(&self, request: R, cx: Context) -> Reconciling<'_> {
        let reconciling = Reconciler::reconcile(self, request, cx);
        Box::pin(async move { reconciling.await.map_err(Into::into) })
    }
}

impl<R: Send + 'static> BoxReconciler<R> {
    /// Erases the type of a reconciler.
    pub fn new(reconciler: impl Reconciler<R>) -> Self {
        Self(Arc::new(reconciler))
    }

    pub(crate) fn call(&self, request: R, cx: Context) -> Reconciling<'_> {
        self.0.reconcile(request, cx)
    }
}

impl<R: Send + 'static> Reconciler<R> for BoxReconciler<R> {
    type Error = BoxError;

    fn reconcile(&self, request: R, cx: Context) -> impl Future<Output = Result<Action, BoxError>> + Send {
        self.call(request, cx)
    }
}

impl<R> Clone for BoxReconciler<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> fmt::Debug for BoxReconciler<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxReconciler")
    }
}

/// An error that a retry does not fix; from [`terminal`].
///
/// A controller recognises it anywhere in the chain of sources of the returned error: under `#[from]`, `#[source]`,
/// `#[error(transparent)]`, `Box`, `Arc` and `anyhow::Error`.
#[derive(Debug, thiserror::Error)]
#[error("terminal error")]
pub struct Terminal(#[source] NotRetried);

/// The mark of a [`Terminal`]. It is a separate error below it because many wrappers forward `source()` to the error that
/// they wrap: that error itself is not in their chain, but its sources are.
#[derive(Debug, thiserror::Error)]
#[error("not retried until something changes")]
pub(crate) struct NotRetried(#[source] BoxError);

/// Marks an error as terminal: the key is not retried until something changes.
///
/// ```
/// use steersman_runtime::{Terminal, terminal};
///
/// fn port(text: &str) -> Result<u16, Terminal> {
///     text.parse().map_err(terminal)
/// }
/// # assert!(port("http").is_err());
/// ```
pub fn terminal(error: impl Into<BoxError>) -> Terminal {
    Terminal(NotRetried(error.into()))
}

/// An error after which the key is retried after a given delay; from [`retry_after`]. A controller recognises it under the same
/// wrappers as [`Terminal`].
#[derive(Debug, thiserror::Error)]
#[error("retry after {:?}", .0.delay)]
pub struct RetryAfter(#[source] Delayed);

/// The mark of a [`RetryAfter`], as [`NotRetried`] is that of a [`Terminal`].
#[derive(Debug, thiserror::Error)]
#[error("the reconciler asked for this delay")]
pub(crate) struct Delayed {
    pub(crate) delay: Duration,
    #[source]
    source: BoxError,
}

/// Sets the retry delay of an error instead of the back-off: because a server sent one, or because the duration is known.
///
/// ```
/// use std::time::Duration;
/// use steersman_runtime::{RetryAfter, retry_after};
///
/// fn patient(error: std::io::Error) -> RetryAfter {
///     retry_after(error, Duration::from_secs(60))
/// }
/// # let _ = patient;
/// ```
pub fn retry_after(error: impl Into<BoxError>, delay: Duration) -> RetryAfter {
    RetryAfter(Delayed {
        delay,
        source: error.into(),
    })
}

impl RetryAfter {
    /// Delay before the retry.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.0.delay
    }
}

/// Returns true if an error is [terminal], or wraps one that is: its key is not retried until something changes.
#[must_use]
pub fn is_terminal(error: &BoxError) -> bool {
    caused_by::<NotRetried>(error).is_some()
}

/// Returns the delay that the reconciler set with [`retry_after`].
pub(crate) fn requested_delay(error: &BoxError) -> Option<Duration> {
    caused_by::<Delayed>(error).map(|asked| asked.delay)
}

/// Returns true if a write failed because another client changed the object.
pub(crate) fn is_conflict(error: &BoxError) -> bool {
    // `kube` keeps the status in a box, and the box is the error in the chain.
    let boxed = caused_by::<Box<Status>>(error).map(|status| &**status);
    let status = boxed.or_else(|| caused_by::<Status>(error));
    caused_by::<Conflict>(error).is_some() || status.is_some_and(steersman_cluster::is_conflict)
}

/// Returns true if a write was rejected because this replica no longer leads, or the cluster was closed.
pub(crate) fn is_fenced(error: &BoxError) -> bool {
    caused_by::<Closed>(error).is_some()
}

/// Returns the kinds whose caches were read and were not in sync, or did not exist.
pub(crate) fn unsynced(error: &BoxError) -> Vec<Resource> {
    let boxed = caused_by::<Box<ReadError>>(error).map(|read| &**read);
    match boxed.or_else(|| caused_by::<ReadError>(error)) {
        Some(
            ReadError::NotSynced { resource, .. }
            | ReadError::NotCached { resource }
            | ReadError::Absent { resource },
        ) => vec![resource.clone()],
        _ => Vec::new(),
    }
}

/// Returns the first error of type `T` among an error and its sources.
///
/// `T` must be a type that is only ever a source of other errors: wrappers that forward `source()` hide the error that they wrap.
pub(crate) fn caused_by<T: std::error::Error + 'static>(error: &BoxError) -> Option<&T> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
