// SPDX-License-Identifier: Apache-2.0
//! Whether a replica has what it needs to take over at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::{RunPolicy, Runnable, RunnableStatus};
use tokio::sync::watch;

use super::Inner;
use steersman_endpoints::CheckError;

/// Warm means: the caches that were declared are filled, or their time is over, and all that warms up was ready once, or
/// its time is over: what is forbidden or cannot be reached is so for others, too, and nobody is better off if the lease
/// is left to them. Who is in trouble after it was ready has something that gets old, and takes over all the same.
#[derive(Debug)]
pub(crate) struct Warmth {
    is_warm: watch::Sender<bool>,
    /// What is waited for, where it is not warm.
    missing: watch::Sender<String>,
    filled: watch::Sender<bool>,
}

impl Warmth {
    pub(super) fn new() -> Self {
        Self {
            is_warm: watch::Sender::new(false),
            missing: watch::Sender::new("the manager does not run".to_owned()),
            filled: watch::Sender::new(false),
        }
    }

    pub(super) fn is_warm(&self) -> watch::Receiver<bool> {
        self.is_warm.subscribe()
    }

    /// What `/readyz/warm` says.
    pub(super) fn check(&self) -> Result<(), CheckError> {
        match *self.is_warm.borrow() {
            true => Ok(()),
            false => Err(CheckError::public(self.missing.borrow().clone())),
        }
    }

    /// Says that the start need not wait for caches any more.
    pub(super) fn filled(&self) {
        self.filled.send_replace(true);
    }

    /// Says that nothing runs.
    pub(super) fn over(&self) {
        self.filled.send_replace(false);
        self.set(Some("the manager does not run".to_owned()));
    }

    /// Keeps it true for as long as a run lasts.
    pub(super) async fn keep(&self, inner: &Inner) {
        let (mut added, mut filled) = (inner.changed.subscribe(), self.filled.subscribe());
        let standings = inner.surroundings.statuses();
        loop {
            added.mark_unchanged();
            let is_filled = *filled.borrow_and_update();
            let settled = standings.settled();
            let mut warming = warming(inner);
            warming.retain(|name| !settled.contains(name));
            let missing = |all: &BTreeMap<String, RunnableStatus>| match is_filled {
                true => not_ready(&warming, all),
                false => Some("caches are being filled".to_owned()),
            };
            let known = missing(&standings.all());
            self.set(known.clone());
            tokio::select! {
                biased;
                _ = added.changed() => {}
                _ = filled.changed() => {}
                () = standings.when_settled(|settled| !warming.is_disjoint(settled)) => {}
                () = standings.when(|all| missing(all) != known) => {}
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

/// The names of those that warm up.
fn warming(inner: &Inner) -> BTreeSet<String> {
    let runnables = inner.runnables().into_iter();
    runnables
        .filter(|runnable| runnable.run_policy() == RunPolicy::WarmUp)
        .map(|runnable| runnable.name().to_owned())
        .collect()
}

/// Who of them is not ready, and why.
fn not_ready(warming: &BTreeSet<String>, all: &BTreeMap<String, RunnableStatus>) -> Option<String> {
    let waiting = warming.iter().filter_map(|name| match all.get(name) {
        Some(standing) if standing.is_ready() => None,
        Some(standing) => Some(format!("{name}: {standing}")),
        None => Some(format!("{name}: waiting for its start")),
    });
    let waiting: Vec<String> = waiting.collect();
    (!waiting.is_empty()).then(|| waiting.join("; "))
}
