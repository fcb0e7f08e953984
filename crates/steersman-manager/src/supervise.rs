// SPDX-License-Identifier: Apache-2.0
//! Runnables that run, each with its name, its own end and its result.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use steersman_controller::{
    BoxError, BoxRunnable, Leadership, RunSurroundings, Runnable, Stop, StopHandle, Term,
};
use steersman_core::{Moment, Task};
use tokio::sync::{mpsc, watch};

/// How many failures can wait to be heard. Those beyond it are logged where they happen.
const FAILURES: usize = 64;

/// What runs now.
pub(crate) struct Supervisor {
    surroundings: Arc<RunSurroundings>,
    running: BTreeMap<String, Running>,
    failures: (mpsc::Sender<Failure>, mpsc::Receiver<Failure>),
}

/// A runnable that ended with an error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) error: BoxError,
}

struct Running {
    stop: StopHandle,
    ended: watch::Receiver<bool>,
    _task: Task,
}

impl Supervisor {
    pub(crate) fn new(surroundings: &Arc<RunSurroundings>) -> Self {
        Self {
            surroundings: Arc::clone(surroundings),
            running: BTreeMap::new(),
            failures: mpsc::channel(FAILURES),
        }
    }

    /// Runs it, unless it runs or has run already. The term, if there is one, is held until it has really ended.
    pub(crate) fn start(
        &mut self,
        runnable: &BoxRunnable,
        (leadership, term): (&Leadership, Option<Term>),
        stop: &Stop,
    ) {
        let name = runnable.name().to_owned();
        if self.running.contains_key(&name) {
            return;
        }
        let (handle, own) = stop.child();
        let cx = self.surroundings.context(&name, leadership.clone(), own.clone());
        let (ending, ended) = watch::channel(false);
        let (failures, runnable) = (self.failures.0.clone(), runnable.clone());
        let called = name.clone();
        tracing::debug!(name, "starting");
        let task = self.surroundings.spawner().spawn("runnable", async move {
            // Dropped at the end, also if this task is aborted: the term when nothing of the run is left.
            let (_ending, _term) = (Ending(ending), term);
            let result = AssertUnwindSafe(async { runnable.run(cx).await })
                .catch_unwind()
                .await;
            let error = match result {
                Ok(Ok(())) => return tracing::debug!(name = called, "ended"),
                Ok(Err(error)) => error,
                Err(panic) => format!("it panicked: {}", message(&*panic)).into(),
            };
            if own.is_requested() {
                return tracing::warn!(name = called, error = %chain(&*error), "failed while it was stopping");
            }
            if let Err(lost) = failures.try_send(Failure { name: called, error }) {
                let failure = lost.into_inner();
                tracing::error!(name = failure.name, error = %chain(&*failure.error), "failed");
            }
        });
        let running = Running {
            stop: handle,
            ended,
            _task: task,
        };
        self.running.insert(name, running);
    }

    /// Waits for a runnable to fail.
    pub(crate) async fn failed(&mut self) -> Failure {
        match self.failures.1.recv().await {
            Some(failure) => failure,
            // The sender is here.
            None => std::future::pending().await,
        }
    }

    /// What failed and was not heard yet.
    pub(crate) fn unheard(&mut self) -> Vec<Failure> {
        std::iter::from_fn(|| self.failures.1.try_recv().ok()).collect()
    }

    /// The names of what runs.
    pub(crate) fn names(&self) -> Vec<String> {
        self.running.keys().cloned().collect()
    }

    /// Stops those for which `chosen` is true, waits for them until the deadline, and gives the names of those that did
    /// not end in time. They are cancelled.
    pub(crate) async fn stop(&mut self, deadline: Moment, chosen: impl Fn(&str) -> bool) -> Vec<String> {
        let names: Vec<String> = self.running.keys().filter(|name| chosen(name)).cloned().collect();
        for name in &names {
            if let Some(running) = self.running.get(name) {
                running.stop.stop_by(deadline);
            }
        }
        let mut late = self.surroundings.clock().sleep_until(deadline);
        let mut is_late = false;
        let mut unfinished = Vec::new();
        for name in names {
            let Some(mut running) = self.running.remove(&name) else {
                continue;
            };
            let ended = async { running.ended.wait_for(|ended| *ended).await.is_ok() };
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
            if !has_ended {
                unfinished.push(name);
            }
        }
        unfinished
    }
}

struct Ending(watch::Sender<bool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    crate::serve::causes(error)
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}
