// SPDX-License-Identifier: Apache-2.0
//! Workers: they take keys and call the reconciler.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use steersman_cluster::ClusterName;
use steersman_core::{Action, Clock, Moment, Next, Random, Task};
use steersman_queue::{Finished, Item, Outcome, Queue};
use tokio::sync::{Notify, watch};
use tracing::Instrument;

use crate::{
    BoxError, Context, Fleet, RequestKey, RunContext, RunError, Stop, Term, Terminal,
    controller::Plan,
    engagement::Engagement,
    metrics::{Ended, Series},
    reconciler::{Chain, caused_by},
};

/// What the workers of one term share: leadership and the clusters that they work on.
pub(crate) struct Outfit<R: RequestKey> {
    plan: Arc<Plan<R>>,
    term: Term,
    stop: Stop,
    fleet: Fleet,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    home: Arc<Engagement>,
    others: RwLock<BTreeMap<ClusterName, Arc<Engagement>>>,
    closing: AtomicBool,
    idle: Notify,
    panicked: watch::Sender<Option<(String, String)>>,
}

impl<R: RequestKey> Outfit<R> {
    pub(crate) fn new(plan: &Arc<Plan<R>>, cx: &RunContext, term: Term) -> Self {
        let engage = |cluster| engage(plan, cluster, &term, cx.fleet(), cx.stop());
        Self {
            home: engage(&plan.home),
            plan: Arc::clone(plan),
            stop: cx.stop().clone(),
            fleet: cx.fleet().clone(),
            clock: Arc::clone(cx.clock()),
            random: Arc::clone(cx.random()),
            others: RwLock::default(),
            closing: AtomicBool::new(false),
            idle: Notify::new(),
            panicked: watch::Sender::new(None),
            term,
        }
    }

    /// By when work has to have ended whose leadership is over.
    pub(crate) fn deadline(&self) -> Moment {
        let now = self.clock.now();
        self.term.fence().remaining().map_or(now, |left| now + left)
    }

    /// The cluster that a key is about, unless it has gone.
    fn engagement(&self, key: &R) -> Option<Arc<Engagement>> {
        let Some(name) = key.cluster().filter(|name| *name != self.plan.home.name()) else {
            return Some(Arc::clone(&self.home));
        };
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = others.get(name) {
            return Some(Arc::clone(found));
        }
        drop(others);
        let cluster = self.fleet.get(name).or_else(|| self.plan.bound_cluster(name))?;
        let made = engage(&self.plan, &cluster, &self.term, &self.fleet, &self.stop);
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(others.entry(name.clone()).or_insert(made)))
    }

    /// Ends the work on clusters that have gone, and forgets their keys.
    pub(crate) fn dismiss_absent(&self, queue: &Queue<R>) {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        others.retain(|name, _| self.fleet.get(name).is_some() || self.plan.bound_cluster(name).is_some());
        drop(others);
        let is_gone = |name: &ClusterName| {
            name != self.plan.home.name()
                && self.fleet.get(name).is_none()
                && self.plan.bound_cluster(name).is_none()
        };
        queue.purge(|key| key.cluster().is_some_and(is_gone));
    }
}

fn engage<R: RequestKey>(
    plan: &Arc<Plan<R>>,
    cluster: &steersman_cluster::Cluster,
    term: &Term,
    fleet: &Fleet,
    stop: &Stop,
) -> Arc<Engagement> {
    let hot_loops = Arc::clone(&plan.hot_loops);
    let name = cluster.name().clone();
    let engagement = Engagement::new(
        &plan.name,
        cluster,
        Some(term.fence().clone()),
        fleet.clone(),
        stop.clone(),
    );
    Arc::new(engagement.observed(move |resource, object| {
        hot_loops.wrote(resource, &name, object.key(), object.resource_version());
    }))
}

/// The workers of one term.
pub(crate) struct Workers<R: RequestKey> {
    outfit: Arc<Outfit<R>>,
    panicked: watch::Receiver<Option<(String, String)>>,
    tasks: Vec<Task>,
}

impl<R: RequestKey> Workers<R> {
    pub(crate) fn start(plan: &Plan<R>, cx: &RunContext, outfit: &Arc<Outfit<R>>) -> Self {
        let count = plan.options.worker_count();
        plan.series(cx.metrics()).workers.set(count as i64);
        let tasks = (0..count).map(|_| {
            let outfit = Arc::clone(outfit);
            cx.spawner().spawn("worker", async move {
                while let Some(item) = outfit.plan.queue.next().await {
                    outfit.work(item).await;
                }
            })
        });
        Self {
            panicked: outfit.panicked.subscribe(),
            tasks: tasks.collect(),
            outfit: Arc::clone(outfit),
        }
    }

    /// Waits for a panic that the controller does not recover from.
    pub(crate) async fn failed(&mut self) -> RunError {
        let panicked = self.panicked.wait_for(Option::is_some).await;
        let Some((key, message)) = panicked.ok().and_then(|panicked| panicked.clone()) else {
            return std::future::pending().await;
        };
        RunError::Panicked {
            controller: self.outfit.plan.name.to_string(),
            key,
            message,
        }
    }

    /// Waits until no key is ready any more.
    pub(crate) async fn drain(&self, deadline: Moment) {
        self.until(deadline, |depth| depth.ready() == 0 && depth.in_flight() == 0)
            .await;
    }

    /// Waits for what is in flight, and cancels what is left at the deadline. Nothing is handed out meanwhile, because
    /// the queue is paused.
    pub(crate) async fn finish(self, deadline: Moment) {
        self.until(deadline, |depth| depth.in_flight() == 0).await;
        let Self { outfit, tasks, .. } = self;
        let left = outfit.plan.queue.depth().in_flight();
        if left > 0 {
            tracing::warn!(
                controller = %outfit.plan.name,
                left,
                "the grace period is over: what is still being worked on is cancelled, and kept for the next run"
            );
        }
        drop(tasks);
        if let Some(series) = outfit.plan.series.get() {
            series.workers.set(0);
        }
    }

    async fn until(&self, deadline: Moment, condition: impl Fn(&steersman_queue::Depth) -> bool) {
        let outfit = &self.outfit;
        outfit.closing.store(true, Ordering::SeqCst);
        let mut late = outfit.clock.sleep_until(deadline);
        loop {
            let mut idle = std::pin::pin!(outfit.idle.notified());
            idle.as_mut().enable();
            if condition(&outfit.plan.queue.depth()) {
                return;
            }
            tokio::select! {
                biased;
                () = &mut late => return,
                () = idle => {}
            }
        }
    }
}

/// How a reconcile ended.
enum Result {
    Done(Action),
    Failed(BoxError),
    Panicked(String),
    TimedOut(Duration),
    /// The cluster was removed.
    Dismissed,
}

impl<R: RequestKey> Outfit<R> {
    async fn work(&self, item: Item<R>) {
        let plan = &self.plan;
        let Some(engagement) = self.engagement(item.key()) else {
            item.done(); // Its cluster has gone.
            return;
        };
        let (Some(series), key) = (plan.series.get(), item.key().clone()) else {
            return;
        };
        let number = self.random.next_u64();
        let span = tracing::info_span!(
            "reconcile",
            controller = %plan.name,
            cluster = %engagement.cluster.name(),
            %key,
            reconcile_id = format_args!("{number:016x}"),
            attempt = item.failures(),
        );
        let active = Active::new(series);
        plan.hot_loops.began(&key);
        let cx = Context::new(Arc::clone(&engagement), number, item.failures(), item.priority());
        let result = self
            .reconcile(key, cx, &engagement)
            .instrument(span.clone())
            .await;
        plan.hot_loops.ended(item.key());
        drop(active);
        let slowed = plan.hot_loops.take_slowed();
        if slowed > 0 {
            series.hot_loops.inc_by(slowed);
        }
        let took = self.clock.now().saturating_since(item.started());
        span.in_scope(|| self.conclude(item, result, series, took));
        if self.closing.load(Ordering::SeqCst) {
            self.idle.notify_waiters();
        }
    }

    async fn reconcile(&self, key: R, cx: Context, engagement: &Engagement) -> Result {
        // Within a future, so that a panic before its first step is one of the reconcile, too.
        let reconciling = AssertUnwindSafe(async { self.plan.reconciler.call(key, cx).await }).catch_unwind();
        let limited = async {
            let Some(limit) = self.plan.options.reconcile_limit() else {
                return Some(reconciling.await);
            };
            tokio::select! {
                biased;
                ended = reconciling => Some(ended),
                () = self.clock.sleep_until(self.clock.now() + limit) => None,
            }
        };
        match engagement.unless_dismissed(limited).await {
            None => Result::Dismissed,
            Some(None) => Result::TimedOut(self.plan.options.reconcile_limit().unwrap_or_default()),
            Some(Some(Err(panic))) => Result::Panicked(message(&*panic)),
            Some(Some(Ok(Err(error)))) => Result::Failed(error),
            Some(Some(Ok(Ok(action)))) => Result::Done(action),
        }
    }

    /// Counts, tells the queue, and says what a person should know.
    fn conclude(&self, item: Item<R>, result: Result, series: &Series, took: Duration) {
        match result {
            Result::Done(action) => {
                let (ended, outcome) = match action.next() {
                    Next::After(delay) if !delay.is_zero() => {
                        (Ended::RequeueAfter, Outcome::requeue_after(delay))
                    }
                    Next::BackOff => (Ended::Requeue, Outcome::requeue()),
                    _ => (Ended::Success, Outcome::done()),
                };
                series.reconciled(ended, took);
                item.finish(match action.wanted_priority() {
                    Some(priority) => outcome.priority(priority),
                    None => outcome,
                });
            }
            Result::Failed(error) => {
                series.reconciled(Ended::Error, took);
                series.errors.inc();
                self.failed(item, &error, series);
            }
            Result::Panicked(message) => {
                series.reconciled(Ended::Error, took);
                series.errors.inc();
                series.panics.inc();
                let key = item.key().to_string();
                let finished = item.finish(Outcome::retry(format_args!("panic: {message}")));
                if self.plan.options.recovers_panics() {
                    tracing::error!(panic = message, next_try = ?finished.delay(), "the reconcile panicked and will be tried again");
                } else {
                    tracing::error!(panic = message, "the reconcile panicked");
                    self.panicked.send_replace(Some((key, message)));
                }
            }
            Result::TimedOut(limit) => {
                series.reconciled(Ended::Error, took);
                series.errors.inc();
                series.timeouts.inc();
                let finished = item.finish(Outcome::retry(format_args!("it took longer than {limit:?}")));
                tracing::warn!(?limit, next_try = ?finished.delay(), "the reconcile took too long and will be tried again");
            }
            Result::Dismissed => item.done(),
        }
    }

    fn failed(&self, item: Item<R>, error: &BoxError, series: &Series) {
        let text = Chain(error);
        if caused_by::<Terminal>(error).is_some() {
            series.terminal_errors.inc();
            item.finish(Outcome::fail(&text));
            tracing::error!(error = %text, "the reconcile failed and will not be tried again until something changes");
            return;
        }
        let finished: Finished = item.finish(Outcome::retry(&text));
        let (attempt, next_try) = (finished.failures(), finished.delay());
        if is_quiet(error) {
            tracing::debug!(error = %text, attempt, ?next_try, "the reconcile will be tried again");
        } else {
            tracing::warn!(error = %text, attempt, ?next_try, "the reconcile failed and will be tried again");
        }
    }
}

/// Conflicts belong to the business, and so does a write that came after the end of a term.
fn is_quiet(error: &BoxError) -> bool {
    let ours = caused_by::<steersman_cluster::Error>(error);
    let theirs = caused_by::<kube::Error>(error);
    ours.is_some_and(|error| error.is_conflict() || error.is_fenced())
        || matches!(theirs, Some(kube::Error::Api(status)) if status.code == 409 && status.reason == "Conflict")
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Counts a busy worker, also if its task is cancelled.
struct Active<'s>(&'s Series);

impl<'s> Active<'s> {
    fn new(series: &'s Series) -> Self {
        series.active.inc();
        Self(series)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.dec();
    }
}
