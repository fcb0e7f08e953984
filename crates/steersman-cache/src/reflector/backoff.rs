// SPDX-License-Identifier: Apache-2.0
//! Back-off of a reflector.

use std::{sync::Arc, time::Duration};

use steersman_core::{MonotonicTime, Random};

use super::WatchError;
use crate::liveness::Delay;

/// Doubling delays with jitter, reset after a quiet time. The figures are those of client-go.
///
/// Each delay has an early variant: after it, the reflector retries if the server is known to answer; see
/// [`Liveness`](crate::Liveness). The early delay doubles too while the server answers others but is too busy for this
/// request, and after two minutes of any error.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    early: Duration,
    /// True if the last attempt was early, because the server answered others.
    tried_early: bool,
    failed: Option<MonotonicTime>,
    /// Time of the first failure in a row.
    since: MonotonicTime,
    random: Arc<Random>,
}

const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// Initial early delay, times one to two by jitter, but never longer than the full delay.
const EARLY: Duration = Duration::from_millis(1500);
/// Time without a failure after which the delays are reset.
const QUIET: Duration = Duration::from_secs(120);
/// Time during which early attempts keep short intervals, unless the server is too busy. An error that lasts longer does not
/// end soon, and an attempt can be a whole list.
const EAGER: Duration = Duration::from_secs(120);
/// Maximum `Retry-After` that is honoured. Otherwise one answer, perhaps from a proxy, could stop a reflector for a day.
const PATIENCE: Duration = Duration::from_secs(120);

impl Backoff {
    pub(super) fn new(random: Arc<Random>) -> Self {
        Self {
            next: FIRST,
            early: EARLY,
            tried_early: false,
            failed: None,
            since: MonotonicTime::ORIGIN,
            random,
        }
    }

    /// Returns true if nothing failed for a while.
    pub(super) fn is_fresh(&self, now: MonotonicTime) -> bool {
        self.failed
            .is_none_or(|failed| now.saturating_since(failed) >= QUIET)
    }

    /// Returns the early and the full delay after a failure at `now`. Both honour the server's `Retry-After`, up to two minutes.
    /// They are equal if the error cannot end when the server answers others.
    pub(super) fn failed(&mut self, now: MonotonicTime, error: &WatchError, can_pass: bool) -> Delay {
        if self.is_fresh(now) {
            self.next = FIRST;
            self.since = now;
        }
        self.failed = Some(now);
        let delay = self.next;
        self.next = (self.next * 2).min(LONGEST);
        let tried_early = std::mem::take(&mut self.tried_early);
        let lasts = now.saturating_since(self.since) >= EAGER;
        let is_patient = lasts || error.is_overload() || *error == WatchError::NotInstalled;
        self.early = match tried_early && is_patient {
            true => (self.early * 2).min(LONGEST),
            false => EARLY,
        };
        // Times one to two, so that a thousand clients do not retry at once.
        let jitter = 1.0 + self.random.fraction();
        let asked = error.retry_after().unwrap_or_default().min(PATIENCE);
        let full = delay.mul_f64(jitter).max(asked);
        let early = match can_pass {
            true => self.early.mul_f64(jitter).max(asked).min(full),
            false => full,
        };
        Delay { early, full }
    }

    /// Records that the next attempt is early, because the server answers others.
    pub(super) fn tries_early(&mut self) {
        self.tried_early = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable() -> WatchError {
        WatchError::Unreachable {
            reason: "connection refused".to_owned(),
        }
    }

    fn busy(retry_after: Option<Duration>) -> WatchError {
        WatchError::ServerError {
            code: 503,
            reason: "etcd is slow".to_owned(),
            retry_after,
        }
    }

    #[test]
    fn delays_double_to_a_limit_and_reset_after_a_quiet_time() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let mut now = MonotonicTime::ORIGIN;
        for expected in [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            let expected = Duration::from_millis(expected);
            let Delay { early, full: delay } = backoff.failed(now, &unreachable(), true);
            assert!((expected..expected * 2).contains(&delay), "{delay:?}");
            assert!(early <= delay && early < EARLY * 2, "{early:?}");
            now = now + delay;
        }
        now = now + QUIET;
        assert!(backoff.failed(now, &unreachable(), true).full < FIRST * 2);
    }

    #[test]
    fn honours_retry_after_up_to_a_limit() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let asked = Duration::from_secs(7);
        let delays = backoff.failed(MonotonicTime::ORIGIN, &busy(Some(asked)), true);
        assert_eq!((delays.early, delays.full), (asked, asked));
        let a_day = Duration::from_secs(86_400);
        let delays = backoff.failed(MonotonicTime::ORIGIN, &busy(Some(a_day)), true);
        assert_eq!((delays.early, delays.full), (PATIENCE, PATIENCE));
    }

    // D30
    #[test]
    fn early_retries_of_an_overloaded_server_back_off() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let mut early_after = |error: &WatchError, count: u32| {
            let mut early = Duration::ZERO;
            for _ in 0..count {
                early = backoff.failed(MonotonicTime::ORIGIN, error, true).early;
                backoff.tries_early();
            }
            early
        };
        let at_first = EARLY..EARLY * 2;
        assert!(at_first.contains(&early_after(&unreachable(), 9)));
        assert!(early_after(&busy(None), 9) >= LONGEST);
        assert!(at_first.contains(&early_after(&unreachable(), 1)));
    }

    // D30
    #[test]
    fn early_retries_back_off_during_a_long_outage() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let (mut now, mut early) = (MonotonicTime::ORIGIN, Duration::ZERO);
        while now < MonotonicTime::ORIGIN + EAGER {
            early = backoff.failed(now, &unreachable(), true).early;
            assert!(early < EARLY * 2, "{early:?}");
            backoff.tries_early();
            now = now + early;
        }
        for _ in 0..6 {
            early = backoff.failed(now, &unreachable(), true).early;
            backoff.tries_early();
            now = now + early;
        }
        assert!(early >= LONGEST, "{early:?}");
    }
}
