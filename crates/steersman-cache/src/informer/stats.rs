// SPDX-License-Identifier: Apache-2.0
//! Counters about an informer. Reading them does not wait for handlers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use steersman_core::{MonotonicTime, Mutex};

use crate::{Resource, Scope, WatchError};

/// Counters about an informer, for metrics. Counters never decrease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The kind that the informer watches.
    pub resource: Resource,
    /// The scope that the informer watches.
    pub scope: Scope,
    /// True if a whole list and every change since were delivered.
    pub synced: bool,
    /// The error that currently keeps the informer from being in sync.
    pub error: Option<Arc<WatchError>>,
    /// Objects in the store.
    pub objects: usize,
    /// Bytes of JSON of these objects.
    pub bytes: usize,
    /// Bytes of that JSON that are also kept decoded.
    pub decoded_bytes: usize,
    /// Events dispatched to handlers, counted also without handlers.
    pub events: u64,
    /// Time since the server last sent an event, a bookmark or the end of a list.
    pub silent_for: Option<Duration>,
    /// Items skipped because they are no Kubernetes objects.
    pub invalid: u64,
    /// Failures to decode an object as a requested type, and panics of index functions and transforms.
    pub decode_failures: u64,
    /// Lists started, including the first.
    pub lists: u64,
    /// Lists started after the first complete list: because the watch history had a gap, or at the relist interval.
    pub relists: u64,
    /// Watches opened, including the first.
    pub watches: u64,
    /// Watches opened after the first. Servers close a watch every few minutes; a higher rate means broken watches.
    pub watch_restarts: u64,
    /// Slow handler calls, by handler name, sorted.
    pub slow_handlers: Vec<(String, u64)>,
    /// Panicked handler calls, by handler name, sorted.
    pub panicked_handlers: Vec<(String, u64)>,
}

/// Counters of the dispatch.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) events: AtomicU64,
    pub(super) invalid: AtomicU64,
    last_event: Mutex<Option<MonotonicTime>>,
    handlers: Mutex<BTreeMap<String, Arc<HandlerCounters>>>,
}

/// Counters of all handlers of one name, including handlers that have ended.
#[derive(Debug, Default)]
pub(super) struct HandlerCounters {
    pub(super) slow: AtomicU64,
    pub(super) panicked: AtomicU64,
}

impl Counters {
    pub(super) fn of_handler(&self, name: &str) -> Arc<HandlerCounters> {
        let mut handlers = self.handlers.lock();
        // Drops unused names, unless a counter is above zero.
        handlers.retain(|_, counters| Arc::strong_count(counters) > 1 || counters.tells_something());
        Arc::clone(handlers.entry(name.to_owned()).or_default())
    }

    pub(super) fn heard(&self, now: MonotonicTime) {
        *self.last_event.lock() = Some(now);
    }

    pub(super) fn last_event(&self) -> Option<MonotonicTime> {
        *self.last_event.lock()
    }

    /// Returns the handlers whose `count` is above zero.
    pub(super) fn handlers(&self, count: impl Fn(&HandlerCounters) -> &AtomicU64) -> Vec<(String, u64)> {
        let handlers = self.handlers.lock();
        let counts = handlers
            .iter()
            .map(|(name, counters)| (name, count(counters).load(Relaxed)));
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.clone(), count))
            .collect()
    }
}

impl HandlerCounters {
    fn tells_something(&self) -> bool {
        self.slow.load(Relaxed) + self.panicked.load(Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_empty_counters_with_their_handler() {
        let counters = Counters::default();
        let (quiet, slow) = (counters.of_handler("quiet"), counters.of_handler("slow"));
        slow.slow.fetch_add(2, Relaxed);
        drop((quiet, slow));
        let again = counters.of_handler("slow");
        again.slow.fetch_add(1, Relaxed);
        assert_eq!(counters.handlers.lock().len(), 1);
        assert_eq!(counters.handlers(|of| &of.slow), [("slow".to_owned(), 3)]);
        assert_eq!(counters.handlers(|of| &of.panicked), []);
    }
}
