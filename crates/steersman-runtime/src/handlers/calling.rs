// SPDX-License-Identifier: Apache-2.0
//! Handlers as the reconciler of a controller.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use steersman_cache::Resource;
use steersman_cluster::Kind as KnownType;
use steersman_core::{Action, Next, error_chain, panic_message};
use tracing::Instrument;

use super::{
    Handlers, HandlersFailed, Named,
    pending::{AllPending, Conclusion, Pending},
};
use crate::{
    BoxError, Context, Reconciler, Request, Undecodable,
    controller::Memory,
    metrics::Ended,
    reconciler::{is_terminal, requested_delay, retry_after, unsynced},
    worker::is_quiet,
};

/// The handlers as the reconciler of one controller.
pub(super) struct Calling<K> {
    /// Distinguishes it from other controllers that call the same handlers.
    number: u64,
    handlers: Handlers<K>,
    pending: Arc<AllPending>,
}

impl<K> Calling<K> {
    pub(super) fn new(handlers: &Handlers<K>) -> Self {
        Self {
            number: handlers.list().arrive(),
            handlers: handlers.clone(),
            pending: Arc::default(),
        }
    }

    /// Returns the per-key state, so that the controller can remove it.
    pub(super) fn memory(&self) -> Arc<dyn Memory<Request>> {
        Arc::clone(&self.pending) as Arc<dyn Memory<Request>>
    }
}

/// Removes the series of its handlers.
impl<K> Drop for Calling<K> {
    fn drop(&mut self) {
        let handlers = Arc::clone(&self.handlers.list().handlers);
        handlers.iter().for_each(|named| named.forget(self.number));
    }
}

impl<K: KnownType> Reconciler<Request> for Calling<K> {
    type Error = BoxError;

    /// Calls the handlers that are due, one after the other.
    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let handlers = Arc::clone(&self.handlers.list().handlers);
        let mut pending = self.pending.begin(&request, cx.is_news());
        let mut unsynced = Vec::new();
        for named in &*handlers {
            let Some(failures) = pending.is_due(named.number, cx.clock().now()) else {
                continue;
            };
            let cx = cx.of_handler(&named.name, failures);
            let span = tracing::info_span!("handler", handler = %named.name, attempt = cx.attempt());
            let called = self
                .call_one(named, &request, cx.clone())
                .instrument(span)
                .await?;
            let (conclusion, kinds) = match called {
                Called::Ended(conclusion, kinds) => (conclusion, kinds),
                Called::Undecodable(object) => return self.undecodable(request, *object, cx).await,
            };
            pending.conclude(named.number, &named.name, conclusion);
            unsynced.extend(kinds);
        }
        self.end(request, (pending, unsynced), &handlers, &cx)
    }
}

/// Result of a call of a handler.
enum Called {
    /// The conclusion, and the kinds whose caches were not in sync and made it fail.
    Ended(Conclusion, Vec<Resource>),
    /// The handler was not called.
    Undecodable(Box<Undecodable>),
}

/// Result of the read.
enum Found<K> {
    Object(Option<Arc<K>>),
    Undecodable(Box<Undecodable>),
}

impl<K: KnownType> Calling<K> {
    /// Handles an object that cannot be decoded. No handler is called for it.
    async fn undecodable(
        &self,
        request: Request,
        object: Undecodable,
        cx: Context,
    ) -> Result<Action, BoxError> {
        object.record(None, &cx);
        let Some(hook) = self.handlers.0.undecodable.get() else {
            return Err(object.into_error());
        };
        let action = hook(object, cx).await?;
        // All handlers are called when the object changes.
        self.pending.forget(&request);
        Ok(action)
    }

    fn end(
        &self,
        request: Request,
        (mut pending, unsynced): (Pending, Vec<Resource>),
        handlers: &[Arc<Named<K>>],
        cx: &Context,
    ) -> Result<Action, BoxError> {
        pending.retain(|number| handlers.iter().any(|named| named.number == number));
        let failed = HandlersFailed {
            names: pending.take_failed(),
            unsynced,
        };
        let next = self.pending.end(request, pending);
        let delay = next.map(|next| next.saturating_since(cx.clock().now()));
        match (failed.names.is_empty(), delay) {
            (true, None) => Ok(Action::await_change()),
            (true, Some(delay)) => Ok(Action::requeue_after(delay)),
            (false, Some(delay)) => Err(retry_after(failed, delay).into()),
            (false, None) => Err(crate::terminal(failed).into()),
        }
    }

    async fn call_one(&self, named: &Named<K>, request: &Request, cx: Context) -> Result<Called, BoxError> {
        let object = match within_limit(&cx, read::<K>(request, &cx)).await? {
            Found::Object(object) => object,
            Found::Undecodable(object) => return Ok(Called::Undecodable(object)),
        };
        let (series, start) = (named.series(self.number, &cx), cx.clock().now());
        let handling = async { (named.call)(request.clone(), object, cx.clone()).await };
        let handling = within_limit(&cx, handling);
        let result = if cx.recovers_panics() {
            let caught = AssertUnwindSafe(handling).catch_unwind().await;
            caught.unwrap_or_else(|panic| {
                cx.metrics().panicked(cx.controller());
                Err(format!("it panicked: {}", panic_message(&*panic)).into())
            })
        } else {
            handling.await
        };
        let now = cx.clock().now();
        let kinds = result.as_ref().err().map(unsynced).unwrap_or_default();
        let (ended, conclusion) = self.judge(request, &cx, result);
        series.ran(ended, now.saturating_since(start));
        Ok(Called::Ended(conclusion, kinds))
    }

    /// Turns the result of a handler into a conclusion, and logs it.
    fn judge(
        &self,
        request: &Request,
        cx: &Context,
        result: Result<Action, BoxError>,
    ) -> (Ended, Conclusion) {
        // The attempt number equals the number of failures, if this one fails.
        let (now, failures) = (cx.clock().now(), cx.attempt());
        let back_off = || self.handlers.0.limiter.delay(request, failures, now);
        let error = match result {
            Ok(action) => {
                return match action.next() {
                    Next::After(delay) => (Ended::RequeueAfter, Conclusion::again(now + delay, 0)),
                    Next::BackOff => (Ended::Requeue, Conclusion::again(now + back_off(), failures)),
                    _ => (Ended::Success, Conclusion::Content),
                };
            }
            Err(error) => error,
        };
        let text = error_chain(&*error);
        if is_terminal(&error) {
            tracing::error!(error = %text, "the handler failed and will not be called again until something changes");
            return (Ended::Error, Conclusion::GivenUp);
        }
        let next_try = requested_delay(&error).unwrap_or_else(back_off);
        if is_quiet(&error) {
            tracing::debug!(error = %text, ?next_try, "the handler will be called again");
        } else {
            tracing::warn!(error = %text, ?next_try, "the handler failed and will be called again");
        }
        (Ended::Error, Conclusion::failed(now + next_try, failures))
    }
}

async fn read<K: KnownType>(request: &Request, cx: &Context) -> Result<Found<K>, BoxError> {
    let error = match cx.client().get::<K>(request.key()).await {
        Err(error) if error.is_undecodable() => error,
        found => return Ok(Found::Object(found?)),
    };
    let raw = Undecodable::read(&Resource::of::<K>(), request.key(), error, cx).await?;
    Ok(raw.map_or(Found::Object(None), |raw| Found::Undecodable(Box::new(raw))))
}

/// Runs a part of a handler with its timeout.
async fn within_limit<T>(
    cx: &Context,
    handling: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    let Some(limit) = cx.handler_limit() else {
        return handling.await;
    };
    tokio::select! {
        biased;
        ended = handling => ended,
        () = cx.clock().sleep_until(cx.clock().now() + limit) => {
            cx.metrics().timed_out(cx.controller());
            Err(format!("it took longer than {limit:?}").into())
        }
    }
}
