// SPDX-License-Identifier: Apache-2.0
//! HTTP handler for the log filter.

use http::{HeaderValue, Method, StatusCode, header};
use steersman_core::error_chain;
use steersman_endpoints::{Body, HttpHandler, HttpResponse, read_body, text_response};

use super::{FilterError, LogHandle};

/// Maximum size of a filter.
const FILTER_BYTES_MAX: usize = 4096;

impl LogHandle {
    /// Returns an HTTP handler: GET returns the filter, PUT sets it. An invalid filter gets status 400 and the error.
    ///
    /// Mount it with [`MetricsServer::route`](steersman_endpoints::MetricsServer::route), which applies its authorization.
    ///
    /// ```
    /// use steersman_endpoints::{MetricsRegistry, MetricsServer};
    /// use steersman_runtime::Logging;
    ///
    /// let logs = Logging::from_env().install()?;
    /// let server = MetricsServer::new(MetricsRegistry::new()).route("/loglevel", logs.handler());
    /// // curl --request PUT --data debug http://localhost:8080/loglevel
    /// # Ok::<(), steersman_runtime::LoggingError>(())
    /// ```
    #[must_use]
    pub fn handler(&self) -> HttpHandler {
        let handle = self.clone();
        HttpHandler::new(move |request| {
            let handle = handle.clone();
            async move {
                match *request.method() {
                    Method::GET | Method::HEAD => text_response(StatusCode::OK, handle.filter() + "\n"),
                    Method::PUT => put(&handle, request.into_body()).await,
                    _ => not_allowed(),
                }
            }
        })
    }
}

async fn put(handle: &LogHandle, body: Body) -> HttpResponse {
    let body = match read_body(body, FILTER_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return error.response(),
    };
    let filter = String::from_utf8_lossy(&body);
    match handle.set_filter(&filter) {
        Ok(()) => {
            let filter = handle.filter();
            tracing::info!(filter, "log filter changed");
            text_response(StatusCode::OK, filter + "\n")
        }
        Err(error) => {
            let status = match error {
                FilterError::Ended => StatusCode::INTERNAL_SERVER_ERROR,
                _ => StatusCode::BAD_REQUEST,
            };
            text_response(status, error_chain(&error) + "\n")
        }
    }
}

fn not_allowed() -> HttpResponse {
    let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, "use GET or PUT\n");
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, PUT"));
    response
}
