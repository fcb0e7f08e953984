// SPDX-License-Identifier: Apache-2.0
//! Finds the lane of a key, and removes empty lanes.

use super::{Lane, Level, Outer, SWEEP_MIN, Schedule};
use crate::group::Group;
use crate::list::{Links, List};

impl Schedule {
    pub(super) fn lane(&mut self, priority: i32, group: Group) -> u32 {
        if let Some((last_priority, last_group, lane)) = self.last_lane
            && (last_priority, last_group) == (priority, group)
        {
            return lane;
        }
        let lane = self.find_lane(priority, group);
        self.last_lane = Some((priority, group, lane));
        lane
    }

    fn find_lane(&mut self, priority: i32, group: Group) -> u32 {
        let hash = mix(priority, group.outer, group.inner);
        let lanes = &self.lanes;
        let same = |&lane: &u32| {
            let lane = &lanes[lane as usize];
            (lane.priority, lane.group) == (priority, group)
        };
        if let Some(&lane) = self.lane_of.find(hash, same) {
            return lane;
        }
        if self.lanes.len() >= self.sweep_at {
            self.sweep();
        }
        let outer = self.find_outer(priority, group.outer);
        let lane = Lane {
            links: Links::NONE,
            entries: List::default(),
            outer,
            priority,
            group,
            held: 0,
        };
        let lane = self.lanes.insert(lane) as u32;
        let lanes = &self.lanes;
        self.lane_of.insert_unique(hash, lane, |&lane| {
            let Lane { priority, group, .. } = lanes[lane as usize];
            mix(priority, group.outer, group.inner)
        });
        lane
    }

    fn find_outer(&mut self, priority: i32, id: u64) -> u32 {
        let hash = mix(priority, id, 0);
        let outers = &self.outers;
        let same = |&outer: &u32| {
            let outer = &outers[outer as usize];
            (outer.priority, outer.id) == (priority, id)
        };
        if let Some(&outer) = self.outer_of.find(hash, same) {
            return outer;
        }
        let level = *self.level_of.entry(priority).or_insert_with(|| {
            let level = Level {
                priority,
                outers: List::default(),
                eligible: 0,
                turn: 0,
            };
            self.levels.insert(level) as u32
        });
        let outer = Outer {
            links: Links::NONE,
            lanes: List::default(),
            level,
            priority,
            id,
        };
        let outer = self.outers.insert(outer) as u32;
        let outers = &self.outers;
        self.outer_of.insert_unique(hash, outer, |&outer| {
            let Outer { priority, id, .. } = outers[outer as usize];
            mix(priority, id, 0)
        });
        outer
    }

    /// Removes everything that is empty. The next sweep runs when there are twice as many lanes as are left, so that
    /// its cost is spread over the lanes created in between.
    fn sweep(&mut self) {
        self.last_lane = None;
        let (lanes, outers, levels) = (&mut self.lanes, &mut self.outers, &mut self.levels);
        self.lane_of.retain(|&mut lane| {
            let keep = !lanes[lane as usize].entries.is_empty() || lanes[lane as usize].held > 0;
            if !keep {
                lanes.remove(lane as usize);
            }
            keep
        });
        let mut used_outers = vec![false; outers.capacity()];
        for (_, lane) in lanes.iter() {
            used_outers[lane.outer as usize] = true;
        }
        let mut used_levels = vec![false; levels.capacity()];
        self.outer_of.retain(|&mut outer| {
            let keep = used_outers[outer as usize];
            if keep {
                used_levels[outers[outer as usize].level as usize] = true;
            } else {
                outers.remove(outer as usize);
            }
            keep
        });
        self.level_of.retain(|_, &mut level| {
            let keep = used_levels[level as usize];
            if !keep {
                levels.remove(level as usize);
            }
            keep
        });
        self.sweep_at = SWEEP_MIN.max(2 * self.lanes.len());
    }
}

/// Hashes the name of a lane. The parts of a group are already hashes, so one multiplication is enough.
fn mix(priority: i32, outer: u64, inner: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let left = outer ^ ODD ^ u64::from(priority.cast_unsigned()).wrapping_mul(ODD);
    let product = u128::from(left) * u128::from(inner ^ ODD.rotate_left(32));
    (product as u64) ^ ((product >> 64) as u64)
}
