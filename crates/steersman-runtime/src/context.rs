// SPDX-License-Identifier: Apache-2.0
//! What a reconciler is handed beside the request.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use steersman_cache::Query;
use steersman_cluster::{Client, Cluster, ClusterName, Recorder};
use steersman_core::Clock;

use crate::{
    ClusterSet, Metrics, Stop, StopHandle, cluster_session::ClusterSession, cluster_set::ClusterGuard,
    indexes::BY_CONTROLLER,
};

/// The clients and the circumstances of one reconcile. It is owned and cheap to clone.
#[derive(Clone)]
pub struct Context {
    engagement: Arc<ClusterSession>,
    circumstances: Circumstances,
    handler: Option<Arc<str>>,
    /// The other clusters that this reconcile works on.
    visits: Arc<Mutex<BTreeMap<u64, ClusterGuard>>>,
}

/// What is special about one reconcile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Circumstances {
    pub(crate) number: u64,
    /// How often the key failed in succession before.
    pub(crate) failures: u32,
    pub(crate) priority: i32,
    /// Somebody enqueued the key. Otherwise only the outcome of the last reconcile did.
    pub(crate) is_news: bool,
}

impl Context {
    pub(crate) fn new(engagement: Arc<ClusterSession>, circumstances: Circumstances) -> Self {
        Self {
            engagement,
            circumstances,
            handler: None,
            visits: Arc::default(),
        }
    }

    /// The same for one of several handlers, with the number of its own failures.
    pub(crate) fn of_handler(&self, handler: &Arc<str>, failures: u32) -> Self {
        Self {
            engagement: Arc::clone(&self.engagement),
            circumstances: Circumstances {
                failures,
                ..self.circumstances
            },
            handler: Some(Arc::clone(handler)),
            visits: Arc::clone(&self.visits),
        }
    }

    pub(crate) fn is_news(&self) -> bool {
        self.circumstances.is_news
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.engagement.metrics
    }

    /// Whether a panic is to be counted and tried again, instead of ending the run.
    pub(crate) fn recovers_panics(&self) -> bool {
        self.engagement.recovers_panics
    }

    /// How long each of several handlers may take.
    pub(crate) fn handler_limit(&self) -> Option<Duration> {
        self.engagement.handler_limit
    }

    /// A context outside of any controller, for tests that call a reconciler as the function it is.
    ///
    /// The handle stops what the reconciler waits for; it lasts as long as it is held.
    #[must_use]
    pub fn standalone(cluster: &Cluster) -> (StopHandle, Self) {
        let (handle, engagement) = alone(cluster);
        (handle, Self::new(Arc::new(engagement), ALONE))
    }

    /// The same, where somebody is told of each event that is recorded.
    pub(crate) fn standalone_recorded(
        cluster: &Cluster,
        observer: impl Fn(&steersman_cluster::RecordedEvent) + Send + Sync + 'static,
    ) -> (StopHandle, Self) {
        let (handle, engagement) = alone(cluster);
        (handle, Self::new(Arc::new(engagement.recorded(observer)), ALONE))
    }

    /// Reads from the cache of the request's cluster and writes to its server, as long as this controller may.
    ///
    /// A kind that the controller watches is read in the scopes in which it watches it; see
    /// [`Builder::owns`](crate::Builder::owns). Other kinds are read as the cache is set up for them, and their informers
    /// last as long as the run. Declare those with [`Builder::reads`](crate::Builder::reads).
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.engagement.client
    }

    /// Lists the objects of a kind that `owner` controls, from the cache. For a kind that the controller [owns](crate::Builder::owns)
    /// this is a lookup by index; for another kind it reads every object.
    ///
    /// # Errors
    /// When the cache is not in sync, or an object does not decode.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn owned<C: steersman_cluster::Kind>(
        &self,
        owner: &impl kube::Resource,
    ) -> Result<Vec<Arc<C>>, steersman_cluster::Error> {
        let metadata = owner.meta();
        let query = match &metadata.namespace {
            Some(namespace) => Query::new().namespace(namespace),
            None => Query::new(),
        };
        let uid = metadata.uid.clone().unwrap_or_default();
        self.client().list(&query.index(&BY_CONTROLLER, uid)).await
    }

    /// The raw client, which passes the same gate. Its writes are not visible in the cache before the watch reports them, and
    /// do not count for [`hot_loop_limit`](crate::Options::hot_loop_limit).
    #[must_use]
    pub fn kube(&self) -> kube::Client {
        self.engagement.client.kube()
    }

    /// The request's cluster. It is that of the whole manager: what its own [client](Cluster::client) writes passes no
    /// fence. For writes there is [`client`](Self::client).
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.engagement.cluster
    }

    /// The client of another cluster of the same manager, behind the same gate. What its reads keep in the cache there is
    /// let go when the run ends, as with [`client`](Self::client). Whoever removes that cluster waits, within the grace
    /// period, until this context and its clones are dropped.
    #[must_use]
    pub fn client_of(&self, cluster: &ClusterName) -> Option<Client> {
        let (client, visit) = self.engagement.client_of(cluster)?;
        if let Some(visit) = visit {
            let mut visits = self.visits.lock().unwrap_or_else(PoisonError::into_inner);
            visits.entry(visit.member().number()).or_insert(visit);
        }
        Some(client)
    }

    /// Writes events about objects of the request's cluster, in the name of the controller.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.engagement.recorder
    }

    /// The controller's name.
    #[must_use]
    pub fn controller(&self) -> &str {
        &self.engagement.controller
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.engagement.cluster.clock()
    }

    /// Tells this reconcile from every other one of the process. It is in the log as `reconcile_id`.
    #[must_use]
    pub fn reconcile_id(&self) -> u64 {
        self.circumstances.number
    }

    /// The number of this attempt: 1 at first, and one more after each failure in succession. With several
    /// [`Handlers`](crate::Handlers), each counts its own. The log has the same number as `attempt`.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.circumstances.failures.saturating_add(1)
    }

    /// Which of several [`Handlers`](crate::Handlers) this is for, where there are such.
    #[must_use]
    pub fn handler(&self) -> Option<&str> {
        self.handler.as_deref()
    }

    /// The priority that the key was queued with.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.circumstances.priority
    }

    /// Says when the controller is to end. A reconcile may finish what it does within the grace period, with a client
    /// that works; one that waits for something long can give up earlier. It also says when leadership is lost. Then there is
    /// no time: the reconcile is cancelled where it waits next, and this is for what cannot be cancelled.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.engagement.stop
    }
}

/// The circumstances of a reconcile outside of any controller.
const ALONE: Circumstances = Circumstances {
    number: 0,
    failures: 0,
    priority: 0,
    is_news: true,
};

/// Work on a cluster outside of any controller.
fn alone(cluster: &Cluster) -> (StopHandle, ClusterSession) {
    let (handle, stop) = StopHandle::new();
    let fleet = ClusterSet::new();
    // An empty fleet has no cluster of this name.
    let _ = fleet.insert(cluster.clone());
    let engagement = ClusterSession::new(
        ("standalone", "standalone"),
        (cluster, None),
        None,
        None,
        fleet,
        stop,
    );
    (handle, engagement)
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("controller", &self.controller())
            .field("cluster", self.cluster().name())
            .field("handler", &self.handler)
            .field("reconcile_id", &self.reconcile_id())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
