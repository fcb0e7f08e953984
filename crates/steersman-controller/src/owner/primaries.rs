// SPDX-License-Identifier: Apache-2.0
//! The objects of a controller's primary kind, for those who want to know whether an owner is still the same.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use steersman_cache::{Object, Query, Store};
use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;

/// The primary objects that a controller knows now, by cluster. Between runs it knows none.
#[derive(Debug, Default)]
pub(crate) struct Primaries(RwLock<Shown>);

#[derive(Debug, Default)]
struct Shown {
    stores: BTreeMap<ClusterName, (u64, Store)>,
    count: u64,
}

/// Objects can be seen as long as this is held.
#[derive(Debug)]
#[must_use]
pub(crate) struct Showing {
    primaries: Arc<Primaries>,
    cluster: ClusterName,
    /// Another one may have taken its place.
    number: u64,
}

impl Primaries {
    /// Lets the objects of a cluster be seen.
    pub(crate) fn show(self: &Arc<Self>, cluster: &ClusterName, store: &Store) -> Showing {
        let mut shown = self.0.write().unwrap_or_else(PoisonError::into_inner);
        shown.count += 1;
        let number = shown.count;
        shown.stores.insert(cluster.clone(), (number, store.clone()));
        Showing {
            primaries: Arc::clone(self),
            cluster: cluster.clone(),
            number,
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        shown.stores.values().map(|(_, store)| store.len()).sum()
    }

    /// The objects that are there now, by cluster.
    pub(crate) fn all(&self) -> Vec<(ClusterName, Vec<Arc<Object>>)> {
        let shown = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .stores
            .clone();
        let stores = shown.into_iter();
        stores
            .map(|(cluster, (_, store))| (cluster, store.list(&Query::new())))
            .collect()
    }

    /// Whether the object of this key is known to be another one than that of this uid. One that is not known may come.
    pub(super) fn is_another(&self, cluster: &ClusterName, key: &ObjectKey, uid: &str) -> bool {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let store = shown.stores.get(cluster).map(|(_, store)| store);
        let found = store.and_then(|store| store.get_key(key));
        found.is_some_and(|found| found.uid() != uid)
    }
}

impl Drop for Showing {
    fn drop(&mut self) {
        let mut shown = self.primaries.0.write().unwrap_or_else(PoisonError::into_inner);
        let found = shown.stores.get(&self.cluster);
        if found.is_some_and(|(number, _)| *number == self.number) {
            shown.stores.remove(&self.cluster);
        }
    }
}
