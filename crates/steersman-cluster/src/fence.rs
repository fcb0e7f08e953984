// SPDX-License-Identifier: Apache-2.0
//! A gate for requests, so that a process writes only while it is allowed to.
//!
//! The owner of the permission, such as the task that renews a lease, keeps a [`FenceKeeper`]. The keeper opens the
//! fence until a deadline, and extends the deadline while the permission lasts. All other code has a [`Fence`], which
//! is read-only. A [`Client`](crate::Client) checks it in the HTTP service, below every retry, so that no retry
//! bypasses it.
//!
//! # Guarantees
//! 1. No attempt starts while the fence is closed or after its deadline. Then the body of a write is not written to the
//!    socket either, even if the attempt started before: [`Closed`] reports that it was not sent. The second half does
//!    not hold behind an HTTP proxy, and for requests without a body.
//! 2. An attempt under way is aborted when the fence closes or the deadline is reached: its future is dropped, and the
//!    error is [`Closed`], which reports for a write that it was under way.
//! 3. Extending the deadline lets attempts under way continue.
//! 4. A fence is closed until its keeper opens it, and after its keeper is dropped.
//! 5. A fence that is open [for a time](FenceKeeper::open_for) counts the time in which the machine was suspended.
//!    Every wake-up of an attempt checks the fence before it continues.
//! 6. [Extending](FenceKeeper::extend_for) a fence works only if it was open without interruption: after it rejected an
//!    attempt, extending does not open it again, even if the wall clock is set back.
//!
//! # Not promised
//! An aborted request can still have an effect:
//! * Its bytes might already be in a socket, in a proxy or in the server. Each attempt therefore sends its remaining
//!   time as a timeout to the server. The server aborts after that time, but counts it from the arrival of the request.
//! * The process might be stopped between the last check and the call that writes the bytes, and continue much later.
//!   The client cannot close that gap. Writes that must not be late carry a resourceVersion, which the server compares.
//! * A connection that was upgraded to a stream, as by `exec`, is not closed.
//! * After a suspend, no timer fires for the time that passed. A task in [`Fence::closed`] that nothing else wakes
//!   returns when the keeper next checks its own time.
//!
//! # Example
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steersman_cluster::Fence;
//! use steersman_core::{Clock, TestClock};
//!
//! let clock = TestClock::new();
//! let (keeper, fence) = Fence::new(Arc::new(clock.clone()));
//! assert!(fence.check().is_err());
//!
//! keeper.open_until(Some(clock.now() + Duration::from_secs(10)));
//! assert!(fence.check().is_ok());
//!
//! clock.advance(Duration::from_secs(10));
//! assert!(fence.check().is_err());
//! ```

#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use steersman_core::{Clock, MonotonicTime, SuspendAwareTime};
use tokio::sync::watch;

/// Read-only side of a fence. Clones share its state.
#[derive(Clone)]
pub struct Fence(Option<Kept>);

/// State of a fence with a keeper; a fence without one is always open.
#[derive(Clone)]
struct Kept {
    clock: Arc<dyn Clock>,
    state: watch::Receiver<State>,
}

/// Opens and closes a fence. Dropping it closes the fence permanently.
pub struct FenceKeeper {
    clock: Arc<dyn Clock>,
    state: watch::Sender<State>,
}

#[derive(Clone, Debug)]
enum State {
    Open {
        limit: Limit,
        /// Set when a check finds the deadline reached. It is written and read under the lock of the state.
        is_reached: Arc<AtomicBool>,
    },
    Closed {
        reason: Arc<str>,
    },
}

impl State {
    fn open(limit: Limit) -> Self {
        Self::Open {
            limit,
            is_reached: Arc::default(),
        }
    }

    /// Returns the remaining time, or `None` without a deadline.
    fn remaining(&self, clock: &dyn Clock) -> Option<Duration> {
        match self {
            Self::Open { limit, is_reached } => {
                let left = limit.remaining(clock);
                let is_over = left.is_some_and(|left| left.is_zero());
                match is_reached.fetch_or(is_over, Ordering::Relaxed) {
                    true => Some(Duration::ZERO),
                    false => left,
                }
            }
            Self::Closed { .. } => Some(Duration::ZERO),
        }
    }
}

/// Deadline of an open fence.
#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    Until(MonotonicTime),
    For { time: Duration, since: SuspendAwareTime },
}

impl Limit {
    fn remaining(self, clock: &dyn Clock) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::Until(deadline) => Some(deadline.saturating_since(clock.now())),
            Self::For { time, since } => Some(time.saturating_sub(since.elapsed(clock))),
        }
    }
}

/// The fence is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", if *.was_sent {
    "the write was aborted while under way, and might have been applied"
} else {
    "the client rejected the request"
})]
#[non_exhaustive]
pub struct Closed {
    /// Reason for closing.
    pub reason: Arc<str>,
    /// Set if a write was under way when the fence closed: the server might have applied it. Otherwise nothing was
    /// sent.
    pub was_sent: bool,
}

impl Fence {
    /// Creates a fence and its keeper. The fence is closed at first.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> (FenceKeeper, Self) {
        let reason = "the fence is not open yet".into();
        let (sender, state) = watch::channel(State::Closed { reason });
        let keeper = FenceKeeper {
            clock: Arc::clone(&clock),
            state: sender,
        };
        (keeper, Self(Some(Kept { clock, state })))
    }

    /// Creates a fence that is always open.
    #[must_use]
    pub const fn open() -> Self {
        Self(None)
    }

    /// Checks that an attempt is allowed to start now.
    ///
    /// # Errors
    /// When the fence is closed.
    pub fn check(&self) -> Result<(), Closed> {
        self.0.as_ref().map_or(Ok(()), Kept::check)
    }

    /// Returns the remaining time: `None` without a deadline, zero if the fence is closed.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let kept = self.0.as_ref()?;
        kept.state.borrow().remaining(&*kept.clock)
    }

    /// Waits until the fence is closed or its deadline is reached, and returns the reason. If the deadline is extended
    /// meanwhile, it waits for the new one.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn closed(&self) -> Closed {
        let Some(kept) = &self.0 else {
            return std::future::pending().await;
        };
        let mut waiting = pin!(kept.ended());
        poll_fn(|cx| match kept.check() {
            // Checked on every wake-up, for example by an answer: timers do not count the time of a suspend.
            Err(closed) => Poll::Ready(closed),
            Ok(()) => waiting.as_mut().poll(cx),
        })
        .await
    }
}

impl Kept {
    fn check(&self) -> Result<(), Closed> {
        self.judge(&self.state.borrow())
    }

    fn judge(&self, state: &State) -> Result<(), Closed> {
        if state.remaining(&*self.clock) != Some(Duration::ZERO) {
            return Ok(());
        }
        let reason = match state {
            State::Open { .. } => "the deadline of the fence has passed".into(),
            State::Closed { reason } => Arc::clone(reason),
        };
        Err(Closed {
            reason,
            was_sent: false,
        })
    }

    /// Waits until the keeper closes the fence, or until the deadline, which the keeper can extend.
    async fn ended(&self) -> Closed {
        let mut state = self.state.clone();
        loop {
            let remaining = {
                let now = state.borrow_and_update();
                if let Err(closed) = self.judge(&now) {
                    return closed;
                }
                now.remaining(&*self.clock)
            };
            let deadline = async {
                match remaining {
                    Some(remaining) => self.clock.sleep_until(self.clock.now() + remaining).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // The keeper sends its last state before it is dropped.
                _ = state.changed() => {}
                () = deadline => {}
            }
        }
    }
}

impl FenceKeeper {
    /// Opens the fence until `deadline`, or until it is closed if there is none. If the fence is open, this replaces
    /// the deadline.
    pub fn open_until(&self, deadline: Option<MonotonicTime>) {
        let limit = deadline.map_or(Limit::None, Limit::Until);
        self.state.send_replace(State::open(limit));
    }

    /// Opens the fence until `time` has passed since `since`, on the larger of monotonic and wall-clock time. If the
    /// fence is open, this replaces the deadline.
    pub fn open_for(&self, time: Duration, since: SuspendAwareTime) {
        let limit = Limit::For { time, since };
        self.state.send_replace(State::open(limit));
    }

    /// Like [`open_for`](Self::open_for), unless the fence is closed or its deadline was reached. Returns whether the
    /// fence is open.
    pub fn extend_for(&self, time: Duration, since: SuspendAwareTime) -> bool {
        self.state.send_if_modified(|state| {
            let is_open = state.remaining(&*self.clock) != Some(Duration::ZERO);
            if is_open {
                *state = State::open(Limit::For { time, since });
            }
            is_open
        })
    }

    /// Closes the fence. Rejected requests report `reason` in their error.
    pub fn close(&self, reason: impl Into<Arc<str>>) {
        let reason = reason.into();
        self.state.send_replace(State::Closed { reason });
    }
}

impl Drop for FenceKeeper {
    fn drop(&mut self) {
        self.state.send_if_modified(|state| {
            let is_open = matches!(state, State::Open { .. });
            if is_open {
                let reason = "the keeper of the fence was dropped".into();
                *state = State::Closed { reason };
            }
            is_open
        });
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("closed", &self.check().err())
            .field("remaining", &self.remaining())
            .finish()
    }
}

impl fmt::Debug for FenceKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FenceKeeper").field(&*self.state.borrow()).finish()
    }
}
