// SPDX-License-Identifier: Apache-2.0
//! A worker finishes a key; shutdown of the queue.

use std::task::Waker;

use steersman_core::MonotonicTime;

use super::{AddRequest, State, Wakes};
use crate::Key;
use crate::entry::{Failures, WaitState};
use crate::inspect::{Cause, Stage, Status};
use crate::shutdown::Shutdown;

impl<K: Key> State<K> {
    /// Counts a failure of a key in flight. Returns the number of failures, and whether the error equals that of the
    /// last failure.
    ///
    /// This is a separate step, so that the limiter is called outside the lock. No other call ends this flight
    /// meanwhile.
    pub(crate) fn note_failure(&mut self, index: u32, error: Option<Box<str>>, counts: bool) -> (u32, bool) {
        let failures = self.entries[index as usize].failures.get_or_insert_default();
        let repeats_error = error.is_some() && failures.error == error;
        failures.error = error;
        failures.count = failures.count.saturating_add(u32::from(counts));
        (failures.count, repeats_error)
    }

    /// Marks a key in flight as added, so that its next item reports the add.
    pub(crate) fn keep_added(&mut self, index: u32) {
        self.entries[index as usize].added = true;
    }

    /// Ends a flight. `reset` removes the failures; `again` requeues the key.
    pub(crate) fn finish(&mut self, index: u32, reset: bool, again: Option<(AddRequest, MonotonicTime)>) {
        self.flights.remove(&mut self.entries, index);
        self.in_flight -= 1;
        let entry = &mut self.entries[index as usize];
        self.started_nanos -= u128::from(entry.started.as_nanos());
        entry.in_flight = false;
        let discard = std::mem::take(&mut entry.discard);
        if reset || discard {
            entry.failures = None;
        }
        if matches!(entry.wait_state, WaitState::Ready | WaitState::Dirty) {
            self.schedule.release(&mut self.entries, index);
        }
        match again {
            Some((request, now)) if !discard => {
                self.promote(now);
                self.enqueue(index, request, now);
            }
            _ => self.forget_if_idle(index),
        }
    }

    /// Ends a flight without an outcome, and returns the status of the key.
    pub(crate) fn withdraw(&mut self, index: u32, added: bool) -> Option<Status<K>> {
        let (mut status, purged) = (self.status_at(index), self.entries[index as usize].discard);
        status.stage = Stage::Ready;
        if added {
            status.cause = Cause::Added;
        }
        // This queue hands out an add during the flight, with the failures of the key.
        let reset = self.entries[index as usize].wait_state == WaitState::Idle;
        self.finish(index, reset, None);
        (!purged).then_some(status)
    }

    /// Resets the back-off of a key.
    pub(crate) fn forget(&mut self, key: &K, hash: u64) {
        if let Some(index) = self.find(key, hash) {
            self.entries[index as usize].failures = None;
            self.forget_if_idle(index);
        }
    }

    pub(crate) fn shut_down(&mut self, how: Shutdown) {
        if self.shutdown != Some(Shutdown::Abandon) {
            self.shutdown = Some(how);
        }
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutdown.is_some()
    }

    /// Reports whether no more keys will be handed out.
    pub(crate) fn is_over(&self) -> bool {
        match self.shutdown {
            None => false,
            Some(Shutdown::Abandon) => true,
            Some(Shutdown::Finish) => self.paused || self.schedule.queued() == 0,
        }
    }

    pub(super) fn settle_shutdown(&mut self, wakes: &mut Wakes) {
        if !self.is_over() {
            wakes.taker = self.waiters.notify(self.schedule.eligible());
            return;
        }
        // The workers have ended or are ending, so no worker would take a key that returns from a flight.
        self.shutdown = Some(Shutdown::Abandon);
        wakes.all = self.waiters.notify_all();
        if self.in_flight == 0 {
            wakes.all.extend(self.drainers.drain());
        }
    }

    /// Reports whether a drain has nothing more to wait for.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_over() && self.in_flight == 0
    }

    /// Registers a waiter of the drain. All are woken and removed together.
    pub(crate) fn wait_for_drain(&mut self, waker: &Waker) -> u32 {
        self.drainers.insert(waker.clone()) as u32
    }

    /// Removes a waiter of the drain, and returns its waker to drop after the lock is released.
    pub(crate) fn leave_drain(&mut self, id: u32) -> Option<Waker> {
        self.drainers.try_remove(id as usize)
    }

    /// Takes out all waiting keys, and reports them with the keys in flight, each key once: first the keys in flight or
    /// ready, in their order, then the delayed ones by deadline.
    pub(crate) fn take_remains(&mut self) -> Vec<Status<K>> {
        let mut indexes: Vec<u32> = self.entries.iter().map(|(index, _)| index as u32).collect();
        indexes.sort_by_key(|&index| {
            let entry = &self.entries[index as usize];
            let until = (entry.wait_state == WaitState::Delayed).then(|| self.timers.deadline_of(entry));
            (until, entry.order)
        });
        let mut remains = Vec::new();
        for index in indexes {
            let entry = &mut self.entries[index as usize];
            // A flight with this mark was purged or reported before; only adds since then count.
            let counts = entry.in_flight && !entry.discard;
            let waits = entry.wait_state != WaitState::Idle;
            entry.discard = entry.in_flight;
            if counts || waits {
                remains.push(self.status_at(index));
            }
            self.unqueue(index);
            self.entries[index as usize].failures = None;
            self.forget_if_idle(index);
        }
        remains
    }

    /// Adds a key that an earlier run left, with its priority, deadline and failures.
    pub(crate) fn restore(&mut self, status: Status<K>, hash: u64, now: MonotonicTime) -> bool {
        if self.shutdown.is_some() {
            return false;
        }
        let Status {
            key,
            stage,
            priority,
            cause,
            failures,
            last_error,
            retractable,
            ..
        } = status;
        let at = match stage {
            Stage::Delayed { until } => Some(until),
            _ => None,
        };
        let index = self.find_or_insert(key, hash);
        if failures > 0 {
            let failures = Failures {
                count: failures,
                error: last_error,
            };
            self.entries[index as usize]
                .failures
                .get_or_insert_with(|| Box::new(failures));
        }
        let request = AddRequest {
            priority,
            at,
            cause,
            retractable,
        };
        self.enqueue(index, request, now);
        true
    }
}
