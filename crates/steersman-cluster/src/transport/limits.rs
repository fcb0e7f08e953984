// SPDX-License-Identifier: Apache-2.0
//! Limits of the requests of a cluster.
//!
//! # Guarantees
//! 1. All retries of a cluster share one [`RateLimit`], so that a failing server does not get a multiple of the usual
//!    load. A retry that would wait past the timeout of its request is not made.
//! 2. With a rate limit, each attempt waits for its turn, also those of informers. An attempt whose turn is not before
//!    its deadline fails at once. An attempt that ends while it waits returns its token.
//! 3. With a limit of requests in flight, a request holds its place until its answer is read, or until the server has
//!    rejected credentials that can be renewed. Watches and other long-running requests need none.
//! 4. Time spent waiting counts towards the timeout of the request.

use std::{sync::Arc, time::Duration};

use steersman_core::{Clock, MonotonicTime, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::TimedOut;

/// Waits longer than this are logged.
const LONG: Duration = Duration::from_secs(1);

/// A rate with bursts: a token bucket.
///
/// ```
/// use steersman_cluster::RateLimit;
///
/// let limit = RateLimit::new(20.0, 30);
/// assert_eq!((limit.per_second(), limit.burst()), (20.0, 30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    per_second: f64,
    burst: u32,
}

impl RateLimit {
    /// Default limit of retries, that of client-go: 10 per second, bursts of 100.
    pub(crate) const RETRIES: Self = Self {
        per_second: 10.0,
        burst: 100,
    };

    /// Creates a limit of `per_second` on average, and of `burst` at once. A rate that is not positive is the smallest
    /// one, once per day; a burst of zero is one.
    #[must_use]
    pub fn new(per_second: f64, burst: u32) -> Self {
        const ONCE_A_DAY: f64 = 1.0 / 86_400.0;
        // `max` also replaces a value that is not a number.
        Self {
            per_second: per_second.max(ONCE_A_DAY),
            burst: burst.max(1),
        }
    }

    /// Returns the average rate.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.per_second
    }

    /// Returns the number that is allowed at once.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.burst
    }
}

/// Limits of one cluster.
pub(crate) struct Limits {
    clock: Arc<dyn Clock>,
    retries: Bucket,
    requests: Option<Bucket>,
    in_flight: Option<Arc<Semaphore>>,
}

/// Place of a request among those in flight.
pub(crate) type Permit = Option<OwnedSemaphorePermit>;

struct Bucket {
    limit: RateLimit,
    state: Mutex<Tokens>,
}

struct Tokens {
    /// Negative if requests wait.
    count: f64,
    since: MonotonicTime,
}

impl Limits {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        retries: RateLimit,
        requests: Option<RateLimit>,
        in_flight: Option<usize>,
    ) -> Self {
        let now = clock.now();
        Self {
            clock,
            retries: Bucket::new(retries, now),
            requests: requests.map(|limit| Bucket::new(limit, now)),
            in_flight: in_flight
                .map(|count| Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)))),
        }
    }

    /// Reserves a retry after `delay`, and returns the time at which it starts. `None` if that is not before the
    /// deadline.
    pub(super) fn retry(&self, delay: Duration, deadline: Option<MonotonicTime>) -> Option<MonotonicTime> {
        let now = self.clock.now();
        let is_in_time = |wait: Duration| deadline.is_none_or(|deadline| now + delay.max(wait) < deadline);
        let wait = self.retries.reserve(now, is_in_time)?;
        Some(now + delay.max(wait))
    }

    /// Waits until an attempt is allowed to start. Also returns the time that it waited, if there is a limit. Fails at
    /// once if its turn is not before the deadline, which comes with the timeout of the request.
    pub(super) async fn admit(
        &self,
        is_long_running: bool,
        deadline: Option<(MonotonicTime, Duration)>,
    ) -> Result<(Permit, Option<Duration>), TimedOut> {
        if self.requests.is_none() && self.in_flight.is_none() {
            return Ok((None, None));
        }
        let start = self.clock.now();
        let token = match &self.requests {
            Some(requests) => Some(self.turn(requests, start, deadline).await?),
            None => None,
        };
        // After the turn: a request that waits for its turn keeps no place from others.
        let permit = match &self.in_flight {
            // It is never closed.
            Some(places) if !is_long_running => Arc::clone(places).acquire_owned().await.ok(),
            _ => None,
        };
        if let Some(token) = token {
            token.spend();
        }
        let waited = self.clock.now().saturating_since(start);
        if waited > LONG {
            tracing::info!(
                ?waited,
                "request waited for the client-side limits of the cluster"
            );
        }
        Ok((permit, Some(waited)))
    }

    /// Waits for a token of the bucket.
    async fn turn<'a>(
        &self,
        bucket: &'a Bucket,
        now: MonotonicTime,
        deadline: Option<(MonotonicTime, Duration)>,
    ) -> Result<Token<'a>, TimedOut> {
        let is_in_time = |wait: Duration| deadline.is_none_or(|(deadline, _)| now + wait < deadline);
        let wait = match (bucket.reserve(now, is_in_time), deadline) {
            (Some(wait), _) => wait,
            (None, Some((_, limit))) => return Err(TimedOut { limit }),
            // Not reached: without a deadline, each wait is accepted.
            (None, None) => Duration::ZERO,
        };
        let token = Token {
            bucket,
            is_spent: false,
        };
        if !wait.is_zero() {
            self.clock.sleep_until(now + wait).await;
        }
        Ok(token)
    }
}

/// Token of an attempt that waits. Dropping it returns it to the bucket, unless it is spent.
struct Token<'a> {
    bucket: &'a Bucket,
    is_spent: bool,
}

impl Token<'_> {
    /// Keeps the token out of the bucket: the attempt starts.
    fn spend(mut self) {
        self.is_spent = true;
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        if !self.is_spent {
            // More than a burst is cut off when the next token is taken.
            self.bucket.state.lock().count += 1.0;
        }
    }
}

impl Bucket {
    fn new(limit: RateLimit, now: MonotonicTime) -> Self {
        let count = f64::from(limit.burst);
        Self {
            limit,
            state: Mutex::new(Tokens { count, since: now }),
        }
    }

    /// Takes a token, if the time until it is there is accepted, and returns that time.
    fn reserve(&self, now: MonotonicTime, accept: impl FnOnce(Duration) -> bool) -> Option<Duration> {
        let mut tokens = self.state.lock();
        let gained = now.saturating_since(tokens.since).as_secs_f64() * self.limit.per_second;
        let count = (tokens.count + gained).min(f64::from(self.limit.burst)) - 1.0;
        let wait = Duration::try_from_secs_f64(-count / self.limit.per_second).unwrap_or_default();
        if !accept(wait) {
            return None;
        }
        *tokens = Tokens { count, since: now };
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use steersman_core::TestClock;

    use super::*;

    fn limits(clock: &TestClock, retries: RateLimit) -> Limits {
        Limits::new(Arc::new(clock.clone()), retries, None, None)
    }

    // C3
    #[test]
    fn guarantee_1_retries_share_a_rate() {
        let clock = TestClock::new();
        let limits = limits(&clock, RateLimit::RETRIES);
        let start = clock.now();
        let retry = |delay| limits.retry(delay, None).unwrap().saturating_since(start);
        for _ in 0..100 {
            assert_eq!(retry(Duration::ZERO), Duration::ZERO);
        }
        assert_eq!(retry(Duration::ZERO), Duration::from_millis(100));
        assert_eq!(retry(Duration::ZERO), Duration::from_millis(200));
        // A delay of the retry itself covers the wait.
        assert_eq!(retry(Duration::from_secs(1)), Duration::from_secs(1));
        clock.advance(Duration::from_secs(3600));
        assert_eq!(retry(Duration::ZERO), Duration::from_secs(3600));
    }

    // C3
    #[test]
    fn guarantee_1_a_retry_past_the_deadline_takes_no_token() {
        let clock = TestClock::new();
        let limits = limits(&clock, RateLimit::new(1.0, 1));
        let deadline = Some(clock.now() + Duration::from_secs(1));
        assert!(limits.retry(Duration::ZERO, deadline).is_some());
        for _ in 0..3 {
            assert_eq!(limits.retry(Duration::ZERO, deadline), None);
        }
        assert!(
            limits
                .retry(Duration::ZERO, Some(clock.now() + Duration::from_secs(2)))
                .is_some()
        );
    }

    // C3
    #[tokio::test]
    async fn guarantee_2_a_request_whose_turn_is_too_late_fails_and_takes_no_token() {
        let clock = TestClock::new();
        let rate = RateLimit::new(1.0, 1);
        let limits = Limits::new(Arc::new(clock.clone()), rate, Some(rate), None);
        let limit = Duration::from_secs(1);
        let deadline = Some((clock.now() + limit, limit));
        limits.admit(false, deadline).await.unwrap();
        for _ in 0..3 {
            assert_eq!(
                limits.admit(false, deadline).await.err(),
                Some(TimedOut { limit })
            );
        }
        clock.advance(Duration::from_secs(1));
        let (_, waited) = limits.admit(false, None).await.unwrap();
        assert_eq!(waited, Some(Duration::ZERO));
    }

    // C3
    #[tokio::test]
    async fn guarantee_2_a_request_that_ends_while_it_waits_returns_its_token() {
        let clock = TestClock::new();
        let rate = RateLimit::new(1.0, 1);
        let limits = Limits::new(Arc::new(clock.clone()), rate, Some(rate), Some(1));
        let (place, _) = limits.admit(false, None).await.unwrap();
        // They end while they wait for a turn.
        for _ in 0..3 {
            assert!(limits.admit(false, None).now_or_never().is_none());
        }
        clock.advance(Duration::from_secs(1));
        // They end while they wait for a place.
        for _ in 0..3 {
            assert!(limits.admit(false, None).now_or_never().is_none());
        }
        drop(place);
        let (_, waited) = limits.admit(false, None).now_or_never().unwrap().unwrap();
        assert_eq!(waited, Some(Duration::ZERO));
    }

    // C3
    #[tokio::test]
    async fn guarantee_3_a_request_that_waits_for_its_turn_has_no_place() {
        let clock = TestClock::new();
        let rate = RateLimit::new(1.0, 1);
        let limits = Limits::new(Arc::new(clock.clone()), rate, Some(rate), Some(1));
        limits.admit(true, None).await.unwrap();
        let mut waiting = Box::pin(limits.admit(false, None));
        assert!((&mut waiting).now_or_never().is_none());
        let places = limits.in_flight.as_ref().unwrap();
        assert_eq!(places.available_permits(), 1);
        clock.advance(Duration::from_secs(1));
        let (_place, _) = waiting.await.unwrap();
        assert_eq!(places.available_permits(), 0);
    }

    #[test]
    fn senseless_limits_are_corrected() {
        for rate in [0.0, -1.0, f64::NAN] {
            let limit = RateLimit::new(rate, 0);
            assert!(limit.per_second() > 0.0 && limit.burst() == 1, "{limit:?}");
        }
    }
}
