// SPDX-License-Identifier: Apache-2.0
//! Shutdown of a queue and its remaining keys.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use steersman_core::Sleep;

use crate::Key;
use crate::inspect::Status;
use crate::queue::Queue;

/// Handling of ready keys when a queue shuts down.
///
/// In both cases the queue accepts no more keys, delayed keys stay in their place, and keys in flight continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shutdown {
    /// Ready keys are still handed out, and [`Queue::next`] returns `None` when none is left. A paused queue does not
    /// hand out its keys, because they wait for leadership.
    Finish,
    /// [`Queue::next`] returns `None` at once.
    Abandon,
}

/// Future of [`Queue::drain`].
#[must_use = "nothing is drained unless this is awaited"]
pub struct Drain<'q, K: Key> {
    queue: &'q Queue<K>,
    deadline: Sleep,
    id: Option<u32>,
}

impl<'q, K: Key> Drain<'q, K> {
    pub(crate) fn new(queue: &'q Queue<K>, deadline: Sleep) -> Self {
        Self {
            queue,
            deadline,
            id: None,
        }
    }

    fn leave(&mut self) {
        if let Some(id) = self.id.take() {
            self.queue.shared.locked(|state| state.leave_drain(id));
        }
    }
}

impl<K: Key> Future for Drain<'_, K> {
    type Output = Vec<Status<K>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let late = this.deadline.as_mut().poll(cx).is_ready();
        this.leave();
        this.queue.shared.locked(|state| {
            if late {
                state.shut_down(Shutdown::Abandon);
            }
            if late || state.is_drained() {
                return Poll::Ready(state.take_remains());
            }
            this.id = Some(state.wait_for_drain(cx.waker()));
            Poll::Pending
        })
    }
}

impl<K: Key> Drop for Drain<'_, K> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<K: Key> fmt::Debug for Drain<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain")
            .field("queue", &self.queue.name())
            .finish_non_exhaustive()
    }
}
