// SPDX-License-Identifier: Apache-2.0
//! Builds clusters.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use kube::Config;
use steersman_cache::{InformerContext, Liveness};
use steersman_core::{Clock, Random, Spawner, TokioClock};
use tokio::{runtime::Handle, sync::watch};

use super::{
    Cluster, ClusterName, ConnectError, Inner,
    cache_runtime::CacheRuntime,
    config,
    links::{Links, Server},
    settings::CacheSettings,
};
use crate::{
    Fence, Mapper,
    presence::Presences,
    recorder::{Events, WallClock},
    transport::{Meter, SharedTransport, Transport, Warnings},
};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const TRIES: u32 = 3;

/// Builder of a cluster; from [`Cluster::builder`].
#[must_use]
pub struct ClusterBuilder {
    name: ClusterName,
    config: Option<Config>,
    kubeconfig: Option<String>,
    service: Option<kube::Client>,
    cache: CacheSettings,
    clock: Option<Arc<dyn Clock>>,
    wall: WallClock,
    seed: Option<u64>,
    spawner: Option<Spawner>,
    user_agent: Option<String>,
    field_manager: Option<String>,
    request_timeout: Duration,
}

impl ClusterBuilder {
    pub(super) fn new(name: ClusterName) -> Self {
        Self {
            name,
            config: None,
            kubeconfig: None,
            service: None,
            cache: CacheSettings::default(),
            clock: None,
            wall: Arc::new(wall_time),
            seed: None,
            spawner: None,
            user_agent: None,
            field_manager: None,
            request_timeout: REQUEST_TIMEOUT,
        }
    }

    /// Sets the server and the credentials. Default: inferred from the environment in the order of controller-runtime:
    /// `KUBECONFIG`, the service account of the Pod, `~/.kube/config`.
    ///
    /// An exec plugin (`exec`, such as `aws eks get-token`) runs once for the cluster and once for each
    /// [`another`](Cluster::another), on a thread where it blocks no other work, and again one minute before a token
    /// expires. A plugin that returns a token without an expiry does not run again, even if the server rejects the
    /// token. A plugin that returns a certificate runs seven times at the start, mostly on the thread that builds.
    ///
    /// This crate has its own retries: `default_retry` is ignored.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Sets the server and the credentials from the text of a kubeconfig, such as one in a Secret. Its current context
    /// is used. Errors do not show the content of the kubeconfig.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use steersman_cluster::Cluster;
    ///
    /// let text = "users:\n- user:\n    token: [hunter2]\n";
    /// let error = Cluster::builder("far").kubeconfig(text).build().await.unwrap_err();
    /// assert_eq!(error.to_string(), "the kubeconfig of cluster far is invalid");
    /// # }
    /// ```
    pub fn kubeconfig(mut self, text: impl Into<String>) -> Self {
        self.kubeconfig = Some(text.into());
        self
    }

    /// Sends requests to this service instead of connecting to a server; for example, to a server in this process. A
    /// configuration is then only used for [`Cluster::config`]. If the kube client has retries, they apply in addition.
    pub fn service(mut self, service: kube::Client) -> Self {
        self.service = Some(service);
        self
    }

    /// Sets the scope and the options of the cache. Default: all objects of each kind that is read.
    pub fn cache(mut self, set: impl FnOnce(CacheSettings) -> CacheSettings) -> Self {
        self.cache = set(self.cache);
        self
    }

    /// Sets the clock. Default: real time.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the wall clock, which gives the timestamps of events. Default: the system clock.
    pub fn wall_clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.wall = Arc::new(now);
        self
    }

    /// Sets the seed of the random numbers: the same seed gives the same delays. Default: a random seed, so that
    /// replicas do not send their requests at the same time.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the spawner for the tasks of the cache. Default: a separate thread of the cluster.
    ///
    /// When the default thread ends, all of its tasks end, even if a part of the cache is still held. With another
    /// spawner, an informer that is still held outlives the cluster, and its requests fail.
    pub fn spawner(mut self, spawner: Spawner) -> Self {
        self.spawner = Some(spawner);
        self
    }

    /// Sets the `User-Agent` header. Default: the name of the program and the version of Steersman.
    pub fn user_agent(mut self, text: impl Into<String>) -> Self {
        self.user_agent = Some(text.into());
        self
    }

    /// Sets the field manager of writes: a stable name of at most 128 characters, by which the server records the owner
    /// of each field. Default: none; then every write except a deletion is an error, unless the client
    /// [sets one](crate::Client::field_manager). Controllers set one for their clients.
    pub fn field_manager(mut self, name: impl Into<String>) -> Self {
        self.field_manager = Some(name.into());
        self
    }

    /// Sets the timeout of a request, for the complete answer and with retries included. Watches and requests of the
    /// cache are not limited; the cache enforces its own timeouts. Default: 30 s.
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.request_timeout = limit;
        self
    }

    /// Builds the cluster. Sends no request.
    ///
    /// # Errors
    /// When there is no configuration, or it is invalid. It does not check that the server answers.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn build(mut self) -> Result<Cluster, ConnectError> {
        if let Some(text) = self.kubeconfig.take() {
            let config = config::parse(&text).await;
            self.config = Some(config.map_err(|source| ConnectError::Kubeconfig {
                cluster: self.name.clone(),
                source,
            })?);
        }
        let server = match (self.service.clone(), &self.config) {
            (Some(service), _) => Server::Service(service),
            (None, Some(config)) => Server::At(Box::new(config.clone())),
            (None, None) => {
                let config = config::infer().await.map_err(ConnectError::Infer)?;
                self.config = Some(config.clone());
                Server::At(Box::new(config))
            }
        };
        let (runtime, clock) = (self.runtime()?, self.clock_or_real());
        let name = self.name.clone();
        let links = if server.is_slow() {
            let linked = runtime
                .spawn_blocking(move || Links::new(name, server, &clock))
                .await;
            linked.unwrap_or_else(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The blocking task ends with the runtime.
                Err(_) => Err(ConnectError::NoRuntime {
                    cluster: self.name.clone(),
                }),
            })?
        } else {
            Links::new(name, server, &clock)?
        };
        self.connect(links)
    }

    /// Builds the cluster on this thread.
    pub(super) fn build_here(mut self, server: Server) -> Result<Cluster, ConnectError> {
        self.runtime()?;
        let links = Links::new(self.name.clone(), server, &self.clock_or_real())?;
        self.connect(links)
    }

    fn runtime(&self) -> Result<Handle, ConnectError> {
        Handle::try_current().map_err(|_| ConnectError::NoRuntime {
            cluster: self.name.clone(),
        })
    }

    fn clock_or_real(&mut self) -> Arc<dyn Clock> {
        let clock = self.clock.get_or_insert_with(|| Arc::new(TokioClock::new()));
        Arc::clone(clock)
    }

    fn connect(mut self, mut links: Links) -> Result<Cluster, ConnectError> {
        let clock = self.clock_or_real();
        let name = self.name;
        let random = Arc::new(self.seed.map_or_else(Random::from_entropy, Random::from_seed));
        let program = program();
        let (gate_keeper, gate) = Fence::new(Arc::clone(&clock));
        gate_keeper.open_until(None);
        let shared = Arc::new(SharedTransport {
            clock: Arc::clone(&clock),
            random: Arc::clone(&random),
            gate,
            user_agent: user_agent(self.user_agent, &program)?,
            token: links.token.take(),
            meter: Meter::new(links.host.clone()),
            warnings: Warnings::default(),
            liveness: Liveness::new(),
        });
        if links.has_run_plugin() {
            shared.meter.plugin_calls.add("no_error", 0);
        }
        let limited = |base| Transport::plain(base, Arc::clone(&shared)).limited(self.request_timeout, TRIES);
        let transport = limited(links.client()?);

        let (cache_runtime, spawner) = cache_runtime(&name, self.spawner)?;
        // Tasks on the thread of the cluster use connections that are opened there.
        let connect_there = || -> Result<_, ConnectError> {
            let for_cache = Transport::plain(links.client()?, Arc::clone(&shared)).into_kube();
            Ok((for_cache, limited(links.client()?)))
        };
        let (for_cache, for_events) = match &cache_runtime {
            Some(runtime) => runtime.within(connect_there),
            None => connect_there(),
        }?;
        let context = InformerContext::new(
            for_cache,
            Arc::clone(&clock),
            Arc::clone(&random),
            spawner.clone(),
        )
        .liveness(shared.liveness.clone());
        let (missing, uncached) = (self.cache.missing, self.cache.uncached.clone());
        let presences = Arc::new(Presences::default());
        let (known, changes) = (Arc::clone(&presences), presences.changes());
        let cache = self
            .cache
            .build(context.clone(), move |resource| known.presence(resource), changes);
        let cache = cache.map_err(|source| ConnectError::Index {
            cluster: name.clone(),
            source,
        })?;
        let events = Events::new(for_events, Arc::clone(&clock), random, spawner, self.wall);
        Ok(Cluster(Arc::new(Inner {
            name,
            config: self.config,
            service: self.service,
            field_manager: self.field_manager.map(Into::into),
            missing,
            uncached,
            gate_keeper,
            shared,
            mapper: Mapper::new(transport.clone(), clock),
            transport,
            events,
            reader: Arc::new(cache.reader(missing)),
            cache,
            context,
            presences,
            draining: watch::Sender::default(),
            closing: OnceLock::new(),
            _cache_runtime: cache_runtime,
        })))
    }
}

/// Selects the spawner for the tasks of a cluster: a separate thread, unless another spawner is set.
fn cache_runtime(
    cluster: &ClusterName,
    spawner: Option<Spawner>,
) -> Result<(Option<CacheRuntime>, Spawner), ConnectError> {
    if let Some(spawner) = spawner {
        return Ok((None, spawner));
    }
    let runtime = CacheRuntime::start(cluster).map_err(|source| ConnectError::Thread {
        cluster: cluster.clone(),
        source,
    })?;
    let spawner = runtime.spawner();
    Ok((Some(runtime), spawner))
}

/// Builds the `User-Agent` header.
fn user_agent(text: Option<String>, program: &str) -> Result<HeaderValue, ConnectError> {
    let text = text.unwrap_or_else(|| format!("{program} steersman/{}", env!("CARGO_PKG_VERSION")));
    HeaderValue::from_str(&text).map_err(|_| ConnectError::UserAgent { text })
}

#[expect(clippy::disallowed_methods, reason = "the default of what can be handed in")]
fn wall_time() -> SystemTime {
    SystemTime::now()
}

/// Returns the name of this program, for the `User-Agent` header.
fn program() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_deref().and_then(|path| path.file_stem()?.to_str());
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let name: String = name
        .unwrap_or_default()
        .chars()
        .filter(|character| is_plain(*character))
        .collect();
    if name.is_empty() {
        "steersman".to_owned()
    } else {
        name
    }
}

impl fmt::Debug for ClusterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterBuilder")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
