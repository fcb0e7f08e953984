// SPDX-License-Identifier: Apache-2.0
//! One run of a manager.

use std::{collections::BTreeSet, future::Future, sync::Arc};

use futures::future::join_all;
use steersman_cache::Held;
use steersman_cluster::Fence;
use steersman_controller::{BoxRunnable, LeadershipKeeper, Needs, Runnable, Stop, StopHandle};
use steersman_core::Moment;

use super::{Inner, RunError, State};
use crate::supervise::{Failure, Supervisor, chain};

/// Starts in order, keeps running what should run, and stops in order.
pub(super) async fn run(
    inner: &Arc<Inner>,
    (handle, stop): (StopHandle, Stop),
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
    handle.stop_by(deadline);
    let unfinished = wind_down(inner, &keeper, &mut supervisor, deadline).await;
    for Failure { name, error } in supervisor.unheard() {
        tracing::error!(name, error = %chain(&*error), "failed after the run was to end");
    }
    endpoints.end(deadline, &clock).await;
    match (unfinished.is_empty() || inner.grace.is_zero(), ended) {
        (true, ended) => ended,
        (false, ended) => Err(RunError::Unfinished {
            grace: inner.grace,
            names: unfinished,
            source: ended.err().map(Box::new),
        }),
    }
}

/// Brings everything up, and keeps it so until something fails.
async fn work(
    inner: &Arc<Inner>,
    keeper: &LeadershipKeeper,
    supervisor: &mut Supervisor,
    stop: &Stop,
) -> Result<(), RunError> {
    let held = fill_caches(inner).await;
    // Whoever runs leads: nobody contends.
    keeper.grant(Fence::open());
    let mut changed = inner.changed.subscribe();
    let mut held = Some(held);
    loop {
        changed.mark_unchanged();
        dismiss(inner, supervisor).await;
        start_due(inner, supervisor, stop);
        // Those who run have their own shares by now, or within the time that an informer lingers.
        held.take();
        tokio::select! {
            biased;
            Failure { name, error } = supervisor.failed() => {
                tracing::error!(name, error = %chain(&*error), "failed; the run ends");
                return Err(RunError::Runnable { name, source: error });
            }
            _ = changed.changed() => {}
        }
    }
}

/// Fills the caches that were declared, all at the same time, and waits for them as far as that makes sense.
async fn fill_caches(inner: &Inner) -> Vec<Held> {
    let wanted = inner
        .runnables()
        .into_iter()
        .flat_map(|runnable| runnable.caches());
    let held: Vec<Held> = wanted.map(|wanted| wanted.informer()).collect();
    let clock = inner.surroundings.clock();
    let each = held.iter().map(|informer| async move {
        match informer.settled().await {
            Ok(()) => tracing::debug!(kind = %informer.resource(), "in sync"),
            Err(trouble) => tracing::warn!(
                kind = %informer.resource(),
                %trouble,
                "not in sync; only those who need it wait for it"
            ),
        }
    });
    tokio::select! {
        biased;
        _ = join_all(each) => {}
        () = clock.sleep_until(clock.now() + inner.barrier) => {
            let late: BTreeSet<String> = held
                .iter()
                .filter(|informer| !informer.health().synced)
                .map(|informer| informer.resource().to_string())
                .collect();
            tracing::warn!(?late, limit = ?inner.barrier, "not in sync in time; the others start without them");
        }
    }
    held
}

/// Starts what should run and does not.
fn start_due(inner: &Inner, supervisor: &mut Supervisor, stop: &Stop) {
    let Some(leadership) = inner.leadership.borrow().clone() else {
        return;
    };
    let mut runnables = inner.runnables();
    runnables.sort_by_key(|runnable| match runnable.needs() {
        Needs::Nothing => 0,
        Needs::WarmUp => 1,
        _ => 2,
    });
    let is_there = |runnable: &BoxRunnable| {
        let fleet = inner.surroundings.fleet();
        runnable.clusters().iter().all(|name| fleet.get(name).is_some())
    };
    for runnable in runnables.iter().filter(|runnable| is_there(runnable)) {
        supervisor.start(runnable, &leadership, stop);
    }
}

/// Stops those whose cluster has gone.
async fn dismiss(inner: &Inner, supervisor: &mut Supervisor) {
    let fleet = inner.surroundings.fleet();
    let gone: BTreeSet<String> = inner
        .runnables()
        .iter()
        .filter(|runnable| runnable.clusters().iter().any(|name| fleet.get(name).is_none()))
        .map(|runnable| runnable.name().to_owned())
        .collect();
    let running = supervisor.names();
    if running.iter().all(|name| !gone.contains(name)) {
        return;
    }
    let deadline = inner.surroundings.clock().now() + inner.grace;
    let late = supervisor.stop(deadline, |name| gone.contains(name)).await;
    for name in late {
        tracing::warn!(
            name,
            "did not end within the grace period after its cluster was removed, and is cancelled"
        );
    }
}

/// Ends everything in order, and gives the names of those that did not end in time.
async fn wind_down(
    inner: &Inner,
    keeper: &LeadershipKeeper,
    supervisor: &mut Supervisor,
    deadline: Moment,
) -> Vec<String> {
    let needs: std::collections::BTreeMap<String, Needs> = inner
        .runnables()
        .iter()
        .map(|runnable| (runnable.name().to_owned(), runnable.needs()))
        .collect();
    let mut unfinished = supervisor
        .stop(deadline, |name| needs.get(name) == Some(&Needs::Leadership))
        .await;
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
