// SPDX-License-Identifier: Apache-2.0
//! Clocks: the server's source of time.
//!
//! # Guarantees
//! 1. The server reads only the clock it was built with, and waits only on that clock.
//! 2. [`ManualClock`] moves only by [`ManualClock::advance`], which wakes every sleeper that is due, in order of time.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::sync::oneshot;

/// A future that completes when its clock reaches a time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of timestamps and timers.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time, used for timestamps of objects.
    fn now(&self) -> SystemTime;

    /// Completes after `duration` has passed on this clock.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// The system clock and tokio's timer.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the clock that everything else is handed"
        )]
        SystemTime::now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock that stands still until it is advanced. Clones share the time.
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<Manual>>);

struct Manual {
    now: SystemTime,
    count: u64,
    sleepers: BTreeMap<(SystemTime, u64), oneshot::Sender<()>>,
}

impl ManualClock {
    /// Creates a clock that stands at `start`.
    #[must_use]
    pub fn starting_at(start: SystemTime) -> Self {
        Self(Arc::new(Mutex::new(Manual {
            now: start,
            count: 0,
            sleepers: BTreeMap::new(),
        })))
    }

    /// Advances the time and wakes the sleepers that are due.
    pub fn advance(&self, by: Duration) {
        let mut manual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        manual.now += by;
        let now = manual.now;
        let later = manual.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut manual.sleepers, later);
        drop(manual);
        for waker in due.into_values() {
            // The receiver of a dropped sleeper is closed.
            let _ = waker.send(());
        }
    }
}

impl Default for ManualClock {
    /// Creates a clock that stands at 2026-01-01T00:00:00Z.
    fn default() -> Self {
        Self::starting_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).now
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let mut manual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if duration.is_zero() {
            return Box::pin(std::future::ready(()));
        }
        let Some(end) = manual.now.checked_add(duration) else {
            return Box::pin(std::future::pending());
        };
        let (sender, receiver) = oneshot::channel();
        let key = (end, manual.count);
        manual.count += 1;
        manual.sleepers.insert(key, sender);
        Box::pin(async move {
            // The clock was dropped: this sleep never ends.
            if receiver.await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

/// Formats a time for HTTP headers.
pub(crate) fn http_date(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Formats a timestamp for objects: RFC 3339 in UTC, whole seconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .ok()
        .and_then(|t| jiff::Timestamp::from_second(t.as_second()).ok())
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}

/// Formats the timestamp `seconds` later, or the largest possible one.
pub(crate) fn rfc3339_after(time: SystemTime, seconds: u64) -> String {
    let now = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let later = now.as_second().saturating_add_unsigned(seconds);
    jiff::Timestamp::from_second(later)
        .unwrap_or(jiff::Timestamp::MAX)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
