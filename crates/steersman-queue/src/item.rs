// SPDX-License-Identifier: Apache-2.0
//! A key in flight.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use steersman_core::MonotonicTime;

use crate::Key;
use crate::inspect::{Cause, Status};
use crate::outcome::{Finished, Kind, Outcome};
use crate::queue::Shared;
use crate::state::{AddRequest, Taken};

/// Delay of a key whose limiter panicked.
const LIMITER_BROKE: Duration = Duration::from_secs(1);

/// A key that a worker has taken from the queue. No other worker gets it until this item is finished or dropped.
///
/// [`finish`](Self::finish) reports the outcome. If the item is dropped instead, because the work panicked or its task
/// was cancelled, the key is requeued with its back-off, as if it had failed.
#[must_use = "dropping it reports the work as aborted"]
pub struct Item<K: Key> {
    shared: Arc<Shared<K>>,
    taken: Taken<K>,
    started: MonotonicTime,
    finished: bool,
}

impl<K: Key> Item<K> {
    pub(crate) fn new(shared: &Arc<Shared<K>>, taken: Taken<K>, now: MonotonicTime) -> Self {
        if let Some(metrics) = &shared.metrics {
            metrics.taken(taken.queued);
        }
        Self {
            shared: Arc::clone(shared),
            taken,
            started: now,
            finished: false,
        }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.taken.key
    }

    /// Returns the priority with which it was handed out.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.taken.priority
    }

    /// Returns the number of consecutive failures and requeues with back-off before this time.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.taken.failures
    }

    /// Reports whether the key was added since it was last handed out. Otherwise only its own outcome requeued it.
    #[must_use]
    pub fn was_added(&self) -> bool {
        self.taken.added
    }

    /// Returns the time when it was handed out.
    #[must_use]
    pub fn started(&self) -> MonotonicTime {
        self.started
    }

    /// Reports the outcome of the work.
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use steersman_core::TestClock;
    /// # use steersman_queue::{Options, Outcome, Queue};
    /// let clock = TestClock::new();
    /// let queue = Queue::new(Arc::new(clock.clone()), Options::new());
    /// queue.add("web-1");
    ///
    /// let item = queue.try_next().expect("a key is ready");
    /// let finished = item.finish(Outcome::requeue_after(Duration::from_secs(30)));
    /// assert_eq!(finished.delay(), Some(Duration::from_secs(30)));
    ///
    /// clock.advance(Duration::from_secs(30));
    /// assert_eq!(queue.try_next().expect("its delay is over").key(), &"web-1");
    /// ```
    pub fn finish(mut self, outcome: Outcome) -> Finished {
        self.finished = true;
        self.end(outcome)
    }

    /// Finishes it with [`Outcome::done`].
    pub fn done(self) {
        self.finish(Outcome::done());
    }

    /// Removes the key from the queue without an outcome, and returns its status with its failures, so that another
    /// queue can [restore](crate::Queue::restore) it. Returns `None` if the key was purged while in flight. If the key
    /// was added again meanwhile, that add stays in this queue.
    #[must_use = "the key is in no queue until the status is restored"]
    pub fn withdraw(mut self) -> Option<Status<K>> {
        self.finished = true;
        let (index, added) = (self.taken.index, self.taken.added);
        self.shared.locked(|state| state.withdraw(index, added))
    }

    fn end(&self, outcome: Outcome) -> Finished {
        let Self { shared, taken, .. } = self;
        let index = taken.index;
        let Outcome { kind, priority } = outcome;
        // The usual outcome needs the time only for metrics.
        if matches!(kind, Kind::Done) && shared.metrics.is_none() {
            shared.locked(|state| state.finish(index, true, None));
            return Finished {
                failures: 0,
                delay: None,
                repeats_error: false,
            };
        }
        let now = shared.clock.now();
        let reset = matches!(kind, Kind::Done | Kind::RequeueAfter(_));
        let was_worked_on = !matches!(kind, Kind::Postpone(_));
        let mut repeats_error = false;
        let mut fail = |error, counts| {
            let failures;
            (failures, repeats_error) = shared.locked(|state| state.note_failure(index, error, counts));
            failures
        };
        let (failures, again) = match kind {
            Kind::Done => (0, None),
            Kind::RequeueAfter(delay) => (0, Some((delay, Cause::RequeueAfter))),
            Kind::Fail(error) => (fail(Some(error), false), None),
            Kind::Postpone(delay) => {
                // The add that queued it is still to be handed out.
                if taken.added {
                    shared.locked(|state| state.keep_added(index));
                }
                (taken.failures, Some((delay, taken.cause)))
            }
            Kind::Retry(error) => self.back_off(fail(error, true), Cause::Retry, now),
            Kind::RetryAfter(error, delay) => (fail(Some(error), true), Some((delay, Cause::Retry))),
            Kind::Dropped => {
                let error = Some(Box::from("dropped without an outcome"));
                self.back_off(fail(error, true), Cause::Dropped, now)
            }
        };
        let priority = priority.unwrap_or(taken.priority);
        let request = again.map(|(delay, cause)| {
            (
                AddRequest {
                    priority,
                    at: Some(now + delay),
                    cause,
                    retractable: false,
                },
                now,
            )
        });
        shared.locked(|state| state.finish(index, reset, request));
        let delay = again.map(|(delay, _)| delay);
        if let Some(metrics) = shared.metrics.as_ref().filter(|_| was_worked_on) {
            metrics.finished(now.saturating_since(self.started));
            if delay.is_some_and(|delay| !delay.is_zero()) {
                metrics.retried();
            }
        }
        Finished {
            failures,
            delay,
            repeats_error,
        }
    }

    fn back_off(&self, failures: u32, cause: Cause, now: MonotonicTime) -> (u32, Option<(Duration, Cause)>) {
        // This is user code. If it panics, this can run during another panic, and the key would be lost.
        let delay = catch_unwind(AssertUnwindSafe(|| {
            self.shared.limiter.delay(&self.taken.key, failures, now)
        }));
        (failures, Some((delay.unwrap_or(LIMITER_BROKE), cause)))
    }
}

impl<K: Key> Drop for Item<K> {
    fn drop(&mut self) {
        if !self.finished {
            self.end(Outcome::of(Kind::Dropped));
        }
    }
}

impl<K: Key + fmt::Debug> fmt::Debug for Item<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", self.key())
            .field("priority", &self.taken.priority)
            .field("failures", &self.taken.failures)
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}
