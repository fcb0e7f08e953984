// SPDX-License-Identifier: Apache-2.0
//! The store: an ordered log of all writes, and the state that results from it.
//!
//! # Guarantees
//! 1. Each write takes the next revision, from one counter for all resources, and appends one [`Entry`] to the log.
//! 2. An object's `metadata.resourceVersion` is the revision of its last write; a deletion takes a revision too.
//! 3. The state at any revision that is not compacted can be read: it is the current state with later entries undone.
//! 4. The log is bounded by entries and bytes. Entries beyond the bound are compacted and never served in part.
//!
//! Objects are stored without `apiVersion` and `kind`. These depend on the version that a client requests, and the
//! server adds them when it serializes an object.

pub(crate) mod compaction;
mod stored;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use serde_json::{Map, Value};

pub(crate) use stored::Stored;

/// Number of newest writes that stay decoded, since their watchers and the next writers read them.
const DECODED: usize = 64;

/// The fields of an object.
pub(crate) type Object = Map<String, Value>;

/// Identifies the storage of one kind; all versions of a kind share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StorageId(pub(crate) usize);

/// Serializes an object. This cannot fail.
pub(crate) fn encode(object: &Object) -> Bytes {
    let json = serde_json::to_vec(object).expect("a JSON value can be written as JSON");
    // Drops the spare capacity of the vector.
    Bytes::from(json.into_boxed_slice())
}

/// Returns the metadata of an object; empty if there is none.
pub(crate) fn metadata_of(object: &Object) -> &Object {
    static EMPTY: OnceLock<Object> = OnceLock::new();
    match object.get("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => EMPTY.get_or_init(Object::new),
    }
}

/// One write in the log.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) revision: u64,
    pub(crate) storage: StorageId,
    pub(crate) key: Arc<str>,
    pub(crate) old: Option<Arc<Stored>>,
    pub(crate) new: Option<Arc<Stored>>,
    departed: OnceLock<Arc<Stored>>,
}

impl Entry {
    /// Returns the old content under this entry's revision: a watch sends it when an object stops matching.
    pub(crate) fn departed(&self) -> Option<&Arc<Stored>> {
        let old = self.old.as_ref()?;
        Some(self.departed.get_or_init(|| {
            let mut object = Object::clone(&old.object());
            stamp(&mut object, self.revision);
            let departed = Stored::new(object, self.revision, old.edition);
            departed.forget();
            Arc::new(departed)
        }))
    }

    fn weight(&self) -> usize {
        self.new
            .as_ref()
            .or(self.old.as_ref())
            .map_or(0, |stored| stored.encoded().len())
    }
}

fn stamp(object: &mut Object, revision: u64) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
    }
}

/// Limits of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

/// Error of a read at a revision that is compacted or does not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    Compacted,
    Future,
}

/// The log and the state that results from it.
#[derive(Debug)]
pub(crate) struct Store {
    revision: u64,
    /// The newest revision that is compacted.
    compacted: u64,
    log: VecDeque<Arc<Entry>>,
    log_bytes: usize,
    retention: Retention,
    kinds: Vec<Kind>,
}

/// The objects of one kind.
#[derive(Debug, Default)]
struct Kind {
    objects: BTreeMap<Arc<str>, Arc<Stored>>,
    /// True if the objects stay decoded because the server reads them often.
    stays_decoded: bool,
}

impl Store {
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            revision: 1,
            compacted: 1,
            log: VecDeque::new(),
            log_bytes: 0,
            retention,
            kinds: Vec::new(),
        }
    }

    /// Allocates the storage of one more kind.
    pub(crate) fn allocate(&mut self) -> StorageId {
        self.kinds.push(Kind::default());
        StorageId(self.kinds.len() - 1)
    }

    /// Keeps the current objects of this kind decoded: more memory, less time.
    pub(crate) fn keep_decoded(&mut self, storage: StorageId) {
        self.kinds[storage.0].stays_decoded = true;
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(crate) fn get(&self, storage: StorageId, key: &str) -> Option<&Arc<Stored>> {
        self.kinds.get(storage.0)?.objects.get(key)
    }

    /// Returns all objects of a kind in key order.
    pub(crate) fn all(&self, storage: StorageId) -> impl Iterator<Item = (&Arc<str>, &Arc<Stored>)> {
        self.kinds
            .get(storage.0)
            .into_iter()
            .flat_map(|kind| &kind.objects)
    }

    /// Returns the objects of one namespace.
    pub(crate) fn within(&self, storage: StorageId, namespace: &str) -> impl Iterator<Item = &Arc<Stored>> {
        let kind = self.kinds.get(storage.0).filter(|kind| !kind.objects.is_empty());
        // The keys of a namespace lie between `namespace/` and `namespace0`, since `0` follows `/`.
        let range = kind.map(|kind| {
            let (prefix, end) = (format!("{namespace}/"), format!("{namespace}0"));
            let bounds = (Bound::Included(prefix.as_str()), Bound::Excluded(end.as_str()));
            kind.objects.range::<str, _>(bounds)
        });
        range.into_iter().flatten().map(|(_, stored)| stored)
    }

    pub(crate) fn len(&self, storage: StorageId) -> usize {
        self.kinds.get(storage.0).map_or(0, |kind| kind.objects.len())
    }

    /// Writes `object` under `key` and returns it with its new revision.
    pub(crate) fn put(
        &mut self,
        storage: StorageId,
        key: &str,
        mut object: Object,
        edition: u64,
    ) -> Arc<Stored> {
        self.revision += 1;
        stamp(&mut object, self.revision);
        let new = Arc::new(Stored::new(object, self.revision, edition));
        let kind = &mut self.kinds[storage.0].objects;
        let (key, old) = match kind.get_key_value(key) {
            Some((key, old)) => (Arc::clone(key), Some(Arc::clone(old))),
            None => (Arc::from(key), None),
        };
        kind.insert(Arc::clone(&key), Arc::clone(&new));
        self.append(storage, key, old, Some(Arc::clone(&new)));
        new
    }

    /// Removes the object under `key`; returns `None` if there is none.
    pub(crate) fn remove(&mut self, storage: StorageId, key: &str) -> Option<Arc<Stored>> {
        let (key, old) = self.kinds.get_mut(storage.0)?.objects.remove_entry(key)?;
        self.revision += 1;
        self.append(storage, key, Some(Arc::clone(&old)), None);
        Some(old)
    }

    fn append(
        &mut self,
        storage: StorageId,
        key: Arc<str>,
        old: Option<Arc<Stored>>,
        new: Option<Arc<Stored>>,
    ) {
        let entry = Entry {
            revision: self.revision,
            storage,
            key,
            old,
            new,
            departed: OnceLock::new(),
        };
        self.log_bytes += entry.weight();
        self.log.push_back(Arc::new(entry));
        self.forget_old();
        while self.log.len() > self.retention.entries
            || (self.log_bytes > self.retention.bytes && self.log.len() > 1)
        {
            self.drop_oldest();
        }
    }

    /// Drops the decoded form of older writes.
    fn forget_old(&self) {
        let old = self.log.len().checked_sub(DECODED);
        if let Some(entry) = old.and_then(|at| self.log.get(at)) {
            self.forget(entry);
        }
    }

    fn forget(&self, entry: &Entry) {
        let stays = self.kinds[entry.storage.0].stays_decoded;
        // A replaced object is no longer current, so its decoded form is dropped even if its kind stays decoded.
        let new = entry.new.iter().filter(|_| !stays);
        entry.old.iter().chain(new).for_each(|stored| stored.forget());
    }

    fn drop_oldest(&mut self) {
        if let Some(entry) = self.log.pop_front() {
            self.compacted = entry.revision;
            self.log_bytes -= entry.weight();
            self.forget(&entry);
        }
    }

    /// Compacts all entries up to and including `revision`.
    pub(crate) fn compact(&mut self, revision: u64) {
        while self.log.front().is_some_and(|entry| entry.revision <= revision) {
            self.drop_oldest();
        }
    }

    /// Returns the entries after `revision`, oldest first.
    pub(crate) fn since(&self, revision: u64) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        // Revisions in the log are consecutive, so the index of an entry follows from its revision.
        let first = self.revision - self.log.len() as u64;
        let skip = usize::try_from(revision.saturating_sub(first))
            .unwrap_or(usize::MAX)
            .min(self.log.len());
        self.log.range(skip..)
    }

    /// Checks that the state at `revision` can be read.
    pub(crate) fn readable(&self, revision: u64) -> Result<(), Unreadable> {
        if revision > self.revision {
            Err(Unreadable::Future)
        } else if revision < self.compacted {
            Err(Unreadable::Compacted)
        } else {
            Ok(())
        }
    }

    /// Returns the objects of a kind at `revision` whose keys start with `prefix` and sort after `after`, in key order.
    ///
    /// The revision must be readable.
    pub(crate) fn scan(
        &self,
        storage: StorageId,
        prefix: &str,
        after: Option<&str>,
        revision: u64,
    ) -> Vec<(Arc<str>, Arc<Stored>)> {
        let mut found = Vec::new();
        self.visit(storage, prefix, after, revision, |key, stored| {
            found.push((Arc::clone(key), Arc::clone(stored)));
        });
        found
    }

    /// Visits the objects as [`Self::scan`] does, without keeping references to them.
    pub(crate) fn visit(
        &self,
        storage: StorageId,
        prefix: &str,
        after: Option<&str>,
        revision: u64,
        mut see: impl FnMut(&Arc<str>, &Arc<Stored>),
    ) {
        // The oldest entry after `revision` contains the value of a key at `revision`.
        let mut then: BTreeMap<&Arc<str>, Option<&Arc<Stored>>> = BTreeMap::new();
        for entry in self.since(revision).filter(|entry| entry.storage == storage) {
            then.entry(&entry.key).or_insert(entry.old.as_ref());
        }
        let wanted = |key: &str| key.starts_with(prefix) && after.is_none_or(|after| key >= after);
        let start = after.filter(|after| *after > prefix).unwrap_or(prefix);
        let Some(Kind { objects, .. }) = self.kinds.get(storage.0) else {
            return;
        };
        let mut past = then
            .iter()
            .filter(|(key, _)| wanted(key))
            .filter_map(|(key, old)| Some((*key, (*old)?)))
            .peekable();
        let present = objects
            .range::<str, _>((Bound::Included(start), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix));
        for (key, stored) in present {
            while let Some((old_key, old)) = past.next_if(|(old_key, _)| *old_key < key) {
                see(old_key, old);
            }
            if then.is_empty() || !then.contains_key(key) {
                see(key, stored);
            }
        }
        past.for_each(|(key, old)| see(key, old));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn store(entries: usize) -> (Store, StorageId) {
        let mut store = Store::new(Retention {
            entries,
            bytes: usize::MAX,
        });
        let id = store.allocate();
        (store, id)
    }

    fn object(value: u64) -> Object {
        json!({"metadata": {}, "value": value})
            .as_object()
            .unwrap()
            .clone()
    }

    fn keys(found: &[(Arc<str>, Arc<Stored>)]) -> Vec<&str> {
        found.iter().map(|(key, _)| &**key).collect()
    }

    #[test]
    fn guarantee_2_resource_version_is_the_revision_of_the_last_write() {
        let (mut store, id) = store(10);
        assert_eq!(
            store.put(id, "a", object(1), 0).metadata()["resourceVersion"],
            "2"
        );
        assert_eq!(
            store.put(id, "a", object(2), 0).metadata()["resourceVersion"],
            "3"
        );
        store.remove(id, "a");
        assert_eq!(store.revision(), 4);
        assert_eq!(
            store.since(3).next().unwrap().departed().unwrap().metadata()["resourceVersion"],
            "4"
        );
    }

    #[test]
    fn guarantee_3_the_past_is_the_present_with_later_entries_undone() {
        let (mut store, id) = store(10);
        store.put(id, "a", object(1), 0);
        store.put(id, "b", object(1), 0);
        store.remove(id, "a");
        store.put(id, "b", object(2), 0);
        store.put(id, "c", object(1), 0);
        let then = store.scan(id, "", None, 3);
        assert_eq!(keys(&then), ["a", "b"]);
        assert_eq!(then[1].1.object()["value"], 1);
        assert_eq!(keys(&store.scan(id, "", None, 6)), ["b", "c"]);
        assert_eq!(keys(&store.scan(id, "", Some("a\0"), 3)), ["b"]);
    }

    #[test]
    fn guarantee_4_old_revisions_are_compacted() {
        let (mut store, id) = store(2);
        for value in 0..5 {
            store.put(id, "a", object(value), 0);
        }
        assert_eq!(store.compacted(), 4);
        assert_eq!(store.readable(3), Err(Unreadable::Compacted));
        assert_eq!(store.readable(4), Ok(()));
        assert_eq!(store.readable(7), Err(Unreadable::Future));
        assert_eq!(store.since(4).count(), 2);
    }
}
