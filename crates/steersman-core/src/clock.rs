// SPDX-License-Identifier: Apache-2.0
//! Clocks that are passed as dependencies.
//!
//! # Guarantees
//! 1. A clock is monotonic: [`Clock::now`] never decreases, even if the wall clock is set back.
//! 2. When a [`Sleep`] ends, [`Clock::now`] has reached its deadline.
//! 3. Dropping a [`Sleep`] leaves nothing behind.
//! 4. [`SuspendAwareTime::elapsed`] counts the time in which the machine was suspended, and is never less than
//!    monotonic time.
//!
//! # Not promised
//! Two clocks do not agree: a [`MonotonicTime`] is valid only on its own clock. The wall clock is not monotonic: people
//! and time servers set it.

mod manual;
#[cfg(feature = "tokio")]
mod tokio;

use std::fmt;
use std::future::poll_fn;
use std::ops::Add;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, SystemTime};

#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;
pub use manual::TestClock;

/// A future that ends when a deadline is reached.
///
/// # Cancel safety
/// It can be dropped at any time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Monotonic clock with timers.
///
/// It is used as `Arc<dyn Clock>`: one clock for everything that a manager runs, so that two replicas in one test can
/// have different clocks.
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
    /// Returns the current time. It never decreases.
    fn now(&self) -> MonotonicTime;

    /// Returns the wall-clock time. It can jump in both directions, so use it only for display and for
    /// [`SuspendAwareTime`].
    fn wall(&self) -> SystemTime;

    /// Returns the current monotonic and wall-clock time, to measure a duration that includes the time of a suspend.
    fn mark(&self) -> SuspendAwareTime {
        SuspendAwareTime {
            now: self.now(),
            wall: self.wall(),
        }
    }

    /// Waits until [`now`](Self::now) reaches `deadline`; returns at once if it has passed.
    fn sleep_until(&self, deadline: MonotonicTime) -> Sleep;
}

impl dyn Clock {
    /// Waits for `future`. Returns `None` if it is not ready at the deadline.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// use steersman_core::{Clock, MonotonicTime, TestClock};
    ///
    /// let clock: &dyn Clock = &TestClock::new();
    /// let passed = MonotonicTime::ORIGIN;
    /// assert_eq!(clock.timeout_at(passed, std::future::pending::<()>()).await, None);
    /// assert_eq!(clock.timeout_at(passed, async { "ready" }).await, Some("ready"));
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Cancel safety
    /// That of `future`.
    pub async fn timeout_at<F: Future>(&self, deadline: MonotonicTime, future: F) -> Option<F::Output> {
        let (mut future, mut late) = (pin!(future), self.sleep_until(deadline));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        })
        .await
    }
}

/// A point in the monotonic time of one [`Clock`], in nanoseconds since that clock's origin.
///
/// It is not [`std::time::Instant`] because that cannot be created from a number: a stepped clock could not start at
/// zero, and a failing test would print times that differ from run to run. It is also half the size, and a queue keeps
/// two per key.
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
    /// Origin of the clock.
    pub const ORIGIN: Self = Self(0);

    /// Creates a time from nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the duration since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A point in monotonic and wall-clock time; from [`Clock::mark`].
///
/// On Linux, monotonic time does not advance while a machine is suspended. Use this to measure a permission with a time
/// limit, such as a lease, so that it has expired when the machine wakes up.
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
    /// Returns the monotonic time.
    #[must_use]
    pub const fn moment(self) -> MonotonicTime {
        self.now
    }

    /// Returns the wall-clock time.
    #[must_use]
    pub const fn wall(self) -> SystemTime {
        self.wall
    }

    /// Returns the elapsed time on its clock: the larger of monotonic and wall-clock time. A wall clock that was set
    /// back counts as zero.
    #[must_use]
    pub fn elapsed(self, clock: &dyn Clock) -> Duration {
        let on_calendar = clock.wall().duration_since(self.wall).unwrap_or_default();
        clock.now().saturating_since(self.now).max(on_calendar)
    }
}

/// Saturates at the maximum time (584 years) instead of overflowing.
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
