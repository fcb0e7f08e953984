// SPDX-License-Identifier: Apache-2.0
//! The state of informers relative to their server.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use crate::{Scope, WatchError};

/// The state of an informer relative to its server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// True if a whole list was delivered, and every change that the server sent since.
    pub synced: bool,
    /// The error that currently keeps the informer from being in sync. Meanwhile the store keeps the last known state.
    pub error: Option<Arc<WatchError>>,
    /// True if the server answered 404 for the kind and discovery does not contradict it. Cached reads fail, also after the first
    /// sync.
    pub absent: bool,
    /// Number of lists.
    pub lists: u64,
    /// Number of lists after the informer had been in sync.
    pub relists: u64,
    /// Number of watches opened.
    pub watches: u64,
    /// Number of watches opened after the first.
    pub watch_restarts: u64,
    /// True if the informer was ended and delivers no further event.
    pub ended: bool,
}

/// The wanted scope of an informer, and the health of its reflectors, one for each namespace or one for all.
///
/// Its lock is held only for short reads and writes, never while waiting, so any code can read it at any time.
#[derive(Debug)]
pub(crate) struct HealthTracker {
    next: AtomicU64,
    state: watch::Sender<HealthState>,
}

/// The contents of a board.
#[derive(Debug)]
pub(crate) struct HealthState {
    scope: Scope,
    /// By reflector number: a reflector that ends late must not change the state of its successor.
    parts: BTreeMap<u64, Part>,
    /// Counters of ended reflectors: a counter never decreases.
    past: Health,
    /// The combined health of all reflectors (one per namespace).
    combined: Health,
}

/// The health of one reflector.
#[derive(Debug)]
struct Part {
    /// Empty for all namespaces.
    namespace: String,
    metadata_only: bool,
    health: Health,
}

impl HealthState {
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) fn combined(&self) -> &Health {
        &self.combined
    }

    /// Returns true if the objects of this namespace are settled: in sync, or with an error. An empty name means all namespaces
    /// of the scope.
    pub(crate) fn is_settled_in(&self, namespace: &str) -> bool {
        let is_settled = |part: &str| self.current(part).is_some_and(Health::is_settled);
        match self.part_of(namespace) {
            Some(part) => is_settled(part),
            None => self.scope.named().all(is_settled),
        }
    }

    /// Returns true if the objects of this namespace can be read. An empty name means all namespaces of the scope.
    pub(crate) fn is_readable_in(&self, namespace: &str) -> bool {
        let is_readable = |part: &str| {
            let health = self.current(part);
            health.is_some_and(|health| health.synced && health.in_the_way().is_none())
        };
        match self.part_of(namespace) {
            Some(part) => is_readable(part),
            None => self.scope.named().all(is_readable),
        }
    }

    /// Returns the error that prevents reads of this namespace. An empty name means all namespaces of the scope.
    pub(crate) fn in_the_way_of(&self, namespace: &str) -> Option<&Arc<WatchError>> {
        let in_the_way = |part: &str| self.current(part)?.in_the_way();
        match self.part_of(namespace) {
            Some(part) => in_the_way(part),
            None => self.scope.named().find_map(in_the_way),
        }
    }

    /// Returns the part that lists a namespace, or `None` if several parts list all namespaces of the scope.
    fn part_of<'a>(&self, namespace: &'a str) -> Option<&'a str> {
        match (self.scope.is_everywhere(), namespace) {
            (true, _) => Some(""),
            (false, "") => None,
            (false, namespace) => Some(namespace),
        }
    }

    /// Returns the health of the newest reflector of a part, if it lists what is wanted.
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
            error: wanted.iter().find_map(|part| self.current(part)?.error.clone()),
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
    /// Returns true if waiting is over: the part is in sync, or has an error.
    pub(crate) fn is_settled(&self) -> bool {
        self.synced || self.error.is_some()
    }

    /// Returns the error that prevents reads. After the first sync, only an absent kind prevents them.
    pub(crate) fn in_the_way(&self) -> Option<&Arc<WatchError>> {
        let error = self.error.as_ref();
        error.filter(|error| !self.synced || (self.absent && ***error == WatchError::NotInstalled))
    }
}

/// The entry of one reflector on the board. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct Reporter {
    part: u64,
    health_tracker: Arc<HealthTracker>,
}

impl HealthTracker {
    pub(crate) fn about(scope: Scope) -> Arc<Self> {
        Arc::new(Self {
            next: AtomicU64::new(0),
            state: watch::Sender::new(HealthState {
                scope,
                parts: BTreeMap::new(),
                past: Health::default(),
                combined: Health::default(),
            }),
        })
    }

    /// Adds an entry for the reflector of a namespace; an empty name means all namespaces.
    pub(crate) fn reporter_of(self: &Arc<Self>, namespace: &str, metadata_only: bool) -> Reporter {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let part = Part {
            namespace: namespace.to_owned(),
            metadata_only,
            health: Health::default(),
        };
        self.change(|state| {
            state.parts.insert(number, part);
            true
        });
        Reporter {
            part: number,
            health_tracker: Arc::clone(self),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<HealthState> {
        self.state.subscribe()
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&HealthState) -> T) -> T {
        look(&self.state.borrow())
    }

    pub(crate) fn health(&self) -> Health {
        self.look(|state| state.combined.clone())
    }

    pub(crate) fn scope(&self) -> Scope {
        self.look(|state| state.scope.clone())
    }

    /// Changes the wanted scope. Returns true if it differs. New parts have no health until their reflectors start. Does nothing
    /// after the informer was ended.
    pub(crate) fn want(&self, other: impl FnOnce(&Scope) -> Option<Scope>) -> bool {
        self.change(|state| {
            let wanted = other(&state.scope).filter(|scope| *scope != state.scope);
            wanted.map(|scope| state.scope = scope).is_some()
        })
    }

    pub(crate) fn end(&self) {
        self.state.send_modify(|state| state.combined.ended = true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.look(|state| state.combined.ended)
    }

    /// Applies `change`. Returns true if it changed something.
    fn change(&self, change: impl FnOnce(&mut HealthState) -> bool) -> bool {
        self.state.send_if_modified(|state| {
            // An ended informer keeps its last state.
            let is_changed = !state.combined.ended && change(state);
            if is_changed {
                state.combine();
            }
            is_changed
        })
    }
}

impl Reporter {
    pub(crate) fn update(&self, update: impl FnOnce(&mut Health)) {
        self.health_tracker.change(|state| {
            let part = state.parts.get_mut(&self.part);
            part.map(|part| update(&mut part.health)).is_some()
        });
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.health_tracker.change(|state| state.remove(self.part));
    }
}

#[cfg(test)]
impl std::ops::Deref for HealthState {
    type Target = Health;

    fn deref(&self) -> &Health {
        &self.combined
    }
}

#[cfg(test)]
impl HealthTracker {
    /// Creates a board with the scope of all objects.
    pub(crate) fn new() -> Arc<Self> {
        Self::about(Scope::all())
    }

    /// Adds the entry of a single reflector of all objects.
    pub(crate) fn reporter(self: &Arc<Self>) -> Reporter {
        self.reporter_of("", false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_two() -> Arc<HealthTracker> {
        HealthTracker::about(Scope::all().namespace("a").namespace("b"))
    }

    #[test]
    fn an_informer_is_in_sync_when_all_parts_are() {
        let health_tracker = of_two();
        let (a, b) = (
            health_tracker.reporter_of("a", false),
            health_tracker.reporter_of("b", false),
        );
        a.update(|health| health.synced = true);
        assert!(!health_tracker.health().synced);
        b.update(|health| health.error = Some(Arc::new(WatchError::NotInstalled)));
        assert_eq!(
            health_tracker.health().error.as_deref(),
            Some(&WatchError::NotInstalled)
        );
        assert!(health_tracker.want(|_| Some(Scope::all().namespace("a"))));
        assert!(health_tracker.health().synced && health_tracker.health().error.is_none());
    }

    #[test]
    fn each_namespace_has_its_own_health() {
        let health_tracker = of_two();
        let look = |namespace: &str| health_tracker.look(|state| state.is_readable_in(namespace));
        let a = health_tracker.reporter_of("a", false);
        a.update(|health| health.synced = true);
        assert_eq!(["a", "b", ""].map(look), [true, false, false]);
        // The part of all namespaces answers for each namespace.
        health_tracker.want(|_| Some(Scope::all()));
        assert_eq!(["a", ""].map(look), [false, false]);
        let all = health_tracker.reporter_of("", false);
        assert_eq!(["a", ""].map(look), [false, false]);
        all.update(|health| health.synced = true);
        assert_eq!(["a", ""].map(look), [true, true]);
    }

    // C5
    #[test]
    fn a_read_of_all_namespaces_waits_for_each_of_them() {
        let health_tracker = of_two();
        let (a, b) = (
            health_tracker.reporter_of("a", false),
            health_tracker.reporter_of("b", false),
        );
        let settled = || health_tracker.look(|state| state.is_settled_in(""));
        let in_the_way = || health_tracker.look(|state| state.in_the_way_of("").cloned());
        a.update(|health| {
            // An error after the first sync does not prevent reads.
            health.synced = true;
            health.error = Some(Arc::new(WatchError::Panicked));
        });
        assert!(!settled());
        b.update(|health| health.error = Some(Arc::new(WatchError::NotInstalled)));
        assert!(settled());
        assert_eq!(in_the_way().as_deref(), Some(&WatchError::NotInstalled));
        b.update(|health| (health.synced, health.error) = (true, None));
        assert!(health_tracker.look(|state| state.is_readable_in("")) && in_the_way().is_none());
    }

    #[test]
    fn a_new_scope_is_not_in_sync_before_its_list() {
        let health_tracker = HealthTracker::about(Scope::all().metadata_only());
        let metadata = health_tracker.reporter_of("", true);
        metadata.update(|health| health.synced = true);
        assert!(health_tracker.health().synced);
        assert!(health_tracker.want(|scope| Some(scope.whole())));
        assert!(!health_tracker.health().synced);
        let whole = health_tracker.reporter_of("", false);
        whole.update(|health| health.synced = true);
        // Independent of whether the previous one is removed already.
        assert!(health_tracker.health().synced);
        drop(metadata);
        assert!(health_tracker.health().synced);
    }

    #[test]
    fn counters_do_not_decrease_when_a_part_ends() {
        let health_tracker = HealthTracker::new();
        let part = health_tracker.reporter();
        part.update(|health| (health.lists, health.watches) = (2, 3));
        drop(part);
        health_tracker.reporter().update(|health| health.lists += 1);
        let health = health_tracker.health();
        assert_eq!((health.lists, health.watches), (3, 3));
    }
}
