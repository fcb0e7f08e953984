// SPDX-License-Identifier: Apache-2.0
//! Caches before everything else.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::join_all;
use steersman_cache::Held;
use steersman_controller::{BoxRunnable, Needs, Runnable, Wanted};

use super::Inner;

/// What the start waits for, for readiness and for people. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited(Arc<Mutex<BTreeMap<usize, String>>>);

/// One of them. It is not waited for any more when this drops.
struct Place<'a>(&'a Awaited, usize);

impl Awaited {
    pub(super) fn all(&self) -> Vec<String> {
        self.lock().values().cloned().collect()
    }

    fn place(&self, number: usize, wanted: &Wanted) -> Place<'_> {
        let name = format!("{} (cluster {})", wanted.resource(), wanted.cluster().name());
        self.lock().insert(number, name);
        Place(self, number)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

/// Fills the caches that were declared, all at the same time, and waits for them as far as that makes sense.
pub(super) async fn fill_caches(inner: &Inner) -> Vec<Held> {
    // Where there is an election, those who need leadership have their caches once they lead.
    let is_contested = inner.election.is_some() || inner.own_leases.is_some();
    let is_early = |runnable: &BoxRunnable| !is_contested || runnable.needs() != Needs::Leadership;
    let runnables = inner.runnables().into_iter().filter(is_early);
    let wanted: Vec<Wanted> = runnables.flat_map(|runnable| runnable.caches()).collect();
    let held: Vec<Held> = wanted.iter().map(Wanted::informer).collect();
    wait(inner, &wanted, &held).await;
    held
}

async fn wait(inner: &Inner, wanted: &[Wanted], held: &[Held]) {
    let each = wanted
        .iter()
        .zip(held)
        .enumerate()
        .map(|(number, (wanted, informer))| {
            let place = inner.awaited.place(number, wanted);
            async move {
                let _place = place;
                let (kind, cluster) = (wanted.resource(), wanted.cluster().name());
                match informer.settled().await {
                    Ok(()) => tracing::debug!(%kind, %cluster, "in sync"),
                    Err(trouble) => tracing::warn!(
                        %kind,
                        %cluster,
                        %trouble,
                        "not in sync; only those who need it wait for it"
                    ),
                }
            }
        });
    let clock = inner.surroundings.clock();
    // It is there until the end, so that those who are late can be named.
    let mut each = std::pin::pin!(join_all(each));
    tokio::select! {
        biased;
        _ = &mut each => {}
        () = clock.sleep_until(clock.now() + inner.barrier) => {
            let late = inner.awaited.all();
            tracing::warn!(?late, limit = ?inner.barrier, "not in sync in time; the others start without them");
        }
    }
}
