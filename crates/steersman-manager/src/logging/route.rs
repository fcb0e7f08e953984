// SPDX-License-Identifier: Apache-2.0
//! The log's filter over HTTP.

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};

use super::{FilterError, LogHandle};
use crate::{
    Handler, Request,
    serve::{causes, text},
};

/// No filter that a person writes is longer.
const FILTER_BYTES_MAX: usize = 4096;

impl LogHandle {
    /// Answers GET with the filter, and takes another with PUT; 400 says what is wrong with it.
    ///
    /// It is not for everybody: mount it with [`MetricsServer::route`](crate::MetricsServer::route), behind its door.
    ///
    /// ```
    /// use steersman_manager::{Logging, MetricsRegistry, MetricsServer};
    ///
    /// let logs = Logging::from_env().install()?;
    /// let server = MetricsServer::new(MetricsRegistry::new()).route("/loglevel", logs.handler());
    /// // curl --request PUT --data debug http://localhost:8080/loglevel
    /// # Ok::<(), steersman_manager::LoggingError>(())
    /// ```
    #[must_use]
    pub fn handler(&self) -> Handler {
        let handle = self.clone();
        Handler::new(move |request| {
            let handle = handle.clone();
            async move {
                match *request.method() {
                    Method::GET | Method::HEAD => text(StatusCode::OK, handle.filter() + "\n"),
                    Method::PUT => put(&handle, request).await,
                    _ => not_allowed(),
                }
            }
        })
    }
}

async fn put(handle: &LogHandle, request: Request) -> http::Response<Full<Bytes>> {
    let Ok(body) = Limited::new(request.into_body(), FILTER_BYTES_MAX)
        .collect()
        .await
    else {
        let reason = format!("a filter has at most {FILTER_BYTES_MAX} bytes\n");
        return text(StatusCode::PAYLOAD_TOO_LARGE, reason);
    };
    let filter = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    match handle.set_filter(&filter) {
        Ok(()) => {
            let filter = handle.filter();
            tracing::info!(filter, "the log's filter was changed");
            text(StatusCode::OK, filter + "\n")
        }
        Err(error @ FilterError::Ended) => text(StatusCode::INTERNAL_SERVER_ERROR, causes(&error) + "\n"),
        Err(error) => text(StatusCode::BAD_REQUEST, causes(&error) + "\n"),
    }
}

fn not_allowed() -> http::Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "use GET or PUT\n");
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, PUT"));
    response
}
