// SPDX-License-Identifier: Apache-2.0
//! Decides whether a request is retried, and after which delay.
//!
//! It does not use kube's retry layer, which retries writes that might have been applied, up to fifteen times, and uses
//! its own random numbers.

use std::{error::Error, time::Duration};

use http::{HeaderMap, Request, Response, StatusCode, header};
use hyper_util::client::legacy;
use kube::client::Body;
use steersman_core::Random;

use super::SendError;
use crate::credentials::NoCredentials;

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// Maximum delay that a server can ask for. Without it a watch, which has no timeout, could wait forever.
const PATIENCE: Duration = Duration::from_secs(120);

/// Attempts of one request.
pub(super) struct Tries {
    left: u32,
    is_read: bool,
    next: Duration,
}

impl Tries {
    pub(super) fn new(tries: u32, is_read: bool) -> Self {
        Self {
            left: tries.saturating_sub(1),
            is_read,
            next: FIRST_DELAY,
        }
    }

    /// Returns the delay before the next attempt, if there is one.
    pub(super) fn delay<B>(
        &mut self,
        result: &Result<Response<B>, SendError>,
        random: &Random,
    ) -> Option<Duration> {
        let at_least = self.patience(result)?;
        self.left = self.left.checked_sub(1)?;
        let jittered = self.next.mul_f64(0.5 + random.fraction());
        self.next = (self.next * 2).min(LONGEST_DELAY);
        Some(jittered.max(at_least.min(PATIENCE)))
    }

    /// Returns the minimum delay, if a retry is allowed.
    fn patience<B>(&self, result: &Result<Response<B>, SendError>) -> Option<Duration> {
        match result {
            Ok(response) => match (response.status(), retry_after(response.headers())) {
                // The server reports that it did not act.
                (StatusCode::TOO_MANY_REQUESTS, Some(time)) => Some(time),
                // The answer might be from a proxy in front of a server that did act.
                (StatusCode::SERVICE_UNAVAILABLE, time) if self.is_read => Some(time.unwrap_or_default()),
                _ => None,
            },
            Err(SendError::Failed(error)) => {
                (is_network(error) && (self.is_read || is_unsent(error))).then_some(Duration::ZERO)
            }
            Err(_) => None,
        }
    }
}

/// Returns the delay that a server asks for.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Reports whether the network, and not the request, is the cause. Missing credentials are not: the exec plugin has just
/// failed, and does not run again at once.
fn is_network(error: &kube::Error) -> bool {
    match error {
        kube::Error::Service(error) => !error.is::<NoCredentials>(),
        error => matches!(error, kube::Error::HyperError(_)),
    }
}

/// Reports whether the connection failed or there were no credentials, so that no byte of the request was sent.
pub(crate) fn is_unsent(error: &kube::Error) -> bool {
    let first: &(dyn Error + 'static) = error;
    std::iter::successors(Some(first), |&error| error.source()).any(|error| {
        let is_connect = error.downcast_ref().is_some_and(legacy::Error::is_connect);
        is_connect || error.is::<NoCredentials>()
    })
}

/// Copies a request, if its body allows it.
pub(super) fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Describes the outcome of an attempt for the log.
pub(super) fn outcome<B>(result: &Result<Response<B>, SendError>) -> String {
    match result {
        Ok(response) => response.status().to_string(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, retry_after: Option<u32>) -> Result<Response<()>, SendError> {
        let mut response = Response::builder().status(code);
        if let Some(seconds) = retry_after {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        Ok(response.body(()).unwrap())
    }

    fn delay(is_read: bool, result: &Result<Response<()>, SendError>) -> Option<Duration> {
        Tries::new(3, is_read).delay(result, &Random::from_seed(1))
    }

    #[test]
    fn retries_a_write_only_if_the_server_did_not_act() {
        let waits = delay(false, &answer(429, Some(2))).unwrap();
        assert_eq!(waits, Duration::from_secs(2));
        for (code, retry_after) in [
            (429, None),
            (503, None),
            (503, Some(1)),
            (500, None),
            (504, None),
            (409, None),
        ] {
            assert_eq!(delay(false, &answer(code, retry_after)), None, "{code}");
        }
    }

    #[test]
    fn retries_a_read_if_the_server_is_unreachable() {
        assert!(delay(true, &answer(503, None)).is_some());
        assert_eq!(delay(true, &answer(503, Some(7))), Some(Duration::from_secs(7)));
        for code in [200, 404, 429, 500] {
            assert_eq!(delay(true, &answer(code, None)), None, "{code}");
        }
    }

    #[test]
    fn limits_retry_after_to_two_minutes() {
        for is_read in [true, false] {
            assert_eq!(delay(is_read, &answer(429, Some(86_400))), Some(PATIENCE));
        }
    }

    #[test]
    fn limits_attempts_and_increases_delays() {
        let random = Random::from_seed(1);
        let mut tries = Tries::new(3, true);
        let result = answer(503, None);
        let delays: Vec<_> = std::iter::from_fn(|| tries.delay(&result, &random)).collect();
        assert_eq!(delays.len(), 2);
        assert!(delays[0] >= FIRST_DELAY / 2 && delays[0] < FIRST_DELAY * 3 / 2);
        assert!(delays[1] >= FIRST_DELAY && delays[1] < FIRST_DELAY * 3);
    }

    #[test]
    fn does_not_retry_a_fenced_request() {
        let closed = crate::Closed {
            reason: "test".into(),
            was_sent: false,
        };
        assert_eq!(delay(true, &Err(SendError::Closed(closed))), None);
    }
}
