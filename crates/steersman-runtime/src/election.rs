// SPDX-License-Identifier: Apache-2.0
//! Which of several replicas acts: election by a Lease.
//!
//! Every replica contends for one object of `coordination.k8s.io/v1`. Who holds it leads, renews it, and writes only as
//! long as the lease cannot be anybody else's. [`Election`] says how; a [manager](crate::ManagerBuilder::leader_election) does it.
//!
//! ```no_run
//! use std::time::Duration;
//! use steersman_runtime::{Election, Manager, OnLoss};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let plain = Manager::builder().leader_election("web-operator").build().await?;
//! let patient = Election::new("web-operator")
//!     .namespace("operators")
//!     .lease_duration(Duration::from_secs(60))
//!     .renew_deadline(Duration::from_secs(40))
//!     .on_loss(OnLoss::Exit);
//! let manager = Manager::builder().leader_election(patient).build().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! 1. No write of a leader starts later than the renew deadline, counted from before the last successful renewal was
//!    sent, on the larger of monotonic and calendar time; what is under way then is given up. It is the
//!    [`Fence`](steersman_cluster::Fence) of the term that does it, below every retry.
//! 2. Nobody takes a lease that another one holds before having seen it unchanged for the whole of its duration, by the
//!    own monotonic clock. What time the lease shows does not count. Each take-over names the version of the object that
//!    was seen, so that a renewal in between wins.
//! 3. Candidates watch the lease: they take one that was given up at once, and one that has run out when it does. Where
//!    watching is forbidden they ask at intervals.
//! 4. The lease is renewed on a thread of its own, by a connection of its own: nothing that the program does elsewhere
//!    delays it.
//! 5. Who loses the lease steps down: what needs leadership is stopped, what is warm stays so, and the replica takes part
//!    again once everything of the old term has ended. That a write is held back then ends no run: a warm-up runnable that
//!    fails because of it is started again. With [`OnLoss::Exit`] the run ends instead. If the work of the old term does
//!    not end within the [step-down timeout](Election::step_down_timeout), `/readyz` fails, and after twice that time
//!    `/healthz` fails, or with [`OnLoss::StepDownOrExit`] the run ends.
//! 6. At the end of a run the lease is given up after the last of the leader's work has ended, and left to run out if that
//!    outlived the grace period. If the lease is lost meanwhile, the work ends at once. Nobody is waited for longer than the
//!    grace period, whatever becomes of the lease.
//! 7. A lease that is won while the run ends starts nothing, and is given up.
//! 8. A replica that is not warm leaves a free lease to others for a limited time.
//! 9. On the wire it is the lease of client-go: a replica in Go and one in Rust can contend for it.
//! 10. With [a lease for each runnable](Election::per_runnable) all this holds for each of them alone.
//! 11. A leader watches its lease. If another replica takes it, the leader steps down at once, not at its next renewal, unless a
//!     read shows that the event was old. If the lease is deleted, the leader creates it again at once, and steps down if another
//!     replica was quicker.
//!
//! # Not promised
//! * Anything about clocks that run at different rates, once they differ by more than the ratio of lease duration to
//!   renew deadline: 3:2 by default.
//! * That a machine notices that it was suspended, if its calendar is set back by as much at the same time.
//! * That a request which was sent in time arrives in time; see [`Fence`](steersman_cluster::Fence). The difference
//!   between lease duration and renew deadline is the time that it has.
//! * One leader at a time for those who edit or delete the lease by hand. Candidates that saw a lease wait until it would
//!   have expired, but a lease without a holder is free, and a candidate that never saw a deleted lease creates it at once.
//!   The former leader learns of both by its watch, which takes as long as an event takes to arrive. If it cannot watch,
//!   it learns of it at its next renewal, and if it cannot reach the server, it stops at its renew deadline.

mod campaign;
mod elector;
mod follower;
mod identity;
mod lock;
mod observation;
mod overdue;
mod record;

use std::{collections::BTreeMap, io, time::Duration};

use steersman_cluster::{Cluster, ClusterName, ConnectError};
use steersman_core::Spawner;

pub(crate) use self::{
    campaign::{Campaign, Circumstances, Figures, Loss},
    identity::host,
    overdue::Overdue,
};

/// By how much a candidate that polls waits longer than the retry period, at most: by this factor.
const JITTER: f64 = 1.2;

/// How replicas elect the one that acts.
///
/// A text is one, too: the name of the lease, with defaults for the rest.
#[derive(Clone, Debug)]
#[must_use]
pub struct Election {
    lease: String,
    namespace: Option<String>,
    identity: Option<String>,
    labels: BTreeMap<String, String>,
    timing: Timing,
    on_loss: OnLoss,
    release: bool,
    patience: Duration,
    step_down: Duration,
    per_runnable: bool,
    cluster: Option<Cluster>,
    spawner: Option<Spawner>,
}

/// What a manager does when another replica has the lease, or might have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLoss {
    /// It stops what needs leadership, keeps the rest running and warm, and takes part in the election again.
    #[default]
    StepDown,
    /// It ends its run with an error.
    Exit,
    /// As [`StepDown`](Self::StepDown), but it ends its run with an error if leader work has not ended after twice the
    /// [step-down timeout](Election::step_down_timeout).
    StepDownOrExit,
}

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    lease: Duration,
    renew: Duration,
    retry: Duration,
}

/// An election cannot be held as it is described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// The lease has no name.
    #[error("the lease of the election has no name: give one that all replicas of the program share")]
    NoName,
    /// It is not known where the lease is.
    #[error(
        "it is not known in which namespace the lease `{lease}` is: run in a Pod, or say it with `Election::namespace`"
    )]
    NoNamespace {
        /// The lease.
        lease: String,
        /// Why the Pod's namespace is not known.
        #[source]
        source: io::Error,
    },
    /// There is no cluster that has the lease.
    #[error(
        "there is no cluster for the lease `{lease}`: give the manager one, or say it with `Election::on`"
    )]
    NoCluster {
        /// The lease.
        lease: String,
    },
    /// The times do not go together.
    #[error("the lease `{lease}` cannot be held so: {reason}")]
    Timing {
        /// The lease.
        lease: String,
        /// Which times, and what they have to be.
        reason: String,
    },
    /// The election's own connection cannot be made.
    #[error("the election for the lease `{lease}` has no connection")]
    Connect {
        /// The lease.
        lease: String,
        /// Why not.
        #[source]
        source: Box<ConnectError>,
    },
    /// The election's thread cannot be started.
    #[error("no thread for the election for the lease `{lease}`")]
    Thread {
        /// The lease.
        lease: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl Election {
    /// An election for the lease of this name, which all replicas of a program share and no other program uses.
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
            on_loss: OnLoss::default(),
            release: true,
            patience: Duration::from_secs(15),
            step_down: Duration::from_secs(30),
            per_runnable: false,
            cluster: None,
            spawner: None,
        }
    }

    /// The namespace of the lease. Default: that of the Pod in which the program runs.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// What this replica is called in the lease. No other process may use it. Default: the name of the host and a random
    /// number.
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// A label of the lease. Others that it has are left alone.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// How long others wait for a leader that does not renew, in whole seconds. All replicas should agree on it.
    /// Default: 15 s.
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.timing.lease = duration;
        self
    }

    /// How long a leader acts that cannot renew. It must be shorter than the lease; the difference is the time that a
    /// last write has to arrive. Default: 10 s.
    pub fn renew_deadline(mut self, deadline: Duration) -> Self {
        self.timing.renew = deadline;
        self
    }

    /// How often a leader renews, and how long is waited after a failure. 1.2 times of it must be shorter than the renew
    /// deadline. Default: 2 s.
    pub fn retry_period(mut self, period: Duration) -> Self {
        self.timing.retry = period;
        self
    }

    /// What happens when the lease is lost. Default: this replica steps down and takes part again.
    pub fn on_loss(mut self, policy: OnLoss) -> Self {
        self.on_loss = policy;
        self
    }

    /// Step-down timeout: the time that leader work has to end after the lease is lost. It is cancelled, but code that
    /// blocks a thread or ignores the end of its term goes on, and until it ends this replica does not contend. Then
    /// `/readyz` fails after this time, and `/healthz` after twice this time, so that the process is restarted.
    /// Default: 30 s.
    pub fn step_down_timeout(mut self, timeout: Duration) -> Self {
        self.step_down = timeout;
        self
    }

    /// Whether the lease is given up at the end of a run, so that the next leader need not wait until it has run out.
    /// Default: yes.
    pub fn release_on_stop(mut self, release: bool) -> Self {
        self.release = release;
        self
    }

    /// How long a free lease is left to others while this replica is not warm. With zero it takes what it can get.
    /// Default: 15 s.
    pub fn cold_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// One lease for each controller and other runnable that needs leadership. So replicas share the work: each acts in what it
    /// holds the lease of. Each lease costs a thread, a connection and its renewals. [`Manager::leads`](crate::Manager::leads) and
    /// [`Manager::elected_in`](crate::Manager::elected_in) tell of one of them. Default: one lease for all.
    ///
    /// A lease is named `<election>--<runnable>`, such as `web-operator--web`. If that is not a valid object name or not unique, the
    /// name ends with a hash of both. RBAC rules with `resourceNames` have to list these names. Replicas exclude each other only if
    /// they use the same name: renaming the election or a runnable, or switching to or from `per_runnable` in a rolling update, runs
    /// two leaders for a while. Stop the old replicas first, for example with the `Recreate` strategy of a Deployment.
    pub fn per_runnable(mut self) -> Self {
        self.per_runnable = true;
        self
    }

    /// The cluster that has the lease. Default: that of the manager.
    pub fn on(mut self, cluster: &Cluster) -> Self {
        self.cluster = Some(cluster.clone());
        self
    }

    /// Where it runs. Default: on a thread of its own, so that nobody delays it.
    pub fn spawner(mut self, spawner: Spawner) -> Self {
        self.spawner = Some(spawner);
        self
    }

    /// What is to be done, once everything is known.
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
            on_loss: self.on_loss,
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

/// An [`Election`] in which nothing is open any more.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    cluster: Cluster,
    pub(crate) lease: String,
    namespace: String,
    pub(crate) identity: String,
    labels: BTreeMap<String, String>,
    timing: Timing,
    pub(crate) on_loss: OnLoss,
    pub(crate) release: bool,
    patience: Duration,
    step_down: Duration,
    pub(crate) per_runnable: bool,
    spawner: Option<Spawner>,
}

impl Settings {
    /// The cluster that has the lease.
    pub(crate) fn cluster(&self) -> &ClusterName {
        self.cluster.name()
    }

    /// The same for the lease of one runnable.
    pub(crate) fn of_runnable(&self, name: &str) -> Self {
        Self {
            lease: identity::lease_of(&self.lease, name),
            ..self.clone()
        }
    }
}

impl Timing {
    /// The rules of client-go, and that a lease is written down in whole seconds.
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
        // Not multiplied unless it is short: a product can be more than there is.
        if retry.is_zero() || renew <= retry || renew <= retry.mul_f64(JITTER) {
            return Err(format!(
                "the renew deadline of {renew:?} has to be longer than {JITTER} times the retry period of {retry:?}, \
                 which cannot be zero"
            ));
        }
        Ok(())
    }

    /// How long one request may take, so that there is time for a second one.
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
    fn times_that_do_not_go_together_are_refused_with_the_reason() {
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
