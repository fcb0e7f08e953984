// SPDX-License-Identifier: Apache-2.0
//! Controllers that wake themselves.
//!
//! A reconciler that writes something new into its own object at each reconcile, such as the time, is woken by that very
//! write, and so on for ever. A write that only completes what somebody else began ends the chain, because the reconcile
//! that follows it writes nothing.
//!
//! # Guarantees
//! 1. A chain is counted only as far as each reconcile was caused by the write of the one before, and wrote again.
//! 2. A change by somebody else ends it.
//! 3. From the eleventh in a chain on, the key waits: a second, then twice as long each time, a minute at most.
//! 4. It is said once for each chain.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use steersman_cache::Resource;
use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;
use steersman_queue::{Add, Queue};

use crate::RequestKey;

/// So many times a key may wake itself before it is slowed down.
const PATIENCE: u32 = 10;
const DELAY_MAX: Duration = Duration::from_secs(60);

/// The keys of a controller that write their own objects.
#[derive(Debug)]
pub(crate) struct HotLoops<R> {
    /// What a controller calls its own object, and the key of one. Without a primary kind nothing can be told.
    primary: Option<(Resource, ToRequest<R>)>,
    chains: Mutex<HashMap<R, Chain>>,
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
    slowed: AtomicU64,
}

pub(crate) type ToRequest<R> = fn(&ClusterName, ObjectKey) -> R;

#[derive(Debug, Default)]
struct Chain {
    /// The revision that was written last.
    written: String,
    /// That write has come back and woken the key.
    woken: bool,
    /// The reconcile under way was caused by that, and has written nothing yet.
    caused: bool,
    length: u32,
}

/// What is to be done about a key that woke itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slowed {
    pub(crate) delay: Duration,
    /// It was not said yet.
    pub(crate) is_first: bool,
}

impl<R: RequestKey> HotLoops<R> {
    pub(crate) fn new(primary: Option<(Resource, ToRequest<R>)>) -> Self {
        Self {
            primary,
            chains: Mutex::default(),
            count: AtomicUsize::new(0),
            slowed: AtomicU64::new(0),
        }
    }

    /// The controller wrote an object.
    pub(crate) fn wrote(&self, resource: &Resource, cluster: &ClusterName, key: ObjectKey, revision: &str) {
        let Some((_, to_request)) = self.primary.as_ref().filter(|(primary, _)| primary == resource) else {
            return;
        };
        let mut chains = self.lock();
        let chain = chains.entry(to_request(cluster, key)).or_default();
        if std::mem::take(&mut chain.caused) {
            chain.length += 1;
        }
        revision.clone_into(&mut chain.written);
        self.count.store(chains.len(), Ordering::Relaxed);
    }

    /// An object of the primary kind has this revision now. Says if that is the controller's own doing, for too long.
    pub(crate) fn woke(
        &self,
        cluster: &ClusterName,
        key: impl FnOnce() -> ObjectKey,
        revision: &str,
    ) -> Option<Slowed> {
        if self.is_empty() {
            return None;
        }
        let (_, to_request) = self.primary.as_ref()?;
        let key = to_request(cluster, key());
        let mut chains = self.lock();
        let chain = chains.get_mut(&key)?;
        if chain.written != revision {
            chains.remove(&key);
            self.count.store(chains.len(), Ordering::Relaxed);
            return None;
        }
        chain.woken = true;
        let over = chain.length.checked_sub(PATIENCE)?;
        Some(Slowed {
            delay: Duration::from_secs(1 << over.min(6)).min(DELAY_MAX),
            is_first: over == 0,
        })
    }

    /// Lets a key wait that woke itself.
    pub(crate) fn slow(&self, slowed: &Slowed, (cluster, key): (&ClusterName, ObjectKey), queue: &Queue<R>) {
        let Some((resource, to_request)) = &self.primary else {
            return;
        };
        if slowed.is_first {
            tracing::warn!(
                controller = queue.name(),
                %cluster,
                kind = %resource,
                %key,
                "this object wakes its own controller by what that writes into it: write only what differs; \
                 it is slowed down"
            );
        }
        self.slowed.fetch_add(1, Ordering::Relaxed);
        queue.add_with(to_request(cluster, key), Add::new().after(slowed.delay));
    }

    /// How often keys were slowed down since this was asked last.
    pub(crate) fn take_slowed(&self) -> u64 {
        self.slowed.swap(0, Ordering::Relaxed)
    }

    /// A reconcile begins.
    pub(crate) fn began(&self, key: &R) {
        if self.is_empty() {
            return;
        }
        if let Some(chain) = self.lock().get_mut(key) {
            chain.caused = std::mem::take(&mut chain.woken);
        }
    }

    /// A reconcile ended. If it followed from a write and wrote nothing, all is well.
    pub(crate) fn ended(&self, key: &R) {
        if self.is_empty() {
            return;
        }
        let mut chains = self.lock();
        if chains.get(key).is_some_and(|chain| chain.caused && !chain.woken) {
            chains.remove(key);
            self.count.store(chains.len(), Ordering::Relaxed);
        }
    }

    /// Forgets everything: what comes next is another run.
    pub(crate) fn clear(&self) {
        self.lock().clear();
        self.count.store(0, Ordering::Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<R, Chain>> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    fn webs() -> Resource {
        Resource::new("example.com", "v1", "Web", "webs")
    }

    fn loops() -> HotLoops<Request> {
        HotLoops::new(Some((webs(), |cluster, key| Request::new(cluster.clone(), key))))
    }

    fn key() -> ObjectKey {
        ObjectKey::new("ns", "a")
    }

    /// One reconcile, which writes this revision if there is one, and the event that follows.
    fn reconcile(loops: &HotLoops<Request>, writes: Option<u32>) -> Option<Slowed> {
        let cluster = ClusterName::default();
        let request = Request::new(cluster.clone(), key());
        loops.began(&request);
        if let Some(revision) = writes {
            loops.wrote(&webs(), &cluster, key(), &revision.to_string());
        }
        loops.ended(&request);
        writes.and_then(|revision| loops.woke(&cluster, key, &revision.to_string()))
    }

    // R149
    #[test]
    fn guarantee_3_a_key_that_wakes_itself_waits_longer_and_longer() {
        let loops = loops();
        let slowed: Vec<_> = (1..=20)
            .map(|revision| reconcile(&loops, Some(revision)))
            .collect();
        assert!(slowed[..10].iter().all(Option::is_none), "{slowed:?}");
        let delays: Vec<_> = slowed[10..]
            .iter()
            .flatten()
            .map(|slowed| slowed.delay.as_secs())
            .collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(
            slowed.iter().flatten().filter(|slowed| slowed.is_first).count(),
            1
        );
    }

    #[test]
    fn guarantee_1_writes_that_complete_something_are_no_loop() {
        let loops = loops();
        for round in 0..100 {
            // Somebody changes the object, the controller writes once, is woken by that, and writes nothing.
            assert_eq!(
                loops.woke(&ClusterName::default(), key, &(round * 10).to_string()),
                None
            );
            assert_eq!(reconcile(&loops, Some(round * 10 + 1)), None);
            assert_eq!(reconcile(&loops, None), None);
        }
        assert!(loops.is_empty());
    }

    #[test]
    fn guarantee_2_a_change_by_somebody_else_ends_a_chain() {
        let loops = loops();
        for revision in 1..=11 {
            reconcile(&loops, Some(revision));
        }
        assert_eq!(loops.woke(&ClusterName::default(), key, "99"), None);
        assert_eq!(reconcile(&loops, Some(100)), None);
    }

    #[test]
    fn an_event_that_comes_while_the_reconcile_is_under_way_counts_for_the_next() {
        let loops = loops();
        let cluster = ClusterName::default();
        let request = Request::new(cluster.clone(), key());
        let mut slowed = 0;
        for revision in 1..=20 {
            loops.began(&request);
            loops.wrote(&webs(), &cluster, key(), &revision.to_string());
            slowed += u32::from(loops.woke(&cluster, key, &revision.to_string()).is_some());
            loops.ended(&request);
        }
        assert_eq!(slowed, 10);
    }
}
