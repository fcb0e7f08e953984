// SPDX-License-Identifier: Apache-2.0
//! The queue as its users see it.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use steersman_core::{Clock, MonotonicTime};

use crate::Key;
use crate::inspect::{Cause, Depth, Status};
use crate::item::Item;
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::next::Next;
use crate::options::{Add, Options};
use crate::shutdown::{Drain, Shutdown};
use crate::state::{Added, Entrance, State};
use crate::sync::Lock;

/// How many keys are looked at under one lock when all are walked.
const CHUNK: usize = 1024;

/// A queue of keys. Clones are handles on the same queue. See the [crate](crate) for what it guarantees.
pub struct Queue<K: Key> {
    pub(crate) shared: Arc<Shared<K>>,
}

pub(crate) struct Shared<K: Key> {
    state: Lock<State<K>>,
    // Seeded by chance against crafted keys. Nothing is ever listed in the order of hashes.
    hasher: RandomState,
    name: Arc<str>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limiter: Arc<dyn Limiter<K>>,
    pub(crate) metrics: Option<Arc<dyn Metrics>>,
}

impl<K: Key> Shared<K> {
    /// Makes one step under the lock, then wakes and tells whom it concerns.
    pub(crate) fn locked<R>(&self, step: impl FnOnce(&mut State<K>) -> R) -> R {
        let mut state = self.state.lock();
        let result = step(&mut state);
        let became_ready = state.take_became_ready();
        // Nobody to wake is the usual case of a busy queue.
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

/// Adding and taking.
impl<K: Key> Queue<K> {
    /// A queue that takes its time from `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, options: Options<K>) -> Self {
        let Options {
            name,
            paused,
            patience,
            limiter,
            grouping,
            metrics,
        } = options;
        let state = Lock::new(State::new(patience.get(), grouping, paused));
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

    /// What the queue is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Adds a key, at once and with priority 0.
    pub fn add(&self, key: K) -> Added {
        self.add_with(key, Add::new())
    }

    /// Adds a key as `how` says.
    ///
    /// If it waits already, the higher priority and the earlier time win. Its back-off is neither consumed nor
    /// reset: a key that backs off and is added without delay is ready now, and if it fails again its back-off goes
    /// on from where it was.
    pub fn add_with(&self, key: K, how: Add) -> Added {
        let Add {
            priority,
            after,
            retractable,
        } = how;
        let hash = self.hash(&key);
        let now = self.shared.clock.now();
        let at = (!after.is_zero()).then(|| now + after);
        let entrance = Entrance {
            priority,
            at,
            cause: Cause::Added,
            retractable,
        };
        let added = self.shared.locked(|state| state.add(key, hash, entrance, now));
        if let Some(metrics) = &self.shared.metrics
            && at.is_some()
            && !matches!(added, Added::Refused)
        {
            metrics.retried();
        }
        added
    }

    /// Waits for the key whose turn it is. Gives `None` when the queue was shut down and nothing more will come.
    ///
    /// # Cancel safety
    /// It may be dropped at any time: no key is lost, and if it had been woken for one, another waiter is.
    pub fn next(&self) -> Next<'_, K> {
        Next::new(self)
    }

    /// Takes the key whose turn it is, if there is one now.
    pub fn try_next(&self) -> Option<Item<K>> {
        let now = self.shared.clock.now();
        let taken = self.shared.locked(|state| state.take(now))?;
        Some(Item::new(&self.shared, taken, now))
    }

    /// Resets the back-off of a key. If it waits for it now, it goes on waiting.
    pub fn forget(&self, key: &K) {
        let hash = self.hash(key);
        self.shared.locked(|state| state.forget(key, hash));
    }

    /// Removes all keys for which `matches` is true, because what they are about has gone away, and says how many.
    ///
    /// Keys in flight count too: their outcome will not put them back. A key that is added from now on is queued
    /// as any other. `matches` is called under the queue's lock, for some keys at a time, and must not call the
    /// queue.
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
        let places = self.shared.locked(|state| state.places());
        (0..places)
            .step_by(CHUNK)
            .map(|from| {
                self.shared
                    .locked(|state| state.purge_in(from..from + CHUNK, &mut matches))
            })
            .sum()
    }

    /// Removes a key that waits in a paused queue, and says whether it did. A key of which any add was not
    /// [retractable](Add::retractable), or that its own outcome put back, stays.
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

/// Pausing and ending.
impl<K: Key> Queue<K> {
    /// Hands out nothing more until [`resume`](Self::resume). Keys are taken in and delays run on; keys in flight
    /// are not touched.
    pub fn pause(&self) {
        self.shared.locked(State::pause);
    }

    /// Whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.locked(|state| state.is_paused())
    }

    /// Hands out keys again. For those that waited meanwhile, the time in the queue starts now.
    pub fn resume(&self) {
        let now = self.shared.clock.now();
        self.shared.locked(|state| state.resume(now));
    }

    /// Takes in no key any more, and lets the workers end as `how` says. [`Shutdown::Finish`] can be followed by
    /// [`Shutdown::Abandon`]; anything else after the first call changes nothing.
    pub fn shut_down(&self, how: Shutdown) {
        self.shared.locked(|state| state.shut_down(how));
    }

    /// Whether the queue takes in no key any more.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shared.locked(|state| state.is_shutting_down())
    }

    /// Shuts down with [`Shutdown::Finish`] unless that was said before (at this call, not when awaited), waits until the workers are done but no
    /// longer than `within`, and takes out all that is left.
    ///
    /// The answer has every key that was ready, delayed or still in flight, once: first those in flight and ready in
    /// the order of their arrival, then the delayed ones by deadline. [`restore`](Self::restore) puts them into the queue of a later run.
    ///
    /// # Cancel safety
    /// It may be dropped at any time and called again: what is left stays in the queue until it is answered.
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

    /// Puts in what an earlier run left, with priorities, deadlines and failures, and says how many were taken in:
    /// all, or none if this queue is shutting down.
    ///
    /// Deadlines count on the same clock. What was in flight is ready; see to it that its old worker has ended.
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

/// Looking.
impl<K: Key> Queue<K> {
    /// How much is in the queue, by what keeps it there.
    #[must_use]
    pub fn depth(&self) -> Depth {
        let now = self.catch_up();
        self.shared.locked(|state| state.depth(now))
    }

    /// Keys that a worker may take now, by priority, the highest first: `workqueue_depth{priority}`. Priorities
    /// that were used a moment ago are listed with zero.
    #[must_use]
    pub fn depth_by_priority(&self) -> Vec<(i32, usize)> {
        self.catch_up();
        self.shared.locked(|state| state.depth_by_priority())
    }

    /// What the queue knows about a key.
    #[must_use]
    pub fn status(&self, key: &K) -> Option<Status<K>> {
        self.catch_up();
        let hash = self.hash(key);
        self.shared.locked(|state| state.status(key, hash))
    }

    /// What the queue knows about all keys for which `matches` is true, those first that wait the longest.
    ///
    /// The keys are walked some at a time, so that workers are not held up; what moves meanwhile may be seen in
    /// its old state or its new one. `matches` must not call the queue.
    #[must_use]
    pub fn statuses(&self, mut matches: impl FnMut(&K) -> bool) -> Vec<Status<K>> {
        self.catch_up();
        let mut found = Vec::new();
        let places = self.shared.locked(|state| state.places());
        for from in (0..places).step_by(CHUNK) {
            self.shared
                .locked(|state| state.statuses_in(from..from + CHUNK, &mut matches, &mut found));
        }
        found.sort_by_key(Status::since);
        found
    }

    /// What the queue knows about all keys in flight, those first that are in flight the longest.
    #[must_use]
    pub fn in_flight(&self) -> Vec<Status<K>> {
        self.shared.locked(|state| state.in_flight())
    }

    /// Makes all ready whose time has come, so that what is seen is true now.
    fn catch_up(&self) -> MonotonicTime {
        let now = self.shared.clock.now();
        while self.shared.locked(|state| state.promote(now)) {}
        now
    }
}

impl<K: Key> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
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
