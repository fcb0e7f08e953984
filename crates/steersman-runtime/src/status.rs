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
    pub(crate) fn its_start() -> Self {
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
    board: Mutex<Statuses>,
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
    board: StatusRegistry,
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
    pub(crate) fn place(&self, name: &str) -> StatusHandle {
        let mut board = self.lock();
        board.taken += 1;
        let place = StatusHandle {
            name: name.to_owned(),
            number: board.taken,
            board: self.clone(),
            cluster: OnceLock::new(),
        };
        board.owners.insert(name.to_owned(), place.number);
        board.settled.remove(name);
        drop(board);
        place.set(RunnableStatus::its_start());
        place
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
        self.look(|board| condition(&board.entries)).await;
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
        self.look(|board| condition(&board.settled)).await;
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
        self.0.board.lock()
    }
}

impl StatusHandle {
    /// Sets the status, and logs a change of the state.
    pub(crate) fn set(&self, status: RunnableStatus) {
        let mut board = self.board.lock();
        if !self.is_own(&board) {
            return;
        }
        let before = board.entries.get(&self.name);
        if before == Some(&status) {
            return;
        }
        self.log_status(&mut board, &status);
        if status.is_ready() {
            board.settled.insert(self.name.clone());
        }
        board.entries.insert(self.name.clone(), status);
        drop(board);
        self.board.0.changed.send_replace(());
    }

    /// Marks the runnable as settled: nothing waits any longer until it is ready, because it might never be.
    pub(crate) fn settle(&self) {
        let mut board = self.board.lock();
        if !self.is_own(&board) {
            return;
        }
        board.settled.insert(self.name.clone());
        drop(board);
        self.board.0.changed.send_replace(());
    }

    /// Returns true if no other handle has taken the name.
    fn is_own(&self, board: &Statuses) -> bool {
        board.owners.get(&self.name) == Some(&self.number)
    }

    /// Waits until the status is not waiting.
    pub(crate) async fn begun(&self) {
        let is_waiting = |status: &RunnableStatus| matches!(status, RunnableStatus::Waiting { .. });
        let board = &self.board;
        board
            .when(|all| !all.get(&self.name).is_some_and(is_waiting))
            .await;
    }
}

impl Drop for StatusHandle {
    fn drop(&mut self) {
        let mut board = self.board.lock();
        board.logged.remove(&self.number);
        if !self.is_own(&board) {
            return;
        }
        board.owners.remove(&self.name);
        board.entries.remove(&self.name);
        board.settled.remove(&self.name);
        drop(board);
        self.board.0.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_dropped_status_is_removed_and_waiters_are_notified() {
        let board = StatusRegistry::new();
        let place = board.place("web");
        assert!(!board.of("web").unwrap().is_ready());
        let mut ready = Box::pin(board.when(|all| all.values().all(RunnableStatus::is_ready)));
        assert!(ready.as_mut().now_or_never().is_none());
        place.set(RunnableStatus::Ready);
        assert!(ready.as_mut().now_or_never().is_some());
        drop(place);
        assert!(board.all().is_empty());
    }

    #[test]
    fn a_late_drop_keeps_the_status_of_the_next_runnable_of_its_name() {
        let board = StatusRegistry::new();
        let (old, new) = (board.place("web"), board.place("web"));
        new.set(RunnableStatus::Ready);
        old.set(RunnableStatus::its_start());
        drop(old);
        assert_eq!(board.of("web"), Some(RunnableStatus::Ready));
        assert!(board.settled().contains("web"));
        drop(new);
        assert!(board.all().is_empty());
    }

    #[test]
    fn a_runnable_is_settled_once_ready_or_after_its_time() {
        let board = StatusRegistry::new();
        let (web, late) = (board.place("web"), board.place("late"));
        assert!(board.settled().is_empty());
        web.set(RunnableStatus::Ready);
        let trouble = RunnableStatus::Degraded {
            reason: "forbidden".to_owned(),
        };
        web.set(trouble.clone());
        late.set(trouble);
        let mut settled = Box::pin(board.when_settled(|settled| settled.len() == 2));
        assert!(settled.as_mut().now_or_never().is_none());
        late.settle();
        assert!(settled.as_mut().now_or_never().is_some());
        drop(web);
        assert!(board.settled().iter().eq(["late"]));
        let _again = board.place("late");
        assert!(board.settled().is_empty());
    }
}
