// SPDX-License-Identifier: Apache-2.0
//! Handlers as the reconciler of a controller.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use steersman_cluster::Kind as KnownType;
use steersman_core::{Action, Next};
use tracing::Instrument;

use super::{
    Handlers, HandlersFailed, Named,
    pending::{AllPending, Conclusion, Pending},
};
use crate::{
    BoxError, Context, Reconciler, Request, Terminal,
    controller::Memory,
    metrics::Ended,
    object_reconciler::explain,
    reconciler::{Chain, RetryAfter, caused_by, retry_after},
    work::{is_quiet, message},
};

/// The handlers as a reconciler of one controller.
pub(super) struct Calling<K> {
    /// Tells it from other controllers that call the same handlers.
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

    /// What it remembers of keys, for the controller to take away.
    pub(super) fn memory(&self) -> Arc<dyn Memory<Request>> {
        Arc::clone(&self.pending) as Arc<dyn Memory<Request>>
    }
}

/// What is counted about its handlers goes with the controller.
impl<K> Drop for Calling<K> {
    fn drop(&mut self) {
        let handlers = Arc::clone(&self.handlers.list().handlers);
        handlers.iter().for_each(|named| named.forget(self.number));
    }
}

impl<K: KnownType> Reconciler<Request> for Calling<K> {
    type Error = BoxError;

    /// Calls those whose turn it is, one after the other.
    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let handlers = Arc::clone(&self.handlers.list().handlers);
        let mut pending = self.pending.begin(&request, cx.is_news());
        for named in &*handlers {
            let Some(attempt) = pending.is_due(named.number, cx.clock().now()) else {
                continue;
            };
            let cx = cx.of_handler(&named.name, attempt);
            let span =
                tracing::info_span!("handler", handler = %named.name, attempt = attempt.saturating_add(1));
            let conclusion = self.call_one(named, &request, cx).instrument(span).await?;
            pending.conclude(named.number, &named.name, conclusion);
        }
        self.end(request, pending, &handlers, &cx)
    }
}

impl<K: KnownType> Calling<K> {
    fn end(
        &self,
        request: Request,
        mut pending: Pending,
        handlers: &[Arc<Named<K>>],
        cx: &Context,
    ) -> Result<Action, BoxError> {
        pending.retain(|number| handlers.iter().any(|named| named.number == number));
        let failed = pending.take_failed();
        let next = self.pending.end(request, pending);
        let delay = next.map(|next| {
            let left = next.saturating_since(cx.clock().now());
            // Zero would mean that nothing is left to do.
            left.max(Duration::from_nanos(1))
        });
        match (failed.is_empty(), delay) {
            (true, None) => Ok(Action::await_change()),
            (true, Some(delay)) => Ok(Action::requeue_after(delay)),
            (false, Some(delay)) => Err(retry_after(HandlersFailed { names: failed }, delay).into()),
            (false, None) => Err(crate::terminal(HandlersFailed { names: failed }).into()),
        }
    }

    async fn call_one(
        &self,
        named: &Named<K>,
        request: &Request,
        cx: Context,
    ) -> Result<Conclusion, BoxError> {
        let reading = async { cx.client().get::<K>(request.key()).await.map_err(explain) };
        let object = within_limit(&cx, reading).await?;
        let (series, start) = (named.series(self.number, &cx), cx.clock().now());
        let handling = async { (named.call)(request.clone(), object, cx.clone()).await };
        let handling = within_limit(&cx, handling);
        let result = if cx.recovers_panics() {
            let caught = AssertUnwindSafe(handling).catch_unwind().await;
            caught.unwrap_or_else(|panic| {
                cx.metrics().panicked(cx.controller());
                Err(format!("it panicked: {}", message(&*panic)).into())
            })
        } else {
            handling.await
        };
        let now = cx.clock().now();
        let (ended, conclusion) = self.judge(request, &cx, result);
        series.ran(ended, now.saturating_since(start));
        Ok(conclusion)
    }

    /// What follows from how a handler ended; says what a person should know.
    fn judge(
        &self,
        request: &Request,
        cx: &Context,
        result: Result<Action, BoxError>,
    ) -> (Ended, Conclusion) {
        let (now, failures) = (cx.clock().now(), cx.attempt() + 1);
        let back_off = || self.handlers.0.limiter.delay(request, failures, now);
        let error = match result {
            Ok(action) => {
                return match action.next() {
                    Next::After(delay) if !delay.is_zero() => {
                        (Ended::RequeueAfter, Conclusion::again(now + delay, 0))
                    }
                    Next::BackOff => (Ended::Requeue, Conclusion::again(now + back_off(), failures)),
                    _ => (Ended::Success, Conclusion::Content),
                };
            }
            Err(error) => error,
        };
        let text = Chain(&error);
        if caused_by::<Terminal>(&error).is_some() {
            tracing::error!(error = %text, "the handler failed and will not be called again until something changes");
            return (Ended::Error, Conclusion::GivenUp);
        }
        let asked = caused_by::<RetryAfter>(&error).map(RetryAfter::delay);
        let next_try = asked.unwrap_or_else(back_off);
        if is_quiet(&error) {
            tracing::debug!(error = %text, ?next_try, "the handler will be called again");
        } else {
            tracing::warn!(error = %text, ?next_try, "the handler failed and will be called again");
        }
        (Ended::Error, Conclusion::failed(now + next_try, failures))
    }
}

/// Lets a part of the work of a handler take as long as it may.
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
