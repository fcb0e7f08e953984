// SPDX-License-Identifier: Apache-2.0
//! Observation of requests and responses.
//!
//! # Guarantees
//! 1. The observer is called once for each request, when its response begins, including rejected requests and lost
//!    responses.
//! 2. It sees neither bodies nor credentials.
//! 3. It is called outside the server's lock, on the task of the request, and delays no other request.

use std::{fmt, sync::Arc, time::Duration};

use http::{Method, Response, StatusCode, Uri, header};

use crate::{body::Body, handler::Call, route::Verb, service::ConnectionLost};

/// A request and its response.
#[derive(Debug)]
#[non_exhaustive]
pub struct Exchange<'a> {
    /// HTTP method.
    pub method: &'a Method,
    /// Path and query.
    pub uri: &'a Uri,
    /// Name of the user.
    pub user: &'a str,
    /// `User-Agent` header; empty if absent.
    pub user_agent: &'a str,
    /// Status code; `None` if the response was lost.
    pub status: Option<StatusCode>,
    /// Time until the response began.
    pub took: Duration,
    /// True for a watch, whose response continues.
    pub is_watch: bool,
}

/// The callback that observes requests.
#[derive(Clone)]
pub(crate) struct Observer(Arc<dyn Fn(&Exchange<'_>) + Send + Sync>);

impl Observer {
    pub(crate) fn new(see: impl Fn(&Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(see))
    }

    /// Reports a request whose response begins now.
    pub(crate) fn see(
        &self,
        call: &Call,
        uri: &Uri,
        answer: &Result<Response<Body>, ConnectionLost>,
        took: Duration,
    ) {
        let user_agent = call.headers.get(header::USER_AGENT);
        let verb = call.resource_request().map(|(verb, _)| verb);
        (self.0)(&Exchange {
            method: &call.method,
            uri,
            user: call.identity.name(),
            user_agent: user_agent.and_then(|text| text.to_str().ok()).unwrap_or_default(),
            status: answer.as_ref().ok().map(Response::status),
            took,
            is_watch: verb == Some(Verb::Watch),
        });
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
