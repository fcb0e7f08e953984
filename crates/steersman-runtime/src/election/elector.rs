// SPDX-License-Identifier: Apache-2.0
//! One replica in an election: it competes, leads, and competes again.
//!
//! ```text
//!        ┌────────── the old term has ended ◀── stepped down ◀─┐ lost
//!        ▼                                                     │
//! standby: read, watch, wait ──▶ take ──▶ leading: renew, extend the fence ──▶ ordered to end: release the lease
//! ```

use std::{pin::Pin, sync::Arc, time::Duration};

use crate::{LeadershipKeeper, RunnableStatus, StatusHandle};
use futures::{Stream, StreamExt};
use kube::core::DynamicObject;
use steersman_cluster::{Error, Fence, FenceKeeper};
use steersman_core::{Clock, MonotonicTime, Random, SuspendAwareTime, error_chain};
use tokio::sync::watch;

use super::{
    ElectionMetrics, JITTER, LeaseLostPolicy, Overdue, Settings,
    follower::{Changed, Follower},
    lock::{LeaseEvent, Lock},
    observation::{Candidate, LeaseObservation, Turn, is_of},
    record::{Record, micro_time},
    run::{Command, Ended},
};

/// Reason of a loss without another holder.
const NOT_IN_TIME: &str = "it was not renewed in time";

/// A replica in an election.
pub(super) struct Elector {
    pub(super) settings: Settings,
    pub(super) lock: Lock,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) random: Random,
    pub(super) keeper: Arc<LeadershipKeeper>,
    pub(super) warm: watch::Receiver<bool>,
    pub(super) commands: watch::Receiver<Command>,
    pub(super) metrics: ElectionMetrics,
    pub(super) status: StatusHandle,
    pub(super) overdue: Overdue,
    /// Acquire time of the last term, as long as the lease can contain it.
    pub(super) acquired: Option<String>,
    /// The leader that was last logged.
    pub(super) logged_leader: Option<String>,
}

/// An acquired lease.
struct Acquired {
    lease: DynamicObject,
    /// Time before the acquiring request was sent.
    sent: SuspendAwareTime,
}

/// Reason of the end of a term.
enum End {
    Lost(String),
    Resigned(Box<DynamicObject>),
}

/// Result of a renewal.
enum Renewal {
    Done(DynamicObject),
    /// Another client changed the lease, which this replica still holds.
    Again(DynamicObject),
    Lost(String),
    Failed(Error),
}

pub(super) type Watching = Pin<Box<dyn Stream<Item = Result<LeaseEvent, Error>> + Send>>;

impl Elector {
    /// Competes until it is ordered to end, or until it loses the lease and must not compete again.
    pub(super) async fn run(mut self) -> Ended {
        loop {
            let Some(acquired_lease) = self.acquire().await else {
                return Ended::Stopped;
            };
            if !self.may_contend() {
                // The term was not granted yet, so no work has started.
                self.release(acquired_lease.lease).await;
                return Ended::Stopped;
            }
            self.logged_leader = None;
            match self.lead(acquired_lease).await {
                End::Resigned(lease) => {
                    if matches!(*self.commands.borrow(), Command::Resign { release: true }) {
                        self.release(*lease).await;
                    }
                    return Ended::Stopped;
                }
                End::Lost(reason) if self.settings.on_lease_lost == LeaseLostPolicy::Exit => {
                    return Ended::Lost(reason);
                }
                End::Lost(reason) => {
                    if let Some(ended) = self.step_down(reason).await {
                        return ended;
                    }
                }
            }
        }
    }

    /// Waits until the work of a lost term has ended. Returns a result if the election ends after that.
    ///
    /// Work that blocks a thread or ignores the end of its term cannot be cancelled. Until it ends, this replica must not
    /// lead again: it would act twice. So `/readyz` fails after the limit, and after twice the limit `/healthz` fails or
    /// the run ends.
    async fn step_down(&mut self, reason: String) -> Option<Ended> {
        let (lost, limit) = (self.clock.now(), self.settings.step_down);
        if let Some(done) = self.vacated_until(lost + limit).await {
            return done;
        }
        let terms = self.keeper.held_terms();
        let text = format!("leader work is still running {limit:?} after the lease was lost; not contending");
        self.status.set(RunnableStatus::Degraded { reason: text.clone() });
        if let Some(done) = self.vacated_until(lost + limit.saturating_mul(2)).await {
            return done;
        }
        if self.settings.on_lease_lost == LeaseLostPolicy::StepDownOrExit {
            return Some(Ended::Lost(format!("{reason}, and leader work did not end")));
        }
        tracing::error!(lease = %self.name(), terms, "leader work is still running after the lease was lost; failing liveness");
        let _overdue = self.overdue.report(&self.name(), text);
        tokio::select! {
            biased;
            () = self.keeper.vacated() => None,
            () = until_not_contending(&mut self.commands) => Some(Ended::Stopped),
        }
    }

    /// Waits for the end of leader work until `moment`; returns `None` if it did not end by then.
    async fn vacated_until(&mut self, moment: MonotonicTime) -> Option<Option<Ended>> {
        tokio::select! {
            biased;
            () = self.keeper.vacated() => Some(None),
            () = until_not_contending(&mut self.commands) => Some(Some(Ended::Stopped)),
            () = self.clock.sleep_until(moment) => None,
        }
    }

    /// Waits for its turn and takes the lease; returns `None` when ordered to end.
    async fn acquire(&mut self) -> Option<Acquired> {
        let mut observed = LeaseObservation::default();
        let mut may_watch = true;
        loop {
            let looked = tokio::select! {
                biased;
                () = until_not_contending(&mut self.commands) => return None,
                looked = self.lock.get() => looked,
            };
            match looked {
                Ok(lease) => self.observe(&mut observed, lease),
                Err(error) => {
                    self.in_trouble(&error);
                    self.pause().await;
                    continue;
                }
            }
            if !self.wait_for_turn(&mut observed, &mut may_watch).await {
                continue;
            }
            if !self.may_contend() {
                return None;
            }
            let sent = self.clock.mark();
            let record = self.acquire_record(&observed);
            // Not cancelled by an order: without the answer, this replica does not know if it holds the lease.
            match self.lock.write(observed.lease(), &record).await {
                Ok(lease) => return Some(Acquired { lease, sent }),
                Err(error) if is_overtaken(&error, observed.lease()) => {
                    tracing::debug!(lease = %self.name(), "another candidate acquired the lease first");
                }
                Err(error) => {
                    self.in_trouble(&error);
                    self.pause().await;
                }
            }
        }
    }

    /// Watches the lease until it is this candidate's turn. Returns false if the lease has to be read again.
    async fn wait_for_turn(&mut self, observed: &mut LeaseObservation, may_watch: &mut bool) -> bool {
        let mut watching: Option<Watching> =
            may_watch.then(|| Box::pin(self.lock.watch(observed.lease())) as Watching);
        let opened = self.clock.now();
        let mut look_again = (!*may_watch).then(|| opened + self.jittered());
        loop {
            let now = self.clock.now();
            let until = match observed.turn(&self.candidate(), now) {
                Turn::Take => return true,
                Turn::Wait(until) => until,
            };
            self.status.set(RunnableStatus::Ready);
            self.log_leader(observed, now);
            if look_again.is_some_and(|moment| now >= moment) {
                return false;
            }
            let wake = look_again.map_or(until, |moment| moment.min(until));
            let notice = tokio::select! {
                biased;
                () = until_not_contending(&mut self.commands) => return false,
                notice = next(&mut watching) => notice,
                () = changed(&mut self.warm) => continue,
                () = self.clock.sleep_until(wake) => continue,
            };
            match notice {
                Some(Ok(LeaseEvent::Is(lease))) => self.observe(observed, lease.map(|lease| *lease)),
                over => {
                    watching = None;
                    if let Some(Err(error)) = &over {
                        *may_watch = !error.is_forbidden();
                        tracing::info!(
                            lease = %self.name(), error = %error_chain(error), polls = !*may_watch,
                            "cannot watch lease; polling"
                        );
                    }
                    // A server closes a watch after some minutes. If it closes the watch at once, wait before the next one.
                    let was_long = self.clock.now().saturating_since(opened) >= self.settings.timing.retry;
                    let pause = if was_long && *may_watch {
                        None
                    } else {
                        Some(self.jittered())
                    };
                    look_again = Some(self.clock.now() + pause.unwrap_or_default());
                }
            }
        }
    }

    /// Leads until the lease is lost or released.
    async fn lead(&self, acquired_lease: Acquired) -> End {
        let (fence_keeper, fence) = Fence::new(Arc::clone(&self.clock));
        fence_keeper.open_for(self.settings.timing.renew, acquired_lease.sent);
        tracing::info!(lease = %self.name(), identity = self.settings.identity, "acquired lease; leading");
        self.status.set(RunnableStatus::Ready);
        let term = Granted::new(&self.keeper, fence, &self.metrics);
        let end = self.renew_loop(&fence_keeper, acquired_lease).await;
        match &end {
            End::Lost(reason) => {
                fence_keeper.close(format!("the lease {} was lost: {reason}", self.name()));
                tracing::warn!(lease = %self.name(), identity = self.settings.identity, reason, "stopped leading");
            }
            End::Resigned(_) => fence_keeper.close(format!("the lease {} was released", self.name())),
        }
        drop(term);
        end
    }

    /// Renews the lease as long as that succeeds, and extends the fence.
    async fn renew_loop(&self, fence: &FenceKeeper, Acquired { mut lease, mut sent }: Acquired) -> End {
        let retry = self.settings.timing.retry;
        let mut commands = self.commands.clone();
        let mut next = sent.moment() + retry;
        let mut failures = 0;
        let mut follower = Follower::new(self.clock.now());
        loop {
            tokio::select! {
                biased;
                () = self.lease_expired(sent) => return End::Lost(NOT_IN_TIME.to_owned()),
                () = until_resigned(&mut commands) => return End::Resigned(Box::new(lease)),
                changed = follower.changed(self, &lease) => match changed {
                    Changed::Taken(record) => {
                        let confirmed = tokio::select! {
                            biased;
                            () = self.lease_expired(sent) => return End::Lost(NOT_IN_TIME.to_owned()),
                            () = until_resigned(&mut commands) => return End::Resigned(Box::new(lease)),
                            confirmed = self.still_own() => confirmed,
                        };
                        let Some(confirmed) = confirmed else {
                            return End::Lost(lost_to(&record));
                        };
                        lease = confirmed;
                        continue;
                    }
                    // Another candidate might create the lease, so create it again now.
                    Changed::Deleted => {}
                },
                () = self.clock.sleep_until(next) => {}
            }
            let now = self.clock.mark();
            let renewal = tokio::select! {
                biased;
                // Also right after a suspend, before any request is sent.
                () = self.lease_expired(sent) => return End::Lost(NOT_IN_TIME.to_owned()),
                renewal = self.renew(&lease) => renewal,
                // The release finds out the outcome of this renewal.
                () = until_resigned(&mut commands) => return End::Resigned(Box::new(lease)),
            };
            match renewal {
                Renewal::Done(renewed) => {
                    // If the fence is already closed, this term is over: a write might have been rejected.
                    if !fence.extend_for(self.settings.timing.renew, now) {
                        return End::Lost(NOT_IN_TIME.to_owned());
                    }
                    (lease, sent) = (renewed, now);
                    failures = 0;
                    next = sent.moment() + retry;
                }
                Renewal::Again(changed) => lease = changed,
                Renewal::Lost(reason) => return End::Lost(reason),
                Renewal::Failed(error) => {
                    failures += 1;
                    let (name, error) = (self.name(), error_chain(&error));
                    // A single lost response is ordinary.
                    match failures {
                        1 => tracing::info!(lease = name, error, "failed to renew lease; retrying"),
                        _ => tracing::warn!(lease = name, error, failures, "failed to renew lease; retrying"),
                    }
                    next = now.moment() + retry;
                }
            }
        }
    }

    /// Returns the lease if the server confirms that this replica holds it. A watch event might be older than the last
    /// renewal: another replica created and deleted the lease, and this one created it again.
    async fn still_own(&self) -> Option<DynamicObject> {
        let lease = self.lock.get().await.ok()??;
        self.is_own(&Record::of(&lease)).then_some(lease)
    }

    async fn renew(&self, lease: &DynamicObject) -> Renewal {
        let mut record = Record::of(lease);
        record.seconds = self.seconds();
        record.renewed = micro_time(self.clock.wall());
        match self.lock.write(Some(lease), &record).await {
            Ok(renewed) => return Renewal::Done(renewed),
            Err(error) if !is_overtaken(&error, Some(lease)) => return Renewal::Failed(error),
            Err(_) => {}
        }
        self.metrics.slow_path();
        loop {
            match self.lock.get().await {
                Ok(Some(lease)) => {
                    let found = Record::of(&lease);
                    if self.is_own(&found) {
                        return Renewal::Again(lease);
                    }
                    return Renewal::Lost(lost_to(&found));
                }
                Ok(None) => {}
                Err(error) => return Renewal::Failed(error),
            }
            // The lease was deleted. Candidates that saw it wait until it would have expired; a new candidate does not.
            match self.lock.write(None, &record).await {
                Ok(made) => return Renewal::Done(made),
                // A candidate created it in between and leads now, so this term must end before the next renewal.
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Renewal::Failed(error),
            }
        }
    }

    /// Clears the holder of the lease, if this replica still holds it.
    async fn release(&mut self, mut lease: DynamicObject) {
        let giving_up = async {
            loop {
                let found = Record::of(&lease);
                if !self.is_own(&found) {
                    return Ok(());
                }
                let now = micro_time(self.clock.wall());
                let record = Record {
                    holder: String::new(),
                    seconds: 1,
                    acquired: now.clone(),
                    renewed: now,
                    transitions: found.transitions,
                };
                match self.lock.write(Some(&lease), &record).await {
                    Err(error) if is_overtaken(&error, Some(&lease)) => match self.lock.get().await? {
                        Some(now) => lease = now,
                        None => return Ok(()),
                    },
                    done => return done.map(|_| ()),
                }
            }
        };
        let limit = self.clock.now() + self.settings.timing.request();
        let result: Option<Result<(), Error>> = tokio::select! {
            biased;
            done = giving_up => Some(done),
            () = self.clock.sleep_until(limit) => None,
        };
        let (name, lasts) = (self.name(), self.settings.timing.lease);
        match result {
            Some(Ok(())) => tracing::info!(lease = name, "released lease"),
            Some(Err(error)) => {
                tracing::warn!(lease = name, error = %error_chain(&error), ?lasts, "failed to release lease; letting it expire");
            }
            None => tracing::warn!(
                lease = name,
                ?lasts,
                "failed to release lease in time; letting it expire"
            ),
        }
        self.acquired = None;
    }

    /// Returns the record that acquires the lease.
    fn acquire_record(&mut self, observed: &LeaseObservation) -> Record {
        let (found, now) = (observed.record(), micro_time(self.clock.wall()));
        let is_ours = observed.is_of(&self.candidate());
        // The same in each attempt, as long as the outcome of the last one is unknown.
        let acquired = self.acquired.get_or_insert_with(|| now.clone()).clone();
        Record {
            holder: self.settings.identity.clone(),
            seconds: self.seconds(),
            acquired,
            renewed: now,
            transitions: match observed.lease() {
                Some(_) if is_ours => found.transitions,
                Some(_) => found.transitions.saturating_add(1),
                None => 0,
            },
        }
    }

    fn observe(&mut self, observed: &mut LeaseObservation, lease: Option<DynamicObject>) {
        observed.observe(lease, self.clock.now());
        if observed.record().holder != self.settings.identity {
            self.acquired = None;
        }
    }

    /// Logs the leader, once for each leader.
    fn log_leader(&mut self, observed: &LeaseObservation, now: MonotonicTime) {
        let leader = observed
            .leader(now)
            .filter(|leader| self.logged_leader.as_deref() != Some(leader));
        if let Some(leader) = leader {
            tracing::info!(lease = %self.name(), identity = self.settings.identity, leader, "waiting for lease");
            self.logged_leader = Some(leader.to_owned());
        }
    }

    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            identity: &self.settings.identity,
            acquired: self.acquired.as_deref(),
            is_warm: *self.warm.borrow(),
            patience: self.settings.patience,
        }
    }

    /// Waits until the renew deadline has passed since `since`.
    async fn lease_expired(&self, since: SuspendAwareTime) {
        loop {
            let left = self
                .settings
                .timing
                .renew
                .saturating_sub(since.elapsed(&*self.clock));
            if left.is_zero() {
                return;
            }
            self.clock.sleep_until(self.clock.now() + left).await;
        }
    }

    /// Waits before the next attempt, unless ordered to end.
    async fn pause(&mut self) {
        let until: MonotonicTime = self.clock.now() + self.jittered();
        tokio::select! {
            biased;
            () = until_not_contending(&mut self.commands) => {}
            () = self.clock.sleep_until(until) => {}
        }
    }

    /// Returns true if this process wrote the record.
    pub(super) fn is_own(&self, record: &Record) -> bool {
        is_of(record, &self.settings.identity, self.acquired.as_deref())
    }

    pub(super) fn jittered(&self) -> Duration {
        jittered(self.settings.timing.retry, &self.random)
    }

    fn in_trouble(&self, error: &Error) {
        self.status.set(RunnableStatus::Degraded {
            reason: error_chain(error),
        });
    }

    fn may_contend(&self) -> bool {
        matches!(*self.commands.borrow(), Command::Contend)
    }

    fn seconds(&self) -> i64 {
        i64::try_from(self.settings.timing.lease.as_secs()).unwrap_or(i64::MAX)
    }

    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.lease)
    }
}

/// Granted leadership. Drop revokes it, also if the elector is cancelled.
struct Granted {
    keeper: Arc<LeadershipKeeper>,
    metrics: ElectionMetrics,
}

impl Granted {
    fn new(keeper: &Arc<LeadershipKeeper>, fence: Fence, metrics: &ElectionMetrics) -> Self {
        metrics.leads(true);
        keeper.grant(fence);
        Self {
            keeper: Arc::clone(keeper),
            metrics: metrics.clone(),
        }
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.keeper.revoke();
        self.metrics.leads(false);
    }
}

/// Extends a duration by jitter, so that replicas do not send requests at the same time.
fn jittered(time: Duration, random: &Random) -> Duration {
    time.mul_f64(1.0 + JITTER * random.fraction())
}

/// Reason of the loss of a lease that has another record now.
fn lost_to(found: &Record) -> String {
    match &*found.holder {
        "" => "its holder was removed".to_owned(),
        holder => format!("{holder} has it"),
    }
}

/// Returns true if another client changed the lease since it was read. For a create, "not found" is about the namespace
/// instead.
fn is_overtaken(error: &Error, seen: Option<&DynamicObject>) -> bool {
    error.is_conflict() || error.is_already_exists() || (seen.is_some() && error.is_not_found())
}

/// Waits until this replica is ordered not to compete any more.
async fn until_not_contending(commands: &mut watch::Receiver<Command>) {
    // A closed channel ends the wait too.
    let _ = commands
        .wait_for(|command| !matches!(command, Command::Contend))
        .await;
}

/// Waits for the order to end.
async fn until_resigned(commands: &mut watch::Receiver<Command>) {
    let _ = commands
        .wait_for(|command| matches!(command, Command::Resign { .. }))
        .await;
}

async fn changed(warm: &mut watch::Receiver<bool>) {
    if warm.changed().await.is_err() {
        // No order can follow.
        std::future::pending().await
    }
}

async fn next(watching: &mut Option<Watching>) -> Option<Result<LeaseEvent, Error>> {
    match watching {
        Some(watching) => watching.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_poll_do_not_ask_all_at_once() {
        let retry = Duration::from_secs(2);
        let pauses = |seed| {
            let random = Random::from_seed(seed);
            (0..100).map(|_| jittered(retry, &random)).collect::<Vec<_>>()
        };
        let (one, other) = (pauses(1), pauses(2));
        let longest = retry.mul_f64(1.0 + JITTER);
        let (least, most) = (*one.iter().min().unwrap(), *one.iter().max().unwrap());
        assert!(retry <= least && most <= longest, "{least:?} to {most:?}");
        assert!(most - least > retry, "{least:?} to {most:?}: they hardly differ");
        assert_ne!(one, other);
    }
}
