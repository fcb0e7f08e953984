// SPDX-License-Identifier: Apache-2.0
//! Future that waits for a key.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use steersman_core::{MonotonicTime, Sleep};

use crate::Key;
use crate::item::Item;
use crate::queue::Queue;
use crate::state::Polled;

/// Future of [`Queue::next`].
#[must_use = "nothing is taken unless this is awaited"]
pub struct Next<'q, K: Key> {
    queue: &'q Queue<K>,
    waiter: Option<u32>,
    /// Set only for the waiter that keeps the timer for all.
    sleep: Option<(MonotonicTime, Sleep)>,
}

impl<'q, K: Key> Next<'q, K> {
    pub(crate) fn new(queue: &'q Queue<K>) -> Self {
        Self {
            queue,
            waiter: None,
            sleep: None,
        }
    }
}

impl<K: Key> Future for Next<'_, K> {
    type Output = Option<Item<K>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let shared = &this.queue.shared;
        loop {
            let now = shared.clock.now();
            let polled = shared.locked(|state| state.poll_next(&mut this.waiter, cx.waker(), now));
            let deadline = match polled {
                Polled::Taken(taken) => return Poll::Ready(Some(Item::new(shared, taken, now))),
                Polled::Over => return Poll::Ready(None),
                Polled::Wait(deadline) => deadline,
            };
            let Some(deadline) = deadline else {
                this.sleep = None;
                return Poll::Pending;
            };
            // Armed outside the lock. A deadline that became earlier since then has already woken this task.
            let sleep = match &mut this.sleep {
                Some((at, sleep)) if *at == deadline => sleep,
                other => &mut other.insert((deadline, shared.clock.sleep_until(deadline))).1,
            };
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.sleep = None;
        }
    }
}

/// Passes its notification or the timer to another waiter.
impl<K: Key> Drop for Next<'_, K> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.queue.shared.locked(|state| state.leave(waiter));
        }
    }
}

impl<K: Key> fmt::Debug for Next<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next")
            .field("queue", &self.queue.name())
            .finish_non_exhaustive()
    }
}
