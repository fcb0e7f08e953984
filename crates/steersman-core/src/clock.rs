// SPDX-License-Identifier: Apache-2.0
//! Time that is handed down.
//!
//! # Guarantees
//! 1. A clock never goes back.
//! 2. When a [`Sleep`] ends, [`Clock::now`] has reached its deadline.
//! 3. Dropping a [`Sleep`] leaves nothing behind.
//!
//! # Not promised
//! That two clocks agree: a [`Moment`] has a meaning only on the clock it came from.

mod manual;
#[cfg(feature = "tokio")]
mod tokio;

use std::fmt;
use std::ops::Add;
use std::pin::Pin;
use std::time::Duration;

#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;
pub use manual::TestClock;

/// A future that ends when a deadline is reached.
///
/// # Cancel safety
/// It may be dropped at any time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Monotonic time, and a way to wait for it.
///
/// It is used as `Arc<dyn Clock>`: one clock for everything that a manager runs, so that two replicas in one test
/// can have different ones.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use steersman_core::{Clock, TestClock};
///
/// let test = TestClock::new();
/// let clock: Arc<dyn Clock> = Arc::new(test.clone());
/// let start = clock.now();
/// test.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now().saturating_since(start), Duration::from_secs(3600));
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present moment. It never goes back.
    fn now(&self) -> Moment;

    /// Ends when [`now`](Self::now) has reached `deadline`; at once if it has already.
    fn sleep_until(&self, deadline: Moment) -> Sleep;
}

/// A point in the monotonic time of one [`Clock`], in nanoseconds since that clock's origin.
///
/// It is not [`std::time::Instant`] because that cannot be made from a number: a stepped clock could not start at
/// zero, and a failing test would print times that differ from run to run. It is also half the size, and a queue
/// keeps two per key.
///
/// ```
/// use std::time::Duration;
/// use steersman_core::Moment;
///
/// let later = Moment::ORIGIN + Duration::from_millis(5);
/// assert_eq!(later.saturating_since(Moment::ORIGIN), Duration::from_millis(5));
/// assert_eq!(Moment::ORIGIN.saturating_since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// Where the clock's time begins.
    pub const ORIGIN: Self = Self(0);

    /// The moment that many nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Ends at the last moment there is (584 years) instead of overflowing.
impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let seconds = duration.as_secs().saturating_mul(1_000_000_000);
        Self(
            self.0
                .saturating_add(seconds)
                .saturating_add(u64::from(duration.subsec_nanos())),
        )
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:?}", Duration::from_nanos(self.0))
    }
}
