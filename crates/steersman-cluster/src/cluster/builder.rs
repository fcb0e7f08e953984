// SPDX-License-Identifier: Apache-2.0
//! How a cluster is made.

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use kube::Config;
use steersman_cache::{IndexConflict, InformerContext, Liveness};
use steersman_core::{Clock, Random, Spawner, TokioClock};
use tokio::{runtime::Handle, sync::watch};

use super::{
    Cluster, ClusterName, Inner,
    cache_runtime::CacheRuntime,
    config::{self, BadKubeconfig, InferError},
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

/// What a cluster is made of; from [`Cluster::builder`].
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

/// There is no way to connect to a cluster. Whether its server answers was not looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody says which cluster is meant.
    #[error(transparent)]
    Infer(InferError),
    /// The kubeconfig is of no use.
    #[error("the kubeconfig of cluster {cluster} is of no use")]
    Kubeconfig {
        /// Which one.
        cluster: ClusterName,
        /// Why not.
        #[source]
        source: BadKubeconfig,
    },
    /// The configuration cannot be used.
    #[error("the configuration of cluster {cluster} cannot be used")]
    Config {
        /// Which one.
        cluster: ClusterName,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// The program that should give credentials gives none.
    #[error(
        "cluster {cluster} has its credentials from `{command}`, which gives none: run it by hand to see why"
    )]
    Plugin {
        /// Which one.
        cluster: ClusterName,
        /// The program, without what it is told.
        command: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// The file with the token is of no use.
    #[error("cluster {cluster} needs the token in {}", path.display())]
    Token {
        /// Which one.
        cluster: ClusterName,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// What is sent as `User-Agent` cannot be sent.
    #[error("`{text}` cannot be sent as User-Agent: use letters, digits and punctuation")]
    UserAgent {
        /// What was to be sent.
        text: String,
    },
    /// Two indexes do not go together.
    #[error("the cache of cluster {cluster} cannot have these indexes")]
    Index {
        /// Which one.
        cluster: ClusterName,
        /// Why not.
        #[source]
        source: IndexConflict,
    },
    /// There is no tokio runtime here.
    #[error("cluster {cluster} is made outside of a tokio runtime, in which its requests would run")]
    NoRuntime {
        /// Which one.
        cluster: ClusterName,
    },
    /// The thread of the cluster cannot be started.
    #[error("no thread for cluster {cluster}")]
    Thread {
        /// Which one.
        cluster: ClusterName,
        /// Why not.
        #[source]
        source: io::Error,
    },
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

    /// Where the server is and who asks. Default: what the environment says, in the order of controller-runtime:
    /// `KUBECONFIG`, the service account of the Pod, `~/.kube/config`.
    ///
    /// A program that gives credentials (`exec`, such as `aws eks get-token`) is run once for the cluster and once for
    /// each [`another`](Cluster::another), on a thread where it is in nobody's way, and again a minute before a token
    /// ends. One that does not say when its token ends is not run again, also if the server refuses the token; one that
    /// gives a certificate is run seven times at the start, most of them by the thread that builds.
    ///
    /// Retries are those of this crate: `default_retry` does not count.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// The same as the text of a kubeconfig, such as one in a Secret; its current context counts. What is wrong with it is
    /// said without showing what is in it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use steersman_cluster::Cluster;
    ///
    /// let text = "users:\n- user:\n    token: [hunter2]\n";
    /// let error = Cluster::builder("far").kubeconfig(text).build().await.unwrap_err();
    /// assert_eq!(error.to_string(), "the kubeconfig of cluster far is of no use");
    /// # }
    /// ```
    pub fn kubeconfig(mut self, text: impl Into<String>) -> Self {
        self.kubeconfig = Some(text.into());
        self
    }

    /// What takes requests instead of a server that has to be connected to, such as one in this process. A configuration
    /// is then only what [`Cluster::config`] shows. Who gives a client of kube with retries of its own gets those besides.
    pub fn service(mut self, service: kube::Client) -> Self {
        self.service = Some(service);
        self
    }

    /// What the cache keeps, and how. Default: all objects of each kind that somebody asks for.
    pub fn cache(mut self, set: impl FnOnce(CacheSettings) -> CacheSettings) -> Self {
        self.cache = set(self.cache);
        self
    }

    /// What tells the time. Default: real time.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// What says which time people would say it is, for events. Default: the clock of the machine.
    pub fn wall_clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.wall = Arc::new(now);
        self
    }

    /// What chance is drawn from: the same seed gives the same delays. Default: another one each time, so that replicas
    /// do not all come at once.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Where the tasks of the cache run. Default: on a thread of the cluster's own.
    ///
    /// With that thread all of them end, whoever holds a part of the cache; elsewhere an informer that somebody holds
    /// outlives the cluster, and asks in vain.
    pub fn spawner(mut self, spawner: Spawner) -> Self {
        self.spawner = Some(spawner);
        self
    }

    /// What is sent as `User-Agent`. Default: the name of the program and the version of Steersman.
    pub fn user_agent(mut self, text: impl Into<String>) -> Self {
        self.user_agent = Some(text.into());
        self
    }

    /// The name by which writes own what they write. Default: the name of the program.
    pub fn field_manager(mut self, name: impl Into<String>) -> Self {
        self.field_manager = Some(name.into());
        self
    }

    /// How long a request may take until the whole of its answer is there, retries included. Watches are not limited,
    /// nor is what the cache asks for, which looks after time itself. Default: 30 s.
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.request_timeout = limit;
        self
    }

    /// The cluster. Nothing is sent yet.
    ///
    /// # Errors
    /// When there is no configuration, or it makes no sense. Whether the server answers is not looked at.
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
                // It ends with the runtime.
                Err(_) => Err(ConnectError::NoRuntime {
                    cluster: self.name.clone(),
                }),
            })?
        } else {
            Links::new(name, server, &clock)?
        };
        self.connect(links)
    }

    /// The cluster, made by this thread.
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
        let random = Arc::new(self.seed.map_or_else(Random::by_chance, Random::from_seed));
        let program = program();
        let (gate_keeper, gate) = Fence::new(Arc::clone(&clock));
        gate_keeper.open_until(None);
        let line = Arc::new(SharedTransport {
            clock: Arc::clone(&clock),
            random: Arc::clone(&random),
            gate,
            user_agent: user_agent(self.user_agent, &program)?,
            token: links.token.take(),
            meter: Meter::new(links.host.clone()),
            warnings: Warnings::default(),
            liveness: Liveness::new(),
        });
        let limited = |base| Transport::plain(base, Arc::clone(&line)).limited(self.request_timeout, TRIES);
        let transport = limited(links.client()?);

        let (home, spawner) = home(&name, self.spawner)?;
        // What runs on the thread of the cluster has connections of its own there.
        let at_home = || -> Result<_, ConnectError> {
            let for_cache = Transport::plain(links.client()?, Arc::clone(&line)).into_kube();
            Ok((for_cache, limited(links.client()?)))
        };
        let (for_cache, for_events) = match &home {
            Some(home) => home.within(at_home),
            None => at_home(),
        }?;
        let surroundings = InformerContext::new(
            for_cache,
            Arc::clone(&clock),
            Arc::clone(&random),
            spawner.clone(),
        )
        .liveness(line.liveness.clone());
        let (missing, uncached) = (self.cache.missing, self.cache.uncached.clone());
        let presences = Arc::new(Presences::default());
        let (known, changes) = (Arc::clone(&presences), presences.changes());
        let cache = self.cache.build(
            surroundings.clone(),
            move |resource| known.presence(resource),
            changes,
        );
        let cache = cache.map_err(|source| ConnectError::Index {
            cluster: name.clone(),
            source,
        })?;
        let events = Events::new(for_events, (Arc::clone(&clock), random), spawner, self.wall);
        Ok(Cluster(Arc::new(Inner {
            name,
            config: self.config,
            service: self.service,
            field_manager: self.field_manager.unwrap_or(program).into(),
            missing,
            uncached,
            gate_keeper,
            line,
            mapper: Mapper::new(transport.clone(), clock),
            transport,
            events,
            reader: Arc::new(cache.reader(missing)),
            cache,
            surroundings,
            presences,
            draining: watch::Sender::default(),
            closing: OnceLock::new(),
            _home: home,
        })))
    }
}

/// Where the tasks of a cluster run: on a thread of its own, unless somebody says another place.
fn home(
    cluster: &ClusterName,
    spawner: Option<Spawner>,
) -> Result<(Option<CacheRuntime>, Spawner), ConnectError> {
    if let Some(spawner) = spawner {
        return Ok((None, spawner));
    }
    let home = CacheRuntime::start(cluster).map_err(|source| ConnectError::Thread {
        cluster: cluster.clone(),
        source,
    })?;
    let spawner = home.spawner();
    Ok((Some(home), spawner))
}

/// What is sent as `User-Agent`.
fn user_agent(text: Option<String>, program: &str) -> Result<HeaderValue, ConnectError> {
    let text = text.unwrap_or_else(|| format!("{program} steersman/{}", env!("CARGO_PKG_VERSION")));
    HeaderValue::from_str(&text).map_err(|_| ConnectError::UserAgent { text })
}

#[expect(clippy::disallowed_methods, reason = "the default of what can be handed in")]
fn wall_time() -> SystemTime {
    SystemTime::now()
}

/// The name of this program, by which servers know it.
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
