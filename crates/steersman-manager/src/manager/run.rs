// SPDX-License-Identifier: Apache-2.0
//! One run of a manager.

use std::{collections::BTreeSet, future::Future, sync::Arc};

use steersman_cluster::Fence;
use steersman_controller::{Leadership, LeadershipKeeper, Needs, Runnable, Standing, Stop, StopHandle};
use steersman_core::Moment;

use super::{Inner, RunError, State, barrier};
use crate::supervise::{Change, Failure, Supervisor, chain};

/// Starts in order, keeps running what should run, and stops in order.
pub(super) async fn run(
    inner: &Arc<Inner>,
    // Kept to the end: everything that runs ends with it, also if this future is dropped.
    (_handle, stop): (StopHandle, Stop),
    asked: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let clock = Arc::clone(inner.surroundings.clock());
    let endpoints = inner.endpoints.serve(inner.surroundings.spawner())?;
    let (keeper, leadership) = LeadershipKeeper::new();
    inner.leadership.send_replace(Some(leadership));
    let mut supervisor = Supervisor::new(&inner.surroundings);
    let ended = {
        let mut asked = std::pin::pin!(asked);
        tokio::select! {
            biased;
            () = &mut asked => Ok(()),
            result = work(inner, &keeper, &mut supervisor, &stop) => result,
        }
    };
    inner.lock().state = State::Stopping;
    let deadline = clock.now() + inner.grace;
    let unfinished = wind_down(inner, &keeper, &mut supervisor, deadline).await;
    for Failure { name, error } in supervisor.unheard() {
        tracing::error!(name, error = %chain(&*error), "failed after the run was to end");
    }
    endpoints.end(deadline, &clock).await;
    if unfinished.is_empty() {
        return ended;
    }
    Err(RunError::Unfinished {
        grace: inner.grace,
        names: unfinished,
        source: ended.err().map(Box::new),
    })
}

/// Brings everything up, and keeps it so until something fails.
async fn work(
    inner: &Arc<Inner>,
    keeper: &LeadershipKeeper,
    supervisor: &mut Supervisor,
    stop: &Stop,
) -> Result<(), RunError> {
    inner.warn_of_unknown_names();
    let mut held = barrier::fill_caches(inner).await;
    // Whoever runs leads: nobody contends.
    keeper.grant(Fence::open());
    let mut changed = inner.changed.subscribe();
    loop {
        changed.mark_unchanged();
        for (name, deadline) in inner.take_dismissed() {
            supervisor.dismiss(&name, deadline);
        }
        start_due(inner, supervisor, stop).await;
        tokio::select! {
            biased;
            change = supervisor.changed() => if let Change::Failed(Failure { name, error }) = change {
                tracing::error!(name, error = %chain(&*error), "failed; the run ends");
                return Err(RunError::Runnable { name, source: error });
            },
            _ = changed.changed() => {}
            // Those who run have their own shares by then.
            () = begun(inner), if !held.is_empty() => held.clear(),
        }
    }
}

/// Waits until nobody waits for something that it needs to begin.
async fn begun(inner: &Inner) {
    let is_waiting = |standing: &Standing| matches!(standing, Standing::Waiting { .. });
    let standings = inner.surroundings.standings();
    standings.when(|all| !all.values().any(is_waiting)).await;
}

/// Starts what should run and does not, one phase after the other.
async fn start_due(inner: &Inner, supervisor: &mut Supervisor, stop: &Stop) {
    let Some(leadership) = inner.leadership.borrow().clone() else {
        return;
    };
    let runnables = inner.runnables();
    for phase in [Needs::Nothing, Needs::WarmUp, Needs::Leadership] {
        for runnable in runnables.iter().filter(|runnable| runnable.needs() == phase) {
            match phase {
                // Whoever leads.
                Needs::Nothing => supervisor.start(runnable, &Leadership::always(), stop),
                _ => supervisor.start(runnable, &leadership, stop),
            }
        }
        supervisor.begun().await;
    }
}

/// Ends everything in order, and gives the names of those that did not end in time.
async fn wind_down(
    inner: &Inner,
    keeper: &LeadershipKeeper,
    supervisor: &mut Supervisor,
    deadline: Moment,
) -> Vec<String> {
    let always_on: BTreeSet<String> = inner
        .runnables()
        .iter()
        .filter(|runnable| runnable.needs() == Needs::Nothing)
        .map(|runnable| runnable.name().to_owned())
        .collect();
    let mut unfinished = supervisor.stop(deadline, |name| !always_on.contains(name)).await;
    keeper.revoke();
    let clock = inner.surroundings.clock();
    tokio::select! {
        biased;
        () = keeper.vacated() => {}
        () = clock.sleep_until(deadline) => {}
    }
    unfinished.extend(supervisor.stop(deadline, |_| true).await);
    unfinished
}
