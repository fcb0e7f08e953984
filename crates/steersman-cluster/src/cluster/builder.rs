// SPDX-License-Identifier: Apache-2.0
//! How a cluster is made.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use http::HeaderValue;
use kube::{Config, client::ClientBuilder};
use steersman_cache::{
    Cache, CacheBuilder, Index, IndexConflict, IndexValue, InformerOptions, Missing, Resource, Scope,
    Surroundings,
};
use steersman_core::{Clock, Random, Spawner, TokioClock};

use super::{
    Cluster, ClusterName, Inner,
    config::{self, InferError},
    home::Home,
};
use crate::{
    Fence, Kind, Mapper,
    transport::{Line, Meter, TokenError, TokenFile, Transport, Warnings},
};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const TRIES: u32 = 3;

/// What a cluster is made of; from [`Cluster::builder`].
#[must_use]
pub struct ClusterBuilder {
    name: ClusterName,
    config: Option<Config>,
    service: Option<kube::Client>,
    cache: CacheSettings,
    clock: Option<Arc<dyn Clock>>,
    seed: u64,
    spawner: Option<Spawner>,
    user_agent: Option<String>,
    field_owner: Option<String>,
    request_timeout: Duration,
}

/// What the cache of a cluster keeps, and how; for [`ClusterBuilder::cache`].
#[derive(Default)]
#[must_use]
pub struct CacheSettings {
    settings: Vec<Setting>,
    missing: Missing,
}

type Setting = Box<dyn FnOnce(CacheBuilder) -> Result<CacheBuilder, IndexConflict> + Send>;

/// There is no way to connect to a cluster. Whether its server answers was not looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody says which cluster is meant.
    #[error(transparent)]
    Infer(InferError),
    /// The configuration makes no sense.
    #[error("the configuration of cluster {cluster} makes no sense")]
    Config {
        /// Which one.
        cluster: ClusterName,
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
            service: None,
            cache: CacheSettings::default(),
            clock: None,
            seed: 0,
            spawner: None,
            user_agent: None,
            field_owner: None,
            request_timeout: REQUEST_TIMEOUT,
        }
    }

    /// Where the server is and who asks. Default: what the environment says, in the order of controller-runtime:
    /// `KUBECONFIG`, the service account of the Pod, `~/.kube/config`.
    ///
    /// Retries are those of this crate: `default_retry` does not count.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// What takes requests instead of a server that has to be connected to, such as one in this process. Who gives a
    /// client of kube with retries of its own gets those besides.
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

    /// What chance is drawn from: the same seed gives the same delays. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Where the tasks of the cache run. Default: on a thread of the cluster's own.
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
    pub fn field_owner(mut self, name: impl Into<String>) -> Self {
        self.field_owner = Some(name.into());
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
        if self.config.is_none() && self.service.is_none() {
            self.config = Some(config::infer().await.map_err(ConnectError::Infer)?);
        }
        self.connect()
    }

    /// The cluster of a configuration or service that was given.
    pub(super) fn connect(self) -> Result<Cluster, ConnectError> {
        let cluster = self.name;
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(ConnectError::NoRuntime { cluster });
        }
        let clock = self.clock.unwrap_or_else(|| Arc::new(TokioClock::new()));
        let program = program();
        let agent = self
            .user_agent
            .unwrap_or_else(|| format!("{program} steersman/{}", env!("CARGO_PKG_VERSION")));
        let user_agent = HeaderValue::from_str(&agent);
        let user_agent = user_agent.map_err(|_| ConnectError::UserAgent { text: agent })?;
        let (home, spawner) = match self.spawner {
            Some(spawner) => (None, spawner),
            None => {
                let home = Home::start(&cluster);
                let home = home.map_err(|source| ConnectError::Thread {
                    cluster: cluster.clone(),
                    source,
                })?;
                let spawner = home.spawner();
                (Some(home), spawner)
            }
        };
        let mut links = Links::new(&cluster, self.config.clone(), self.service.clone(), &clock)?;
        let (gate_keeper, gate) = Fence::new(Arc::clone(&clock));
        gate_keeper.open_until(None);
        let random = Arc::new(Random::from_seed(self.seed));
        let line = Arc::new(Line {
            clock: Arc::clone(&clock),
            random: Arc::clone(&random),
            gate,
            user_agent,
            token: links.token.take(),
            meter: Meter::new(links.host.clone()),
            warnings: Warnings::default(),
        });
        let transport =
            Transport::plain(links.base()?, Arc::clone(&line)).limited(self.request_timeout, TRIES);
        let for_cache = || -> Result<kube::Client, ConnectError> {
            Ok(Transport::plain(links.base()?, Arc::clone(&line)).into_kube())
        };
        let for_cache = match &home {
            Some(home) => home.within(for_cache),
            None => for_cache(),
        };
        let surroundings = Surroundings::new(for_cache?, Arc::clone(&clock), random, spawner);
        let CacheSettings { settings, missing } = self.cache;
        let cache = settings
            .into_iter()
            .try_fold(Cache::builder(surroundings), |builder, set| set(builder))
            .map_err(|source| ConnectError::Index {
                cluster: cluster.clone(),
                source,
            })?
            .build();
        Ok(Cluster(Arc::new(Inner {
            name: cluster,
            config: self.config,
            service: self.service,
            field_owner: self.field_owner.unwrap_or(program).into(),
            missing,
            gate_keeper,
            line,
            mapper: Mapper::new(transport.clone(), clock),
            transport,
            reader: Arc::new(cache.reader(missing)),
            cache,
            _home: home,
        })))
    }
}

/// Makes connections to one server.
struct Links<'a> {
    cluster: &'a ClusterName,
    config: Option<Config>,
    service: Option<kube::Client>,
    host: String,
    /// Looked after by the transport, which knows when it is of no use any more.
    token: Option<TokenFile>,
}

impl<'a> Links<'a> {
    fn new(
        cluster: &'a ClusterName,
        mut config: Option<Config>,
        service: Option<kube::Client>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, ConnectError> {
        let mut token = None;
        if let Some(config) = config.as_mut().filter(|_| service.is_none()) {
            config.default_retry = false;
            let auth = &mut config.auth_info;
            let is_by_file = auth.token.is_none() && auth.username.is_none() && auth.auth_provider.is_none();
            if let Some(file) = auth.token_file.take_if(|_| is_by_file) {
                let read = TokenFile::read(file.clone().into(), clock.now());
                let read = read.map_err(|error| ConnectError::Token {
                    cluster: cluster.clone(),
                    path: file.into(),
                    source: match error {
                        TokenError::Read { source, .. } => source,
                        other => io::Error::other(other),
                    },
                });
                token = Some(read?);
            }
        }
        let authority = config.as_ref().and_then(|config| config.cluster_url.authority());
        Ok(Self {
            cluster,
            host: authority.map_or_else(|| "in-process".to_owned(), ToString::to_string),
            config,
            service,
            token,
        })
    }

    /// A client with connections of its own, as far as there are connections. It needs a runtime around.
    fn base(&self) -> Result<kube::Client, ConnectError> {
        match (&self.service, &self.config) {
            (Some(service), _) => Ok(service.clone()),
            (None, Some(config)) => {
                let builder = ClientBuilder::try_from(config.clone());
                let builder = builder.map_err(|source| ConnectError::Config {
                    cluster: self.cluster.clone(),
                    source: Box::new(source),
                })?;
                Ok(builder.build())
            }
            (None, None) => Err(ConnectError::NoRuntime {
                cluster: self.cluster.clone(),
            }),
        }
    }
}

impl CacheSettings {
    /// What holds for every kind that nothing else is said about. Default: all objects, default options.
    pub fn defaults(self, scope: Scope, options: InformerOptions) -> Self {
        self.with(|cache| Ok(cache.defaults(scope, options)))
    }

    /// What holds for one kind, instead of the defaults.
    pub fn kind<K: Kind>(self, scope: Scope, options: InformerOptions) -> Self {
        self.resource(Resource::of::<K>(), scope, options)
    }

    /// As [`kind`](Self::kind), for one that is known when the program runs.
    pub fn resource(self, resource: Resource, scope: Scope, options: InformerOptions) -> Self {
        self.with(|cache| Ok(cache.kind(resource, scope, options)))
    }

    /// Keeps an index with every informer of a kind. Two of one name are refused when the cluster is made.
    pub fn index<K: Kind, V: IndexValue>(self, index: &Index<V>) -> Self {
        let index = index.clone();
        self.with(move |cache| cache.index(Resource::of::<K>(), &index))
    }

    /// So long an informer is kept that nobody holds. Default: 5 s.
    pub fn linger(self, time: Duration) -> Self {
        self.with(move |cache| Ok(cache.linger(time)))
    }

    /// What a read does with a kind that has no informer yet. Default: it starts one.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    fn with(
        mut self,
        set: impl FnOnce(CacheBuilder) -> Result<CacheBuilder, IndexConflict> + Send + 'static,
    ) -> Self {
        self.settings.push(Box::new(set));
        self
    }
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

impl fmt::Debug for CacheSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSettings")
            .field("settings", &self.settings.len())
            .field("missing", &self.missing)
            .finish()
    }
}
