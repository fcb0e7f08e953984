// SPDX-License-Identifier: Apache-2.0
//! Caches before everything else.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use steersman_controller::{BoxRunnable, Filling, Needs, Runnable, Unfilled};
use steersman_core::Moment;

use super::Inner;

/// What the start waits for, for readiness and for people. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited(Arc<Mutex<Vec<String>>>);

impl Awaited {
    pub(super) fn all(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for something until it drops.
struct Waiting<'a>(&'a Awaited);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}

/// Fills the caches that were declared, all at the same time, and waits for them as far as that makes sense.
pub(super) async fn fill_caches(inner: &Inner, deadline: Moment) -> Filling {
    // Where there is an election, those who need leadership have their caches once they lead.
    let is_contested = inner.election.is_some() || inner.own_leases.is_some();
    let is_early = |runnable: &BoxRunnable| !is_contested || runnable.needs() != Needs::Leadership;
    let runnables = inner.runnables().into_iter().filter(is_early);
    let wanted = runnables.flat_map(|runnable| runnable.caches());
    let mut filling = Filling::start(wanted, inner.surroundings.fleet());
    let _waiting = Waiting(&inner.awaited);
    // Once for each reason, of which several kinds may have the same.
    let mut said = BTreeSet::new();
    let missing = |Unfilled {
                       kind,
                       cluster,
                       reason,
                       ..
                   }: Unfilled| {
        let server = cluster
            .config()
            .map(|config| tracing::field::display(&config.cluster_url));
        let cluster = cluster.name();
        if said.insert((cluster.clone(), reason.clone())) {
            tracing::warn!(%kind, %cluster, server, reason, "not in sync; only those who need it wait for it");
        }
    };
    tokio::select! {
        biased;
        () = filling.filled(|names| *inner.awaited.lock() = names, missing) => {}
        () = inner.surroundings.clock().sleep_until(deadline) => {
            let late = inner.awaited.all();
            tracing::warn!(?late, limit = ?inner.barrier, "not in sync in time; the others start without them");
        }
    }
    filling
}
