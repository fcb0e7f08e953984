// SPDX-License-Identifier: Apache-2.0
//! The checks of `/readyz` and `/healthz`.

use std::{sync::Arc, time::Duration};

use steersman_endpoints::{CheckError, Checks, RegistrationGuard};

use super::{
    barrier::{CacheBarrier, PendingCaches},
    stuck::Stuck,
    warmup::WarmupStatus,
};
use crate::{RunnableStatus, RuntimeContext, election::Overdue};

/// The probes of a manager, and the state that its checks read.
pub(super) struct Probes {
    pub(super) healthz: Checks,
    pub(super) readyz: Checks,
    pub(super) warmup: Arc<WarmupStatus>,
    pub(super) pending_caches: PendingCaches,
    pub(super) caches: CacheBarrier,
    pub(super) overdue: Overdue,
    pub(super) registered: Vec<RegistrationGuard>,
}

impl Probes {
    pub(super) fn new(
        runtime: &Arc<RuntimeContext>,
        is_elected: bool,
        ready_before_sync: bool,
        stuck_after: Option<Duration>,
    ) -> Self {
        let probes = Self {
            healthz: Checks::new(),
            readyz: Checks::new(),
            warmup: Arc::new(WarmupStatus::new()),
            pending_caches: PendingCaches::default(),
            caches: CacheBarrier::default(),
            overdue: Overdue::default(),
            registered: Vec::new(),
        };
        let (healthz, mut registered) = (&probes.healthz, Vec::new());
        if is_elected {
            let overdue = probes.overdue.clone();
            registered.extend(healthz.add_sync("leader-election", move || overdue.check()));
        }
        own_checks(&probes.readyz, runtime, &probes.caches, &probes.warmup);
        if ready_before_sync {
            for check in ["caches", "runnables", "warm"] {
                probes.readyz.hide(check);
            }
        }
        if let Some(limit) = stuck_after {
            let stuck = Stuck::new(limit, runtime.clock(), runtime.statuses(), &probes.pending_caches);
            registered.extend(healthz.add_sync("stuck", move || stuck.check()));
        }
        Self { registered, ..probes }
    }
}

/// Adds the checks that make `/readyz` name each runnable that is not ready, with the reason.
fn own_checks(
    readyz: &Checks,
    runtime: &Arc<RuntimeContext>,
    caches: &CacheBarrier,
    warmup: &Arc<WarmupStatus>,
) {
    let statuses = runtime.statuses().clone();
    let running = readyz.add_sync("runnables", move || {
        let all = statuses.all();
        let not_ready: Vec<String> = all
            .iter()
            .filter(|(_, status)| !RunnableStatus::is_ready(status))
            .map(|(name, status)| format!("{name}: {status}"))
            .collect();
        if not_ready.is_empty() {
            Ok(())
        } else {
            Err(CheckError::public(not_ready.join("; ")))
        }
    });
    let caches = caches.clone();
    let caches = readyz.add_sync("caches", move || caches.check());
    add_details(readyz, runtime);
    let warmup = Arc::clone(warmup);
    let warm = readyz.add_sync("warm", move || warmup.check());
    // The names are free: these are the first checks.
    for check in [running, caches, warm].into_iter().flatten() {
        check.detach();
    }
}

/// Adds the status of each cluster, kind and runnable to `/readyz`, for information only. It does not affect the result: an
/// unreachable cluster must not make the work on other clusters unready, and runnables that need it fail their own check.
fn add_details(readyz: &Checks, runtime: &RuntimeContext) {
    let (cluster_set, statuses) = (runtime.clusters().clone(), runtime.statuses().clone());
    readyz.add_details(move || {
        let clusters = cluster_set.all_and_leaving().into_iter();
        let clusters = clusters.flat_map(|cluster| {
            let mut kinds: Vec<String> = cluster
                .presences()
                .into_iter()
                .map(|(kind, presence_status)| {
                    format!("kind {kind} (cluster {}): {presence_status}", cluster.name())
                })
                .collect();
            kinds.sort();
            std::iter::once(format!("cluster {}: {}", cluster.name(), cluster.state())).chain(kinds)
        });
        let runnables = statuses.all().into_iter();
        let runnables = runnables.map(|(name, status)| format!("runnable {name}: {status}"));
        clusters.chain(runnables).collect()
    });
}
