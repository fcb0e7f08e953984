// SPDX-License-Identifier: Apache-2.0
//! Runnables that run, each with its name, its own end and its result.
//!
//! # Guarantees
//! 1. Of one name one runs at a time: what was cancelled is gone before the next of its name begins, also if a supervisor
//!    before this one ran it. Nobody else waits for that.
//! 2. What holds a term is cancelled when that ends, also while it is stopping. If it fails because it may not write any
//!    more, that is the end of its term and no failure. A warm-up runnable, which takes its terms itself, is started again
//!    if it fails because it lost one; see [`across_terms`].
//! 3. What warms up and has ended well stands as ready until it is let go: nobody waits for it.

mod terms;

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use crate::{
    BoxError, BoxRunnable, Leadership, RunContext, RunPolicy, Runnable, RuntimeContext, Stop, StopHandle,
    Term, run_synced,
};
use futures::{FutureExt, future::select_all, poll};
use steersman_core::{Clock, MonotonicTime, Task, error_chain, panic_message};
use tokio::sync::{mpsc, watch};

pub(crate) use self::terms::across_terms;

/// How many failures can wait to be heard. Those beyond it are logged where they happen.
const FAILURES: usize = 64;

/// What runs now.
pub(crate) struct Supervisor {
    surroundings: Arc<RuntimeContext>,
    running: BTreeMap<String, Running>,
    leaving: Leaving,
    failures: (mpsc::Sender<Failure>, mpsc::Receiver<Failure>),
}

/// Those that were cancelled and may not be gone yet. They outlive the supervisor that ran them, and so does this. Clones are
/// one list.
#[derive(Clone, Default)]
pub(crate) struct Leaving(Arc<Mutex<Vec<Cancelled>>>);

struct Cancelled {
    name: String,
    needs: RunPolicy,
    progress: watch::Receiver<Progress>,
}

/// A runnable that ended with an error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) error: BoxError,
}

/// How far a runnable has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Starting,
    Begun,
    Ended,
}

/// What happened among those that run.
#[derive(Debug)]
pub(crate) enum Change {
    /// One failed.
    Failed(Failure),
    /// One that was dismissed is gone: its name is free.
    Released,
}

struct Running {
    /// Known here: who is let go while it runs is known nowhere else.
    needs: RunPolicy,
    stop: StopHandle,
    progress: watch::Receiver<Progress>,
    /// It was told to end by then, while the others go on.
    dismissed: Option<MonotonicTime>,
    _task: Task,
    /// Keeps the place on the board of one that warms up, also after its end.
    _place: Option<RunContext>,
}

/// How a run ended.
enum End {
    /// By itself.
    Finished(Result<(), BoxError>),
    /// Its term is over, and it was cancelled.
    Deposed,
}

impl Leaving {
    fn add(&self, name: String, Running { needs, progress, .. }: Running) {
        let cancelled = Cancelled {
            name,
            needs,
            progress,
        };
        self.present().push(cancelled);
    }

    /// Those that are not gone.
    fn present(&self) -> MutexGuard<'_, Vec<Cancelled>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| *one.progress.borrow() != Progress::Ended);
        all
    }

    /// Those of them that are meant.
    fn of(&self, is_meant: impl Fn(&Cancelled) -> bool) -> Vec<watch::Receiver<Progress>> {
        let present = self.present();
        let meant = present.iter().filter(|one| is_meant(one));
        meant.map(|one| one.progress.clone()).collect()
    }
}

impl Supervisor {
    /// Nothing runs yet. What others have cancelled is in `leaving`.
    pub(crate) fn new(surroundings: &Arc<RuntimeContext>, leaving: &Leaving) -> Self {
        Self {
            surroundings: Arc::clone(surroundings),
            running: BTreeMap::new(),
            leaving: leaving.clone(),
            failures: mpsc::channel(FAILURES),
        }
    }

    /// Runs it, unless it runs or has run already, as soon as it has the caches that it wants, for which it waits until a
    /// moment. Nobody else waits for that. The term, if there is one, is held until it has really ended.
    pub(crate) fn start(
        &mut self,
        runnable: &BoxRunnable,
        (leadership, term): (&Leadership, Option<Term>),
        (stop, deadline): (&Stop, MonotonicTime),
    ) {
        let name = runnable.name().to_owned();
        if self.running.contains_key(&name) {
            return;
        }
        let (handle, own) = stop.child();
        let cx = self.surroundings.context(&name, leadership.clone(), own.clone());
        let (sender, progress) = watch::channel(Progress::Starting);
        let (failures, runnable) = (self.failures.0.clone(), runnable.clone());
        let (called, before) = (name.clone(), self.leaving.of(|one| one.name == name));
        let ending = Ending(sender);
        let needs = runnable.run_policy();
        let warms_up = needs == RunPolicy::WarmUp;
        let place = warms_up.then(|| cx.clone());
        let task = self.surroundings.spawner().spawn("runnable", async move {
            // Dropped at the end, also if this task is aborted: the term when nothing of the run is left.
            let (ending, term, cx) = (ending, term, cx);
            if !before.is_empty() {
                ending.begun();
                gone(before).await;
            }
            tracing::debug!(name = called, "starting");
            let end = run(&runnable, cx.clone(), deadline, (&ending, term.as_ref())).await;
            let error = match end {
                End::Deposed => return tracing::debug!(name = called, "cancelled, because it stopped leading"),
                End::Finished(Ok(())) => {
                    if warms_up && !own.is_requested() {
                        cx.ready();
                    }
                    return tracing::debug!(name = called, "ended");
                }
                End::Finished(Err(error)) => error,
            };
            if own.is_requested() {
                return report_late(&called, &error);
            }
            if term.as_ref().is_some_and(Term::is_spent) {
                return tracing::warn!(name = called, error = %error_chain(&*error), "failed after it stopped leading");
            }
            if let Err(lost) = failures.try_send(Failure { name: called, error }) {
                let failure = lost.into_inner();
                tracing::error!(name = failure.name, error = %error_chain(&*failure.error), "failed");
            }
        });
        let running = Running {
            needs,
            stop: handle,
            progress,
            dismissed: None,
            _task: task,
            _place: place,
        };
        self.running.insert(name, running);
    }

    /// Waits until those that were cancelled and need this are gone.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub(crate) async fn rid_of(&self, needs: RunPolicy) {
        gone(self.leaving.of(|one| one.needs == needs)).await;
    }

    /// Waits until everything that was started has made its first step.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub(crate) async fn begun(&self) {
        for running in self.running.values() {
            let mut progress = running.progress.clone();
            // One whose sender is gone has ended.
            let _ = progress
                .wait_for(|progress| *progress != Progress::Starting)
                .await;
        }
    }

    /// Waits until a runnable fails, or one that was dismissed has ended or is cancelled because its time is over.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub(crate) async fn changed(&mut self) -> Change {
        let (name, has_ended) = tokio::select! {
            biased;
            // The sender is here.
            Some(failure) = self.failures.1.recv() => return Change::Failed(failure),
            released = released(&self.running, self.surroundings.clock()) => released,
        };
        let released = self.running.remove(&name);
        if let Some(running) = released.filter(|_| !has_ended) {
            tracing::warn!(
                name,
                "did not end within the grace period after its cluster was removed, and is cancelled"
            );
            self.leaving.add(name, running);
        }
        Change::Released
    }

    /// What failed and was not heard yet.
    pub(crate) fn unheard(&mut self) -> Vec<Failure> {
        std::iter::from_fn(|| self.failures.1.try_recv().ok()).collect()
    }

    /// Tells one to end while the others go on. [`changed`](Self::changed) says when it has.
    pub(crate) fn dismiss(&mut self, name: &str, deadline: MonotonicTime) {
        if let Some(running) = self.running.get_mut(name) {
            running.stop.stop_by(deadline);
            running.dismissed = Some(deadline);
        }
    }

    /// Stops those of whose needs `chosen` is true, also if they were dismissed, waits for them until the deadline, and
    /// gives the names of those that did not end in time. They are cancelled. One that is told only after the deadline is
    /// not called late.
    pub(crate) async fn stop(
        &mut self,
        deadline: MonotonicTime,
        chosen: impl Fn(RunPolicy) -> bool,
    ) -> Vec<String> {
        let running = self.running.iter().filter(|(_, running)| chosen(running.needs));
        let names: Vec<String> = running.map(|(name, _)| name.clone()).collect();
        for name in &names {
            if let Some(running) = self.running.get(name) {
                running.stop.stop_by(deadline);
            }
        }
        let clock = self.surroundings.clock();
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
                // One that ended is not called unfinished because another one was slow.
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
                self.leaving.add(name, running);
            }
        }
        unfinished
    }
}

/// All that runs is cancelled with it.
impl Drop for Supervisor {
    fn drop(&mut self) {
        for (name, running) in std::mem::take(&mut self.running) {
            self.leaving.add(name, running);
        }
    }
}

/// Runs one, until its term is over if it has one.
async fn run(
    runnable: &BoxRunnable,
    cx: RunContext,
    deadline: MonotonicTime,
    (ending, term): (&Ending, Option<&Term>),
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
    let deposed = async {
        match term {
            Some(term) => term.ended().await,
            None => std::future::pending().await,
        }
    };
    let mut ended = pin!(async {
        tokio::select! {
            biased;
            () = deposed => End::Deposed,
            end = running => end,
        }
    });
    if let Poll::Ready(end) = poll!(ended.as_mut()) {
        return end;
    }
    // It has made its first step.
    ending.begun();
    ended.await
}

/// Waits until all of them have ended.
async fn gone(leaving: Vec<watch::Receiver<Progress>>) {
    for mut progress in leaving {
        // One whose sender is gone has ended.
        let _ = progress.wait_for(|progress| *progress == Progress::Ended).await;
    }
}

/// Waits until one that was dismissed has ended, or its time is over.
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

struct Ending(watch::Sender<Progress>);

impl Ending {
    fn begun(&self) {
        self.0.send_replace(Progress::Begun);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.send_replace(Progress::Ended);
    }
}

/// Logs an error that came after the request to stop. One that only says that it was stopped is nothing to look after.
fn report_late(name: &str, error: &BoxError) {
    let text = error_chain(&**error);
    if is_cut_off(&**error) {
        tracing::debug!(name, error = text, "ended, because it was stopped");
    } else {
        tracing::warn!(name, error = text, "failed while it was stopping");
    }
}

/// Whether the cause is that a client is closed or held back, or that a task was cancelled.
fn is_cut_off(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let ended = error.downcast_ref::<tokio::task::JoinError>();
        error.is::<steersman_cluster::Closed>() || ended.is_some_and(tokio::task::JoinError::is_cancelled)
    })
}

#[cfg(test)]
mod tests;
