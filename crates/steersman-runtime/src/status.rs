// SPDX-License-Identifier: Apache-2.0
//! Statuses of runnables, for readiness and for people.

mod status_log;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, MutexGuard, OnceLock},
};

use steersman_core::{Clock, Mutex, Spawner};
use tokio::sync::watch;

use self::status_log::Logged;

/// Status of a runnable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunnableStatus {
    /// The runnable waits before it can start.
    Waiting {
        /// Everything that it waits for.
        on: Vec<String>,
    },
    /// An optional dependency is missing; the runnable starts when it appears.
    Dormant {
        /// The missing dependency.
        reason: String,
    },
    /// The runnable is ready.
    Ready,
    /// The runnable works, but some non-default clusters fail. It continues with the default cluster and with the
    /// clusters that do not fail.
    PartiallyDegraded {
        /// The clusters that fail, with the errors.
        reason: String,
    },
    /// The runnable cannot do its work, or not all of it, and retries.
    Degraded {
        /// The error.
        reason: String,
    },
}

impl RunnableStatus {
    pub(crate) fn waiting_for_start() -> Self {
        Self::Waiting {
            on: vec!["its start".to_owned()],
        }
    }

    /// Returns true if a replica with this status can take traffic and leadership.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(
            self,
            Self::Ready | Self::Dormant { .. } | Self::PartiallyDegraded { .. }
        )
    }
}

impl fmt::Display for RunnableStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting { on } => write!(f, "waiting for {}", on.join(", ")),
            Self::Dormant { reason } => write!(f, "dormant: {reason}"),
            Self::Ready => f.write_str("ready"),
            Self::PartiallyDegraded { reason } => write!(f, "partially degraded: {reason}"),
            Self::Degraded { reason } => write!(f, "degraded: {reason}"),
        }
    }
}

/// Registry of the statuses of all runnables. Clones share the registry.
#[derive(Clone, Debug, Default)]
pub struct StatusRegistry(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    registry: Mutex<Statuses>,
    changed: watch::Sender<()>,
    /// Name of this replica, for the log.
    replica: OnceLock<String>,
    /// Delays warnings. Without it they are logged at once.
    timer: Option<(Arc<dyn Clock>, Spawner)>,
}

#[derive(Debug, Default)]
struct Statuses {
    entries: BTreeMap<String, RunnableStatus>,
    settled: BTreeSet<String>,
    /// Owners of the entries: the last handle of each name.
    owners: BTreeMap<String, u64>,
    /// Number of handles that were made.
    taken: u64,
    /// The state that was last logged, by the number of the handle.
    logged: BTreeMap<u64, Logged>,
}

/// Handle for the status of one runnable. Drop removes the entry. Has no effect once another handle has the name.
#[derive(Debug)]
pub(crate) struct StatusHandle {
    name: String,
    number: u64,
    registry: StatusRegistry,
    /// Cluster of the runnable, for the log.
    cluster: OnceLock<String>,
}

impl StatusRegistry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty registry that logs a failure only if it lasts.
    pub(crate) fn timed(clock: Arc<dyn Clock>, spawner: Spawner) -> Self {
        Self(Arc::new(Inner {
            timer: Some((clock, spawner)),
            ..Inner::default()
        }))
    }

    /// Sets the name of this replica for its log lines. Only the first call counts.
    pub fn set_replica(&self, name: &str) {
        let _ = self.0.replica.set(name.to_owned());
    }

    /// Returns a handle for a runnable of this name, with status waiting.
    pub(crate) fn handle(&self, name: &str) -> StatusHandle {
        let mut registry = self.lock();
        registry.taken += 1;
        let handle = StatusHandle {
            name: name.to_owned(),
            number: registry.taken,
            registry: self.clone(),
            cluster: OnceLock::new(),
        };
        registry.owners.insert(name.to_owned(), handle.number);
        registry.settled.remove(name);
        drop(registry);
        handle.set(RunnableStatus::waiting_for_start());
        handle
    }

    /// Returns all statuses, by name.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, RunnableStatus> {
        self.lock().entries.clone()
    }

    /// Returns the status of the runnable of this name.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<RunnableStatus> {
        self.lock().entries.get(name).cloned()
    }

    /// Waits until `condition` holds.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn when(&self, mut condition: impl FnMut(&BTreeMap<String, RunnableStatus>) -> bool) {
        self.look(|registry| condition(&registry.entries)).await;
    }

    /// Returns the names of the settled runnables: they were ready once, or their time to become ready has passed.
    #[must_use]
    pub fn settled(&self) -> BTreeSet<String> {
        self.lock().settled.clone()
    }

    /// Waits until `condition` holds for the settled runnables.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn when_settled(&self, mut condition: impl FnMut(&BTreeSet<String>) -> bool) {
        self.look(|registry| condition(&registry.settled)).await;
    }

    async fn look(&self, mut condition: impl FnMut(&Statuses) -> bool) {
        let mut changed = self.0.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if condition(&self.lock()) || changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Statuses> {
        self.0.registry.lock()
    }
}

impl StatusHandle {
    /// Sets the status, and logs a change of the state.
    pub(crate) fn set(&self, status: RunnableStatus) {
        let mut registry = self.registry.lock();
        if !self.is_own(&registry) {
            return;
        }
        let before = registry.entries.get(&self.name);
        if before == Some(&status) {
            return;
        }
        self.log_status(&mut registry, &status);
        if status.is_ready() {
            registry.settled.insert(self.name.clone());
        }
        registry.entries.insert(self.name.clone(), status);
        drop(registry);
        self.registry.0.changed.send_replace(());
    }

    /// Marks the runnable as settled: nothing waits any longer until it is ready, because it might never be.
    pub(crate) fn settle(&self) {
        let mut registry = self.registry.lock();
        if !self.is_own(&registry) {
            return;
        }
        registry.settled.insert(self.name.clone());
        drop(registry);
        self.registry.0.changed.send_replace(());
    }

    /// Returns true if no other handle has taken the name.
    fn is_own(&self, registry: &Statuses) -> bool {
        registry.owners.get(&self.name) == Some(&self.number)
    }

    /// Waits until the status is not waiting.
    pub(crate) async fn begun(&self) {
        let is_waiting = |status: &RunnableStatus| matches!(status, RunnableStatus::Waiting { .. });
        let registry = &self.registry;
        registry
            .when(|all| !all.get(&self.name).is_some_and(is_waiting))
            .await;
    }
}

impl Drop for StatusHandle {
    fn drop(&mut self) {
        let mut registry = self.registry.lock();
        registry.logged.remove(&self.number);
        if !self.is_own(&registry) {
            return;
        }
        registry.owners.remove(&self.name);
        registry.entries.remove(&self.name);
        registry.settled.remove(&self.name);
        drop(registry);
        self.registry.0.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_dropped_status_is_removed_and_waiters_are_notified() {
        let registry = StatusRegistry::new();
        let handle = registry.handle("web");
        assert!(!registry.of("web").unwrap().is_ready());
        let mut ready = Box::pin(registry.when(|all| all.values().all(RunnableStatus::is_ready)));
        assert!(ready.as_mut().now_or_never().is_none());
        handle.set(RunnableStatus::Ready);
        assert!(ready.as_mut().now_or_never().is_some());
        drop(handle);
        assert!(registry.all().is_empty());
    }

    #[test]
    fn a_late_drop_keeps_the_status_of_the_next_runnable_of_its_name() {
        let registry = StatusRegistry::new();
        let (old, new) = (registry.handle("web"), registry.handle("web"));
        new.set(RunnableStatus::Ready);
        old.set(RunnableStatus::waiting_for_start());
        drop(old);
        assert_eq!(registry.of("web"), Some(RunnableStatus::Ready));
        assert!(registry.settled().contains("web"));
        drop(new);
        assert!(registry.all().is_empty());
    }

    #[test]
    fn a_runnable_is_settled_once_ready_or_after_its_time() {
        let registry = StatusRegistry::new();
        let (web, late) = (registry.handle("web"), registry.handle("late"));
        assert!(registry.settled().is_empty());
        web.set(RunnableStatus::Ready);
        let trouble = RunnableStatus::Degraded {
            reason: "forbidden".to_owned(),
        };
        web.set(trouble.clone());
        late.set(trouble);
        let mut settled = Box::pin(registry.when_settled(|settled| settled.len() == 2));
        assert!(settled.as_mut().now_or_never().is_none());
        late.settle();
        assert!(settled.as_mut().now_or_never().is_some());
        drop(web);
        assert!(registry.settled().iter().eq(["late"]));
        let _again = registry.handle("late");
        assert!(registry.settled().is_empty());
    }
}
