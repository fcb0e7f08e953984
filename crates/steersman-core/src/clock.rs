// SPDX-License-Identifier: Apache-2.0
//! Time that is handed down.
//!
//! # Guarantees
//! 1. A clock never goes back: [`Clock::now`] grows, whatever happens to the calendar.
//! 2. When a [`Sleep`] ends, [`Clock::now`] has reached its deadline.
//! 3. Dropping a [`Sleep`] leaves nothing behind.
//! 4. [`SuspendAwareTime::elapsed`] counts the time in which the machine was suspended, and is never less than monotonic time.
//!
//! # Not promised
//! That two clocks agree: a [`MonotonicTime`] has a meaning only on the clock it came from. That the calendar grows: people and
//! time servers set it.

mod manual;
#[cfg(feature = "tokio")]
mod tokio;

use std::fmt;
use std::ops::Add;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

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
    fn now(&self) -> MonotonicTime;

    /// What the calendar says. It may jump in both directions, so it is for others to read, and for [`SuspendAwareTime`].
    fn wall(&self) -> SystemTime;

    /// The present on both: something to measure from that also counts the time in which a machine was suspended.
    fn mark(&self) -> SuspendAwareTime {
        SuspendAwareTime {
            now: self.now(),
            wall: self.wall(),
        }
    }

    /// Ends when [`now`](Self::now) has reached `deadline`; at once if it has already.
    fn sleep_until(&self, deadline: MonotonicTime) -> Sleep;
}

/// A point in the monotonic time of one [`Clock`], in nanoseconds since that clock's origin.
///
/// It is not [`std::time::Instant`] because that cannot be made from a number: a stepped clock could not start at
/// zero, and a failing test would print times that differ from run to run. It is also half the size, and a queue
/// keeps two per key.
///
/// ```
/// use std::time::Duration;
/// use steersman_core::MonotonicTime;
///
/// let later = MonotonicTime::ORIGIN + Duration::from_millis(5);
/// assert_eq!(later.saturating_since(MonotonicTime::ORIGIN), Duration::from_millis(5));
/// assert_eq!(MonotonicTime::ORIGIN.saturating_since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MonotonicTime(u64);

impl MonotonicTime {
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

/// A point in monotonic time and on the calendar; from [`Clock::mark`].
///
/// On Linux, monotonic time stands still while a machine is suspended. Who holds a right for a limited time measures
/// by this, so that the right is over when the machine wakes up.
///
/// ```
/// use std::time::Duration;
/// use steersman_core::{Clock, TestClock};
///
/// let clock = TestClock::new();
/// let mark = clock.mark();
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(mark.elapsed(&clock), Duration::from_secs(1));
/// clock.suspend(Duration::from_secs(3600));
/// assert_eq!(mark.elapsed(&clock), Duration::from_secs(3601));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuspendAwareTime {
    now: MonotonicTime,
    wall: SystemTime,
}

impl SuspendAwareTime {
    /// The monotonic part.
    #[must_use]
    pub const fn moment(self) -> MonotonicTime {
        self.now
    }

    /// The calendar's part.
    #[must_use]
    pub const fn wall(self) -> SystemTime {
        self.wall
    }

    /// How long ago this was on its clock: the larger of what monotonic time and the calendar say. A calendar that was
    /// set back says zero.
    #[must_use]
    pub fn elapsed(self, clock: &dyn Clock) -> Duration {
        let on_calendar = clock.wall().duration_since(self.wall).unwrap_or_default();
        clock.now().saturating_since(self.now).max(on_calendar)
    }
}

/// Ends at the last moment there is (584 years) instead of overflowing.
impl Add<Duration> for MonotonicTime {
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

impl fmt::Debug for MonotonicTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:?}", Duration::from_nanos(self.0))
    }
}
