// SPDX-License-Identifier: Apache-2.0
//! A clock for tests that moves only on request.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use super::{Clock, MonotonicTime, Sleep};
use crate::Mutex;

/// A clock that a test moves, so that no test waits for real time.
///
/// Clones show the same time. It starts at [`MonotonicTime::ORIGIN`], and its wall clock at the beginning of 2030.
///
/// ```
/// use std::{task::{Context, Waker}, time::Duration};
/// use steersman_core::{Clock, TestClock};
///
/// let clock = TestClock::new();
/// let mut sleep = clock.sleep_until(clock.now() + Duration::from_secs(10));
/// let mut cx = Context::from_waker(Waker::noop());
/// assert!(sleep.as_mut().poll(&mut cx).is_pending());
///
/// clock.advance_to_next();
/// assert!(sleep.as_mut().poll(&mut cx).is_ready());
/// ```
#[derive(Clone, Debug, Default)]
pub struct TestClock {
    shared: Arc<Mutex<Shared>>,
}

/// The first of January 2030, in seconds of Unix time.
const FIRST_DAY: u64 = 1_893_456_000;

#[derive(Debug)]
struct Shared {
    now: MonotonicTime,
    wall: SystemTime,
    /// Sleepers by deadline. The number distinguishes sleepers with the same deadline and wakes them in order of
    /// arrival.
    sleepers: BTreeMap<(MonotonicTime, u64), Waker>,
    arrivals: u64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            now: MonotonicTime::ORIGIN,
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(FIRST_DAY),
            sleepers: BTreeMap::new(),
            arrivals: 0,
        }
    }
}

impl TestClock {
    /// Creates a clock at [`MonotonicTime::ORIGIN`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances monotonic and wall-clock time, and wakes sleepers whose deadline is reached, the earliest first.
    pub fn advance(&self, by: Duration) {
        let now = self.shared.lock().now + by;
        self.advance_to(now);
    }

    /// Advances monotonic and wall-clock time to `moment`; does nothing if that is in the past.
    pub fn advance_to(&self, moment: MonotonicTime) {
        let mut shared = self.shared.lock();
        let now = shared.now.max(moment);
        let by = now.saturating_since(shared.now);
        shared.wall += by;
        shared.now = now;
        let later = shared.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut shared.sleepers, later);
        // A waker can run any code, including calls to this clock.
        drop(shared);
        for waker in due.into_values() {
            waker.wake();
        }
    }

    /// Advances the time to the earliest deadline of all sleepers, and returns that deadline.
    pub fn advance_to_next(&self) -> Option<MonotonicTime> {
        let deadline = self.next_deadline()?;
        self.advance_to(deadline);
        Some(deadline)
    }

    /// Advances only the wall clock, as a suspend of the machine does. Wakes no sleeper.
    pub fn suspend(&self, by: Duration) {
        self.shared.lock().wall += by;
    }

    /// Sets the wall clock, to the past or to the future. Wakes no sleeper.
    pub fn set_wall(&self, wall: SystemTime) {
        self.shared.lock().wall = wall;
    }

    /// Returns the earliest deadline of all sleepers.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonotonicTime> {
        self.shared
            .lock()
            .sleepers
            .keys()
            .next()
            .map(|(deadline, _)| *deadline)
    }
}

impl Clock for TestClock {
    fn now(&self) -> MonotonicTime {
        self.shared.lock().now
    }

    fn wall(&self) -> SystemTime {
        self.shared.lock().wall
    }

    fn sleep_until(&self, deadline: MonotonicTime) -> Sleep {
        Box::pin(ManualSleep {
            clock: self.clone(),
            deadline,
            arrival: None,
        })
    }
}

struct ManualSleep {
    clock: TestClock,
    deadline: MonotonicTime,
    arrival: Option<u64>,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // Cloning or dropping a waker can run any code, so neither is done under the lock.
        let waker = cx.waker().clone();
        let mut shared = this.clock.shared.lock();
        if shared.now >= this.deadline {
            return Poll::Ready(());
        }
        let arrival = *this.arrival.get_or_insert_with(|| {
            shared.arrivals += 1;
            shared.arrivals
        });
        let old = shared.sleepers.insert((this.deadline, arrival), waker);
        drop(shared);
        drop(old);
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(arrival) = self.arrival {
            let waker = self
                .clock
                .shared
                .lock()
                .sleepers
                .remove(&(self.deadline, arrival));
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ready(sleep: &mut Sleep) -> bool {
        sleep
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[test]
    fn guarantee_1_moving_to_the_past_changes_nothing() {
        let clock = TestClock::new();
        clock.advance(Duration::from_secs(2));
        clock.advance_to(MonotonicTime::ORIGIN);
        assert_eq!(clock.now(), MonotonicTime::ORIGIN + Duration::from_secs(2));
    }

    #[test]
    fn guarantee_2_a_sleep_ends_at_its_deadline_and_not_before() {
        let clock = TestClock::new();
        let deadline = MonotonicTime::from_nanos(10);
        let mut sleep = clock.sleep_until(deadline);
        assert!(!is_ready(&mut sleep));
        clock.advance_to(MonotonicTime::from_nanos(9));
        assert!(!is_ready(&mut sleep));
        clock.advance_to(deadline);
        assert!(is_ready(&mut sleep));
    }

    #[test]
    fn guarantee_3_a_dropped_sleep_is_forgotten() {
        let clock = TestClock::new();
        let mut sleep = clock.sleep_until(MonotonicTime::from_nanos(10));
        assert!(!is_ready(&mut sleep));
        assert_eq!(clock.next_deadline(), Some(MonotonicTime::from_nanos(10)));
        drop(sleep);
        assert_eq!(clock.next_deadline(), None);
    }
    #[test]
    fn guarantee_1_a_calendar_that_is_set_back_leaves_the_time_alone() {
        let clock = TestClock::new();
        let mark = clock.mark();
        clock.advance(Duration::from_secs(2));
        clock.set_wall(SystemTime::UNIX_EPOCH);
        assert_eq!(clock.now(), MonotonicTime::ORIGIN + Duration::from_secs(2));
        assert_eq!(mark.elapsed(&clock), Duration::from_secs(2));
    }

    #[test]
    fn guarantee_4_time_in_which_the_machine_is_suspended_counts() {
        let clock = TestClock::new();
        let mark = clock.mark();
        let mut sleep = clock.sleep_until(MonotonicTime::from_nanos(10));
        clock.suspend(Duration::from_secs(60));
        assert!(!is_ready(&mut sleep), "no timer counts it");
        assert_eq!(mark.elapsed(&clock), Duration::from_secs(60));
        clock.advance(Duration::from_secs(1));
        assert_eq!(mark.elapsed(&clock), Duration::from_secs(61));
    }
}
