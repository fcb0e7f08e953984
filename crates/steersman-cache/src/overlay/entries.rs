// SPDX-License-Identifier: Apache-2.0
//! The entries of an overlay and their lifetimes.
//!
//! Every caller holds the lock of the store. Lock order: first the store, then the layer.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use steersman_core::{Clock, MonotonicTime, Mutex, ObjectKey};

use crate::{Object, Query, Revision, revision::compare, store::State};

/// Maximum number of entries.
const ENTRIES_MAX: usize = 10_000;

pub(crate) struct OverlayEntries {
    clock: Arc<dyn Clock>,
    limit: Duration,
    /// True if an informer collects lost writes.
    keeps_lost: bool,
    /// Number of entries, so that readers take no lock if it is zero.
    count: AtomicUsize,
    /// True if there are lost writes, so that collecting them takes no lock otherwise.
    has_lost: AtomicBool,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<ObjectKey, Entry>,
    /// Number of progress reports of the store since the last check of all entries.
    reports: usize,
    /// See [`OverlayEntries::take_lost`].
    lost: Vec<Arc<Object>>,
}

struct Entry {
    what: Write,
    uid: Box<str>,
    since: MonotonicTime,
    /// Number of lists that had begun when the entry was made.
    lists: u32,
}

enum Write {
    Written(Arc<Object>),
    Deleted {
        /// The revision of the deletion, if known.
        at: Option<Revision>,
        /// A revision of the deleted object, if known: any older object with this key was deleted before it.
        after: Option<Revision>,
    },
}

/// A snapshot of the overlay, ordered by key.
pub(crate) struct Snapshot(Vec<(ObjectKey, Option<Arc<Object>>)>);

impl OverlayEntries {
    pub(super) fn new(clock: Arc<dyn Clock>, limit: Duration, keeps_lost: bool) -> Self {
        Self {
            clock,
            limit,
            keeps_lost,
            count: AtomicUsize::new(0),
            has_lost: AtomicBool::new(false),
            entries: Mutex::default(),
        }
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    pub(super) fn wrote(&self, state: &State, object: Arc<Object>) {
        let key = object.key();
        let mut entries = self.entries.lock();
        if let Some(known) = entries.by_key.get(&key) {
            let is_late = match &known.what {
                // Revisions of different uids are not comparable.
                Write::Written(known) => {
                    known.uid() == object.uid()
                        && is_reached(known.resource_version(), object.resource_version())
                }
                // With a revision, the object only left a selector, and can match it again.
                Write::Deleted { at, .. } => *known.uid == *object.uid() && !is_newer(&object, at.as_ref()),
            };
            if is_late {
                return;
            }
        }
        let uid: Box<str> = object.uid().into();
        let entry = self.entry(state, uid, Write::Written(object));
        self.insert(&mut entries, state, key, entry);
    }

    pub(super) fn deleted(&self, state: &State, key: &ObjectKey, uid: &str, revision: Option<&Revision>) {
        let mut entries = self.entries.lock();
        let after = match entries.by_key.get(key).map(|known| &known.what) {
            // The response is late, and the object was written again meanwhile.
            Some(Write::Written(known)) if known.uid() == uid && is_newer(known, revision) => return,
            Some(Write::Written(known)) if known.uid() == uid => Some(known.revision()),
            // Another object was created under this key already.
            Some(Write::Written(_)) => return,
            _ => state
                .get(key.namespace(), key.name())
                .filter(|stored| stored.uid() == uid)
                .map(|stored| stored.revision()),
        };
        let what = Write::Deleted {
            at: revision.cloned(),
            after,
        };
        let entry = self.entry(state, uid.into(), what);
        self.insert(&mut entries, state, key.clone(), entry);
    }

    /// Gets one object as readers see it.
    pub(crate) fn get(&self, state: &State, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let stored = state.get(namespace, name);
        let key = ObjectKey::new(namespace, name);
        let mut entries = self.entries.lock();
        let Some(entry) = entries.by_key.get(&key) else {
            return stored.cloned();
        };
        if self.has_ended(&key, entry, state) {
            self.end(&mut entries, &key, stored.map(|stored| &**stored));
            return stored.cloned();
        }
        entry.shows()
    }

    /// Returns a snapshot of all entries.
    pub(crate) fn snapshot(&self, state: &State) -> Snapshot {
        let mut entries = self.entries.lock();
        self.sweep(&mut entries, state);
        let entries = entries.by_key.iter();
        Snapshot(entries.map(|(key, entry)| (key.clone(), entry.shows())).collect())
    }

    /// Called after the store received an object.
    pub(crate) fn on_stored(&self, object: &Object) {
        self.end_if(&object.key(), Some(object), |entry| match &entry.what {
            // If the object is still older after this time, the server that took the write counts revisions differently.
            Write::Written(written) => {
                is_reached(object.resource_version(), written.resource_version())
                    || (*entry.uid == *object.uid() && self.is_old(entry))
            }
            Write::Deleted { at, after } if *entry.uid != *object.uid() => {
                is_newer(object, at.as_ref()) || !is_older(object, after.as_ref())
            }
            // With an unknown revision of the deletion, a newer event can precede it, but not for long.
            Write::Deleted { at: None, after } => {
                let is_known = |after: &Revision| is_reached(after.as_str(), object.resource_version());
                self.is_old(entry) && !after.as_ref().is_some_and(is_known)
            }
            Write::Deleted { at, .. } => is_newer(object, at.as_ref()),
        });
    }

    fn is_old(&self, entry: &Entry) -> bool {
        self.clock.now().saturating_since(entry.since) >= self.limit
    }

    /// Called when an object was deleted, even if the store never received its written state. `stored` is the stored object.
    pub(crate) fn on_deleted(&self, object: &Object, stored: Option<&Object>) {
        self.end_if(&object.key(), stored, |entry| match &entry.what {
            Write::Written(written) => {
                *entry.uid == *object.uid()
                    && is_reached(object.resource_version(), written.resource_version())
            }
            Write::Deleted { .. } => false,
        });
    }

    /// Called after the store removed an object.
    pub(crate) fn on_removed(&self, object: &Object) {
        self.end_if(&object.key(), None, |entry| {
            matches!(entry.what, Write::Deleted { .. }) && *entry.uid == *object.uid()
        });
    }

    /// Called after the store, or a namespace of it, reached a revision. Entries that this ends are hidden from readers anyway,
    /// except with incomparable revisions. So they are removed only from time to time.
    pub(crate) fn reached(&self, state: &State, revision: &str) {
        let mut entries = self.entries.lock();
        entries.reports += 1;
        if entries.reports >= entries.by_key.len() || !is_number(revision) {
            self.sweep(&mut entries, state);
        }
    }

    /// Removes entries that have ended.
    pub(crate) fn settle(&self, state: &State) {
        self.sweep(&mut self.entries.lock(), state);
    }

    /// Returns written objects that ended without ever being in the store: they were created and deleted between two lists, so no
    /// event reports them.
    pub(crate) fn take_lost(&self) -> Vec<Arc<Object>> {
        if !self.has_lost.swap(false, Relaxed) {
            return Vec::new();
        }
        std::mem::take(&mut self.entries.lock().lost)
    }

    fn sweep(&self, entries: &mut Entries, state: &State) {
        let Entries {
            by_key,
            reports,
            lost,
        } = entries;
        by_key.retain(|key, entry| {
            let has_ended = self.has_ended(key, entry, state);
            if has_ended {
                let stored = state.get(key.namespace(), key.name());
                lost.extend(self.lost(entry, stored.map(|stored| &**stored)));
            }
            !has_ended
        });
        *reports = 0;
        self.count.store(by_key.len(), Relaxed);
    }

    fn end_if(&self, key: &ObjectKey, stored: Option<&Object>, ends: impl FnOnce(&Entry) -> bool) {
        let mut entries = self.entries.lock();
        if entries.by_key.get(key).is_some_and(ends) {
            self.end(&mut entries, key, stored);
        }
    }

    fn end(&self, entries: &mut Entries, key: &ObjectKey, stored: Option<&Object>) {
        if let Some(entry) = entries.by_key.remove(key) {
            entries.lost.extend(self.lost(&entry, stored));
        }
        self.count.store(entries.by_key.len(), Relaxed);
    }

    /// Returns the written object of an entry if it never arrived. `stored` is the stored object of the same key.
    fn lost(&self, entry: &Entry, stored: Option<&Object>) -> Option<Arc<Object>> {
        let is_stored = stored.is_some_and(|stored| stored.uid() == &*entry.uid);
        // Without a comparable revision an entry ends by age, and the object can still arrive.
        let is_known = |object: &Arc<Object>| is_number(object.resource_version());
        let lost = entry
            .shows()
            .filter(|object| self.keeps_lost && !is_stored && is_known(object))?;
        self.has_lost.store(true, Relaxed);
        Some(lost)
    }

    fn entry(&self, state: &State, uid: Box<str>, what: Write) -> Entry {
        Entry {
            what,
            uid,
            since: self.clock.now(),
            lists: state.lists_begun(),
        }
    }

    fn insert(&self, entries: &mut Entries, state: &State, key: ObjectKey, entry: Entry) {
        if self.has_ended(&key, &entry, state) {
            entries.by_key.remove(&key);
        } else {
            entries.by_key.insert(key, entry);
        }
        if entries.by_key.len() > ENTRIES_MAX {
            self.sweep(entries, state);
        }
        if entries.by_key.len() > ENTRIES_MAX {
            let oldest = entries.by_key.iter().min_by_key(|(_, entry)| entry.since);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                entries.by_key.remove(&oldest);
            }
        }
        self.count.store(entries.by_key.len(), Relaxed);
    }

    fn has_ended(&self, key: &ObjectKey, entry: &Entry, state: &State) -> bool {
        let stored = state.get(key.namespace(), key.name());
        // The revision of its own namespace: others can be behind, and do not matter.
        let revision = state.revision_in(key.namespace());
        let is_relisted = state.listed_in(key.namespace()) > entry.lists;
        // A list of the newest state that began later contains this or a newer state, whatever the revisions are.
        if state.newest_list_in(key.namespace()) > entry.lists {
            return true;
        }
        let is_old = || self.is_old(entry);
        match &entry.what {
            Write::Written(written) => {
                let written = written.resource_version();
                let has_come = is_reached(revision, written)
                    || stored.is_some_and(|stored| is_reached(stored.resource_version(), written));
                let is_ordered = is_number(written)
                    && (revision.is_empty() || is_number(revision))
                    && stored.is_none_or(|stored| is_number(stored.resource_version()));
                has_come || (!is_ordered && (is_relisted || is_old()))
            }
            Write::Deleted { at, after } => match (at, stored) {
                (Some(at), _) if is_reached(revision, at.as_str()) => true,
                (Some(_), Some(stored)) if is_newer(stored, at.as_ref()) => true,
                (_, Some(stored)) if stored.uid() != &*entry.uid => !is_older(stored, after.as_ref()),
                // A relist alone proves nothing: it is only as new as the last seen revision, and can precede the deletion, which
                // then arrives by the watch.
                (_, Some(_)) => is_relisted && is_old(),
                (_, None) => is_old(),
            },
        }
    }
}

impl Entry {
    fn shows(&self) -> Option<Arc<Object>> {
        match &self.what {
            Write::Written(object) => Some(Arc::clone(object)),
            Write::Deleted { .. } => None,
        }
    }
}

fn is_reached(revision: &str, wanted: &str) -> bool {
    compare(revision, wanted).is_some_and(Ordering::is_ge)
}

fn is_number(revision: &str) -> bool {
    compare(revision, "1").is_some()
}

fn is_newer(object: &Object, than: Option<&Revision>) -> bool {
    than.is_some_and(|than| compare(object.resource_version(), than.as_str()) == Some(Ordering::Greater))
}

fn is_older(object: &Object, than: Option<&Revision>) -> bool {
    than.is_some_and(|than| compare(object.resource_version(), than.as_str()) == Some(Ordering::Less))
}

impl Snapshot {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Merges the overlay into a store's query result: covered objects are replaced in place or left out, and new objects follow
    /// in key order.
    pub(crate) fn merge_into(&self, objects: &mut Vec<Arc<Object>>, query: &Query) {
        let mut wanted: Vec<Option<&Arc<Object>>> = self
            .0
            .iter()
            .map(|(_, object)| object.as_ref().filter(|object| query.matches(object)))
            .collect();
        objects.retain_mut(|object| {
            let key = (object.namespace(), object.name());
            let found = self
                .0
                .binary_search_by(|(snapshot, _)| (snapshot.namespace(), snapshot.name()).cmp(&key));
            let Ok(at) = found else { return true };
            match wanted[at].take() {
                Some(snapshot) => {
                    *object = Arc::clone(snapshot);
                    true
                }
                None => false,
            }
        });
        objects.extend(wanted.into_iter().flatten().cloned());
    }
}
