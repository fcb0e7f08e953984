// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests of the queue: a test clock, and futures that are polled manually.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use steersman_core::{MonotonicTime, TestClock};
use steersman_queue::{Item, Key, Options, Queue, RateLimiter};

/// So many seconds with every failure, so that tests can count.
pub struct Steps;

impl<K> RateLimiter<K> for Steps {
    fn delay(&self, _key: &K, failures: u32, _now: MonotonicTime) -> Duration {
        seconds(u64::from(failures))
    }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn at(seconds: u64) -> MonotonicTime {
    MonotonicTime::ORIGIN + self::seconds(seconds)
}

pub fn queue<K: Key>() -> (Queue<K>, TestClock) {
    queue_with(Options::new())
}

pub fn queue_with<K: Key>(options: Options<K>) -> (Queue<K>, TestClock) {
    let clock = TestClock::new();
    (
        Queue::new(Arc::new(clock.clone()), options.rate_limiter(Steps)),
        clock,
    )
}

/// Takes a key that must be there.
pub fn take<K: Key>(queue: &Queue<K>) -> Item<K> {
    queue.try_next().expect("a key is ready")
}

/// Takes and finishes everything that is ready, and answers the keys in the order of handing out.
pub fn take_all<K: Key>(queue: &Queue<K>) -> Vec<K> {
    std::iter::from_fn(|| {
        let item = queue.try_next()?;
        let key = item.key().clone();
        item.done();
        Some(key)
    })
    .collect()
}

/// A future that is polled by hand, and that counts how often it was woken.
pub struct Task<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<F: Future> Task<F> {
    pub fn new(future: F) -> Self {
        Self {
            future: Box::pin(future),
            wakes: Arc::default(),
        }
    }

    pub fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    pub fn expect_ready(&mut self) -> F::Output {
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the future is still pending"),
        }
    }

    /// Reports whether it was woken since the last call.
    pub fn was_woken(&self) -> bool {
        self.wakes.0.swap(0, Ordering::Relaxed) > 0
    }
}
