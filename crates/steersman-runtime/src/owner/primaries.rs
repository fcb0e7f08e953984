// SPDX-License-Identifier: Apache-2.0
//! The objects of a controller's primary kind, to check the UID of an owner.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use steersman_cache::{Object, Query, Store};
use steersman_cluster::ClusterName;
use steersman_core::{Mutex, ObjectKey, RwLock};
use steersman_queue::Add;

use crate::{RequestKey, gate::EnqueueSink};

/// Number of deleted objects of a cluster whose keys a standby replica keeps. The leader reconciles them meanwhile; the
/// last ones are kept in case the leader fails before that.
pub(crate) const DELETIONS_MAX: usize = 1000;

/// Primary objects of a controller, by cluster. Empty between runs.
#[derive(Debug, Default)]
pub(crate) struct Primaries {
    shown: RwLock<Shown>,
    deleted: Mutex<BTreeMap<ClusterName, Deletions>>,
}

#[derive(Debug, Default)]
struct Shown {
    stores: BTreeMap<ClusterName, Objects>,
    count: u64,
}

/// The objects of one cluster.
#[derive(Debug)]
struct Objects {
    number: u64,
    store: Store,
    /// True if an object that is not in the store does not exist.
    is_synced: bool,
}

/// The keys of the last deleted objects of one cluster, each key once.
#[derive(Debug, Default)]
struct Deletions {
    by_age: BTreeMap<u64, ObjectKey>,
    ages: HashMap<ObjectKey, u64>,
    count: u64,
}

/// State of the primary object of an owner reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Referent {
    Exists,
    /// Another object has its name.
    Replaced,
    /// The object was deleted, or is not in the store yet.
    Missing,
}

/// Keeps the objects of a cluster available until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Showing {
    primaries: Arc<Primaries>,
    cluster: ClusterName,
    /// Distinguishes it from a later one for the same cluster.
    number: u64,
}

impl Primaries {
    /// Makes the objects of a cluster available.
    pub(crate) fn show(self: &Arc<Self>, cluster: &ClusterName, store: &Store) -> Showing {
        let mut shown = self.shown.write();
        shown.count += 1;
        let number = shown.count;
        let objects = Objects {
            number,
            store: store.clone(),
            is_synced: false,
        };
        shown.stores.insert(cluster.clone(), objects);
        Showing {
            primaries: Arc::clone(self),
            cluster: cluster.clone(),
            number,
        }
    }

    /// Returns the keys of the objects of a cluster.
    pub(crate) fn keys(&self, cluster: &ClusterName) -> Vec<ObjectKey> {
        let shown = self.shown.read();
        let store = shown.stores.get(cluster).map(|objects| objects.store.clone());
        drop(shown);
        let objects = store.map(|store| store.list(&Query::new())).unwrap_or_default();
        objects.iter().map(|object| object.key()).collect()
    }

    /// Returns true if the object exists.
    pub(crate) fn contains(&self, cluster: &ClusterName, key: &ObjectKey) -> bool {
        self.get(cluster, key).is_some()
    }

    /// Returns the state of the object of an owner reference.
    pub(super) fn referent(&self, cluster: &ClusterName, key: &ObjectKey, uid: &str) -> Referent {
        match self.get(cluster, key) {
            None => Referent::Missing,
            Some(found) if found.uid() == uid => Referent::Exists,
            Some(_) => Referent::Replaced,
        }
    }

    /// Bounds the keys that deleted objects leave in the queue of a standby replica, after one more was deleted. Removes
    /// the oldest key, unless another source has enqueued it, or the object exists again.
    pub(crate) fn bound_deletions<R: RequestKey>(
        &self,
        cluster: &ClusterName,
        key: ObjectKey,
        sink: &EnqueueSink<R>,
        to_request: impl Fn(&ClusterName, ObjectKey) -> R,
    ) {
        let oldest = self.deletions(cluster, |deletions| deletions.push(key));
        self.retract(cluster, oldest, sink, to_request);
    }

    /// As [`bound_deletions`](Self::bound_deletions), after the key of a missing object was enqueued: garbage collection
    /// deletes the children of an object after the object.
    pub(crate) fn bound_missing<R: RequestKey>(
        &self,
        cluster: &ClusterName,
        key: ObjectKey,
        sink: &EnqueueSink<R>,
        to_request: impl Fn(&ClusterName, ObjectKey) -> R,
    ) {
        // After the key was enqueued, so that this or the deletion of the object detects that it is missing.
        if self.is_known_to_be_missing(cluster, &key) {
            let oldest = self.deletions(cluster, |deletions| deletions.push_new(key));
            self.retract(cluster, oldest, sink, to_request);
        }
    }

    /// Removes the deletions of a cluster whose keys were purged.
    pub(crate) fn forget_deletions(&self, cluster: &ClusterName) {
        let mut deleted = self.deleted.lock();
        deleted.remove(cluster);
    }

    fn retract<R: RequestKey>(
        &self,
        cluster: &ClusterName,
        oldest: Option<ObjectKey>,
        sink: &EnqueueSink<R>,
        to_request: impl Fn(&ClusterName, ObjectKey) -> R,
    ) {
        let Some(key) = oldest else { return };
        let request = to_request(cluster, key.clone());
        let exists = || self.contains(cluster, &key);
        // An object is in the store before its key is enqueued, so an object that was created meanwhile is found now.
        if !exists() && sink.retract(&request) && exists() {
            sink.add(request, Add::new().retractable());
        }
    }

    fn deletions<T>(&self, cluster: &ClusterName, change: impl FnOnce(&mut Deletions) -> T) -> T {
        let mut deleted = self.deleted.lock();
        if let Some(deletions) = deleted.get_mut(cluster) {
            return change(deletions);
        }
        change(deleted.entry(cluster.clone()).or_default())
    }

    /// Returns true if the object does not exist. An object of a store that is not in sync might exist.
    fn is_known_to_be_missing(&self, cluster: &ClusterName, key: &ObjectKey) -> bool {
        let shown = self.shown.read();
        let synced = shown.stores.get(cluster).filter(|objects| objects.is_synced);
        synced.is_some_and(|objects| objects.store.get_key(key).is_none())
    }

    fn get(&self, cluster: &ClusterName, key: &ObjectKey) -> Option<Arc<Object>> {
        let shown = self.shown.read();
        let objects = shown.stores.get(cluster)?;
        objects.store.get_key(key)
    }
}

impl Deletions {
    /// Makes a key the newest one. Returns the oldest key if there are too many.
    fn push(&mut self, key: ObjectKey) -> Option<ObjectKey> {
        if let Some(age) = self.ages.remove(&key) {
            self.by_age.remove(&age);
        }
        self.push_new(key)
    }

    /// As `push`, unless the key is already there.
    fn push_new(&mut self, key: ObjectKey) -> Option<ObjectKey> {
        if self.ages.contains_key(&key) {
            return None;
        }
        self.count += 1;
        self.ages.insert(key.clone(), self.count);
        self.by_age.insert(self.count, key);
        if self.by_age.len() <= DELETIONS_MAX {
            return None;
        }
        let (_, oldest) = self.by_age.pop_first()?;
        self.ages.remove(&oldest);
        Some(oldest)
    }
}

impl Showing {
    /// Marks the store as in sync.
    pub(crate) fn set_synced(&self) {
        let mut shown = self.primaries.shown.write();
        let found = shown.stores.get_mut(&self.cluster);
        if let Some(objects) = found.filter(|objects| objects.number == self.number) {
            objects.is_synced = true;
        }
    }
}

impl Drop for Showing {
    fn drop(&mut self) {
        let mut shown = self.primaries.shown.write();
        let found = shown.stores.get(&self.cluster);
        if found.is_some_and(|objects| objects.number == self.number) {
            shown.stores.remove(&self.cluster);
        }
    }
}
