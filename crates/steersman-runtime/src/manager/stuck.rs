// SPDX-License-Identifier: Apache-2.0
//! Check for runnables and caches that have not become ready for so long that a restart might help.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::StatusRegistry;
use steersman_core::{Clock, MonotonicTime, Mutex};

use super::barrier::PendingCaches;
use steersman_endpoints::CheckError;

/// Records since when probes have found each runnable not ready.
pub(super) struct Stuck {
    limit: Duration,
    clock: Arc<dyn Clock>,
    statuses: StatusRegistry,
    pending_caches: PendingCaches,
    since: Mutex<BTreeMap<String, MonotonicTime>>,
}

impl Stuck {
    pub(super) fn new(
        limit: Duration,
        clock: &Arc<dyn Clock>,
        statuses: &StatusRegistry,
        pending_caches: &PendingCaches,
    ) -> Self {
        Self {
            limit,
            clock: Arc::clone(clock),
            statuses: statuses.clone(),
            pending_caches: pending_caches.clone(),
            since: Mutex::default(),
        }
    }

    /// Result of `/healthz/stuck`.
    pub(super) fn check(&self) -> Result<(), CheckError> {
        let (now, pending) = (self.clock.now(), self.pending());
        let mut since = self.since.lock();
        since.retain(|name, _| pending.contains_key(name));
        let mut stuck = Vec::new();
        for (name, how) in &pending {
            let seen = *since.entry(name.clone()).or_insert(now);
            if now.saturating_since(seen) >= self.limit {
                stuck.push(format!("{name}: {how}"));
            }
        }
        if stuck.is_empty() {
            Ok(())
        } else {
            Err(CheckError::public(stuck.join("; ")))
        }
    }

    /// Returns the runnables and caches that are not ready now, with the reason.
    fn pending(&self) -> BTreeMap<String, String> {
        let all = self.statuses.all().into_iter();
        let mut pending: BTreeMap<String, String> = all
            .filter(|(_, status)| !status.is_ready())
            .map(|(name, status)| (name, status.to_string()))
            .collect();
        let caches = self.pending_caches.all();
        if !caches.is_empty() {
            pending.insert("caches".to_owned(), format!("waiting for {}", caches.join(", ")));
        }
        pending
    }
}
