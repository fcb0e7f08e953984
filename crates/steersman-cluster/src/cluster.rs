// SPDX-License-Identifier: Apache-2.0
//! Handle on one cluster: connection, client, cache, mapper, event recorder.
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
//! 1. A cluster sends no request until one is needed.
//! 2. Client, cache, mapper and recorder of a cluster send requests only to the server of that cluster. Clusters share
//!    nothing.
//! 3. When the last handle is dropped, the informers stop and the connections close. Clients are handles.
//! 4. After [`close`](Cluster::close), every request is rejected, including requests under way, and the informers stop.
//! 5. The [state](Cluster::state) is derived from the informers and the last request. It recovers without a reset.
//!
//! # Threads
//! A cluster runs its cache on a separate thread, with separate connections: bytes that are parsed on the thread where
//! they arrive cost half as much as bytes that move between threads, and a long list delays no other work.
//! [`ClusterBuilder::spawner`] sets another place. Requests of clients run in the task that makes them.

mod auth_provider;
mod builder;
mod cache_runtime;
mod config;
mod connect_error;
mod links;
mod name;
mod settings;
mod state;

use std::{
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
    builder::ClusterBuilder,
    config::{BadKubeconfig, InferError},
    connect_error::ConnectError,
    name::ClusterName,
    settings::CacheSettings,
    state::ClusterState,
};
use self::{cache_runtime::CacheRuntime, links::Server};
use crate::{
    Client, EventCounts, Fence, FenceKeeper, FlowControlCount, Mapper, PluginCallCount, Recorder,
    RequestCount, RequestHistogram,
    presence::Presences,
    recorder::Events,
    transport::{SharedTransport, Transport},
};

/// Handle on a cluster. Cloning copies a pointer.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

pub(crate) struct Inner {
    name: ClusterName,
    config: Option<Config>,
    service: Option<kube::Client>,
    field_manager: Option<Arc<str>>,
    missing: CacheMissPolicy,
    /// Kinds that are always read from the server.
    uncached: HashSet<Resource>,
    // The first field with an effect on drop, so that requests end before the resources that they use are dropped.
    gate_keeper: FenceKeeper,
    shared: Arc<SharedTransport>,
    transport: Transport,
    mapper: Mapper,
    events: Events,
    reader: Arc<Reader>,
    cache: Cache,
    context: InformerContext,
    presences: Arc<Presences>,
    draining: watch::Sender<bool>,
    /// Stops the informers.
    closing: OnceLock<Task>,
    _cache_runtime: Option<CacheRuntime>,
}

impl Cluster {
    /// Builds a cluster named `default` from a configuration. Blocks this thread until an exec plugin returns
    /// credentials; [`ClusterBuilder::build`] runs the plugin on another thread.
    ///
    /// # Errors
    /// When the configuration is invalid, or when called outside of a tokio runtime. It does not check that the server
    /// answers.
    pub fn new(config: Config) -> Result<Self, ConnectError> {
        let builder = Self::builder(ClusterName::default()).config(config.clone());
        builder.build_here(Server::At(Box::new(config)))
    }

    /// Returns a builder for a cluster with this name.
    pub fn builder(name: impl Into<ClusterName>) -> ClusterBuilder {
        ClusterBuilder::new(name.into())
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// Returns a builder for another connection to the same server. It copies the clock and the names of this cluster,
    /// and shares neither connections nor cache, gate or counters.
    pub fn another(&self, name: impl Into<ClusterName>) -> ClusterBuilder {
        let mut builder = Self::builder(name)
            .clock(Arc::clone(self.clock()))
            .user_agent(self.user_agent());
        if let Some(name) = &self.0.field_manager {
            builder = builder.field_manager(&**name);
        }
        match (&self.0.service, &self.0.config) {
            (Some(service), _) => builder.service(service.clone()),
            (None, Some(config)) => builder.config(config.clone()),
            (None, None) => builder,
        }
    }

    /// Reports whether both handles refer to the same cluster, not only to clusters of the same name.
    #[must_use]
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the name of the cluster.
    #[must_use]
    pub fn name(&self) -> &ClusterName {
        &self.0.name
    }

    /// Returns the configuration, or `None` if the cluster was built from a [service](ClusterBuilder::service).
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        self.0.config.as_ref()
    }

    /// Returns the value of the `User-Agent` header.
    #[must_use]
    pub fn user_agent(&self) -> &str {
        // The value was built from text.
        self.0.shared.user_agent.to_str().unwrap_or_default()
    }

    /// Returns a client that reads through the cache and writes to the server.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(&self.0)
    }

    /// Returns a client that reads from and writes to the server.
    #[must_use]
    pub fn live(&self) -> Client {
        self.client().live()
    }

    /// Returns the cache with all informers of the cluster.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// Returns the mapper, which finds the resources that the server has.
    #[must_use]
    pub fn mapper(&self) -> &Mapper {
        &self.0.mapper
    }

    /// Returns the clock of the cluster. Do not compare its times with times of other clocks.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.shared.clock
    }

    /// Returns an event recorder for a component, such as a controller, by its name.
    #[must_use]
    pub fn recorder(&self, component: &str) -> Recorder {
        Recorder::new(&self.0, component)
    }

    /// Returns the number of recorded and dropped events.
    #[must_use]
    pub fn events(&self) -> EventCounts {
        self.0.events.counts()
    }

    /// Waits until all events recorded so far are written or dropped. Returns at once if no event was recorded.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn flush_events(&self) {
        self.0.events.flush().await;
    }

    /// Stops informers that have no holder, without waiting for the linger time. Informers in use stop without
    /// the linger delay once released.
    pub fn end_idle(&self) {
        for informer in self.0.cache.informers() {
            self.0.cache.end_idle(informer.resource());
        }
    }

    /// Sets the [state](Self::state) to draining. The cluster continues to accept requests, so that its users can
    /// finish, until it is [closed](Self::close).
    pub fn drain(&self) {
        self.0.draining.send_replace(true);
    }

    /// Rejects every request from now on, and stops all informers soon after. A closed cluster cannot be opened again;
    /// build a new one.
    ///
    /// Rejected requests report `reason` in their error.
    pub fn close(&self, reason: impl Into<Arc<str>>) {
        self.0.gate_keeper.close(reason);
        // In a task: a handler that calls this runs within an informer, and cannot stop that informer itself.
        self.0.closing.get_or_init(|| {
            let cache = self.0.cache.clone();
            self.0.context.spawner().spawn("closing", async move {
                for informer in cache.informers() {
                    cache.remove(informer.resource());
                }
            })
        });
    }

    /// Reports whether the cluster is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.shared.gate.check().is_err()
    }

    /// Runs `work` until it completes. Returns `None` if the cluster is closed first.
    ///
    /// # Cancel safety
    /// It is cancel safe if `work` is.
    pub async fn until_closed<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = work => Some(output),
            _ = self.0.shared.gate.closed() => None,
        }
    }

    /// Returns the number of requests by outcome, requests of the cache included. Each attempt counts.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestCount> {
        self.0.shared.meter.requests()
    }

    /// Returns the number of requests that API priority and fairness of the server rejected, by flow schema. Each attempt
    /// counts.
    #[must_use]
    pub fn flow_control_rejections(&self) -> Vec<FlowControlCount> {
        self.0.shared.flow_control.counts()
    }

    /// Returns the number of retried attempts by outcome.
    #[must_use]
    pub fn retries(&self) -> Vec<RequestCount> {
        self.0.shared.meter.retries()
    }

    /// Returns the durations and sizes of requests, requests of the cache included. Watches have none.
    #[must_use]
    pub fn request_histograms(&self) -> Vec<RequestHistogram> {
        self.0.shared.meter.histograms()
    }

    /// Returns the number of calls of the exec plugin by outcome.
    #[must_use]
    pub fn plugin_calls(&self) -> Vec<PluginCallCount> {
        self.0.shared.credentials.plugin_calls()
    }
}

impl Inner {
    pub(crate) fn presences(&self) -> &Presences {
        &self.presences
    }

    pub(crate) fn context(&self) -> &InformerContext {
        &self.context
    }

    pub(crate) fn name(&self) -> &ClusterName {
        &self.name
    }

    pub(crate) fn field_manager(&self) -> Option<&Arc<str>> {
        self.field_manager.as_ref()
    }

    pub(crate) fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(crate) fn gate(&self) -> &Fence {
        &self.shared.gate
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

    /// Returns the shared reader, for clients without a separate one.
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

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("name", &self.0.name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
