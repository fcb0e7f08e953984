// SPDX-License-Identifier: Apache-2.0
//! The model: the same rules over plain vectors, with a search for everything.

use std::collections::BTreeMap;

use steersman_queue::Stage;

use crate::How;
use crate::harness::at;

pub(crate) const PATIENCE: u64 = 3;

/// Two clusters with two namespaces each.
pub(crate) fn group_of(key: u8) -> (u8, u8) {
    (key % 2, key / 2 % 2)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    No,
    /// In its lane, or passed while in flight.
    Ready {
        order: u64,
    },
    Delayed {
        until: u64,
        order: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Known {
    waits: Waits,
    priority: i32,
    /// Zero unless `troubled`; a failure for good is remembered without counting.
    failures: u32,
    troubled: bool,
    in_flight_since: Option<u64>,
    discard: bool,
    retractable: bool,
}

/// A lane is its group and its keys; a level is its lanes by outer group, all in the order of their turns.
type Lane = (u8, Vec<u8>);
type Outer = (u8, Vec<Lane>);

#[derive(Debug, Default)]
struct Level {
    turn: u64,
    outers: Vec<Outer>,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) paused: bool,
    now: u64,
    keys: BTreeMap<u8, Known>,
    levels: BTreeMap<i32, Level>,
    takes: u64,
    orders: u64,
}

impl Model {
    pub(crate) fn add(&mut self, key: u8, priority: i32, after: u64, retractable: bool) {
        let fresh = Known {
            waits: Waits::No,
            priority: 0,
            failures: 0,
            troubled: false,
            in_flight_since: None,
            discard: false,
            retractable: false,
        };
        self.keys.entry(key).or_insert(fresh);
        self.enqueue(key, priority, self.now + after, retractable);
    }

    fn enqueue(&mut self, key: u8, priority: i32, until: u64, retractable: bool) {
        let known = self.known(key);
        known.retractable = retractable && (known.retractable || matches!(known.waits, Waits::No));
        let known = self.keys[&key];
        match known.waits {
            Waits::No => {
                self.known(key).priority = priority;
                self.wait_until(key, until);
            }
            Waits::Delayed { until: earlier, .. } => {
                self.known(key).priority = priority.max(known.priority);
                if until < earlier {
                    self.wait_until(key, until);
                }
            }
            Waits::Ready { .. } if priority > known.priority => {
                self.leave_lane(key);
                self.known(key).priority = priority;
                self.make_ready(key);
            }
            Waits::Ready { .. } => {}
        }
    }

    fn wait_until(&mut self, key: u8, until: u64) {
        if until <= self.now {
            return self.make_ready(key);
        }
        self.orders += 1;
        self.known(key).waits = Waits::Delayed {
            until,
            order: self.orders,
        };
    }

    fn make_ready(&mut self, key: u8) {
        self.orders += 1;
        self.known(key).waits = Waits::Ready { order: self.orders };
        self.enter_lane(key);
    }

    /// Puts a key into its lane at the place that its order gives it.
    fn enter_lane(&mut self, key: u8) {
        let (outer, inner) = group_of(key);
        let turn = self.takes + PATIENCE;
        let orders: BTreeMap<u8, u64> = self
            .keys
            .iter()
            .filter_map(|(&key, known)| Some((key, known.waits.order()?)))
            .collect();
        let level = self.levels.entry(self.keys[&key].priority).or_insert(Level {
            turn,
            outers: Vec::new(),
        });
        let lanes = entry(&mut level.outers, outer);
        let lane = entry(lanes, inner);
        lane.push(key);
        lane.sort_by_key(|key| orders[key]);
    }

    fn leave_lane(&mut self, key: u8) {
        for level in self.levels.values_mut() {
            for (_, lanes) in &mut level.outers {
                lanes
                    .iter_mut()
                    .for_each(|(_, lane)| lane.retain(|&other| other != key));
                lanes.retain(|(_, lane)| !lane.is_empty());
            }
            level.outers.retain(|(_, lanes)| !lanes.is_empty());
        }
        self.levels.retain(|_, level| !level.outers.is_empty());
    }

    pub(crate) fn take(&mut self) -> Option<(u8, i32, u32)> {
        if self.paused || self.depth().0 == 0 {
            return None;
        }
        loop {
            let (&highest, _) = self.levels.last_key_value()?;
            let (&oldest, level) = self.levels.iter().min_by_key(|(_, level)| level.turn)?;
            let priority = if level.turn <= self.takes { oldest } else { highest };
            let key = self.levels[&priority].outers[0].1[0].1[0];
            if self.keys[&key].in_flight_since.is_some() {
                self.leave_lane(key);
                continue;
            }
            self.rotate(priority, key);
            self.takes += 1;
            if let Some(level) = self.levels.get_mut(&priority) {
                level.turn = self.takes + PATIENCE;
            }
            let now = self.now;
            let known = self.known(key);
            known.waits = Waits::No;
            known.in_flight_since = Some(now);
            return Some((key, priority, known.failures));
        }
    }

    /// Takes the key out and sends its lane and outer group to the end, if they have more keys.
    fn rotate(&mut self, priority: i32, key: u8) {
        let (outer, inner) = group_of(key);
        self.leave_lane(key);
        let Some(level) = self.levels.get_mut(&priority) else {
            return;
        };
        if level.outers[0].0 == outer {
            let lanes = &mut level.outers[0].1;
            if lanes[0].0 == inner {
                lanes.rotate_left(1);
            }
            level.outers.rotate_left(1);
        }
    }

    pub(crate) fn finish(&mut self, key: u8, how: How, priority: Option<i32>, taken_priority: i32) {
        let priority = priority.unwrap_or(taken_priority);
        let now = self.now;
        let known = self.known(key);
        known.in_flight_since = None;
        let discard = std::mem::take(&mut known.discard);
        let delay = match how {
            How::Done | How::RequeueAfter(_) => {
                (known.failures, known.troubled) = (0, false);
                if let How::RequeueAfter(delay) = how {
                    Some(delay)
                } else {
                    None
                }
            }
            How::Retry | How::Drop => {
                (known.failures, known.troubled) = (known.failures + 1, true);
                Some(u64::from(known.failures))
            }
            How::Fail => {
                known.troubled = true;
                None
            }
            How::Postpone(delay) => Some(delay),
            How::Withdraw => {
                if matches!(known.waits, Waits::No) {
                    (known.failures, known.troubled) = (0, false);
                }
                None
            }
        };
        if discard {
            (known.failures, known.troubled) = (0, false);
        }
        let is_ready = matches!(known.waits, Waits::Ready { .. });
        if is_ready && !self.is_in_lane(key) {
            self.enter_lane(key);
        }
        if let Some(delay) = delay.filter(|_| !discard) {
            self.enqueue(key, priority, now + delay, false);
        }
        self.forget_if_idle(key);
    }

    pub(crate) fn advance(&mut self, by: u64) {
        self.now += by;
        let mut due: Vec<_> = self
            .keys
            .iter()
            .filter_map(|(&key, known)| match known.waits {
                Waits::Delayed { until, order } if until <= self.now => Some((until, order, key)),
                _ => None,
            })
            .collect();
        due.sort_unstable();
        for (_, _, key) in due {
            self.make_ready(key);
        }
    }

    pub(crate) fn forget(&mut self, key: u8) {
        if let Some(known) = self.keys.get_mut(&key) {
            (known.failures, known.troubled) = (0, false);
            self.forget_if_idle(key);
        }
    }

    pub(crate) fn retract(&mut self, key: u8) -> bool {
        let paused = self.paused;
        let is_meant = self.keys.get(&key).is_some_and(|known| {
            let waits = !matches!(known.waits, Waits::No);
            paused && waits && known.retractable && known.in_flight_since.is_none()
        });
        if is_meant {
            self.purge(|other| other == key);
        }
        is_meant
    }

    pub(crate) fn purge(&mut self, matches: impl Fn(u8) -> bool) {
        let purged: Vec<_> = self.keys.keys().copied().filter(|&key| matches(key)).collect();
        for key in purged {
            self.leave_lane(key);
            let known = self.known(key);
            known.waits = Waits::No;
            known.discard = known.in_flight_since.is_some();
            (known.failures, known.troubled) = (0, false);
            self.forget_if_idle(key);
        }
    }

    /// Eligible, dirty, delayed and in flight.
    pub(crate) fn depth(&self) -> (usize, usize, usize, usize) {
        let count = |is: &dyn Fn(&Known) -> bool| self.keys.values().filter(|known| is(known)).count();
        let is_ready = |known: &Known| matches!(known.waits, Waits::Ready { .. });
        (
            count(&|known| is_ready(known) && known.in_flight_since.is_none()),
            count(&|known| is_ready(known) && known.in_flight_since.is_some()),
            count(&|known| matches!(known.waits, Waits::Delayed { .. })),
            count(&|known| known.in_flight_since.is_some()),
        )
    }

    pub(crate) fn status(&self, key: u8) -> Option<(Stage, i32, u32)> {
        let known = self.keys.get(&key)?;
        let stage = match (known.in_flight_since, known.waits) {
            (Some(since), waits) => Stage::InFlight {
                since: at(since),
                again: waits != Waits::No,
            },
            (None, Waits::No) => Stage::Failed,
            (None, Waits::Ready { .. }) => Stage::Ready,
            (None, Waits::Delayed { until, .. }) => Stage::Delayed { until: at(until) },
        };
        Some((stage, known.priority, known.failures))
    }

    /// Keys that remain if the queue ends now.
    pub(crate) fn remains(&self) -> Vec<u8> {
        let is_left = |known: &Known| {
            let counts = known.in_flight_since.is_some() && !known.discard;
            counts || known.waits != Waits::No
        };
        self.keys
            .iter()
            .filter(|(_, known)| is_left(known))
            .map(|(&key, _)| key)
            .collect()
    }

    fn is_in_lane(&self, key: u8) -> bool {
        let mut lanes = self
            .levels
            .values()
            .flat_map(|level| &level.outers)
            .flat_map(|(_, lanes)| lanes);
        lanes.any(|(_, lane)| lane.contains(&key))
    }

    fn forget_if_idle(&mut self, key: u8) {
        let Known {
            waits,
            in_flight_since,
            troubled,
            ..
        } = self.keys[&key];
        if waits == Waits::No && in_flight_since.is_none() && !troubled {
            self.keys.remove(&key);
        }
    }

    fn known(&mut self, key: u8) -> &mut Known {
        self.keys.get_mut(&key).expect("the key is known")
    }
}

impl Waits {
    fn order(self) -> Option<u64> {
        match self {
            Self::Ready { order } => Some(order),
            _ => None,
        }
    }
}

/// The element with that name, made at the end if it is not there.
fn entry<T: Default>(list: &mut Vec<(u8, T)>, name: u8) -> &mut T {
    let position = list
        .iter()
        .position(|(other, _)| *other == name)
        .unwrap_or_else(|| {
            list.push((name, T::default()));
            list.len() - 1
        });
    &mut list[position].1
}
