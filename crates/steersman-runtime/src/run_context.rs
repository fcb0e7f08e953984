// SPDX-License-Identifier: Apache-2.0
//! The context of a run.

use std::{fmt, sync::Arc, time::Duration};

use steersman_cluster::{Client, Cluster, ClusterName, Fence};
use steersman_core::{Clock, Random, Spawner, TokioClock};

use crate::{
    ClusterSet, DuplicateCluster, Leadership, Metrics, RunnableStatus, StatusRegistry, Stop, StopHandle,
    status::StatusHandle,
};

/// Context of one run: clock, randomness, tasks, clusters, leadership and stop request. Cheap to clone.
#[derive(Clone)]
pub struct RunContext {
    runtime: Arc<RuntimeContext>,
    leadership: Leadership,
    stop: Stop,
    status: Arc<StatusHandle>,
}

/// Context that all runs of one manager share.
#[derive(Clone, Debug)]
pub struct RuntimeContext {
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    spawner: Spawner,
    clusters: ClusterSet,
    metrics: Metrics,
    statuses: StatusRegistry,
    fill_limit: Duration,
    cluster_roles: ClusterRoles,
}

/// The clusters that make the process unready for as long as they fail: the default cluster of a manager, or all clusters
/// without a manager. Any other cluster does so only until it is in sync for the first time, or until the sync timeout.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterRoles(Option<Option<ClusterName>>);

impl ClusterRoles {
    /// Only this cluster, or none, decides readiness.
    pub(crate) fn of(default_cluster: Option<ClusterName>) -> Self {
        Self(Some(default_cluster))
    }

    pub(crate) fn is_other_cluster(&self, cluster: &ClusterName) -> bool {
        self.0
            .as_ref()
            .is_some_and(|cluster_roles| cluster_roles.as_ref() != Some(cluster))
    }
}

/// Default limit of the wait for caches.
const FILL_LIMIT: Duration = Duration::from_secs(120);

impl RuntimeContext {
    /// Creates a context without clusters, metrics or runnables.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, random: Arc<Random>, spawner: Spawner) -> Self {
        Self {
            statuses: StatusRegistry::timed(Arc::clone(&clock), spawner.clone()),
            clock,
            random,
            spawner,
            clusters: ClusterSet::new(),
            metrics: Metrics::new(),
            fill_limit: FILL_LIMIT,
            cluster_roles: ClusterRoles::default(),
        }
    }

    /// Limit of the wait for caches before a runnable that reads them starts. Default: 2 min.
    #[must_use]
    pub fn with_fill_limit(self, limit: Duration) -> Self {
        Self {
            fill_limit: limit,
            ..self
        }
    }

    /// Sets the default cluster, if there is one. Other clusters do not affect readiness once they were in sync, or the
    /// sync timeout has passed. Default: every cluster affects readiness.
    #[must_use]
    pub fn with_default_cluster(self, cluster: Option<ClusterName>) -> Self {
        Self {
            cluster_roles: ClusterRoles::of(cluster),
            ..self
        }
    }

    /// Clusters of the manager.
    #[must_use]
    pub fn clusters(&self) -> &ClusterSet {
        &self.clusters
    }

    /// Clock of all runs.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Spawner of tasks.
    #[must_use]
    pub fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// Metrics registry.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Statuses of the runnables.
    #[must_use]
    pub fn statuses(&self) -> &StatusRegistry {
        &self.statuses
    }

    /// Makes the context for one run of the runnable `name`.
    #[must_use]
    pub fn context(self: &Arc<Self>, name: &str, leadership: Leadership, stop: Stop) -> RunContext {
        RunContext {
            status: Arc::new(self.statuses.handle(name)),
            runtime: Arc::clone(self),
            leadership,
            stop,
        }
    }
}

impl RunContext {
    /// Makes a context for a run without a manager: in real time, on the caller's runtime, with these clusters, and always
    /// leader. The run ends when the handle stops it or is dropped.
    ///
    /// ```no_run
    /// # use steersman_cluster::Cluster;
    /// # use steersman_runtime::{BoxError, Controller, RunContext};
    /// # async fn example(web: Controller, cluster: Cluster) -> Result<(), BoxError> {
    /// let (_handle, cx) = RunContext::standalone("web", [cluster])?;
    /// web.spawn(&cx).ended().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When two clusters have the same name.
    ///
    /// # Panics
    /// When there is no tokio runtime.
    pub fn standalone(
        name: &str,
        clusters: impl IntoIterator<Item = Cluster>,
    ) -> Result<(StopHandle, Self), DuplicateCluster> {
        let clock = Arc::new(TokioClock::new());
        let runtime = RuntimeContext::new(clock, Arc::new(Random::from_entropy()), Spawner::current());
        for cluster in clusters {
            runtime.clusters.insert(cluster)?;
        }
        let (handle, stop) = StopHandle::new();
        Ok((
            handle,
            Arc::new(runtime).context(name, Leadership::always(), stop),
        ))
    }

    /// Stop request, with its deadline.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Leadership of this replica.
    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Returns the client with the fence of the current term: no write starts once another replica can hold the lease.
    /// Without a term, the fence rejects all writes. Make a new client for a later term.
    #[must_use]
    pub fn fenced(&self, client: &Client) -> Client {
        let term = self.leadership.try_term();
        // A fence without its keeper is closed.
        let fence = term.map_or_else(
            || Fence::new(Arc::clone(self.clock())).1,
            |term| term.fence().clone(),
        );
        client.fenced(fence)
    }

    /// Returns the cluster of this name, if the manager has it.
    #[must_use]
    pub fn cluster(&self, name: &ClusterName) -> Option<Cluster> {
        self.clusters().get(name)
    }

    pub(crate) fn clusters(&self) -> &ClusterSet {
        &self.runtime.clusters
    }

    /// Clock of the run.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.runtime.clock
    }

    /// Source of randomness.
    #[must_use]
    pub fn random(&self) -> &Arc<Random> {
        &self.runtime.random
    }

    /// Spawner of tasks.
    #[must_use]
    pub fn spawner(&self) -> &Spawner {
        &self.runtime.spawner
    }

    /// Metrics registry.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.runtime.metrics
    }

    /// Reports that the runnable is ready.
    pub fn ready(&self) {
        self.set_status(RunnableStatus::Ready);
    }

    /// Sets the cluster that the runnable works on, for the log.
    pub(crate) fn in_cluster(&self, name: &str) {
        self.status.set_cluster(name);
    }

    /// Reports the status of the runnable.
    pub fn set_status(&self, status: RunnableStatus) {
        self.status.set(status);
    }

    /// Reports that the start-up timeout passed, so the warm-standby check stops waiting. Not needed after
    /// [ready](Self::ready) or dormant.
    pub fn settle(&self) {
        self.status.settle();
    }

    /// Reports that the runnable starts, with the reason.
    pub(crate) fn begins_because(&self, reason: &str) {
        self.status.begins_because(reason);
    }

    /// Waits until the runnable no longer reports that it waits.
    pub(crate) async fn begun(&self) {
        self.status.begun().await;
    }

    pub(crate) fn cluster_roles(&self) -> &ClusterRoles {
        &self.runtime.cluster_roles
    }

    /// Cache sync timeout.
    #[must_use]
    pub fn fill_limit(&self) -> Duration {
        self.runtime.fill_limit
    }

    /// Returns a context with another leadership.
    #[must_use]
    pub fn led_by(&self, leadership: Leadership) -> Self {
        Self {
            leadership,
            ..self.clone()
        }
    }

    /// Returns a context for a nested run that can end earlier. It shares the status.
    #[must_use]
    pub fn child(&self) -> (StopHandle, Self) {
        let (handle, stop) = self.stop.child();
        let child = Self { stop, ..self.clone() };
        (handle, child)
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("leadership", &self.leadership)
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}
