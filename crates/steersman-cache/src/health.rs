// SPDX-License-Identifier: Apache-2.0
//! How informers stand with their server.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use crate::{Scope, WatchError};

/// How an informer stands with its server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// A list was handed on completely, and since then every change that the server told of.
    pub synced: bool,
    /// What keeps it from being in step now. The last known state stays in the store meanwhile.
    pub trouble: Option<Arc<WatchError>>,
    /// The server answered 404 for the kind, and discovery does not contradict it. Cached reads fail, also after the first sync.
    pub absent: bool,
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

/// Where it is said which part of its resource an informer is about, and where the reflectors of that, one for each
/// namespace or one for all, say how they stand.
///
/// Its lock is held for a look and never while anything else is waited for, so that everybody may ask at any time.
#[derive(Debug)]
pub(crate) struct Board {
    next: AtomicU64,
    standing: watch::Sender<Standing>,
}

/// What is on a board.
#[derive(Debug)]
pub(crate) struct Standing {
    scope: Scope,
    /// By the number of the reflector: one that ends late may not touch what its successor says.
    parts: BTreeMap<u64, Part>,
    /// What those counted that are gone: a count does not go back.
    past: Health,
    /// Of all of them.
    combined: Health,
}

/// How one reflector stands.
#[derive(Debug)]
struct Part {
    /// Empty for all.
    namespace: String,
    metadata_only: bool,
    health: Health,
}

impl Standing {
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) fn combined(&self) -> &Health {
        &self.combined
    }

    /// How the part stands that has the objects of this namespace; nothing if that has not begun, or is not wanted.
    pub(crate) fn of(&self, namespace: &str) -> Option<&Health> {
        self.current(if self.scope.is_everywhere() { "" } else { namespace })
    }

    /// The newest reflector of a part, if it asks for what is wanted.
    fn current(&self, namespace: &str) -> Option<&Health> {
        let newest = self
            .parts
            .values()
            .rev()
            .find(|part| part.namespace == namespace)?;
        (newest.metadata_only == self.scope.is_metadata_only()).then_some(&newest.health)
    }

    fn remove(&mut self, number: u64) -> bool {
        let Some(Part { health: gone, .. }) = self.parts.remove(&number) else {
            return false;
        };
        self.past.lists += gone.lists;
        self.past.relists += gone.relists;
        self.past.watches += gone.watches;
        self.past.watch_restarts += gone.watch_restarts;
        true
    }

    fn combine(&mut self) {
        let sum = |count: fn(&Health) -> u64| {
            count(&self.past) + self.parts.values().map(|part| count(&part.health)).sum::<u64>()
        };
        let wanted = self.scope.parts();
        let mut now = wanted.iter().map(|part| self.current(part));
        self.combined = Health {
            synced: now.all(|part| part.is_some_and(|health| health.synced)),
            trouble: wanted.iter().find_map(|part| self.current(part)?.trouble.clone()),
            absent: wanted
                .iter()
                .any(|part| self.current(part).is_some_and(|health| health.absent)),
            lists: sum(|health| health.lists),
            relists: sum(|health| health.relists),
            watches: sum(|health| health.watches),
            watch_restarts: sum(|health| health.watch_restarts),
            ended: false,
        };
    }
}

impl Health {
    /// Whether there is nothing more to wait for: all is there, or something is known to be in the way.
    pub(crate) fn is_settled(&self) -> bool {
        self.synced || self.trouble.is_some()
    }

    /// What is in the way of those who want to read. Where all was there once, that is only that the kind is gone.
    pub(crate) fn in_the_way(&self) -> Option<&Arc<WatchError>> {
        let trouble = self.trouble.as_ref();
        trouble.filter(|trouble| !self.synced || (self.absent && ***trouble == WatchError::Absent))
    }
}

/// The place of one reflector on the board. Dropping it takes the reflector off.
#[derive(Debug)]
pub(crate) struct Reporter {
    part: u64,
    board: Arc<Board>,
}

impl Board {
    pub(crate) fn about(scope: Scope) -> Arc<Self> {
        Arc::new(Self {
            next: AtomicU64::new(0),
            standing: watch::Sender::new(Standing {
                scope,
                parts: BTreeMap::new(),
                past: Health::default(),
                combined: Health::default(),
            }),
        })
    }

    /// A place for the reflector of a namespace, or of all of them as the empty name.
    pub(crate) fn reporter_of(self: &Arc<Self>, namespace: &str, metadata_only: bool) -> Reporter {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let part = Part {
            namespace: namespace.to_owned(),
            metadata_only,
            health: Health::default(),
        };
        self.change(|standing| {
            standing.parts.insert(number, part);
            true
        });
        Reporter {
            part: number,
            board: Arc::clone(self),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&Standing) -> T) -> T {
        look(&self.standing.borrow())
    }

    pub(crate) fn health(&self) -> Health {
        self.look(|standing| standing.combined.clone())
    }

    pub(crate) fn scope(&self) -> Scope {
        self.look(|standing| standing.scope.clone())
    }

    /// Makes it about another part, and says whether that is a change. Of what is new nothing is known from then on,
    /// before there are reflectors for it. One that was ended stays as it is.
    pub(crate) fn want(&self, other: impl FnOnce(&Scope) -> Option<Scope>) -> bool {
        self.change(|standing| {
            let wanted = other(&standing.scope).filter(|scope| *scope != standing.scope);
            wanted.map(|scope| standing.scope = scope).is_some()
        })
    }

    pub(crate) fn end(&self) {
        self.standing
            .send_modify(|standing| standing.combined.ended = true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.look(|standing| standing.combined.ended)
    }

    /// Returns whether `change` says that it has changed something.
    fn change(&self, change: impl FnOnce(&mut Standing) -> bool) -> bool {
        self.standing.send_if_modified(|standing| {
            // Of one that was ended, what was last true stays.
            let is_changed = !standing.combined.ended && change(standing);
            if is_changed {
                standing.combine();
            }
            is_changed
        })
    }
}

impl Reporter {
    pub(crate) fn update(&self, update: impl FnOnce(&mut Health)) {
        self.board.change(|standing| {
            let part = standing.parts.get_mut(&self.part);
            part.map(|part| update(&mut part.health)).is_some()
        });
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.board.change(|standing| standing.remove(self.part));
    }
}

#[cfg(test)]
impl std::ops::Deref for Standing {
    type Target = Health;

    fn deref(&self) -> &Health {
        &self.combined
    }
}

#[cfg(test)]
impl Board {
    /// About everything.
    pub(crate) fn new() -> Arc<Self> {
        Self::about(Scope::all())
    }

    /// A place for the one reflector of everything.
    pub(crate) fn reporter(self: &Arc<Self>) -> Reporter {
        self.reporter_of("", false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_two() -> Arc<Board> {
        Board::about(Scope::all().namespace("a").namespace("b"))
    }

    #[test]
    fn an_informer_is_in_sync_when_all_of_its_parts_are() {
        let board = of_two();
        let (a, b) = (board.reporter_of("a", false), board.reporter_of("b", false));
        a.update(|health| health.synced = true);
        assert!(!board.health().synced);
        b.update(|health| health.trouble = Some(Arc::new(WatchError::Absent)));
        assert_eq!(board.health().trouble.as_deref(), Some(&WatchError::Absent));
        assert!(board.want(|_| Some(Scope::all().namespace("a"))));
        assert!(board.health().synced && board.health().trouble.is_none());
    }

    #[test]
    fn each_namespace_stands_for_itself() {
        let board = of_two();
        let look = |namespace: &str| {
            let standing = board.standing.borrow();
            standing.of(namespace).map(|health| health.synced)
        };
        let a = board.reporter_of("a", false);
        a.update(|health| health.synced = true);
        assert_eq!((look("a"), look("b"), look("")), (Some(true), None, None));
        // What has all of them has each of them.
        board.want(|_| Some(Scope::all()));
        assert_eq!((look("a"), look("")), (None, None));
        let _all = board.reporter_of("", false);
        assert_eq!((look("a"), look("")), (Some(false), Some(false)));
    }

    #[test]
    fn what_is_wanted_anew_is_not_in_sync_before_it_has_begun() {
        let board = Board::about(Scope::all().metadata_only());
        let metadata = board.reporter_of("", true);
        metadata.update(|health| health.synced = true);
        assert!(board.health().synced);
        assert!(board.want(|scope| Some(scope.whole())));
        assert!(!board.health().synced);
        let whole = board.reporter_of("", false);
        whole.update(|health| health.synced = true);
        // Whether or not the one before is off already.
        assert!(board.health().synced);
        drop(metadata);
        assert!(board.health().synced);
    }

    #[test]
    fn a_count_does_not_go_back_when_a_part_goes() {
        let board = Board::new();
        let part = board.reporter();
        part.update(|health| (health.lists, health.watches) = (2, 3));
        drop(part);
        board.reporter().update(|health| health.lists += 1);
        let health = board.health();
        assert_eq!((health.lists, health.watches), (3, 3));
    }
}
