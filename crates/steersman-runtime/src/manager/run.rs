// SPDX-License-Identifier: Apache-2.0
//! One run of a manager.

use std::{future::Future, pin::pin, sync::Arc};

use crate::{Leadership, LeadershipKeeper, RunPolicy, Runnable, Stop, StopHandle, Term};
use steersman_cluster::{Cluster, Fence};
use steersman_core::{MonotonicTime, error_chain};

use super::{Inner, RunError, State, barrier, last_events};
use crate::{
    election::{ElectionContext, ElectionEnd, LeaderElectionRun},
    supervise::{Change, Failure, Supervisor},
};

/// Starts everything in order, supervises it, and stops it in order.
pub(super) async fn run(
    inner: &Arc<Inner>,
    // Held to the end: everything that runs ends with it, also if this future is dropped.
    _handle: StopHandle,
    stop: Stop,
    asked: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let clock = Arc::clone(inner.runtime.clock());
    let mut endpoints = inner.endpoints.serve(inner.runtime.spawner())?;
    let (keeper, leadership) = LeadershipKeeper::new();
    let keeper = Arc::new(keeper);
    if inner.own_leases.is_none() {
        // With one lease for each runnable, no replica leads as a whole.
        inner.leadership.send_replace(Some(leadership.clone()));
    }
    let mut election_run = election_run(inner, &keeper)?;
    let mut supervisor = Supervisor::new(&inner.runtime, &inner.cancelled);
    // Held to the end too: a caller that handles signals in this future does so during shutdown.
    let mut asked = pin!(asked);
    let ended = tokio::select! {
        biased;
        () = &mut asked => Ok(()),
        error = endpoints.failed() => Err(error),
        result = work(inner, &keeper, &leadership, election_run.as_mut(), &mut supervisor, &stop) => result,
        () = inner.warmup.keep(inner) => Ok(()),
    };
    inner.lock().state = State::Stopping;
    if let Some(election_run) = &election_run {
        election_run.abstain();
    }
    let deadline = clock.now() + inner.shutdown_timeout;
    let unfinished = wind_down(inner, &keeper, election_run, &mut supervisor, deadline).await;
    for Failure { name, error } in supervisor.unreported_failures() {
        tracing::error!(name, error = %error_chain(&*error), "runnable failed during shutdown");
    }
    endpoints.end(deadline, &clock).await;
    if unfinished.is_empty() {
        return ended;
    }
    Err(RunError::Unfinished {
        shutdown_timeout: inner.shutdown_timeout,
        names: unfinished,
        source: ended.err().map(Box::new),
    })
}

impl RunError {
    /// Converts the failure of a runnable into the error of the run.
    fn of_failure(Failure { name, error }: Failure) -> Self {
        tracing::error!(name, error = %error_chain(&*error), "runnable failed; ending the run");
        Self::Runnable { name, source: error }
    }

    /// Converts the end of the election into the error of the run.
    pub(super) fn of_loss(loss: ElectionEnd, lease: &str) -> Self {
        match loss {
            ElectionEnd::Failed(error) => Self::Election(error),
            ElectionEnd::Lease(reason) => Self::LeadershipLost {
                lease: lease.to_owned(),
                reason,
            },
        }
    }
}

/// Starts to take part in the election, if there is one.
fn election_run(
    inner: &Inner,
    keeper: &Arc<LeadershipKeeper>,
) -> Result<Option<LeaderElectionRun>, RunError> {
    let Some(election) = &inner.election else {
        return Ok(None);
    };
    let context = ElectionContext {
        clock: Arc::clone(inner.runtime.clock()),
        seed: election.seed,
        keeper: Arc::clone(keeper),
        warm: inner.warmup.is_warm(),
        statuses: inner.runtime.statuses().clone(),
        overdue: inner.overdue.clone(),
    };
    let election_run = LeaderElectionRun::start(&election.settings, &election.metrics, context);
    Ok(Some(election_run.map_err(RunError::Election)?))
}

/// Starts everything, and supervises it until something fails.
async fn work(
    inner: &Arc<Inner>,
    keeper: &LeadershipKeeper,
    leadership: &Leadership,
    mut election_run: Option<&mut LeaderElectionRun>,
    supervisor: &mut Supervisor,
    stop: &Stop,
) -> Result<(), RunError> {
    inner.warn_of_unknown_names();
    let clock = inner.runtime.clock();
    let deadline = clock.now() + inner.barrier;
    // Caches wait for the first step of these runnables, which waits for their tasks from an earlier run.
    supervisor.wait_for_earlier_run(RunPolicy::BeforeCaches).await;
    let start = Start {
        leadership,
        term: None,
        stop,
        deadline,
    };
    start_phase(inner, supervisor, RunPolicy::BeforeCaches, start).await;
    let filling = tokio::select! {
        biased;
        failure = failed(supervisor) => return Err(failure),
        error = lost(inner, &mut election_run) => return Err(error),
        filling = barrier::fill_caches(inner, deadline) => filling,
    };
    // Holds the caches until the first runnables hold their own share. The wait for these caches is over.
    let mut first = Some((filling, deadline));
    inner.warmup.caches_synced();
    if inner.election.is_none() {
        // Without an election, or with one lease for each runnable, the run itself always leads.
        keeper.grant(Fence::open());
    }
    let mut changed = inner.changed.subscribe();
    let mut term: Option<Term> = None;
    loop {
        changed.mark_unchanged();
        for (name, deadline) in inner.take_dismissed() {
            supervisor.dismiss(&name, deadline);
        }
        if term.as_ref().is_some_and(Term::is_over) {
            step_down(inner, supervisor).await;
            term = None;
        }
        term = term.or_else(|| leadership.try_term());
        let deadline = match &first {
            Some((_, deadline)) => *deadline,
            None => clock.now() + inner.barrier,
        };
        let start = Start {
            term: term.as_ref(),
            deadline,
            ..start
        };
        start_due(inner, supervisor, start).await;
        first = None;
        tokio::select! {
            biased;
            change = supervisor.changed() => if let Change::Failed(failure) = change {
                return Err(RunError::of_failure(failure));
            },
            error = lost(inner, &mut election_run) => {
                step_down(inner, supervisor).await;
                return Err(error);
            }
            _ = changed.changed() => {}
            () = term_changed(leadership, term.as_ref()) => {}
        }
    }
}

/// Waits until a runnable has failed.
async fn failed(supervisor: &mut Supervisor) -> RunError {
    loop {
        if let Change::Failed(failure) = supervisor.changed().await {
            return RunError::of_failure(failure);
        }
    }
}

/// Waits until the election ends by itself.
async fn lost(inner: &Inner, election_run: &mut Option<&mut LeaderElectionRun>) -> RunError {
    let (Some(election_run), Some(election)) = (election_run, &inner.election) else {
        return std::future::pending().await;
    };
    RunError::of_loss(election_run.lost().await, &election.settings.lease)
}

/// Waits until this term ends, or until a term begins.
async fn term_changed(leadership: &Leadership, term: Option<&Term>) {
    match term {
        Some(term) => term.ended().await,
        None => drop(leadership.term().await),
    }
}

/// Stops the runnables that need leadership, without a delay: their writes are fenced.
async fn step_down(inner: &Inner, supervisor: &mut Supervisor) {
    let now = inner.runtime.clock().now();
    // Without a delay, no runnable counts as late.
    let _none = supervisor
        .stop(now, |run_policy| run_policy == RunPolicy::LeaderElected)
        .await;
}

/// The leadership, the stop request and the caches of runnables that start.
#[derive(Clone, Copy)]
struct Start<'a> {
    leadership: &'a Leadership,
    term: Option<&'a Term>,
    stop: &'a Stop,
    /// Limit of the wait for their caches.
    deadline: MonotonicTime,
}

/// Starts the runnables that should run and do not, one phase after the other.
async fn start_due(inner: &Inner, supervisor: &mut Supervisor, start: Start<'_>) {
    let phases = [
        RunPolicy::BeforeCaches,
        RunPolicy::AllReplicas,
        RunPolicy::Warm,
        RunPolicy::LeaderElected,
    ];
    for phase in phases {
        start_phase(inner, supervisor, phase, start).await;
    }
}

async fn start_phase(
    inner: &Inner,
    supervisor: &mut Supervisor,
    phase: RunPolicy,
    Start {
        leadership,
        term,
        stop,
        deadline,
    }: Start<'_>,
) {
    let runnables = inner.runnables();
    for runnable in runnables.iter().filter(|runnable| runnable.run_policy() == phase) {
        match (phase, term) {
            // On leader and standby.
            (RunPolicy::BeforeCaches | RunPolicy::AllReplicas, _) => {
                supervisor.start(runnable, &Leadership::always(), None, stop, deadline);
            }
            (RunPolicy::LeaderElected, None) => {}
            (RunPolicy::LeaderElected, Some(term)) => {
                supervisor.start(runnable, leadership, Some(term.clone()), stop, deadline);
            }
            _ => supervisor.start(runnable, leadership, None, stop, deadline),
        }
    }
    supervisor.begun().await;
}

/// Ends everything in order, and returns the names of the runnables that did not end in time.
async fn wind_down(
    inner: &Inner,
    keeper: &LeadershipKeeper,
    election_run: Option<LeaderElectionRun>,
    supervisor: &mut Supervisor,
    deadline: MonotonicTime,
) -> Vec<String> {
    // A runnable that warms up does leader work too, as long as this replica leads.
    let leads = |run_policy| matches!(run_policy, RunPolicy::LeaderElected | RunPolicy::Warm);
    let mut unfinished = supervisor.stop(deadline, leads).await;
    keeper.revoke();
    let clock = inner.runtime.clock();
    let is_vacated = clock.timeout_at(deadline, keeper.vacated()).await.is_some();
    let cluster_set = inner.runtime.clusters();
    if let (Some(election_run), Some(election)) = (election_run, &inner.election) {
        // Events cannot be written once the lease is released.
        let lease = election.settings.cluster();
        last_events::write_before_release(&cluster_set.all(), lease, clock, deadline).await;
        if !is_vacated {
            tracing::warn!(
                lease = election.settings.lease,
                "leader work exceeded the deadline; letting the lease expire"
            );
        }
        let resigned = election_run.resign(is_vacated && election.settings.release);
        if clock.timeout_at(deadline, resigned).await.is_none() {
            tracing::warn!(
                lease = election.settings.lease,
                "failed to release lease in time; letting it expire"
            );
        }
    }
    unfinished.extend(
        supervisor
            .stop(deadline, |run_policy| run_policy != RunPolicy::BeforeCaches)
            .await,
    );
    // No user of caches is left.
    let clusters = cluster_set.all();
    clusters.iter().for_each(Cluster::end_idle);
    unfinished.extend(supervisor.stop(deadline, |_| true).await);
    last_events::write(&clusters, clock, deadline).await;
    unfinished
}
