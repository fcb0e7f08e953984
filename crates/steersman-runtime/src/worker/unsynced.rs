// SPDX-License-Identifier: Apache-2.0
//! Retries keys that failed because caches were not in sync, as soon as these are.

use std::collections::HashMap;

use steersman_core::Mutex;

use steersman_cache::Resource;

use super::WorkerPool;
use crate::RequestKey;

/// Keys that wait for caches.
pub(super) type UnsyncedKeys<R> = Mutex<HashMap<R, Unsynced>>;

pub(super) struct Unsynced {
    /// The kinds that were not in sync.
    missing: Vec<Resource>,
    /// Number of recoveries before the reconcile.
    recoveries: u64,
}

impl<R: RequestKey> WorkerPool<R> {
    /// Retries a key when one of the caches that its last reconcile lacked is in sync again. `recoveries` is the number of
    /// recoveries before that reconcile.
    pub(super) fn retry_with_caches(&self, key: R, missing: Vec<Resource>, recoveries: u64) {
        if missing.is_empty() {
            self.unsynced.lock().remove(&key);
            return;
        }
        self.unsynced.lock().insert(key, Unsynced { missing, recoveries });
        if self.run.reads.recovery_count() != recoveries {
            self.caches_recovered();
        }
    }

    /// Enqueues at once the keys that failed because of a cache that is in sync now.
    pub(crate) fn caches_recovered(&self) {
        let recovered = self.run.reads.last_recoveries();
        let is_due = |unsynced: &Unsynced| {
            let mut missing = unsynced.missing.iter();
            missing.any(|kind| {
                recovered
                    .get(kind)
                    .is_some_and(|&last| last > unsynced.recoveries)
            })
        };
        let mut unsynced = self.unsynced.lock();
        let due: Vec<R> = unsynced
            .extract_if(|_, unsynced| is_due(unsynced))
            .map(|(key, _)| key)
            .collect();
        drop(unsynced);
        due.into_iter().for_each(|key| _ = self.run.plan.queue.add(key));
    }
}
