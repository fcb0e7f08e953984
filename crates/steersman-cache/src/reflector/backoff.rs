// SPDX-License-Identifier: Apache-2.0
//! How long to wait before the next try.

use std::{sync::Arc, time::Duration};

use steersman_core::{MonotonicTime, Random};

use super::WatchError;

/// Doubling delays with jitter, which start anew after a quiet time. The figures are client-go's.
///
/// Each comes with an earlier one, after which the server is asked again if it is known to answer; see
/// [`Liveness`](crate::Liveness). The earlier one doubles, too, while the server answers others but is too busy for this one,
/// and after two minutes of any trouble.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    early: Duration,
    /// Whether the last try was made early, because the server answered others.
    tried_early: bool,
    failed: Option<MonotonicTime>,
    /// When the trouble began.
    since: MonotonicTime,
    random: Arc<Random>,
}

const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// The server is not asked again before this, once or twice, however lively it is.
const EARLY: Duration = Duration::from_millis(1500);
/// So long without a failure, and the delays start anew.
const QUIET: Duration = Duration::from_secs(120);
/// So long early tries are made at short intervals, unless the server is too busy. Trouble that lasts longer is not over soon, and
/// a try can be a whole list.
const EAGER: Duration = Duration::from_secs(120);
/// A server that asks for more patience gets so much, and is asked again: whoever follows a kind must not be deaf for a day
/// because of one answer, which may come from somebody in between.
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

    /// Whether nothing has failed for a while.
    pub(super) fn is_fresh(&self, now: MonotonicTime) -> bool {
        self.failed
            .is_none_or(|failed| now.saturating_since(failed) >= QUIET)
    }

    /// The early and the full delay after a failure at `now`; both at least as long as the server asks for, up to two
    /// minutes. They are the same where the trouble cannot pass when the server answers others.
    pub(super) fn failed(
        &mut self,
        now: MonotonicTime,
        trouble: &WatchError,
        can_pass: bool,
    ) -> (Duration, Duration) {
        if self.is_fresh(now) {
            self.next = FIRST;
            self.since = now;
        }
        self.failed = Some(now);
        let delay = self.next;
        self.next = (self.next * 2).min(LONGEST);
        let tried_early = std::mem::take(&mut self.tried_early);
        let lasts = now.saturating_since(self.since) >= EAGER;
        let is_patient = lasts || trouble.is_overload() || *trouble == WatchError::Absent;
        self.early = match tried_early && is_patient {
            true => (self.early * 2).min(LONGEST),
            false => EARLY,
        };
        // Between one and two times, so that a thousand clients do not come back at once.
        let jitter = 1.0 + self.random.fraction();
        let asked = trouble.retry_after().unwrap_or_default().min(PATIENCE);
        let full = delay.mul_f64(jitter).max(asked);
        if can_pass {
            (self.early.mul_f64(jitter).max(asked).min(full), full)
        } else {
            (full, full)
        }
    }

    /// The next try is made early, because the server answers others.
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
        WatchError::Busy {
            code: 503,
            reason: "etcd is slow".to_owned(),
            retry_after,
        }
    }

    #[test]
    fn delays_double_to_a_cap_and_start_anew_after_a_quiet_time() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let mut now = MonotonicTime::ORIGIN;
        for expected in [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            let expected = Duration::from_millis(expected);
            let (early, delay) = backoff.failed(now, &unreachable(), true);
            assert!((expected..expected * 2).contains(&delay), "{delay:?}");
            assert!(early <= delay && early < EARLY * 2, "{early:?}");
            now = now + delay;
        }
        now = now + QUIET;
        assert!(backoff.failed(now, &unreachable(), true).1 < FIRST * 2);
    }

    #[test]
    fn what_the_server_asks_for_is_a_lower_bound_within_reason() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let asked = Duration::from_secs(7);
        let delays = backoff.failed(MonotonicTime::ORIGIN, &busy(Some(asked)), true);
        assert_eq!(delays, (asked, asked));
        let a_day = Duration::from_secs(86_400);
        let delays = backoff.failed(MonotonicTime::ORIGIN, &busy(Some(a_day)), true);
        assert_eq!(delays, (PATIENCE, PATIENCE));
    }

    // D30
    #[test]
    fn early_tries_of_an_overloaded_server_back_off_too() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let mut early_after = |trouble: &WatchError, count: u32| {
            let mut early = Duration::ZERO;
            for _ in 0..count {
                early = backoff.failed(MonotonicTime::ORIGIN, trouble, true).0;
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
    fn early_tries_back_off_when_trouble_lasts() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let (mut now, mut early) = (MonotonicTime::ORIGIN, Duration::ZERO);
        while now < MonotonicTime::ORIGIN + EAGER {
            early = backoff.failed(now, &unreachable(), true).0;
            assert!(early < EARLY * 2, "{early:?}");
            backoff.tries_early();
            now = now + early;
        }
        for _ in 0..6 {
            early = backoff.failed(now, &unreachable(), true).0;
            backoff.tries_early();
            now = now + early;
        }
        assert!(early >= LONGEST, "{early:?}");
    }
}
