// SPDX-License-Identifier: Apache-2.0
//! Reads the status of keys, and purges them.

use std::ops::Range;
use std::time::Duration;

use steersman_core::MonotonicTime;

use super::State;
use crate::Key;
use crate::entry::WaitState;
use crate::inspect::{Depth, Stage, Status};

impl<K: Key> State<K> {
    pub(crate) fn depth(&self, now: MonotonicTime) -> Depth {
        let eligible = self.schedule.eligible();
        let unfinished = u128::from(now.as_nanos()) * self.in_flight as u128;
        let oldest = self
            .flights
            .front()
            .map(|index| self.entries[index as usize].started);
        Depth {
            ready: if self.paused { 0 } else { eligible },
            warm: if self.paused { eligible } else { 0 },
            delayed: self.timers.len(),
            in_flight: self.in_flight,
            dirty: self.schedule.queued() - eligible,
            unfinished_work: duration_from_nanos(unfinished.saturating_sub(self.started_nanos)),
            longest_running: oldest.map_or(Duration::ZERO, |started| now.saturating_since(started)),
        }
    }

    pub(crate) fn depth_by_priority(&self) -> Vec<(i32, usize)> {
        let paused = self.paused;
        self.schedule
            .eligible_by_priority()
            .map(|(priority, n)| (priority, if paused { 0 } else { n }))
            .collect()
    }

    pub(crate) fn status(&self, key: &K, hash: u64) -> Option<Status<K>> {
        self.find(key, hash).map(|index| self.status_at(index))
    }

    pub(super) fn status_at(&self, index: u32) -> Status<K> {
        let entry = &self.entries[index as usize];
        let stage = match entry.wait_state {
            wait_state if entry.in_flight => Stage::InFlight {
                since: entry.started,
                again: wait_state != WaitState::Idle,
            },
            WaitState::Idle => Stage::Failed,
            WaitState::Ready | WaitState::Dirty => Stage::Ready,
            WaitState::Delayed => Stage::Delayed {
                until: self.timers.deadline_of(entry),
            },
        };
        Status {
            key: entry.key.clone(),
            stage,
            priority: entry.priority,
            since: entry.since,
            cause: entry.cause,
            failures: entry.failure_count(),
            last_error: entry
                .failures
                .as_ref()
                .and_then(|failures| failures.error.clone()),
            retractable: entry.retractable,
        }
    }

    /// Returns one more than the highest slot that an entry can have.
    pub(crate) fn slots(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns the status of all matching keys in these places of the slab.
    pub(crate) fn statuses_in(
        &self,
        slots: Range<usize>,
        matches: &mut dyn FnMut(&K) -> bool,
        into: &mut Vec<Status<K>>,
    ) {
        for slot in slots {
            if self.entries.get(slot).is_some_and(|entry| matches(&entry.key)) {
                into.push(self.status_at(slot as u32));
            }
        }
    }

    /// Removes a key that waits in a paused queue, if all its adds allow that.
    pub(crate) fn retract(&mut self, key: &K, hash: u64) -> bool {
        let Some(index) = self.find(key, hash).filter(|_| self.paused) else {
            return false;
        };
        let entry = &mut self.entries[index as usize];
        if !entry.retractable || entry.in_flight || entry.wait_state == WaitState::Idle {
            return false;
        }
        entry.failures = None;
        self.unqueue(index);
        self.forget_if_idle(index);
        true
    }

    /// Returns the status of all keys in flight, the longest running first.
    pub(crate) fn in_flight(&self) -> Vec<Status<K>> {
        let first = self.flights.front();
        std::iter::successors(first, |&index| self.flights.next(&self.entries, index))
            .map(|index| self.status_at(index))
            .collect()
    }

    /// Removes all matching keys in these places of the slab, and returns their number.
    pub(crate) fn purge_in(&mut self, slots: Range<usize>, matches: &mut dyn FnMut(&K) -> bool) -> usize {
        let mut purged = 0;
        for slot in slots {
            if self.entries.get(slot).is_some_and(|entry| matches(&entry.key)) {
                let index = slot as u32;
                self.unqueue(index);
                let entry = &mut self.entries[slot];
                entry.discard = entry.in_flight;
                entry.failures = None;
                self.forget_if_idle(index);
                purged += 1;
            }
        }
        purged
    }
}

fn duration_from_nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
