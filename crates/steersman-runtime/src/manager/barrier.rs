// SPDX-License-Identifier: Apache-2.0
//! The wait for caches at startup.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock, Weak},
};

use crate::{BoxRunnable, CacheSync, NotSynced, RunPolicy, Runnable};
use steersman_cache::{Resource, WatchError};
use steersman_core::{MonotonicTime, Mutex};

use super::Inner;
use steersman_endpoints::CheckError;

/// Caches that the start waits for; for readiness and logs. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingCaches(Arc<Mutex<Vec<String>>>);

impl PendingCaches {
    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// Caches of the manager, for readiness. Clones share them.
#[derive(Clone, Default)]
pub(super) struct CacheBarrier(Arc<OnceLock<Weak<Inner>>>);

impl CacheBarrier {
    pub(super) fn set(&self, inner: &Arc<Inner>) {
        // Set once: there is one manager.
        let _ = self.0.set(Arc::downgrade(inner));
    }

    /// Fails while the start waits for caches, and afterwards while a cache of the default cluster that a runnable requires
    /// is not in sync.
    pub(super) fn check(&self) -> Result<(), CheckError> {
        let inner = self.0.get().and_then(Weak::upgrade);
        let missing = inner.map(|inner| inner.unsynced_caches()).unwrap_or_default();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(CheckError::waiting_for(missing)),
        }
    }
}

impl Inner {
    fn unsynced_caches(&self) -> BTreeSet<String> {
        let mut missing: BTreeSet<String> = self.pending_caches.all().into_iter().collect();
        let default_cluster = self.default_cluster.as_ref();
        let Some(cluster) = default_cluster.and_then(|name| self.runtime.clusters().get(name)) else {
            return missing;
        };
        let named: Vec<Resource> = self
            .runnables()
            .iter()
            .flat_map(Runnable::caches)
            .filter(|wanted| wanted.is_in(cluster.name()))
            .map(|wanted| wanted.resource().clone())
            .collect();
        for informer in cluster.cache().informers() {
            let health = informer.health();
            // A kind that is not installed has nothing to sync.
            let is_absent = health.error.as_deref() == Some(&WatchError::NotInstalled);
            let is_done = health.synced || health.ended || is_absent;
            if !is_done && named.contains(informer.resource()) {
                missing.insert(format!("{} (cluster {})", informer.resource(), cluster.name()));
            }
        }
        missing
    }
}

/// Adds caches to the list until it is dropped.
struct Waiting<'a>(&'a PendingCaches);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.lock().clear();
    }
}

/// Syncs the declared caches, all at the same time, and waits for the ones that can sync.
pub(super) async fn fill_caches(inner: &Inner, deadline: MonotonicTime) -> CacheSync {
    // With an election, runnables that need leadership sync their caches once they lead.
    let is_contested = inner.election.is_some() || inner.own_leases.is_some();
    let is_early =
        |runnable: &BoxRunnable| !is_contested || runnable.run_policy() != RunPolicy::LeaderElected;
    let runnables = inner.runnables().into_iter().filter(is_early);
    let wanted = runnables.flat_map(|runnable| runnable.caches());
    let mut filling = CacheSync::start(wanted, inner.runtime.clusters());
    let _waiting = Waiting(&inner.pending_caches);
    // One warning for each reason, because several kinds can have the same.
    let mut said = BTreeSet::new();
    let missing = |NotSynced {
                       kind,
                       cluster,
                       reason,
                       ..
                   }: NotSynced| {
        let server = cluster
            .config()
            .map(|config| tracing::field::display(&config.cluster_url));
        let cluster = cluster.name();
        if said.insert((cluster.clone(), reason.clone())) {
            tracing::warn!(%kind, %cluster, server, reason, "cache not in sync; only runnables that need it wait for it");
        }
    };
    let filled = filling.filled(|names| *inner.pending_caches.0.lock() = names, missing);
    if inner.runtime.clock().timeout_at(deadline, filled).await.is_none() {
        let late = inner.pending_caches.all();
        tracing::warn!(?late, limit = ?inner.barrier, "not in sync in time; the others start without them");
    }
    filling
}
