// SPDX-License-Identifier: Apache-2.0
//! All state under the queue's single lock.
//!
//! Each method is one atomic step for other threads. After each step [`State::settle`] restores the invariants of the
//! waiters and returns the tasks to wake after the lock is released.

mod finish;
mod look;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use hashbrown::HashTable;
use slab::Slab;
use steersman_core::MonotonicTime;

use crate::Key;
use crate::entry::{Entry, InFlight, WaitState};
use crate::group::{Group, Grouping};
use crate::inspect::Cause;
use crate::list::List;
use crate::schedule::Schedule;
use crate::shutdown::Shutdown;
use crate::timers::Timers;
use crate::waiters::Waiters;

/// Maximum number of delayed keys that become ready in one step.
const PROMOTED_MAX: usize = 128;

/// An empty queue releases its memory if its capacity is larger than this.
const KEPT_CAPACITY: usize = 16 * 1024;

pub(crate) struct State<K> {
    entries: Slab<Entry<K>>,
    index: HashTable<u32>,
    schedule: Schedule,
    timers: Timers,
    grouping: Option<Arc<dyn Grouping<K>>>,
    waiters: Waiters,
    drainers: Slab<Waker>,
    flights: List<InFlight>,
    in_flight: usize,
    /// Sum of the start times of all keys in flight, so that the unfinished work needs no walk.
    started_nanos: u128,
    paused: bool,
    /// Time when the queue was last resumed.
    activated: MonotonicTime,
    shutdown: Option<Shutdown>,
    /// Number of keys that became ready since the last read of it.
    became_ready: u64,
}

/// Tasks to wake after the lock is released.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakes {
    taker: Option<Waker>,
    timer_waiter: Option<Waker>,
    all: Vec<Waker>,
}

impl Wakes {
    pub(crate) fn wake(self) {
        for waker in self.taker.into_iter().chain(self.timer_waiter).chain(self.all) {
            waker.wake();
        }
    }
}

/// Placement of a key that enters the queue.
#[derive(Clone, Copy)]
pub(crate) struct AddRequest {
    pub(crate) priority: i32,
    pub(crate) at: Option<MonotonicTime>,
    pub(crate) cause: Cause,
    pub(crate) retractable: bool,
}

/// Result of an add.
///
/// An enum rather than a `Result`: handlers that add keys cannot act on a queue that is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Added {
    /// The key was not waiting and now waits.
    Queued,
    /// The key was already waiting. It now has the higher priority and the earlier deadline.
    Merged,
    /// The queue is shutting down; nothing was changed.
    Refused,
}

/// A key that was taken.
pub(crate) struct Taken<K> {
    pub(crate) key: K,
    pub(crate) index: u32,
    pub(crate) priority: i32,
    pub(crate) failures: u32,
    pub(crate) added: bool,
    pub(crate) cause: Cause,
    pub(crate) queued: Duration,
}

/// Result of a poll for the next key.
pub(crate) enum Polled<K> {
    Taken(Taken<K>),
    Over,
    /// No key is ready. `Some` for the one waiting worker that also runs the timer of the queue: wake at this time.
    Wait(Option<MonotonicTime>),
}

impl<K: Key> State<K> {
    pub(crate) fn new(starvation_limit: u32, grouping: Option<Arc<dyn Grouping<K>>>, paused: bool) -> Self {
        Self {
            entries: Slab::new(),
            index: HashTable::new(),
            schedule: Schedule::new(starvation_limit),
            timers: Timers::default(),
            grouping,
            waiters: Waiters::default(),
            drainers: Slab::new(),
            flights: List::default(),
            in_flight: 0,
            started_nanos: 0,
            paused,
            activated: MonotonicTime::ORIGIN,
            shutdown: None,
            became_ready: 0,
        }
    }

    pub(crate) fn add(&mut self, key: K, hash: u64, request: AddRequest, now: MonotonicTime) -> Added {
        if self.shutdown.is_some() {
            return Added::Refused;
        }
        self.promote(now);
        let index = self.find_or_insert(key, hash);
        self.enqueue(index, request, now)
    }

    /// Makes due keys ready, and returns whether there are more.
    ///
    /// It handles some at a time, so that the lock is never held for long: after hours of standby a million keys can be
    /// due at once. Every step makes more of them ready, and no task waits while any is due. After shutdown no key
    /// becomes ready: the keys are left for the report. Otherwise a key that keeps failing would keep the workers from
    /// ending.
    pub(crate) fn promote(&mut self, now: MonotonicTime) -> bool {
        if self.shutdown.is_some() {
            return false;
        }
        for _ in 0..PROMOTED_MAX {
            let Some((at, index)) = self.timers.pop_due(&mut self.entries, now) else {
                return false;
            };
            self.make_ready(index, at);
        }
        self.timers.earliest().is_some_and(|earliest| earliest <= now)
    }

    /// Takes the next key, or registers the caller as a waiter.
    pub(crate) fn poll_next(&mut self, id: &mut Option<u32>, waker: &Waker, now: MonotonicTime) -> Polled<K> {
        let polled = match self.take(now) {
            Some(taken) => Polled::Taken(taken),
            None if self.is_over() => Polled::Over,
            None => {
                // While paused, no timer is needed: resuming or reading the status promotes due keys. After shutdown no
                // key is promoted.
                let keeps_time = !self.paused && self.shutdown.is_none();
                let earliest = self.timers.earliest().filter(|_| keeps_time);
                return Polled::Wait(self.waiters.wait(id, waker, earliest));
            }
        };
        if let Some(id) = id.take() {
            self.waiters.leave(id);
        }
        polled
    }

    pub(crate) fn take(&mut self, now: MonotonicTime) -> Option<Taken<K>> {
        // The promoted keys can all be in flight.
        while self.promote(now) && self.schedule.eligible() == 0 {}
        if self.paused || self.is_over() {
            return None;
        }
        let index = self.schedule.pop(&mut self.entries)?;
        let entry = &mut self.entries[index as usize];
        entry.in_flight = true;
        entry.started = now;
        let taken = Taken {
            key: entry.key.clone(),
            index,
            priority: entry.priority,
            failures: entry.failure_count(),
            added: std::mem::take(&mut entry.added),
            cause: entry.cause,
            queued: now.saturating_since(entry.since.max(self.activated)),
        };
        self.flights.push_back(&mut self.entries, index);
        self.in_flight += 1;
        self.started_nanos += u128::from(now.as_nanos());
        Some(taken)
    }

    /// Removes a waiter that was dropped before it got a key.
    pub(crate) fn leave(&mut self, id: u32) {
        self.waiters.leave(id);
    }

    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(crate) fn resume(&mut self, now: MonotonicTime) {
        if std::mem::replace(&mut self.paused, false) {
            self.promote(now);
            self.activated = now;
        }
    }

    /// Returns the number of keys that became ready since the last call.
    pub(crate) fn take_became_ready(&mut self) -> u64 {
        std::mem::take(&mut self.became_ready)
    }

    /// Returns a waker to drop after the lock is released.
    pub(crate) fn take_retired(&mut self) -> Option<Waker> {
        self.waiters.take_retired()
    }

    /// Reports whether [`settle`](Self::settle) has a task to wake or an end to note.
    pub(crate) fn must_settle(&self) -> bool {
        !self.waiters.is_empty() || self.shutdown.is_some()
    }

    /// Restores the invariants of the waiters, and returns the tasks to wake after the lock is released.
    pub(crate) fn settle(&mut self) -> Wakes {
        let mut wakes = Wakes::default();
        if self.shutdown.is_some() {
            self.settle_shutdown(&mut wakes);
        } else if !self.paused {
            wakes.taker = self.waiters.notify(self.schedule.eligible());
            wakes.timer_waiter = self
                .timers
                .earliest()
                .and_then(|earliest| self.waiters.keep_time(earliest));
        }
        wakes
    }

    fn find(&self, key: &K, hash: u64) -> Option<u32> {
        self.index
            .find(hash, |&index| self.entries[index as usize].key == *key)
            .copied()
    }

    fn find_or_insert(&mut self, key: K, hash: u64) -> u32 {
        if let Some(index) = self.find(&key, hash) {
            return index;
        }
        let index = u32::try_from(self.entries.insert(Entry::new(key, hash))).expect("fewer than 2^32 keys");
        let entries = &self.entries;
        self.index
            .insert_unique(hash, index, |&index| entries[index as usize].hash);
        index
    }

    fn enqueue(&mut self, index: u32, request: AddRequest, now: MonotonicTime) -> Added {
        let AddRequest {
            priority,
            at,
            cause,
            retractable,
        } = request;
        let at = at.filter(|&at| at > now);
        let entry = &mut self.entries[index as usize];
        entry.added |= cause == Cause::Added;
        entry.retractable = retractable && (entry.retractable || entry.wait_state == WaitState::Idle);
        let raised = priority > entry.priority;
        match (entry.wait_state, at) {
            (WaitState::Idle, at) => {
                (entry.priority, entry.cause) = (priority, cause);
                match at {
                    Some(at) => self.make_delayed(index, at, now),
                    None => self.make_ready(index, now),
                }
                return Added::Queued;
            }
            (WaitState::Delayed, None) => {
                entry.priority = priority.max(entry.priority);
                entry.cause = cause;
                self.timers.remove(&mut self.entries, index);
                self.make_ready(index, now);
            }
            (WaitState::Delayed, Some(at)) => {
                entry.priority = priority.max(entry.priority);
                if at < self.timers.deadline_of(entry) {
                    entry.cause = cause;
                    self.timers.remove(&mut self.entries, index);
                    self.make_delayed(index, at, now);
                }
            }
            (WaitState::Ready | WaitState::Dirty, _) if raised => {
                self.schedule.remove(&mut self.entries, index);
                self.entries[index as usize].priority = priority;
                let group = self.group(index);
                self.schedule.push(&mut self.entries, index, group);
            }
            (WaitState::Ready | WaitState::Dirty, _) => {}
        }
        Added::Merged
    }

    fn make_ready(&mut self, index: u32, since: MonotonicTime) {
        self.entries[index as usize].since = since;
        let group = self.group(index);
        self.schedule.push(&mut self.entries, index, group);
        self.became_ready += 1;
    }

    fn make_delayed(&mut self, index: u32, at: MonotonicTime, now: MonotonicTime) {
        let entry = &mut self.entries[index as usize];
        entry.wait_state = WaitState::Delayed;
        entry.since = now;
        let arrival = self.timers.insert(&mut self.entries, at, index);
        self.entries[index as usize].order = arrival;
    }

    fn group(&self, index: u32) -> Group {
        match &self.grouping {
            Some(grouping) => grouping.group(&self.entries[index as usize].key),
            None => Group::default(),
        }
    }

    /// Removes a key from the place where it waits.
    fn unqueue(&mut self, index: u32) {
        match self.entries[index as usize].wait_state {
            WaitState::Idle => {}
            WaitState::Ready | WaitState::Dirty => self.schedule.remove(&mut self.entries, index),
            WaitState::Delayed => {
                self.timers.remove(&mut self.entries, index);
                self.entries[index as usize].wait_state = WaitState::Idle;
            }
        }
    }

    /// Removes a key that has no state left to remember.
    fn forget_if_idle(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        if entry.wait_state == WaitState::Idle && !entry.in_flight && entry.failures.is_none() {
            if let Ok(found) = self.index.find_entry(entry.hash, |&other| other == index) {
                found.remove();
            }
            self.entries.remove(index as usize);
            if self.entries.is_empty() && self.entries.capacity() > KEPT_CAPACITY {
                self.entries = Slab::new();
                self.index = HashTable::new();
                self.timers.release();
            }
        }
    }
}
