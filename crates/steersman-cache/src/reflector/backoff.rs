// SPDX-License-Identifier: Apache-2.0
//! How long to wait before the next try.

use std::{sync::Arc, time::Duration};

use steersman_core::{Moment, Random};

/// Doubling delays with jitter, which start anew after a quiet time. The figures are client-go's.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    failed: Option<Moment>,
    random: Arc<Random>,
}

const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// So long without a failure, and the delays start anew.
const QUIET: Duration = Duration::from_secs(120);
/// A server that asks for more patience gets so much, and is asked again: whoever follows a kind must not be deaf for a day
/// because of one answer, which may come from somebody in between.
const PATIENCE: Duration = Duration::from_secs(120);

impl Backoff {
    pub(super) fn new(random: Arc<Random>) -> Self {
        Self {
            next: FIRST,
            failed: None,
            random,
        }
    }

    /// Whether nothing has failed for a while.
    pub(super) fn is_fresh(&self, now: Moment) -> bool {
        self.failed
            .is_none_or(|failed| now.saturating_since(failed) >= QUIET)
    }

    /// The delay after a failure at `now`; at least as long as the server asks for, up to two minutes.
    pub(super) fn failed(&mut self, now: Moment, asked: Option<Duration>) -> Duration {
        if self.is_fresh(now) {
            self.next = FIRST;
        }
        self.failed = Some(now);
        let delay = self.next;
        self.next = (self.next * 2).min(LONGEST);
        // Between one and two times, so that a thousand clients do not come back at once.
        let jittered = delay.mul_f64(1.0 + self.random.fraction());
        jittered.max(asked.unwrap_or_default().min(PATIENCE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_a_cap_and_start_anew_after_a_quiet_time() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let mut now = Moment::ORIGIN;
        for expected in [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            let expected = Duration::from_millis(expected);
            let delay = backoff.failed(now, None);
            assert!((expected..expected * 2).contains(&delay), "{delay:?}");
            now = now + delay;
        }
        now = now + QUIET;
        assert!(backoff.failed(now, None) < FIRST * 2);
    }

    #[test]
    fn what_the_server_asks_for_is_a_lower_bound_within_reason() {
        let mut backoff = Backoff::new(Arc::new(Random::from_seed(1)));
        let asked = Duration::from_secs(7);
        assert_eq!(backoff.failed(Moment::ORIGIN, Some(asked)), asked);
        let a_day = Duration::from_secs(86_400);
        assert_eq!(backoff.failed(Moment::ORIGIN, Some(a_day)), PATIENCE);
    }
}
