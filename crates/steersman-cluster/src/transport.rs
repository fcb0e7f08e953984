// SPDX-License-Identifier: Apache-2.0
//! Sends the requests of all clients of a cluster.
//!
//! ```text
//! verbs ──┐
//!         ├─▶ tries (retry.rs) ─▶ attempt: credentials, limits, fences, time ─▶ link.rs: TLS, connections
//! kube() ─┘                                └─▶ meter, warnings, contact
//! ```
//!
//! # Guarantees
//! 1. Each attempt checks the gate of the cluster, and each attempt of a write also checks every fence; see
//!    [`fence`](crate::Fence). The task that writes the body of a write to the socket checks once more: it does not
//!    write an attempt whose time is over. Each attempt sends its remaining time to the server. Requests that lead into
//!    a Pod or past the API server, such as `exec`, count as writes with any method.
//! 2. A request is retried only if it cannot take effect twice: a read, or a write that the server did not accept.
//!    Retries respect `Retry-After`, within the timeout of the request, and up to two minutes.
//! 3. The timeout of a request covers all of its attempts and the complete answer. Watches have none.
//! 4. Every attempt is counted, by the code of its answer. Every request is measured: its duration and sizes.
//! 5. No content of a request or an answer is logged.

mod attempt_guard;
mod body;
mod flow_control;
mod histogram;
mod limits;
mod link;
mod meter;
mod retry;
#[cfg(test)]
mod tests;
mod warnings;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, combinators::MapErr};
use kube::client::Body;
use steersman_cache::Liveness;
use steersman_core::{Clock, MonotonicTime, Random};
use tower_service::Service;

pub(crate) use self::warnings::Warnings;
pub(crate) use self::{
    attempt_guard::AttemptGuard,
    body::Guarded,
    flow_control::FlowControl,
    limits::Limits,
    link::Link,
    meter::{Contact, Meter},
    retry::{is_unsent, retry_after},
};
pub use self::{
    attempt_guard::TimedOut,
    flow_control::FlowControlCount,
    histogram::{RequestHistogram, RequestMetric},
    limits::RateLimit,
    meter::RequestCount,
};
use self::{histogram::Measured, retry::Tries};
use crate::{
    Closed, Fence,
    credentials::{Credentials, Presented, RejectedCredentials},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Transport of one client. Cloning copies pointers.
#[derive(Clone)]
pub(crate) struct Transport {
    base: Link,
    shared: Arc<SharedTransport>,
    /// Fences that writes check in addition to the gate.
    fences: Arc<[Fence]>,
    /// `None` for callers that enforce their own timeouts.
    timeout: Option<Duration>,
    tries: u32,
    /// Headers of each request, in addition to its own.
    headers: Option<Arc<HeaderMap>>,
    /// Keeps the cluster alive while this transport exists.
    held: Option<Arc<dyn Send + Sync>>,
}

/// State that all clients of a cluster share.
pub(crate) struct SharedTransport {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<Random>,
    /// Gate that every request checks.
    pub(crate) gate: Fence,
    pub(crate) user_agent: HeaderValue,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) limits: Limits,
    pub(crate) flow_control: FlowControl,
    pub(crate) meter: Meter,
    pub(crate) warnings: Warnings,
    /// Notified of each successful answer.
    pub(crate) liveness: Liveness,
}

/// No answer arrived.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Closed(#[from] Closed),
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    #[error(transparent)]
    Failed(kube::Error),
}

impl Transport {
    /// Creates a transport without timeout, retries and fences except the gate.
    pub(crate) fn plain(base: Link, shared: Arc<SharedTransport>) -> Self {
        Self {
            base,
            shared,
            fences: Arc::new([]),
            timeout: None,
            tries: 1,
            headers: None,
            held: None,
        }
    }

    /// Sets a timeout and the number of attempts.
    pub(crate) fn limited(mut self, timeout: Duration, tries: u32) -> Self {
        self.timeout = Some(timeout);
        self.tries = tries.max(1);
        self
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// Returns the timeout of a request, or `None` without one.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Sets headers that each request has. They replace headers of the same name.
    pub(crate) fn set_headers(&mut self, headers: HeaderMap) {
        self.headers = Some(Arc::new(headers));
    }

    pub(crate) fn add_fence(&mut self, fence: Fence) {
        self.fences = self.fences.iter().cloned().chain([fence]).collect();
    }

    pub(crate) fn remove_fences(&mut self) {
        self.fences = Arc::new([]);
    }

    /// Returns the transport, which keeps `held` alive.
    pub(crate) fn holding(mut self, held: Arc<dyn Send + Sync>) -> Self {
        self.held = Some(held);
        self
    }

    /// Reports whether the gate is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.gate.check().is_err()
    }

    /// Converts it into a kube client. Requires a tokio runtime: requests are queued in a task.
    pub(crate) fn into_kube(self) -> kube::Client {
        let namespace = self.base.default_namespace().to_owned();
        kube::Client::new(self, namespace)
    }

    /// Sends a request, with retries, and measures it up to the end of its answer. A watch has no duration.
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Guarded>, SendError> {
        let is_measured = !is_long_running(&request);
        let now = self.shared.clock.now();
        let measured = is_measured.then(|| Measured::start(&request, now)).flatten();
        let result = self.send_with_retries(request).await;
        match (measured, result) {
            (None, result) => result,
            (Some(measured), Ok(response)) => Ok(response.map(|body| body.measured(measured))),
            (Some(measured), Err(error)) => {
                let shared = &self.shared;
                shared.meter.histograms.add(&measured, shared.clock.now(), false);
                Err(error)
            }
        }
    }

    async fn send_with_retries(&self, mut request: Request<Body>) -> Result<Response<Guarded>, SendError> {
        if !request.headers().contains_key(header::USER_AGENT) {
            let agent = self.shared.user_agent.clone();
            request.headers_mut().insert(header::USER_AGENT, agent);
        }
        if let Some(headers) = &self.headers {
            request.headers_mut().extend(HeaderMap::clone(headers));
        }
        let deadline = self.deadline(&request);
        let mut tries = Tries::new(self.tries, is_read(request.method(), request.uri()));
        loop {
            // A body that cannot be copied is sent once.
            let next = retry::copy(&request);
            let result = self.attempt(request, deadline).await;
            let Some(next) = next else { return result };
            let Some(delay) = tries.delay(&result, &self.shared.random) else {
                return result;
            };
            let Some(until) = self
                .shared
                .limits
                .retry(delay, deadline.map(|(deadline, _)| deadline))
            else {
                return result;
            };
            let answer = result.as_ref().ok().map(Response::status);
            self.shared.meter.retried(next.method(), answer);
            let outcome = retry::outcome(&result);
            tracing::debug!(method = %next.method(), path = next.uri().path(), ?delay, outcome, "retrying request");
            // Dropped before the wait, with the connection of its body.
            drop(result);
            let pass = self.pass(is_read(next.method(), next.uri()), deadline);
            pass.over(self.shared.clock.sleep_until(until)).await?;
            request = next;
        }
    }

    /// Runs one attempt, or two if the credentials have changed meanwhile: a server that answers 401 has not acted.
    async fn attempt(
        &self,
        mut request: Request<Body>,
        deadline: Option<(MonotonicTime, Duration)>,
    ) -> Result<Response<Guarded>, SendError> {
        let credentials = &self.shared.credentials;
        let pass = self.pass(is_read(request.method(), request.uri()), deadline);
        let presented = pass.over(credentials.current()).await?.map_err(|error| {
            self.shared.meter.has_no_credentials(&error);
            SendError::Failed(kube::Error::Service(Box::new(error)))
        })?;
        let again = credentials.can_change().then(|| retry::copy(&request)).flatten();
        present(&mut request, &presented);
        let mut response = self.attempt_once(request, deadline, &presented).await?;
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some(mut request) = again
        {
            // Other requests use its place while the credentials are renewed; the second attempt gets its own place.
            response.body_mut().release();
            if let Some(new) = pass.over(credentials.rejected(&presented)).await? {
                tracing::debug!(credentials = %credentials.place(), "credentials changed; retrying with the new ones");
                // Dropped before the second attempt, with the connection of its body.
                drop(response);
                present(&mut request, &new);
                response = self.attempt_once(request, deadline, &new).await?;
            }
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            credentials.warn_rejected();
            let place = RejectedCredentials(Arc::clone(credentials.place()));
            response.extensions_mut().insert(place);
        }
        Ok(response)
    }

    async fn attempt_once(
        &self,
        mut request: Request<Body>,
        deadline: Option<(MonotonicTime, Duration)>,
        presented: &Presented,
    ) -> Result<Response<Guarded>, SendError> {
        let method = request.method().clone();
        let is_read = is_read(&method, request.uri());
        let is_long_running = is_long_running(&request);
        let pass = self.pass(is_read, deadline);
        let admitted = self.shared.limits.admit(is_long_running, deadline);
        let (permit, waited) = pass.over(admitted).await??;
        if let Some(waited) = waited {
            self.shared.meter.histograms.limited(&method, waited);
        }
        pass.check()?;
        if !is_read
            && !is_long_running
            && let Some(remaining) = pass.remaining(self.shared.clock.now())
        {
            tell_time(&mut request, remaining);
        }
        let (guard, refused) = pass.guard();
        if !is_read {
            request.extensions_mut().insert(guard);
        }
        let answer = pass.over(self.base.send(request, presented.tls)).await;
        let answer = match (answer, refused.take()) {
            (Ok(Ok(response)), _) => Ok(response),
            (_, Some(refused)) => Err(refused),
            (Ok(Err(error)), None) => Err(SendError::Failed(error)),
            (Err(error), None) => Err(pass.given_up(error)),
        };
        let shared = &self.shared;
        shared.meter.note(&method, answer.as_ref().map(Response::status));
        if matches!(answer, Err(SendError::Failed(_))) {
            shared.credentials.connection_failed();
        }
        let response = answer?;
        if response.status().is_success() {
            shared.liveness.answered();
        }
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            shared.flow_control.note(response.headers());
        }
        shared.warnings.note(response.headers());
        Ok(response.map(|body| Guarded::new(body, pass, permit, self.held.clone())))
    }

    fn pass(&self, is_read: bool, deadline: Option<(MonotonicTime, Duration)>) -> AttemptGuard {
        AttemptGuard::new(Arc::clone(&self.shared), is_read, &self.fences, deadline)
    }

    fn deadline(&self, request: &Request<Body>) -> Option<(MonotonicTime, Duration)> {
        let timeout = self.timeout.filter(|_| !is_long_running(request))?;
        Some((self.shared.clock.now() + timeout, timeout))
    }
}

/// Adds the credentials to a request.
fn present(request: &mut Request<Body>, presented: &Presented) {
    if let Some(header) = &presented.authorization {
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, header.clone());
    }
}

/// Subresources that connect to something other than objects. A request there can have any effect.
const DOORS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];

/// Reports whether a request changes nothing.
fn is_read(method: &Method, uri: &Uri) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
        && !subresource(uri.path()).is_some_and(|name| DOORS.contains(&name))
}

/// Reports whether the request has no timeout: the same requests that the server does not limit.
fn is_long_running(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let is_watch = form_urlencoded::parse(query.as_bytes())
        .any(|(key, value)| key == "watch" && matches!(&*value, "" | "1" | "true"));
    let is_stream = |name: &str| name == "log" || DOORS.contains(&name);
    is_watch || subresource(request.uri().path()).is_some_and(is_stream)
}

/// Returns the subresource in a path. Objects and namespaces can have the same names.
fn subresource(path: &str) -> Option<&str> {
    let mut parts = path.trim_start_matches('/').split('/');
    match parts.next()? {
        "api" => parts.next()?,
        "apis" => parts.nth(1)?,
        _ => return None,
    };
    let resource = parts.next()?;
    // In a namespace, two segments precede the resource.
    parts.nth(if resource == "namespaces" { 3 } else { 1 })
}

/// Sets the timeout for the server, so that it does not act after the client has stopped waiting.
fn tell_time(request: &mut Request<Body>, remaining: Duration) {
    let uri = request.uri();
    let millis = remaining.as_millis().max(1);
    let separator = if uri.query().is_some_and(|query| !query.is_empty()) {
        "&"
    } else {
        "?"
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let text = format!("{}{separator}timeout={millis}ms", path.trim_end_matches('?'));
    let mut parts = uri.clone().into_parts();
    if let Ok(path) = text.parse() {
        parts.path_and_query = Some(path);
        if let Ok(uri) = http::Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

/// For [`kube::Client`].
impl Service<Request<Body>> for Transport {
    type Response = Response<MapErr<Guarded, fn(SendError) -> BoxError>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let transport = self.clone();
        Box::pin(async move {
            let response = transport.send(request).await.map_err(SendError::boxed)?;
            Ok(response.map(|body| body.map_err(SendError::boxed as fn(SendError) -> BoxError)))
        })
    }
}

impl SendError {
    /// Unwraps the inner error, so that code written for kube finds kube's errors.
    fn boxed(self) -> BoxError {
        match self {
            Self::Closed(closed) => Box::new(closed),
            Self::TimedOut(timed_out) => Box::new(timed_out),
            Self::Failed(error) => Box::new(error),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("fences", &self.fences)
            .field("timeout", &self.timeout)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}
