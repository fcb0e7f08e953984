// SPDX-License-Identifier: Apache-2.0
//! What can be seen of a queue from outside.

use std::time::Duration;

use steersman_core::MonotonicTime;

/// Why a key waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Somebody added it.
    Added,
    /// Its work failed, or asked to be done again, and backs off.
    Retry,
    /// Its work asked to be done again after a delay.
    RequeueAfter,
    /// Its [`Item`](crate::Item) was dropped without an outcome: a panic or a cancelled task.
    Dropped,
}

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// It waits for a worker; or, while the queue is paused, for the queue to be resumed.
    Ready,
    /// It waits for that moment.
    Delayed {
        /// When it becomes ready.
        until: MonotonicTime,
    },
    /// It is with a worker.
    InFlight {
        /// Since when.
        since: MonotonicTime,
        /// Whether it was added again in the meantime, at once or with a delay.
        again: bool,
    },
    /// It neither waits nor is worked on; it is known because it failed for good and its back-off was not reset.
    Failed,
}

/// What the queue knows about one key.
///
/// ```
/// use std::sync::Arc;
/// use steersman_core::TestClock;
/// use steersman_queue::{Options, Outcome, Queue};
///
/// let queue = Queue::new(Arc::new(TestClock::new()), Options::new());
/// queue.add("web-1");
/// let item = queue.try_next().expect("a key is ready");
/// item.finish(Outcome::retry("quota exceeded"));
///
/// let status = queue.status(&"web-1").expect("the key waits");
/// assert_eq!(status.failures(), 1);
/// assert_eq!(status.last_error(), Some("quota exceeded"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status<K> {
    pub(crate) key: K,
    pub(crate) stage: Stage,
    pub(crate) priority: i32,
    pub(crate) since: MonotonicTime,
    pub(crate) cause: Cause,
    pub(crate) failures: u32,
    pub(crate) last_error: Option<Box<str>>,
    pub(crate) retractable: bool,
}

impl<K> Status<K> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The key alone.
    #[must_use]
    pub fn into_key(self) -> K {
        self.key
    }

    /// Where it is.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Its priority.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Since when it waits there.
    #[must_use]
    pub fn since(&self) -> MonotonicTime {
        self.since
    }

    /// Why it waits, or waited before it was handed out.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// How often in succession it failed or asked to be done again.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// What its last failure said.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

/// How much is in the queue, by what keeps it there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    pub(crate) ready: usize,
    pub(crate) warm: usize,
    pub(crate) delayed: usize,
    pub(crate) in_flight: usize,
    pub(crate) dirty: usize,
    pub(crate) unfinished_work: Duration,
    pub(crate) longest_running: Duration,
}

impl Depth {
    /// Keys that a worker may take now: `workqueue_depth`. Zero while the queue is paused.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Keys that could be taken if the queue were not paused: `controller_warm_pending`. Zero while it runs.
    #[must_use]
    pub fn warm(&self) -> usize {
        self.warm
    }

    /// Keys that wait for their time.
    #[must_use]
    pub fn delayed(&self) -> usize {
        self.delayed
    }

    /// Keys that are with a worker.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Keys that are with a worker and were added again. They are ready as soon as that worker is done.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// How long all keys in flight have been worked on, together: `workqueue_unfinished_work_seconds`.
    #[must_use]
    pub fn unfinished_work(&self) -> Duration {
        self.unfinished_work
    }

    /// How long the key that is longest in flight has been: `workqueue_longest_running_processor_seconds`.
    #[must_use]
    pub fn longest_running(&self) -> Duration {
        self.longest_running
    }
}
