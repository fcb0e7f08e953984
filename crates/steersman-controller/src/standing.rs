// SPDX-License-Identifier: Apache-2.0
//! How those that run stand, for readiness and for people.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// How something that runs stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
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
    /// It cannot do its work, or not all of it, and goes on trying.
    Degraded {
        /// What is in the way.
        reason: String,
    },
}

impl Standing {
    pub(crate) fn its_start() -> Self {
        Self::Waiting {
            on: vec!["its start".to_owned()],
        }
    }

    /// Whether a replica in which something stands so can take traffic and leadership.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::Dormant { .. })
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting { on } => write!(f, "waiting for {}", on.join(", ")),
            Self::Dormant { reason } => write!(f, "dormant: {reason}"),
            Self::Ready => f.write_str("ready"),
            Self::Degraded { reason } => write!(f, "degraded: {reason}"),
        }
    }
}

/// Where everything that runs says how it stands. Clones are one board.
#[derive(Clone, Debug, Default)]
pub struct Standings(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    entries: Mutex<BTreeMap<String, Standing>>,
    changed: watch::Sender<()>,
}

/// The place of one on the board. Dropping it takes it off.
#[derive(Debug)]
pub struct Place {
    name: String,
    board: Standings,
}

impl Standings {
    /// An empty board.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A place for one of this name, which waits for nothing in particular yet.
    pub fn place(&self, name: &str) -> Place {
        let place = Place {
            name: name.to_owned(),
            board: self.clone(),
        };
        place.set(Standing::its_start());
        place
    }

    /// How all stand, by name.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, Standing> {
        self.lock().clone()
    }

    /// How the one of this name stands.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<Standing> {
        self.lock().get(name).cloned()
    }

    /// Waits until `condition` holds.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn when(&self, mut condition: impl FnMut(&BTreeMap<String, Standing>) -> bool) {
        let mut changed = self.0.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if condition(&self.lock()) || changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Standing>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Says how it stands. A change is logged.
    pub fn set(&self, standing: Standing) {
        let mut entries = self.board.lock();
        if entries.get(&self.name) == Some(&standing) {
            return;
        }
        match &standing {
            Standing::Degraded { reason } => tracing::warn!(name = self.name, reason, "degraded"),
            Standing::Waiting { .. } => tracing::debug!(name = self.name, "{standing}"),
            standing => tracing::info!(name = self.name, "{standing}"),
        }
        entries.insert(self.name.clone(), standing);
        drop(entries);
        self.board.0.changed.send_replace(());
    }
}

impl Place {
    /// Waits until it does not wait for anything any more.
    pub(crate) async fn begun(&self) {
        let is_waiting = |standing: &Standing| matches!(standing, Standing::Waiting { .. });
        let board = &self.board;
        board
            .when(|all| !all.get(&self.name).is_some_and(is_waiting))
            .await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.board.lock().remove(&self.name);
        self.board.0.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn who_leaves_is_off_the_board_and_who_waits_is_woken() {
        let board = Standings::new();
        let place = board.place("web");
        assert!(!board.of("web").unwrap().is_ready());
        let mut ready = Box::pin(board.when(|all| all.values().all(Standing::is_ready)));
        assert!(ready.as_mut().now_or_never().is_none());
        place.set(Standing::Ready);
        assert!(ready.as_mut().now_or_never().is_some());
        drop(place);
        assert!(board.all().is_empty());
    }
}
