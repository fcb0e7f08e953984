// SPDX-License-Identifier: Apache-2.0
//! Where the keys of a controller come from.
//!
//! A source is a plan: data from which each run of the controller makes something that lives as long as the run. Kinds
//! are the usual source; streams, channels and timers are for what happens outside of the cluster.
//!
//! # Guarantees
//! 1. A source enqueues what is there when it begins, says that it is ready, and goes on with what changes.
//! 2. It ends with the run: nothing is enqueued by it afterwards.
//! 3. Trouble of a source is a state with a reason. It is tried again, and no other source is disturbed.

mod every;
mod gate;
mod kinds;
mod others;
mod primary;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Clock, Spawner};
use steersman_queue::Queue;
use tokio::sync::watch;

pub(crate) use gate::{EnqueueSink, Gates};
pub(crate) use kinds::{Gone, KindSource, KindSpec};
pub(crate) use others::INTERVAL_MIN;
pub use others::{Channel, Sender, Stream, Timer, channel, every, stream};
pub(crate) use primary::{Primary, ToRequest};

use crate::{ClusterSet, Enqueue, RequestKey, RunContext, run_context::Hub};

/// Produces keys for a controller.
///
/// The future of [`run`](Self::run) is dropped when the controller's run ends; if it ends by itself, the source has
/// nothing more to say. A run lasts over any number of terms of leadership: the source is not started again when the replica
/// loses the lease, and what it enqueues meanwhile waits in the queue.
pub trait Source<R: RequestKey>: Send + Sync + 'static {
    /// What it is called in logs and readiness.
    fn name(&self) -> String;

    /// Enqueues what is there, calls [`SourceContext::ready`], and goes on.
    fn run(&self, cx: SourceContext<R>) -> impl Future<Output = ()> + Send;
}

/// How a source stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceState {
    /// It has not yet enqueued everything that was there.
    #[default]
    Waiting,
    /// It has.
    Ready,
    /// The kind is not there, which is no trouble for this source.
    Dormant {
        /// What is not there.
        reason: String,
    },
    /// Something is in the way.
    Trouble {
        /// What it is.
        reason: String,
        /// The server does not have the kind.
        absent: bool,
        /// Whether it was ready before, so that what is known is only getting old.
        was_ready: bool,
    },
    /// It has enqueued all objects of the default cluster, and waits for non-default clusters.
    WaitingElsewhere,
    /// It works on the default cluster, but some non-default clusters fail.
    TroubleElsewhere {
        /// The clusters that fail, with the errors.
        reason: String,
        /// Whether it was ready before, so that what is known is only getting old.
        was_ready: bool,
    },
}

impl SourceState {
    /// Whether everything that was there has been enqueued, whatever happened since.
    pub(crate) fn has_been_ready(&self) -> bool {
        match self {
            Self::Waiting | Self::WaitingElsewhere => false,
            Self::Ready | Self::Dormant { .. } => true,
            Self::Trouble { was_ready, .. } | Self::TroubleElsewhere { was_ready, .. } => *was_ready,
        }
    }

    /// The same of a source that watches in this cluster, which is not the default one. A kind that the cluster never had is
    /// a mistake in the program, and stays trouble.
    pub(crate) fn elsewhere(self, cluster: &ClusterName) -> Self {
        match self {
            Self::Waiting => Self::WaitingElsewhere,
            Self::Trouble {
                reason,
                absent,
                was_ready,
            } if was_ready || !absent => Self::TroubleElsewhere {
                reason: format!("{reason} (cluster {cluster})"),
                was_ready,
            },
            other => other,
        }
    }
}

/// Where one source says how it stands.
#[derive(Clone)]
pub(crate) struct Reporter {
    states: Arc<watch::Sender<Vec<SourceState>>>,
    index: usize,
}

impl Reporter {
    pub(crate) fn new(states: &Arc<watch::Sender<Vec<SourceState>>>, index: usize) -> Self {
        Self {
            states: Arc::clone(states),
            index,
        }
    }

    /// The place of the source among all.
    fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn report(&self, state: SourceState) {
        self.update(|_| state);
    }

    /// Says something that depends on what was said last.
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

/// What a source is handed for one run. Clones are the same.
pub struct SourceContext<R: RequestKey> {
    queue: Queue<R>,
    intake: Arc<EnqueueSink<R>>,
    gates: Arc<Gates<R>>,
    home: Cluster,
    fleet: ClusterSet,
    hub: Hub,
    clock: Arc<dyn Clock>,
    spawner: Spawner,
    wishes: SourceOptions,
    reporter: Reporter,
}

/// What a controller asks of those who watch a kind for it.
#[derive(Clone, Debug)]
pub(crate) struct SourceOptions {
    /// How often to look whether the kind is there, where nothing tells of it.
    pub(crate) poll_every: Duration,
    /// Says when to enqueue again what the informers hold.
    pub(crate) replays: watch::Receiver<u64>,
}

impl<R: RequestKey> SourceContext<R> {
    pub(crate) fn new(
        queue: &Queue<R>,
        gates: &Arc<Gates<R>>,
        home: &Cluster,
        cx: &RunContext,
        (wishes, reporter): (SourceOptions, Reporter),
    ) -> Self {
        Self {
            queue: queue.clone(),
            intake: Arc::new(gates.ungated()),
            gates: Arc::clone(gates),
            home: home.clone(),
            fleet: cx.clusters().clone(),
            hub: cx.hub().clone(),
            clock: Arc::clone(cx.clock()),
            spawner: cx.spawner().clone(),
            wishes,
            reporter,
        }
    }

    /// Where keys go.
    #[must_use]
    pub fn enqueue(&self) -> Enqueue<'_, R> {
        Enqueue::plain(&self.intake, self.home.name())
    }

    pub(crate) fn clusters(&self) -> &ClusterSet {
        &self.fleet
    }

    /// The controller's own cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.home
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Says that everything that was there is enqueued.
    pub fn ready(&self) {
        self.report(SourceState::Ready);
    }

    /// Says how it stands.
    pub fn report(&self, state: SourceState) {
        self.reporter.report(state);
    }

    /// Says something that depends on what was said last.
    pub(crate) fn update(&self, update: impl FnOnce(&SourceState) -> SourceState) {
        self.reporter.update(update);
    }
}

impl<R: RequestKey> Clone for SourceContext<R> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            intake: Arc::clone(&self.intake),
            gates: Arc::clone(&self.gates),
            home: self.home.clone(),
            fleet: self.fleet.clone(),
            hub: self.hub.clone(),
            clock: Arc::clone(&self.clock),
            spawner: self.spawner.clone(),
            wishes: self.wishes.clone(),
            reporter: self.reporter.clone(),
        }
    }
}

impl<R: RequestKey> fmt::Debug for SourceContext<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceContext")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// A kind, or something else whose type is not known any more.
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

    /// Whether it begins only when it is known whether the primary kind is in namespaces.
    pub(crate) fn awaits_scope(&self) -> bool {
        matches!(self, Self::Kind(kind) if kind.awaits_scope())
    }

    /// Whether it is about every cluster, so that each cluster is waited for by its own keys alone.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.kind().is_some_and(KindSpec::is_everywhere)
    }

    /// The kind, where it is one.
    pub(crate) fn kind(&self) -> Option<&KindSpec> {
        match self {
            Self::Kind(kind) => Some(kind.spec()),
            Self::Other(_) => None,
        }
    }
}
