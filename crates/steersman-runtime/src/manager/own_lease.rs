// SPDX-License-Identifier: Apache-2.0
//! Runnables with one lease each, so that replicas share the work.
//!
//! The manager wraps each added runnable that needs leadership. The wrapper takes part in a separate election as long as it
//! runs, with the guarantees of [`Election`](crate::Election). For the rest of the manager it is an ordinary runnable.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    BoxError, BoxRunnable, CacheRequirement, Leadership, LeadershipKeeper, RunContext, RunPolicy, Runnable,
    RunnableStatus, StatusRegistry, Term, run_synced,
};
use steersman_cluster::ClusterName;
use steersman_core::{MonotonicTime, error_chain};
use steersman_endpoints::{MetricsRegistry, RegistrationGuard};
use tokio::sync::watch;

use super::{RunError, last_events, leading::elected};
use crate::{
    election::{ElectionContext, ElectionMetrics, LeaderElectionRun, Overdue, Settings},
    supervise::across_terms,
};

/// A runnable with its own lease.
pub(super) struct OwnLease {
    inner: BoxRunnable,
    settings: Settings,
    metrics: ElectionMetrics,
    statuses: StatusRegistry,
    overdue: Overdue,
    leads: Leads,
    _registered: RegistrationGuard,
}

/// Leadership by name of the runnable.
#[derive(Clone, Default)]
pub(super) struct Leads(Arc<watch::Sender<BTreeMap<String, Leadership>>>);

impl Leads {
    /// Returns true if this replica leads for the runnable; `None` if the runnable does not run.
    pub(super) fn is_leading(&self, name: &str) -> Option<bool> {
        self.0.borrow().get(name).map(Leadership::is_leading)
    }

    /// Waits until this replica leads for the runnable of this name.
    pub(super) async fn elected(&self, name: &str) {
        elected(self.0.subscribe(), |leads| leads.get(name).cloned()).await;
    }
}

/// Removes a runnable from the map, on drop.
struct Listed<'a> {
    name: &'a str,
    leads: &'a Leads,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.leads.0.send_modify(|leads| _ = leads.remove(self.name));
    }
}

/// One run of the runnable.
struct OwnLeaseRun<'a> {
    own: &'a OwnLease,
    cx: RunContext,
    keeper: Arc<LeadershipKeeper>,
    warm: watch::Sender<bool>,
    election_run: LeaderElectionRun,
}

impl OwnLease {
    pub(super) fn new(
        inner: BoxRunnable,
        settings: &Settings,
        statuses: &StatusRegistry,
        overdue: &Overdue,
        registry: &MetricsRegistry,
        leads: &Leads,
    ) -> Self {
        let settings = settings.of_runnable(inner.name());
        let metrics = ElectionMetrics::default();
        Self {
            _registered: registry.register(|registry| metrics.register(&settings.lease, registry)),
            inner,
            settings,
            metrics,
            statuses: statuses.clone(),
            overdue: overdue.clone(),
            leads: leads.clone(),
        }
    }

    fn contest(&self, cx: &RunContext) -> Result<(OwnLeaseRun<'_>, Listed<'_>), RunError> {
        let (keeper, leadership) = LeadershipKeeper::new();
        let keeper = Arc::new(keeper);
        let (warm, is_warm) = watch::channel(self.inner.run_policy() != RunPolicy::Warm);
        let context = ElectionContext {
            clock: Arc::clone(cx.clock()),
            seed: cx.random().next_u64(),
            keeper: Arc::clone(&keeper),
            warm: is_warm,
            statuses: self.statuses.clone(),
            overdue: self.overdue.clone(),
        };
        let election_run = LeaderElectionRun::start(&self.settings, &self.metrics, context);
        let name = self.inner.name();
        self.leads
            .0
            .send_modify(|leads| _ = leads.insert(name.to_owned(), leadership.clone()));
        let leads = &self.leads;
        let listed = Listed { name, leads };
        let contest = OwnLeaseRun {
            own: self,
            cx: cx.led_by(leadership),
            keeper,
            warm,
            election_run: election_run.map_err(RunError::Election)?,
        };
        Ok((contest, listed))
    }
}

impl Runnable for OwnLease {
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// Same policy as the inner runnable: without a competitor it starts at once, and in the usual order.
    fn run_policy(&self) -> RunPolicy {
        self.inner.run_policy()
    }

    /// A runnable that waits for its lease syncs its caches once it leads.
    fn caches(&self) -> Vec<CacheRequirement> {
        match self.inner.run_policy() {
            RunPolicy::LeaderElected => Vec::new(),
            _ => self.inner.caches(),
        }
    }

    fn clusters(&self) -> Vec<ClusterName> {
        self.inner.clusters()
    }

    fn forget(&self) {
        self.inner.forget();
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        let (mut contest, _listed) = self.contest(&cx)?;
        let result = match self.inner.run_policy() {
            RunPolicy::Warm => contest.run_warm().await,
            _ => contest.run_while_leading().await,
        };
        contest.finish().await;
        result
    }
}

impl OwnLeaseRun<'_> {
    /// Runs the inner runnable all the time. It waits for a term itself before it acts.
    async fn run_warm(&mut self) -> Result<(), BoxError> {
        let name = self.own.inner.name();
        let warm = &self.warm;
        let warming = async {
            self.own
                .statuses
                .when_settled(|settled| settled.contains(name))
                .await;
            warm.send_replace(true);
            std::future::pending::<()>().await;
        };
        let (_handle, child) = self.cx.child();
        let running = async {
            let result = across_terms(name, &child, || self.own.inner.run(child.clone())).await;
            if result.is_ok() {
                hold_after(&child).await;
            }
            result
        };
        tokio::select! {
            biased;
            result = running => result,
            error = lost(&mut self.election_run, self.own) => Err(error.into()),
            () = warming => Ok(()),
        }
    }

    /// Runs the inner runnable whenever it leads, until it ends by itself or is stopped.
    async fn run_while_leading(&mut self) -> Result<(), BoxError> {
        loop {
            self.cx.set_status(RunnableStatus::Dormant {
                reason: format!("the lease `{}` is not held", self.own.settings.lease),
            });
            let term = tokio::select! {
                biased;
                _ = self.cx.stop().requested() => return Ok(()),
                error = lost(&mut self.election_run, self.own) => return Err(error.into()),
                term = self.cx.leadership().term() => term,
            };
            if let Some(result) = self.lead(term).await {
                return result;
            }
        }
    }

    /// Runs the inner runnable until the term ends, which returns `None`. It has no time after the term, because its writes
    /// are fenced. If it fails because of that, this waits for the end of the term.
    async fn lead(&mut self, term: Term) -> Option<Result<(), BoxError>> {
        let (handle, child) = self.cx.child();
        let deadline = child.clock().now() + child.fill_limit();
        let (name, stop) = (self.own.inner.name(), self.cx.stop());
        let running = async {
            let result = run_synced(&self.own.inner, child.clone(), deadline).await;
            match result {
                Err(error) if !term.can_write() => {
                    tracing::warn!(name, error = %error_chain(&*error), "failed after it stopped leading");
                    stop.requested().await;
                    Ok(())
                }
                Ok(()) => {
                    hold_after(&child).await;
                    Ok(())
                }
                error => error,
            }
        };
        let result = tokio::select! {
            biased;
            () = term.ended() => None,
            error = lost(&mut self.election_run, self.own) => Some(Err(error.into())),
            result = running => Some(result),
        };
        drop(handle);
        result
    }

    /// Releases the lease after the work has ended, if that was in time.
    async fn finish(self) {
        self.election_run.abstain();
        self.keeper.revoke();
        let deadline = self.cx.stop().deadline().unwrap_or(MonotonicTime::ORIGIN);
        let vacated = self.cx.clock().timeout_at(deadline, self.keeper.vacated());
        let is_vacated = vacated.await.is_some();
        // Events cannot be written once the lease is released.
        let (clusters, lease) = (self.cx.clusters().all(), self.own.settings.cluster());
        last_events::write_before_release(&clusters, lease, self.cx.clock(), deadline).await;
        self.election_run
            .resign(is_vacated && self.own.settings.release)
            .await;
    }
}

/// Keeps the lease of completed work until the run stops. If it were released, each replica in turn would do that work
/// again. A completed runnable is ready, also if it never reported that.
async fn hold_after(cx: &RunContext) {
    if !cx.stop().is_requested() {
        cx.ready();
        cx.stop().requested().await;
    }
}

/// Waits until the election ends by itself.
async fn lost(election_run: &mut LeaderElectionRun, own: &OwnLease) -> RunError {
    RunError::of_loss(election_run.lost().await, &own.settings.lease)
}
