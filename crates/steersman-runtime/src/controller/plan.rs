// SPDX-License-Identifier: Apache-2.0
//! What a run of a controller is made of. It never changes, and holds nothing that runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use steersman_cache::Resource;
use steersman_cluster::{Cluster, ClusterName};
use steersman_queue::Queue;
use tokio::sync::watch;

use super::LateSeries;
use crate::{
    BoxReconciler, ControllerError, Metrics, Options, RequestKey,
    metrics::{Queued, Series},
    namespaced::Namespaced,
    source::{AnySource, KindSpec},
};

/// What a run is made of.
pub(crate) struct Plan<R: RequestKey> {
    pub(crate) name: Arc<str>,
    pub(crate) home: Cluster,
    pub(crate) sources: Vec<AnySource<R>>,
    pub(crate) reconciler: BoxReconciler<R>,
    pub(crate) options: Options,
    /// It is there before the first run and between runs, paused.
    pub(crate) queue: Arc<Queue<R>>,
    pub(crate) series: Arc<LateSeries>,
    /// The kind of the objects that the controller reconciles, if it has one.
    pub(crate) primary: Option<Resource>,
    /// The primary resource and whether its objects are in namespaces, where a server has to be asked for that.
    pub(crate) unknown_scope: Option<(Resource, Namespaced)>,
    /// What the reconciler remembers of keys, where it is several in one.
    memory: Option<Arc<dyn Memory<R>>>,
    /// Counts how often everything was to be looked at again.
    replays: watch::Sender<u64>,
    is_running: AtomicBool,
}

/// What several handlers remember of keys, beside what the queue knows.
pub(crate) trait Memory<R>: Send + Sync {
    /// Forgets a key.
    fn forget(&self, key: &R);
    /// Forgets all keys that are meant.
    fn forget_all(&self, is_meant: &dyn Fn(&R) -> bool);
}

/// Says that no run is there, when it drops.
pub(crate) struct OnlyRun<'p>(&'p AtomicBool);

impl Drop for OnlyRun<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<R: RequestKey> Plan<R> {
    pub(crate) fn new(
        (name, home): (Arc<str>, Cluster),
        sources: Vec<AnySource<R>>,
        reconciler: BoxReconciler<R>,
        (options, queue): (Options, steersman_queue::Options<R>),
        series: Arc<LateSeries>,
        primary: Option<Resource>,
        unknown_scope: Option<(Resource, Namespaced)>,
    ) -> Self {
        let queue = queue
            .named(&name)
            .paused()
            .metrics(Arc::clone(&series) as Arc<dyn steersman_queue::Metrics>);
        Self {
            queue: Arc::new(Queue::new(Arc::clone(home.clock()), queue)),
            name,
            home,
            sources,
            reconciler,
            options,
            series,
            primary,
            unknown_scope,
            memory: None,
            replays: watch::Sender::default(),
            is_running: AtomicBool::new(false),
        }
    }

    /// The same, whose reconciler is several in one and remembers something of keys.
    pub(crate) fn remembering(self, memory: Option<Arc<dyn Memory<R>>>) -> Self {
        Self { memory, ..self }
    }

    /// Forgets all keys that are meant, and says how many were queued.
    pub(crate) fn purge(&self, is_meant: impl Fn(&R) -> bool) -> usize {
        let purged = self.queue.purge(&is_meant);
        if let Some(memory) = &self.memory {
            memory.forget_all(&is_meant);
        }
        purged
    }

    /// Counts a panic of something else than a reconcile.
    pub(crate) fn count_panic(&self) {
        if let Some(series) = self.series.get() {
            series.other_panics.inc();
        }
    }

    /// Whether its reconciler remembers something of keys.
    pub(crate) fn remembers(&self) -> bool {
        self.memory.is_some()
    }

    /// A key was worked on. If the queue does not know it any more, nobody does.
    pub(crate) fn settle(&self, key: &R) {
        if let Some(memory) = &self.memory
            && self.queue.status(key).is_none()
        {
            memory.forget(key);
        }
    }

    /// How long a reconcile may take.
    pub(crate) fn reconcile_limit(&self) -> Option<Duration> {
        let limit = self.options.reconcile_limit();
        // Each of several handlers has that for itself.
        limit.filter(|_| !self.remembers())
    }

    /// How long each of several handlers may take.
    pub(crate) fn handler_limit(&self) -> Option<Duration> {
        let limit = self.options.reconcile_limit();
        limit.filter(|_| self.remembers())
    }

    /// The cluster of this name that a source is bound to.
    pub(crate) fn bound_cluster(&self, name: &ClusterName) -> Option<Cluster> {
        let mut kinds = self.sources.iter().filter_map(|source| source.kind());
        let bound = kinds.find_map(|kind| kind.cluster(&self.home).filter(|cluster| cluster.name() == name));
        bound.filter(|cluster| !cluster.is_closed()).cloned()
    }

    /// Enqueues every object again that the informers of its sources hold.
    pub(crate) fn replay(&self) {
        self.replays.send_modify(|replays| *replays += 1);
    }

    /// Tells a source when to enqueue again what its informers hold.
    pub(crate) fn replays(&self) -> watch::Receiver<u64> {
        self.replays.subscribe()
    }

    /// Whether the primary kind is watched in every cluster.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.sources.first().is_some_and(AnySource::is_everywhere)
    }

    /// The primary kind, where the work on a cluster ends with it although the controller goes on.
    pub(crate) fn passing_kind(&self, cluster: &Cluster) -> Option<&KindSpec> {
        self.primary_in(cluster).filter(|kind| kind.waits())
    }

    /// The primary kind, if it is watched in this cluster.
    fn primary_in(&self, cluster: &Cluster) -> Option<&KindSpec> {
        let kind = self.sources.first().and_then(AnySource::kind)?;
        let is_meant = kind
            .cluster(&self.home)
            .is_none_or(|meant| meant.name() == cluster.name());
        Some(kind).filter(|_| self.primary.is_some() && is_meant)
    }

    pub(crate) fn begin(&self) -> Result<OnlyRun<'_>, ControllerError> {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Err(ControllerError::AlreadyRunning {
                controller: self.name.to_string(),
            });
        }
        Ok(OnlyRun(&self.is_running))
    }

    /// The series of this controller: those of the host that runs it first.
    pub(crate) fn series(&self, metrics: &Metrics) -> &Series {
        self.series.get_or_init(|| {
            let queue = Arc::downgrade(&self.queue);
            metrics.series(&self.name, queue as std::sync::Weak<dyn Queued>)
        })
    }
}
