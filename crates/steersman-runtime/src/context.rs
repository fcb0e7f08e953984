// SPDX-License-Identifier: Apache-2.0
//! The context of a reconcile.

use std::{collections::BTreeMap, fmt, sync::Arc};

use kube::core::PartialObjectMeta;
use steersman_cache::Query;
use steersman_cluster::{Client, Cluster, ClusterName, Recorder};
use steersman_core::{Clock, Mutex};

use crate::{
    ClusterSet, Stop, StopHandle,
    cluster_session::{ClusterSession, SessionOptions},
    cluster_set::ClusterGuard,
    indexes::BY_CONTROLLER,
};

/// Context of one reconcile: clients, recorder, attempt and stop request. It is owned and cheap to clone.
#[derive(Clone)]
pub struct Context {
    session: Arc<ClusterSession>,
    attempt: Attempt,
    /// Guards of the other clusters that this reconcile works on.
    guards: Arc<Mutex<BTreeMap<u64, ClusterGuard>>>,
    is_observe_only: bool,
}

/// One attempt to reconcile a key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    pub(crate) number: u64,
    /// Number of failures in a row before this attempt.
    pub(crate) failures: u32,
    pub(crate) priority: i32,
}

impl Context {
    pub(crate) fn new(session: Arc<ClusterSession>, attempt: Attempt) -> Self {
        Self {
            session,
            attempt,
            guards: Arc::default(),
            is_observe_only: false,
        }
    }

    /// Marks the object as one that is only observed. The kit does that for the annotation of such objects.
    #[doc(hidden)]
    #[must_use]
    pub fn observe_only(mut self) -> Self {
        self.is_observe_only = true;
        self
    }

    /// Returns true if a person asked that the object is only observed: withhold writes for it. Only the kit sets this.
    #[must_use]
    pub fn is_observe_only(&self) -> bool {
        self.is_observe_only
    }

    /// Makes a context without a controller, for tests that call a reconciler directly.
    ///
    /// The handle requests a stop. The context stays valid while you hold the handle.
    #[must_use]
    pub fn standalone(cluster: &Cluster) -> (StopHandle, Self) {
        let (handle, session) = alone(cluster, STANDALONE);
        (handle, Self::new(Arc::new(session), ALONE))
    }

    /// As `standalone`, for a controller of this name, with a callback for each recorded event.
    pub(crate) fn standalone_recorded(
        cluster: &Cluster,
        controller: &str,
        observer: impl Fn(&steersman_cluster::RecordedEvent) + Send + Sync + 'static,
    ) -> (StopHandle, Self) {
        let (handle, session) = alone(cluster, controller);
        (handle, Self::new(Arc::new(session.recorded(observer)), ALONE))
    }

    /// Client that reads from the cache of the request's cluster and writes to its server. Its writes are fenced: they fail
    /// once this replica does not lead any more.
    ///
    /// A kind that the controller watches is read in the scopes in which the controller watches it; see
    /// [`Builder::owns`](crate::Builder::owns). Other kinds are read in the scope that the cache is set up for, and their
    /// informers last as long as the run. Declare those with [`Builder::reads`](crate::Builder::reads).
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.session.client
    }

    /// Lists the objects of a kind that `owner` controls, from the cache. For a kind that the controller [owns](crate::Builder::owns)
    /// this is a lookup by index; for another kind it reads every object.
    ///
    /// # Errors
    /// When the cache is not in sync, an object does not decode, or the controller watches only the
    /// [metadata](crate::metadata) of the kind: then call [`owned_metadata`](Self::owned_metadata).
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn owned<C: steersman_cluster::Kind>(
        &self,
        owner: &impl kube::Resource,
    ) -> Result<Vec<Arc<C>>, steersman_cluster::Error> {
        self.client().list(&controlled_by(owner)).await
    }

    /// Same as [`owned`](Self::owned), with the metadata of the objects only. The cache keeps no more than that for a kind of
    /// `owns_with(metadata::<C>())`.
    ///
    /// # Errors
    /// When the cache is not in sync.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn owned_metadata<C: steersman_cluster::Kind>(
        &self,
        owner: &impl kube::Resource,
    ) -> Result<Vec<Arc<PartialObjectMeta<C>>>, steersman_cluster::Error> {
        self.client().metadata::<C>().list(&controlled_by(owner)).await
    }

    /// Raw client, with the same fence. Its writes are not visible in the cache before the watch reports them, and do not
    /// count for [`hot_loop_limit`](crate::Options::hot_loop_limit).
    #[must_use]
    pub fn kube(&self) -> kube::Client {
        self.session.client.kube()
    }

    /// The request's cluster, shared by the whole manager. Its own [client](Cluster::client) is not restricted to the
    /// leader; use [`client`](Self::client) for writes.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.session.cluster
    }

    /// Client of another cluster of the same manager, with the same fence. Informers that its reads open are released when
    /// the run ends, as with [`client`](Self::client). Removal of that cluster waits, up to the shutdown timeout, until
    /// this context and its clones are dropped.
    #[must_use]
    pub fn client_of(&self, cluster: &ClusterName) -> Option<Client> {
        let (client, guard) = self.session.client_of(cluster)?;
        if let Some(guard) = guard {
            let mut guards = self.guards.lock();
            guards.entry(guard.member().number()).or_insert(guard);
        }
        Some(client)
    }

    /// Recorder of events about objects of the request's cluster, with the controller as the reporter.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.session.recorder
    }

    /// Name of the controller.
    #[must_use]
    pub fn controller(&self) -> &str {
        &self.session.controller
    }

    /// Field manager of the writes of the controller.
    #[must_use]
    pub fn field_manager(&self) -> &str {
        self.session.field_manager()
    }

    /// Clock of the run.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.session.cluster.clock()
    }

    /// Identifier of this reconcile, unique within the process. The log has it as `reconcile_id`.
    #[must_use]
    pub fn reconcile_id(&self) -> u64 {
        self.attempt.number
    }

    /// Number of this attempt: 1 at first, plus one for each failure in a row. The log has the same number as `attempt`.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt.failures.saturating_add(1)
    }

    /// Priority of the key when it was taken from the queue.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.attempt.priority
    }

    /// Stop request of the controller. On shutdown, a reconcile can finish within the shutdown timeout, and its client
    /// works until then; a reconcile that waits for something long should return earlier. The stop is also requested when
    /// leadership is lost. Then the reconcile is cancelled at its next `await`, and the request is for work that cannot be
    /// cancelled.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.session.stop
    }
}

/// Selects the objects that `owner` controls.
fn controlled_by(owner: &impl kube::Resource) -> Query {
    let metadata = owner.meta();
    let query = match &metadata.namespace {
        Some(namespace) => Query::new().namespace(namespace),
        None => Query::new(),
    };
    query.index(&BY_CONTROLLER, metadata.uid.clone().unwrap_or_default())
}

/// Facts about a reconcile without a controller.
const ALONE: Attempt = Attempt {
    number: 0,
    failures: 0,
    priority: 0,
};

/// Name of the controller of a context without one.
pub(crate) const STANDALONE: &str = "standalone";

/// Session of a cluster without a running controller.
fn alone(cluster: &Cluster, controller: &str) -> (StopHandle, ClusterSession) {
    let (handle, stop) = StopHandle::new();
    let cluster_set = ClusterSet::new();
    // An empty cluster set cannot have a cluster of this name.
    let _ = cluster_set.insert(cluster.clone());
    let options = SessionOptions {
        controller,
        field_manager: controller,
        guard: None,
        reads: None,
        fence: None,
        cluster_set,
        stop,
        on_removed: Arc::new([]),
    };
    let session = ClusterSession::new(cluster, options);
    (handle, session)
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("controller", &self.controller())
            .field("cluster", self.cluster().name())
            .field("reconcile_id", &self.reconcile_id())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
