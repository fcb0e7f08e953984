// SPDX-License-Identifier: Apache-2.0
//! Where the server's time comes from.
//!
//! # Guarantees
//! 1. The server reads no clock but the one it was built with, and waits on nothing else.
//! 2. [`ManualClock`] moves only when told to, and wakes every sleeper whose time has come, in order of time.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::sync::oneshot;

/// A wait that ends when its clock says so.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source of timestamps and waits.
pub trait Clock: Send + Sync + 'static {
    /// The time that objects are stamped with.
    fn now(&self) -> SystemTime;

    /// Ends once `duration` has passed on this clock.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// The machine's clock and tokio's timer.
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

/// A clock that stands still until it is advanced; clones share the time.
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<Manual>>);

struct Manual {
    now: SystemTime,
    count: u64,
    sleepers: BTreeMap<(SystemTime, u64), oneshot::Sender<()>>,
}

impl ManualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub fn starting_at(start: SystemTime) -> Self {
        Self(Arc::new(Mutex::new(Manual {
            now: start,
            count: 0,
            sleepers: BTreeMap::new(),
        })))
    }

    /// Moves the time forward and wakes those who waited for it.
    pub fn advance(&self, by: Duration) {
        let mut manual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        manual.now += by;
        let now = manual.now;
        let later = manual.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut manual.sleepers, later);
        drop(manual);
        for waker in due.into_values() {
            // A sleeper that was dropped no longer listens.
            let _ = waker.send(());
        }
    }
}

impl Default for ManualClock {
    /// Starts at 2026-01-01T00:00:00Z.
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
            // The clock went away: its time never comes.
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

/// A time as HTTP headers carry it.
pub(crate) fn http_date(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// A timestamp as objects carry it: RFC 3339 in UTC, whole seconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .ok()
        .and_then(|t| jiff::Timestamp::from_second(t.as_second()).ok())
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}

/// The timestamp of a time that many seconds later, or the last one there is.
pub(crate) fn rfc3339_after(time: SystemTime, seconds: u64) -> String {
    let now = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let later = now.as_second().saturating_add_unsigned(seconds);
    jiff::Timestamp::from_second(later)
        .unwrap_or(jiff::Timestamp::MAX)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
