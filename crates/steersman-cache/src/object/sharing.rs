// SPDX-License-Identifier: Apache-2.0
//! What the objects of one store know about each other's decoded values.
//!
//! An object remembers its decoded value weakly. A weak reference keeps the memory of the value itself (two kilobytes
//! for a Pod) even when nobody holds it any more, so somebody has to come by and forget it.
//!
//! # Guarantees
//! 1. Of the values that nobody holds, no more stay allocated than of those that somebody does, or a thousand.
//! 2. With a budget, the values used last are held, up to that many bytes of their objects' JSON.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Object, Shared, decoded::lock};

/// How many values may be remembered before it is looked whether somebody still holds them.
const SWEEP_AT_LEAST: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// Zero if nothing is held.
    budget: usize,
    failures: AtomicU64,
    values: Mutex<Values>,
}

#[derive(Debug)]
struct Values {
    /// Objects that remember a value.
    remembering: Vec<Weak<Object>>,
    sweep_at: usize,
    /// Values that are held. Those in front go first, unless they were used since they came to the back: that needs
    /// no lock and no list to be kept in order when a value is used, unlike the exact order of use.
    held: VecDeque<Held>,
    held_bytes: usize,
}

#[derive(Debug)]
struct Held {
    object: Weak<Object>,
    bytes: usize,
    _value: Shared,
}

/// What decoding has cost so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) held_bytes: usize,
    pub(crate) failures: u64,
}

impl Sharing {
    pub(crate) fn new(budget: usize) -> Self {
        Self {
            budget,
            failures: AtomicU64::new(0),
            values: Mutex::new(Values {
                remembering: Vec::new(),
                sweep_at: SWEEP_AT_LEAST,
                held: VecDeque::new(),
                held_bytes: 0,
            }),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            held_bytes: lock(&self.values).held_bytes,
            failures: self.failures.load(Ordering::Relaxed),
        }
    }

    /// Something could not be decoded.
    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// An object has been decoded, and remembers it; `newly` if it remembered nothing before.
    pub(super) fn decoded(&self, object: &Arc<Object>, value: Shared, newly: bool) {
        let mut guard = lock(&self.values);
        let values = &mut *guard;
        if newly {
            values.remembering.push(Arc::downgrade(object));
        }
        let mut dropped = Vec::new();
        if self.budget > 0 {
            values.hold(object, value, self.budget, &mut dropped);
        }
        if values.remembering.len() >= values.sweep_at {
            values.sweep();
        }
        drop(guard);
        // Dropping large values takes time, and is nobody else's business.
        drop(dropped);
    }
}

impl Values {
    fn hold(&mut self, object: &Arc<Object>, value: Shared, budget: usize, dropped: &mut Vec<Held>) {
        let bytes = object.bytes().len();
        if bytes > budget {
            return;
        }
        self.held_bytes += bytes;
        self.held.push_back(Held {
            object: Arc::downgrade(object),
            bytes,
            _value: value,
        });
        let mut spared = self.held.len();
        while self.held_bytes > budget
            && let Some(oldest) = self.held.pop_front()
        {
            let is_used = oldest
                .object
                .upgrade()
                .is_some_and(|object| object.used.swap(false, Ordering::Relaxed));
            if is_used && spared > 0 {
                spared -= 1;
                self.held.push_back(oldest);
            } else {
                self.held_bytes -= oldest.bytes;
                dropped.push(oldest);
            }
        }
    }

    fn sweep(&mut self) {
        self.remembering.retain(|object| {
            let Some(object) = object.upgrade() else {
                return false;
            };
            let mut slot = object.slot();
            let lives = slot.as_ref().is_some_and(|value| value.strong_count() > 0);
            if !lives {
                *slot = None;
            }
            lives
        });
        self.sweep_at = SWEEP_AT_LEAST.max(self.remembering.len() * 2);
        self.remembering.shrink_to(self.sweep_at);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn objects(count: usize, sharing: &Arc<Sharing>) -> Vec<Arc<Object>> {
        (0..count)
            .map(|number| {
                let json = format!(r#"{{"metadata":{{"name":"{number:09}"}}}}"#);
                let object = Arc::new(Object::from_slice(json.as_bytes()).unwrap());
                object.enter(sharing, None)
            })
            .collect()
    }

    #[test]
    fn guarantee_1_values_that_nobody_holds_are_forgotten() {
        let sharing = Arc::new(Sharing::new(0));
        let objects = objects(5000, &sharing);
        let held: Vec<_> = objects[..10]
            .iter()
            .map(|object| object.decoded::<Value>().unwrap())
            .collect();
        for object in &objects {
            object.decoded::<Value>().unwrap();
        }
        let remembering = objects.iter().filter(|object| object.slot().is_some()).count();
        assert!(remembering <= SWEEP_AT_LEAST, "{remembering}");
        assert!(Arc::ptr_eq(&held[3], &objects[3].decoded().unwrap()));
    }

    #[test]
    fn guarantee_2_the_values_used_last_are_held_within_the_budget() {
        let all = objects(100, &Arc::new(Sharing::new(0)));
        let each = all[0].bytes().len();
        let sharing = Arc::new(Sharing::new(each * 10));
        let objects = objects(100, &sharing);
        for object in &objects {
            object.decoded::<Value>().unwrap();
            // Used all the time.
            assert!(objects[0].decoded::<Value>().is_ok());
        }
        assert_eq!(sharing.usage().held_bytes, each * 10);
        let held = objects
            .iter()
            .filter(|object| object.at_hand::<Value>().is_some())
            .count();
        assert_eq!(held, 10);
        assert!(objects[0].at_hand::<Value>().is_some());
        assert!(objects[99].at_hand::<Value>().is_some());
    }
}
