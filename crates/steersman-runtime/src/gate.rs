// SPDX-License-Identifier: Apache-2.0
//! Gates hold back the keys of a cluster until it is in sync.
//!
//! A controller that works on every cluster does not wait for the slowest cluster. Its keys of a cluster are held back
//! until everything that the controller watches there is in sync, and then enter the queue together.
//!
//! # Guarantees
//! 1. No key of a cluster is reconciled before every source has enqueued the objects that exist in that cluster, whichever
//!    source added the key.
//! 2. No key is lost when a gate opens, or when a run ends before the gate opens. A key that waits behind a gate keeps its
//!    failures.
//! 3. A gate that has opened stays open.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use steersman_core::{Clock, Mutex};
use steersman_queue::{Add, Added, Item, Options, Queue, Shutdown};

use crate::{RequestKey, cluster_set::Member};

/// Sink for keys: the queue, or the gate of a cluster that is not in sync yet.
pub(crate) struct EnqueueSink<R: RequestKey> {
    queue: Queue<R>,
    gate: Option<Arc<Gate<R>>>,
}

/// Holds back the keys of one cluster.
pub(crate) struct Gate<R: RequestKey> {
    /// A queue that hands out nothing; used because it merges keys.
    waiting: Queue<R>,
    is_open: AtomicBool,
}

/// The gates of all clusters in one run.
pub(crate) struct Gates<R: RequestKey> {
    queue: Queue<R>,
    clock: Arc<dyn Clock>,
    /// The sources that have to be in sync in each cluster, by their index.
    sources: BTreeSet<usize>,
    /// By the number of the cluster.
    gates: Mutex<BTreeMap<u64, Watched<R>>>,
}

/// A cluster and the sources that are not in sync there.
struct Watched<R: RequestKey> {
    gate: Arc<Gate<R>>,
    missing: BTreeSet<usize>,
}

impl<R: RequestKey> EnqueueSink<R> {
    pub(crate) fn queue(&self) -> &Queue<R> {
        &self.queue
    }

    pub(crate) fn add(&self, key: R, how: Add) {
        if let Some(gate) = self.gate.as_ref().filter(|gate| !gate.is_open()) {
            // A refused add means that the gate has just opened.
            if gate.waiting.add_with(key.clone(), how) != Added::Refused {
                return;
            }
        }
        self.queue.add_with(key, how);
    }

    /// Moves a key that was already handed out back behind the gate, with its failures, if the gate is closed. A key that was
    /// enqueued directly, or is left from another term, has not passed the gate. Otherwise returns the key.
    pub(crate) fn hold_back(&self, item: Item<R>) -> Option<Item<R>> {
        let Some(gate) = self.gate.as_ref().filter(|gate| !gate.is_open()) else {
            return Some(item);
        };
        let status = item.withdraw();
        if gate.waiting.restore(status.clone()) == 0 {
            self.queue.restore(status); // The gate has opened meanwhile, or the key was purged.
        }
        None
    }

    /// Removes a key of this cluster from a paused queue, if all its adds allow that.
    pub(crate) fn retract(&self, key: &R) -> bool {
        // The queue of a gate is always paused, also on the leader.
        if !self.queue.is_paused() {
            return false;
        }
        self.gate.as_ref().is_some_and(|gate| gate.waiting.retract(key)) | self.queue.retract(key)
    }

    /// Removes keys from the gate and the queue.
    pub(crate) fn purge(&self, matches: impl Fn(&R) -> bool) {
        // The gate first: a key that passes it meanwhile is then found in the queue.
        if let Some(gate) = &self.gate {
            gate.waiting.purge(&matches);
        }
        self.queue.purge(matches);
    }
}

impl<R: RequestKey> Gate<R> {
    fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            waiting: Queue::new(Arc::clone(clock), Options::new().paused()),
            is_open: AtomicBool::new(false),
        }
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    fn open(&self, queue: &Queue<R>) {
        self.waiting.shut_down(Shutdown::Abandon);
        // Nothing is in flight, so the drain does not wait.
        let waiting = self.waiting.drain(Duration::ZERO).now_or_never();
        queue.restore(waiting.unwrap_or_default());
        self.is_open.store(true, Ordering::Release);
    }
}

impl<R: RequestKey> Gates<R> {
    pub(crate) fn new(queue: Queue<R>, clock: Arc<dyn Clock>, sources: BTreeSet<usize>) -> Self {
        Self {
            queue,
            clock,
            sources,
            gates: Mutex::default(),
        }
    }

    /// Returns a sink without a gate.
    pub(crate) fn ungated(&self) -> EnqueueSink<R> {
        EnqueueSink {
            queue: self.queue.clone(),
            gate: None,
        }
    }

    /// Returns the sink for the keys of a cluster.
    pub(crate) fn sink(&self, member: &Member) -> EnqueueSink<R> {
        let mut gates = self.gates.lock();
        let watched = gates.entry(member.number()).or_insert_with(|| Watched {
            gate: Arc::new(Gate::new(&self.clock)),
            missing: self.sources.clone(),
        });
        EnqueueSink {
            gate: Some(Arc::clone(&watched.gate)),
            ..self.ungated()
        }
    }

    /// Notes that a source is in sync in a cluster.
    pub(crate) fn in_sync(&self, member: &Member, source: usize) {
        let mut gates = self.gates.lock();
        let Some(watched) = gates.get_mut(&member.number()) else {
            return;
        };
        if watched.missing.remove(&source) && watched.missing.is_empty() {
            watched.gate.open(&self.queue);
        }
    }

    /// Drops the gate of a removed cluster.
    pub(crate) fn forget(&self, member: &Member) {
        let mut gates = self.gates.lock();
        gates.remove(&member.number());
    }
}

impl<R: RequestKey> Drop for Gates<R> {
    /// Returns waiting keys to the queue for the next run.
    fn drop(&mut self) {
        let gates = self.gates.get_mut();
        let closed = gates.values().filter(|watched| !watched.gate.is_open());
        closed.for_each(|watched| watched.gate.open(&self.queue));
    }
}

#[cfg(test)]
mod tests {
    use steersman_cache::{Revision, Store, StoreOptions, store};
    use steersman_cluster::ClusterName;
    use steersman_core::{ObjectKey, TestClock};

    use super::*;
    use crate::{Request, owner::Primaries, source::Primary};

    /// A sink with a closed gate.
    fn gated(queue: &Queue<Request>, clock: &Arc<dyn Clock>) -> EnqueueSink<Request> {
        EnqueueSink {
            queue: queue.clone(),
            gate: Some(Arc::new(Gate::new(clock))),
        }
    }

    fn waiting(sink: &EnqueueSink<Request>) -> usize {
        sink.gate.as_ref().unwrap().waiting.depth().warm()
    }

    /// A primary source whose stores are in sync and empty.
    fn primary(clusters: &[&str]) -> (Primary<Request>, Vec<Arc<Store>>) {
        let (objects, (mut writer, store)) = (Arc::<Primaries>::default(), store(StoreOptions::new()));
        writer.set_revision(&Revision::new("1"));
        let shown = clusters.iter().map(|&name| objects.show(&name.into(), &store));
        let to_request = |cluster: &ClusterName, key| Request::new(cluster.clone(), key);
        (Primary::new(&objects, to_request), shown.collect())
    }

    fn delete(primary: &Primary<Request>, cluster: &str, number: usize, sink: &EnqueueSink<Request>) {
        let (cluster, key) = (
            ClusterName::from(cluster),
            ObjectKey::new("ns", &format!("job-{number}")),
        );
        primary.deleted(&cluster, key.clone(), sink);
        sink.add(Request::new(cluster, key), Add::new().retractable());
    }

    // D3
    #[test]
    fn a_leader_keeps_the_keys_of_all_deletions_behind_a_gate() {
        let clock: Arc<dyn Clock> = Arc::new(TestClock::new());
        let queue = Queue::new(Arc::clone(&clock), Options::new());
        let ((primary, _shown), sink) = (primary(&["a"]), gated(&queue, &clock));
        (0..3000).for_each(|number| delete(&primary, "a", number, &sink));
        assert_eq!(waiting(&sink), 3000);
    }

    // D3
    #[test]
    fn a_standby_bounds_the_keys_of_each_cluster_alone() {
        let clock: Arc<dyn Clock> = Arc::new(TestClock::new());
        let queue = Queue::new(Arc::clone(&clock), Options::new().paused());
        let (primary, _shown) = primary(&["a", "b"]);
        let (a, b) = (gated(&queue, &clock), gated(&queue, &clock));
        (0..2500).for_each(|number| delete(&primary, "a", number, &a));
        assert_eq!(waiting(&a), 1500);
        (0..2500).for_each(|number| delete(&primary, "b", number, &b));
        assert_eq!((waiting(&a), waiting(&b)), (1500, 1500));
        let first = |cluster: &str| Request::new(cluster.into(), ObjectKey::new("ns", "job-1000"));
        let has = |sink: &EnqueueSink<Request>, key: &Request| {
            sink.gate.as_ref().unwrap().waiting.status(key).is_some()
        };
        assert!(has(&a, &first("a")) && has(&b, &first("b")));
        assert_eq!(queue.depth().warm(), 0);
    }
}
