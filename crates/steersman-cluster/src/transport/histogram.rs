// SPDX-License-Identifier: Apache-2.0
//! Durations and sizes of requests, with the buckets of client-go.
//!
//! Each request adds to a few atomic counters that its method selects: no lock, no lookup of labels, no allocation. The
//! events of a watch add nothing.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use http::{Method, Request};
use http_body::Body as _;
use kube::client::Body;
use steersman_core::MonotonicTime;

/// Upper bounds of durations, in nanoseconds.
const DURATIONS: [u64; 12] = [
    5_000_000,
    25_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    4_000_000_000,
    8_000_000_000,
    15_000_000_000,
    30_000_000_000,
    60_000_000_000,
];

/// Upper bounds of sizes, in bytes.
const SIZES: [u64; 11] = [
    64, 256, 512, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216,
];

const NANOS_PER_SECOND: f64 = 1e9;

const VERBS: [Method; 7] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::HEAD,
    Method::OPTIONS,
];

/// A property of requests that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RequestMetric {
    /// Time from the request to its complete answer, retries included: `rest_client_request_duration_seconds`. Watches, logs
    /// and connections into a Pod have no duration.
    Duration,
    /// Time that a request waited for the rate limit of the client: `rest_client_rate_limiter_duration_seconds`.
    RateLimiterDuration,
    /// Bytes of the request body: `rest_client_request_size_bytes`.
    RequestSize,
    /// Bytes of the response body: `rest_client_response_size_bytes`.
    ResponseSize,
}

/// Distribution of a property of the requests with one method: a histogram of client-go.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RequestHistogram {
    /// The property.
    pub metric: RequestMetric,
    /// The HTTP method.
    pub verb: String,
    /// Host and port of the server.
    pub host: String,
    /// The upper bound of each bucket, in seconds or bytes, and the number of values in it. The last bound is `f64::INFINITY`.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all values, in seconds or bytes.
    pub sum: f64,
}

/// Histograms of all methods.
#[derive(Debug, Default)]
pub(super) struct RequestHistograms([OfVerb; VERBS.len()]);

#[derive(Debug, Default)]
struct OfVerb {
    duration: Histogram<{ DURATIONS.len() }>,
    limited: Histogram<{ DURATIONS.len() }>,
    sent: Histogram<{ SIZES.len() }>,
    received: Histogram<{ SIZES.len() }>,
}

#[derive(Debug)]
struct Histogram<const N: usize> {
    buckets: [AtomicU64; N],
    above: AtomicU64,
    sum: AtomicU64,
}

/// A request that is being measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    verb: usize,
    since: MonotonicTime,
    sent: u64,
    received: u64,
}

impl Measured {
    /// Starts to measure a request. Returns `None` for a method that no API server has.
    pub(super) fn start(request: &Request<Body>, now: MonotonicTime) -> Option<Self> {
        Some(Self {
            verb: position(request.method())?,
            since: now,
            sent: request.body().size_hint().lower(),
            received: 0,
        })
    }

    /// Counts bytes of the response.
    pub(super) fn receive(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }
}

impl RequestHistograms {
    /// Adds a request that got an answer, or none.
    pub(super) fn add(&self, measured: &Measured, now: MonotonicTime, has_answer: bool) {
        let of_verb = &self.0[measured.verb];
        of_verb
            .duration
            .add(&DURATIONS, nanos(now.saturating_since(measured.since)));
        of_verb.sent.add(&SIZES, measured.sent);
        if has_answer {
            of_verb.received.add(&SIZES, measured.received);
        }
    }

    /// Adds the time that a request waited for the rate limit.
    pub(super) fn limited(&self, method: &Method, waited: Duration) {
        if let Some(verb) = position(method) {
            self.0[verb].limited.add(&DURATIONS, nanos(waited));
        }
    }

    /// Returns the histograms that have values.
    pub(super) fn all(&self, host: &str) -> Vec<RequestHistogram> {
        let of_verb = |(method, all): (&Method, &OfVerb)| {
            let seconds = |histogram: &Histogram<_>| histogram.read(&DURATIONS, NANOS_PER_SECOND);
            let bytes = |histogram: &Histogram<_>| histogram.read(&SIZES, 1.0);
            let read = [
                (RequestMetric::Duration, seconds(&all.duration)),
                (RequestMetric::RateLimiterDuration, seconds(&all.limited)),
                (RequestMetric::RequestSize, bytes(&all.sent)),
                (RequestMetric::ResponseSize, bytes(&all.received)),
            ];
            let verb = method.to_string();
            read.into_iter().filter_map(move |(metric, read)| {
                let (buckets, sum) = read?;
                Some(RequestHistogram {
                    metric,
                    verb: verb.clone(),
                    host: host.to_owned(),
                    buckets,
                    sum,
                })
            })
        };
        VERBS.iter().zip(&self.0).flat_map(of_verb).collect()
    }
}

impl<const N: usize> Histogram<N> {
    fn add(&self, bounds: &[u64; N], value: u64) {
        let bucket = bounds.iter().position(|bound| value <= *bound);
        let bucket = bucket.map_or(&self.above, |bucket| &self.buckets[bucket]);
        bucket.fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Returns the buckets and the sum, in a unit of this size, if there are values.
    fn read(&self, bounds: &[u64; N], unit: f64) -> Option<(Vec<(f64, u64)>, f64)> {
        let counts = bounds.iter().zip(&self.buckets);
        let mut buckets: Vec<_> = counts
            .map(|(bound, count)| (*bound as f64 / unit, count.load(Relaxed)))
            .collect();
        buckets.push((f64::INFINITY, self.above.load(Relaxed)));
        let has_values = buckets.iter().any(|(_, count)| *count > 0);
        has_values.then(|| (buckets, self.sum.load(Relaxed) as f64 / unit))
    }
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| AtomicU64::default()),
            above: AtomicU64::default(),
            sum: AtomicU64::default(),
        }
    }
}

fn position(method: &Method) -> Option<usize> {
    VERBS.iter().position(|verb| verb == method)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(histogram: &RequestHistogram) -> Vec<u64> {
        histogram.buckets.iter().map(|(_, count)| *count).collect()
    }

    // C4
    #[test]
    fn values_are_in_the_buckets_of_client_go() {
        let histograms = RequestHistograms::default();
        assert!(histograms.all("host:1").is_empty());
        for millis in [1, 5, 6, 60_000, 61_000] {
            histograms.limited(&Method::PUT, Duration::from_millis(millis));
        }
        histograms.limited(&Method::CONNECT, Duration::from_secs(1));
        let all = histograms.all("host:1");
        let [limited] = &all[..] else {
            panic!("one histogram, not {all:?}")
        };
        assert_eq!(limited.metric, RequestMetric::RateLimiterDuration);
        assert_eq!((&*limited.verb, &*limited.host), ("PUT", "host:1"));
        assert_eq!(counts(limited), [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        let bounds: Vec<_> = limited.buckets.iter().map(|(bound, _)| *bound).collect();
        let expected = [
            0.005,
            0.025,
            0.1,
            0.25,
            0.5,
            1.0,
            2.0,
            4.0,
            8.0,
            15.0,
            30.0,
            60.0,
            f64::INFINITY,
        ];
        assert_eq!(bounds, expected);
        assert!((limited.sum - 121.012).abs() < 1e-9);
    }

    // C4
    #[test]
    fn a_request_without_an_answer_has_no_response_size() {
        let histograms = RequestHistograms::default();
        let request = Request::post("/").body(Body::from(vec![0; 65])).unwrap();
        let start = MonotonicTime::ORIGIN;
        let mut measured = Measured::start(&request, start).unwrap();
        histograms.add(&measured, start + Duration::from_secs(3), false);
        measured.receive(20_000_000);
        histograms.add(&measured, start + Duration::from_secs(3), true);
        let all = histograms.all("host:1");
        let sums: Vec<_> = all.iter().map(|one| (one.metric, one.sum)).collect();
        let expected = [
            (RequestMetric::Duration, 6.0),
            (RequestMetric::RequestSize, 130.0),
            (RequestMetric::ResponseSize, 20_000_000.0),
        ];
        assert_eq!(sums, expected);
        assert_eq!(counts(&all[2]).last(), Some(&1));
    }
}
