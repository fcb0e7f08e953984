// SPDX-License-Identifier: Apache-2.0
//! What was asked and how it was answered, for those who look on.
//!
//! # Guarantees
//! 1. An observer is told of each request once, when its answer begins; also of those that were refused, or whose answer
//!    was lost.
//! 2. It sees neither bodies nor credentials.
//! 3. It is called outside of the server's lock, on the task of the request, and delays no other one.

use std::{fmt, sync::Arc, time::Duration};

use http::{Method, Response, StatusCode, Uri, header};

use crate::{body::Body, handler::Call, route::Verb, service::ConnectionLost};

/// A request and its answer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Exchange<'a> {
    /// The method.
    pub method: &'a Method,
    /// Path and query.
    pub uri: &'a Uri,
    /// Who asked.
    pub user: &'a str,
    /// What the client calls itself; empty if it does not say.
    pub user_agent: &'a str,
    /// The code of the answer; nothing if the answer was lost.
    pub status: Option<StatusCode>,
    /// How long it took until the answer began.
    pub took: Duration,
    /// Whether it is a watch, whose answer goes on.
    pub is_watch: bool,
}

/// Who looks on.
#[derive(Clone)]
pub(crate) struct Observer(Arc<dyn Fn(&Exchange<'_>) + Send + Sync>);

impl Observer {
    pub(crate) fn new(see: impl Fn(&Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(see))
    }

    /// Tells of a request that was answered now.
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
