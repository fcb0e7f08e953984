// SPDX-License-Identifier: Apache-2.0
//! Clusters join one by one.
//!
//! A controller that works on every cluster does not wait for the slowest of them. So the keys of a cluster are held back
//! until all that the controller watches there is in sync, and then go into the queue together.
//!
//! # Guarantees
//! 1. No key of a cluster is worked on before every source has enqueued what is there in that cluster, wherever the key
//!    comes from.
//! 2. No key is lost when a gate opens, or when a run ends before it does.
//! 3. A gate that has opened stays open.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use steersman_core::Clock;
use steersman_queue::{Add, Added, Options, Queue, Shutdown};

use crate::{RequestKey, fleet::Member, hot_loop::HotLoops};

/// Where keys go: into the queue, or before the gate of a cluster that is not in sync yet.
pub(crate) struct Intake<R: RequestKey> {
    queue: Queue<R>,
    hot_loops: Arc<HotLoops<R>>,
    gate: Option<Arc<Gate<R>>>,
}

/// Holds back the keys of one cluster.
pub(crate) struct Gate<R: RequestKey> {
    /// A queue that hands nothing out, because it merges as queues do.
    waiting: Queue<R>,
    is_open: AtomicBool,
}

/// The gates of all clusters, in one run.
pub(crate) struct Gates<R: RequestKey> {
    queue: Queue<R>,
    hot_loops: Arc<HotLoops<R>>,
    clock: Arc<dyn Clock>,
    /// The sources that have to be in sync in each cluster, by their place among all.
    sources: BTreeSet<usize>,
    /// By the number of the cluster.
    gates: Mutex<BTreeMap<u64, Watched<R>>>,
}

/// A cluster and the sources that are not in sync in it.
struct Watched<R: RequestKey> {
    gate: Arc<Gate<R>>,
    missing: BTreeSet<usize>,
}

impl<R: RequestKey> Intake<R> {
    pub(crate) fn queue(&self) -> &Queue<R> {
        &self.queue
    }

    pub(crate) fn add(&self, key: R, how: Add) {
        self.hot_loops.added_by_others(&key);
        if let Some(gate) = self.gate.as_ref().filter(|gate| !gate.is_open()) {
            // Refused, it has opened just now.
            if gate.waiting.add_with(key.clone(), how) != Added::Refused {
                return;
            }
        }
        self.queue.add_with(key, how);
    }

    /// Whether a key that was to be worked on waits before the gate instead.
    fn holds_back(&self, key: &R, how: Add) -> bool {
        let gate = self.gate.as_ref().filter(|gate| !gate.is_open());
        // Refused, it has opened just now.
        gate.is_some_and(|gate| gate.waiting.add_with(key.clone(), how) != Added::Refused)
    }

    /// Takes out keys, wherever they wait.
    pub(crate) fn purge(&self, matches: impl Fn(&R) -> bool) {
        // The gate first: what passes it meanwhile is in the queue then.
        if let Some(gate) = &self.gate {
            gate.waiting.purge(&matches);
        }
        self.queue.purge(matches);
    }
}

impl<R: RequestKey> Gate<R> {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    fn open(&self, queue: &Queue<R>) {
        self.waiting.shut_down(Shutdown::Abandon);
        // Nothing is in flight, so that there is nothing to wait for.
        let waiting = self.waiting.drain(Duration::ZERO).now_or_never();
        queue.restore(waiting.unwrap_or_default());
        self.is_open.store(true, Ordering::Release);
    }
}

impl<R: RequestKey> Gates<R> {
    pub(crate) fn new(
        (queue, hot_loops): (Queue<R>, Arc<HotLoops<R>>),
        clock: Arc<dyn Clock>,
        sources: BTreeSet<usize>,
    ) -> Self {
        Self {
            queue,
            hot_loops,
            clock,
            sources,
            gates: Mutex::default(),
        }
    }

    /// Straight into the queue.
    pub(super) fn ungated(&self) -> Intake<R> {
        Intake {
            queue: self.queue.clone(),
            hot_loops: Arc::clone(&self.hot_loops),
            gate: None,
        }
    }

    /// Where the keys of a cluster go.
    pub(super) fn intake(&self, member: &Member) -> Intake<R> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = gates.entry(member.number()).or_insert_with(|| Watched {
            gate: Arc::new(Gate {
                waiting: Queue::new(Arc::clone(&self.clock), Options::new().paused()),
                is_open: AtomicBool::new(false),
            }),
            missing: self.sources.clone(),
        });
        Intake {
            gate: Some(Arc::clone(&watched.gate)),
            ..self.ungated()
        }
    }

    /// Whether a key that was to be worked on waits before the gate of its cluster instead: keys that somebody has enqueued,
    /// or that are left of another term, did not come through it.
    pub(crate) fn hold_back(&self, member: &Member, key: &R, how: Add) -> bool {
        self.intake(member).holds_back(key, how)
    }

    /// A source is in sync in a cluster.
    pub(super) fn in_sync(&self, member: &Member, source: usize) {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(watched) = gates.get_mut(&member.number()) else {
            return;
        };
        if watched.missing.remove(&source) && watched.missing.is_empty() {
            watched.gate.open(&self.queue);
        }
    }

    /// A cluster has gone.
    pub(super) fn forget(&self, member: &Member) {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.remove(&member.number());
    }
}

impl<R: RequestKey> Drop for Gates<R> {
    /// What waits is left for the next run.
    fn drop(&mut self) {
        let gates = self.gates.get_mut().unwrap_or_else(PoisonError::into_inner);
        let closed = gates.values().filter(|watched| !watched.gate.is_open());
        closed.for_each(|watched| watched.gate.open(&self.queue));
    }
}
