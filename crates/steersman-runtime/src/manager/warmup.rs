// SPDX-License-Identifier: Apache-2.0
//! WarmupStatus: this replica is ready to take over at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::{RunPolicy, Runnable, RunnableStatus};
use tokio::sync::watch;

use super::Inner;
use steersman_endpoints::CheckError;

/// State of warmth. A replica is warm if the declared caches are in sync, or their timeout has passed, and every runnable
/// that warms up was ready once, or its timeout has passed. A kind that is forbidden or unreachable is so for other
/// replicas too, so leaving the lease to them would not help. A runnable that fails after it was ready has only outdated
/// data, and the replica still takes over.
#[derive(Debug)]
pub(crate) struct WarmupStatus {
    is_warm: watch::Sender<bool>,
    /// The missing parts, while the replica is not warm.
    missing: watch::Sender<String>,
    caches_synced: watch::Sender<bool>,
}

impl WarmupStatus {
    pub(super) fn new() -> Self {
        Self {
            is_warm: watch::Sender::new(false),
            missing: watch::Sender::new("the manager does not run".to_owned()),
            caches_synced: watch::Sender::new(false),
        }
    }

    pub(super) fn is_warm(&self) -> watch::Receiver<bool> {
        self.is_warm.subscribe()
    }

    /// Result of `/readyz/warm`.
    pub(super) fn check(&self) -> Result<(), CheckError> {
        match *self.is_warm.borrow() {
            true => Ok(()),
            false => Err(CheckError::public(self.missing.borrow().clone())),
        }
    }

    /// Reports that the start does not wait for caches any more.
    pub(super) fn caches_synced(&self) {
        self.caches_synced.send_replace(true);
    }

    /// Reports that the manager does not run.
    pub(super) fn over(&self) {
        self.caches_synced.send_replace(false);
        self.set(Some("the manager does not run".to_owned()));
    }

    /// Updates the state during a run.
    pub(super) async fn keep(&self, inner: &Inner) {
        let (mut added, mut caches_synced) = (inner.changed.subscribe(), self.caches_synced.subscribe());
        let statuses = inner.runtime.statuses();
        loop {
            added.mark_unchanged();
            let are_synced = *caches_synced.borrow_and_update();
            let settled = statuses.settled();
            let mut warming = warming(inner);
            warming.retain(|name| !settled.contains(name));
            let missing = |all: &BTreeMap<String, RunnableStatus>| match are_synced {
                true => not_ready(&warming, all),
                false => Some("caches are being filled".to_owned()),
            };
            let known = missing(&statuses.all());
            self.set(known.clone());
            tokio::select! {
                biased;
                _ = added.changed() => {}
                _ = caches_synced.changed() => {}
                () = statuses.when_settled(|settled| !warming.is_disjoint(settled)) => {}
                () = statuses.when(|all| missing(all) != known) => {}
            }
        }
    }

    fn set(&self, missing: Option<String>) {
        let is_warm = missing.is_none();
        self.missing.send_replace(missing.unwrap_or_default());
        self.is_warm
            .send_if_modified(|was| std::mem::replace(was, is_warm) != is_warm);
    }
}

/// Names of the runnables that warm up.
fn warming(inner: &Inner) -> BTreeSet<String> {
    let runnables = inner.runnables().into_iter();
    runnables
        .filter(|runnable| runnable.run_policy() == RunPolicy::Warm)
        .map(|runnable| runnable.name().to_owned())
        .collect()
}

/// Returns the runnables that are not ready, with the reason.
fn not_ready(warming: &BTreeSet<String>, all: &BTreeMap<String, RunnableStatus>) -> Option<String> {
    let waiting = warming.iter().filter_map(|name| match all.get(name) {
        Some(status) if status.is_ready() => None,
        Some(status) => Some(format!("{name}: {status}")),
        None => Some(format!("{name}: waiting for its start")),
    });
    let waiting: Vec<String> = waiting.collect();
    (!waiting.is_empty()).then(|| waiting.join("; "))
}
