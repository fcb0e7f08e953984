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
    /// How often it listed again after it had been in sync.
    pub relists: u64,
    /// How often it opened a watch.
    pub watches: u64,
    /// How often it opened a watch that was not its first.
    pub watch_restarts: u64,
    /// It was ended, and nothing will come any more.
    pub ended: bool,
}

/// Where the reflectors of an informer, one for each namespace or one for all, say how they stand.
#[derive(Debug)]
pub(crate) struct Board {
    parts: Mutex<Parts>,
    next: AtomicU64,
    combined: watch::Sender<Health>,
}

#[derive(Debug, Default)]
struct Parts {
    /// By the number of the reflector: one that ends late may not touch what its successor says.
    now: BTreeMap<u64, Health>,
    /// What those counted that are gone: a count does not go back.
    past: Health,
}

impl Parts {
    fn remove(&mut self, part: u64) {
        if let Some(gone) = self.now.remove(&part) {
            self.past.lists += gone.lists;
            self.past.relists += gone.relists;
            self.past.watches += gone.watches;
            self.past.watch_restarts += gone.watch_restarts;
        }
    }

    fn combined(&self) -> Health {
        let sum = |count: fn(&Health) -> u64| count(&self.past) + self.now.values().map(count).sum::<u64>();
        Health {
            synced: !self.now.is_empty() && self.now.values().all(|health| health.synced),
            trouble: self.now.values().find_map(|health| health.trouble.clone()),
            lists: sum(|health| health.lists),
            relists: sum(|health| health.relists),
            watches: sum(|health| health.watches),
            watch_restarts: sum(|health| health.watch_restarts),
            ended: false,
        }
    }
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
        self.change(|parts| _ = parts.now.insert(part, Health::default()));
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

    pub(crate) fn has_ended(&self) -> bool {
        self.combined.borrow().ended
    }

    fn change(&self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut parts);
        let now = parts.combined();
        // Of one that was ended, what was last true stays.
        self.combined
            .send_if_modified(|health| !health.ended && std::mem::replace(health, now.clone()) != now);
    }
}

impl Reporter {
    pub(crate) fn update(&self, update: impl FnOnce(&mut Health)) {
        self.board.change(|parts| {
            if let Some(health) = parts.now.get_mut(&self.part) {
                update(health);
            }
        });
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.board.change(|parts| parts.remove(self.part));
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

    #[test]
    fn a_count_does_not_go_back_when_a_part_goes() {
        let board = Board::new();
        let part = board.reporter();
        part.update(|health| (health.lists, health.watches) = (2, 3));
        drop(part);
        board.reporter().update(|health| health.lists += 1);
        let health = board.subscribe().borrow().clone();
        assert_eq!((health.lists, health.watches), (3, 3));
    }
}
