// SPDX-License-Identifier: Apache-2.0
//! One reconcile: what it is handed, how it ends, and what follows from that.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use steersman_core::{Action, Next};
use steersman_queue::{Finished, Item, Outcome};
use tracing::{Instrument, field::debug};

use super::Outfit;
use crate::{
    BoxError, Context, RequestKey, RetryAfter, Terminal,
    context::Circumstances,
    engagement::Engagement,
    handlers::HandlersFailed,
    metrics::{Ended, Series},
    reconciler::{Chain, caused_by},
};

/// How a reconcile ended.
enum Result {
    Done(Action),
    Failed(BoxError),
    Panicked(String),
    TimedOut(Duration),
    /// The cluster was removed.
    Dismissed,
}

impl<R: RequestKey> Outfit<R> {
    /// Works on one key.
    pub(super) async fn work(&self, item: Item<R>) {
        let plan = &self.plan;
        let Some(engagement) = self.engagement(item.key()) else {
            item.done(); // Its cluster has gone.
            return;
        };
        if self.is_held_back(&item) {
            item.done();
            return;
        }
        let (Some(series), key) = (plan.series.get(), item.key().clone()) else {
            return;
        };
        let number = self.random.next_u64();
        let span = tracing::info_span!(
            "reconcile",
            controller = %plan.name,
            cluster = %engagement.cluster.name(),
            kind = plan.hot_loops.primary().map(tracing::field::display),
            %key,
            reconcile_id = format_args!("{number:016x}"),
            attempt = item.failures().saturating_add(1),
        );
        let active = Active::new(series);
        plan.hot_loops.began(&key);
        let circumstances = Circumstances {
            number,
            attempt: item.failures(),
            priority: item.priority(),
            is_news: item.was_added(),
        };
        let cx = Context::new(Arc::clone(&engagement), circumstances);
        let result = self
            .reconcile(key, cx, &engagement)
            .instrument(span.clone())
            .await;
        plan.hot_loops.ended(item.key(), &plan.queue);
        drop(active);
        // By the clock of the queue: that of another cluster, or of the manager, may count from another moment.
        let took = plan.home.clock().now().saturating_since(item.started());
        span.in_scope(|| self.conclude(item, result, series, took));
    }

    async fn reconcile(&self, key: R, cx: Context, engagement: &Engagement) -> Result {
        // Within a future, so that a panic before its first step is one of the reconcile, too.
        let reconciling = AssertUnwindSafe(async { self.plan.reconciler.call(key, cx).await }).catch_unwind();
        let limited = async {
            let Some(limit) = self.plan.reconcile_limit() else {
                return Some(reconciling.await);
            };
            tokio::select! {
                biased;
                ended = reconciling => Some(ended),
                () = self.clock.sleep_until(self.clock.now() + limit) => None,
            }
        };
        match engagement.unless_dismissed(limited).await {
            None => Result::Dismissed,
            Some(None) => Result::TimedOut(self.plan.reconcile_limit().unwrap_or_default()),
            Some(Some(Err(panic))) => Result::Panicked(message(&*panic)),
            Some(Some(Ok(Err(error)))) => Result::Failed(error),
            Some(Some(Ok(Ok(action)))) => Result::Done(action),
        }
    }

    /// Counts, tells the queue, and says what a person should know.
    fn conclude(&self, item: Item<R>, result: Result, series: &Series, took: Duration) {
        match result {
            Result::Done(action) => {
                let (ended, outcome) = match action.next() {
                    Next::After(delay) if !delay.is_zero() => {
                        (Ended::RequeueAfter, Outcome::requeue_after(delay))
                    }
                    Next::BackOff => (Ended::Requeue, Outcome::requeue()),
                    _ => (Ended::Success, Outcome::done()),
                };
                series.reconciled(ended, took);
                item.finish(match action.wanted_priority() {
                    Some(priority) => outcome.priority(priority),
                    None => outcome,
                });
            }
            Result::Failed(error) => {
                series.reconciled(Ended::Error, took);
                series.errors.inc();
                self.failed(item, &error, series);
            }
            Result::Panicked(message) => {
                series.reconciled(Ended::Error, took);
                series.errors.inc();
                series.panics.inc();
                let key = item.key().to_string();
                let finished = item.finish(Outcome::retry(format_args!("panic: {message}")));
                if self.plan.options.recovers_panics() {
                    tracing::error!(
                        panic = message,
                        next_try = finished.delay().map(debug),
                        "the reconcile panicked and will be tried again"
                    );
                } else {
                    tracing::error!(panic = message, "the reconcile panicked");
                    self.panicked.send_replace(Some((key, message)));
                }
            }
            Result::TimedOut(limit) => {
                series.reconciled(Ended::Error, took);
                series.errors.inc();
                series.timeouts.inc();
                let finished = item.finish(Outcome::retry(format_args!("it took longer than {limit:?}")));
                tracing::warn!(
                    ?limit,
                    next_try = finished.delay().map(debug),
                    "the reconcile took too long and will be tried again"
                );
            }
            Result::Dismissed => item.done(),
        }
    }

    fn failed(&self, item: Item<R>, error: &BoxError, series: &Series) {
        let text = Chain(error);
        if caused_by::<Terminal>(error).is_some() {
            series.terminal_errors.inc();
            item.finish(Outcome::fail(&text));
            if caused_by::<HandlersFailed>(error).is_none() {
                tracing::error!(error = %text, "the reconcile failed and will not be tried again until something changes");
            }
            return;
        }
        let finished: Finished = item.finish(match caused_by::<RetryAfter>(error) {
            Some(asked) => Outcome::retry_after(&text, asked.delay()),
            None => Outcome::retry(&text),
        });
        let next_try = finished.delay().map(debug);
        if is_quiet(error) {
            tracing::debug!(error = %text, next_try, "the reconcile will be tried again");
        } else {
            tracing::warn!(error = %text, next_try, "the reconcile failed and will be tried again");
        }
    }
}

/// That somebody was quicker belongs to the business, and so does a write that came after the end of a term. Handlers have said for
/// themselves what went wrong.
pub(crate) fn is_quiet(error: &BoxError) -> bool {
    let ours = caused_by::<steersman_cluster::Error>(error);
    let theirs = caused_by::<kube::Error>(error);
    ours.is_some_and(|error| error.is_conflict() || error.is_fenced())
        || caused_by::<HandlersFailed>(error).is_some()
        || matches!(theirs, Some(kube::Error::Api(status)) if steersman_cluster::is_conflict(status))
}

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Counts a busy worker, also if its task is cancelled.
struct Active<'s>(&'s Series);

impl<'s> Active<'s> {
    fn new(series: &'s Series) -> Self {
        series.active.inc();
        Self(series)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.dec();
    }
}
