// SPDX-License-Identifier: Apache-2.0
//! Delayed keys, ordered by deadline.
//!
//! A heap with four children per node. It knows the position of each key, so that a key can be moved to an earlier time
//! or removed without leaving garbage. Existing crates that can do this keep a second map from key to position; here
//! the entry itself has room for it. Keys with the same deadline are removed in the order in which they were inserted.

use slab::Slab;
use steersman_core::MonotonicTime;

const CHILDREN: usize = 4;

/// An element that stores its position in the heap.
pub(crate) trait Timed {
    fn set_position(&mut self, position: u32);
    fn position(&self) -> u32;
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    at: MonotonicTime,
    arrival: u64,
    index: u32,
}

impl Timer {
    fn order(&self) -> (MonotonicTime, u64) {
        (self.at, self.arrival)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<Timer>,
    arrivals: u64,
}

impl Timers {
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Releases the memory of an empty heap.
    pub(crate) fn release(&mut self) {
        self.heap.shrink_to_fit();
    }

    /// Returns the earliest deadline.
    pub(crate) fn earliest(&self) -> Option<MonotonicTime> {
        self.heap.first().map(|timer| timer.at)
    }

    pub(crate) fn deadline_of<T: Timed>(&self, element: &T) -> MonotonicTime {
        self.heap[element.position() as usize].at
    }

    /// Inserts an element, and returns the number of elements inserted so far, this one included.
    pub(crate) fn insert<T: Timed>(&mut self, slab: &mut Slab<T>, at: MonotonicTime, index: u32) -> u64 {
        self.arrivals += 1;
        self.heap.push(Timer {
            at,
            arrival: self.arrivals,
            index,
        });
        self.rise(slab, self.heap.len() - 1);
        self.arrivals
    }

    /// Removes the earliest element if it is due.
    pub(crate) fn pop_due<T: Timed>(
        &mut self,
        slab: &mut Slab<T>,
        now: MonotonicTime,
    ) -> Option<(MonotonicTime, u32)> {
        let first = *self.heap.first()?;
        (first.at <= now).then(|| {
            self.remove(slab, first.index);
            (first.at, first.index)
        })
    }

    /// Removes the element at `index` of the slab, which must be in the heap.
    pub(crate) fn remove<T: Timed>(&mut self, slab: &mut Slab<T>, index: u32) {
        let position = slab[index as usize].position() as usize;
        self.heap.swap_remove(position);
        if position < self.heap.len() {
            let position = self.rise(slab, position);
            self.sink(slab, position);
        }
    }

    fn place<T: Timed>(&mut self, slab: &mut Slab<T>, position: usize, timer: Timer) {
        self.heap[position] = timer;
        slab[timer.index as usize].set_position(position as u32);
    }

    fn rise<T: Timed>(&mut self, slab: &mut Slab<T>, mut position: usize) -> usize {
        let timer = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / CHILDREN;
            if self.heap[parent].order() <= timer.order() {
                break;
            }
            self.place(slab, position, self.heap[parent]);
            position = parent;
        }
        self.place(slab, position, timer);
        position
    }

    fn sink<T: Timed>(&mut self, slab: &mut Slab<T>, mut position: usize) {
        let timer = self.heap[position];
        loop {
            let first = position * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].order()) else {
                break;
            };
            if timer.order() <= self.heap[least].order() {
                break;
            }
            self.place(slab, position, self.heap[least]);
            position = least;
        }
        self.place(slab, position, timer);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Timed for u32 {
        fn set_position(&mut self, position: u32) {
            *self = position;
        }
        fn position(&self) -> u32 {
            *self
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn timers_fire_by_deadline_then_arrival(
            deadlines in proptest::collection::vec(0_u64..20, 1..60),
            removed in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let (mut timers, mut slab) = (Timers::default(), Slab::new());
            let mut expected = Vec::new();
            for &at in &deadlines {
                let index = slab.insert(0_u32) as u32;
                timers.insert(&mut slab, MonotonicTime::from_nanos(at), index);
                expected.push((MonotonicTime::from_nanos(at), index));
            }
            for which in removed {
                if !expected.is_empty() {
                    let (_, index) = expected.swap_remove(which.index(expected.len()));
                    timers.remove(&mut slab, index);
                }
            }
            expected.sort();
            let popped: Vec<_> =
                std::iter::from_fn(|| timers.pop_due(&mut slab, MonotonicTime::from_nanos(20))).collect();
            prop_assert_eq!(popped, expected);
        }
    }
}
