// SPDX-License-Identifier: Apache-2.0
//! Keys and decoded values of a store, kept close together in memory.
//!
//! An object and its bytes are at arbitrary addresses. A typed read that followed both to reach the value would wait for
//! memory three times instead of once.

use std::sync::Arc;

use crate::object::Shared;

/// Below this size, unused text is not compacted.
const SMALL: usize = 4096;

/// Keys and values by slot.
#[derive(Debug, Default)]
pub(super) struct Values {
    entries: Vec<Entry>,
    /// Name and namespace of each entry, concatenated, including unused text of removed entries.
    text: String,
    /// Number of bytes of the text that are in use.
    needed: usize,
}

/// The default is a free slot.
#[derive(Debug, Default)]
struct Entry {
    value: Option<Shared>,
    start: usize,
    // An object, and so its name, is shorter than `u32::MAX`.
    name: u32,
    namespace: u32,
}

impl Entry {
    fn length(&self) -> usize {
        self.name as usize + self.namespace as usize
    }
}

impl Values {
    /// Inserts a key and its value into a free slot.
    pub(super) fn insert(&mut self, slot: u32, namespace: &str, name: &str, value: Option<Shared>) {
        let slot = slot as usize;
        if slot >= self.entries.len() {
            self.entries.resize_with(slot + 1, Entry::default);
        }
        let entry = Entry {
            value,
            start: self.text.len(),
            name: name.len() as u32,
            namespace: namespace.len() as u32,
        };
        self.text.push_str(name);
        self.text.push_str(namespace);
        self.needed += entry.length();
        self.entries[slot] = entry;
    }

    /// Replaces the value of a slot.
    pub(super) fn replace(&mut self, slot: u32, value: Option<Shared>) {
        self.entries[slot as usize].value = value;
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        let entry = std::mem::take(&mut self.entries[slot as usize]);
        self.needed -= entry.length();
        if self.text.len() > SMALL.max(2 * self.needed) {
            self.tidy();
        }
    }

    /// Returns true if the entry in a slot has this key.
    pub(super) fn is_named(&self, slot: u32, namespace: &str, name: &str) -> bool {
        let entry = &self.entries[slot as usize];
        let key = &self.text.as_bytes()[entry.start..entry.start + entry.length()];
        let (found, found_namespace) = key.split_at(entry.name as usize);
        found == name.as_bytes() && found_namespace == namespace.as_bytes()
    }

    /// Returns the value in a slot, if it is a `K`.
    pub(super) fn get<K: Send + Sync + 'static>(&self, slot: u32) -> Option<Arc<K>> {
        let value = self.entries.get(slot as usize)?.value.as_ref()?;
        if value.is::<K>() {
            Arc::clone(value).downcast().ok()
        } else {
            None
        }
    }

    /// Drops unused text.
    fn tidy(&mut self) {
        let mut text = String::with_capacity(self.needed);
        for entry in &mut self.entries {
            let start = text.len();
            text.push_str(&self.text[entry.start..entry.start + entry.length()]);
            entry.start = start;
        }
        self.text = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: usize) -> Option<Shared> {
        Some(Arc::new(number))
    }

    #[test]
    fn returns_a_value_with_its_type() {
        let mut values = Values::default();
        values.insert(2, "n", "a", value(7));
        assert_eq!(values.get::<usize>(2).as_deref(), Some(&7));
        assert!(values.get::<String>(2).is_none());
        assert!(values.get::<usize>(1).is_none() && values.get::<usize>(3).is_none());
        values.replace(2, value(8));
        assert_eq!(values.get::<usize>(2).as_deref(), Some(&8));
        values.remove(2);
        assert!(values.get::<usize>(2).is_none());
    }

    #[test]
    fn distinguishes_similar_keys() {
        let mut values = Values::default();
        values.insert(0, "b", "a", None);
        values.insert(1, "", "ab", None);
        assert!(values.is_named(0, "b", "a") && values.is_named(1, "", "ab"));
        assert!(!values.is_named(0, "", "ab") && !values.is_named(1, "b", "a"));
    }

    #[test]
    fn deleted_objects_leave_no_interned_text() {
        let mut values = Values::default();
        let name = |number: u32| format!("{number:0100}");
        for number in 0..100_u32 {
            values.insert(number, "n", &name(number), value(number as usize));
        }
        for number in 100..10_000_u32 {
            let slot = number % 100;
            values.remove(slot);
            values.insert(slot, "n", &name(number), value(number as usize));
            assert!(
                values.text.len() <= 2 * values.needed + SMALL,
                "{}",
                values.text.len()
            );
        }
        for slot in 0..100 {
            assert!(values.is_named(slot, "n", &name(9_900 + slot)), "{slot}");
            assert_eq!(
                values.get::<usize>(slot).as_deref(),
                Some(&(9_900 + slot as usize))
            );
        }
        for slot in 0..100 {
            values.remove(slot);
        }
        assert!(values.text.len() <= SMALL && values.needed == 0);
    }
}
