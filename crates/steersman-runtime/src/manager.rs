// SPDX-License-Identifier: Apache-2.0
//! Runs everything that a controller process has, in order, and ends it in order.
//!
//! # Guarantees
//! 1. Start: HTTP endpoints, what needs [no caches](RunPolicy::NoCaches) such as webhooks, caches of all clusters (together),
//!    what needs no leadership, what warms up, then what needs leadership. Stop: what needs leadership or warms up, what
//!    needs none, caches, what needs no caches, HTTP, under one deadline; each is told when those before it have ended.
//! 2. Nothing else runs before each kind that was declared before the run is in sync, or known to be absent, forbidden or
//!    unreachable, or the limit of the barrier has passed. What is added later, waits for a condition or needs leadership
//!    waits for its own caches in the same way when its time comes, and nobody else does.
//! 3. What fails ends the run, with its name and error; so does an HTTP endpoint, without which nobody sees how the process
//!    is. What fails after that is logged, as a warning unless it only says that it was stopped: that its client is closed
//!    or held back, or its task cancelled.
//! 4. Runnables and clusters can be added before and while it runs. Once it is stopping they are refused.
//! 5. The run ends when all that ran has ended, or the grace period is over; then the error names who is late.
//! 6. A run can follow another, also one that was cancelled: what that has left behind is gone before the same runs again.
//!    Two at the same time are refused. A process hears signals once, so that [`Manager::run`] is for its last run; those
//!    before it are [`Manager::run_until`].
//! 7. What needs leadership runs while this replica leads: it is stopped when that ends, and run again when it begins
//!    again. What warms up runs all the time, and acts while it leads; see [`Election`](crate::Election).
//! 8. A cluster that is removed gets no new work; what is in flight may end within the grace period; then its client
//!    refuses. Runnables that cannot do without it are stopped and let go; nobody else waits for that.
//! 9. A runnable whose name is disabled is taken in and never runs.
//! 10. Events that were recorded before the end are written: those of leaders before the lease is given up, those of a
//!     cluster that is removed before its client refuses, all others at last. That takes 5 s and half of the time that is
//!     left at most; what is not written by then is lost. Before a lease is given up, clusters other than that of the lease
//!     get 1 s.

mod barrier;
mod builder;
mod clusters;
mod collect;
mod last_events;
mod leading;
mod own_lease;
mod run;
mod stuck;
mod warmth;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    AddError, BoxError, BoxRunnable, Leadership, Options, RunPolicy, Runnable, RuntimeContext,
    StatusRegistry, StopHandle,
};
use steersman_cluster::ClusterName;
use steersman_core::MonotonicTime;
use steersman_endpoints::{CheckError, Checks, DuplicateCheck, MetricsRegistry, RegistrationGuard};
use tokio::sync::watch;

pub use self::{
    builder::{Addresses, BuildError, ManagerBuilder},
    clusters::RemoveError,
};

use self::own_lease::{Leads, OwnLease};
use crate::{
    ElectionError, Signals,
    election::{Overdue, Settings},
    supervise::Leaving,
};

/// Runs controllers and other runnables. Clones are one manager.
#[derive(Clone)]
pub struct Manager(Arc<Inner>);

pub(crate) struct Inner {
    surroundings: Arc<RuntimeContext>,
    default_cluster: Option<ClusterName>,
    controllers: Options,
    disabled: BTreeSet<String>,
    grace: Duration,
    barrier: Duration,
    awaited: barrier::Awaited,
    healthz: Checks,
    readyz: Checks,
    metrics: MetricsRegistry,
    endpoints: builder::Endpoints,
    /// Whoever runs leads, unless there is an election. Nothing where each has a lease of its own.
    leadership: watch::Sender<Option<Leadership>>,
    election: Option<builder::Contested>,
    /// How those are elected that have a lease each.
    own_leases: Option<Settings>,
    leads: Leads,
    overdue: Overdue,
    warmth: Arc<warmth::Warmth>,
    registry: Mutex<Registry>,
    /// What earlier runs have cancelled.
    leaving: Leaving,
    changed: watch::Sender<()>,
    _registered: Vec<RegistrationGuard>,
}

#[derive(Default)]
struct Registry {
    runnables: BTreeMap<String, BoxRunnable>,
    /// Those that may not run, to tell a name that is taken from one that nobody has, and the clusters without which they
    /// cannot.
    disabled: BTreeMap<String, Vec<ClusterName>>,
    /// Those that may be running and have to end by then.
    dismissed: Vec<(String, MonotonicTime)>,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Running,
    Stopping,
}

/// A run failed, or was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It runs already.
    #[error("the manager runs already")]
    AlreadyRunning,
    /// A runnable ended with an error.
    #[error("`{name}` failed")]
    Runnable {
        /// The runnable.
        name: String,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// Not all ended in time.
    #[error("did not end within the grace period of {grace:?}: {}", names.join(", "))]
    Unfinished {
        /// How long they had.
        grace: Duration,
        /// Who did not end.
        names: Vec<String>,
        /// Why the run ended, if that was an error.
        #[source]
        source: Option<Box<Self>>,
    },
    /// Another replica may have the lease, and the policy is to end then.
    #[error("leadership was lost: lease `{lease}`: {reason}")]
    LeadershipLost {
        /// The lease.
        lease: String,
        /// Why it was lost.
        reason: String,
    },
    /// The election cannot be taken part in.
    #[error("the election failed")]
    Election(#[source] ElectionError),
    /// An HTTP endpoint cannot be had, or ended before the run did.
    #[error("an HTTP endpoint failed")]
    Endpoint(#[source] BoxError),
    /// Signals cannot be listened to.
    #[error("signals cannot be listened to")]
    Signals(#[source] crate::InstallError),
}

impl Manager {
    /// A manager with more to say about it.
    pub fn builder() -> ManagerBuilder {
        ManagerBuilder::new()
    }

    /// Takes a runnable in, which starts with the others, or at once if the manager runs. A cluster is one, too: see
    /// [`add_cluster`](Self::add_cluster).
    ///
    /// # Errors
    /// When there is one of this name, or the manager is stopping.
    pub fn add(&self, runnable: impl Runnable) -> Result<(), AddError> {
        self.add_boxed(BoxRunnable::new(runnable))
    }

    /// Adds a check to `/healthz`. A liveness probe that fails restarts the process, so check only what a restart helps
    /// against.
    ///
    /// # Errors
    /// When there is one of this name.
    pub fn healthz_check<F, Fut, E>(&self, name: &str, check: F) -> Result<RegistrationGuard, DuplicateCheck>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<CheckError>,
    {
        self.0.healthz.add(name, check)
    }

    /// Adds a check to `/readyz`.
    ///
    /// # Errors
    /// When there is one of this name.
    pub fn readyz_check<F, Fut, E>(&self, name: &str, check: F) -> Result<RegistrationGuard, DuplicateCheck>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<CheckError>,
    {
        self.0.readyz.add(name, check)
    }

    /// What is measured.
    #[must_use]
    pub fn metrics(&self) -> &MetricsRegistry {
        &self.0.metrics
    }

    /// How all that runs stands.
    #[must_use]
    pub fn statuses(&self) -> &StatusRegistry {
        self.0.surroundings.statuses()
    }

    /// Where `/healthz` and `/readyz` are answered, and where `/metrics` is.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.0.endpoints.addresses()
    }

    /// Runs until SIGTERM or SIGINT comes, or something fails. A second signal exits at once; the first does not, also if
    /// the run is ending already because something failed.
    ///
    /// [Signals](crate::Signals) are installed once in a process. Whoever wants to run again after this has ended installs
    /// them and hands their end to [`run_until`](Self::run_until) each time.
    ///
    /// # Errors
    /// When something fails, or does not end in time; and when signals were installed in this process before.
    ///
    /// # Cancel safety
    /// If it is dropped, everything is cancelled.
    pub async fn run(&self) -> Result<(), RunError> {
        let mut signals = Signals::install().map_err(RunError::Signals)?;
        self.run_until(async move {
            let signal = signals.stop().await;
            tracing::info!(signal = signal.name(), "stopping");
            // Kept, so that a second signal is heard.
            std::mem::forget(signals);
        })
        .await
    }

    /// Runs until `stop` ends, or something fails.
    ///
    /// # Errors
    /// When something fails, or does not end in time.
    ///
    /// # Cancel safety
    /// If it is dropped, everything is cancelled.
    pub async fn run_until(&self, stop: impl Future<Output = ()>) -> Result<(), RunError> {
        {
            let mut registry = self.0.lock();
            if !matches!(registry.state, State::Idle) {
                return Err(RunError::AlreadyRunning);
            }
            registry.state = State::Running;
        }
        // What was let go while nothing ran does not concern this run.
        self.0.take_dismissed();
        let _over = Over(&self.0);
        for cluster in self.0.surroundings.clusters().all() {
            let server = cluster
                .config()
                .map(|config| tracing::field::display(&config.cluster_url));
            tracing::info!(cluster = %cluster.name(), server, "running with this cluster");
        }
        let (handle, stopped) = StopHandle::new();
        run::run(&self.0, (handle, stopped), stop).await
    }
}

/// Lets the manager run again, when it drops.
struct Over<'m>(&'m Inner);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock().state = State::Idle;
        self.0.leadership.send_replace(None);
        self.0.warmth.over();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runnables(&self) -> Vec<BoxRunnable> {
        self.lock().runnables.values().cloned().collect()
    }

    /// Gives a runnable a lease of its own, if it is to have one.
    fn with_lease(&self, runnable: BoxRunnable) -> BoxRunnable {
        match &self.own_leases {
            Some(settings) if matches!(runnable.run_policy(), RunPolicy::Leadership | RunPolicy::WarmUp) => {
                let standings = self.surroundings.statuses();
                let own = OwnLease::new(
                    runnable,
                    settings,
                    (standings, &self.overdue),
                    &self.metrics,
                    &self.leads,
                );
                BoxRunnable::new(own)
            }
            _ => runnable,
        }
    }

    fn take_dismissed(&self) -> Vec<(String, MonotonicTime)> {
        std::mem::take(&mut self.lock().dismissed)
    }

    /// A name that nobody has was meant for somebody.
    fn warn_of_unknown_names(&self) {
        let registry = self.lock();
        let is_unknown = |name: &&String| !registry.disabled.contains_key(*name);
        let unknown: Vec<&String> = self.disabled.iter().filter(is_unknown).collect();
        if !unknown.is_empty() {
            tracing::warn!(
                ?unknown,
                "nothing is named so, and so nothing is disabled by that"
            );
        }
    }
}

impl Manager {
    /// Default options for controllers.
    pub(crate) fn controller_defaults(&self) -> Options {
        self.0.controllers.clone()
    }

    pub(crate) fn add_boxed(&self, runnable: BoxRunnable) -> Result<(), AddError> {
        if let Some(cluster) = runnable.as_cluster() {
            return self.add_cluster(cluster.clone());
        }
        let name = runnable.name().to_owned();
        let mut registry = self.0.lock();
        if matches!(registry.state, State::Stopping) {
            return Err(AddError::Stopping { name });
        }
        if registry.runnables.contains_key(&name) || registry.disabled.contains_key(&name) {
            return Err(AddError::DuplicateName { name });
        }
        let fleet = self.0.surroundings.clusters();
        if let Some(cluster) = runnable
            .clusters()
            .into_iter()
            .find(|name| fleet.get(name).is_none())
        {
            return Err(AddError::UnknownCluster { name, cluster });
        }
        if self.0.disabled.contains(&name) {
            tracing::info!(name, "disabled: it does not run");
            registry.disabled.insert(name, runnable.clusters());
            return Ok(());
        }
        registry.runnables.insert(name, self.0.with_lease(runnable));
        drop(registry);
        self.0.changed.send_replace(());
        Ok(())
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("clusters", self.0.surroundings.clusters())
            .field("runnables", &self.0.lock().runnables.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
