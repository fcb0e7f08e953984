// SPDX-License-Identifier: Apache-2.0
//! State of one key in the queue.

use steersman_core::MonotonicTime;

use crate::inspect::Cause;
use crate::list::{Linked, Links, NIL};
use crate::timers::Timed;

/// List of a lane, in which keys wait for their turn.
#[derive(Debug)]
pub(crate) struct InLane;

/// List of keys in flight, the longest running first.
#[derive(Debug)]
pub(crate) struct InFlight;

/// State in which a key waits, independent of whether it is also in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitState {
    /// Not waiting: the key is only in flight, or only remembered because it failed.
    Idle,
    /// In the lane of its priority and group.
    Ready,
    /// Added again while in flight, and due before its worker finished. It returns to the front of its priority and group
    /// when the worker is done.
    Dirty,
    /// Among the timers.
    Delayed,
}

#[derive(Debug)]
pub(crate) struct Entry<K> {
    pub(crate) key: K,
    /// Stored so that the key is hashed once.
    pub(crate) hash: u64,
    pub(crate) lane_links: Links,
    pub(crate) flight_links: Links,
    /// Time since which it waits there.
    pub(crate) since: MonotonicTime,
    /// Start of the flight.
    pub(crate) started: MonotonicTime,
    /// Order of arrival in the lane or among the timers.
    pub(crate) order: u64,
    /// The lane while ready or dirty; the position in the heap while delayed.
    pub(crate) seat: u32,
    pub(crate) priority: i32,
    pub(crate) wait_state: WaitState,
    pub(crate) cause: Cause,
    /// Set if the key was added since it was last handed out.
    pub(crate) added: bool,
    /// Set if every add that made it wait allows it to be retracted.
    pub(crate) retractable: bool,
    pub(crate) in_flight: bool,
    /// Set if the key was purged or reported while in flight: its outcome is ignored.
    pub(crate) discard: bool,
    /// Boxed because few keys have it, and there can be a million entries.
    pub(crate) failures: Option<Box<Failures>>,
}

/// Failures of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    /// Number of consecutive failures.
    pub(crate) count: u32,
    pub(crate) error: Option<Box<str>>,
}

impl<K> Entry<K> {
    pub(crate) fn new(key: K, hash: u64) -> Self {
        Self {
            key,
            hash,
            lane_links: Links::NONE,
            flight_links: Links::NONE,
            since: MonotonicTime::ORIGIN,
            started: MonotonicTime::ORIGIN,
            order: 0,
            seat: NIL,
            priority: 0,
            wait_state: WaitState::Idle,
            cause: Cause::Added,
            added: false,
            retractable: false,
            in_flight: false,
            discard: false,
            failures: None,
        }
    }

    pub(crate) fn failure_count(&self) -> u32 {
        self.failures.as_ref().map_or(0, |failures| failures.count)
    }
}

impl<K> Linked<InLane> for Entry<K> {
    fn links(&self) -> &Links {
        &self.lane_links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.lane_links
    }
}

impl<K> Linked<InFlight> for Entry<K> {
    fn links(&self) -> &Links {
        &self.flight_links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.flight_links
    }
}

impl<K> Timed for Entry<K> {
    fn position(&self) -> u32 {
        self.seat
    }

    fn set_position(&mut self, position: u32) {
        self.seat = position;
    }
}
