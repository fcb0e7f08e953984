// SPDX-License-Identifier: Apache-2.0
//! Selects the next key: by priority, then by group in turn, then by order of arrival.
//!
//! Ready keys wait in *lanes*, one per priority and group. Lanes of one outer group form a ring, and the outer groups
//! of one priority (a *level*) form a ring too. A take selects the highest level, its first outer group, the first lane
//! of that, and its first key. Then it moves the lane and the outer group to the end of their rings.
//!
//! # Ageing
//! A level that was skipped `starvation_limit` times gets one turn, the longest waiting level first. This gives each level a
//! fixed share of the workers, however long the backlog. Ageing by time would be worse: once a million keys of a first
//! list are old enough, all of them are served before every new key.
//!
//! # Keys in flight
//! A key that was added while in flight waits in its lane but must not be taken. When its turn is reached it is
//! *dirty*: it leaves the lane, and returns to the front when its flight ends. So each key is skipped at most once per
//! flight, and no take searches through keys that are in flight.
//!
//! Empty rings and lanes are kept for their next key and swept occasionally, so that a steady state allocates nothing.

mod lanes;

use std::collections::BTreeMap;

use hashbrown::HashTable;
use slab::Slab;

use crate::entry::{Entry, InLane, WaitState};
use crate::group::Group;
use crate::list::{Linked, Links, List};

/// Ring of the outer groups of a level.
#[derive(Debug)]
struct InLevel;
/// Ring of the lanes of an outer group.
#[derive(Debug)]
struct InOuter;

#[derive(Debug)]
struct Lane {
    links: Links,
    entries: List<InLane>,
    outer: u32,
    priority: i32,
    group: Group,
    /// Number of dirty keys that will return to this lane.
    held: usize,
}

#[derive(Debug)]
struct Outer {
    links: Links,
    lanes: List<InOuter>,
    level: u32,
    priority: i32,
    id: u64,
}

#[derive(Debug)]
struct Level {
    priority: i32,
    outers: List<InLevel>,
    /// Number of keys that can be taken now.
    eligible: usize,
    /// The take at which this level is served even if there are higher ones.
    turn: u64,
}

impl Linked<InLevel> for Outer {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Linked<InOuter> for Lane {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// With fewer lanes than this, nothing is swept.
const SWEEP_MIN: usize = 64;

#[derive(Debug)]
pub(crate) struct Schedule {
    lanes: Slab<Lane>,
    outers: Slab<Outer>,
    levels: Slab<Level>,
    lane_of: HashTable<u32>,
    /// The last lane that was looked up; most queues have few.
    last_lane: Option<(i32, Group, u32)>,
    outer_of: HashTable<u32>,
    level_of: BTreeMap<i32, u32>,
    /// Levels with waiting keys, the highest priority last.
    active: Vec<(i32, u32)>,
    starvation_limit: u64,
    takes: u64,
    /// Lower bound of the turns of all active levels. Turns are assigned in rising order, so it stays valid.
    next_turn: u64,
    orders: u64,
    sweep_at: usize,
    eligible: usize,
    queued: usize,
}

impl Schedule {
    pub(crate) fn new(starvation_limit: u32) -> Self {
        Self {
            lanes: Slab::new(),
            outers: Slab::new(),
            levels: Slab::new(),
            lane_of: HashTable::new(),
            last_lane: None,
            outer_of: HashTable::new(),
            level_of: BTreeMap::new(),
            active: Vec::new(),
            starvation_limit: u64::from(starvation_limit),
            takes: 0,
            next_turn: 0,
            orders: 0,
            sweep_at: SWEEP_MIN,
            eligible: 0,
            queued: 0,
        }
    }

    /// Returns the number of keys that can be taken now.
    pub(crate) fn eligible(&self) -> usize {
        self.eligible
    }

    /// Returns the number of ready keys, including keys that are still in flight.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Returns the number of keys that can be taken now, by priority, the highest first.
    pub(crate) fn eligible_by_priority(&self) -> impl Iterator<Item = (i32, usize)> {
        self.level_of
            .iter()
            .rev()
            .map(|(&priority, &level)| (priority, self.levels[level as usize].eligible))
    }

    /// Adds a key to the end of its lane.
    pub(crate) fn push<K>(&mut self, entries: &mut Slab<Entry<K>>, index: u32, group: Group) {
        let entry = &mut entries[index as usize];
        let lane = self.lane(entry.priority, group);
        self.orders += 1;
        entry.order = self.orders;
        entry.wait_state = WaitState::Ready;
        entry.seat = lane;
        let free = !entry.in_flight;
        self.queued += 1;
        self.insert(entries, lane, None, index);
        if free {
            self.count_eligible(lane, 1);
        }
    }

    /// Marks a ready key as available, because its flight has ended.
    pub(crate) fn release<K>(&mut self, entries: &mut Slab<Entry<K>>, index: u32) {
        let entry = &mut entries[index as usize];
        let (lane, order) = (entry.seat, entry.order);
        if entry.wait_state == WaitState::Dirty {
            entry.wait_state = WaitState::Ready;
            self.lanes[lane as usize].held -= 1;
            // Only keys that are dirty too can be before it, so the walk is at most as long as the number of workers.
            let list = &self.lanes[lane as usize].entries;
            let mut next = list.front();
            while let Some(other) = next.filter(|&other| entries[other as usize].order < order) {
                next = list.next(entries, other);
            }
            self.insert(entries, lane, next, index);
        }
        self.count_eligible(lane, 1);
    }

    /// Removes a ready or dirty key from the schedule.
    pub(crate) fn remove<K>(&mut self, entries: &mut Slab<Entry<K>>, index: u32) {
        let entry = &mut entries[index as usize];
        let (lane, free) = (entry.seat, !entry.in_flight);
        let is_dirty = std::mem::replace(&mut entry.wait_state, WaitState::Idle) == WaitState::Dirty;
        self.queued -= 1;
        if free {
            self.count_eligible(lane, -1);
        }
        if is_dirty {
            self.lanes[lane as usize].held -= 1;
        } else {
            self.lanes[lane as usize].entries.remove(entries, index);
            self.close_if_empty(lane);
        }
    }

    /// Takes the next key.
    pub(crate) fn pop<K>(&mut self, entries: &mut Slab<Entry<K>>) -> Option<u32> {
        if self.eligible == 0 {
            return None;
        }
        while let Some(level) = self.choose() {
            if let Some(index) = self.pop_from(entries, level) {
                self.takes += 1;
                let level = &mut self.levels[level as usize];
                level.turn = self.takes + self.starvation_limit;
                level.eligible -= 1;
                self.eligible -= 1;
                self.queued -= 1;
                return Some(index);
            }
        }
        None
    }

    /// Selects the next level: one that was skipped too often, otherwise the highest.
    fn choose(&mut self) -> Option<u32> {
        let &(_, highest) = self.active.last()?;
        if self.active.len() > 1 && self.takes >= self.next_turn {
            let turns = self
                .active
                .iter()
                .map(|&(_, level)| (self.levels[level as usize].turn, level));
            let (turn, level) = turns.min_by_key(|&(turn, _)| turn)?;
            self.next_turn = turn;
            if self.takes >= turn {
                return Some(level);
            }
        }
        Some(highest)
    }

    fn pop_from<K>(&mut self, entries: &mut Slab<Entry<K>>, level: u32) -> Option<u32> {
        while let Some(outer) = self.levels[level as usize].outers.front() {
            let lane = self.outers[outer as usize]
                .lanes
                .front()
                .expect("an outer group in a ring has a lane");
            let list = &mut self.lanes[lane as usize].entries;
            let index = list.front().expect("a lane in a ring has a key");
            list.remove(entries, index);
            let entry = &mut entries[index as usize];
            if entry.in_flight {
                entry.wait_state = WaitState::Dirty;
                self.lanes[lane as usize].held += 1;
                self.close_if_empty(lane);
                continue;
            }
            entry.wait_state = WaitState::Idle;
            if !self.lanes[lane as usize].entries.is_empty() {
                self.outers[outer as usize].lanes.rotate(&mut self.lanes);
            }
            if !self.close_if_empty(lane) {
                self.levels[level as usize].outers.rotate(&mut self.outers);
            }
            return Some(index);
        }
        None
    }

    fn insert<K>(&mut self, entries: &mut Slab<Entry<K>>, lane_index: u32, next: Option<u32>, index: u32) {
        let lane = &mut self.lanes[lane_index as usize];
        let was_empty = lane.entries.is_empty();
        lane.entries.insert_before(entries, next, index);
        if was_empty {
            self.open(lane_index);
        }
    }

    /// Adds a lane with its first key to the ring, and its parents to theirs.
    fn open(&mut self, lane: u32) {
        let outer = self.lanes[lane as usize].outer;
        let lanes = &mut self.outers[outer as usize].lanes;
        let outer_was_empty = lanes.is_empty();
        lanes.push_back(&mut self.lanes, lane);
        if outer_was_empty {
            let level_index = self.outers[outer as usize].level;
            let level = &mut self.levels[level_index as usize];
            if level.outers.is_empty() {
                level.turn = self.takes + self.starvation_limit;
                let at = self
                    .active
                    .partition_point(|&(priority, _)| priority < level.priority);
                self.active.insert(at, (level.priority, level_index));
            }
            level.outers.push_back(&mut self.outers, outer);
        }
    }

    /// Removes an empty lane from the ring, and its empty parents from theirs. Returns whether the outer group was
    /// removed.
    fn close_if_empty(&mut self, lane: u32) -> bool {
        if !self.lanes[lane as usize].entries.is_empty() {
            return false;
        }
        let outer = self.lanes[lane as usize].outer;
        let lanes = &mut self.outers[outer as usize].lanes;
        lanes.remove(&mut self.lanes, lane);
        if !lanes.is_empty() {
            return false;
        }
        let level = &mut self.levels[self.outers[outer as usize].level as usize];
        level.outers.remove(&mut self.outers, outer);
        if level.outers.is_empty() {
            let priority = level.priority;
            let at = self.active.partition_point(|&(other, _)| other < priority);
            self.active.remove(at);
        }
        true
    }

    fn count_eligible(&mut self, lane: u32, change: isize) {
        let outer = self.lanes[lane as usize].outer;
        let level = &mut self.levels[self.outers[outer as usize].level as usize];
        level.eligible = level.eligible.wrapping_add_signed(change);
        self.eligible = self.eligible.wrapping_add_signed(change);
    }
}
