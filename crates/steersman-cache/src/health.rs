// SPDX-License-Identifier: Apache-2.0
//! How informers stand with their server.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use crate::Trouble;

/// How an informer stands with its server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// A list was handed on completely, and since then every change that the server told of.
    pub synced: bool,
    /// What keeps it from being in step now. The last known state stays in the store meanwhile.
    pub trouble: Option<Arc<Trouble>>,
    /// How often it listed.
    pub lists: u64,
    /// How often it opened a watch.
    pub watches: u64,
    /// It was ended, and nothing will come any more.
    pub ended: bool,
}

/// Where the reflectors of an informer, one for each namespace or one for all, say how they stand.
#[derive(Debug)]
pub(crate) struct Board {
    /// By the number of the reflector: one that ends late may not touch what its successor says.
    parts: Mutex<BTreeMap<u64, Health>>,
    next: AtomicU64,
    combined: watch::Sender<Health>,
}

/// The place of one reflector on the board. Dropping it takes the reflector off.
#[derive(Debug)]
pub(crate) struct Reporter {
    part: u64,
    board: Arc<Board>,
}

impl Board {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            parts: Mutex::default(),
            next: AtomicU64::new(0),
            combined: watch::Sender::new(Health::default()),
        })
    }

    pub(crate) fn reporter(self: &Arc<Self>) -> Reporter {
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        self.change(|parts| _ = parts.insert(part, Health::default()));
        Reporter {
            part,
            board: Arc::clone(self),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Health> {
        self.combined.subscribe()
    }

    pub(crate) fn end(&self) {
        self.combined.send_modify(|health| health.ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, Health>)) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut parts);
        if self.combined.borrow().ended {
            return; // What was last true stays.
        }
        let now = Health {
            synced: parts.values().all(|health| health.synced),
            trouble: parts.values().find_map(|health| health.trouble.clone()),
            lists: parts.values().map(|health| health.lists).sum(),
            watches: parts.values().map(|health| health.watches).sum(),
            ended: false,
        };
        self.combined
            .send_if_modified(|health| std::mem::replace(health, now.clone()) != now);
    }
}

impl Reporter {
    pub(crate) fn update(&self, update: impl FnOnce(&mut Health)) {
        self.board.change(|parts| {
            if let Some(health) = parts.get_mut(&self.part) {
                update(health);
            }
        });
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.board.change(|parts| _ = parts.remove(&self.part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_informer_is_in_sync_when_all_of_its_parts_are() {
        let board = Board::new();
        let health = board.subscribe();
        let (a, b) = (board.reporter(), board.reporter());
        a.update(|health| health.synced = true);
        assert!(!health.borrow().synced);
        b.update(|health| health.trouble = Some(Arc::new(Trouble::Absent)));
        assert_eq!(health.borrow().trouble.as_deref(), Some(&Trouble::Absent));
        drop(b);
        assert!(health.borrow().synced && health.borrow().trouble.is_none());
    }
}
