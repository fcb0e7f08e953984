// SPDX-License-Identifier: Apache-2.0
//! One run of a controller: sources first, then leadership, then workers.

mod summary;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use steersman_cache::Resource;
use steersman_cluster::ResourceQuery;
use steersman_core::{MonotonicTime, Sleep, Task, panic_message};
use tokio::sync::watch;

use self::summary::{SourceInfo, SourceSummary, summarize};
use crate::{
    ControllerError, RequestKey, RunContext, Term,
    cached_reads::CachedReads,
    controller::Plan,
    gate::Gates,
    namespaced::Namespaced,
    source::{AnySource, Reporter, SourceContext, SourceOptions, SourceState},
    worker::{WorkerPool, Workers},
};

/// Delay before a source start is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// The parts of one run that its sources and workers share.
pub(crate) struct Run<R: RequestKey> {
    pub(crate) plan: Arc<Plan<R>>,
    pub(crate) cx: RunContext,
    pub(crate) reads: Arc<CachedReads>,
    pub(crate) gates: Arc<Gates<R>>,
}

impl<R: RequestKey> Run<R> {
    fn new(plan: &Arc<Plan<R>>, cx: RunContext) -> Self {
        let everywhere = (0..plan.sources.len()).filter(|index| plan.sources[*index].is_everywhere());
        let clock = Arc::clone(plan.home.clock());
        Self {
            plan: Arc::clone(plan),
            cx,
            reads: Arc::new(CachedReads::new(plan)),
            gates: Arc::new(Gates::new((*plan.queue).clone(), clock, everywhere.collect())),
        }
    }
}

/// Runs the controller until it is stopped.
pub(crate) async fn run<R: RequestKey>(plan: &Arc<Plan<R>>, cx: RunContext) -> Result<(), ControllerError> {
    let _only = plan.begin()?;
    plan.series(cx.metrics());
    cx.in_cluster(plan.home.name().as_str());
    let stop = cx.stop().clone();
    let run = Arc::new(Run::new(plan, cx.clone()));
    let mut sources = Sources::start(&run);
    let begun = tokio::select! {
        biased;
        _ = stop.requested() => Ok(()),
        begun = sources.in_sync(plan, &cx) => begun,
    };
    let result = match begun {
        Ok(()) => lead_in_turn(&run, &mut sources).await,
        Err(error) => Err(error),
    };
    // Its gates return waiting keys to the queue.
    drop(run);
    let deadline = stop.deadline().unwrap_or_default();
    cx.clock().timeout_at(deadline, sources.end()).await;
    result
}

/// Works in one term after the other, until the run ends.
async fn lead_in_turn<R: RequestKey>(
    run: &Arc<Run<R>>,
    sources: &mut Sources,
) -> Result<(), ControllerError> {
    while let Some(term) = sources.until_term(&run.cx).await {
        if let Some(result) = lead(run, term, sources).await {
            return result;
        }
        // Another leader can leave any work undone, so every object is reconciled in the next term. The sources continue;
        // the objects that their informers hold are enqueued now, at low priority.
        run.plan.replay();
    }
    Ok(())
}

/// Works until the term ends, which returns `None`, or until the run ends.
async fn lead<R: RequestKey>(
    run: &Arc<Run<R>>,
    term: Term,
    sources: &mut Sources,
) -> Option<Result<(), ControllerError>> {
    let Run { plan, cx, reads, .. } = &**run;
    let pool = Arc::new(WorkerPool::new(run, term.clone()));
    // Subscribe before any worker starts, so that no removal is missed.
    let mut members = cx.clusters().subscribe();
    let mut recoveries = reads.recoveries();
    let workers = Workers::start(&pool);
    let mut long_running = std::pin::pin!(pool.watch_long_running());
    let (deadline, mut result) = loop {
        tokio::select! {
            biased;
            // Reconciles in flight have as long as the fence allows writes, also during shutdown.
            () = term.ended() => break (MonotonicTime::ORIGIN, None),
            deadline = cx.stop().requested() => break (deadline, Some(Ok(()))),
            error = workers.failed() => break (MonotonicTime::ORIGIN, Some(Err(error))),
            _ = members.changed() => pool.dismiss_absent(),
            () = pool.kind_removed() => pool.dismiss_absent(),
            _ = recoveries.changed() => pool.caches_recovered(),
            () = sources.follow_status(cx) => {}
            () = &mut long_running => {}
        }
    };
    if plan.options.drains() && matches!(result, Some(Ok(()))) {
        tokio::select! {
            biased;
            error = workers.failed() => result = Some(Err(error)),
            () = workers.drain(deadline) => {}
        }
    }
    workers.finish(deadline).await;
    result
}

/// The running sources of a controller.
struct Sources {
    infos: Vec<SourceInfo>,
    states: watch::Receiver<Vec<SourceState>>,
    /// Deadline for all sources to be in sync; `None` once it has passed.
    limit: Option<Sleep>,
    _tasks: Vec<Task>,
}

impl Sources {
    fn start<R: RequestKey>(run: &Run<R>) -> Self {
        let Run {
            plan,
            cx,
            reads,
            gates,
        } = run;
        let mut states = vec![SourceState::Waiting; plan.sources.len()];
        // The last state is for kinds that reconciles read without a source; initially ready.
        states.push(SourceState::Ready);
        let (sender, states) = watch::channel(states);
        let sender = Arc::new(sender);
        let tasks = (0..plan.sources.len()).map(|index| {
            let reporter = Reporter::new(&sender, index);
            let options = SourceOptions {
                poll_every: plan.options.polled_every(),
                replays: plan.replays(),
                reads: Arc::clone(reads),
                series: Arc::clone(&plan.series),
            };
            let source = SourceContext::new(plan, cx, gates, options, reporter);
            cx.spawner()
                .spawn("source", keep_running(Arc::clone(plan), index, source))
        });
        let reporter = Reporter::new(&sender, plan.sources.len());
        let (reads, context) = (Arc::clone(reads), cx.clone());
        let following = cx.spawner().spawn("cached reads", async move {
            reads.follow(&context, &reporter).await;
        });
        let limit = cx.clock().now() + plan.options.sync_limit();
        let infos = plan.sources.iter().map(SourceInfo::of);
        Self {
            _tasks: tasks.chain([following]).collect(),
            infos: infos.chain([SourceInfo::cached_reads()]).collect(),
            limit: Some(cx.clock().sleep_until(limit)),
            states,
        }
    }

    /// Ends the sources, and waits until nothing of them is left, so that their informers have no user afterwards.
    async fn end(self) {
        let Self {
            mut states, _tasks, ..
        } = self;
        drop(_tasks);
        // Each task holds a sender until it ends.
        while states.changed().await.is_ok() {}
    }

    /// Waits until every source has enqueued the objects that exist.
    async fn in_sync<R: RequestKey>(
        &mut self,
        plan: &Plan<R>,
        cx: &RunContext,
    ) -> Result<(), ControllerError> {
        loop {
            let summary = self.summary();
            summary.check(plan, self.is_late())?;
            cx.set_status(summary.status(self.is_late()));
            // False means that all sources have ended by themselves.
            if !summary.is_held_up(self.is_late()) || !self.changed(cx).await {
                return Ok(());
            }
        }
    }

    /// Waits for a term and reports the state of the sources meanwhile. Returns `None` on shutdown.
    async fn until_term(&mut self, cx: &RunContext) -> Option<Term> {
        loop {
            tokio::select! {
                biased;
                _ = cx.stop().requested() => return None,
                term = cx.leadership().term() => return Some(term),
                () = self.follow_status(cx) => {}
            }
        }
    }

    /// Waits for a change of the state of the sources, and reports it.
    async fn follow_status(&mut self, cx: &RunContext) {
        if !self.changed(cx).await {
            // No further change is possible.
            std::future::pending::<()>().await;
        }
        cx.set_status(self.summary().status(self.is_late()));
    }

    /// Waits until a source changes its state or the sync timeout passes; then nothing waits for this controller any
    /// longer. Returns false if no source is left.
    async fn changed(&mut self, cx: &RunContext) -> bool {
        let limit = async {
            match &mut self.limit {
                Some(limit) => limit.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = self.states.changed() => changed.is_ok(),
            () = limit => {
                self.limit = None;
                cx.settle();
                true
            }
        }
    }

    fn is_late(&self) -> bool {
        self.limit.is_none()
    }

    fn summary(&mut self) -> SourceSummary {
        let states = self.states.borrow_and_update();
        summarize(&self.infos, &states)
    }
}

/// Runs one source. A source that panics is reported as failing and restarted after a delay.
async fn keep_running<R: RequestKey>(plan: Arc<Plan<R>>, index: usize, cx: SourceContext<R>) {
    let source = &plan.sources[index];
    loop {
        let running = async {
            if let Some((resource, namespaced)) =
                plan.unknown_scope.as_ref().filter(|_| source.awaits_scope())
            {
                learn_scope(&plan, resource, namespaced, &cx).await;
                cx.report(SourceState::Waiting);
            }
            source.run(cx.clone()).await;
        };
        let Err(panic) = AssertUnwindSafe(running).catch_unwind().await else {
            // The source has ended by itself, so nothing is missing.
            return cx.update(|state| {
                if state.has_been_ready() {
                    state.clone()
                } else {
                    SourceState::Ready
                }
            });
        };
        let (name, message) = (source.name(), panic_message(&*panic));
        plan.count_panic();
        tracing::error!(controller = %plan.name, source = name, panic = message, "source panicked; restarting it");
        cx.update(|state| SourceState::Trouble {
            reason: format!("{name}: it panicked: {message}"),
            absent: false,
            was_ready: state.has_been_ready(),
        });
        cx.clock().sleep_until(cx.clock().now() + AGAIN).await;
    }
}

/// Queries the scope of a kind until a cluster answers: the cluster where the kind is watched, or any of several, because a
/// kind has the same scope everywhere.
async fn learn_scope<R: RequestKey>(
    plan: &Plan<R>,
    resource: &Resource,
    namespaced: &Namespaced,
    cx: &SourceContext<R>,
) {
    let ask = ResourceQuery::kind(resource.group(), resource.kind()).version(resource.version());
    let primary = plan.sources.first().and_then(AnySource::kind);
    let place = primary.and_then(|kind| kind.cluster(&plan.home));
    while namespaced.get().is_none() {
        let clusters = place.map_or_else(|| cx.clusters().all(), |place| vec![place.clone()]);
        let mut reason = "no cluster is available".to_owned();
        for cluster in clusters {
            match cluster.mapper().resolve(&ask).await {
                Ok(found) => return namespaced.set(found.is_namespaced()),
                Err(error) => reason = error.to_string(),
            }
        }
        cx.report(SourceState::Trouble {
            reason: format!("the scope of {resource} is unknown: {reason}"),
            absent: false,
            was_ready: false,
        });
        cx.clock().sleep_until(cx.clock().now() + AGAIN).await;
    }
}
