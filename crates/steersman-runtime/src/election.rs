// SPDX-License-Identifier: Apache-2.0
//! Leader election: replicas elect the one that acts, with a Lease.
//!
//! All replicas compete for one Lease of `coordination.k8s.io/v1`. The holder leads, renews the lease, and writes only
//! while no other replica can hold the lease. [`Election`] has the settings; a
//! [manager](crate::ManagerBuilder::leader_election) runs the election.
//!
//! ```no_run
//! use std::time::Duration;
//! use steersman_runtime::{Election, Manager, LeaseLostPolicy};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let plain = Manager::builder().leader_election("web-operator").build().await?;
//! let patient = Election::new("web-operator")
//!     .namespace("operators")
//!     .lease_duration(Duration::from_secs(60))
//!     .renew_deadline(Duration::from_secs(40))
//!     .on_lease_lost(LeaseLostPolicy::Exit);
//! let manager = Manager::builder().leader_election(patient).build().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! 1. No write of a leader starts after the renew deadline, counted from before the last successful renewal was sent, on
//!    the larger of monotonic and calendar time; a request in flight at that time is cancelled. The
//!    [`Fence`](steersman_cluster::Fence) of the term enforces this, below every retry.
//! 2. A candidate takes a lease that another replica holds only after it has seen the lease unchanged for the whole lease
//!    duration, by its local monotonic clock. Timestamps in the lease do not count. Each acquisition names the resource
//!    version that was seen, so that a renewal in between wins.
//! 3. Candidates watch the lease: they take a released lease at once, and an expired lease when it expires. If watching is
//!    forbidden, they poll.
//! 4. The lease is renewed on a separate thread, over a separate connection: nothing else in the program delays it.
//! 5. A replica that loses the lease steps down: runnables that need leadership are stopped, warm runnables stay warm, and
//!    the replica competes again once all work of the old term has ended. A fenced write does not end the run: a warm-up
//!    runnable that fails because of it is started again. With [`LeaseLostPolicy::Exit`] the run ends instead. If the work of the
//!    old term does not end within the [step-down timeout](Election::step_down_timeout), `/readyz` fails, and after twice
//!    that time `/healthz` fails, or with [`LeaseLostPolicy::StepDownOrExit`] the run ends.
//! 6. At the end of a run the lease is released after all leader work has ended. If leader work exceeds the shutdown
//!    timeout, the lease is left to expire. If the lease is lost meanwhile, the work ends at once. The run never waits
//!    longer than the shutdown timeout, whatever happens to the lease.
//! 7. A lease that is acquired during shutdown starts nothing, and is released.
//! 8. A replica that is not warm leaves a free lease to others for a limited time.
//! 9. The lease has the format of client-go: replicas in Go and in Rust can compete for it.
//! 10. With [a lease for each runnable](Election::per_runnable), all this holds for each of them separately.
//! 11. A leader watches its lease. If another replica takes it, the leader steps down at once, not at its next renewal,
//!     unless a read shows that the event was old. If the lease is deleted, the leader creates it again at once, and steps
//!     down if another replica was faster.
//!
//! # Not promised
//! * Safety with clocks of different rates, once they differ by more than the ratio of lease duration to renew deadline:
//!   3:2 by default.
//! * Detection of a suspend of the machine, if its calendar is set back by the same time.
//! * Arrival in time of a request that was sent in time; see [`Fence`](steersman_cluster::Fence). The difference between
//!   lease duration and renew deadline is the time that it has.
//! * One leader at a time if a person edits or deletes the lease. Candidates that saw a lease wait until it would have
//!   expired, but a lease without a holder is free, and a candidate that never saw a deleted lease creates it at once. The
//!   former leader learns of both through its watch, which takes as long as an event takes to arrive. If it cannot watch,
//!   it learns of it at its next renewal, and if it cannot reach the server, it stops at its renew deadline.

mod elector;
mod follower;
mod identity;
mod lock;
mod observation;
mod overdue;
mod record;
mod run;

use std::{collections::BTreeMap, io, time::Duration};

use steersman_cluster::{Cluster, ClusterName, ConnectError};
use steersman_core::Spawner;

pub(crate) use self::{
    identity::host,
    overdue::Overdue,
    run::{ElectionContext, ElectionEnd, ElectionMetrics, LeaderElectionRun},
};

/// Jitter factor of client-go: a polling candidate waits for the retry period plus up to 1.2 times that period.
const JITTER: f64 = 1.2;

/// Settings of leader election.
///
/// A string converts into an election: the name of the lease, with defaults for the rest.
#[derive(Clone, Debug)]
#[must_use]
pub struct Election {
    lease: String,
    namespace: Option<String>,
    identity: Option<String>,
    labels: BTreeMap<String, String>,
    timing: Timing,
    on_lease_lost: LeaseLostPolicy,
    release: bool,
    patience: Duration,
    step_down: Duration,
    per_runnable: bool,
    cluster: Option<Cluster>,
    spawner: Option<Spawner>,
}

/// Behaviour of a manager when another replica has the lease, or might have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseLostPolicy {
    /// Stops the runnables that need leadership, keeps the rest running and warm, and competes again.
    #[default]
    StepDown,
    /// Ends the run with an error.
    Exit,
    /// Same as [`StepDown`](Self::StepDown), but ends the run with an error if leader work has not ended after twice the
    /// [step-down timeout](Election::step_down_timeout).
    StepDownOrExit,
}

/// Durations of an election.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    lease: Duration,
    renew: Duration,
    retry: Duration,
}

/// Invalid settings of an election, or a failure to start it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// The lease has no name.
    #[error("the lease of the election has no name: give one that all replicas of the program share")]
    NoName,
    /// The namespace of the lease is unknown.
    #[error(
        "it is not known in which namespace the lease `{lease}` is: run in a Pod, or set it with `Election::namespace`"
    )]
    NoNamespace {
        /// The lease.
        lease: String,
        /// Reason why the Pod's namespace is unknown.
        #[source]
        source: io::Error,
    },
    /// The manager has no cluster for the lease.
    #[error(
        "there is no cluster for the lease `{lease}`: give the manager one, or set it with `Election::on`"
    )]
    NoCluster {
        /// The lease.
        lease: String,
    },
    /// The durations are inconsistent.
    #[error("invalid election settings for lease `{lease}`: {reason}")]
    Timing {
        /// The lease.
        lease: String,
        /// The durations, and their rule.
        reason: String,
    },
    /// The connection of the election failed.
    #[error("cannot connect for the election with lease `{lease}`")]
    Connect {
        /// The lease.
        lease: String,
        /// The error.
        #[source]
        source: Box<ConnectError>,
    },
    /// The thread of the election could not be started.
    #[error("cannot start the thread of the election with lease `{lease}`")]
    Thread {
        /// The lease.
        lease: String,
        /// The error.
        #[source]
        source: io::Error,
    },
}

impl Election {
    /// Creates an election with this lease name. All replicas of a program share the name; no other program must use it.
    pub fn new(lease: impl Into<String>) -> Self {
        Self {
            lease: lease.into(),
            namespace: None,
            identity: None,
            labels: BTreeMap::new(),
            timing: Timing {
                lease: Duration::from_secs(15),
                renew: Duration::from_secs(10),
                retry: Duration::from_secs(2),
            },
            on_lease_lost: LeaseLostPolicy::default(),
            release: true,
            patience: Duration::from_secs(15),
            step_down: Duration::from_secs(30),
            per_runnable: false,
            cluster: None,
            spawner: None,
        }
    }

    /// Namespace of the lease. Default: the namespace of the Pod.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Identity of this replica in the lease. It must be unique for each process. Default: the host name and a random
    /// number.
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Adds a label to the lease. Other labels of the lease are kept.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Lease duration: the time that other replicas wait for a leader that does not renew, in whole seconds. All replicas
    /// should use the same. Default: 15 s.
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.timing.lease = duration;
        self
    }

    /// Renew deadline: the time that a leader acts without a successful renewal. It must be shorter than the lease
    /// duration; the difference is the time that a last write has to arrive. Default: 10 s.
    pub fn renew_deadline(mut self, deadline: Duration) -> Self {
        self.timing.renew = deadline;
        self
    }

    /// Retry period: the interval of renewals, and the delay after a failure. 1.2 times the period must be shorter than the
    /// renew deadline. Default: 2 s.
    pub fn retry_period(mut self, period: Duration) -> Self {
        self.timing.retry = period;
        self
    }

    /// Behaviour when the lease is lost. Default: this replica steps down and competes again.
    pub fn on_lease_lost(mut self, policy: LeaseLostPolicy) -> Self {
        self.on_lease_lost = policy;
        self
    }

    /// Step-down timeout: the time that leader work has to end after the lease is lost. The work is cancelled, but code
    /// that blocks a thread or ignores the end of its term continues, and until it ends this replica does not compete. In
    /// that case `/readyz` fails after this time, and `/healthz` after twice this time, so that the process is restarted.
    /// Default: 30 s.
    pub fn step_down_timeout(mut self, timeout: Duration) -> Self {
        self.step_down = timeout;
        self
    }

    /// Releases the lease at the end of a run, so that the next leader does not wait until it expires. Default: yes.
    pub fn release_on_stop(mut self, release: bool) -> Self {
        self.release = release;
        self
    }

    /// How long a replica whose caches are not synced lets others acquire a free lease first. Zero acquires it at once.
    /// Default: 15 s.
    pub fn unsynced_acquire_delay(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Uses one lease for each controller and other runnable that needs leadership, so that replicas share the work: each
    /// replica acts for the leases that it holds. Each lease costs a thread, a connection and its renewals.
    /// [`Manager::leads`](crate::Manager::leads) and [`Manager::elected_in`](crate::Manager::elected_in) query one of them.
    /// Default: one lease for all.
    ///
    /// A lease is named `<election>--<runnable>`, such as `web-operator--web`. If that is not a valid object name or not
    /// unique, the name ends with a hash of both. RBAC rules with `resourceNames` have to list these names. Replicas
    /// exclude each other only if they use the same name: renaming the election or a runnable, or switching to or from
    /// `per_runnable` in a rolling update, runs two leaders for a while. Stop the old replicas first, for example with the
    /// `Recreate` strategy of a Deployment.
    pub fn per_runnable(mut self) -> Self {
        self.per_runnable = true;
        self
    }

    /// Cluster of the lease. Default: the default cluster of the manager.
    pub fn on(mut self, cluster: &Cluster) -> Self {
        self.cluster = Some(cluster.clone());
        self
    }

    /// Spawner of the election. Default: a separate thread, so that other work does not delay the election.
    pub fn spawner(mut self, spawner: Spawner) -> Self {
        self.spawner = Some(spawner);
        self
    }

    /// Validates the settings and fills in the defaults.
    pub(crate) fn settle(self, default_cluster: Option<&Cluster>) -> Result<Settings, ElectionError> {
        let lease = self.lease;
        if lease.is_empty() {
            return Err(ElectionError::NoName);
        }
        if let Err(reason) = self.timing.validate() {
            return Err(ElectionError::Timing { lease, reason });
        }
        let Some(cluster) = self.cluster.as_ref().or(default_cluster) else {
            return Err(ElectionError::NoCluster { lease });
        };
        let namespace = match self.namespace.map_or_else(identity::pod_namespace, Ok) {
            Ok(namespace) => namespace,
            Err(source) => return Err(ElectionError::NoNamespace { lease, source }),
        };
        Ok(Settings {
            cluster: cluster.clone(),
            lease,
            namespace,
            identity: self.identity.unwrap_or_else(identity::of_process),
            labels: self.labels,
            timing: self.timing,
            on_lease_lost: self.on_lease_lost,
            release: self.release,
            patience: self.patience,
            step_down: self.step_down,
            per_runnable: self.per_runnable,
            spawner: self.spawner,
        })
    }
}

impl From<&str> for Election {
    fn from(lease: &str) -> Self {
        Self::new(lease)
    }
}

impl From<String> for Election {
    fn from(lease: String) -> Self {
        Self::new(lease)
    }
}

/// An [`Election`] with all defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    cluster: Cluster,
    pub(crate) lease: String,
    namespace: String,
    pub(crate) identity: String,
    labels: BTreeMap<String, String>,
    timing: Timing,
    pub(crate) on_lease_lost: LeaseLostPolicy,
    pub(crate) release: bool,
    patience: Duration,
    step_down: Duration,
    pub(crate) per_runnable: bool,
    spawner: Option<Spawner>,
}

impl Settings {
    /// Cluster of the lease.
    pub(crate) fn cluster(&self) -> &ClusterName {
        self.cluster.name()
    }

    /// Returns the settings for the lease of one runnable.
    pub(crate) fn of_runnable(&self, name: &str) -> Self {
        Self {
            lease: identity::lease_of(&self.lease, name),
            ..self.clone()
        }
    }
}

impl Timing {
    /// Checks the rules of client-go, and that the lease duration is in whole seconds.
    fn validate(self) -> Result<(), String> {
        let Self { lease, renew, retry } = self;
        let is_whole = lease.subsec_nanos() == 0 && i32::try_from(lease.as_secs()).is_ok_and(|s| s > 0);
        if !is_whole {
            return Err(format!(
                "the lease duration of {lease:?} has to be a number of whole seconds, as it is written down so"
            ));
        }
        if lease <= renew {
            return Err(format!(
                "the lease duration of {lease:?} has to be longer than the renew deadline of {renew:?}"
            ));
        }
        // Compared first: the product can overflow if `retry` is large.
        if retry.is_zero() || renew <= retry || renew <= retry.mul_f64(JITTER) {
            return Err(format!(
                "the renew deadline of {renew:?} has to be longer than {JITTER} times the retry period of {retry:?}, \
                 which cannot be zero"
            ));
        }
        Ok(())
    }

    /// Timeout of one request, so that there is time for a second one.
    fn request(self) -> Duration {
        (self.renew / 2).max(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(lease: u64, renew: u64, retry: u64) -> Result<(), String> {
        let millis = Duration::from_millis;
        Timing {
            lease: millis(lease),
            renew: millis(renew),
            retry: millis(retry),
        }
        .validate()
    }

    #[test]
    fn no_times_are_too_long_to_be_refused() {
        let (endless, second) = (Duration::MAX, Duration::from_secs(1));
        for (lease, renew, retry) in [
            (endless, second, second),
            (second * 9, endless, second),
            (second * 9, second * 6, endless),
            (endless, endless, endless),
        ] {
            let timing = Timing { lease, renew, retry };
            assert!(timing.validate().is_err(), "{timing:?}");
        }
    }

    #[test]
    fn inconsistent_times_are_rejected_with_the_reason() {
        assert_eq!(timing(15_000, 10_000, 2_000), Ok(()));
        assert_eq!(timing(1_000, 700, 200), Ok(()));
        for (times, reason) in [
            (
                (1_500, 1_000, 100),
                "the lease duration of 1.5s has to be a number of whole seconds",
            ),
            ((0, 0, 0), "the lease duration of 0ns has to be"),
            ((10_000, 10_000, 1_000), "longer than the renew deadline of 10s"),
            (
                (15_000, 2_400, 2_000),
                "longer than 1.2 times the retry period of 2s",
            ),
            ((15_000, 10_000, 0), "which cannot be zero"),
        ] {
            let said = timing(times.0, times.1, times.2).unwrap_err();
            assert!(said.contains(reason), "{said}");
        }
    }
}
