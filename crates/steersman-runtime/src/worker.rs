// SPDX-License-Identifier: Apache-2.0
//! Workers: they take keys and call the reconciler.
//!
//! # Guarantees
//! 1. The number of workers is that of the controller's options. A worker that panics outside of a reconcile continues
//!    after 1 s.
//! 2. A removed cluster gets no new work.
//! 3. When the kind is removed from one of several clusters, reconciles in flight there get a stop request and are
//!    cancelled after 10 s.
//! 4. When the workers end for any reason, the queue is paused and their gauge is zero.
//! 5. A reconcile that takes longer than [`reconcile_warn_after`](crate::Options::reconcile_warn_after) is logged once with
//!    its key, and counted as long as it runs. It is not cancelled. Reconciles that a stop or the end of a term cancels are
//!    logged with their keys.
//! 6. A worker takes no new key after the end of the term, after a panic that ends the run, or after a stop was requested.
//!    Only if the controller drains its queue, workers take keys after a stop was requested.

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

/// Pause of a worker that panicked outside of a reconcile.
const REST: Duration = Duration::from_secs(1);

/// Shared state of the workers of one term: leadership and the clusters that they work on.
pub(crate) struct WorkerPool<R: RequestKey> {
    plan: Arc<Plan<R>>,
    reads: Arc<CachedReads>,
    gates: Arc<Gates<R>>,
    term: Term,
    cx: RunContext,
    cluster_set: ClusterSet,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    sessions: RwLock<BTreeMap<ClusterName, Arc<ClusterSession>>>,
    hot_loops: HotLoops<R>,
    /// Notified of each reconcile that ended after its warning for a long run.
    long_ended: Notify,
    /// Notified of each cluster whose kind was removed.
    departed: Arc<Notify>,
    closing: AtomicBool,
    idle: Notify,
    /// Keys that failed because caches were not in sync.
    starved: Mutex<HashMap<R, Starved>>,
    panicked: watch::Sender<Option<(String, String)>>,
}

/// A key that waits for caches.
struct Starved {
    /// The kinds that were not in sync.
    missing: Vec<Resource>,
    /// Number of recoveries before its reconcile.
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
            cluster_set: cx.clusters().clone(),
            clock: Arc::clone(cx.clock()),
            random: Arc::clone(cx.random()),
            sessions: RwLock::default(),
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

    /// Waits until work has to end: the deadline, or, after leadership has ended, the time until which the fence allows
    /// writes.
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

    /// Returns the session of a key's cluster, unless the cluster or the kind was removed.
    fn session(&self, key: &R) -> Option<Arc<ClusterSession>> {
        let name = key.cluster().unwrap_or_else(|| self.plan.home.name());
        let known = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(name).filter(|found| self.is_active(found)) {
            return Some(Arc::clone(found));
        }
        drop(known);
        let made = self.open_session(self.place(name)?)?;
        if !self.is_active(&made) {
            return None;
        }
        let mut all = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        // Another worker might have been faster.
        let session = match all.remove(name).filter(|other| self.is_active(other)) {
            Some(other) => other,
            None => made,
        };
        all.insert(name.clone(), Arc::clone(&session));
        Some(session)
    }

    /// Returns the key, unless it has to wait until its cluster is in sync. Applies to controllers of every cluster.
    fn pass_gate(&self, item: Item<R>) -> Option<Item<R>> {
        let name = item.key().cluster().filter(|_| self.plan.is_everywhere());
        match name.and_then(|name| self.cluster_set.member(name)) {
            Some(member) => self.gates.hold_back(&member, item),
            None => Some(item),
        }
    }

    /// Returns true if new work on the cluster can begin. The whole controller ends with its default cluster.
    fn is_active(&self, session: &ClusterSession) -> bool {
        let is_home = session.cluster.name() == self.plan.home.name();
        !session.is_over() && (is_home || session.is_current())
    }

    /// Returns the cluster of this name: the default one, one of the cluster set, or one that a source is bound to. The
    /// guard excludes another cluster of the same name.
    fn place(&self, name: &ClusterName) -> Option<(Cluster, Option<ClusterGuard>)> {
        let guard = self.cluster_set.guard(name);
        if name == self.plan.home.name() {
            return Some((self.plan.home.clone(), guard));
        }
        match guard {
            Some(guard) => Some((guard.member().cluster().clone(), Some(guard))),
            None => {
                let bound = self.plan.bound_cluster(name)?;
                (!self.cluster_set.is_leaving(name)).then_some((bound, None))
            }
        }
    }

    /// Waits until the kind was removed from a cluster.
    pub(crate) async fn kind_departed(&self) {
        self.departed.notified().await;
    }

    /// Ends the work on clusters that were removed or lost the kind, and drops the keys of removed clusters.
    pub(crate) fn dismiss_absent(&self) {
        let mut all = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, session| self.is_active(session));
        all.values().for_each(|one| one.drop_other_clients());
        drop(all);
        let is_gone = |name: &ClusterName| self.place(name).is_none();
        self.plan.purge(|key| key.cluster().is_some_and(is_gone));
        self.starved()
            .retain(|key, _| !key.cluster().is_some_and(is_gone));
    }

    fn open_session(&self, (cluster, guard): (Cluster, Option<ClusterGuard>)) -> Option<Arc<ClusterSession>> {
        let (plan, cx, cluster) = (&self.plan, &self.cx, &cluster);
        let fence = Some(self.term.fence().clone());
        let cluster_set = self.cluster_set.clone();
        let stop = cx.stop().joined(self.term.stop());
        let reads = Some(Arc::clone(&self.reads));
        let mut session = ClusterSession::new(
            (&plan.name, plan.options.field_manager_of(&plan.name)),
            (cluster, guard),
            reads,
            fence,
            cluster_set,
            stop,
        )
        .counted(cx.metrics().clone(), plan.options.recovers_panics())
        .limited(plan.handler_limit());
        if let Some(kind) = plan.passing_kind(cluster) {
            let presence = cluster.presence(&kind.resource, plan.options.polled_every());
            // A key that changed during its reconcile is handed out once more before it is removed from the queue.
            if kind.presence == WhenAbsent::Rest && presence.now().is_absent() {
                return None;
            }
            session = session.during(KindGuard::follow(presence, cx, &self.departed));
        }
        Some(Arc::new(session))
    }

    /// Retries a key when one of the caches that its last reconcile lacked is in sync again. `recoveries` is the number of
    /// recoveries before that reconcile.
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

    /// Enqueues at once the keys that failed because of a cache that is in sync now.
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

    /// Reconciles keys until the worker has to end.
    async fn serve(&self) {
        while let Some(item) = self.next().await {
            let remembered = self.plan.remembers().then(|| item.key().clone());
            self.work(item).await;
            remembered.iter().for_each(|key| self.plan.settle(key));
            self.tell_if_closing();
        }
    }

    /// Returns the next key, unless the worker has to end. Checked here because the supervisor of the run can notice a stop
    /// later than a worker that has just finished a key.
    async fn next(&self) -> Option<Item<R>> {
        let is_stopping = self.cx.stop().is_requested() && !self.plan.options.drains();
        if is_stopping || self.term.stop().is_requested() || self.panicked.borrow().is_some() {
            return None;
        }
        self.plan.queue.next().await
    }

    /// Notifies tasks that wait for the end of the work.
    fn tell_if_closing(&self) {
        if self.closing.load(Ordering::SeqCst) {
            self.idle.notify_waiters();
        }
    }
}

/// The workers of one term.
pub(crate) struct Workers<R: RequestKey> {
    pool: Arc<WorkerPool<R>>,
    _tasks: Vec<Task>,
}

impl<R: RequestKey> Workers<R> {
    /// Starts the workers, and resumes the queue.
    pub(crate) fn start(plan: &Plan<R>, cx: &RunContext, pool: &Arc<WorkerPool<R>>) -> Self {
        let count = plan.options.worker_count();
        plan.series(cx.metrics()).workers.set(count as i64);
        let tasks = (0..count).map(|_| cx.spawner().spawn("worker", keep_serving(Arc::clone(pool))));
        let workers = Self {
            _tasks: tasks.collect(),
            pool: Arc::clone(pool),
        };
        plan.queue.resume();
        workers
    }

    /// Waits for a panic from which the controller does not recover.
    pub(crate) async fn failed(&self) -> ControllerError {
        let mut panicked = self.pool.panicked.subscribe();
        let panicked = panicked.wait_for(Option::is_some).await;
        let Some((key, message)) = panicked.ok().and_then(|panicked| panicked.clone()) else {
            return std::future::pending().await;
        };
        ControllerError::Panicked {
            controller: self.pool.plan.name.to_string(),
            key,
            message,
        }
    }

    /// Waits until no key is ready and none is in flight, or until work has to end.
    pub(crate) async fn drain(&self, deadline: MonotonicTime) {
        let is_drained = |depth: &Depth| depth.ready() == 0 && depth.in_flight() == 0;
        tokio::select! {
            biased;
            () = self.pool.term.ended() => {}
            () = self.until(deadline, is_drained) => {}
        }
    }

    /// Pauses the queue, waits for reconciles in flight, and cancels the rest at the deadline or at the end of leadership.
    pub(crate) async fn finish(self, deadline: MonotonicTime) {
        self.pool.plan.queue.pause();
        self.until(deadline, |depth| depth.in_flight() == 0).await;
    }

    async fn until(&self, deadline: MonotonicTime, condition: impl Fn(&Depth) -> bool) {
        let pool = &self.pool;
        pool.closing.store(true, Ordering::SeqCst);
        let mut late = std::pin::pin!(pool.overdue(deadline));
        loop {
            let mut idle = std::pin::pin!(pool.idle.notified());
            idle.as_mut().enable();
            if condition(&pool.plan.queue.depth()) {
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
        let plan = &self.pool.plan;
        plan.queue.pause();
        // Logged here because the caller can cancel the run at its deadline.
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

/// Runs one worker. Catches panics of code around reconciles, such as a user's limiter; panics of reconciles are handled in
/// the attempt.
async fn keep_serving<R: RequestKey>(pool: Arc<WorkerPool<R>>) {
    while AssertUnwindSafe(pool.serve()).catch_unwind().await.is_err() {
        pool.tell_if_closing();
        pool.plan.count_panic();
        tracing::error!(controller = %pool.plan.name, "worker panicked outside of a reconcile; it continues in 1 s");
        pool.clock.sleep_until(pool.clock.now() + REST).await;
    }
}
