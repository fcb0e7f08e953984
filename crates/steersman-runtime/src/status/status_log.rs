// SPDX-License-Identifier: Apache-2.0
//! Log lines about the status of runnables.
//!
//! # Guarantees
//! 1. A line names the replica, and the cluster if there is one.
//! 2. A state is logged when it begins. Further reasons for the same state are logged at `debug`.
//! 3. A change for the worse is a warning only if it lasts for [`WARN_AFTER`]: from ready to partially degraded or
//!    degraded, and from partially degraded to degraded. A closed watch, a 410 and a lost response have recovered by then:
//!    neither the failure nor its end is logged above `debug`.

use std::time::Duration;

use steersman_core::Task;

use super::{Inner, RunnableStatus, StatusHandle, Statuses};

/// Time that a worse state has to last before a warning is logged.
const WARN_AFTER: Duration = Duration::from_secs(5);

/// The state that was logged last.
#[derive(Debug, Default)]
pub(super) struct Logged {
    last: Option<Phase>,
    /// Task that logs a delayed warning.
    overdue: Option<Task>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The start was logged.
    Started,
    Ready,
    Dormant,
    PartiallyDegraded,
    Degraded,
}

/// Fields of a log line.
struct Fields {
    name: String,
    cluster: Option<String>,
    replica: Option<String>,
}

impl Phase {
    fn of(status: &RunnableStatus) -> Option<Self> {
        match status {
            RunnableStatus::Waiting { .. } => None,
            RunnableStatus::Ready => Some(Self::Ready),
            RunnableStatus::Dormant { .. } => Some(Self::Dormant),
            RunnableStatus::PartiallyDegraded { .. } => Some(Self::PartiallyDegraded),
            RunnableStatus::Degraded { .. } => Some(Self::Degraded),
        }
    }
}

impl StatusHandle {
    /// Sets the cluster of the runnable, for the log. Only the first call counts.
    pub(crate) fn set_cluster(&self, name: &str) {
        let _ = self.cluster.set(name.to_owned());
    }

    /// Logs the start with its reason. The following ready state is not logged.
    pub(crate) fn begins_because(&self, reason: &str) {
        self.registry.lock().logged.entry(self.number).or_default().last = Some(Phase::Started);
        let Fields {
            name,
            cluster,
            replica,
        } = self.fields();
        tracing::info!(
            name,
            cluster,
            replica,
            reason,
            "run condition is true; starting runnable"
        );
    }

    pub(super) fn log_status(&self, registry: &mut Statuses, status: &RunnableStatus) {
        let logged = registry.logged.entry(self.number).or_default();
        let phase = Phase::of(status);
        let is_trouble = matches!(phase, Some(Phase::PartiallyDegraded | Phase::Degraded));
        if !is_trouble || phase == logged.last {
            logged.overdue = None;
        }
        let is_news = match (logged.last, phase) {
            (_, None) | (Some(Phase::Started), Some(Phase::Ready)) => false,
            (Some(Phase::Ready), Some(Phase::PartiallyDegraded | Phase::Degraded))
            | (Some(Phase::PartiallyDegraded), Some(Phase::Degraded)) => {
                if logged.overdue.is_none() {
                    logged.overdue = self.warn_later();
                }
                logged.overdue.is_none()
            }
            (last, phase) => last != phase,
        };
        // A delayed warning has not been logged yet.
        if phase.is_some() && logged.overdue.is_none() {
            logged.last = phase;
        }
        self.fields().log(status, is_news);
    }

    /// Logs a warning after [`WARN_AFTER`], unless the status has recovered by then.
    fn warn_later(&self) -> Option<Task> {
        let (clock, spawner) = self.registry.0.timer.as_ref()?;
        let due = clock.sleep_until(clock.now() + WARN_AFTER);
        let (inner, number, fields) = (
            std::sync::Arc::downgrade(&self.registry.0),
            self.number,
            self.fields(),
        );
        Some(spawner.spawn("degraded", async move {
            due.await;
            if let Some(inner) = inner.upgrade() {
                inner.warn_now(number, &fields);
            }
        }))
    }

    fn fields(&self) -> Fields {
        Fields {
            name: self.name.clone(),
            cluster: self.cluster.get().cloned(),
            replica: self.registry.0.replica.get().cloned(),
        }
    }
}

impl Inner {
    fn warn_now(&self, number: u64, fields: &Fields) {
        let mut registry = self.registry.lock();
        let Statuses { logged, entries, .. } = &mut *registry;
        let Some(logged) = logged.get_mut(&number).filter(|logged| logged.overdue.is_some()) else {
            return; // It has just recovered.
        };
        logged.overdue = None;
        if let Some(status) = entries.get(&fields.name) {
            logged.last = Phase::of(status);
            fields.log(status, true);
        }
    }
}

impl Fields {
    fn log(&self, status: &RunnableStatus, is_news: bool) {
        let Self {
            name,
            cluster,
            replica,
        } = self;
        match status {
            RunnableStatus::Degraded { reason } if is_news => {
                tracing::warn!(name, cluster, replica, reason, "runnable degraded");
            }
            RunnableStatus::PartiallyDegraded { reason } if is_news => {
                tracing::warn!(name, cluster, replica, reason, "runnable partially degraded");
            }
            status if is_news => tracing::info!(name, cluster, replica, "runnable {status}"),
            status => tracing::debug!(name, cluster, replica, "runnable {status}"),
        }
    }
}
