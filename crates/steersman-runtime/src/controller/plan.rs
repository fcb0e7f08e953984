// SPDX-License-Identifier: Apache-2.0
//! The plan of a controller. It never changes, and holds nothing that runs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use steersman_cache::Resource;
use steersman_cluster::{Cluster, ClusterName};
use steersman_queue::Queue;
use tokio::sync::watch;

use super::LateSeries;
use crate::{
    BoxReconciler, ControllerError, Metrics, Options, RequestKey,
    cluster_session::OnClusterRemoved,
    kind::KindSpec,
    metrics::{DeclaredMetric, Queued, Series},
    namespaced::Namespaced,
    source::AnySource,
};

/// The immutable parts of a controller, from which each run starts.
pub(crate) struct Plan<R: RequestKey> {
    pub(crate) name: Arc<str>,
    pub(crate) home: Cluster,
    pub(crate) sources: Vec<AnySource<R>>,
    pub(crate) reconciler: BoxReconciler<R>,
    pub(crate) options: Options,
    /// Exists before the first run and between runs, paused.
    pub(crate) queue: Arc<Queue<R>>,
    pub(crate) series: Arc<LateSeries>,
    /// The kind of the objects that the controller reconciles, if it has one.
    pub(crate) primary: Option<Resource>,
    /// The primary resource and its scope (namespaced or cluster-scoped), if only a server knows the scope.
    pub(crate) unknown_scope: Option<(Resource, Namespaced)>,
    /// Makes the user's span of a reconcile.
    pub(crate) span: Option<MakeSpan<R>>,
    /// Called after the work on a removed cluster has ended.
    pub(crate) on_cluster_removed: Arc<[OnClusterRemoved]>,
    /// Metrics that the reconciler declares.
    pub(crate) metrics: Vec<DeclaredMetric>,
    /// Counts the replays.
    pub(crate) replays: watch::Sender<u64>,
    pub(crate) is_running: AtomicBool,
}

/// Makes a span for the reconcile of a key.
pub(crate) type MakeSpan<R> = Arc<dyn Fn(&R) -> tracing::Span + Send + Sync>;

/// Guard of the only run; clears the flag on drop.
pub(crate) struct OnlyRun<'p>(&'p AtomicBool);

impl Drop for OnlyRun<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<R: RequestKey> Plan<R> {
    /// Creates the queue of a controller.
    pub(crate) fn queue(
        name: &str,
        home: &Cluster,
        options: steersman_queue::Options<R>,
        series: &Arc<LateSeries>,
    ) -> Queue<R> {
        let metrics = Arc::clone(series) as Arc<dyn steersman_queue::Metrics>;
        Queue::new(
            Arc::clone(home.clock()),
            options.named(name).paused().metrics(metrics),
        )
    }

    /// Returns the span of a reconcile: the user's within `outer`, or `outer` if there is none or the log filter disables
    /// it.
    pub(crate) fn span_in(&self, outer: tracing::Span, key: &R) -> tracing::Span {
        let inner = self.span.as_ref().map(|span| outer.in_scope(|| span(key)));
        inner.filter(|inner| !inner.is_disabled()).unwrap_or(outer)
    }

    /// Counts a panic outside of a reconcile.
    pub(crate) fn count_panic(&self) {
        if let Some(series) = self.series.get() {
            series.other_panics.inc();
        }
    }

    /// Returns the cluster of this name if a source is bound to it.
    pub(crate) fn bound_cluster(&self, name: &ClusterName) -> Option<Cluster> {
        let mut kinds = self.sources.iter().filter_map(|source| source.kind());
        let bound = kinds.find_map(|kind| kind.cluster(&self.home).filter(|cluster| cluster.name() == name));
        bound.filter(|cluster| !cluster.is_closed()).cloned()
    }

    /// Enqueues every object that the informers of the sources hold.
    pub(crate) fn replay(&self) {
        self.replays.send_modify(|replays| *replays += 1);
    }

    /// Notifies a source to enqueue again the objects that its informers hold.
    pub(crate) fn replays(&self) -> watch::Receiver<u64> {
        self.replays.subscribe()
    }

    /// Returns true if the primary kind is watched in every cluster.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.sources.first().is_some_and(AnySource::is_everywhere)
    }

    /// Returns the primary kind if its removal ends the work on this cluster but not the controller.
    pub(crate) fn passing_kind(&self, cluster: &Cluster) -> Option<&KindSpec> {
        self.primary_in(cluster).filter(|kind| kind.waits())
    }

    /// Returns the primary kind if it is watched in this cluster.
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

    /// Metric series of this controller: from the first manager that runs it.
    pub(crate) fn series(&self, metrics: &Metrics) -> &Series {
        self.series.get_or_init(|| {
            let queue = Arc::downgrade(&self.queue);
            metrics.series(&self.name, queue as std::sync::Weak<dyn Queued>, &self.metrics)
        })
    }
}
