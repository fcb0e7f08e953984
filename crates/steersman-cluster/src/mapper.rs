// SPDX-License-Identifier: Apache-2.0
//! From kinds to the resources by which a server names them, and back.
//!
//! A [`Cluster`](crate::Cluster) has one [`Mapper`]. It asks the server what it has (discovery) when it is asked for
//! something that it does not know, and remembers the answer.
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
//! 1. Nothing is sent before somebody asks, and nothing for what is known, unless it is asked for anew.
//! 2. What is not known is asked for at most every two seconds: until then the answer is that there is none.
//! 3. Who asks at the same time waits for the same request; no lock is held over it.
//! 4. Of several versions the one comes first that the server preferred when it was asked. What is known stays as it was
//!    then: a version that is preferred later, or a subresource that is added, is found by
//!    [`resolve_anew`](Mapper::resolve_anew), or when somebody asks for something that is not known.
//! 5. A part of discovery that fails takes nothing away that is known, and a kind that it may have is
//!    [undecided](MapError::Undecided), not missing.
//! 6. When a client finds that a version of a kind is gone, that one is forgotten, and asked for again at the same rate.
//!
//! # How it asks
//! For a list of all groups with all that is in them, which servers have since Kubernetes 1.26; with the tag of the last
//! answer, so that one that says nothing new costs next to nothing. A server that has no such list is asked for the
//! versions of the one group that is wanted.

mod discovery;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use futures::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, Shared as SharedFuture, WeakShared},
    stream,
};
use steersman_cache::Resource;
use steersman_core::{Clock, MonotonicTime, Presence};

use self::{
    discovery::Failure,
    table::{Lookup, Source, Table},
};
use crate::{Kind, transport::Transport};

/// So long an answer counts that there is none.
const NEGATIVE: Duration = Duration::from_secs(2);

/// So many groups are asked for at the same time where each is a question of its own, so that one which does not answer keeps
/// nobody from asking for the others.
const QUESTIONS_AT_ONCE: usize = 8;

/// Knows what a server has. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Mapper(Arc<Shared>);

struct Shared {
    transport: Transport,
    clock: Arc<dyn Clock>,
    table: RwLock<Table>,
    /// Requests that are under way.
    flights: Mutex<HashMap<Source, WeakShared<Flight>>>,
}

/// What the server said of some groups.
pub(crate) struct Renewed {
    pub(crate) groups: Vec<String>,
    /// What is in the way, if anything is.
    pub(crate) answer: Result<(), Arc<str>>,
}

type Flight = BoxFuture<'static, Result<(), Arc<Failure>>>;

/// What is asked for: a kind or a resource of a group, in some version or in the one that the server prefers.
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
    /// The server does not have it.
    #[error("the server does not have {ask}")]
    NoMatch {
        /// What was asked for.
        ask: ResourceQuery,
    },
    /// The server does not say what it has of this group at the moment.
    #[error("whether the server has {ask} cannot be told: it does not say what it has of that group")]
    Undecided {
        /// What was asked for.
        ask: ResourceQuery,
    },
    /// The server could not be asked.
    #[error("whether the server has {ask} cannot be told")]
    Discovery {
        /// What was asked for.
        ask: ResourceQuery,
        /// Why not.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl ResourceQuery {
    /// A kind such as `Deployment` of a group such as `apps`, which is empty for the core group.
    pub fn kind(group: &str, kind: &str) -> Self {
        Self::new(group, Name::Kind(kind.to_owned()))
    }

    /// The resource that paths name such as `deployments`.
    pub fn plural(group: &str, plural: &str) -> Self {
        Self::new(group, Name::Plural(plural.to_owned()))
    }

    /// The kind of a type, in its version.
    pub fn of<K: Kind>() -> Self {
        Self::kind(&K::group(&()), &K::kind(&())).version(&K::version(&()))
    }

    /// In this version. Default: the one that the server prefers.
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
    /// The names of the resource.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Whether its objects are in namespaces.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.namespaced
    }

    /// What can be done with it, such as `watch`.
    #[must_use]
    pub fn verbs(&self) -> &[String] {
        &self.verbs
    }

    /// Its subresources, such as `status`.
    #[must_use]
    pub fn subresources(&self) -> &[String] {
        &self.subresources
    }

    /// Whether it has this subresource.
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

    /// What the server has by this name.
    ///
    /// # Errors
    /// When it has none, or cannot be asked.
    ///
    /// # Cancel safety
    /// It can be dropped at any time. Others that wait for the same answer go on.
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

    /// What the server has by this name now, whatever is known. Who asks often asks with the tag of the last answer, and the
    /// server has little to say; but it is a request each time.
    ///
    /// ```no_run
    /// # use steersman_cluster::{ResourceQuery, Cluster};
    /// # async fn example(cluster: Cluster) -> Result<(), steersman_cluster::MapError> {
    /// // The definition of the kind has changed: is there a newer version?
    /// let widgets = cluster.mapper().resolve_anew(&ResourceQuery::kind("example.com", "Widget")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When it has none, or cannot be asked.
    ///
    /// # Cancel safety
    /// It can be dropped at any time. Others that wait for the same answer go on.
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

    /// What the server has by this name, as soon as it has it. It is asked again until the deadline, which is a moment
    /// of the [clock of the cluster](crate::Cluster::clock).
    ///
    /// # Errors
    /// What the last answer was at the deadline, or when the cluster was closed.
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
            // No later than the deadline, for a last look.
            let next = (asked.max(now) + NEGATIVE).min(deadline);
            self.0.clock.sleep_until(next).await;
        }
    }

    /// What is known by this name, without asking the server.
    #[must_use]
    pub fn known(&self, ask: &ResourceQuery) -> Option<Arc<Mapping>> {
        match self.look(ask) {
            Lookup::Found(mapping) => Some(mapping),
            Lookup::Unknown { .. } => None,
        }
    }

    /// Asks the server again about these groups, once for each question that it takes, a few of them at a time and in the
    /// order of their names. A server that turns out not to have a list of all groups has not answered for any of them.
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

    /// When the server was asked about the group of this, unless somebody found since that it is not as it said.
    pub(crate) fn asked(&self, ask: &ResourceQuery) -> Option<MonotonicTime> {
        self.read(|table| match table.look(ask) {
            Lookup::Unknown {
                is_forgotten: true, ..
            } => None,
            _ => table.asked(&ask.group),
        })
    }

    /// Whether the server has this, as far as it said so.
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

    /// Forgets a resource in its version, such as one that the server does not have any more. Whoever wants to know asks the
    /// server, as seldom as for anything that is not known.
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

    /// Waits for what the server says about the group of an ask: for a request that is under way, or a new one.
    async fn refresh(&self, ask: &ResourceQuery) -> Result<(), Arc<Failure>> {
        loop {
            let source = self.read(|table| table.source(&ask.group));
            self.join(&source).await?;
            // A server that turns out not to have a list of all groups is asked for this one.
            if self.read(|table| table.source(&ask.group)) == source {
                return Ok(());
            }
        }
    }

    fn join(&self, source: &Source) -> SharedFuture<Flight> {
        let mut flights = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Source, WeakShared<Flight>>> {
        self.0.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Asks the server, and notes what it says.
    async fn ask(self: Arc<Self>, source: Source) -> Result<(), Arc<Failure>> {
        let tag = self.read(|table| table.tag(&source));
        let answer = discovery::ask(&self.transport, &source, tag).await;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.note(source, self.clock.now(), answer).map_err(Arc::new)
    }

    fn forget(&self, resource: &Resource, is_meant: impl Fn(&Resource) -> bool) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.forget(resource.group(), is_meant);
    }

    fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.table.read().unwrap_or_else(PoisonError::into_inner))
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
