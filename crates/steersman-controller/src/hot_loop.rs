// SPDX-License-Identifier: Apache-2.0
//! Controllers that wake themselves.
//!
//! A reconciler that writes something new into its own object at each reconcile, such as the time, is woken by that very
//! write, and so on for ever. A write that only completes what somebody else began ends the chain, because the reconcile
//! that follows it writes nothing.
//!
//! # Guarantees
//! 1. A chain is counted only as far as each reconcile was caused by a write of the one before and by nothing else, and
//!    wrote again.
//! 2. A change by somebody else ends it, and is reconciled at once.
//! 3. When a chain has ten links, the key waits: a second, then twice as long each time, a minute at most.
//! 4. It is said once for each chain.
//! 5. Nothing is remembered of a key whose last reconcile wrote nothing, whose object is gone, or which nobody is about to
//!    reconcile when its object is written.
//!
//! # Not seen
//! What a reconcile writes into objects of the same kind whose keys are not in the queue, such as one that it makes.
//!
//! What is written by the raw client ([`Context::kube`](crate::Context::kube)), whose answers nobody reads on their way, and
//! by the client of another cluster ([`Context::client_of`](crate::Context::client_of)), where the keys are others. Such
//! a loop is as quick as its reconciles are.
//!
//! # Before and after
//! The event of a write often comes before the answer to it. So a revision that comes while the key is in flight and that
//! nobody knows is not judged before the reconcile has ended: only then it is certain whose it is. Nothing is delayed by
//! that, since a key in flight is not handed out again.

mod chain;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use steersman_cache::{Event, Object, Resource};
use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;
use steersman_queue::{Add, Added, Queue};

use self::chain::{Chain, Ended, Verdict};
use crate::{Enqueue, Handler, IntoRequest, Occurrence, RequestKey, controller::LateSeries};

/// The keys of a controller that write their own objects.
#[derive(Debug)]
pub(crate) struct HotLoops<R> {
    /// What a controller calls its own object, and the key of one. Without a primary kind nothing can be told.
    primary: Option<(Resource, ToRequest<R>)>,
    chains: Mutex<HashMap<R, Chain>>,
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
    series: Arc<LateSeries>,
}

pub(crate) type ToRequest<R> = fn(&ClusterName, ObjectKey) -> R;

impl<R: RequestKey> HotLoops<R> {
    pub(crate) fn new(primary: Option<(Resource, ToRequest<R>)>, series: Arc<LateSeries>) -> Self {
        Self {
            primary,
            chains: Mutex::default(),
            count: AtomicUsize::new(0),
            series,
        }
    }

    /// The primary kind of the controller, if it has one.
    pub(crate) fn primary(&self) -> Option<&Resource> {
        self.primary.as_ref().map(|(resource, _)| resource)
    }

    /// Whether the controller has a primary kind.
    pub(crate) fn has_primary(&self) -> bool {
        self.primary.is_some()
    }

    /// The controller wrote an object. One whose key is not in the queue is not its reconcile's own, and nobody might tell
    /// of its end: it may not even be one of those that are watched.
    pub(crate) fn wrote(
        &self,
        resource: &Resource,
        cluster: &ClusterName,
        object: &Object,
        queue: &Queue<R>,
    ) {
        let Some((_, to_request)) = self.primary.as_ref().filter(|(primary, _)| primary == resource) else {
            return;
        };
        let key = to_request(cluster, object.key());
        if queue.status(&key).is_some() {
            self.change(|chains| chains.entry(key).or_default().wrote(object.resource_version()));
        }
    }

    /// An object of the primary kind has this revision now. If that is the controller's own doing, or may be, this sees to
    /// it that the key is enqueued: at once, or later if that went on for too long. Says whether it did.
    fn changed(&self, cluster: &ClusterName, object: &Object, queue: &Queue<R>) -> bool {
        let Some((_, to_request)) = &self.primary else {
            return false;
        };
        let key = to_request(cluster, object.key());
        self.change(|chains| {
            let Some(chain) = chains.get_mut(&key) else {
                return false;
            };
            match chain.came(object.resource_version()) {
                Verdict::Own => {
                    let added = self.enqueue(&key, chain, queue);
                    chain.woken(added == Added::Queued);
                }
                Verdict::Undecided => {
                    let added = queue.add(key.clone());
                    chain.maybe_woken(added == Added::Queued);
                }
                Verdict::Held => {}
                Verdict::Foreign => {
                    chains.remove(&key);
                    return false;
                }
            }
            true
        })
    }

    /// Somebody else wants the key to be reconciled, such as one of its children.
    pub(crate) fn added_by_others(&self, key: &R) {
        if self.is_empty() {
            return;
        }
        if let Some(chain) = self.lock().get_mut(key) {
            chain.added_by_others();
        }
    }

    /// A reconcile begins.
    pub(crate) fn began(&self, key: &R) {
        if self.is_empty() {
            return;
        }
        if let Some(chain) = self.lock().get_mut(key) {
            chain.began();
        }
    }

    /// A reconcile ended. If it followed from a write and wrote nothing, all is well.
    pub(crate) fn ended(&self, key: &R, queue: &Queue<R>) {
        if self.is_empty() {
            return;
        }
        self.change(|chains| {
            let Some(chain) = chains.get_mut(key) else { return };
            match chain.ended() {
                Ended::GoesOn { held } => {
                    if held {
                        self.enqueue(key, chain, queue);
                    }
                }
                Ended::Over { held } => {
                    chains.remove(key);
                    if held {
                        queue.add(key.clone());
                    }
                }
            }
        });
    }

    /// Enqueues a key that woke itself, and lets it wait if it has done so for too long.
    fn enqueue(&self, key: &R, chain: &Chain, queue: &Queue<R>) -> Added {
        let (Some(slowed), Some((resource, _))) = (chain.slowed(), &self.primary) else {
            return queue.add(key.clone());
        };
        let added = queue.add_with(key.clone(), Add::new().after(slowed.delay));
        if added != Added::Queued {
            return added; // It is in the queue for another reason.
        }
        if let Some(series) = self.series.get() {
            series.hot_loops.inc();
        }
        if slowed.is_first {
            tracing::warn!(
                controller = queue.name(),
                cluster = key.cluster().map(tracing::field::display),
                kind = %resource,
                %key,
                "this object wakes its own controller by what that writes into it: write only what differs; \
                 it is slowed down"
            );
        }
        added
    }

    /// Forgets a key whose object is gone.
    pub(crate) fn forget(&self, key: &R) {
        if !self.is_empty() {
            self.change(|chains| chains.remove(key));
        }
    }

    /// Forgets all keys that are meant.
    pub(crate) fn forget_all(&self, is_meant: impl Fn(&R) -> bool) {
        if !self.is_empty() {
            self.change(|chains| chains.retain(|key, _| !is_meant(key)));
        }
    }

    /// Forgets everything: what comes next is another run.
    pub(crate) fn clear(&self) {
        self.change(HashMap::clear);
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<R, Chain>) -> T) -> T {
        let mut chains = self.lock();
        let result = change(&mut chains);
        self.count.store(chains.len(), Ordering::Relaxed);
        result
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<R, Chain>> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Enqueues the object that changed, as [`same_object`](crate::same_object) does, and slows those down that wake
/// themselves.
pub(crate) struct Primary<R>(pub(crate) Arc<HotLoops<R>>);

impl<T, R: RequestKey> Handler<T, R> for Primary<R>
where
    ObjectKey: IntoRequest<R>,
{
    fn handle(&self, occurrence: &Occurrence<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        let (cluster, object) = (occurrence.cluster(), occurrence.object());
        let is_seen_to = match occurrence.event() {
            _ if self.0.is_empty() => false,
            Event::Updated { .. } if !occurrence.is_replay() => {
                self.0.changed(cluster, object, enqueue.queue())
            }
            _ => false,
        };
        if !is_seen_to {
            enqueue.add(object.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use steersman_core::TestClock;
    use steersman_queue::Options;

    use super::*;
    use crate::Request;

    /// A controller that is reconciled by hand.
    struct Loop {
        hot: HotLoops<Request>,
        queue: Queue<Request>,
        clock: TestClock,
        revision: u32,
    }

    fn webs() -> Resource {
        Resource::new("example.com", "v1", "Web", "webs")
    }

    fn object(revision: u32) -> Object {
        let whole =
            json!({"metadata": {"name": "a", "namespace": "ns", "resourceVersion": revision.to_string()}});
        Object::from_slice(&serde_json::to_vec(&whole).unwrap()).unwrap()
    }

    fn key() -> Request {
        Request::new(ClusterName::default(), ObjectKey::new("ns", "a"))
    }

    impl Loop {
        fn new() -> Self {
            let clock = TestClock::new();
            Self {
                hot: HotLoops::new(
                    Some((webs(), |cluster, key| Request::new(cluster.clone(), key))),
                    Arc::default(),
                ),
                queue: Queue::new(Arc::new(clock.clone()), Options::new()),
                clock,
                revision: 0,
            }
        }

        fn next(&mut self) -> u32 {
            self.revision += 1;
            self.revision
        }

        fn answered(&self, revision: u32) {
            self.hot
                .wrote(&webs(), &ClusterName::default(), &object(revision), &self.queue);
        }

        fn event(&self, revision: u32) {
            let is_seen_to = self
                .hot
                .changed(&ClusterName::default(), &object(revision), &self.queue);
            if !is_seen_to {
                self.queue.add(key());
            }
        }

        /// Waits for the key if need be, and says how long; then reconciles.
        fn reconcile(&mut self, work: impl FnOnce(&mut Self)) -> Option<Duration> {
            let before = steersman_core::Clock::now(&self.clock);
            let item = loop {
                match self.queue.try_next() {
                    Some(item) => break item,
                    None if self.queue.depth().delayed() == 0 => return None,
                    None => self.clock.advance(Duration::from_secs(1)),
                }
            };
            let waited = steersman_core::Clock::now(&self.clock).saturating_since(before);
            self.hot.began(item.key());
            work(self);
            self.hot.ended(item.key(), &self.queue);
            item.done();
            Some(waited)
        }

        /// How long each of so many reconciles waits, which all do this.
        fn waits(&mut self, count: usize, work: impl Fn(&mut Self)) -> Vec<u64> {
            self.queue.add(key());
            let waits = (0..count).map_while(|_| self.reconcile(&work));
            waits.map(|wait| wait.as_secs()).collect()
        }
    }

    /// One that writes once, whose event comes after the reconcile.
    fn write(this: &mut Loop) {
        let revision = this.next();
        this.answered(revision);
        this.event(revision);
    }

    const SLOWER_AND_SLOWER: [u64; 20] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60];

    // R149
    #[test]
    fn guarantee_3_a_key_that_wakes_itself_waits_longer_and_longer() {
        let mut this = Loop::new();
        assert_eq!(this.waits(20, write), SLOWER_AND_SLOWER);
    }

    // R149
    #[test]
    fn guarantee_3_also_if_events_come_before_the_answers() {
        let mut this = Loop::new();
        let waits = this.waits(21, |this| {
            let revision = this.next();
            this.event(revision);
            this.answered(revision);
        });
        // Of the first write nobody can know whose it is.
        assert_eq!(waits[1..], SLOWER_AND_SLOWER);
    }

    // R149
    #[test]
    fn guarantee_3_also_if_each_reconcile_writes_twice() {
        for early in [false, true] {
            let mut this = Loop::new();
            let waits = this.waits(20, |this| {
                let (first, second) = (this.next(), this.next());
                this.answered(first);
                if early {
                    this.event(first);
                    this.answered(second);
                } else {
                    this.answered(second);
                    this.event(first);
                }
                this.event(second);
            });
            assert_eq!(waits, SLOWER_AND_SLOWER, "early: {early}");
        }
    }

    #[test]
    fn guarantee_1_writes_that_complete_something_are_no_loop() {
        let mut this = Loop::new();
        for _ in 0..100 {
            // Somebody changes the object, the controller writes once, is woken by that, and writes nothing.
            let foreign = this.next();
            this.event(foreign);
            assert_eq!(this.reconcile(write), Some(Duration::ZERO));
            assert_eq!(this.reconcile(|_| {}), Some(Duration::ZERO));
            assert!(this.queue.try_next().is_none());
        }
        assert!(this.hot.is_empty());
    }

    #[test]
    fn guarantee_1_one_who_is_woken_by_others_as_well_is_in_no_loop() {
        let child = |this: &mut Loop| {
            this.hot.added_by_others(&key());
            this.queue.add(key());
        };
        let before = |this: &mut Loop| {
            child(this);
            write(this);
        };
        let behind = |this: &mut Loop| {
            write(this);
            child(this);
        };
        assert_eq!(Loop::new().waits(50, before), [0; 50]);
        assert_eq!(Loop::new().waits(50, behind), [0; 50]);
    }

    #[test]
    fn guarantee_2_a_change_by_somebody_else_ends_a_chain_and_is_not_delayed() {
        let mut this = Loop::new();
        this.waits(15, write);
        let foreign = this.next();
        this.event(foreign);
        assert_eq!(this.reconcile(write), Some(Duration::ZERO));
        assert_eq!(this.reconcile(write), Some(Duration::ZERO));
    }

    #[test]
    fn guarantee_2_also_while_a_reconcile_is_under_way() {
        let mut this = Loop::new();
        this.waits(15, write);
        this.reconcile(|this| {
            let foreign = this.next();
            this.event(foreign);
        });
        assert_eq!(this.reconcile(write), Some(Duration::ZERO));
    }

    #[test]
    fn guarantee_2_also_if_it_came_before_a_write_that_is_not_answered_yet() {
        let mut this = Loop::new();
        this.waits(15, write);
        this.reconcile(|this| {
            let (foreign, own) = (this.next(), this.next());
            this.event(foreign);
            this.event(own);
            this.answered(own);
        });
        assert_eq!(this.reconcile(write), Some(Duration::ZERO));
    }

    #[test]
    fn guarantee_5_an_object_that_is_gone_is_forgotten() {
        let mut this = Loop::new();
        this.queue.add(key());
        this.reconcile(|this| {
            let revision = this.next();
            this.answered(revision);
        });
        assert!(!this.hot.is_empty());
        this.hot.forget(&key());
        assert!(this.hot.is_empty());
        // The answer came after the deletion was heard of.
        this.queue.add(key());
        this.reconcile(|this| {
            this.hot.forget(&key());
            this.answered(3);
        });
        this.queue.add(key());
        this.reconcile(|_| {});
        assert!(this.hot.is_empty());
    }

    #[test]
    fn guarantee_5_what_is_written_into_an_object_that_nobody_reconciles_is_not_remembered() {
        let mut this = Loop::new();
        this.answered(1);
        assert!(this.hot.is_empty());
        this.queue.add(key());
        this.reconcile(|this| {
            let made = Object::from_slice(br#"{"metadata": {"name": "made", "namespace": "ns"}}"#).unwrap();
            this.hot
                .wrote(&webs(), &ClusterName::default(), &made, &this.queue);
        });
        assert!(this.hot.is_empty());
    }

    #[test]
    fn guarantee_5_keys_that_are_purged_are_forgotten() {
        let mut this = Loop::new();
        this.waits(3, write);
        this.hot.forget_all(|of| *of != key());
        assert!(!this.hot.is_empty());
        this.hot.forget_all(|of| *of == key());
        assert!(this.hot.is_empty());
    }
}
