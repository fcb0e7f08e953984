// SPDX-License-Identifier: Apache-2.0
//! Public interface of the queue.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use steersman_core::{Clock, MonotonicTime};

use crate::Key;
use crate::inspect::{Cause, Depth, Status};
use crate::item::Item;
use crate::limiter::RateLimiter;
use crate::metrics::Metrics;
use crate::next::Next;
use crate::options::{Add, Options};
use crate::shutdown::{Drain, Shutdown};
use crate::state::{AddRequest, Added, State};
use crate::sync::Lock;

/// Number of keys that are visited under one lock when all are walked.
const CHUNK: usize = 1024;

/// A queue of keys. Clones are handles on the same queue. The [crate](crate) documents its guarantees.
#[derive(Clone)]
pub struct Queue<K: Key> {
    pub(crate) shared: Arc<Shared<K>>,
}

pub(crate) struct Shared<K: Key> {
    state: Lock<State<K>>,
    // Randomly seeded against crafted keys. Nothing is ever listed in the order of hashes.
    hasher: RandomState,
    name: Arc<str>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limiter: Arc<dyn RateLimiter<K>>,
    pub(crate) metrics: Option<Arc<dyn Metrics>>,
}

impl<K: Key> Shared<K> {
    /// Runs one step under the lock, then wakes tasks and reports metrics.
    pub(crate) fn locked<R>(&self, step: impl FnOnce(&mut State<K>) -> R) -> R {
        let mut state = self.state.lock();
        let result = step(&mut state);
        let became_ready = state.take_became_ready();
        // A busy queue usually has no task to wake.
        let wakes = state.must_settle().then(|| state.settle());
        let retired = state.take_retired();
        drop(state);
        drop(retired);
        if let Some(wakes) = wakes {
            wakes.wake();
        }
        if became_ready > 0
            && let Some(metrics) = &self.metrics
        {
            metrics.added(became_ready);
        }
        result
    }
}

/// Add and take.
impl<K: Key> Queue<K> {
    /// Creates a queue that uses `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, options: Options<K>) -> Self {
        let Options {
            name,
            paused,
            starvation_limit,
            limiter,
            grouping,
            metrics,
        } = options;
        let state = Lock::new(State::new(starvation_limit.get(), grouping, paused));
        let hasher = RandomState::default();
        Self {
            shared: Arc::new(Shared {
                state,
                hasher,
                name,
                clock,
                limiter,
                metrics,
            }),
        }
    }

    /// Returns the name of the queue.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Adds a key without delay, with priority 0.
    pub fn add(&self, key: K) -> Added {
        self.add_with(key, Add::new())
    }

    /// Adds a key with options.
    ///
    /// If the key already waits, the higher priority and the earlier time win. Its back-off is neither consumed nor
    /// reset: a key that backs off and is added without delay is ready now, and if it fails again, its back-off
    /// continues from its last step.
    pub fn add_with(&self, key: K, how: Add) -> Added {
        let Add {
            priority,
            after,
            retractable,
        } = how;
        let hash = self.hash(&key);
        let now = self.shared.clock.now();
        let at = (!after.is_zero()).then(|| now + after);
        let request = AddRequest {
            priority,
            at,
            cause: Cause::Added,
            retractable,
        };
        let added = self.shared.locked(|state| state.add(key, hash, request, now));
        if let Some(metrics) = &self.shared.metrics
            && at.is_some()
            && !matches!(added, Added::Refused)
        {
            metrics.retried();
        }
        added
    }

    /// Waits for the next key. Returns `None` when the queue was shut down and no more keys will be handed out.
    ///
    /// # Cancel safety
    /// It can be dropped at any time: no key is lost, and if it had been woken for one, another waiter is woken.
    pub fn next(&self) -> Next<'_, K> {
        Next::new(self)
    }

    /// Takes the next key, if one is ready now.
    pub fn try_next(&self) -> Option<Item<K>> {
        let now = self.shared.clock.now();
        let taken = self.shared.locked(|state| state.take(now))?;
        Some(Item::new(&self.shared, taken, now))
    }

    /// Resets the back-off of a key. A key that is waiting for its back-off keeps waiting.
    pub fn forget(&self, key: &K) {
        let hash = self.hash(key);
        self.shared.locked(|state| state.forget(key, hash));
    }

    /// Removes all keys for which `matches` is true, and returns their number. Use it when their objects or clusters
    /// are removed.
    ///
    /// Keys in flight count too: their outcome does not requeue them. A key that is added from now on is queued as any
    /// other. `matches` is called under the queue's lock, for some keys at a time, and must not call the queue.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use steersman_core::TestClock;
    /// # use steersman_queue::{Options, Queue};
    /// let queue = Queue::new(Arc::new(TestClock::new()), Options::new());
    /// queue.add(("prod-eu", "web-1"));
    /// queue.add(("prod-us", "web-1"));
    /// assert_eq!(queue.purge(|(cluster, _)| *cluster == "prod-eu"), 1);
    /// ```
    pub fn purge(&self, mut matches: impl FnMut(&K) -> bool) -> usize {
        let slots = self.shared.locked(|state| state.slots());
        (0..slots)
            .step_by(CHUNK)
            .map(|from| {
                self.shared
                    .locked(|state| state.purge_in(from..from + CHUNK, &mut matches))
            })
            .sum()
    }

    /// Removes a key that waits in a paused queue, and returns whether it did. A key stays if any of its adds was not
    /// [retractable](Add::retractable), or if its own outcome requeued it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use steersman_core::TestClock;
    /// # use steersman_queue::{Add, Options, Queue};
    /// let queue = Queue::new(Arc::new(TestClock::new()), Options::new().paused());
    /// queue.add_with("web-1", Add::new().retractable());
    /// queue.add_with("web-2", Add::new().retractable());
    /// queue.add("web-2");
    /// assert!(queue.retract(&"web-1"));
    /// assert!(!queue.retract(&"web-2"));
    /// ```
    pub fn retract(&self, key: &K) -> bool {
        let hash = self.hash(key);
        self.shared.locked(|state| state.retract(key, hash))
    }

    fn hash(&self, key: &K) -> u64 {
        self.shared.hasher.hash_one(key)
    }
}

/// Pause and shut down.
impl<K: Key> Queue<K> {
    /// Stops handing out keys until [`resume`](Self::resume). The queue still accepts keys, delays continue, and keys
    /// in flight are not affected.
    pub fn pause(&self) {
        self.shared.locked(State::pause);
    }

    /// Reports whether the queue is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.locked(|state| state.is_paused())
    }

    /// Hands out keys again. For keys that waited meanwhile, the time in the queue starts now.
    pub fn resume(&self) {
        let now = self.shared.clock.now();
        self.shared.locked(|state| state.resume(now));
    }

    /// Stops accepting keys, and lets the workers end as `how` defines. [`Shutdown::Finish`] can be followed by
    /// [`Shutdown::Abandon`]; any other later call has no effect.
    pub fn shut_down(&self, how: Shutdown) {
        self.shared.locked(|state| state.shut_down(how));
    }

    /// Reports whether the queue is shutting down and accepts no more keys.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shared.locked(|state| state.is_shutting_down())
    }

    /// Shuts down with [`Shutdown::Finish`] unless it is already shut down (at this call, not when awaited), waits
    /// until the workers are done, but at most `within`, and takes out all remaining keys.
    ///
    /// The result has every key that was ready, delayed or still in flight, once: first the keys in flight and ready in
    /// the order of their arrival, then the delayed ones by deadline. [`restore`](Self::restore) adds them to the queue
    /// of a later run.
    ///
    /// # Cancel safety
    /// It can be dropped at any time and called again: remaining keys stay in the queue until they are returned.
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use steersman_core::TestClock;
    /// # use steersman_queue::{Add, Options, Queue, Shutdown};
    /// # futures::executor::block_on(async {
    /// let clock = Arc::new(TestClock::new());
    /// let queue = Queue::new(clock.clone(), Options::new());
    /// queue.add_with("web-1", Add::new().after(Duration::from_secs(60)));
    ///
    /// queue.shut_down(Shutdown::Abandon);
    /// let remains = queue.drain(Duration::from_secs(30)).await;
    ///
    /// let later = Queue::new(clock, Options::new());
    /// assert_eq!(later.restore(remains), 1);
    /// assert_eq!(later.depth().delayed(), 1);
    /// # });
    /// ```
    pub fn drain(&self, within: Duration) -> Drain<'_, K> {
        if !self.is_shutting_down() {
            self.shut_down(Shutdown::Finish);
        }
        let deadline = self.shared.clock.now() + within;
        Drain::new(self, self.shared.clock.sleep_until(deadline))
    }

    /// Adds the keys that an earlier run left, with priorities, deadlines and failures, and returns how many were
    /// accepted: all, or none if this queue is shutting down.
    ///
    /// Deadlines must be of the same clock. Keys that were in flight are ready; make sure that their old workers have
    /// ended.
    pub fn restore(&self, remains: impl IntoIterator<Item = Status<K>>) -> usize {
        let now = self.shared.clock.now();
        let restore = |status: Status<K>| {
            let hash = self.hash(status.key());
            self.shared.locked(|state| state.restore(status, hash, now))
        };
        remains
            .into_iter()
            .map(restore)
            .filter(|&taken_in| taken_in)
            .count()
    }
}

/// Status.
impl<K: Key> Queue<K> {
    /// Returns the number of keys by state.
    #[must_use]
    pub fn depth(&self) -> Depth {
        let now = self.catch_up();
        self.shared.locked(|state| state.depth(now))
    }

    /// Returns the number of keys that a worker can take now, by priority, the highest first:
    /// `workqueue_depth{priority}`. Priorities that were used a moment ago are listed with zero.
    #[must_use]
    pub fn depth_by_priority(&self) -> Vec<(i32, usize)> {
        self.catch_up();
        self.shared.locked(|state| state.depth_by_priority())
    }

    /// Returns the status of a key.
    #[must_use]
    pub fn status(&self, key: &K) -> Option<Status<K>> {
        self.catch_up();
        let hash = self.hash(key);
        self.shared.locked(|state| state.status(key, hash))
    }

    /// Returns the status of all keys for which `matches` is true, the longest waiting first.
    ///
    /// It walks some keys at a time, so that workers are not blocked. A key that moves meanwhile can be shown in its
    /// old or its new state. `matches` must not call the queue.
    #[must_use]
    pub fn statuses(&self, mut matches: impl FnMut(&K) -> bool) -> Vec<Status<K>> {
        self.catch_up();
        let mut found = Vec::new();
        let slots = self.shared.locked(|state| state.slots());
        for from in (0..slots).step_by(CHUNK) {
            self.shared
                .locked(|state| state.statuses_in(from..from + CHUNK, &mut matches, &mut found));
        }
        found.sort_by_key(Status::since);
        found
    }

    /// Returns the status of all keys in flight, the longest running first.
    #[must_use]
    pub fn in_flight(&self) -> Vec<Status<K>> {
        self.shared.locked(|state| state.in_flight())
    }

    /// Makes all due keys ready, so that the status is current.
    fn catch_up(&self) -> MonotonicTime {
        let now = self.shared.clock.now();
        while self.shared.locked(|state| state.promote(now)) {}
        now
    }
}

impl<K: Key> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.name())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
