// SPDX-License-Identifier: Apache-2.0
//! Builder of managers.

use std::{collections::BTreeSet, fmt, net::SocketAddr, sync::Arc, time::Duration};

use steersman_cluster::{Cluster, ClusterName, ConnectError, InferError};
use steersman_core::{Clock, Mutex, Random, Spawner, TokioClock};
use steersman_endpoints::{
    BindError, Checks, MetricsRegistry, MetricsServer, MetricsServerError, RegistrationGuard, RouteError,
    Routes, Tls,
};
use tokio::sync::watch;

use super::{
    Inner, Manager, collect,
    endpoints::{Endpoints, ServerOptions},
    own_lease::Leads,
    readyz::Probes,
};
use crate::{
    DuplicateCluster, Election, ElectionError, Options, RuntimeContext,
    election::{ElectionMetrics, Settings},
};

/// Builder of a [`Manager`]; from [`Manager::builder`].
#[must_use = "a manager is made by `build`"]
pub struct ManagerBuilder {
    clusters: Vec<Cluster>,
    without_cluster: bool,
    field_manager: Option<String>,
    controllers: Options,
    disabled: BTreeSet<String>,
    shutdown_timeout: Duration,
    barrier: Duration,
    election: Option<Election>,
    ready_before_sync: bool,
    stuck_after: Option<Duration>,
    health: Option<SocketAddr>,
    health_tls: Option<Tls>,
    liveness_path: String,
    readiness_path: String,
    metrics: Option<ServerOptions>,
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    spawner: Option<Spawner>,
}

/// Error of [`ManagerBuilder::build`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The connection to the default cluster failed.
    #[error("there is no default cluster: {}", advice(.0))]
    Connect(#[source] ConnectError),
    /// Two clusters have the same name.
    #[error(transparent)]
    Name(#[from] DuplicateCluster),
    /// The address of the probes could not be bound.
    #[error("cannot serve `/healthz` and `/readyz`")]
    Health(#[source] BindError),
    /// The address of the metrics could not be bound.
    #[error("cannot serve `/metrics`")]
    Metrics(#[source] MetricsServerError),
    /// The settings of the leader election are invalid.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// Two handlers have the same path.
    #[error("cannot serve the probes")]
    Route(#[from] RouteError),
}

/// Advice for a failed connection to the default cluster. The source of the error has the cause.
fn advice(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::Infer(InferError::Explicit(_)) => {
            "correct the file that KUBECONFIG names, or name another"
        }
        ConnectError::Infer(_) => "add one with `.cluster()`, or call `.without_cluster()`",
        ConnectError::NoRuntime { .. } => {
            "build the manager in a tokio runtime, as `#[tokio::main]` makes one"
        }
        _ => "the inferred configuration does not work; correct it, or add a cluster with `.cluster()`",
    }
}

impl ManagerBuilder {
    pub(super) fn new() -> Self {
        Self {
            clusters: Vec::new(),
            without_cluster: false,
            field_manager: None,
            controllers: Options::new(),
            disabled: BTreeSet::new(),
            shutdown_timeout: Duration::from_secs(30),
            barrier: Duration::from_secs(120),
            election: None,
            ready_before_sync: false,
            stuck_after: None,
            health: None,
            health_tls: None,
            liveness_path: "/healthz".to_owned(),
            readiness_path: "/readyz".to_owned(),
            metrics: None,
            clock: None,
            seed: None,
            spawner: None,
        }
    }

    /// Adds a cluster. The first one is the default cluster, for controllers that name none. Default: the cluster that
    /// `KUBECONFIG` names; without `KUBECONFIG`, in a Pod the cluster of the Pod; elsewhere the current context of
    /// `~/.kube/config`, as for `kubectl`.
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.clusters.push(cluster);
        self
    }

    /// Builds a manager without a default cluster. Controllers have to name one.
    pub fn without_cluster(mut self) -> Self {
        self.without_cluster = true;
        self
    }

    /// Field manager of writes outside of controllers: by [`Manager::client`], and by the clients of the default cluster if
    /// the manager connects to it. Choose a stable name, such as the name of the operator. Default: none, so that a write
    /// that needs one is an error; a cluster that you add has its own
    /// [setting](steersman_cluster::ClusterBuilder::field_manager). A controller writes with its
    /// [own](crate::Builder::field_manager), which is its name by default.
    pub fn field_manager(mut self, name: impl Into<String>) -> Self {
        self.field_manager = Some(name.into());
        self
    }

    /// Default options for controllers.
    pub fn controllers(mut self, options: Options) -> Self {
        self.controllers = options;
        self
    }

    /// Disables controllers and other runnables by name: they can be added, but do not run. Several calls add up.
    /// [`disabled_by_args`](crate::disabled_by_args) reads the names from the command line. Default: none.
    pub fn disable<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.disabled.extend(names.into_iter().map(Into::into));
        self
    }

    /// Shutdown timeout. Default: 30 s; zero does not wait, [`Duration::MAX`] waits for ever.
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.shutdown_timeout = limit;
        self
    }

    /// Limit of the wait for caches at startup. After that, the runnables start whose caches are in sync. Default: 2 min.
    pub fn cache_sync_timeout(mut self, limit: Duration) -> Self {
        self.barrier = limit;
        self
    }

    /// Enables leader election between replicas, with a lease of this name or with detailed settings. Default: no election;
    /// every replica acts.
    pub fn leader_election(mut self, election: impl Into<Election>) -> Self {
        self.election = Some(election.into());
        self
    }

    /// Lets `/readyz` pass before caches are in sync and runnables are ready. The checks (`caches`, `runnables`, `warm`)
    /// are then available only at their own paths, such as `/readyz/warm`.
    ///
    /// Use it for a process that serves a conversion webhook which its own lists need: the API server calls the webhook
    /// only once the process is ready. Default: `/readyz` waits for the checks.
    pub fn ready_before_sync(mut self, ready: bool) -> Self {
        self.ready_before_sync = ready;
        self
    }

    /// Makes `/healthz` fail, so that the process is restarted, once all probes for this time have found caches or the same
    /// runnable not ready. Set more than the longest list takes, because a restart begins that list again. Default:
    /// `/healthz` does not check this; `/readyz` reports it, and the manager retries for ever.
    pub fn stuck_after(mut self, limit: Duration) -> Self {
        self.stuck_after = Some(limit);
        self
    }

    /// Serves the probes, `/healthz` and `/readyz`, at this address. Default: not served.
    pub fn health(mut self, address: SocketAddr) -> Self {
        self.health = Some(address);
        self
    }

    /// Serves the probes over TLS, with HTTP/2 and HTTP/1.1. Configure `scheme: HTTPS` in the Pod; a kubelet does not verify
    /// the certificate, and presents none. Default: plain HTTP.
    ///
    /// With [`Tls::require_client_certificate`], only clients with a certificate can read the probes.
    pub fn health_tls(mut self, tls: Tls) -> Self {
        self.health_tls = Some(tls);
        self
    }

    /// Path of the liveness probe. Each of its checks has a path below it. Default: `/healthz`.
    pub fn liveness_path(mut self, path: impl Into<String>) -> Self {
        self.liveness_path = path.into();
        self
    }

    /// Path of the readiness probe. Each of its checks has a path below it. Default: `/readyz`.
    pub fn readiness_path(mut self, path: impl Into<String>) -> Self {
        self.readiness_path = path.into();
        self
    }

    /// Serves `/metrics`; the function configures the server. It listens on a loopback port unless set otherwise; other
    /// addresses need TLS and authorization, or `insecure()`. Default: not served.
    pub fn metrics(mut self, server: impl FnOnce(MetricsServer) -> MetricsServer + Send + 'static) -> Self {
        self.metrics = Some(Box::new(server));
        self
    }

    /// Clock of the manager, and of the cluster that it connects to by default. A cluster that is [passed in](Self::cluster) keeps
    /// its own clock. Default: the system clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Seed of the random numbers: the same seed gives the same numbers. Default: random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Spawner of tasks. Default: the tokio runtime of the caller.
    pub fn spawner(mut self, spawner: Spawner) -> Self {
        self.spawner = Some(spawner);
        self
    }

    /// Connects to the default cluster if none was added, and binds the addresses. Nothing runs yet.
    ///
    /// # Errors
    /// When no cluster is found, or an address cannot be bound.
    pub async fn build(mut self) -> Result<Manager, BuildError> {
        let clock = self.clock.take().unwrap_or_else(|| Arc::new(TokioClock::new()));
        let spawner = self.spawner.take().unwrap_or_else(Spawner::current);
        let random = Arc::new(self.seed.map_or_else(Random::from_entropy, Random::from_seed));
        let clusters = self.connect(&clock).await?;
        let default_cluster = clusters.first().map(|cluster| cluster.name().clone());
        let runtime = RuntimeContext::new(Arc::clone(&clock), Arc::clone(&random), spawner);
        let runtime = runtime
            .with_fill_limit(self.barrier)
            .with_default_cluster(default_cluster.clone());
        let runtime = Arc::new(runtime);
        let election = self.election.take();
        let election = election.map(|election| Contested::new(election, clusters.first(), &random));
        let election = election.transpose()?;
        let replica = election
            .as_ref()
            .map(|election| election.settings.identity.clone());
        runtime
            .statuses()
            .set_replica(&replica.unwrap_or_else(crate::election::host));
        let (own_leases, election) = match election {
            Some(election) if election.settings.per_runnable => (Some(election.settings), None),
            election => (None, election),
        };
        for cluster in clusters {
            runtime.clusters().insert(cluster)?;
        }
        let metrics = MetricsRegistry::new();
        let mut registered = register(&metrics, &runtime, election.as_ref());
        let is_elected = own_leases.is_some() || election.is_some();
        let probes = Probes::new(&runtime, is_elected, self.ready_before_sync, self.stuck_after);
        registered.extend(probes.registered);
        let routes = self.mount(&probes.healthz, &probes.readyz)?;
        let health = self.health.map(|address| (address, self.health_tls.clone()));
        let endpoints = Endpoints::bind(health, routes, self.metrics, &metrics, &clock)?;
        let inner = Arc::new(Inner {
            runtime,
            default_cluster,
            field_manager: self.field_manager.map(Into::into),
            controllers: self.controllers,
            disabled: self.disabled,
            shutdown_timeout: self.shutdown_timeout,
            barrier: self.barrier,
            pending_caches: probes.pending_caches,
            healthz: probes.healthz,
            readyz: probes.readyz,
            metrics,
            endpoints,
            leadership: watch::Sender::new(None),
            election,
            own_leases,
            leads: Leads::default(),
            overdue: probes.overdue,
            warmup: probes.warmup,
            registry: Mutex::default(),
            cancelled: Default::default(),
            changed: watch::Sender::new(()),
            _registered: registered,
        });
        probes.caches.set(&inner);
        Ok(Manager(inner))
    }

    /// Returns the clusters that were added, or connects to the default cluster.
    async fn connect(&mut self, clock: &Arc<dyn Clock>) -> Result<Vec<Cluster>, BuildError> {
        let mut clusters = std::mem::take(&mut self.clusters);
        if clusters.is_empty() && !self.without_cluster {
            let inferred = Cluster::builder(ClusterName::default()).clock(Arc::clone(clock));
            let inferred = match &self.field_manager {
                Some(name) => inferred.field_manager(name),
                None => inferred,
            };
            clusters.push(inferred.build().await.map_err(BuildError::Connect)?);
        }
        Ok(clusters)
    }

    fn mount(&self, healthz: &Checks, readyz: &Checks) -> Result<Routes, RouteError> {
        let mut routes = Routes::new();
        healthz.mount(&mut routes, &self.liveness_path)?;
        readyz.mount(&mut routes, &self.readiness_path)?;
        Ok(routes)
    }
}

/// Registers the metrics of a manager.
fn register(
    metrics: &MetricsRegistry,
    runtime: &Arc<RuntimeContext>,
    election: Option<&Contested>,
) -> Vec<RegistrationGuard> {
    let mut registered = vec![
        metrics.register_process(),
        metrics.register(|registry| runtime.metrics().register(registry)),
        metrics.register(|registry| collect::register(runtime, registry)),
    ];
    if let Some(Contested {
        settings,
        metrics: of_election,
        ..
    }) = election
    {
        registered.push(metrics.register(|registry| of_election.register(&settings.lease, registry)));
    }
    registered
}

/// The election that the manager takes part in.
pub(crate) struct Contested {
    pub(super) settings: Settings,
    pub(super) seed: u64,
    pub(super) metrics: ElectionMetrics,
}

impl Contested {
    fn new(
        election: Election,
        default_cluster: Option<&Cluster>,
        random: &Random,
    ) -> Result<Self, ElectionError> {
        Ok(Self {
            settings: election.settle(default_cluster)?,
            seed: random.next_u64(),
            metrics: ElectionMetrics::default(),
        })
    }
}

impl fmt::Debug for ManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerBuilder")
            .field("clusters", &self.clusters)
            .field("shutdown_timeout", &self.shutdown_timeout)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use kube::config::{InClusterError, KubeconfigError};

    use super::*;

    #[test]
    fn the_advice_fits_the_error_of_the_default_cluster() {
        let missing = || KubeconfigError::CurrentContextNotSet.into();
        let explicit = ConnectError::Infer(InferError::Explicit(missing()));
        let none = ConnectError::Infer(InferError::None {
            in_cluster: Box::new(InClusterError::ReadEnvironmentVariable(
                std::env::VarError::NotPresent,
            )),
            file: missing(),
        });
        let broken = ConnectError::UserAgent {
            text: "a\nb".to_owned(),
        };
        for (error, advised, not_advised) in [
            (
                explicit,
                "correct the file that KUBECONFIG names",
                ".without_cluster()",
            ),
            (none, ".without_cluster()", "correct"),
            (broken, "does not work", "KUBECONFIG"),
        ] {
            let text = BuildError::Connect(error).to_string();
            assert!(text.contains(advised) && !text.contains(not_advised), "{text}");
        }
    }
}
