// SPDX-License-Identifier: Apache-2.0
//! The production clock.

use std::time::SystemTime;

use tokio::time::Instant;

use super::{Clock, MonotonicTime, Sleep};

/// Real time with tokio's timer. Its origin is its creation.
///
/// [`Clock::sleep_until`] must be called within a tokio runtime; [`Clock::now`] can be called anywhere.
///
/// ```
/// # use std::time::Duration;
/// use steersman_core::{Clock, TokioClock};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let clock = TokioClock::new();
/// let deadline = clock.now() + Duration::from_millis(1);
/// clock.sleep_until(deadline).await;
/// assert!(clock.now() >= deadline);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokioClock {
    origin: Instant,
}

impl TokioClock {
    /// Creates a clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> MonotonicTime {
        MonotonicTime::ORIGIN + self.origin.elapsed()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the source of the wall-clock time"
    )]
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, deadline: MonotonicTime) -> Sleep {
        let wait = deadline.saturating_since(MonotonicTime::ORIGIN);
        match self.origin.checked_add(wait) {
            Some(instant) => Box::pin(tokio::time::sleep_until(instant)),
            // Centuries in the future, and more than the platform can represent.
            None => Box::pin(std::future::pending()),
        }
    }
}
