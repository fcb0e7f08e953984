// SPDX-License-Identifier: Apache-2.0
//! Maps kinds to the resources that a server has, and back.
//!
//! A [`Cluster`](crate::Cluster) has one [`Mapper`]. It sends a discovery request when it is asked for a kind that it
//! does not know, and caches the answer.
//!
//! ```no_run
//! use steersman_cluster::{ResourceQuery, Cluster};
//!
//! # async fn example(cluster: Cluster) -> Result<(), Box<dyn std::error::Error>> {
//! let mapping = cluster.mapper().resolve(&ResourceQuery::kind("apps", "Deployment")).await?;
//! assert_eq!(mapping.resource().to_string(), "deployments.apps/v1");
//! assert!(mapping.is_namespaced() && mapping.has_subresource("scale"));
//! let deployments = cluster.client().of(mapping.resource());
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! 1. The mapper sends no request until it is asked, and none for a known kind, unless
//!    [`resolve_anew`](Mapper::resolve_anew) requests it.
//! 2. An unknown kind causes at most one request every two seconds. Until then the answer is that it does not exist.
//! 3. Concurrent callers wait for the same request. No lock is held across it.
//! 4. Of several versions, the mapper returns the one that the server preferred at the time of the request. Known
//!    entries stay as they were: a version that is preferred later, or a new subresource, is found by
//!    [`resolve_anew`](Mapper::resolve_anew), or when an unknown kind is resolved.
//! 5. A failed part of discovery removes no known entry, and a kind that it might contain is
//!    [undecided](MapError::Undecided), not missing.
//! 6. When a client finds that a version of a kind was removed, the mapper forgets it, and requests it again at the
//!    same rate.
//!
//! # Discovery requests
//! The mapper uses aggregated discovery, which servers have since Kubernetes 1.26. It sends the ETag of the last
//! answer, so that an unchanged answer costs almost nothing. On a server without aggregated discovery, it requests the
//! versions of the one group that is needed.

mod discovery;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, Shared as SharedFuture, WeakShared},
    stream,
};
use steersman_cache::Resource;
use steersman_core::{Clock, MonotonicTime, Mutex, Presence, RwLock};

use self::{
    discovery::Failure,
    table::{Lookup, Source, Table},
};
use crate::{Kind, transport::Transport};

/// Lifetime of a negative answer.
const NEGATIVE: Duration = Duration::from_secs(2);

/// Number of groups that are requested concurrently where each group is a separate request, so that one group that does
/// not answer does not block the others.
const QUESTIONS_AT_ONCE: usize = 8;

/// Caches the resources that a server has. Cloning copies a pointer.
#[derive(Clone)]
pub struct Mapper(Arc<Shared>);

struct Shared {
    transport: Transport,
    clock: Arc<dyn Clock>,
    table: RwLock<Table>,
    /// Requests under way.
    flights: Mutex<HashMap<Source, WeakShared<Flight>>>,
}

/// Result of a discovery request for some groups.
pub(crate) struct Renewed {
    pub(crate) groups: Vec<String>,
    /// The error, if the request failed.
    pub(crate) answer: Result<(), Arc<str>>,
}

type Flight = BoxFuture<'static, Result<(), Arc<Failure>>>;

/// Query for a kind or a resource of a group, in a given version or in the version that the server prefers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct ResourceQuery {
    group: String,
    version: Option<String>,
    name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    Kind(String),
    Plural(String),
}

/// A resource that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    resource: Resource,
    namespaced: bool,
    verbs: Vec<String>,
    subresources: Vec<String>,
}

/// The mapper has no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The server does not have the resource.
    #[error("the server does not have {ask}")]
    NoMatch {
        /// The query.
        ask: ResourceQuery,
    },
    /// Discovery currently has no information about this group.
    #[error("cannot determine whether the server has {ask}: discovery has no information about that group")]
    Undecided {
        /// The query.
        ask: ResourceQuery,
    },
    /// The discovery request failed.
    #[error("cannot determine whether the server has {ask}")]
    Discovery {
        /// The query.
        ask: ResourceQuery,
        /// Cause.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl ResourceQuery {
    /// Queries a kind such as `Deployment` of a group such as `apps`. The core group is empty.
    pub fn kind(group: &str, kind: &str) -> Self {
        Self::new(group, Name::Kind(kind.to_owned()))
    }

    /// Queries a resource by its plural name, such as `deployments`.
    pub fn plural(group: &str, plural: &str) -> Self {
        Self::new(group, Name::Plural(plural.to_owned()))
    }

    /// Queries the kind of a Rust type, in its version.
    pub fn of<K: Kind>() -> Self {
        Self::kind(&K::group(&()), &K::kind(&())).version(&K::version(&()))
    }

    /// Sets the version. Default: the version that the server prefers.
    pub fn version(mut self, version: &str) -> Self {
        self.version = Some(version.to_owned());
        self
    }

    fn new(group: &str, name: Name) -> Self {
        Self {
            group: group.to_owned(),
            version: None,
            name,
        }
    }
}

impl Mapping {
    /// Returns the names of the resource.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Reports whether the resource is namespaced.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.namespaced
    }

    /// Returns the verbs of the resource, such as `watch`.
    #[must_use]
    pub fn verbs(&self) -> &[String] {
        &self.verbs
    }

    /// Returns the subresources, such as `status`.
    #[must_use]
    pub fn subresources(&self) -> &[String] {
        &self.subresources
    }

    /// Reports whether the resource has this subresource.
    #[must_use]
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|subresource| subresource == name)
    }
}

impl Mapper {
    pub(crate) fn new(transport: Transport, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared {
            transport,
            clock,
            table: RwLock::default(),
            flights: Mutex::default(),
        }))
    }

    /// Returns the resource that matches a query.
    ///
    /// # Errors
    /// When the server does not have it, or the discovery request fails.
    ///
    /// # Cancel safety
    /// It can be dropped at any time. Other callers that wait for the same answer are not affected.
    pub async fn resolve(&self, ask: &ResourceQuery) -> Result<Arc<Mapping>, MapError> {
        match self.look(ask) {
            Lookup::Found(mapping) => Ok(mapping),
            Lookup::Unknown {
                asked: Some(asked),
                is_stale,
                ..
            } if self.now().saturating_since(asked) < NEGATIVE => Err(ask.missing(is_stale)),
            Lookup::Unknown { .. } => self.resolve_anew(ask).await,
        }
    }

    /// Returns the resource that matches a query, from a new discovery request. The request carries the ETag of the
    /// last answer, so that an unchanged answer is small; but each call sends a request.
    ///
    /// ```no_run
    /// # use steersman_cluster::{ResourceQuery, Cluster};
    /// # async fn example(cluster: Cluster) -> Result<(), steersman_cluster::MapError> {
    /// // The CRD has changed: is there a newer version?
    /// let widgets = cluster.mapper().resolve_anew(&ResourceQuery::kind("example.com", "Widget")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the server does not have it, or the discovery request fails.
    ///
    /// # Cancel safety
    /// It can be dropped at any time. Other callers that wait for the same answer are not affected.
    pub async fn resolve_anew(&self, ask: &ResourceQuery) -> Result<Arc<Mapping>, MapError> {
        if let Err(source) = self.refresh(ask).await {
            let ask = ask.clone();
            return Err(MapError::Discovery { ask, source });
        }
        match self.look(ask) {
            Lookup::Found(mapping) => Ok(mapping),
            Lookup::Unknown { is_stale, .. } => Err(ask.missing(is_stale)),
        }
    }

    /// Waits until the server has the resource of a query. It retries until `deadline`, which is a time of the [clock
    /// of the cluster](crate::Cluster::clock).
    ///
    /// # Errors
    /// The last error, at the deadline or when the cluster was closed.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn resolve_until(
        &self,
        ask: &ResourceQuery,
        deadline: MonotonicTime,
    ) -> Result<Arc<Mapping>, MapError> {
        loop {
            let error = match self.resolve(ask).await {
                Ok(mapping) => return Ok(mapping),
                Err(error) => error,
            };
            let now = self.now();
            if now >= deadline || self.0.transport.is_closed() {
                return Err(error);
            }
            let asked = match self.look(ask) {
                Lookup::Unknown { asked, .. } => asked.unwrap_or(now),
                Lookup::Found(_) => continue,
            };
            // Not after the deadline, for a last attempt.
            let next = (asked.max(now) + NEGATIVE).min(deadline);
            self.0.clock.sleep_until(next).await;
        }
    }

    /// Returns the known resource that matches a query, without a request.
    #[must_use]
    pub fn known(&self, ask: &ResourceQuery) -> Option<Arc<Mapping>> {
        match self.look(ask) {
            Lookup::Found(mapping) => Some(mapping),
            Lookup::Unknown { .. } => None,
        }
    }

    /// Requests discovery for these groups again, one request for each source, several at a time, in the order of their
    /// names. If the server turns out not to have aggregated discovery, none of the groups is answered.
    pub(crate) fn renew(&self, groups: BTreeSet<String>) -> impl Stream<Item = Renewed> + use<> {
        let mut questions: BTreeMap<Source, Vec<String>> = BTreeMap::new();
        for group in groups {
            let source = self.read(|table| table.source(&group));
            questions.entry(source).or_default().push(group);
        }
        let mapper = self.clone();
        let asked = stream::iter(questions).map(move |(source, groups)| {
            let flight = mapper.join(&source);
            async move {
                let answer = flight.await.map_err(|failure| failure.to_text());
                Renewed { groups, answer }
            }
        });
        asked.buffer_unordered(QUESTIONS_AT_ONCE)
    }

    /// Returns the time of the last discovery of the query's group, unless the queried entry was forgotten since.
    pub(crate) fn asked(&self, ask: &ResourceQuery) -> Option<MonotonicTime> {
        self.read(|table| match table.look(ask) {
            Lookup::Unknown {
                is_forgotten: true, ..
            } => None,
            _ => table.asked(&ask.group),
        })
    }

    /// Returns the presence of a resource according to discovery.
    pub(crate) fn presence(&self, ask: &ResourceQuery) -> Presence {
        match self.look(ask) {
            Lookup::Found(_) => Presence::Present,
            Lookup::Unknown {
                asked: Some(_),
                is_stale: false,
                is_forgotten: false,
            } => Presence::Absent,
            Lookup::Unknown { .. } => Presence::Unknown,
        }
    }

    /// Forgets a resource in its version, for example because the server does not have it any more. Later queries
    /// request it again, at the same rate as an unknown kind.
    pub fn forget(&self, resource: &Resource) {
        self.0.forget(resource, |other| {
            (other.plural(), other.version()) == (resource.plural(), resource.version())
        });
    }

    /// Forgets a resource in all versions.
    pub(crate) fn forget_versions(&self, resource: &Resource) {
        self.0
            .forget(resource, |other| other.plural() == resource.plural());
    }

    /// Waits for discovery of the query's group: for a request under way, or a new one.
    async fn refresh(&self, ask: &ResourceQuery) -> Result<(), Arc<Failure>> {
        loop {
            let source = self.read(|table| table.source(&ask.group));
            self.join(&source).await?;
            // The server turned out not to have aggregated discovery: request this group.
            if self.read(|table| table.source(&ask.group)) == source {
                return Ok(());
            }
        }
    }

    fn join(&self, source: &Source) -> SharedFuture<Flight> {
        let mut flights = self.0.flights.lock();
        if let Some(flight) = flights.get(source).and_then(WeakShared::upgrade) {
            return flight;
        }
        let flight = Arc::clone(&self.0).ask(source.clone()).boxed().shared();
        flights.retain(|_, flight| flight.upgrade().is_some());
        flights.extend(flight.downgrade().map(|flight| (source.clone(), flight)));
        flight
    }

    fn look(&self, ask: &ResourceQuery) -> Lookup {
        self.read(|table| table.look(ask))
    }

    fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        self.0.read(read)
    }

    fn now(&self) -> MonotonicTime {
        self.0.clock.now()
    }
}

impl Shared {
    /// Sends a discovery request and stores the answer.
    async fn ask(self: Arc<Self>, source: Source) -> Result<(), Arc<Failure>> {
        let tag = self.read(|table| table.tag(&source));
        let answer = discovery::ask(&self.transport, &source, tag).await;
        let mut table = self.table.write();
        table.note(source, self.clock.now(), answer).map_err(Arc::new)
    }

    fn forget(&self, resource: &Resource, is_meant: impl Fn(&Resource) -> bool) {
        let mut table = self.table.write();
        table.forget(resource.group(), is_meant);
    }

    fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.table.read())
    }
}

impl ResourceQuery {
    fn missing(&self, is_stale: bool) -> MapError {
        let ask = self.clone();
        if is_stale {
            MapError::Undecided { ask }
        } else {
            MapError::NoMatch { ask }
        }
    }
}

impl fmt::Display for ResourceQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Name::Kind(name) | Name::Plural(name)) = &self.name;
        f.write_str(name)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        match &self.version {
            Some(version) => write!(f, "/{version}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Mapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mapper").finish_non_exhaustive()
    }
}
