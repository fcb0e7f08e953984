// SPDX-License-Identifier: Apache-2.0
//! How those that run stand, for readiness and for people.

mod status_log;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use steersman_core::{Clock, Spawner};
use tokio::sync::watch;

use self::status_log::Told;

/// How something that runs stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunnableStatus {
    /// It waits for these before it can begin.
    Waiting {
        /// What it waits for, one by one.
        on: Vec<String>,
    },
    /// What it waits for is not there, as it may be; it begins when it comes.
    Dormant {
        /// What is not there.
        reason: String,
    },
    /// It has what it needs.
    Ready,
    /// It works, but some non-default clusters fail. It goes on with the default cluster and with those that do not fail.
    Impaired {
        /// The clusters that fail, with the errors.
        reason: String,
    },
    /// It cannot do its work, or not all of it, and goes on trying.
    Degraded {
        /// What is in the way.
        reason: String,
    },
}

impl RunnableStatus {
    pub(crate) fn its_start() -> Self {
        Self::Waiting {
            on: vec!["its start".to_owned()],
        }
    }

    /// Whether a replica in which something stands so can take traffic and leadership.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::Dormant { .. } | Self::Impaired { .. })
    }
}

impl fmt::Display for RunnableStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting { on } => write!(f, "waiting for {}", on.join(", ")),
            Self::Dormant { reason } => write!(f, "dormant: {reason}"),
            Self::Ready => f.write_str("ready"),
            Self::Impaired { reason } => write!(f, "impaired: {reason}"),
            Self::Degraded { reason } => write!(f, "degraded: {reason}"),
        }
    }
}

/// Where everything that runs says how it stands. Clones are one board.
#[derive(Clone, Debug, Default)]
pub struct StatusRegistry(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    board: Mutex<Board>,
    changed: watch::Sender<()>,
    /// The name of this replica, for the log.
    replica: OnceLock<String>,
    /// Delays warnings. Without it they are logged at once.
    timer: Option<(Arc<dyn Clock>, Spawner)>,
}

#[derive(Debug, Default)]
struct Board {
    entries: BTreeMap<String, RunnableStatus>,
    settled: BTreeSet<String>,
    /// Whose the entries are: the last of their name who took a place.
    owners: BTreeMap<String, u64>,
    /// How many places were taken.
    taken: u64,
    /// The state that was last logged, by the number of the place.
    told: BTreeMap<u64, Told>,
}

/// The place of one on the board. Dropping it takes it off. One whose name was taken by another since says nothing more.
#[derive(Debug)]
pub(crate) struct StatusHandle {
    name: String,
    number: u64,
    board: StatusRegistry,
    /// The cluster that it works on, for the log.
    cluster: OnceLock<String>,
}

impl StatusRegistry {
    /// An empty board.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty board that logs a failure only if it lasts.
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

    /// A place for one of this name, which waits for nothing in particular yet.
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

    /// How all stand, by name.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, RunnableStatus> {
        self.lock().entries.clone()
    }

    /// How the one of this name stands.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<RunnableStatus> {
        self.lock().entries.get(name).cloned()
    }

    /// Waits until `condition` holds.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn when(&self, mut condition: impl FnMut(&BTreeMap<String, RunnableStatus>) -> bool) {
        self.look(|board| condition(&board.entries)).await;
    }

    /// The names of those that need not be waited for any more: they were ready once, or the time for that is over.
    #[must_use]
    pub fn settled(&self) -> BTreeSet<String> {
        self.lock().settled.clone()
    }

    /// Waits until `condition` holds of those that need not be waited for any more.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn when_settled(&self, mut condition: impl FnMut(&BTreeSet<String>) -> bool) {
        self.look(|board| condition(&board.settled)).await;
    }

    async fn look(&self, mut condition: impl FnMut(&Board) -> bool) {
        let mut changed = self.0.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if condition(&self.lock()) || changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.0.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatusHandle {
    /// Says how it stands, and logs a change of the state.
    pub(crate) fn set(&self, standing: RunnableStatus) {
        let mut board = self.board.lock();
        if !self.is_own(&board) {
            return;
        }
        let before = board.entries.get(&self.name);
        if before == Some(&standing) {
            return;
        }
        self.tell(&mut board, &standing);
        if standing.is_ready() {
            board.settled.insert(self.name.clone());
        }
        board.entries.insert(self.name.clone(), standing);
        drop(board);
        self.board.0.changed.send_replace(());
    }

    /// Says that nobody need wait any longer until it is ready: it may be in trouble for good.
    pub(crate) fn settle(&self) {
        let mut board = self.board.lock();
        if !self.is_own(&board) {
            return;
        }
        board.settled.insert(self.name.clone());
        drop(board);
        self.board.0.changed.send_replace(());
    }

    /// Whether nobody has taken the name since.
    fn is_own(&self, board: &Board) -> bool {
        board.owners.get(&self.name) == Some(&self.number)
    }

    /// Waits until it does not wait for anything any more.
    pub(crate) async fn begun(&self) {
        let is_waiting = |standing: &RunnableStatus| matches!(standing, RunnableStatus::Waiting { .. });
        let board = &self.board;
        board
            .when(|all| !all.get(&self.name).is_some_and(is_waiting))
            .await;
    }
}

impl Drop for StatusHandle {
    fn drop(&mut self) {
        let mut board = self.board.lock();
        board.told.remove(&self.number);
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
    fn who_leaves_is_off_the_board_and_who_waits_is_woken() {
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
    fn who_leaves_late_takes_nothing_from_the_next_of_its_name() {
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
    fn who_was_ready_once_or_had_its_time_is_settled() {
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
