// SPDX-License-Identifier: Apache-2.0
//! Figures about an informer. Reading them waits for no handler.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use steersman_core::MonotonicTime;

use crate::{Resource, Scope, WatchError};

/// Figures about an informer, for metrics. What counts something never goes back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The kind that it is about.
    pub resource: Resource,
    /// The part of it.
    pub scope: Scope,
    /// Whether a whole list was handed on, and every change since.
    pub synced: bool,
    /// What keeps it from being in step now.
    pub trouble: Option<Arc<WatchError>>,
    /// Objects in the store.
    pub objects: usize,
    /// Bytes of JSON that they take.
    pub bytes: usize,
    /// How much of that JSON is kept decoded besides.
    pub decoded_bytes: usize,
    /// Events that handlers were called for, or would have been.
    pub events: u64,
    /// The time since the server last said something, be it that nothing has changed.
    pub silent_for: Option<Duration>,
    /// Objects that are no Kubernetes objects, and were left out.
    pub invalid: u64,
    /// How often an object did not have the shape of the type that somebody asked for, or an index function or a
    /// transform panicked over it.
    pub decode_failures: u64,
    /// Lists that were begun, the first one included.
    pub lists: u64,
    /// Lists that were begun after a first one was complete: the history had a hole, or it lists at intervals.
    pub relists: u64,
    /// Watches that were opened, the first one included.
    pub watches: u64,
    /// Watches that were opened after the first: servers end one every few minutes, and more of them are broken ones.
    pub watch_restarts: u64,
    /// Calls of handlers that took too long, by the handler's name, in its order.
    pub slow_handlers: Vec<(String, u64)>,
    /// Calls of handlers that ended in a panic, by the handler's name, in its order.
    pub panicked_handlers: Vec<(String, u64)>,
}

/// What dispatch counts.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) events: AtomicU64,
    pub(super) invalid: AtomicU64,
    last_event: Mutex<Option<MonotonicTime>>,
    handlers: Mutex<BTreeMap<String, Arc<HandlerFigures>>>,
}

/// What is counted of the handlers of one name, also when they have ended.
#[derive(Debug, Default)]
pub(super) struct HandlerFigures {
    pub(super) slow: AtomicU64,
    pub(super) panicked: AtomicU64,
}

impl Figures {
    pub(super) fn of_handler(&self, name: &str) -> Arc<HandlerFigures> {
        let mut handlers = lock(&self.handlers);
        // Names that nobody uses any more stay only if there is something to tell of them.
        handlers.retain(|_, figures| Arc::strong_count(figures) > 1 || figures.tells_something());
        Arc::clone(handlers.entry(name.to_owned()).or_default())
    }

    pub(super) fn heard(&self, now: MonotonicTime) {
        *lock(&self.last_event) = Some(now);
    }

    pub(super) fn last_event(&self) -> Option<MonotonicTime> {
        *lock(&self.last_event)
    }

    /// The handlers of which `count` tells something.
    pub(super) fn handlers(&self, count: impl Fn(&HandlerFigures) -> &AtomicU64) -> Vec<(String, u64)> {
        let handlers = lock(&self.handlers);
        let counts = handlers
            .iter()
            .map(|(name, figures)| (name, count(figures).load(Relaxed)));
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.clone(), count))
            .collect()
    }
}

impl HandlerFigures {
    fn tells_something(&self) -> bool {
        self.slow.load(Relaxed) + self.panicked.load(Relaxed) > 0
    }
}

/// What is locked here is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_tells_nothing_is_forgotten_with_its_handler() {
        let figures = Figures::default();
        let (quiet, slow) = (figures.of_handler("quiet"), figures.of_handler("slow"));
        slow.slow.fetch_add(2, Relaxed);
        drop((quiet, slow));
        let again = figures.of_handler("slow");
        again.slow.fetch_add(1, Relaxed);
        assert_eq!(lock(&figures.handlers).len(), 1);
        assert_eq!(figures.handlers(|of| &of.slow), [("slow".to_owned(), 3)]);
        assert_eq!(figures.handlers(|of| &of.panicked), []);
    }
}
