// SPDX-License-Identifier: Apache-2.0
//! Everything that is under the queue's one lock.
//!
//! Each method here is one step that the rest of the world sees whole. After each step [`State::settle`] restores
//! the invariants of the waiters and says whom to wake once the lock is free.

mod finish;
mod look;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use hashbrown::HashTable;
use slab::Slab;
use steersman_core::MonotonicTime;

use crate::Key;
use crate::entry::{Entry, InFlight, Place};
use crate::group::{Group, Grouping};
use crate::inspect::Cause;
use crate::list::List;
use crate::schedule::Schedule;
use crate::shutdown::Shutdown;
use crate::timers::Timers;
use crate::waiters::Waiters;

/// How many keys become ready by their time in one step.
const PROMOTED_MAX: usize = 128;

/// A queue that ran empty gives its memory back if it had room for more keys than this.
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
    /// The sum of when each key in flight was started, so that the unfinished work needs no walk.
    started_nanos: u128,
    paused: bool,
    /// When the queue was last resumed.
    activated: MonotonicTime,
    shutdown: Option<Shutdown>,
    /// How many keys became ready since somebody asked.
    became_ready: u64,
}

/// Who is to be woken once the lock is free.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakes {
    taker: Option<Waker>,
    keeper: Option<Waker>,
    all: Vec<Waker>,
}

impl Wakes {
    pub(crate) fn wake(self) {
        for waker in self.taker.into_iter().chain(self.keeper).chain(self.all) {
            waker.wake();
        }
    }
}

/// How a key is to be put in.
#[derive(Clone, Copy)]
pub(crate) struct Entrance {
    pub(crate) priority: i32,
    pub(crate) at: Option<MonotonicTime>,
    pub(crate) cause: Cause,
    pub(crate) retractable: bool,
}

/// What an add did.
///
/// An enum rather than a `Result`: handlers that add keys have nothing to do about a queue that is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Added {
    /// The key was not waiting and now is.
    Queued,
    /// The key was waiting already. Its priority is now the higher and its deadline the earlier one.
    Merged,
    /// The queue is shutting down and nothing was changed.
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

/// What somebody who asks for the next key gets.
pub(crate) enum Polled<K> {
    Taken(Taken<K>),
    Over,
    /// Nothing yet; the keeper of the time has to sleep until that moment.
    Wait(Option<MonotonicTime>),
}

impl<K: Key> State<K> {
    pub(crate) fn new(patience: u32, grouping: Option<Arc<dyn Grouping<K>>>, paused: bool) -> Self {
        Self {
            entries: Slab::new(),
            index: HashTable::new(),
            schedule: Schedule::new(patience),
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

    pub(crate) fn add(&mut self, key: K, hash: u64, entrance: Entrance, now: MonotonicTime) -> Added {
        if self.shutdown.is_some() {
            return Added::Refused;
        }
        self.promote(now);
        let index = self.find_or_insert(key, hash);
        self.enqueue(index, entrance, now)
    }

    /// Makes keys ready whose time has come, and says whether there are more.
    ///
    /// Some at a time, so that the lock is never held for long: after hours of standby a million may be due at once.
    /// Every step makes more of them ready, and nobody waits while any is due. After shutdown none become ready:
    /// they are left for the report, or else a key that fails and fails would keep the workers from ending.
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

    /// Takes the next key, or enters the one who asks as a waiter.
    pub(crate) fn poll_next(&mut self, id: &mut Option<u32>, waker: &Waker, now: MonotonicTime) -> Polled<K> {
        let polled = match self.take(now) {
            Some(taken) => Polled::Taken(taken),
            None if self.is_over() => Polled::Over,
            None => {
                // While paused no deadline needs to be kept: whoever resumes or looks promotes what is due. After
                // shutdown nobody does.
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
        // Those that were made ready may all be in flight.
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
            failures: entry.failures(),
            added: std::mem::take(&mut entry.added),
            cause: entry.cause,
            queued: now.saturating_since(entry.since.max(self.activated)),
        };
        self.flights.push_back(&mut self.entries, index);
        self.in_flight += 1;
        self.started_nanos += u128::from(now.as_nanos());
        Some(taken)
    }

    /// A waiter was dropped before it got a key.
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

    /// How many keys became ready since this was last asked.
    pub(crate) fn take_became_ready(&mut self) -> u64 {
        std::mem::take(&mut self.became_ready)
    }

    /// A waker to be dropped once the lock is free.
    pub(crate) fn take_retired(&mut self) -> Option<Waker> {
        self.waiters.take_retired()
    }

    /// Whether there is anybody whom [`settle`](Self::settle) could wake, or an end that it could note.
    pub(crate) fn must_settle(&self) -> bool {
        !self.waiters.is_empty() || self.shutdown.is_some()
    }

    /// Restores the invariants of the waiters, and says whom to wake once the lock is free.
    pub(crate) fn settle(&mut self) -> Wakes {
        let mut wakes = Wakes::default();
        if self.shutdown.is_some() {
            self.settle_shutdown(&mut wakes);
        } else if !self.paused {
            wakes.taker = self.waiters.notify(self.schedule.eligible());
            wakes.keeper = self
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

    fn enqueue(&mut self, index: u32, entrance: Entrance, now: MonotonicTime) -> Added {
        let Entrance {
            priority,
            at,
            cause,
            retractable,
        } = entrance;
        let at = at.filter(|&at| at > now);
        let entry = &mut self.entries[index as usize];
        entry.added |= cause == Cause::Added;
        entry.retractable = retractable && (entry.retractable || entry.place == Place::Idle);
        let raised = priority > entry.priority;
        match (entry.place, at) {
            (Place::Idle, at) => {
                (entry.priority, entry.cause) = (priority, cause);
                match at {
                    Some(at) => self.make_delayed(index, at, now),
                    None => self.make_ready(index, now),
                }
                return Added::Queued;
            }
            (Place::Delayed, None) => {
                entry.priority = priority.max(entry.priority);
                entry.cause = cause;
                self.timers.remove(&mut self.entries, index);
                self.make_ready(index, now);
            }
            (Place::Delayed, Some(at)) => {
                entry.priority = priority.max(entry.priority);
                if at < self.timers.deadline_of(entry) {
                    entry.cause = cause;
                    self.timers.remove(&mut self.entries, index);
                    self.make_delayed(index, at, now);
                }
            }
            (Place::Ready | Place::Passed, _) if raised => {
                self.schedule.remove(&mut self.entries, index);
                self.entries[index as usize].priority = priority;
                let group = self.group(index);
                self.schedule.push(&mut self.entries, index, group);
            }
            (Place::Ready | Place::Passed, _) => {}
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
        entry.place = Place::Delayed;
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

    /// Takes a key out of wherever it waits.
    fn unqueue(&mut self, index: u32) {
        match self.entries[index as usize].place {
            Place::Idle => {}
            Place::Ready | Place::Passed => self.schedule.remove(&mut self.entries, index),
            Place::Delayed => {
                self.timers.remove(&mut self.entries, index);
                self.entries[index as usize].place = Place::Idle;
            }
        }
    }

    /// Forgets a key about which there is nothing left to remember.
    fn forget_if_idle(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        if entry.place == Place::Idle && !entry.in_flight && entry.trouble.is_none() {
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
