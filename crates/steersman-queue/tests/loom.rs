// SPDX-License-Identifier: Apache-2.0
//! All interleavings of a few threads. Run with
//! `RUSTFLAGS="--cfg loom" cargo test --release -p steersman-queue --test loom`; it takes some seconds.

#![cfg(loom)]

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use loom::future::block_on;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use steersman_core::{MonotonicTime, TestClock};
use steersman_queue::{Add, Options, Outcome, Queue, RateLimiter, Shutdown};

const SECOND: Duration = Duration::from_secs(1);

/// Puts keys back at once, so that no test needs the time for it.
struct AtOnce;

impl<K> RateLimiter<K> for AtOnce {
    fn delay(&self, _key: &K, _failures: u32, _now: MonotonicTime) -> Duration {
        Duration::ZERO
    }
}

/// Explores all interleavings with at most that many preemptions.
fn explore(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

fn queue() -> (Queue<u8>, TestClock) {
    let clock = TestClock::new();
    (
        Queue::new(Arc::new(clock.clone()), Options::new().rate_limiter(AtOnce)),
        clock,
    )
}

/// Takes one key as a worker does, waiting as long as it takes.
fn work(queue: &Queue<u8>) -> Option<u8> {
    let item = block_on(queue.next())?;
    let key = *item.key();
    item.done();
    Some(key)
}

#[test]
fn guarantee_12_each_of_two_waiters_gets_one_of_two_keys() {
    explore(3, || {
        let (queue, _) = queue();
        let workers = [queue.clone(), queue.clone()].map(|queue| thread::spawn(move || work(&queue)));
        queue.add(1);
        queue.add(2);
        let mut taken = workers.map(|worker| worker.join().unwrap());
        taken.sort();
        assert_eq!(taken, [Some(1), Some(2)]);
    });
}

#[test]
fn guarantee_1_a_key_added_twice_is_never_with_two_workers() {
    explore(3, || {
        let (queue, _) = queue();
        let busy = loom::sync::Arc::new(AtomicBool::new(false));
        let runs = loom::sync::Arc::new(AtomicUsize::new(0));
        let workers = [(); 2].map(|()| {
            let (queue, busy, runs) = (queue.clone(), busy.clone(), runs.clone());
            thread::spawn(move || {
                while let Some(item) = block_on(queue.next()) {
                    assert!(!busy.swap(true, Ordering::SeqCst), "two workers have the key");
                    runs.fetch_add(1, Ordering::SeqCst);
                    busy.store(false, Ordering::SeqCst);
                    item.done();
                }
            })
        });
        queue.add(1);
        queue.add(1);
        queue.shut_down(Shutdown::Finish);
        for worker in workers {
            worker.join().unwrap();
        }
        let runs = runs.load(Ordering::SeqCst);
        assert!((1..=2).contains(&runs), "{runs} runs");
        assert_eq!(queue.depth(), steersman_queue::Depth::default());
    });
}

#[test]
fn guarantee_2_an_add_in_flight_is_never_lost() {
    explore(3, || {
        let (queue, _) = queue();
        queue.add(1);
        let item = queue.try_next().unwrap();
        let adder = {
            let queue = queue.clone();
            thread::spawn(move || queue.add(1))
        };
        let worker = thread::spawn(move || work(&queue));
        item.done();
        adder.join().unwrap();
        assert_eq!(worker.join().unwrap(), Some(1));
    });
}

#[test]
fn guarantee_12_a_cancelled_waiter_hands_its_wake_up_on() {
    explore(3, || {
        let (queue, _) = queue();
        let cancelled = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut next = Box::pin(queue.next());
                // Its notification or key is returned when both are dropped.
                drop(
                    next.as_mut()
                        .poll(&mut Context::from_waker(std::task::Waker::noop())),
                );
            })
        };
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || work(&queue))
        };
        queue.add(1);
        cancelled.join().unwrap();
        assert_eq!(worker.join().unwrap(), Some(1));
    });
}

#[test]
fn guarantee_9_a_dropped_item_wakes_the_next_worker() {
    explore(3, || {
        let (queue, _) = queue();
        queue.add(1);
        let item = queue.try_next().unwrap();
        let worker = thread::spawn(move || work(&queue));
        drop(item);
        assert_eq!(worker.join().unwrap(), Some(1));
    });
}

#[test]
fn guarantee_12_delays_end_with_any_waiter() {
    explore(2, || {
        let (queue, clock) = queue();
        let workers = [queue.clone(), queue.clone()].map(|queue| thread::spawn(move || work(&queue)));
        queue.add_with(2, Add::new().after(2 * SECOND));
        queue.add_with(1, Add::new().after(SECOND));
        clock.advance(SECOND);
        clock.advance(SECOND);
        let mut taken = workers.map(|worker| worker.join().unwrap());
        taken.sort();
        assert_eq!(taken, [Some(1), Some(2)]);
    });
}

#[test]
fn guarantee_12_replaces_a_cancelled_timer() {
    explore(3, || {
        let (queue, clock) = queue();
        queue.add_with(1, Add::new().after(SECOND));
        let cancelled = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut next = Box::pin(queue.next());
                drop(
                    next.as_mut()
                        .poll(&mut Context::from_waker(std::task::Waker::noop())),
                );
            })
        };
        let worker = thread::spawn(move || work(&queue));
        clock.advance(SECOND);
        cancelled.join().unwrap();
        assert_eq!(worker.join().unwrap(), Some(1));
    });
}

#[test]
fn guarantee_10_resuming_wakes_waiters() {
    explore(3, || {
        let (queue, _) = queue();
        queue.pause();
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || work(&queue))
        };
        queue.add(1);
        queue.resume();
        assert_eq!(worker.join().unwrap(), Some(1));
    });
}

#[test]
fn guarantee_11_shutdown_ends_waiters_and_drain() {
    explore(3, || {
        let (queue, _) = queue();
        queue.add(1);
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut worked = 0;
                while let Some(item) = block_on(queue.next()) {
                    worked += 1;
                    item.finish(Outcome::done());
                }
                worked
            })
        };
        let remains = block_on(queue.drain(Duration::MAX));
        assert!(remains.is_empty());
        assert_eq!(worker.join().unwrap(), 1);
    });
}
