// SPDX-License-Identifier: Apache-2.0
//! The contents of a store: objects in slots, a table of their keys, and indexes over the slots.
//!
//! The table stores slot numbers and reads the keys from the bytes of the objects, so no key is stored twice, except in
//! [`Values`] if the store keeps decoded values. A slot stores the hash of its key, so that a growing table does not touch the
//! objects.

use std::{
    cmp::Ordering,
    hash::{BuildHasher, Hasher},
    sync::Arc,
};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::{
    indexes::{self, Functions, Indexes},
    revision_tracker::RevisionTracker,
    values::Values,
};
use crate::{Index, IndexConflict, Object, index::IndexValue, overlay::OverlayEntries, revision::compare};

pub(crate) struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    table: HashTable<u32>,
    /// Present if values are kept.
    values: Option<Values>,
    hasher: FixedState,
    pub(super) indexes: Indexes,
    bytes: usize,
    decoded_bytes: usize,
    /// The number of the current or last relist.
    epoch: u32,
    is_replacing: bool,
    reached: RevisionTracker,
    /// Overlays, which are notified of added and removed objects.
    layers: Vec<Arc<OverlayEntries>>,
    /// True if an object was rejected because it is older than the stored one.
    refused_older: bool,
}

/// The source of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadConsistency {
    /// A watch, or a list that can be older than the store: the newer revision wins.
    Watch,
    /// A list without a requested revision, which is the newest state: it always wins.
    Quorum,
}

/// The default is a free slot.
#[derive(Debug, Default)]
pub(super) struct Slot {
    object: Option<Arc<Object>>,
    hash: u32,
    /// The relist that last contained the object.
    epoch: u32,
}

/// The reason why an object is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The stored object is the same.
    Same,
    /// The stored object is newer.
    Older,
}

/// The result of storing an object.
#[derive(Debug)]
pub(super) enum Stored {
    /// The object is stored, in place of `old`.
    Now { slot: u32, old: Option<Arc<Object>> },
    /// The stored object is the same or newer.
    Refused,
}

impl State {
    pub(super) fn new(seed: u64, keeps_values: bool) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            table: HashTable::new(),
            values: keeps_values.then(Values::default),
            hasher: hasher.clone(),
            indexes: Indexes::new(hasher),
            bytes: 0,
            decoded_bytes: 0,
            epoch: 0,
            is_replacing: false,
            reached: RevisionTracker::default(),
            layers: Vec::new(),
            refused_older: false,
        }
    }

    pub(super) fn hasher(&self) -> FixedState {
        self.hasher.clone()
    }

    /// Returns true if this very index is maintained.
    pub(super) fn has_index<V: IndexValue>(&self, index: &Index<V>) -> Result<bool, IndexConflict> {
        let mut maintained = self.indexes.maintained().iter();
        match maintained.find(|maintained| maintained.name() == index.name()) {
            None => Ok(false),
            Some(maintained) if !maintained.is_wanted() => Ok(false),
            Some(maintained) if index.is_in(maintained.as_ref()) => Ok(true),
            Some(_) => Err(IndexConflict {
                name: index.name().to_owned(),
            }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of the objects that are kept decoded.
    pub(super) fn decoded_bytes(&self) -> usize {
        self.decoded_bytes
    }

    pub(crate) fn revision(&self) -> &str {
        self.reached.revision()
    }

    /// Returns the revision up to which all changes of this namespace are stored.
    pub(crate) fn revision_in(&self, namespace: &str) -> &str {
        self.reached.revision_in(namespace)
    }

    /// Returns the number of the last list that began, of any part.
    pub(crate) fn lists_begun(&self) -> u32 {
        self.reached.lists_begun()
    }

    /// Returns the number of the last complete list that covered this namespace.
    pub(crate) fn listed_in(&self, namespace: &str) -> u32 {
        self.reached.listed_in(namespace)
    }

    /// Returns the number of the last complete list of the newest state that covered this namespace.
    pub(crate) fn newest_list_in(&self, namespace: &str) -> u32 {
        self.reached.newest_list_in(namespace)
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        let slot = self.find(self.hash(namespace, name), namespace, name)?;
        self.object(slot)
    }

    /// Returns the kept value of a key, if it is a `K`.
    pub(super) fn get_value<K: Send + Sync + 'static>(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let values = self.values.as_ref()?;
        values.get(self.find(self.hash(namespace, name), namespace, name)?)
    }

    /// Returns the kept value in a slot, if it is a `K`.
    pub(super) fn value<K: Send + Sync + 'static>(&self, slot: u32) -> Option<Arc<K>> {
        self.values.as_ref()?.get(slot)
    }

    pub(super) fn object(&self, slot: u32) -> Option<&Arc<Object>> {
        self.slots.get(slot as usize)?.object.as_ref()
    }

    /// Returns all objects in slot order.
    pub(super) fn objects(&self) -> impl Iterator<Item = (u32, &Arc<Object>)> {
        occupied(&self.slots)
    }

    pub(super) fn index_namespaces(&mut self) {
        self.indexes.add_namespaces(occupied(&self.slots));
    }

    pub(super) fn index_label(&mut self, key: &str) {
        self.indexes.add_label(key, occupied(&self.slots));
    }

    /// Returns true if `object` would be rejected, and marks the stored object as seen.
    pub(super) fn refuses(&mut self, object: &Object, consistency: ReadConsistency) -> bool {
        let (namespace, name) = (object.namespace(), object.name());
        let Some(slot) = self.find(self.hash(namespace, name), namespace, name) else {
            return false;
        };
        let slot = &mut self.slots[slot as usize];
        let refusal = slot
            .object
            .as_ref()
            .and_then(|stored| refusal(stored, object, consistency));
        if refusal.is_some() {
            slot.epoch = self.epoch;
            self.refused_older |= refusal == Some(Refusal::Older);
        }
        refusal.is_some()
    }

    /// Stores an object with the values of the index functions.
    pub(super) fn enter(
        &mut self,
        object: &Arc<Object>,
        consistency: ReadConsistency,
        functions: &Functions,
        values: Option<indexes::Values>,
    ) -> Stored {
        self.indexes.forget_unwanted();
        let stored = self.store(Arc::clone(object), consistency);
        if let Stored::Now { slot, .. } = &stored {
            self.indexes.set(*slot, object, functions, values);
        }
        // A rejected object can still be the one that an overlay waits for.
        self.tell(|layer| layer.on_stored(object));
        stored
    }

    /// Adds an overlay to notify, as long as it is also held elsewhere.
    pub(super) fn add_layer(&mut self, layer: &Arc<OverlayEntries>) {
        self.layers.retain(|layer| Arc::strong_count(layer) > 1);
        self.layers.push(Arc::clone(layer));
    }

    /// Removes overlay entries that are no longer needed.
    pub(super) fn settle_layers(&self) {
        self.tell(|layer| layer.settle(self));
    }

    /// Returns objects that were written and deleted without an event.
    pub(super) fn take_lost(&self) -> Vec<Arc<Object>> {
        let mut lost: Vec<Arc<Object>> = self.layers.iter().flat_map(|layer| layer.take_lost()).collect();
        // An object that arrived after all was reported as added.
        lost.retain(|object| {
            let stored = self.get(object.namespace(), object.name());
            stored.is_none_or(|stored| stored.uid() != object.uid())
        });
        lost
    }

    /// Returns true if an object was rejected as older than the stored one since the last call.
    pub(super) fn take_refused_older(&mut self) -> bool {
        std::mem::take(&mut self.refused_older)
    }

    fn tell(&self, tell: impl Fn(&OverlayEntries)) {
        let with_entries = self.layers.iter().filter(|layer| !layer.is_empty());
        with_entries.for_each(|layer| tell(layer));
    }

    fn store(&mut self, object: Arc<Object>, consistency: ReadConsistency) -> Stored {
        let (namespace, name) = (object.namespace(), object.name());
        let hash = self.hash(namespace, name);
        if let Some(slot) = self.find(hash, namespace, name) {
            let found = &mut self.slots[slot as usize];
            found.epoch = self.epoch;
            let stored = found.object.as_ref();
            if let Some(refusal) = stored.and_then(|stored| refusal(stored, &object, consistency)) {
                self.refused_older |= refusal == Refusal::Older;
                return Stored::Refused;
            }
            let is_seen = !stored.is_some_and(|stored| shows_the_same(stored, &object));
            let added = sizes(&object);
            if let Some(values) = &mut self.values {
                values.replace(slot, object.kept().cloned());
            }
            let old = found.object.replace(object);
            self.account(added, old.as_deref().map_or(Sizes::default(), sizes));
            return if is_seen {
                Stored::Now { slot, old }
            } else {
                Stored::Refused
            };
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("four billion objects do not fit into memory")
        });
        if let Some(values) = &mut self.values {
            values.insert(slot, namespace, name, object.kept().cloned());
        }
        let added = sizes(&object);
        self.slots[slot as usize] = Slot {
            object: Some(object),
            hash,
            epoch: self.epoch,
        };
        let slots = &self.slots;
        self.table
            .insert_unique(spread(hash), slot, |slot| spread(slots[*slot as usize].hash));
        self.account(added, Sizes::default());
        Stored::Now { slot, old: None }
    }

    /// Removes the stored object with the key of `object`, unless the stored one is newer.
    pub(super) fn remove(&mut self, object: &Object, consistency: ReadConsistency) -> Option<Arc<Object>> {
        let (namespace, name) = (object.namespace(), object.name());
        // The deletion also ends earlier writes in the overlays, whether or not they have arrived.
        let slot = self.find(self.hash(namespace, name), namespace, name);
        let stored = slot.and_then(|slot| self.object(slot)).map(|stored| &**stored);
        self.tell(|layer| layer.on_deleted(object, stored));
        let (slot, stored) = (slot?, stored?);
        let is_newer =
            compare(stored.resource_version(), object.resource_version()) == Some(Ordering::Greater);
        if is_newer && consistency == ReadConsistency::Watch {
            self.refused_older |= stored.uid() == object.uid();
            None
        } else {
            self.take(slot)
        }
    }

    pub(super) fn begin_replace(&mut self) {
        self.epoch += 1;
        self.is_replacing = true;
        self.reached.begin("");
    }

    pub(super) fn abandon_replace(&mut self) {
        self.is_replacing = false;
    }

    /// Removes and returns the objects that the relist did not contain.
    pub(super) fn end_replace(&mut self, consistency: ReadConsistency) -> Vec<Arc<Object>> {
        if !std::mem::take(&mut self.is_replacing) {
            return Vec::new();
        }
        self.reached.end("", consistency);
        let is_unseen = |slot: &Slot| slot.epoch != self.epoch && slot.object.is_some();
        let numbered = self.slots.iter().enumerate();
        let unseen: Vec<u32> = numbered
            .filter(|(_, slot)| is_unseen(slot))
            .map(|(at, _)| at as u32)
            .collect();
        unseen.into_iter().filter_map(|slot| self.take(slot)).collect()
    }

    pub(super) fn clear(&mut self) -> Vec<Arc<Object>> {
        let slots = std::mem::take(&mut self.slots);
        self.free = Vec::new();
        self.table = HashTable::new();
        self.values = self.values.is_some().then(Values::default);
        self.indexes.clear();
        self.reached.clear();
        self.is_replacing = false;
        (self.bytes, self.decoded_bytes) = (0, 0);
        slots.into_iter().filter_map(|slot| slot.object).collect()
    }

    /// Returns the progress of the namespaces, for changes.
    pub(super) fn reached(&mut self) -> &mut RevisionTracker {
        &mut self.reached
    }

    /// Advances to a revision. Moves backwards only with a list of the newest state.
    pub(super) fn advance(&mut self, revision: &str, consistency: ReadConsistency) {
        if self.reached.advance("", revision, consistency) {
            self.tell(|layer| layer.reached(self, revision));
        }
    }

    /// Same as [`advance`](Self::advance), for a namespace with its own list, and for the whole store if its revision is known.
    pub(super) fn advance_part(
        &mut self,
        namespace: &str,
        revision: &str,
        whole: Option<&str>,
        consistency: ReadConsistency,
    ) {
        let is_further = self.reached.advance(namespace, revision, consistency);
        let whole_is_further = whole.is_some_and(|whole| self.reached.advance("", whole, consistency));
        if is_further || whole_is_further {
            self.tell(|layer| layer.reached(self, revision));
        }
    }

    fn take(&mut self, slot: u32) -> Option<Arc<Object>> {
        let found = &mut self.slots[slot as usize];
        let object = found.object.take()?;
        if let Ok(entry) = self.table.find_entry(spread(found.hash), |at| *at == slot) {
            entry.remove();
        }
        self.free.push(slot);
        if let Some(values) = &mut self.values {
            values.remove(slot);
        }
        self.indexes.remove(slot);
        self.account(Sizes::default(), sizes(&object));
        self.tell(|layer| layer.on_removed(&object));
        Some(object)
    }

    fn account(&mut self, added: Sizes, removed: Sizes) {
        self.bytes = self.bytes + added.stored - removed.stored;
        self.decoded_bytes = self.decoded_bytes + added.decoded - removed.decoded;
    }

    fn find(&self, hash: u32, namespace: &str, name: &str) -> Option<u32> {
        let is_named = |slot: u32| match &self.values {
            Some(values) => values.is_named(slot, namespace, name),
            None => self
                .object(slot)
                .is_some_and(|object| object.is_named(namespace, name)),
        };
        let is_it = |slot: &u32| self.slots[*slot as usize].hash == hash && is_named(*slot);
        self.table.find(spread(hash), is_it).copied()
    }

    fn hash(&self, namespace: &str, name: &str) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(name.as_bytes());
        hasher.write(namespace.as_bytes());
        hasher.finish() as u32
    }
}

fn occupied(slots: &[Slot]) -> impl Iterator<Item = (u32, &Arc<Object>)> {
    let numbered = slots.iter().enumerate();
    numbered.filter_map(|(at, slot)| Some((at as u32, slot.object.as_ref()?)))
}

/// Sizes of an object in bytes.
#[derive(Clone, Copy, Default)]
struct Sizes {
    stored: usize,
    /// Size of the objects that are kept decoded.
    decoded: usize,
}

fn sizes(object: &Object) -> Sizes {
    let stored = object.bytes().len();
    let decoded = if object.kept().is_some() { stored } else { 0 };
    Sizes { stored, decoded }
}

/// Returns why `object` does not replace `stored`, if it does not.
fn refusal(stored: &Object, object: &Object, consistency: ReadConsistency) -> Option<Refusal> {
    let (before, now) = (stored.resource_version(), object.resource_version());
    if before == now {
        // At the same revision, the whole object wins over its metadata. Otherwise the content decides: a CRD with another
        // default, or a conversion webhook that converts differently, changes the content without a new revision. The content
        // includes the uid.
        let is_same = if stored.is_metadata_only() == object.is_metadata_only() {
            stored.is_same(object)
        } else {
            object.is_metadata_only()
        };
        return is_same.then_some(Refusal::Same);
    }
    // Revisions of different uids are not comparable: they can be from before and after a restored backup.
    let is_older = consistency == ReadConsistency::Watch
        && compare(before, now) == Some(Ordering::Greater)
        && stored.uid() == object.uid();
    is_older.then_some(Refusal::Older)
}

/// Returns true if two objects of one revision differ only in parts that neither of them shows.
fn shows_the_same(old: &Object, new: &Object) -> bool {
    !new.is_partial()
        && old.resource_version() == new.resource_version()
        && old.is_metadata_only() == new.is_metadata_only()
        && old.bytes() == new.bytes()
}

/// Spreads a hash over 64 bits: the table uses the low bits for buckets and the high bits for tags.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_costs_at_most_170_bytes_beside_its_own() {
        // An allocation has a header of 8 bytes and is a multiple of 16 long.
        let malloc = |bytes: usize| (bytes + 8).next_multiple_of(16);
        let arc = malloc(2 * size_of::<usize>() + size_of::<Object>());
        let bytes_rounded_up = 8 + 15;
        // Arrays double when they are full.
        let slot = 2 * size_of::<Slot>();
        // One byte of tag per bucket, and at most 7/8 of the buckets are used; after doubling, half of that.
        let table = (size_of::<u32>() + 1) * 16 / 7 + 1;
        let total = arc + bytes_rounded_up + slot + table;
        assert!(total <= 170, "{total}");
        // Plus space for the index of namespaces and one label index, while they grow.
        assert!(total + 2 * 24 <= 220, "{total}");
    }

    #[test]
    fn a_deleted_object_leaves_nothing_in_the_indexes() {
        let mut state = State::new(0, false);
        state.index_namespaces();
        let json = br#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"1"}}"#;
        let object = Arc::new(Object::from_slice(json).unwrap());
        state.enter(&object, ReadConsistency::Watch, &Functions::default(), None);
        let count = |state: &State| state.indexes.namespaces().unwrap().count("n");
        assert_eq!(count(&state), 1);
        state.remove(&object, ReadConsistency::Watch);
        assert_eq!(count(&state), 0);
    }
}
