// SPDX-License-Identifier: Apache-2.0
//! Sources: they produce the keys of a controller.
//!
//! A source is a plan. Each run of the controller starts the source anew, and the source lives as long as the run. Kinds
//! are the usual source; streams, channels and timers are for events outside of the cluster.
//!
//! # Guarantees
//! 1. A source enqueues the objects that exist when it starts, reports that it is ready, and then enqueues changes.
//! 2. A source ends with the run: it enqueues nothing afterwards.
//! 3. A failure of a source is a state with a reason. The source retries, and no other source is disturbed.

mod cluster_watch;
mod every;
mod kinds;
mod mapping;
mod others;
mod primary;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Clock, Spawner};
use tokio::sync::watch;

pub(crate) use kinds::{KindSource, OnDeleted};
pub use mapping::{AsyncMapping, MapAsync, MapContext, map_async};
pub(crate) use others::INTERVAL_MIN;
pub use others::{Channel, Sender, Stream, Timer, channel, every, stream};
pub(crate) use primary::{Primary, ToRequest};

use crate::{
    ClusterSet, Enqueue, RequestKey, RunContext,
    cached_reads::CachedReads,
    controller::{LateSeries, Plan},
    gate::{EnqueueSink, Gates},
    kind::KindSpec,
    run_context::ClusterRoles,
};

/// Produces keys for a controller.
///
/// The controller drops the future of [`run`](Self::run) when its run ends. If the future ends by itself, the source
/// enqueues nothing more. A run lasts over any number of terms of leadership: the source is not restarted when the replica
/// loses the lease, and the keys that it enqueues meanwhile wait in the queue.
pub trait Source<R: RequestKey>: Send + Sync + 'static {
    /// Name of the source in logs and readiness.
    fn name(&self) -> String;

    /// Enqueues the objects that exist, calls [`SourceContext::ready`], and then enqueues changes.
    fn run(&self, cx: SourceContext<R>) -> impl Future<Output = ()> + Send;
}

/// State of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceState {
    /// The source has not yet enqueued everything that exists.
    #[default]
    Waiting,
    /// The source has enqueued everything that exists.
    Ready,
    /// The kind is not installed, and the source does not require it.
    Dormant {
        /// The missing kind.
        reason: String,
    },
    /// The source fails.
    Trouble {
        /// The error.
        reason: String,
        /// The server does not have the kind.
        absent: bool,
        /// True if the source was ready before. Its data is then only outdated.
        was_ready: bool,
    },
    /// The source has enqueued all objects of the default cluster, and waits for non-default clusters.
    WaitingForOtherCluster,
    /// The source works on the default cluster, but some non-default clusters fail.
    OtherClusterTrouble {
        /// The clusters that fail, with the errors.
        reason: String,
        /// True if the source was ready before. Its data is then only outdated.
        was_ready: bool,
    },
}

impl SourceState {
    /// Returns true if the source has once enqueued everything that existed.
    pub(crate) fn has_been_ready(&self) -> bool {
        match self {
            Self::Waiting | Self::WaitingForOtherCluster => false,
            Self::Ready | Self::Dormant { .. } => true,
            Self::Trouble { was_ready, .. } | Self::OtherClusterTrouble { was_ready, .. } => *was_ready,
        }
    }

    /// Converts the state for a source that watches this non-default cluster. A kind that was never installed there is an
    /// error in the program, and stays a failure.
    pub(crate) fn elsewhere(self, cluster: &ClusterName) -> Self {
        match self {
            Self::Waiting => Self::WaitingForOtherCluster,
            Self::Trouble {
                reason,
                absent,
                was_ready,
            } if was_ready || !absent => Self::OtherClusterTrouble {
                reason: format!("{reason} (cluster {cluster})"),
                was_ready,
            },
            other => other,
        }
    }
}

/// Reports the state of one source.
#[derive(Clone)]
pub(crate) struct Reporter {
    states: Arc<watch::Sender<Vec<SourceState>>>,
    /// Index of the source among all sources.
    index: usize,
}

impl Reporter {
    pub(crate) fn new(states: &Arc<watch::Sender<Vec<SourceState>>>, index: usize) -> Self {
        Self {
            states: Arc::clone(states),
            index,
        }
    }

    pub(crate) fn report(&self, state: SourceState) {
        self.update(|_| state);
    }

    /// Reports a state that depends on the last one.
    pub(crate) fn update(&self, update: impl FnOnce(&SourceState) -> SourceState) {
        self.states.send_if_modified(|states| {
            let before = &mut states[self.index];
            let now = update(before);
            let is_new = *before != now;
            *before = now;
            is_new
        });
    }
}

/// Context of a source for one run. Clones share it.
#[derive(Clone)]
pub struct SourceContext<R: RequestKey> {
    sink: Arc<EnqueueSink<R>>,
    gates: Arc<Gates<R>>,
    home: Cluster,
    cluster_set: ClusterSet,
    cluster_roles: ClusterRoles,
    clock: Arc<dyn Clock>,
    spawner: Spawner,
    options: SourceOptions,
    reporter: Reporter,
}

/// Settings and shared parts of a controller for its kind sources.
#[derive(Clone)]
pub(crate) struct SourceOptions {
    /// Interval of polling for the kind, if it cannot be watched.
    pub(crate) poll_every: Duration,
    /// Notifies the source to enqueue again the objects that its informers hold.
    pub(crate) replays: watch::Receiver<u64>,
    /// Clients for the reads of mapping functions.
    pub(crate) reads: Arc<CachedReads>,
    pub(crate) series: Arc<LateSeries>,
}

impl<R: RequestKey> SourceContext<R> {
    pub(crate) fn new(
        plan: &Plan<R>,
        cx: &RunContext,
        gates: &Arc<Gates<R>>,
        options: SourceOptions,
        reporter: Reporter,
    ) -> Self {
        Self {
            sink: Arc::new(gates.ungated()),
            gates: Arc::clone(gates),
            home: plan.home.clone(),
            cluster_set: cx.clusters().clone(),
            cluster_roles: cx.cluster_roles().clone(),
            clock: Arc::clone(cx.clock()),
            spawner: cx.spawner().clone(),
            options,
            reporter,
        }
    }

    /// Sink for keys.
    #[must_use]
    pub fn enqueue(&self) -> Enqueue<'_, R> {
        Enqueue::plain(&self.sink, self.home.name())
    }

    pub(crate) fn clusters(&self) -> &ClusterSet {
        &self.cluster_set
    }

    /// Default cluster of the controller.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.home
    }

    /// Clock of the run.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Reports that everything that exists is enqueued.
    pub fn ready(&self) {
        self.report(SourceState::Ready);
    }

    /// Reports the state of the source.
    pub fn report(&self, state: SourceState) {
        self.reporter.report(state);
    }

    /// Reports a state that depends on the last one.
    pub(crate) fn update(&self, update: impl FnOnce(&SourceState) -> SourceState) {
        self.reporter.update(update);
    }
}

impl<R: RequestKey> fmt::Debug for SourceContext<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceContext")
            .field("queue", self.sink.queue())
            .finish_non_exhaustive()
    }
}

/// A kind, or another source with its type erased.
pub(crate) enum AnySource<R: RequestKey> {
    Kind(KindSource<R>),
    Other(Box<dyn Erased<R>>),
}

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

pub(crate) trait Erased<R: RequestKey>: Send + Sync {
    fn name(&self) -> String;
    fn run(&self, cx: SourceContext<R>) -> Running<'_>;
}

impl<R: RequestKey, S: Source<R>> Erased<R> for S {
    fn name(&self) -> String {
        Source::name(self)
    }

    fn run(&self, cx: SourceContext<R>) -> Running<'_> {
        Box::pin(Source::run(self, cx))
    }
}

impl<R: RequestKey> AnySource<R> {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Kind(kind) => kind.spec().resource.to_string(),
            Self::Other(other) => other.name(),
        }
    }

    pub(crate) async fn run(&self, cx: SourceContext<R>) {
        match self {
            Self::Kind(kind) => kind.run(cx).await,
            Self::Other(other) => other.run(cx).await,
        }
    }

    /// Returns true if the source has to wait until the scope of the primary kind is known.
    pub(crate) fn awaits_scope(&self) -> bool {
        matches!(self, Self::Kind(kind) if kind.awaits_scope())
    }

    /// Returns true if the source watches every cluster. Then only the keys of a cluster wait for that cluster.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.kind().is_some_and(KindSpec::is_everywhere)
    }

    /// Returns the kind if the source is one.
    pub(crate) fn kind(&self) -> Option<&KindSpec> {
        match self {
            Self::Kind(kind) => Some(kind.spec()),
            Self::Other(_) => None,
        }
    }
}
