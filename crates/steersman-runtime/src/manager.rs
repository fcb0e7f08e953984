// SPDX-License-Identifier: Apache-2.0
//! The manager: starts everything in a controller process in order, and stops it in order.
//!
//! # Guarantees
//! 1. Start order: HTTP endpoints, runnables that need [no caches](RunPolicy::BeforeCaches) such as webhooks, caches of all
//!    clusters (together), runnables that need no leadership, runnables that warm up, then runnables that need leadership.
//!    Stop order: runnables that need leadership or warm up, runnables that need none, caches, runnables that need no
//!    caches, HTTP, under one deadline. Each phase gets its stop request when the phases before it have ended.
//! 2. Nothing else runs before each kind that was declared before the run is in sync, or known to be absent, forbidden or
//!    unreachable, or the cache sync timeout has passed. A runnable that is added later, waits for a condition or needs
//!    leadership waits in the same way for its own caches when it is due to start, and delays nothing else.
//! 3. A runnable that fails ends the run, with its name and error. So does an HTTP endpoint that fails, because the process
//!    cannot be observed without it. Later failures are logged as a warning, unless the error only states that the runnable
//!    was stopped: its client is closed or fenced, or its task is cancelled.
//! 4. Runnables and clusters can be added before and during a run. Adding is an error once the manager is shutting down.
//! 5. The run ends when everything has ended or the shutdown timeout has passed; then the error names the runnables that
//!    did not end.
//! 6. A run can follow another, also a cancelled one: a runnable starts again only after its task from the earlier run has
//!    ended. Two runs at the same time are an error. A process can install signal handlers once, so [`Manager::run`] is for
//!    the last run; use [`Manager::run_until`] for the runs before it.
//! 7. A runnable that needs leadership runs while this replica leads: it is stopped when leadership ends, and run again
//!    when leadership begins again. A runnable that warms up runs all the time, and acts while it leads; see
//!    [`Election`](crate::Election).
//! 8. A removed cluster gets no new work. Work in flight can end within the shutdown timeout; then its client rejects
//!    requests. Runnables that require the cluster are stopped and removed; nothing else waits for that.
//! 9. A runnable whose name is disabled can be added, and never runs.
//! 10. Events that were recorded before the end are written: events of leader work before the lease is released, events of
//!     a removed cluster before its client rejects requests, all others last. This takes at most 5 s and at most half of
//!     the remaining time; events that are not written by then are lost. Before a lease is released, clusters other than
//!     that of the lease get 1 s.

mod barrier;
mod builder;
mod clusters;
mod collect;
mod endpoints;
mod last_events;
mod leading;
mod own_lease;
mod readyz;
mod run;
mod stuck;
mod warmup;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use crate::{
    AddError, BoxError, BoxRunnable, Leadership, Options, RunPolicy, Runnable, RuntimeContext,
    StatusRegistry, StopHandle,
};
use steersman_cluster::ClusterName;
use steersman_core::{MonotonicTime, Mutex};
use steersman_endpoints::{CheckError, Checks, DuplicateCheck, MetricsRegistry, RegistrationGuard};
use tokio::sync::watch;

pub use self::{
    builder::{BuildError, ManagerBuilder},
    clusters::RemoveError,
    endpoints::Addresses,
};

use self::own_lease::{Leads, OwnLease};
use crate::{
    ElectionError, Signals,
    election::{Overdue, Settings},
    supervise::CancelledTasks,
};

/// Runs controllers and other runnables. Clones refer to the same manager.
#[derive(Clone)]
pub struct Manager(Arc<Inner>);

pub(crate) struct Inner {
    runtime: Arc<RuntimeContext>,
    default_cluster: Option<ClusterName>,
    field_manager: Option<Arc<str>>,
    controllers: Options,
    disabled: BTreeSet<String>,
    shutdown_timeout: Duration,
    barrier: Duration,
    pending_caches: barrier::PendingCaches,
    healthz: Checks,
    readyz: Checks,
    metrics: MetricsRegistry,
    endpoints: endpoints::Endpoints,
    /// Always leading without an election. `None` if each runnable has its own lease.
    leadership: watch::Sender<Option<Leadership>>,
    election: Option<builder::Contested>,
    /// Election settings if each runnable has its own lease.
    own_leases: Option<Settings>,
    leads: Leads,
    overdue: Overdue,
    warmup: Arc<warmup::WarmupStatus>,
    registry: Mutex<Registry>,
    /// Tasks that earlier runs have cancelled.
    cancelled: CancelledTasks,
    changed: watch::Sender<()>,
    _registered: Vec<RegistrationGuard>,
}

#[derive(Default)]
struct Registry {
    runnables: BTreeMap<String, BoxRunnable>,
    /// Disabled runnables, to detect duplicate and unknown names, with the clusters that they require.
    disabled: BTreeMap<String, Vec<ClusterName>>,
    /// Removed runnables that can still be running, and the deadline for their end.
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

/// Error of a run of the manager.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The manager is already running.
    #[error("the manager is already running")]
    AlreadyRunning,
    /// A runnable ended with an error.
    #[error("`{name}` failed")]
    Runnable {
        /// The runnable.
        name: String,
        /// The error.
        #[source]
        source: BoxError,
    },
    /// Some runnables did not end within the shutdown timeout.
    #[error("did not end within the shutdown timeout of {shutdown_timeout:?}: {}", names.join(", "))]
    Unfinished {
        /// The shutdown timeout.
        shutdown_timeout: Duration,
        /// Names of the runnables that did not end.
        names: Vec<String>,
        /// The error that ended the run, if there was one.
        #[source]
        source: Option<Box<Self>>,
    },
    /// Another replica can have acquired the lease, and the policy is to exit then.
    #[error("leadership was lost: lease `{lease}`: {reason}")]
    LeadershipLost {
        /// The lease.
        lease: String,
        /// Reason of the loss.
        reason: String,
    },
    /// The leader election failed.
    #[error("the election failed")]
    Election(#[source] ElectionError),
    /// An HTTP endpoint could not be served, or ended before the run.
    #[error("an HTTP endpoint failed")]
    Endpoint(#[source] BoxError),
    /// The signal handlers could not be installed.
    #[error("cannot install signal handlers")]
    Signals(#[source] crate::InstallError),
}

impl Manager {
    /// Starts to build a manager.
    pub fn builder() -> ManagerBuilder {
        ManagerBuilder::new()
    }

    /// Adds a runnable. It starts with the others, or at once if the manager runs. A cluster is a runnable too: see
    /// [`add_cluster`](Self::add_cluster).
    ///
    /// # Errors
    /// When a runnable of this name exists, or the manager is shutting down.
    pub fn add(&self, runnable: impl Runnable) -> Result<(), AddError> {
        self.add_boxed(BoxRunnable::new(runnable))
    }

    /// Adds a check to `/healthz`. A failing liveness probe restarts the process, so check only what a restart can fix.
    ///
    /// # Errors
    /// When a check of this name exists.
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
    /// When a check of this name exists.
    pub fn readyz_check<F, Fut, E>(&self, name: &str, check: F) -> Result<RegistrationGuard, DuplicateCheck>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<CheckError>,
    {
        self.0.readyz.add(name, check)
    }

    /// Metrics registry.
    #[must_use]
    pub fn metrics(&self) -> &MetricsRegistry {
        &self.0.metrics
    }

    /// Statuses of all runnables.
    #[must_use]
    pub fn statuses(&self) -> &StatusRegistry {
        self.0.runtime.statuses()
    }

    /// Addresses of `/healthz` and `/readyz`, and of `/metrics`.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.0.endpoints.addresses()
    }

    /// Runs until SIGTERM or SIGINT, or until a runnable, an HTTP endpoint or the election fails. The first signal starts the
    /// shutdown. A second signal exits at once. After a failure, the first signal during shutdown does not exit.
    ///
    /// [Signals](crate::Signals) can be installed once in a process. To run again after this run, install them yourself and
    /// pass a future that waits for them to [`run_until`](Self::run_until) each time.
    ///
    /// # Errors
    /// When one of them fails, or does not end within the shutdown timeout, or when signal handlers were already installed in
    /// this process.
    ///
    /// # Cancel safety
    /// Dropping the future cancels everything.
    pub async fn run(&self) -> Result<(), RunError> {
        let mut signals = Signals::install().map_err(RunError::Signals)?;
        self.run_until(async move {
            let signal = signals.stop().await;
            tracing::info!(signal = signal.name(), "received signal; shutting down");
            // Leaked on purpose, so that a second signal is handled.
            std::mem::forget(signals);
        })
        .await
    }

    /// Runs until `stop` completes, or a runnable, an HTTP endpoint or the election fails.
    ///
    /// # Errors
    /// When one of them fails, or does not end within the shutdown timeout.
    ///
    /// # Cancel safety
    /// Dropping the future cancels everything.
    pub async fn run_until(&self, stop: impl Future<Output = ()>) -> Result<(), RunError> {
        {
            let mut registry = self.0.lock();
            if !matches!(registry.state, State::Idle) {
                return Err(RunError::AlreadyRunning);
            }
            registry.state = State::Running;
        }
        // Runnables that were removed between runs do not matter for this run.
        self.0.take_dismissed();
        let _over = Over(&self.0);
        for cluster in self.0.runtime.clusters().all() {
            let server = cluster
                .config()
                .map(|config| tracing::field::display(&config.cluster_url));
            tracing::info!(cluster = %cluster.name(), server, "starting manager with cluster");
        }
        let (handle, stopped) = StopHandle::new();
        run::run(&self.0, handle, stopped, stop).await
    }
}

/// Allows the next run of the manager, on drop.
struct Over<'m>(&'m Inner);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock().state = State::Idle;
        self.0.leadership.send_replace(None);
        self.0.warmup.over();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }

    fn runnables(&self) -> Vec<BoxRunnable> {
        self.lock().runnables.values().cloned().collect()
    }

    /// Wraps a runnable with its own lease, if it has to have one.
    fn with_lease(&self, runnable: BoxRunnable) -> BoxRunnable {
        match &self.own_leases {
            Some(settings) if matches!(runnable.run_policy(), RunPolicy::LeaderElected | RunPolicy::Warm) => {
                let statuses = self.runtime.statuses();
                let own = OwnLease::new(
                    runnable,
                    settings,
                    statuses,
                    &self.overdue,
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

    /// Warns of disabled names that no runnable has; they are probably typing errors.
    fn warn_of_unknown_names(&self) {
        let registry = self.lock();
        let is_unknown = |name: &&String| !registry.disabled.contains_key(*name);
        let unknown: Vec<&String> = self.disabled.iter().filter(is_unknown).collect();
        if !unknown.is_empty() {
            tracing::warn!(?unknown, "unknown names in `disable`; ignored");
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
        let cluster_set = self.0.runtime.clusters();
        if let Some(cluster) = runnable
            .clusters()
            .into_iter()
            .find(|name| cluster_set.get(name).is_none())
        {
            return Err(AddError::UnknownCluster { name, cluster });
        }
        if self.0.disabled.contains(&name) {
            tracing::info!(name, "skipping disabled runnable");
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
            .field("clusters", self.0.runtime.clusters())
            .field("runnables", &self.0.lock().runnables.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
