// SPDX-License-Identifier: Apache-2.0
//! What something that runs is handed.

use std::{fmt, sync::Arc, time::Duration};

use steersman_cluster::{Client, Cluster, ClusterName, Fence};
use steersman_core::{Clock, Random, Spawner, TokioClock};

use crate::{
    ClusterSet, DuplicateCluster, Leadership, Metrics, RunnableStatus, StatusRegistry, Stop, StopHandle,
    status::StatusHandle,
};

/// Time, chance, tasks, clusters, leadership and the end, as they are for one run. Cloning it copies pointers.
#[derive(Clone)]
pub struct RunContext {
    surroundings: Arc<RuntimeContext>,
    leadership: Leadership,
    stop: Stop,
    place: Arc<StatusHandle>,
}

/// What all runs of one host have in common.
#[derive(Clone, Debug)]
pub struct RuntimeContext {
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    spawner: Spawner,
    clusters: ClusterSet,
    metrics: Metrics,
    standings: StatusRegistry,
    fill_limit: Duration,
    hub: Hub,
}

/// Which clusters hold readiness for as long as they are in trouble: the default cluster of a manager, and all where there
/// is no manager. Others, the spokes, hold it until they are in sync for the first time, or the time for that is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hub(Option<Option<ClusterName>>);

impl Hub {
    /// Only this cluster holds readiness, or none.
    pub(crate) fn of(default_cluster: Option<ClusterName>) -> Self {
        Self(Some(default_cluster))
    }

    pub(crate) fn is_spoke(&self, cluster: &ClusterName) -> bool {
        self.0.as_ref().is_some_and(|hub| hub.as_ref() != Some(cluster))
    }
}

/// How long caches are waited for, unless something else is said.
const FILL_LIMIT: Duration = Duration::from_secs(120);

impl RuntimeContext {
    /// Without clusters, metrics or anybody who runs yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, random: Arc<Random>, spawner: Spawner) -> Self {
        Self {
            standings: StatusRegistry::timed(Arc::clone(&clock), spawner.clone()),
            clock,
            random,
            spawner,
            clusters: ClusterSet::new(),
            metrics: Metrics::new(),
            fill_limit: FILL_LIMIT,
            hub: Hub::default(),
        }
    }

    /// The longest time for which caches are waited for before something begins that reads from them. Default: 2 min.
    #[must_use]
    pub fn with_fill_limit(self, limit: Duration) -> Self {
        Self {
            fill_limit: limit,
            ..self
        }
    }

    /// Sets the default cluster, if there is one. Other clusters do not hold readiness once they were in sync, or had their
    /// time for that. Default: every cluster holds it.
    #[must_use]
    pub fn with_default_cluster(self, cluster: Option<ClusterName>) -> Self {
        Self {
            hub: Hub::of(cluster),
            ..self
        }
    }

    /// The clusters.
    #[must_use]
    pub fn clusters(&self) -> &ClusterSet {
        &self.clusters
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// What starts tasks.
    #[must_use]
    pub fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How those that run stand.
    #[must_use]
    pub fn statuses(&self) -> &StatusRegistry {
        &self.standings
    }

    /// What one run of the runnable `name` is handed.
    #[must_use]
    pub fn context(self: &Arc<Self>, name: &str, leadership: Leadership, stop: Stop) -> RunContext {
        RunContext {
            place: Arc::new(self.standings.place(name)),
            surroundings: Arc::clone(self),
            leadership,
            stop,
        }
    }
}

impl RunContext {
    /// A context for a run outside of a manager: in real time, on the caller's runtime, with these clusters, and leading.
    /// The run ends when the handle stops it or is dropped.
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
        let runtime = RuntimeContext::new(clock, Arc::new(Random::by_chance()), Spawner::current());
        for cluster in clusters {
            runtime.clusters.insert(cluster)?;
        }
        let (handle, stop) = StopHandle::new();
        Ok((
            handle,
            Arc::new(runtime).context(name, Leadership::always(), stop),
        ))
    }

    /// Whether and by when to end.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Who may act.
    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// The same client, whose writes pass the fence of the present term: none starts once the lease may be another's. Where
    /// there is no term, all are held back. A client for a later term is made anew.
    #[must_use]
    pub fn fenced(&self, client: &Client) -> Client {
        let term = self.leadership.try_term();
        // A fence whose keeper is gone is closed.
        let fence = term.map_or_else(
            || Fence::new(Arc::clone(self.clock())).1,
            |term| term.fence().clone(),
        );
        client.fenced(fence)
    }

    /// The cluster of this name, if the manager has it.
    #[must_use]
    pub fn cluster(&self, name: &ClusterName) -> Option<Cluster> {
        self.clusters().get(name)
    }

    pub(crate) fn clusters(&self) -> &ClusterSet {
        &self.surroundings.clusters
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.surroundings.clock
    }

    /// Chance.
    #[must_use]
    pub fn random(&self) -> &Arc<Random> {
        &self.surroundings.random
    }

    /// What starts tasks.
    #[must_use]
    pub fn spawner(&self) -> &Spawner {
        &self.surroundings.spawner
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.surroundings.metrics
    }

    /// Says that it has what it needs.
    pub fn ready(&self) {
        self.set_status(RunnableStatus::Ready);
    }

    /// Names the cluster that it works on, for the log.
    pub(crate) fn in_cluster(&self, name: &str) {
        self.place.set_cluster(name);
    }

    /// Says how it stands.
    pub fn set_status(&self, status: RunnableStatus) {
        self.place.set(status);
    }

    /// Says that it had its time to become ready, and that others need not wait for it any longer: those that decide
    /// whether this replica is warm. Who was [ready](Self::ready) or dormant once has no need to.
    pub fn settle(&self) {
        self.place.settle();
    }

    /// Says that it begins, and why.
    pub(crate) fn begins_because(&self, reason: &str) {
        self.place.begins_because(reason);
    }

    /// Waits until it does not say any more that it waits for something.
    pub(crate) async fn begun(&self) {
        self.place.begun().await;
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.surroundings.hub
    }

    /// The longest time for which caches are waited for.
    #[must_use]
    pub fn fill_limit(&self) -> Duration {
        self.surroundings.fill_limit
    }

    /// The same, where somebody else says who may act.
    #[must_use]
    pub fn led_by(&self, leadership: Leadership) -> Self {
        Self {
            leadership,
            ..self.clone()
        }
    }

    /// The same for something that runs inside of it and may end sooner. It has the same place on the board.
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
