// SPDX-License-Identifier: Apache-2.0
//! The objects of a controller's primary kind: the UID of an owner, and a bound on the keys of deleted objects.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    sync::{Arc, Weak},
};

use steersman_cache::{Index, Query, Store};
use steersman_cluster::ClusterName;
use steersman_core::{Mutex, ObjectKey, RwLock};
use steersman_queue::Add;

use crate::{RequestKey, gate::EnqueueSink};

/// Number of deleted objects of a cluster after which a standby replica removes the keys of as many earlier ones. The leader
/// reconciles them meanwhile; the last ones are kept in case the leader fails before that.
pub(crate) const DELETIONS_MAX: usize = 1000;

/// Primary objects of a controller, by cluster. Empty between runs.
#[derive(Debug, Default)]
pub(crate) struct Primaries {
    /// The holder of a store keeps its objects available.
    stores: RwLock<BTreeMap<ClusterName, Weak<Store>>>,
    deleted: Mutex<BTreeMap<ClusterName, Deletions>>,
}

/// The keys of the last deleted objects of one cluster, in two generations.
#[derive(Debug, Default)]
struct Deletions {
    newer: HashSet<ObjectKey>,
    older: HashSet<ObjectKey>,
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

impl Primaries {
    /// Makes the objects of a cluster available until the returned store is dropped.
    #[must_use]
    pub(crate) fn show(&self, cluster: &ClusterName, store: &Store) -> Arc<Store> {
        let store = Arc::new(store.clone());
        self.stores
            .write()
            .insert(cluster.clone(), Arc::downgrade(&store));
        store
    }

    /// Returns the keys of the objects of a cluster.
    pub(crate) fn keys(&self, cluster: &ClusterName) -> Vec<ObjectKey> {
        let objects = self.store(cluster).map(|store| store.list(&Query::new()));
        objects.iter().flatten().map(|object| object.key()).collect()
    }

    /// Returns the objects with this value of an index, in one cluster or in all.
    pub(crate) fn by_index(
        &self,
        index: &Index<ObjectKey>,
        value: &ObjectKey,
        cluster: Option<&ClusterName>,
    ) -> Vec<(ClusterName, ObjectKey)> {
        let stores: Vec<_> = {
            let stores = self.stores.read();
            let meant = stores
                .iter()
                .filter(|(name, _)| cluster.is_none_or(|cluster| cluster == *name));
            meant
                .filter_map(|(name, store)| Some((name.clone(), store.upgrade()?)))
                .collect()
        };
        let query = Query::new().index(index, value.clone());
        let found = stores.iter().flat_map(|(name, store)| {
            let objects = store.list(&query).into_iter();
            objects.map(|object| (name.clone(), object.key()))
        });
        found.collect()
    }

    /// Returns the state of the object of an owner reference.
    pub(super) fn referent(&self, cluster: &ClusterName, key: &ObjectKey, uid: &str) -> Referent {
        match self.store(cluster).and_then(|store| store.get_key(key)) {
            None => Referent::Missing,
            Some(found) if found.uid() == uid => Referent::Exists,
            Some(_) => Referent::Replaced,
        }
    }

    /// Bounds the keys of missing objects in the queue of a standby replica, after one more was enqueued: for the deletion
    /// of an object, or for a child that garbage collection deletes after it. Removes keys of the oldest deletions, unless
    /// another source has enqueued them or the objects exist again.
    pub(crate) fn bound_missing<R: RequestKey>(
        &self,
        cluster: &ClusterName,
        key: ObjectKey,
        sink: &EnqueueSink<R>,
        to_request: impl Fn(&ClusterName, ObjectKey) -> R,
    ) {
        // An object of a store that is not in sync might exist.
        let synced = self.store(cluster).filter(|store| store.revision().is_known());
        let Some(store) = synced.filter(|store| store.get_key(&key).is_none()) else {
            return;
        };
        let oldest = self.deleted.lock().entry(cluster.clone()).or_default().push(key);
        for key in oldest {
            let exists = || store.get_key(&key).is_some();
            let request = to_request(cluster, key.clone());
            // An object is in the store before its key is enqueued, so an object that was created meanwhile is found now.
            if !exists() && sink.retract(&request) && exists() {
                sink.add(request, Add::new().retractable());
            }
        }
    }

    /// Removes the deletions of a cluster whose keys were purged.
    pub(crate) fn forget_deletions(&self, cluster: &ClusterName) {
        self.deleted.lock().remove(cluster);
    }

    fn store(&self, cluster: &ClusterName) -> Option<Arc<Store>> {
        self.stores.read().get(cluster)?.upgrade()
    }
}

impl Deletions {
    /// Makes a key one of the newest. Returns the older generation once the newer one is full.
    fn push(&mut self, key: ObjectKey) -> HashSet<ObjectKey> {
        self.older.remove(&key);
        self.newer.insert(key);
        if self.newer.len() < DELETIONS_MAX {
            return HashSet::new();
        }
        mem::replace(&mut self.older, mem::take(&mut self.newer))
    }
}
