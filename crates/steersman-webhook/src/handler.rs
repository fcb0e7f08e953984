// SPDX-License-Identifier: Apache-2.0
//! The path of a call, from the HTTP request to the answer.
//!
//! # Guarantees
//! 1. Every call gets an answer: a review, or an HTTP error with a text that the API server repeats in its own error.
//! 2. A panic of user code ends its call and nothing else.
//! 3. A call ends at its time limit, which is the `timeout` that the API server sends.
//! 4. While the server drains, each answer closes its connection, so that none is in use when the server ends.
//! 5. An error of decoding names the field and what was expected. It does not have the value, which can be a secret.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::Value;
use steersman_cache::without_content;
use steersman_core::{Clock, panic_message};
use steersman_endpoints::{HttpHandler, HttpRequest, HttpResponse, read_body, text_response};

use crate::metrics::Metrics;

/// The API server sends reviews of two objects of at most 3 MiB each. The rest is metadata.
pub(crate) const ADMISSION_BYTES_MAX: usize = 7 << 20;

/// A list of objects is converted at once.
pub(crate) const CONVERSION_BYTES_MAX: usize = 128 << 20;

/// A body that is too large is read up to this size and discarded: a client that still sends does not read the answer.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// Time limit of a call if the API server sends none.
const TIME_LIMIT: Duration = Duration::from_secs(10);

pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send>>;

/// A call that gets an HTTP error instead of a review.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

/// One path of the server.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) path: String,
    pub(crate) is_conversion: bool,
    pub(crate) bytes_max: usize,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) is_draining: Arc<AtomicBool>,
    pub(crate) answer: Arc<dyn Fn(Bytes) -> Answering + Send + Sync>,
}

impl Endpoint {
    pub(crate) fn into_handler(self) -> HttpHandler {
        self.metrics.add_webhook(&self.path);
        let endpoint = Arc::new(self);
        HttpHandler::new(move |request| {
            let endpoint = Arc::clone(&endpoint);
            async move { endpoint.respond(request).await }
        })
    }

    async fn respond(&self, request: HttpRequest) -> HttpResponse {
        let began = self.clock.now();
        let in_flight = self.metrics.begin(&self.path);
        let mut response = match self.call(request).await {
            Ok(review) => json_response(&review),
            Err(Failure { status, message }) => {
                tracing::warn!(
                    webhook = self.path,
                    code = status.as_u16(),
                    error = message,
                    "webhook call failed"
                );
                text_response(status, format!("{message}\n"))
            }
        };
        if self.is_draining.load(Ordering::Relaxed) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        drop(in_flight);
        let took = self.clock.now().saturating_since(began);
        self.metrics
            .answered(&self.path, response.status().as_u16(), took);
        response
    }

    async fn call(&self, request: HttpRequest) -> Result<Value, Failure> {
        let limit = time_limit(request.uri().query());
        let body = self.body(request).await?;
        let answering = async {
            // User code runs in the call as well as in the future.
            let answering = std::panic::catch_unwind(AssertUnwindSafe(|| (self.answer)(body)));
            match answering {
                Ok(answering) => AssertUnwindSafe(answering).catch_unwind().await,
                Err(panic) => Err(panic),
            }
        };
        let late = self.clock.sleep_until(self.clock.now() + limit);
        let answered = tokio::select! {
            biased;
            answered = answering => answered,
            () = late => {
                let message = format!("webhook `{}` did not answer within {limit:?}", self.path);
                return Err(Failure::new(StatusCode::GATEWAY_TIMEOUT, message));
            }
        };
        answered.unwrap_or_else(|panic| {
            self.metrics.panicked(self.is_conversion);
            let message = panic_message(&*panic);
            Err(Failure::internal(format!(
                "webhook `{}` panicked: {message}",
                self.path
            )))
        })
    }

    async fn body(&self, request: HttpRequest) -> Result<Bytes, Failure> {
        if request.method() != Method::POST {
            return Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, "use POST"));
        }
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let content_type = content_type
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        if content_type.split(';').next().map(str::trim) != Some("application/json") {
            let message = format!("the content type is {content_type:?}; send `application/json`");
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let limit = self.bytes_max.max(DISCARDED_BYTES_MAX);
        let body = read_body(request.into_body(), limit).await;
        let body = body.map_err(|error| Failure::new(error.response().status(), error.to_string()))?;
        if body.len() > self.bytes_max {
            let message = format!("the request body exceeds {} bytes", self.bytes_max);
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        Ok(body)
    }
}

/// Describes an error of decoding for answers and for the log.
pub(crate) fn undecodable(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let reason = without_content(error.inner());
    // A value that was parsed already has no lines.
    let reason = reason.trim_end_matches(" at line 0 column 0");
    format!("{}: {reason}", error.path())
}

/// Returns the `timeout` of the query, which the API server sends in whole seconds.
fn time_limit(query: Option<&str>) -> Duration {
    let parameters = query.unwrap_or_default().split('&');
    let seconds = parameters
        .filter_map(|one| one.strip_prefix("timeout=")?.strip_suffix('s')?.parse().ok())
        .next();
    seconds.map_or(TIME_LIMIT, Duration::from_secs)
}

fn json_response(body: &Value) -> HttpResponse {
    let mut response = text_response(StatusCode::OK, body.to_string());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantee_3_reads_the_timeout_of_the_api_server() {
        assert_eq!(time_limit(Some("timeout=3s")), Duration::from_secs(3));
        assert_eq!(time_limit(Some("a=b&timeout=30s")), Duration::from_secs(30));
        for query in [None, Some(""), Some("timeout=soon"), Some("timeout=1m0s")] {
            assert_eq!(time_limit(query), TIME_LIMIT, "{query:?}");
        }
    }

    #[test]
    fn guarantee_5_an_error_of_decoding_has_the_field_and_not_its_value() {
        type Sizes = std::collections::BTreeMap<String, u8>;
        let sizes = serde_json::json!({"small": 1, "large": "hunter2"});
        let error = serde_path_to_error::deserialize::<_, Sizes>(sizes).unwrap_err();
        assert_eq!(undecodable(&error), "large: expected u8");
    }
}
