// SPDX-License-Identifier: Apache-2.0
//! Delays of failed keys.

use std::time::Duration;

use steersman_core::{MonotonicTime, Random};

/// Sets the delay before a failed key is retried.
///
/// The queue counts the consecutive failures of each key. A limiter only converts the count into a delay, and needs
/// state only for limits over all keys. It is called outside the queue's lock. If it panics, the key waits for one
/// second.
///
/// ```
/// use std::time::Duration;
/// use steersman_core::MonotonicTime;
/// use steersman_queue::RateLimiter;
///
/// /// A quick first try, then a steady pace.
/// struct FastSlow;
///
/// impl<K> RateLimiter<K> for FastSlow {
///     fn delay(&self, _key: &K, failures: u32, _now: MonotonicTime) -> Duration {
///         if failures == 1 { Duration::from_millis(5) } else { Duration::from_secs(10) }
///     }
/// }
/// ```
pub trait RateLimiter<K>: Send + Sync + 'static {
    /// Returns the delay of `key`, which has now failed `failures` times in succession (at least once).
    fn delay(&self, key: &K, failures: u32, now: MonotonicTime) -> Duration;
}

/// Exponential back-off with a maximum.
///
/// The defaults are client-go's: 5 ms · 2ⁿ, at most 1000 s. Unlike client-go, it draws each delay from the last tenth
/// below that value, so that keys which failed together are not retried together. The maximum is never exceeded.
///
/// ```
/// use std::time::Duration;
/// use steersman_core::MonotonicTime;
/// use steersman_queue::{Backoff, RateLimiter};
///
/// let backoff = Backoff::new().jitter(0.0);
/// assert_eq!(backoff.delay(&"key", 1, MonotonicTime::ORIGIN), Duration::from_millis(5));
/// assert_eq!(backoff.delay(&"key", 8, MonotonicTime::ORIGIN), Duration::from_millis(640));
/// assert_eq!(backoff.delay(&"key", 99, MonotonicTime::ORIGIN), Duration::from_secs(1000));
/// ```
#[derive(Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    jitter: f64,
    random: Random,
}

impl Backoff {
    /// Creates a back-off of 5 ms · 2ⁿ, at most 1000 s, with a jitter of one tenth.
    #[must_use]
    pub fn new() -> Self {
        Self {
            base: Duration::from_millis(5),
            max: Duration::from_secs(1000),
            jitter: 0.1,
            random: Random::from_entropy(),
        }
    }

    /// Sets the delay after the first failure. Default: 5 ms.
    #[must_use]
    pub fn base(self, base: Duration) -> Self {
        Self { base, ..self }
    }

    /// Sets the maximum delay. Default: 1000 s.
    #[must_use]
    pub fn max(self, max: Duration) -> Self {
        Self { max, ..self }
    }

    /// Sets the random part of the delay, between 0 and 1; values outside are clamped. Default: 0.1.
    #[must_use]
    pub fn jitter(self, jitter: f64) -> Self {
        Self {
            jitter: jitter.clamp(0.0, 1.0),
            ..self
        }
    }

    /// Sets the seed of the random numbers, for tests. Default: a random seed, so that replicas do not retry at the
    /// same time.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self {
            random: Random::from_seed(seed),
            ..self
        }
    }
}

impl Backoff {
    /// Returns the base delay after this many doublings.
    fn grown(&self, doublings: u32) -> Duration {
        const STEP: u32 = 31;
        let mut delay = self.base.min(self.max);
        let mut left = doublings;
        while left > 0 && !delay.is_zero() && delay < self.max {
            delay = delay.saturating_mul(1 << left.min(STEP)).min(self.max);
            left = left.saturating_sub(STEP);
        }
        delay
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> RateLimiter<K> for Backoff {
    fn delay(&self, _key: &K, failures: u32, _now: MonotonicTime) -> Duration {
        let delay = self.grown(failures.saturating_sub(1));
        if self.jitter > 0.0 {
            // Subtracts instead of multiplying by almost one: the maximum duration would be rounded up beyond itself.
            delay.saturating_sub(delay.mul_f64(self.jitter * self.random.fraction()))
        } else {
            delay
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_delay_can_be_endless() {
        for jitter in [0.0, 1e-20, 0.1, 1.0] {
            let backoff = Backoff::new().max(Duration::MAX).jitter(jitter).seed(3);
            for failures in [0, 1, 32, 33, u32::MAX] {
                let delay = RateLimiter::<u8>::delay(&backoff, &0, failures, MonotonicTime::ORIGIN);
                assert!(delay <= Duration::MAX, "{jitter} {failures}");
            }
        }
    }

    #[test]
    fn delays_grow_from_any_base_and_never_shrink() {
        for base in [0, 1, 5_000_000, 2_000_000_000_000].map(Duration::from_nanos) {
            let backoff = Backoff::new().base(base).jitter(0.0);
            let delays = (1..200)
                .map(|failures| RateLimiter::<u8>::delay(&backoff, &0, failures, MonotonicTime::ORIGIN));
            let delays: Vec<_> = delays.collect();
            assert_eq!(delays[0], base.min(Duration::from_secs(1000)));
            for pair in delays.windows(2) {
                assert_eq!(pair[1], (2 * pair[0]).min(Duration::from_secs(1000)));
            }
        }
    }

    #[test]
    fn delays_stay_within_the_jitter_and_differ() {
        let backoff = Backoff::new().seed(3);
        let drawn: Vec<_> = (0..100)
            .map(|_| RateLimiter::<u8>::delay(&backoff, &0, 8, MonotonicTime::ORIGIN))
            .collect();
        assert!(
            drawn
                .iter()
                .all(|d| (Duration::from_millis(576)..=Duration::from_millis(640)).contains(d))
        );
        assert!(drawn.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_delay_never_exceeds_the_maximum() {
        let backoff = Backoff::new().base(Duration::from_secs(1)).jitter(1.0);
        for failures in [1, 10, 11, 32, 33, 64, u32::MAX] {
            assert!(
                RateLimiter::<u8>::delay(&backoff, &0, failures, MonotonicTime::ORIGIN)
                    <= Duration::from_secs(1000)
            );
        }
    }
}
