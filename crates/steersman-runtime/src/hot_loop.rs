// SPDX-License-Identifier: Apache-2.0
//! Slows down keys whose reconciles keep writing.
//!
//! A reconciler that writes something new each time, such as a timestamp or the text of an error, triggers itself: the watch
//! reports the write, the key is enqueued, and the next reconcile writes again. Such a loop looks like any other key that is
//! reconciled too often, so nothing but the rate of each key is measured.
//!
//! # Guarantees
//! 1. Only reconciles in which the controller changed an object count, whatever enqueued the key. A write whose response
//!    has the same resource version as in the previous reconcile changed nothing.
//! 2. A key is handed out without delay as long as it has at most [`limit`](crate::Options::hot_loop_limit) such reconciles
//!    within a minute. A state machine can write that many steps at full speed.
//! 3. Above the limit a key is reconciled at the rate of the limit: 60 per minute are one per second. Other keys are not
//!    delayed.
//! 4. The first delay is logged with the objects that the last reconcile changed. It is logged again after the key was
//!    quiet for a minute.
//! 5. Memory is needed only for keys whose reconciles changed something within the last minute, and for 1024 others.
//!
//! # Not detected
//! Writes of the raw client ([`Context::kube`](crate::Context::kube)), and of tasks that a reconcile spawns.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    fmt,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use steersman_cache::{Object, Resource};
use steersman_core::{MonotonicTime, Mutex, ObjectKey};

/// Period over which reconciles are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Number of keys from which on quiet keys are removed.
const SWEEP_MIN: usize = 1024;

/// Maximum number of changed objects in a log line.
const NAMED_MAX: usize = 4;

tokio::task_local! {
    static WRITES: RefCell<Vec<Write>>;
}

/// The response to a write.
struct Write {
    resource: Resource,
    key: ObjectKey,
    /// Hash of the object and its resource version.
    hash: u64,
}

/// Adds a write to those of the reconcile that runs in this task.
pub(crate) fn note_write(resource: &Resource, object: &Object) {
    let mut hasher = DefaultHasher::new();
    (
        resource,
        object.namespace(),
        object.name(),
        object.resource_version(),
    )
        .hash(&mut hasher);
    // Outside of a reconcile, nothing is counted.
    let _ = WRITES.try_with(|writes| {
        writes.borrow_mut().push(Write {
            resource: resource.clone(),
            key: object.key(),
            hash: hasher.finish(),
        });
    });
}

/// The writes of one reconcile.
#[derive(Default)]
pub(crate) struct Writes(Vec<Write>);

/// Keys of a controller that wrote recently.
pub(crate) struct HotLoops<R> {
    /// The part of the period that each reconcile uses up. `None` counts nothing.
    interval: Option<Duration>,
    rates: Mutex<Rates<R>>,
}

struct Rates<R> {
    keys: HashMap<R, Rate>,
    sweep_at: usize,
}

/// The rate of one key.
#[derive(Default)]
struct Rate {
    /// Time at which all counted reconciles are used up.
    until: MonotonicTime,
    /// Hashes of the writes of the last reconcile.
    written: HashSet<u64>,
    changed: Changed,
    is_logged: bool,
}

/// The objects that a reconcile changed; shown such as `configmaps/v1 web/front`.
#[derive(Clone, Default)]
pub(crate) struct Changed(Vec<(Resource, ObjectKey)>);

/// Delay of a key.
pub(crate) struct Slowed {
    pub(crate) delay: Duration,
    /// Objects to log, unless they were already logged.
    pub(crate) changed: Option<Changed>,
}

impl<R: Clone + Eq + Hash> HotLoops<R> {
    /// Creates the limiter. Zero turns it off.
    pub(crate) fn new(per_minute: u32) -> Self {
        Self {
            interval: (per_minute > 0).then(|| WINDOW / per_minute),
            rates: Mutex::new(Rates {
                keys: HashMap::new(),
                sweep_at: SWEEP_MIN,
            }),
        }
    }

    /// Returns the delay if a key that is handed out has to wait.
    pub(crate) fn check(&self, key: &R, now: MonotonicTime) -> Option<Slowed> {
        let interval = self.interval?;
        let mut rates = self.rates.lock();
        let rate = rates.keys.get_mut(key)?;
        let delay = (rate.until + interval).saturating_since(now + WINDOW);
        if delay.is_zero() {
            return None;
        }
        let is_first = !std::mem::replace(&mut rate.is_logged, true);
        Some(Slowed {
            delay,
            changed: is_first.then(|| rate.changed.clone()),
        })
    }

    /// Runs a reconcile, and returns its writes as well.
    pub(crate) async fn observe<T>(&self, reconcile: impl Future<Output = T>) -> (T, Writes) {
        if self.interval.is_none() {
            return (reconcile.await, Writes::default());
        }
        let observed = async { (reconcile.await, WRITES.with(RefCell::take)) };
        let (output, writes) = WRITES.scope(RefCell::default(), observed).await;
        (output, Writes(writes))
    }

    /// Counts a reconcile with these writes.
    pub(crate) fn count(&self, key: &R, Writes(writes): Writes, now: MonotonicTime) {
        let Some(interval) = self.interval.filter(|_| !writes.is_empty()) else {
            return;
        };
        let mut written: HashSet<u64> = writes.iter().map(|write| write.hash).collect();
        let mut rates = self.rates.lock();
        rates.sweep(now);
        let rate = rates.keys.entry(key.clone()).or_default();
        rate.is_logged &= rate.until > now;
        let is_new = |write: &&Write| !rate.written.contains(&write.hash);
        let changed = writes.iter().filter(is_new).take(NAMED_MAX);
        let changed: Vec<_> = changed
            .map(|one| (one.resource.clone(), one.key.clone()))
            .collect();
        std::mem::swap(&mut rate.written, &mut written);
        if !changed.is_empty() {
            rate.changed = Changed(changed);
            rate.until = rate.until.max(now) + interval;
        }
        drop(rates); // The former hashes are freed without the lock.
    }
}

impl<R: Eq + Hash> Rates<R> {
    /// Removes quiet keys, if there are many.
    fn sweep(&mut self, now: MonotonicTime) {
        if self.keys.len() >= self.sweep_at {
            self.keys.retain(|_, rate| rate.until > now);
            self.sweep_at = SWEEP_MIN.max(2 * self.keys.len());
        }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (resource, key)) in self.0.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{resource} {key}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMIT: u32 = 60;
    const SECOND: Duration = Duration::from_secs(1);

    fn webs() -> Resource {
        Resource::new("example.com", "v1", "Web", "webs")
    }

    fn now() -> MonotonicTime {
        MonotonicTime::ORIGIN + 1000 * SECOND
    }

    /// Runs a reconcile of a key whose writes get these responses.
    fn reconcile(hot: &HotLoops<u32>, key: u32, writes: &[(&str, u32)], now: MonotonicTime) {
        let work = async {
            for (name, revision) in writes {
                let metadata =
                    json!({"name": name, "namespace": "ns", "resourceVersion": revision.to_string()});
                let json = json!({ "metadata": metadata });
                let object = Object::from_slice(&serde_json::to_vec(&json).unwrap()).unwrap();
                note_write(&webs(), &object);
            }
        };
        let ((), writes) = futures::executor::block_on(hot.observe(work));
        hot.count(&key, writes, now);
    }

    /// Number of reconciles of a key that begin at a time, of at most 1000 that all change its object.
    fn burst(hot: &HotLoops<u32>, key: u32, now: MonotonicTime) -> usize {
        let mut revision = u32::try_from(now.as_nanos() / 1_000_000).unwrap();
        let begun = (0..1000).take_while(|_| {
            let begins = hot.check(&key, now).is_none();
            if begins {
                revision += 1;
                reconcile(hot, key, &[("a", revision)], now);
            }
            begins
        });
        begun.count()
    }

    // R149, D18
    #[test]
    fn guarantee_2_a_key_within_its_limit_is_not_delayed() {
        let hot = HotLoops::new(LIMIT);
        assert_eq!(burst(&hot, 1, now()), LIMIT as usize);
        assert_eq!(burst(&hot, 2, now()), LIMIT as usize, "each key has its own");
        // After a quiet minute it has as many again.
        assert_eq!(burst(&hot, 1, now() + WINDOW), LIMIT as usize);
    }

    // R149, D18
    #[test]
    fn guarantee_3_a_key_above_its_limit_is_reconciled_once_per_second() {
        let hot = HotLoops::new(LIMIT);
        burst(&hot, 1, now());
        assert_eq!(hot.check(&1, now()).unwrap().delay, SECOND);
        for second in 1..100 {
            let now = now() + second * SECOND;
            assert_eq!(burst(&hot, 1, now), 1, "{second}");
            assert_eq!(hot.check(&1, now).unwrap().delay, SECOND);
        }
    }

    // D18
    #[test]
    fn guarantee_1_writes_that_change_nothing_do_not_count() {
        let hot = HotLoops::new(LIMIT);
        for _ in 0..1000 {
            assert!(hot.check(&1, now()).is_none());
            reconcile(&hot, 1, &[("a", 1), ("b", 2)], now());
            reconcile(&hot, 2, &[], now());
        }
        assert_eq!(hot.rates.lock().keys.len(), 1);
    }

    // D18
    #[test]
    fn guarantee_4_the_objects_that_change_are_named_once() {
        let hot = HotLoops::new(2);
        for revision in 1..=2 {
            reconcile(&hot, 1, &[("same", 1), ("other", revision)], now());
        }
        let slowed = hot.check(&1, now()).unwrap();
        assert_eq!(
            slowed.changed.unwrap().to_string(),
            "webs.example.com/v1 ns/other"
        );
        assert!(hot.check(&1, now()).unwrap().changed.is_none());
    }

    // D18
    #[test]
    fn guarantee_5_quiet_keys_are_forgotten() {
        let hot = HotLoops::new(LIMIT);
        for key in 0..10_000 {
            reconcile(&hot, key, &[("a", key)], now() + key * SECOND / 100);
            assert!(hot.rates.lock().keys.len() <= SWEEP_MIN, "{key}");
        }
    }

    // D18
    #[test]
    fn a_limit_of_zero_turns_it_off() {
        let hot = HotLoops::new(0);
        let is_observed = futures::executor::block_on(hot.observe(async { WRITES.try_with(|_| ()).is_ok() }));
        assert!(!is_observed.0);
        assert_eq!(burst(&hot, 1, now()), 1000);
        assert!(hot.rates.lock().keys.is_empty());
    }
}
