// SPDX-License-Identifier: Apache-2.0
//! A two-way map between slots and values.
//!
//! A slot remembers its values, so a change does not compute the values of the old object again: an index function can be slow
//! or return other values now. All lists share one array of entries. So a value costs only its own size, an entry 20 bytes,
//! and an entry is removed in constant time.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash},
};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

const NIL: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Postings<V> {
    values: Vec<Posted<V>>,
    free_values: Vec<u32>,
    table: HashTable<u32>,
    hasher: FixedState,
    entries: Vec<Entry>,
    /// The first free entry. Free entries are linked by `next_of_slot`.
    free_entry: u32,
    /// The first entry of each slot.
    slots: Vec<u32>,
}

#[derive(Debug)]
struct Posted<V> {
    /// `None` if the place is free.
    value: Option<V>,
    head: u32,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    value: u32,
    next_of_slot: u32,
    previous: u32,
    next: u32,
}

impl<V: Hash + Eq> Postings<V> {
    pub(crate) fn new(hasher: FixedState) -> Self {
        Self {
            values: Vec::new(),
            free_values: Vec::new(),
            table: HashTable::new(),
            hasher,
            entries: Vec::new(),
            free_entry: NIL,
            slots: Vec::new(),
        }
    }

    /// Sets the values of a slot. A value that the slot already has keeps its entry.
    pub(crate) fn set<T, Q>(&mut self, slot: u32, values: impl IntoIterator<Item = T>)
    where
        V: Borrow<Q>,
        T: Borrow<Q> + Into<V>,
        Q: Hash + Eq + ?Sized,
    {
        let mut before = self.take_chain(slot);
        for value in values {
            let id = self.find(value.borrow());
            if id.is_some_and(|id| self.entry_of(slot, id).is_some()) {
                continue;
            }
            let entry = match id.and_then(|id| self.take_from(&mut before, id)) {
                Some(entry) => entry,
                None => {
                    let id = id.unwrap_or_else(|| self.add_value(value.into()));
                    self.add_entry(slot, id)
                }
            };
            let first = self.slot_mut(slot);
            let next = std::mem::replace(first, entry);
            self.entries[entry as usize].next_of_slot = next;
        }
        self.free_chain(before);
    }

    /// Removes all values of a slot.
    pub(crate) fn remove(&mut self, slot: u32) {
        let chain = self.take_chain(slot);
        self.free_chain(chain);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.hasher.clone());
    }

    /// Returns the number of slots with this value.
    pub(crate) fn count<Q>(&self, value: &Q) -> usize
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.find(value)
            .map_or(0, |id| self.values[id as usize].count as usize)
    }

    /// Returns the slots with this value.
    pub(crate) fn slots<Q>(&self, value: &Q) -> impl Iterator<Item = u32>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let head = self.find(value).map_or(NIL, |id| self.values[id as usize].head);
        let entry = |at: u32| self.entries.get(at as usize);
        std::iter::successors(entry(head), move |found| entry(found.next)).map(|found| found.slot)
    }

    /// Returns the slots with any value.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = u32> {
        let numbered = self.slots.iter().enumerate();
        numbered
            .filter(|(_, first)| **first != NIL)
            .map(|(slot, _)| slot as u32)
    }

    /// Returns true if a slot has this value.
    pub(crate) fn has<Q>(&self, slot: u32, value: &Q) -> bool
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.find(value)
            .is_some_and(|id| self.entry_of(slot, id).is_some())
    }

    fn find<Q>(&self, value: &Q) -> Option<u32>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let is_it = |id: &u32| {
            let found = self.values[*id as usize].value.as_ref();
            found.is_some_and(|found| found.borrow() == value)
        };
        self.table.find(self.hasher.hash_one(value), is_it).copied()
    }

    fn add_value(&mut self, value: V) -> u32 {
        let hash = self.hasher.hash_one(&value);
        let posted = Posted {
            value: Some(value),
            head: NIL,
            count: 0,
        };
        let id = match self.free_values.pop() {
            Some(id) => {
                self.values[id as usize] = posted;
                id
            }
            None => {
                self.values.push(posted);
                self.values.len() as u32 - 1
            }
        };
        let (values, hasher) = (&self.values, &self.hasher);
        self.table.insert_unique(hash, id, |id| {
            let value = values[*id as usize].value.as_ref();
            value.map_or(0, |value| hasher.hash_one(value))
        });
        id
    }

    fn remove_value(&mut self, id: u32) {
        if let Some(value) = self.values[id as usize].value.take() {
            let hash = self.hasher.hash_one(&value);
            if let Ok(entry) = self.table.find_entry(hash, |found| *found == id) {
                entry.remove();
            }
        }
        self.free_values.push(id);
    }

    /// Adds an entry, first in the list of its value and in no list of its slot.
    fn add_entry(&mut self, slot: u32, value: u32) -> u32 {
        let posted = &mut self.values[value as usize];
        let entry = Entry {
            slot,
            value,
            next_of_slot: NIL,
            previous: NIL,
            next: posted.head,
        };
        posted.count += 1;
        let at = if self.free_entry == NIL {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let at = self.free_entry;
            self.free_entry = self.entries[at as usize].next_of_slot;
            self.entries[at as usize] = entry;
            at
        };
        self.values[value as usize].head = at;
        if let Some(next) = self.entries.get_mut(entry.next as usize) {
            next.previous = at;
        }
        at
    }

    fn slot_mut(&mut self, slot: u32) -> &mut u32 {
        let at = slot as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, NIL);
        }
        &mut self.slots[at]
    }

    fn entry_of(&self, slot: u32, value: u32) -> Option<u32> {
        let mut at = self.slots.get(slot as usize).copied().unwrap_or(NIL);
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.value == value {
                return Some(at);
            }
            at = entry.next_of_slot;
        }
        None
    }

    fn take_chain(&mut self, slot: u32) -> u32 {
        let first = self.slots.get_mut(slot as usize);
        first.map_or(NIL, |first| std::mem::replace(first, NIL))
    }

    /// Removes the entry of a value from a chain.
    fn take_from(&mut self, chain: &mut u32, value: u32) -> Option<u32> {
        let (mut previous, mut at) = (NIL, *chain);
        while let Some(entry) = self.entries.get(at as usize).copied() {
            if entry.value == value {
                match self.entries.get_mut(previous as usize) {
                    Some(previous) => previous.next_of_slot = entry.next_of_slot,
                    None => *chain = entry.next_of_slot,
                }
                return Some(at);
            }
            (previous, at) = (at, entry.next_of_slot);
        }
        None
    }

    fn free_chain(&mut self, mut at: u32) {
        while let Some(entry) = self.entries.get(at as usize).copied() {
            match self.entries.get_mut(entry.previous as usize) {
                Some(previous) => previous.next = entry.next,
                None => self.values[entry.value as usize].head = entry.next,
            }
            if let Some(next) = self.entries.get_mut(entry.next as usize) {
                next.previous = entry.previous;
            }
            let posted = &mut self.values[entry.value as usize];
            posted.count -= 1;
            if posted.count == 0 {
                self.remove_value(entry.value);
            }
            self.entries[at as usize].next_of_slot = self.free_entry;
            self.free_entry = at;
            at = entry.next_of_slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    // R128
    #[test]
    fn drops_an_index_value_without_objects() {
        let mut postings = Postings::<Box<str>>::new(FixedState::with_seed(0));
        postings.set::<_, str>(3, ["a", "b", "a"]);
        postings.set::<_, str>(4, ["b"]);
        assert_eq!((postings.count("a"), postings.count("b")), (1, 2));
        postings.set::<_, str>(3, ["b", "c"]);
        assert_eq!((postings.count("a"), postings.table.len()), (0, 2));
        postings.remove(3);
        postings.remove(4);
        assert!(postings.table.is_empty());
        assert!(!postings.has(3, "b"));
    }

    proptest! {
        // R128
        #[test]
        fn slots_and_values_agree_with_a_map_of_sets(
            steps in prop::collection::vec((0_u32..12, prop::collection::vec(0_u8..6, 0..4)), 1..200)
        ) {
            let mut postings = Postings::<u8>::new(FixedState::with_seed(0));
            let mut model = BTreeMap::<u32, BTreeSet<u8>>::new();
            for (slot, values) in steps {
                model.insert(slot, values.iter().copied().collect());
                if values.is_empty() {
                    postings.remove(slot);
                } else {
                    postings.set::<_, u8>(slot, values);
                }
                for value in 0..6 {
                    let expected: BTreeSet<u32> =
                        model.iter().filter(|(_, values)| values.contains(&value)).map(|(slot, _)| *slot).collect();
                    prop_assert_eq!(postings.count(&value), expected.len());
                    prop_assert_eq!(postings.slots(&value).collect::<BTreeSet<_>>(), expected);
                    for slot in 0..12 {
                        let has = model.get(&slot).is_some_and(|values| values.contains(&value));
                        prop_assert_eq!(postings.has(slot, &value), has);
                    }
                }
                let live: usize = model.values().map(BTreeSet::len).sum();
                prop_assert!(postings.entries.len() <= 12 * 4 + 4, "{live}");
            }
        }
    }
}
