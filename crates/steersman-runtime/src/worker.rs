// SPDX-License-Identifier: Apache-2.0
//! Workers: they take keys and call the reconciler.
//!
//! # Guarantees
//! 1. There are as many as the controller asks for. One that breaks outside of a reconcile goes on after a second.
//! 2. A cluster that has departed gets no new work.
//! 3. Where the kind goes in one of several clusters, what is in flight there is told, and cancelled after 10 s.
//! 4. When the workers go, in whatever way, the queue is paused and their gauge is zero.
//! 5. A reconcile that takes longer than [`reconcile_warn_after`](crate::Options::reconcile_warn_after) is logged with its
//!    key, once, and counted as long as it runs. It is not cancelled. Those that a stop or the end of a term cancels are
//!    logged with their keys.
//! 6. A worker takes no new key after the end of the term, after a panic that ends the run, or after a stop was requested.
//!    Only where the controller drains its queue, workers take keys after a stop was requested.

mod attempt;
mod long_running;

use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use steersman_cache::Resource;
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Clock, MonotonicTime, Random, Task};
use steersman_queue::{Depth, Item};
use tokio::sync::{Notify, watch};

pub(crate) use self::attempt::is_quiet;
use self::long_running::Keys;
use crate::{
    ClusterSet, ControllerError, RequestKey, RunContext, Term,
    cached_reads::CachedReads,
    cluster_session::{ClusterSession, KindGuard},
    cluster_set::ClusterGuard,
    controller::Plan,
    hot_loop::HotLoops,
    kind::WhenAbsent,
    source::Gates,
};

/// How long a worker rests that broke outside of a reconcile.
const REST: Duration = Duration::from_secs(1);

/// What the workers of one term share: leadership and the clusters that they work on.
pub(crate) struct WorkerPool<R: RequestKey> {
    plan: Arc<Plan<R>>,
    reads: Arc<CachedReads>,
    gates: Arc<Gates<R>>,
    term: Term,
    cx: RunContext,
    fleet: ClusterSet,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    engagements: RwLock<BTreeMap<ClusterName, Arc<ClusterSession>>>,
    hot_loops: HotLoops<R>,
    /// Hears of each reconcile that ended after the warning that it takes long.
    long_ended: Notify,
    /// Hears of each cluster that has lost the kind.
    departed: Arc<Notify>,
    closing: AtomicBool,
    idle: Notify,
    /// Keys that failed because caches were not in sync.
    starved: Mutex<HashMap<R, Starved>>,
    panicked: watch::Sender<Option<(String, String)>>,
}

/// A key waits for caches.
struct Starved {
    /// The kinds that were not in sync.
    missing: Vec<Resource>,
    /// The number of recoveries before its reconcile.
    recoveries: u64,
}

impl<R: RequestKey> WorkerPool<R> {
    pub(crate) fn new(
        (plan, reads): (&Arc<Plan<R>>, &Arc<CachedReads>),
        cx: &RunContext,
        term: Term,
        gates: &Arc<Gates<R>>,
    ) -> Self {
        Self {
            plan: Arc::clone(plan),
            reads: Arc::clone(reads),
            gates: Arc::clone(gates),
            cx: cx.clone(),
            fleet: cx.clusters().clone(),
            clock: Arc::clone(cx.clock()),
            random: Arc::clone(cx.random()),
            engagements: RwLock::default(),
            hot_loops: HotLoops::new(plan.options.hot_loop_rate()),
            long_ended: Notify::new(),
            departed: Arc::default(),
            closing: AtomicBool::new(false),
            idle: Notify::new(),
            starved: Mutex::default(),
            panicked: watch::Sender::new(None),
            term,
        }
    }

    /// Waits until the time is over that work has to end: until the deadline, or as long as the fence lets it write once
    /// leadership is over.
    async fn overdue(&self, deadline: MonotonicTime) {
        tokio::select! {
            biased;
            () = self.term.ended() => {
                let now = self.clock.now();
                let deadline = self.term.fence().remaining().map_or(now, |left| now + left);
                self.clock.sleep_until(deadline).await;
            }
            () = self.clock.sleep_until(deadline) => {}
        }
    }

    /// The cluster that a key is about, unless it has gone or lost the kind.
    fn engagement(&self, key: &R) -> Option<Arc<ClusterSession>> {
        let name = key.cluster().unwrap_or_else(|| self.plan.home.name());
        let known = self.engagements.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(name).filter(|found| self.goes_on(found)) {
            return Some(Arc::clone(found));
        }
        drop(known);
        let made = self.engage(self.place(name)?)?;
        if !self.goes_on(&made) {
            return None;
        }
        let mut all = self.engagements.write().unwrap_or_else(PoisonError::into_inner);
        // Another worker may have been quicker.
        let engagement = match all.remove(name).filter(|other| self.goes_on(other)) {
            Some(other) => other,
            None => made,
        };
        all.insert(name.clone(), Arc::clone(&engagement));
        Some(engagement)
    }

    /// Lets a key pass unless it has to wait until its cluster has joined, where the controller works on every cluster.
    fn pass_gate(&self, item: Item<R>) -> Option<Item<R>> {
        let name = item.key().cluster().filter(|_| self.plan.is_everywhere());
        match name.and_then(|name| self.fleet.member(name)) {
            Some(member) => self.gates.hold_back(&member, item),
            None => Some(item),
        }
    }

    /// Whether new work on its cluster may begin. The controller ends as a whole with its own cluster.
    fn goes_on(&self, engagement: &ClusterSession) -> bool {
        let is_home = engagement.cluster.name() == self.plan.home.name();
        !engagement.is_over() && (is_home || engagement.is_current())
    }

    /// The cluster of this name: the own one, one of the fleet, or one that a source is bound to. With it comes the visit
    /// there, so that it cannot be another's of the same name.
    fn place(&self, name: &ClusterName) -> Option<(Cluster, Option<ClusterGuard>)> {
        let visit = self.fleet.visit(name);
        if name == self.plan.home.name() {
            return Some((self.plan.home.clone(), visit));
        }
        match visit {
            Some(visit) => Some((visit.member().cluster().clone(), Some(visit))),
            None => {
                let bound = self.plan.bound_cluster(name)?;
                (!self.fleet.is_leaving(name)).then_some((bound, None))
            }
        }
    }

    /// Waits until a cluster has lost the kind.
    pub(crate) async fn kind_departed(&self) {
        self.departed.notified().await;
    }

    /// Ends the work on clusters that have gone or lost the kind, and forgets the keys of those that have gone.
    pub(crate) fn dismiss_absent(&self) {
        let mut all = self.engagements.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, engagement| self.goes_on(engagement));
        all.values().for_each(|one| one.dismiss_guests());
        drop(all);
        let is_gone = |name: &ClusterName| self.place(name).is_none();
        self.plan.purge(|key| key.cluster().is_some_and(is_gone));
        self.starved()
            .retain(|key, _| !key.cluster().is_some_and(is_gone));
    }

    fn engage(&self, (cluster, visit): (Cluster, Option<ClusterGuard>)) -> Option<Arc<ClusterSession>> {
        let (plan, cx, cluster) = (&self.plan, &self.cx, &cluster);
        let fence = Some(self.term.fence().clone());
        let fleet = self.fleet.clone();
        let stop = cx.stop().joined(self.term.stop());
        let reads = Some(Arc::clone(&self.reads));
        let mut engagement = ClusterSession::new(
            (&plan.name, plan.options.field_manager_of(&plan.name)),
            (cluster, visit),
            reads,
            fence,
            fleet,
            stop,
        )
        .counted(cx.metrics().clone(), plan.options.recovers_panics())
        .limited(plan.handler_limit());
        if let Some(kind) = plan.passing_kind(cluster) {
            let presence = cluster.presence(&kind.resource, plan.options.polled_every());
            // A key that changed while it was worked on is handed out once more before it is taken out of the queue.
            if kind.presence == WhenAbsent::Rest && presence.now().is_absent() {
                return None;
            }
            engagement = engagement.during(KindGuard::follow(presence, cx, &self.departed));
        }
        Some(Arc::new(engagement))
    }

    /// Retries a key when one of the caches is in sync again that its last reconcile lacked. There were so many recoveries
    /// before that reconcile.
    fn retry_with_caches(&self, key: R, missing: Vec<Resource>, recoveries: u64) {
        if missing.is_empty() {
            self.starved().remove(&key);
            return;
        }
        self.starved().insert(key, Starved { missing, recoveries });
        if self.reads.recovery_count() != recoveries {
            self.caches_recovered();
        }
    }

    /// Reconciles at once the keys that failed because of a cache that is in sync now.
    pub(crate) fn caches_recovered(&self) {
        let recovered = self.reads.last_recoveries();
        let is_due = |starved: &Starved| {
            let mut missing = starved.missing.iter();
            missing.any(|kind| recovered.get(kind).is_some_and(|&last| last > starved.recoveries))
        };
        let due: Vec<R> = self
            .starved()
            .extract_if(|_, starved| is_due(starved))
            .map(|(key, _)| key)
            .collect();
        due.into_iter().for_each(|key| _ = self.plan.queue.add(key));
    }

    fn starved(&self) -> MutexGuard<'_, HashMap<R, Starved>> {
        self.starved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on keys until it is time to end.
    async fn serve(&self) {
        while let Some(item) = self.next().await {
            let remembered = self.plan.remembers().then(|| item.key().clone());
            self.work(item).await;
            remembered.iter().for_each(|key| self.plan.settle(key));
            self.tell_if_closing();
        }
    }

    /// The next key, unless it is time to end: whoever looks after the run may hear of that later than who has just
    /// finished a key.
    async fn next(&self) -> Option<Item<R>> {
        let is_stopping = self.cx.stop().is_requested() && !self.plan.options.drains();
        if is_stopping || self.term.stop().is_requested() || self.panicked.borrow().is_some() {
            return None;
        }
        self.plan.queue.next().await
    }

    /// Lets those look who wait for the end of the work.
    fn tell_if_closing(&self) {
        if self.closing.load(Ordering::SeqCst) {
            self.idle.notify_waiters();
        }
    }
}

/// The workers of one term.
pub(crate) struct Workers<R: RequestKey> {
    outfit: Arc<WorkerPool<R>>,
    _tasks: Vec<Task>,
}

impl<R: RequestKey> Workers<R> {
    /// Starts them, and lets the queue hand out keys.
    pub(crate) fn start(plan: &Plan<R>, cx: &RunContext, outfit: &Arc<WorkerPool<R>>) -> Self {
        let count = plan.options.worker_count();
        plan.series(cx.metrics()).workers.set(count as i64);
        let tasks = (0..count).map(|_| cx.spawner().spawn("worker", keep_serving(Arc::clone(outfit))));
        let workers = Self {
            _tasks: tasks.collect(),
            outfit: Arc::clone(outfit),
        };
        plan.queue.resume();
        workers
    }

    /// Waits for a panic that the controller does not recover from.
    pub(crate) async fn failed(&self) -> ControllerError {
        let mut panicked = self.outfit.panicked.subscribe();
        let panicked = panicked.wait_for(Option::is_some).await;
        let Some((key, message)) = panicked.ok().and_then(|panicked| panicked.clone()) else {
            return std::future::pending().await;
        };
        ControllerError::Panicked {
            controller: self.outfit.plan.name.to_string(),
            key,
            message,
        }
    }

    /// Waits until no key is ready any more, or nothing may be worked on any more.
    pub(crate) async fn drain(&self, deadline: MonotonicTime) {
        let is_drained = |depth: &Depth| depth.ready() == 0 && depth.in_flight() == 0;
        tokio::select! {
            biased;
            () = self.outfit.term.ended() => {}
            () = self.until(deadline, is_drained) => {}
        }
    }

    /// Hands out nothing any more, waits for what is in flight, and cancels what is left at the deadline, or when leadership
    /// is over.
    pub(crate) async fn finish(self, deadline: MonotonicTime) {
        self.outfit.plan.queue.pause();
        self.until(deadline, |depth| depth.in_flight() == 0).await;
    }

    async fn until(&self, deadline: MonotonicTime, condition: impl Fn(&Depth) -> bool) {
        let outfit = &self.outfit;
        outfit.closing.store(true, Ordering::SeqCst);
        let mut late = std::pin::pin!(outfit.overdue(deadline));
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

impl<R: RequestKey> Drop for Workers<R> {
    fn drop(&mut self) {
        let plan = &self.outfit.plan;
        plan.queue.pause();
        // Here, because the one who runs the controller may cancel it when its time is over.
        let left = plan.queue.in_flight();
        if !left.is_empty() {
            tracing::warn!(
                controller = %plan.name,
                in_flight = left.len(),
                keys = %Keys(&left),
                "cancelling reconciles that have not ended; their keys are kept for the next run"
            );
        }
        if let Some(series) = plan.series.get() {
            series.workers.set(0);
            series.long_running.set(0);
        }
    }
}

/// What a worker does. A panic of a reconcile is an end of that reconcile; this is for those of everything around it, such
/// as a limiter that somebody else wrote.
async fn keep_serving<R: RequestKey>(outfit: Arc<WorkerPool<R>>) {
    while AssertUnwindSafe(outfit.serve()).catch_unwind().await.is_err() {
        outfit.tell_if_closing();
        outfit.plan.count_panic();
        tracing::error!(controller = %outfit.plan.name, "a worker panicked outside of a reconcile; it goes on in a second");
        outfit.clock.sleep_until(outfit.clock.now() + REST).await;
    }
}
