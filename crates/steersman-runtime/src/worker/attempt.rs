// SPDX-License-Identifier: Apache-2.0
//! One reconcile: its context, its result, and the next step for its key.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use steersman_core::{Action, Next, error_chain, panic_message};
use steersman_queue::{Finished, Item, Outcome};
use tracing::{Instrument, Span, field::debug};

use super::{Panicked, WorkerPool};
use crate::{
    BoxError, Context, RequestKey,
    cluster_session::ClusterSession,
    context::Attempt,
    hot_loop::Slowed,
    metrics::{Ended, Series},
    reconciler::{is_conflict, is_fenced, is_terminal, requested_delay, unsynced},
};

/// Limit for a retry to count as soon.
const SOON: Duration = Duration::from_secs(10);

/// Longer error texts are cut in the log, as in the queue.
const TEXT_BYTES_MAX: usize = 1024;

/// Result of a reconcile.
enum Result {
    Done(Action),
    Failed(BoxError),
    Panicked(String),
    TimedOut(Duration),
    /// The cluster was removed.
    Dismissed,
}

impl<R: RequestKey> WorkerPool<R> {
    /// Reconciles one key: in the session of its cluster, within its span, and with the next step for the key.
    pub(super) async fn reconcile_item(&self, item: Item<R>) {
        let (plan, key) = (&self.run.plan, item.key().clone());
        let Some(session) = self.session(&key) else {
            item.done(); // Its cluster was removed.
            return;
        };
        let (Some(item), Some(series)) = (self.pass_gate(item), plan.series.get()) else {
            return;
        };
        if let Some(slowed) = self.hot_loops.check(&key, item.started()) {
            return self.slow_down(item, slowed, series);
        }
        let attempt = Attempt {
            number: self.run.cx.random().next_u64(),
            failures: item.failures(),
            priority: item.priority(),
        };
        let cx = Context::new(Arc::clone(&session), attempt);
        let span = self.span(&key, &cx);
        let active = Active::new(series);
        let recoveries = self.run.reads.recovery_count();
        let reconcile = self.hot_loops.observe(self.reconcile(key.clone(), cx, &session));
        let (result, writes) = reconcile.instrument(span.clone()).await;
        drop(active);
        // By the clock of the queue: the clock of another cluster or of the manager can have another origin.
        let now = plan.home.clock().now();
        let took = now.saturating_since(item.started());
        self.hot_loops.count(&key, writes, now);
        let missing = match &result {
            Result::Failed(error) => unsynced(error),
            _ => Vec::new(),
        };
        span.in_scope(|| self.conclude(item, result, series, took));
        self.retry_with_caches(key, missing, recoveries);
        if plan.options.warn_limit().is_some_and(|limit| took >= limit) {
            self.long_ended.notify_one();
        }
    }

    /// Returns the span of a reconcile.
    fn span(&self, key: &R, cx: &Context) -> Span {
        let plan = &self.run.plan;
        let span = tracing::info_span!(
            "reconcile",
            controller = %plan.name,
            cluster = %cx.cluster().name(),
            kind = plan.primary.as_ref().map(tracing::field::display),
            %key,
            reconcile_id = format_args!("{:016x}", cx.reconcile_id()),
            attempt = cx.attempt(),
        );
        plan.span_in(span, key)
    }

    /// Delays a key whose reconciles write too often.
    fn slow_down(&self, item: Item<R>, slowed: Slowed, series: &Series) {
        series.hot_loops.inc();
        if let Some(changed) = slowed.changed {
            let key = item.key();
            tracing::warn!(
                controller = %self.run.plan.name,
                cluster = key.cluster().map(tracing::field::display),
                kind = self.run.plan.primary.as_ref().map(tracing::field::display),
                %key,
                %changed,
                limit_per_minute = self.run.plan.options.hot_loop_rate(),
                hint = "write only what differs; `hot_loop_limit` sets the limit",
                "reconciles of this key write too often; slowing it down"
            );
        }
        item.finish(Outcome::postpone(slowed.delay));
    }

    async fn reconcile(&self, key: R, cx: Context, session: &ClusterSession) -> Result {
        // Within a future, so that a panic before the first await counts as a panic of the reconcile.
        let reconciling =
            AssertUnwindSafe(async { self.run.plan.reconciler.call(key, cx).await }).catch_unwind();
        let clock = self.run.cx.clock();
        let limited = async {
            match self.run.plan.options.reconcile_limit() {
                Some(limit) => clock.timeout_at(clock.now() + limit, reconciling).await,
                None => Some(reconciling.await),
            }
        };
        match session.unless_dismissed(limited).await {
            None => Result::Dismissed,
            Some(None) => Result::TimedOut(self.run.plan.options.reconcile_limit().unwrap_or_default()),
            Some(Some(Err(panic))) => Result::Panicked(panic_message(&*panic)),
            Some(Some(Ok(Err(error)))) => Result::Failed(error),
            Some(Some(Ok(Ok(action)))) => Result::Done(action),
        }
    }

    /// Counts the result, returns the key to the queue, and logs.
    fn conclude(&self, item: Item<R>, result: Result, series: &Series, took: Duration) {
        match result {
            Result::Done(action) => {
                let (ended, outcome) = match action.next() {
                    Next::After(delay) => (Ended::RequeueAfter, Outcome::requeue_after(delay)),
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
                if self.run.plan.options.recovers_panics() {
                    tracing::error!(
                        panic = message,
                        next_try = finished.delay().map(debug),
                        "reconcile panicked; retrying"
                    );
                } else {
                    tracing::error!(panic = message, "reconcile panicked; ending the run");
                    self.panicked.send_replace(Some(Panicked { key, message }));
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
                    "reconcile timed out; retrying"
                );
            }
            Result::Dismissed => item.done(),
        }
    }

    fn failed(&self, item: Item<R>, error: &BoxError, series: &Series) {
        let text = shortened(error_chain(&**error));
        if is_terminal(error) {
            series.terminal_errors.inc();
            item.finish(Outcome::fail(&text));
            tracing::error!(error = %text, "reconcile failed; not retrying until something changes");
            return;
        }
        let finished: Finished = item.finish(match requested_delay(error) {
            Some(delay) => Outcome::retry_after(&text, delay),
            None => Outcome::retry(&text),
        });
        let next_try = finished.delay().map(debug);
        if is_quiet(error) {
            tracing::debug!(error = %text, next_try, "reconcile failed; retrying");
        } else if finished.repeats_error() && is_frequent(&finished) {
            tracing::debug!(error = %text, next_try, "reconcile failed as before; retrying");
        } else {
            tracing::warn!(error = %text, next_try, "reconcile failed; retrying");
        }
    }
}

/// Cuts a long error text, such as the HTML page of a gateway.
fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    text
}

/// Returns true if the retry is so soon that a repeated error is not logged as a warning. Keys are retried many times within
/// the first seconds, and an unhealthy server makes many of them fail. One of ten such failures is logged as a warning.
fn is_frequent(finished: &Finished) -> bool {
    let is_soon = finished.delay().is_some_and(|delay| delay < SOON);
    is_soon && !finished.failures().is_multiple_of(10)
}

/// Returns true for errors that are not worth a warning: write conflicts, and writes after the end of a term.
fn is_quiet(error: &BoxError) -> bool {
    is_conflict(error) || is_fenced(error)
}

/// Counts a busy worker; drop undoes it, also if the task is cancelled.
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
