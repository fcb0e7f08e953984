// SPDX-License-Identifier: Apache-2.0
//! Sharing of decoded values among the objects of one store.
//!
//! An object remembers its decoded value weakly. A weak reference keeps the memory of the value itself allocated (two kilobytes
//! for a Pod) after the last strong reference is dropped. So unused weak references are swept from time to time.
//!
//! # Guarantees
//! 1. The number of unused values that stay allocated is at most the number of used ones, or a thousand.
//! 2. With a budget, recently used values are held, up to that many bytes of their objects' JSON.
//! 3. A value is held no longer than its object exists.

#[cfg(test)]
mod tests;

use std::{
    any::Any,
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{Object, Shared};
use crate::sync::Mutex;

/// The ledger of an object's store, and the object's own decoded value. Objects of a store that remember no value share one.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// The ledger of the store, if the object belongs to one.
    ledger: Option<Arc<Ledger>>,
    value: Value,
}

/// The last decoded value.
#[derive(Debug)]
enum Value {
    Nothing,
    /// Available as long as a caller holds it.
    Weak(Weak<dyn Any + Send + Sync>),
    /// Held within the budget, of which it takes this many bytes.
    Held(Shared, usize),
}

/// The bookkeeping of decoded values of a store.
#[derive(Debug)]
struct Ledger {
    /// Zero if no value is held.
    budget: usize,
    held_bytes: AtomicUsize,
    failures: AtomicU64,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    /// Objects that remember a value.
    remembering: List,
    /// Objects that hold a value. The front releases its value first, unless the value was used since the object was queued.
    /// Unlike exact LRU order, this needs no lock and no reordering when a value is used.
    holding: List,
}

/// Objects of which something is or was true.
#[derive(Debug)]
struct List {
    objects: VecDeque<Weak<Object>>,
    sweep_at: usize,
}

/// Figures about decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) held_bytes: usize,
    pub(crate) failures: u64,
}

impl Sharing {
    /// Creates the sharing of one store.
    pub(crate) fn new(budget: usize) -> Self {
        Self::of(Arc::new(Ledger {
            budget,
            held_bytes: AtomicUsize::new(0),
            failures: AtomicU64::new(0),
            lists: Mutex::new(Lists::default()),
        }))
    }

    fn of(ledger: Arc<Ledger>) -> Self {
        Self {
            ledger: Some(ledger),
            value: Value::Nothing,
        }
    }

    /// Returns the same with another value.
    fn with(&self, value: Value) -> Self {
        Self {
            ledger: self.ledger.clone(),
            value,
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        self.ledger.as_ref().map_or_else(Usage::default, |ledger| Usage {
            held_bytes: ledger.held_bytes.load(Ordering::Relaxed),
            failures: ledger.failures.load(Ordering::Relaxed),
        })
    }

    /// Counts a decode failure.
    pub(crate) fn failed(&self) {
        if let Some(ledger) = &self.ledger {
            ledger.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lives(&self) -> bool {
        match &self.value {
            Value::Nothing => false,
            Value::Weak(value) => value.strong_count() > 0,
            Value::Held(..) => true,
        }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        if let (Some(ledger), Value::Held(_, bytes)) = (&self.ledger, &self.value) {
            ledger.held_bytes.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }
}

impl Object {
    /// Returns the last decoded value, if it is still held.
    pub(super) fn remembered(&self) -> Option<Shared> {
        match &self.sharing.load().as_ref()?.value {
            Value::Nothing => None,
            Value::Weak(value) => value.upgrade(),
            Value::Held(value, _) => Some(Arc::clone(value)),
        }
    }

    /// Remembers a decoded value.
    pub(super) fn remember(self: &Arc<Self>, value: Shared) {
        // Set when the object enters its store, before it is shared, and never changed.
        let ledger = self.sharing.load().as_ref().and_then(|own| own.ledger.clone());
        let bytes = self.bytes().len();
        let value = match &ledger {
            Some(ledger) if bytes <= ledger.budget => {
                ledger.held_bytes.fetch_add(bytes, Ordering::Relaxed);
                Value::Held(value, bytes)
            }
            _ => Value::Weak(Arc::downgrade(&value)),
        };
        let is_held = matches!(value, Value::Held(..));
        let own = Sharing {
            ledger: ledger.clone(),
            value,
        };
        let before = self.sharing.swap(Some(Arc::new(own)));
        let Some(ledger) = ledger else { return };
        let (remembered, held) = before.map_or((false, false), |before| {
            let held = matches!(before.value, Value::Held(..));
            (held || matches!(before.value, Value::Weak(_)), held)
        });
        ledger.decoded(self, !remembered, is_held && !held);
    }

    /// Forgets the value if it is unused. Returns true if the object still has a value, perhaps a new one.
    fn still_remembers(&self, nothing: &Arc<Sharing>) -> bool {
        let current = self.sharing.load();
        if current.as_ref().is_some_and(|current| current.lives()) {
            return true;
        }
        let before = self
            .sharing
            .compare_and_swap(&*current, Some(Arc::clone(nothing)));
        before.as_ref().map(Arc::as_ptr) != current.as_ref().map(Arc::as_ptr)
    }

    fn holds(&self) -> bool {
        let sharing = self.sharing.load();
        matches!(
            sharing.as_deref(),
            Some(Sharing {
                value: Value::Held(..),
                ..
            })
        )
    }

    /// Stops holding the value, and returns its holder. `None` if the object holds no value, or another one meanwhile.
    fn let_go(&self) -> Option<(Arc<Sharing>, usize)> {
        let current = self.sharing.load_full()?;
        let Value::Held(value, bytes) = &current.value else {
            return None;
        };
        let (weak, bytes) = (current.with(Value::Weak(Arc::downgrade(value))), *bytes);
        let before = self.sharing.compare_and_swap(&current, Some(Arc::new(weak)));
        let is_done = before
            .as_ref()
            .is_some_and(|before| Arc::ptr_eq(before, &current));
        is_done.then_some((current, bytes))
    }
}

impl Ledger {
    /// Records that an object was decoded, and newly remembers or holds the value.
    fn decoded(self: &Arc<Self>, object: &Arc<Object>, remembers: bool, holds: bool) {
        let mut lists = self.lists.lock();
        if remembers {
            let nothing = || Arc::new(Sharing::of(Arc::clone(self)));
            let still = |nothing: &Arc<Sharing>, object: &Object| object.still_remembers(nothing);
            lists.remembering.push(object, nothing, still);
        }
        if holds {
            lists.holding.push(object, || (), |(), object| object.holds());
        }
        let excess = self
            .held_bytes
            .load(Ordering::Relaxed)
            .saturating_sub(self.budget);
        let dropped = lists.holding.let_go(excess);
        drop(lists);
        // Outside the lock: dropping large values takes time.
        drop(dropped);
    }
}

impl List {
    /// Shorter lists are not searched for dropped objects.
    const SWEEP_AT_LEAST: usize = 1024;

    fn push<T>(
        &mut self,
        object: &Arc<Object>,
        prepare: impl Fn() -> T,
        still: impl Fn(&T, &Object) -> bool,
    ) {
        self.objects.push_back(Arc::downgrade(object));
        if self.objects.len() >= self.sweep_at {
            let prepared = prepare();
            self.objects
                .retain(|object| object.upgrade().is_some_and(|object| still(&prepared, &object)));
            self.sweep_at = Self::SWEEP_AT_LEAST.max(self.objects.len() * 2);
            self.objects.shrink_to(self.sweep_at);
        }
    }

    /// Releases values until `excess` bytes are freed.
    fn let_go(&mut self, mut excess: usize) -> Vec<Arc<Sharing>> {
        let mut dropped = Vec::new();
        let mut spared = self.objects.len();
        while excess > 0
            && let Some(oldest) = self.objects.pop_front()
        {
            let Some(object) = oldest.upgrade() else { continue };
            if spared > 0 && object.used.swap(false, Ordering::Relaxed) {
                spared -= 1;
                self.objects.push_back(oldest);
            } else if let Some((held, bytes)) = object.let_go() {
                excess = excess.saturating_sub(bytes);
                dropped.push(held);
            } else if object.holds() {
                // Decoded again at this moment.
                self.objects.push_back(oldest);
            }
        }
        dropped
    }
}

impl Default for List {
    fn default() -> Self {
        Self {
            objects: VecDeque::new(),
            sweep_at: Self::SWEEP_AT_LEAST,
        }
    }
}
