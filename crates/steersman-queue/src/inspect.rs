// SPDX-License-Identifier: Apache-2.0
//! Status of a queue and its keys.

use std::time::Duration;

use steersman_core::MonotonicTime;

/// Reason why a key waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The key was added.
    Added,
    /// Its work failed or requested a requeue, and the key backs off.
    Retry,
    /// Its work requested a requeue after a delay.
    RequeueAfter,
    /// Its [`Item`](crate::Item) was dropped without an outcome: a panic or a cancelled task.
    Dropped,
}

/// Place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// It waits for a worker, or, in a paused queue, for the queue to be resumed.
    Ready,
    /// It waits for a deadline.
    Delayed {
        /// Time when it becomes ready.
        until: MonotonicTime,
    },
    /// A worker has it.
    InFlight {
        /// Start of the flight.
        since: MonotonicTime,
        /// Set if the key was added again in the meantime, with or without a delay.
        again: bool,
    },
    /// It neither waits nor is in flight. The queue remembers it because it failed permanently and its back-off was not
    /// reset.
    Failed,
}

/// Status of one key.
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
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Converts the status into its key.
    #[must_use]
    pub fn into_key(self) -> K {
        self.key
    }

    /// Returns the place of the key.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns the priority.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Returns the time since which the key waits in its place.
    #[must_use]
    pub fn since(&self) -> MonotonicTime {
        self.since
    }

    /// Returns the reason why the key waits, or waited before it was handed out.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Returns the number of consecutive failures and requeues with back-off.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the error text of the last failure.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

/// Number of keys in the queue by state.
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
    /// Returns the number of keys that a worker can take now: `workqueue_depth`. Zero while the queue is paused.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Returns the number of keys that wait for the queue to be resumed: `controller_warm_pending`. Zero while it runs.
    #[must_use]
    pub fn warm(&self) -> usize {
        self.warm
    }

    /// Returns the number of delayed keys.
    #[must_use]
    pub fn delayed(&self) -> usize {
        self.delayed
    }

    /// Returns the number of keys in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of keys in flight that were added again. They are ready when their worker is done.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// Returns the total running time of all keys in flight: `workqueue_unfinished_work_seconds`.
    #[must_use]
    pub fn unfinished_work(&self) -> Duration {
        self.unfinished_work
    }

    /// Returns the running time of the key that is in flight the longest:
    /// `workqueue_longest_running_processor_seconds`.
    #[must_use]
    pub fn longest_running(&self) -> Duration {
        self.longest_running
    }
}
