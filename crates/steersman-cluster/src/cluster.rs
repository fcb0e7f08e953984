// SPDX-License-Identifier: Apache-2.0
//! What a program has of one cluster: connection, client, cache, mapper, event recorder.
//!
//! ```no_run
//! use k8s_openapi::api::apps::v1::Deployment;
//! use steersman_cache::{InformerOptions, Query, Scope};
//! use steersman_cluster::Cluster;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::builder("production")
//!     .cache(|cache| cache.kind::<Deployment>(Scope::all().labels("tier=front"), InformerOptions::default()))
//!     .build()
//!     .await?;
//! let front = cluster.client().list::<Deployment>(&Query::new().namespace("web")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! 1. A cluster sends nothing before it is asked for something.
//! 2. What belongs to it goes to its server and to no other: client, cache, mapper and recorder of one cluster know of
//!    no other one.
//! 3. When its last handle drops, its informers end and its connections close. Clients are handles.
//! 4. When it is [closed](Cluster::close), every request is refused from then on, those under way included, and its
//!    informers end.
//! 5. Its [state](Cluster::state) follows from what its informers and its last request say; nobody has to reset it.
//!
//! # Threads
//! A cluster reads for its cache on a thread of its own, with connections of its own: bytes that are parsed where they
//! arrive cost half of those that travel between threads, and a long list delays nobody else.
//! [`ClusterBuilder::spawner`] names another place. Requests of clients run where they are made.

mod builder;
mod cache_runtime;
mod config;
mod links;
mod plugin;
mod settings;
mod state;

use std::{
    borrow::Borrow,
    collections::HashSet,
    fmt,
    future::Future,
    sync::{Arc, OnceLock},
};

use kube::Config;
use steersman_cache::{Cache, CacheMissPolicy, InformerContext, ReadScopes, Reader, Resource};
use steersman_core::{Clock, Task};
use tokio::sync::watch;

pub use self::{
    builder::{ClusterBuilder, ConnectError},
    config::{BadKubeconfig, InferError},
    settings::CacheSettings,
    state::ClusterState,
};
use self::{cache_runtime::CacheRuntime, links::Server};
use crate::{
    Client, EventCounts, Fence, FenceKeeper, Mapper, Recorder, RequestCount,
    presence::Presences,
    recorder::Events,
    transport::{SharedTransport, Transport},
};

/// A handle on a cluster. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

/// The name by which a program tells clusters apart. Cloning it copies a pointer.
///
/// ```
/// use steersman_cluster::ClusterName;
///
/// assert_eq!(ClusterName::default().as_str(), "default");
/// assert!(ClusterName::from("a") < ClusterName::from("b"));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(Arc<str>);

pub(crate) struct Inner {
    name: ClusterName,
    config: Option<Config>,
    service: Option<kube::Client>,
    field_manager: Arc<str>,
    missing: CacheMissPolicy,
    /// Kinds that are always read from the server.
    uncached: HashSet<Resource>,
    // First of those that do something, so that requests end before what they need goes.
    gate_keeper: FenceKeeper,
    line: Arc<SharedTransport>,
    transport: Transport,
    mapper: Mapper,
    events: Events,
    reader: Arc<Reader>,
    cache: Cache,
    surroundings: InformerContext,
    presences: Arc<Presences>,
    draining: watch::Sender<bool>,
    /// Ends the informers.
    closing: OnceLock<Task>,
    _home: Option<CacheRuntime>,
}

impl Cluster {
    /// A cluster from a configuration alone, by the name `default`. A program that gives credentials is waited for by this
    /// thread; [`ClusterBuilder::build`] has it run elsewhere.
    ///
    /// # Errors
    /// When the configuration makes no sense, or there is no tokio runtime here. Whether the server answers is not
    /// looked at.
    pub fn new(config: Config) -> Result<Self, ConnectError> {
        let builder = Self::builder(ClusterName::default()).config(config.clone());
        builder.build_here(Server::At(Box::new(config)))
    }

    /// A cluster with more to say about it.
    pub fn builder(name: impl Into<ClusterName>) -> ClusterBuilder {
        ClusterBuilder::new(name.into())
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// A builder of another connection to the same server. It has the clock and the names of this one, and shares nothing
    /// with it: neither connections nor cache, gate or figures.
    pub fn another(&self, name: impl Into<ClusterName>) -> ClusterBuilder {
        let builder = Self::builder(name)
            .clock(Arc::clone(self.clock()))
            .user_agent(self.user_agent())
            .field_manager(&*self.0.field_manager);
        match (&self.0.service, &self.0.config) {
            (Some(service), _) => builder.service(service.clone()),
            (None, Some(config)) => builder.config(config.clone()),
            (None, None) => builder,
        }
    }

    /// Whether both are handles on the same cluster, and not on two of the same name.
    #[must_use]
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ClusterName {
        &self.0.name
    }

    /// The configuration that it was made of; nothing if that was a [service](ClusterBuilder::service).
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        self.0.config.as_ref()
    }

    /// What it sends as `User-Agent`.
    #[must_use]
    pub fn user_agent(&self) -> &str {
        // It was made from text.
        self.0.line.user_agent.to_str().unwrap_or_default()
    }

    /// Reads through the cache and writes to the server.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(&self.0)
    }

    /// Reads from and writes to the server.
    #[must_use]
    pub fn live(&self) -> Client {
        self.client().live()
    }

    /// Its informers.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// What the server has.
    #[must_use]
    pub fn mapper(&self) -> &Mapper {
        &self.0.mapper
    }

    /// What tells its time: moments of other clocks mean nothing to it.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.line.clock
    }

    /// Records events of a component, such as a controller, by its name.
    #[must_use]
    pub fn recorder(&self, component: &str) -> Recorder {
        Recorder::new(&self.0, component)
    }

    /// How many events there were.
    #[must_use]
    pub fn events(&self) -> EventCounts {
        self.0.events.counts()
    }

    /// Waits until all events that were recorded so far were written or dropped. Where none was, that is at once.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn flush_events(&self) {
        self.0.events.flush().await;
    }

    /// Ends those informers that nobody holds, and that linger in case somebody comes back.
    pub fn end_idle(&self) {
        for informer in self.0.cache.informers() {
            self.0.cache.end_idle(informer.resource());
        }
    }

    /// Says that it is being let go, which is what its [state](Self::state) is from now on. Nothing is refused: those who
    /// use it may finish, until it is [closed](Self::close).
    pub fn drain(&self) {
        self.0.draining.send_replace(true);
    }

    /// Refuses every request from now on, and ends all informers soon. It cannot be opened again: make a new one.
    ///
    /// The reason is what those are told who still ask.
    pub fn close(&self, reason: impl Into<Arc<str>>) {
        self.0.gate_keeper.close(reason);
        // By a task: a handler that calls this runs within an informer, which it cannot end.
        self.0.closing.get_or_init(|| {
            let cache = self.0.cache.clone();
            self.0.surroundings.spawner().spawn("closing", async move {
                for informer in cache.informers() {
                    cache.remove(informer.resource());
                }
            })
        });
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.line.gate.check().is_err()
    }

    /// Lets `work` go on until it ends, or until the cluster is closed, which gives nothing.
    ///
    /// # Cancel safety
    /// It can be dropped when `work` can.
    pub async fn until_closed<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = work => Some(output),
            _ = self.0.line.gate.closed() => None,
        }
    }

    /// How many requests there were by what became of them, those of the cache included. Each attempt counts.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestCount> {
        self.0.line.meter.requests()
    }

    /// How many attempts were repeated, by what became of them.
    #[must_use]
    pub fn retries(&self) -> Vec<RequestCount> {
        self.0.line.meter.retries()
    }
}

impl Inner {
    pub(crate) fn presences(&self) -> &Presences {
        &self.presences
    }

    pub(crate) fn surroundings(&self) -> &InformerContext {
        &self.surroundings
    }

    pub(crate) fn name(&self) -> &ClusterName {
        &self.name
    }

    pub(crate) fn field_manager(&self) -> &Arc<str> {
        &self.field_manager
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(crate) fn gate(&self) -> &Fence {
        &self.line.gate
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(crate) fn mapper(&self) -> &Mapper {
        &self.mapper
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    /// What clients read through that did not ask for their own.
    pub(crate) fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    pub(crate) fn is_uncached(&self, resource: &Resource) -> bool {
        self.uncached.contains(resource)
    }

    pub(crate) fn new_reader(&self) -> Reader {
        self.new_reader_in(ReadScopes::new())
    }

    pub(crate) fn new_reader_in(&self, scopes: ReadScopes) -> Reader {
        self.cache.reader_in(self.missing, scopes)
    }
}

impl ClusterName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ClusterName {
    /// The name of the only cluster: `default`.
    fn default() -> Self {
        Self("default".into())
    }
}

impl From<&str> for ClusterName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for ClusterName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl Borrow<str> for ClusterName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("name", &self.0.name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
