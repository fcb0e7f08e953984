// SPDX-License-Identifier: Apache-2.0
//! The entries of an overlay, and when each ends.
//!
//! Whoever calls in here holds the lock of the store: the store's before the layer's, never the other way round.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use steersman_core::{Clock, MonotonicTime, ObjectKey};

use crate::{Object, Query, Revision, revision::compare, store::State};

/// How many entries there may be.
const ENTRIES_MAX: usize = 10_000;

pub(crate) struct Layer {
    clock: Arc<dyn Clock>,
    limit: Duration,
    /// Whether an informer asks for lost writes.
    keeps_lost: bool,
    /// How many entries there are, so that readers need no lock when there are none.
    count: AtomicUsize,
    /// Whether there are lost writes, so that asking for them needs no lock when there are none.
    has_lost: AtomicBool,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<ObjectKey, Entry>,
    /// How often the store has told how far it is since all entries were looked at.
    told: usize,
    /// See [`Layer::take_lost`].
    lost: Vec<Arc<Object>>,
}

struct Entry {
    what: What,
    uid: Box<str>,
    since: MonotonicTime,
    /// How many lists had begun by then.
    lists: u32,
}

enum What {
    Written(Arc<Object>),
    Gone {
        /// When it was deleted, if that is known.
        at: Option<Revision>,
        /// A revision that the object had, if one is known: whatever has this key and is older went before it.
        after: Option<Revision>,
    },
}

/// What lies over a store at some moment, in the order of keys.
pub(crate) struct Laid(Vec<(ObjectKey, Option<Arc<Object>>)>);

impl Layer {
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
        let mut entries = self.lock();
        if let Some(known) = entries.by_key.get(&key) {
            let is_late = match &known.what {
                // Revisions of two uids say nothing about each other.
                What::Written(known) => {
                    known.uid() == object.uid()
                        && is_reached(known.resource_version(), object.resource_version())
                }
                // Where it went at a revision, it has left a selector, and may come back into it.
                What::Gone { at, .. } => *known.uid == *object.uid() && !is_newer(&object, at.as_ref()),
            };
            if is_late {
                return;
            }
        }
        let uid: Box<str> = object.uid().into();
        let entry = self.entry(state, uid, What::Written(object));
        self.lay(&mut entries, state, key, entry);
    }

    pub(super) fn deleted(&self, state: &State, key: &ObjectKey, uid: &str, revision: Option<&Revision>) {
        let mut entries = self.lock();
        let after = match entries.by_key.get(key).map(|known| &known.what) {
            // The answer is late, and it has come back meanwhile.
            Some(What::Written(known)) if known.uid() == uid && is_newer(known, revision) => return,
            Some(What::Written(known)) if known.uid() == uid => Some(known.revision()),
            // Something was created in its place already.
            Some(What::Written(_)) => return,
            _ => state
                .get(key.namespace(), key.name())
                .filter(|stored| stored.uid() == uid)
                .map(|stored| stored.revision()),
        };
        let what = What::Gone {
            at: revision.cloned(),
            after,
        };
        let entry = self.entry(state, uid.into(), what);
        self.lay(&mut entries, state, key.clone(), entry);
    }

    /// One object as readers see it.
    pub(crate) fn get(&self, state: &State, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let stored = state.get(namespace, name);
        let key = ObjectKey::new(namespace, name);
        let mut entries = self.lock();
        let Some(entry) = entries.by_key.get(&key) else {
            return stored.cloned();
        };
        if self.has_ended(&key, entry, state) {
            self.end(&mut entries, &key, stored.map(|stored| &**stored));
            return stored.cloned();
        }
        entry.shows()
    }

    /// All that lies over the store now.
    pub(crate) fn laid(&self, state: &State) -> Laid {
        let mut entries = self.lock();
        self.sweep(&mut entries, state);
        let entries = entries.by_key.iter();
        Laid(entries.map(|(key, entry)| (key.clone(), entry.shows())).collect())
    }

    /// The store has just entered an object.
    pub(crate) fn came(&self, object: &Object) {
        self.end_if(&object.key(), Some(object), |entry| match &entry.what {
            // If it is still older after this time, the server that took the write counts in another way.
            What::Written(written) => {
                is_reached(object.resource_version(), written.resource_version())
                    || (*entry.uid == *object.uid() && self.is_old(entry))
            }
            What::Gone { at, after } if *entry.uid != *object.uid() => {
                is_newer(object, at.as_ref()) || !is_older(object, after.as_ref())
            }
            // A newer event may be from before the deletion, if that is not known; but not for long.
            What::Gone { at: None, after } => {
                let is_known = |after: &Revision| is_reached(after.as_str(), object.resource_version());
                self.is_old(entry) && !after.as_ref().is_some_and(is_known)
            }
            What::Gone { at, .. } => is_newer(object, at.as_ref()),
        });
    }

    fn is_old(&self, entry: &Entry) -> bool {
        self.clock.now().saturating_since(entry.since) >= self.limit
    }

    /// An object is gone, of which the store may never have seen what was written. It still has this.
    pub(crate) fn deleted_by_now(&self, object: &Object, stored: Option<&Object>) {
        self.end_if(&object.key(), stored, |entry| match &entry.what {
            What::Written(written) => {
                *entry.uid == *object.uid()
                    && is_reached(object.resource_version(), written.resource_version())
            }
            What::Gone { .. } => false,
        });
    }

    /// The store has just taken an object out.
    pub(crate) fn went(&self, object: &Object) {
        self.end_if(&object.key(), None, |entry| {
            matches!(entry.what, What::Gone { .. }) && *entry.uid == *object.uid()
        });
    }

    /// The store has just got this far, or the namespace which that was about. An entry that this ends is not shown any more in any case, unless it is
    /// one without an order; the others are looked for only as often as it takes to be rid of them.
    pub(crate) fn reached(&self, state: &State, revision: &str) {
        let mut entries = self.lock();
        entries.told += 1;
        if entries.told >= entries.by_key.len() || !is_number(revision) {
            self.sweep(&mut entries, state);
        }
    }

    /// Ends what has ended.
    pub(crate) fn settle(&self, state: &State) {
        self.sweep(&mut self.lock(), state);
    }

    /// The objects that were written, that readers see no more, and that the store never had: they were created and deleted
    /// between two lists, so that no event tells of them.
    pub(crate) fn take_lost(&self) -> Vec<Arc<Object>> {
        if !self.has_lost.swap(false, Relaxed) {
            return Vec::new();
        }
        std::mem::take(&mut self.lock().lost)
    }

    fn sweep(&self, entries: &mut Entries, state: &State) {
        let Entries { by_key, told, lost } = entries;
        by_key.retain(|key, entry| {
            let has_ended = self.has_ended(key, entry, state);
            if has_ended {
                let stored = state.get(key.namespace(), key.name());
                lost.extend(self.lost(entry, stored.map(|stored| &**stored)));
            }
            !has_ended
        });
        *told = 0;
        self.count.store(by_key.len(), Relaxed);
    }

    fn end_if(&self, key: &ObjectKey, stored: Option<&Object>, ends: impl FnOnce(&Entry) -> bool) {
        let mut entries = self.lock();
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

    /// What was written and is not in the store, which has this under its name.
    fn lost(&self, entry: &Entry, stored: Option<&Object>) -> Option<Arc<Object>> {
        let is_stored = stored.is_some_and(|stored| stored.uid() == &*entry.uid);
        // One without an order ends by its age, and may still come.
        let is_known = |object: &Arc<Object>| is_number(object.resource_version());
        let lost = entry
            .shows()
            .filter(|object| self.keeps_lost && !is_stored && is_known(object))?;
        self.has_lost.store(true, Relaxed);
        Some(lost)
    }

    fn entry(&self, state: &State, uid: Box<str>, what: What) -> Entry {
        Entry {
            what,
            uid,
            since: self.clock.now(),
            lists: state.lists_begun(),
        }
    }

    fn lay(&self, entries: &mut Entries, state: &State, key: ObjectKey, entry: Entry) {
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
        // Of its own namespace: others may be behind, and say nothing about it.
        let revision = state.revision_in(key.namespace());
        let is_relisted = state.listed_in(key.namespace()) > entry.lists;
        // A list of the newest state that began later has it, or something newer, whatever the numbers say.
        if state.newest_list_in(key.namespace()) > entry.lists {
            return true;
        }
        let is_old = || self.is_old(entry);
        match &entry.what {
            What::Written(written) => {
                let written = written.resource_version();
                let has_come = is_reached(revision, written)
                    || stored.is_some_and(|stored| is_reached(stored.resource_version(), written));
                let is_ordered = is_number(written)
                    && (revision.is_empty() || is_number(revision))
                    && stored.is_none_or(|stored| is_number(stored.resource_version()));
                has_come || (!is_ordered && (is_relisted || is_old()))
            }
            What::Gone { at, after } => match (at, stored) {
                (Some(at), _) if is_reached(revision, at.as_str()) => true,
                (Some(_), Some(stored)) if is_newer(stored, at.as_ref()) => true,
                (_, Some(stored)) if stored.uid() != &*entry.uid => !is_older(stored, after.as_ref()),
                // Such a list alone proves nothing: it promises no more than what was seen already, and may be from before
                // the deletion, which then comes by the watch behind it.
                (_, Some(_)) => is_relisted && is_old(),
                (_, None) => is_old(),
            },
        }
    }

    // The map is whole after every statement.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn shows(&self) -> Option<Arc<Object>> {
        match &self.what {
            What::Written(object) => Some(Arc::clone(object)),
            What::Gone { .. } => None,
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

impl Laid {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Makes the answer of a store to a query what readers see: what is covered is replaced in its place or left out,
    /// what is new follows in the order of keys.
    pub(crate) fn cover(&self, objects: &mut Vec<Arc<Object>>, query: &Query) {
        let mut wanted: Vec<Option<&Arc<Object>>> = self
            .0
            .iter()
            .map(|(_, object)| object.as_ref().filter(|object| query.matches(object)))
            .collect();
        objects.retain_mut(|object| {
            let key = (object.namespace(), object.name());
            let found = self
                .0
                .binary_search_by(|(laid, _)| (laid.namespace(), laid.name()).cmp(&key));
            let Ok(at) = found else { return true };
            match wanted[at].take() {
                Some(laid) => {
                    *object = Arc::clone(laid);
                    true
                }
                None => false,
            }
        });
        objects.extend(wanted.into_iter().flatten().cloned());
    }
}
