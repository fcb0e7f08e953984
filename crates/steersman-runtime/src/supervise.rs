// SPDX-License-Identifier: Apache-2.0
//! Supervises running runnables, each with its name, stop request and result.
//!
//! # Guarantees
//! 1. Only one runnable of a name runs at a time: a cancelled task has ended before the next runnable of its name starts,
//!    also if an earlier supervisor ran it. Nothing else waits for that.
//! 2. A runnable that holds a term is cancelled when the term ends, also while it is stopping. If it fails because its
//!    writes are fenced, that is the end of its term and no failure. A warm-up runnable, which takes its terms itself, is
//!    started again if it fails because it lost one; see [`across_terms`].
//! 3. A warm-up runnable that has ended without an error has status ready until it is removed, so that nothing waits for
//!    it.

mod terms;

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, MutexGuard},
    task::Poll,
};

use crate::{
    BoxError, BoxRunnable, Leadership, RunContext, RunPolicy, Runnable, RuntimeContext, Stop, StopHandle,
    Term,
    reconciler::{caused_by, is_fenced},
    run_synced,
};
use futures::{FutureExt, future::select_all, poll};
use steersman_core::{Clock, MonotonicTime, Mutex, Task, error_chain, panic_message};
use tokio::{
    sync::{mpsc, watch},
    task::JoinError,
};

pub(crate) use self::terms::across_terms;

/// Capacity of the channel of failures. Further failures are logged directly.
const FAILURES: usize = 64;

/// The running runnables.
pub(crate) struct Supervisor {
    runtime: Arc<RuntimeContext>,
    running: BTreeMap<String, Running>,
    cancelled: CancelledTasks,
    failures: (mpsc::Sender<Failure>, mpsc::Receiver<Failure>),
}

/// Cancelled runnables whose tasks might not have ended yet. The list outlives the supervisor that ran them. Clones share
/// the list.
#[derive(Clone, Default)]
pub(crate) struct CancelledTasks(Arc<Mutex<Vec<Cancelled>>>);

struct Cancelled {
    name: String,
    run_policy: RunPolicy,
    progress: watch::Receiver<Progress>,
}

/// A runnable that ended with an error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) error: BoxError,
}

/// Progress of a runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Starting,
    Begun,
    Ended,
}

/// A change of the running runnables.
#[derive(Debug)]
pub(crate) enum Change {
    /// A runnable failed.
    Failed(Failure),
    /// A dismissed runnable has ended: its name is free.
    Released,
}

struct Running {
    /// Kept here: for a runnable that is removed while it runs, this is the only place.
    run_policy: RunPolicy,
    stop: StopHandle,
    progress: watch::Receiver<Progress>,
    /// Deadline of a runnable that was stopped while the others continue.
    dismissed: Option<MonotonicTime>,
    _task: Task,
    /// Keeps the status of a warm-up runnable, also after its end.
    _status: Option<RunContext>,
}

/// Result of a run.
enum End {
    /// The runnable ended by itself.
    Finished(Result<(), BoxError>),
    /// The term ended, and the runnable was cancelled.
    LeaderLost,
}

impl CancelledTasks {
    fn add(
        &self,
        name: String,
        Running {
            run_policy, progress, ..
        }: Running,
    ) {
        let cancelled = Cancelled {
            name,
            run_policy,
            progress,
        };
        self.present().push(cancelled);
    }

    /// Returns the tasks that have not ended.
    fn present(&self) -> MutexGuard<'_, Vec<Cancelled>> {
        let mut all = self.0.lock();
        all.retain(|one| *one.progress.borrow() != Progress::Ended);
        all
    }

    /// Returns the progress of the matching tasks.
    fn of(&self, is_meant: impl Fn(&Cancelled) -> bool) -> Vec<watch::Receiver<Progress>> {
        let present = self.present();
        let meant = present.iter().filter(|one| is_meant(one));
        meant.map(|one| one.progress.clone()).collect()
    }
}

impl Supervisor {
    /// Creates a supervisor without runnables. `cancelled` has the tasks that others have cancelled.
    pub(crate) fn new(runtime: &Arc<RuntimeContext>, cancelled: &CancelledTasks) -> Self {
        Self {
            runtime: Arc::clone(runtime),
            running: BTreeMap::new(),
            cancelled: cancelled.clone(),
            failures: mpsc::channel(FAILURES),
        }
    }

    /// Starts a runnable, unless it runs or has already run, once its caches are in sync or the deadline for them has
    /// passed. Nothing else waits for that. The term, if there is one, is held until the task has ended.
    pub(crate) fn start(
        &mut self,
        runnable: &BoxRunnable,
        leadership: &Leadership,
        term: Option<Term>,
        stop: &Stop,
        deadline: MonotonicTime,
    ) {
        let name = runnable.name().to_owned();
        if self.running.contains_key(&name) {
            return;
        }
        let (handle, own) = stop.child();
        let cx = self.runtime.context(&name, leadership.clone(), own.clone());
        let (sender, progress) = watch::channel(Progress::Starting);
        let (failures, runnable) = (self.failures.0.clone(), runnable.clone());
        let (called, before) = (name.clone(), self.cancelled.of(|one| one.name == name));
        let progress_guard = ProgressGuard(sender);
        let run_policy = runnable.run_policy();
        let warms_up = run_policy == RunPolicy::Warm;
        let status = warms_up.then(|| cx.clone());
        let task = self.runtime.spawner().spawn("runnable", async move {
            // Dropped at the end, also if this task is aborted: the term when nothing of the run is left.
            let (progress_guard, term, cx) = (progress_guard, term, cx);
            if !before.is_empty() {
                progress_guard.begun();
                all_ended(before).await;
            }
            tracing::debug!(name = called, "starting runnable");
            let end = run(&runnable, cx.clone(), deadline, &progress_guard, term.as_ref()).await;
            let error = match end {
                End::LeaderLost => return tracing::debug!(name = called, "cancelled runnable: it stopped leading"),
                End::Finished(Ok(())) => {
                    if warms_up && !own.is_requested() {
                        cx.ready();
                    }
                    return tracing::debug!(name = called, "runnable ended");
                }
                End::Finished(Err(error)) => error,
            };
            if own.is_requested() {
                return report_late(&called, &error);
            }
            if term.as_ref().is_some_and(|term| !term.can_write()) {
                return tracing::warn!(name = called, error = %error_chain(&*error), "runnable failed after it stopped leading");
            }
            if let Err(lost) = failures.try_send(Failure { name: called, error }) {
                let failure = lost.into_inner();
                tracing::error!(name = failure.name, error = %error_chain(&*failure.error), "runnable failed");
            }
        });
        let running = Running {
            run_policy,
            stop: handle,
            progress,
            dismissed: None,
            _task: task,
            _status: status,
        };
        self.running.insert(name, running);
    }

    /// Waits until the cancelled runnables of this policy have ended.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub(crate) async fn wait_for_earlier_run(&self, run_policy: RunPolicy) {
        all_ended(self.cancelled.of(|one| one.run_policy == run_policy)).await;
    }

    /// Waits until every started runnable has made its first step.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub(crate) async fn begun(&self) {
        for running in self.running.values() {
            let mut progress = running.progress.clone();
            // A dropped sender means that the task has ended.
            let _ = progress
                .wait_for(|progress| *progress != Progress::Starting)
                .await;
        }
    }

    /// Waits until a runnable fails, or a dismissed one has ended or is cancelled at its deadline.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub(crate) async fn changed(&mut self) -> Change {
        let (name, has_ended) = tokio::select! {
            biased;
            // `self` holds the sender, so the channel stays open.
            Some(failure) = self.failures.1.recv() => return Change::Failed(failure),
            released = released(&self.running, self.runtime.clock()) => released,
        };
        let released = self.running.remove(&name);
        if let Some(running) = released.filter(|_| !has_ended) {
            tracing::warn!(
                name,
                "did not end in time after its cluster was removed; cancelling it"
            );
            self.cancelled.add(name, running);
        }
        Change::Released
    }

    /// Returns the failures that were not received yet.
    pub(crate) fn unreported_failures(&mut self) -> Vec<Failure> {
        std::iter::from_fn(|| self.failures.1.try_recv().ok()).collect()
    }

    /// Requests the stop of one runnable while the others continue. [`changed`](Self::changed) reports its end.
    pub(crate) fn dismiss(&mut self, name: &str, deadline: MonotonicTime) {
        if let Some(running) = self.running.get_mut(name) {
            running.stop.stop_by(deadline);
            running.dismissed = Some(deadline);
        }
    }

    /// Stops the runnables for whose policy `chosen` is true, also dismissed ones, and waits for them until the deadline.
    /// Then cancels the rest and returns their names. A runnable whose stop is requested only after the deadline is not
    /// reported as late.
    pub(crate) async fn stop(
        &mut self,
        deadline: MonotonicTime,
        chosen: impl Fn(RunPolicy) -> bool,
    ) -> Vec<String> {
        let running = self
            .running
            .iter()
            .filter(|(_, running)| chosen(running.run_policy));
        let names: Vec<String> = running.map(|(name, _)| name.clone()).collect();
        for name in &names {
            if let Some(running) = self.running.get(name) {
                running.stop.stop_by(deadline);
            }
        }
        let clock = self.runtime.clock();
        let had_time = clock.now() < deadline;
        let mut late = clock.sleep_until(deadline);
        let mut is_late = false;
        let mut unfinished = Vec::new();
        for name in names {
            let Some(mut running) = self.running.remove(&name) else {
                continue;
            };
            let ended = async {
                let ended = running.progress.wait_for(|progress| *progress == Progress::Ended);
                ended.await.is_ok()
            };
            let has_ended = if is_late {
                // A runnable that has ended is not reported because another one was slow.
                ended.now_or_never().unwrap_or(false)
            } else {
                tokio::select! {
                    biased;
                    ended = ended => ended,
                    () = &mut late => { is_late = true; false }
                }
            };
            if !has_ended && had_time {
                unfinished.push(name.clone());
            }
            if !has_ended {
                self.cancelled.add(name, running);
            }
        }
        unfinished
    }
}

/// Cancels everything that runs.
impl Drop for Supervisor {
    fn drop(&mut self) {
        for (name, running) in std::mem::take(&mut self.running) {
            self.cancelled.add(name, running);
        }
    }
}

/// Runs a runnable, until its term ends if it has one.
async fn run(
    runnable: &BoxRunnable,
    cx: RunContext,
    deadline: MonotonicTime,
    progress_guard: &ProgressGuard,
    term: Option<&Term>,
) -> End {
    let running = async {
        if term.is_some() {
            return run_synced(runnable, cx, deadline).await;
        }
        let mut first = Some(deadline);
        across_terms(runnable.name(), &cx, || {
            let again = || cx.clock().now() + cx.fill_limit();
            let deadline = first.take().unwrap_or_else(again);
            run_synced(runnable, cx.clone(), deadline)
        })
        .await
    };
    let running = AssertUnwindSafe(running).catch_unwind();
    let running = async {
        match running.await {
            Ok(result) => End::Finished(result),
            Err(panic) => End::Finished(Err(format!("it panicked: {}", panic_message(&*panic)).into())),
        }
    };
    let leader_lost = async {
        match term {
            Some(term) => term.ended().await,
            None => std::future::pending().await,
        }
    };
    let mut ended = pin!(async {
        tokio::select! {
            biased;
            () = leader_lost => End::LeaderLost,
            end = running => end,
        }
    });
    if let Poll::Ready(end) = poll!(ended.as_mut()) {
        return end;
    }
    // The first step is done.
    progress_guard.begun();
    ended.await
}

/// Waits until all of them have ended.
async fn all_ended(cancelled: Vec<watch::Receiver<Progress>>) {
    for mut progress in cancelled {
        // A dropped sender means that the task has ended.
        let _ = progress.wait_for(|progress| *progress == Progress::Ended).await;
    }
}

/// Waits until a dismissed runnable has ended, or its deadline has passed.
async fn released(running: &BTreeMap<String, Running>, clock: &Arc<dyn Clock>) -> (String, bool) {
    let dismissed = running.iter().filter_map(|(name, running)| {
        let late = clock.sleep_until(running.dismissed?);
        let (name, mut progress) = (name.clone(), running.progress.clone());
        Some(Box::pin(async move {
            tokio::select! {
                biased;
                _ = progress.wait_for(|progress| *progress == Progress::Ended) => (name, true),
                () = late => (name, false),
            }
        }))
    });
    let dismissed: Vec<_> = dismissed.collect();
    if dismissed.is_empty() {
        return std::future::pending().await;
    }
    select_all(dismissed).await.0
}

struct ProgressGuard(watch::Sender<Progress>);

impl ProgressGuard {
    fn begun(&self) {
        self.0.send_replace(Progress::Begun);
    }
}

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        self.0.send_replace(Progress::Ended);
    }
}

/// Logs an error after the stop request. An error that only states the stop is logged at debug level.
fn report_late(name: &str, error: &BoxError) {
    let text = error_chain(&**error);
    if is_cut_off(error) {
        tracing::debug!(name, error = text, "runnable stopped");
    } else {
        tracing::warn!(name, error = text, "runnable failed while stopping");
    }
}

/// Returns true if a closed or fenced client, or a cancelled task, caused the error.
fn is_cut_off(error: &BoxError) -> bool {
    is_fenced(error) || caused_by::<JoinError>(error).is_some_and(JoinError::is_cancelled)
}

#[cfg(test)]
mod tests;
