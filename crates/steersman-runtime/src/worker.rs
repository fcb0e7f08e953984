// SPDX-License-Identifier: Apache-2.0
//! Workers: they take keys and call the reconciler.
//!
//! One term of a run, from top to bottom: [`Workers::start`] starts the workers and resumes the queue; each worker calls
//! [`WorkerPool::work_on_next_key`] in a loop; that takes a key and [reconciles](attempt) it in the
//! [session](sessions) of its cluster.
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
//! 6. A worker begins no reconcile after the end of the term, after a panic that ends the run, or after a stop was
//!    requested; its key stays in the queue. Only if the controller drains its queue, workers continue after a stop was
//!    requested.

mod attempt;
mod long_running;
mod sessions;
mod unsynced;

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use steersman_core::{MonotonicTime, Task};
use steersman_queue::{Depth, Item};
use tokio::sync::{Notify, watch};

use self::{long_running::Keys, sessions::Sessions, unsynced::UnsyncedKeys};
use crate::{ControllerError, RequestKey, Term, hot_loop::HotLoops, run::Run};

/// Pause of a worker that panicked outside of a reconcile.
const PAUSE: Duration = Duration::from_secs(1);

/// The workers of one term.
pub(crate) struct Workers<R: RequestKey> {
    pool: Arc<WorkerPool<R>>,
    _tasks: Vec<Task>,
}

/// Shared state of the workers of one term.
pub(crate) struct WorkerPool<R: RequestKey> {
    run: Arc<Run<R>>,
    term: Term,
    sessions: Sessions,
    hot_loops: HotLoops<R>,
    /// Keys that failed because caches were not in sync.
    unsynced: UnsyncedKeys<R>,
    /// Notified of each reconcile that ended after its warning for a long run.
    long_ended: Notify,
    closing: AtomicBool,
    idle: Notify,
    /// The panic that ends the run.
    panicked: watch::Sender<Option<Panicked>>,
}

/// A panic from which the controller does not recover.
#[derive(Clone)]
struct Panicked {
    key: String,
    message: String,
}

impl<R: RequestKey> Workers<R> {
    /// Starts the workers, and resumes the queue.
    pub(crate) fn start(pool: &Arc<WorkerPool<R>>) -> Self {
        let (plan, cx) = (&pool.run.plan, &pool.run.cx);
        let count = plan.options.worker_count();
        plan.series(cx.metrics()).workers.set(count as i64);
        let tasks = (0..count).map(|_| cx.spawner().spawn("worker", keep_working(Arc::clone(pool))));
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
        let Some(Panicked { key, message }) = panicked.ok().and_then(|panicked| panicked.clone()) else {
            return std::future::pending().await;
        };
        ControllerError::Panicked {
            controller: self.pool.run.plan.name.to_string(),
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
        self.pool.run.plan.queue.pause();
        self.until(deadline, |depth| depth.in_flight() == 0).await;
    }

    async fn until(&self, deadline: MonotonicTime, condition: impl Fn(&Depth) -> bool) {
        let pool = &self.pool;
        pool.closing.store(true, Ordering::SeqCst);
        let mut late = std::pin::pin!(pool.overdue(deadline));
        loop {
            let mut idle = std::pin::pin!(pool.idle.notified());
            idle.as_mut().enable();
            if condition(&pool.run.plan.queue.depth()) {
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
        let plan = &self.pool.run.plan;
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
async fn keep_working<R: RequestKey>(pool: Arc<WorkerPool<R>>) {
    let work = async || while pool.work_on_next_key().await {};
    while AssertUnwindSafe(work()).catch_unwind().await.is_err() {
        pool.notify_if_closing();
        let (plan, clock) = (&pool.run.plan, pool.run.cx.clock());
        plan.count_panic();
        tracing::error!(controller = %plan.name, "worker panicked outside of a reconcile; it continues in 1 s");
        clock.sleep_until(clock.now() + PAUSE).await;
    }
}

impl<R: RequestKey> WorkerPool<R> {
    pub(crate) fn new(run: &Arc<Run<R>>, term: Term) -> Self {
        Self {
            run: Arc::clone(run),
            term,
            sessions: Sessions::default(),
            hot_loops: HotLoops::new(run.plan.options.hot_loop_rate()),
            unsynced: UnsyncedKeys::default(),
            long_ended: Notify::new(),
            closing: AtomicBool::new(false),
            idle: Notify::new(),
            panicked: watch::Sender::new(None),
        }
    }

    /// Takes a key and reconciles it. Returns false if the worker has to end.
    async fn work_on_next_key(&self) -> bool {
        let Some(item) = self.next().await else {
            return false;
        };
        self.reconcile_item(item).await;
        self.notify_if_closing();
        true
    }

    /// Returns the next key, or `None` if the worker has to end. Checked after the wait for the key, because the run can
    /// notice the end of a term later than a worker that waits, and pauses the queue only then.
    async fn next(&self) -> Option<Item<R>> {
        let queue = &self.run.plan.queue;
        let item = queue.next().await?;
        if self.has_to_end() {
            queue.restore(item.withdraw());
            // `finish` counts the key as in flight until now.
            self.notify_if_closing();
            return None;
        }
        Some(item)
    }

    fn has_to_end(&self) -> bool {
        let Run { plan, cx, .. } = &*self.run;
        let is_stopping = cx.stop().is_requested() && !plan.options.drains();
        is_stopping || self.term.is_over() || self.panicked.borrow().is_some()
    }

    /// Notifies tasks that wait for the end of the work.
    fn notify_if_closing(&self) {
        if self.closing.load(Ordering::SeqCst) {
            self.idle.notify_waiters();
        }
    }

    /// Waits until work has to end: the deadline, or, after leadership has ended, the time until which the fence allows
    /// writes.
    async fn overdue(&self, deadline: MonotonicTime) {
        let clock = self.run.cx.clock();
        tokio::select! {
            biased;
            () = self.term.ended() => {
                let now = clock.now();
                let deadline = self.term.fence().remaining().map_or(now, |left| now + left);
                clock.sleep_until(deadline).await;
            }
            () = clock.sleep_until(deadline) => {}
        }
    }
}
