// SPDX-License-Identifier: Apache-2.0
//! The way of a request to the server, which all clients of a cluster take.
//!
//! ```text
//! verbs ──┐
//!         ├─▶ tries (retry.rs) ─▶ attempt: fences, time, credentials ─▶ kube's stack: TLS, connections
//! kube() ─┘                                └─▶ meter, warnings, contact
//! ```
//!
//! # Guarantees
//! 1. Each attempt asks the gate of the cluster, and each attempt of a write every fence besides; see
//!    [`fence`](crate::Fence). A write asks once more in the task that writes its body to the socket: an attempt whose time is
//!    over by then is not written. Each attempt tells the server how much time it has. What leads into a Pod or past the API server, such
//!    as `exec`, is a write by any method.
//! 2. A request is tried again only if that cannot have an effect twice: a read, or a write that the server did not take.
//!    A server that asks for patience gets it, within the time limit of the request, and two minutes at most.
//! 3. The time limit of a request covers all of its attempts and the whole of its answer. Watches have none.
//! 4. Every attempt is counted, by the code of its answer.
//! 5. No content of a request or an answer is logged.

mod attempt_guard;
mod body;
mod meter;
mod retry;
mod token;
mod warnings;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, combinators::MapErr};
use kube::client::Body;
use steersman_cache::Liveness;
use steersman_core::{Clock, MonotonicTime, Random};
use tower_service::Service;

use self::retry::Tries;
pub(crate) use self::warnings::Warnings;
pub(crate) use self::{
    attempt_guard::AttemptGuard,
    body::Guarded,
    meter::{Contact, Meter},
    retry::{is_unsent, retry_after},
    token::{TokenError, TokenFile},
};
pub use self::{attempt_guard::TimedOut, meter::RequestCount};
use crate::{Closed, Fence};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One client's way to the server. Cloning it copies pointers.
#[derive(Clone)]
pub(crate) struct Transport {
    base: kube::Client,
    line: Arc<SharedTransport>,
    /// What writes have to pass beside the gate.
    fences: Arc<[Fence]>,
    /// None for those who look after time themselves.
    timeout: Option<Duration>,
    tries: u32,
    /// Keeps the cluster alive as long as somebody holds this.
    held: Option<Arc<dyn Send + Sync>>,
}

/// What all clients of a cluster have in common.
pub(crate) struct SharedTransport {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<Random>,
    /// What every request has to pass.
    pub(crate) gate: Fence,
    pub(crate) user_agent: HeaderValue,
    pub(crate) token: Option<TokenFile>,
    pub(crate) meter: Meter,
    pub(crate) warnings: Warnings,
    /// Hears of each answer that is a success.
    pub(crate) liveness: Liveness,
}

/// No answer came.
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
    /// A way to the server as it is: no limit of time, one try, no fence but the gate.
    pub(crate) fn plain(base: kube::Client, line: Arc<SharedTransport>) -> Self {
        Self {
            base,
            line,
            fences: Arc::new([]),
            timeout: None,
            tries: 1,
            held: None,
        }
    }

    /// With a limit of time, and tried again.
    pub(crate) fn limited(mut self, timeout: Duration, tries: u32) -> Self {
        self.timeout = Some(timeout);
        self.tries = tries.max(1);
        self
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    pub(crate) fn add_fence(&mut self, fence: Fence) {
        self.fences = self.fences.iter().cloned().chain([fence]).collect();
    }

    pub(crate) fn remove_fences(&mut self) {
        self.fences = Arc::new([]);
    }

    /// The same, which keeps something alive as long as it lives itself.
    pub(crate) fn holding(mut self, held: Arc<dyn Send + Sync>) -> Self {
        self.held = Some(held);
        self
    }

    /// Whether nothing will be sent any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.line.gate.check().is_err()
    }

    /// As kube has it, for those who know no other. It needs a runtime: requests queue in a task of it.
    pub(crate) fn into_kube(self) -> kube::Client {
        let namespace = self.base.default_namespace().to_owned();
        kube::Client::new(self, namespace)
    }

    /// Sends a request, if need be several times.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Response<Guarded>, SendError> {
        if !request.headers().contains_key(header::USER_AGENT) {
            let agent = self.line.user_agent.clone();
            request.headers_mut().insert(header::USER_AGENT, agent);
        }
        let deadline = self.deadline(&request);
        let mut tries = Tries::new(self.tries, is_read(request.method(), request.uri()));
        loop {
            // What cannot be copied is sent once.
            let next = retry::copy(&request);
            let result = self.attempt(request, deadline).await;
            let Some(next) = next else { return result };
            let Some(delay) = tries.delay(&result, &self.line.random) else {
                return result;
            };
            let until = self.line.clock.now() + delay;
            if deadline.is_some_and(|(deadline, _)| until >= deadline) {
                return result;
            }
            let answer = result.as_ref().ok().map(Response::status);
            self.line.meter.retried(next.method(), answer);
            let outcome = retry::outcome(&result);
            tracing::debug!(method = %next.method(), path = next.uri().path(), ?delay, outcome, "trying again");
            // Not kept while we wait, as is the connection of its body.
            drop(result);
            let pass = self.pass(is_read(next.method(), next.uri()), deadline);
            pass.over(self.line.clock.sleep_until(until)).await?;
            request = next;
        }
    }

    /// One attempt, or two if the token has changed meanwhile: a server that does not know us has not acted.
    async fn attempt(
        &self,
        mut request: Request<Body>,
        deadline: Option<(MonotonicTime, Duration)>,
    ) -> Result<Response<Guarded>, SendError> {
        let Some(token) = &self.line.token else {
            return self.attempt_once(request, deadline).await;
        };
        let now = self.line.clock.now();
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, token.header(now));
        let again = retry::copy(&request);
        let response = self.attempt_once(request, deadline).await?;
        match again {
            Some(mut request) if response.status() == StatusCode::UNAUTHORIZED => {
                let old = request.headers_mut().remove(header::AUTHORIZATION);
                let new = token.reload(self.line.clock.now());
                if old.as_ref() == Some(&new) {
                    return Ok(response);
                }
                tracing::debug!("the token has changed; trying again with the new one");
                request.headers_mut().insert(header::AUTHORIZATION, new);
                self.attempt_once(request, deadline).await
            }
            _ => Ok(response),
        }
    }

    async fn attempt_once(
        &self,
        mut request: Request<Body>,
        deadline: Option<(MonotonicTime, Duration)>,
    ) -> Result<Response<Guarded>, SendError> {
        let method = request.method().clone();
        let is_read = is_read(&method, request.uri());
        let pass = self.pass(is_read, deadline);
        pass.check()?;
        if !is_read
            && !is_long_running(&request)
            && let Some(remaining) = pass.remaining(self.line.clock.now())
        {
            tell_time(&mut request, remaining);
        }
        let (guard, refused) = pass.guard();
        if !is_read {
            request.extensions_mut().insert(guard);
        }
        let answer = pass.over(self.base.send(request)).await;
        let answer = match (answer, refused.take()) {
            (Ok(Ok(response)), _) => Ok(response),
            (_, Some(refused)) => Err(refused),
            (Ok(Err(error)), None) => Err(SendError::Failed(error)),
            (Err(error), None) => Err(pass.given_up(error)),
        };
        let line = &self.line;
        line.meter.note(&method, answer.as_ref().map(Response::status));
        let response = answer?;
        if response.status().is_success() {
            line.liveness.answered();
        }
        line.warnings.note(response.headers());
        Ok(response.map(|body| Guarded::new(body, pass, self.held.clone())))
    }

    fn pass(&self, is_read: bool, deadline: Option<(MonotonicTime, Duration)>) -> AttemptGuard {
        AttemptGuard::new(Arc::clone(&self.line), is_read, &self.fences, deadline)
    }

    fn deadline(&self, request: &Request<Body>) -> Option<(MonotonicTime, Duration)> {
        let timeout = self.timeout.filter(|_| !is_long_running(request))?;
        Some((self.line.clock.now() + timeout, timeout))
    }
}

/// Subresources that lead to something else than objects: nobody here knows what a request there does.
const DOORS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];

/// Whether a request changes nothing.
fn is_read(method: &Method, uri: &Uri) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
        && !subresource(uri.path()).is_some_and(|name| DOORS.contains(&name))
}

/// Whether the answer takes as long as it takes: the same requests that a server does not limit.
fn is_long_running(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let is_watch = form_urlencoded::parse(query.as_bytes())
        .any(|(key, value)| key == "watch" && matches!(&*value, "" | "1" | "true"));
    let is_stream = |name: &str| name == "log" || DOORS.contains(&name);
    is_watch || subresource(request.uri().path()).is_some_and(is_stream)
}

/// The subresource that a path names. Objects and namespaces may have the same names.
fn subresource(path: &str) -> Option<&str> {
    let mut parts = path.trim_start_matches('/').split('/');
    match parts.next()? {
        "api" => parts.next()?,
        "apis" => parts.nth(1)?,
        _ => return None,
    };
    let resource = parts.next()?;
    // In a namespace, two parts come before the resource.
    parts.nth(if resource == "namespaces" { 3 } else { 1 })
}

/// Says how long the server may take, so that it does not act when nobody waits any more.
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
    /// What lies behind it, so that one who knows kube finds what he knows.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn get(uri: &str) -> Request<Body> {
        Request::get(uri).body(Body::empty()).unwrap()
    }

    #[test]
    fn watches_and_streams_are_not_limited_in_time() {
        for uri in [
            "/api/v1/pods?watch=true",
            "/api/v1/pods?a=b&watch=1",
            "/api/v1/namespaces/n/pods/p/log",
            "/api/v1/namespaces/n/pods/p/proxy/watch",
            "/api/v1/nodes/a/proxy/metrics",
        ] {
            assert!(is_long_running(&get(uri)), "{uri}");
        }
        for uri in [
            "/api/v1/pods?watch=false",
            "/api/v1/namespaces/n/pods/watch",
            "/api/v1/namespaces/proxy/configmaps/log",
            "/api/v1/namespaces/log/pods/exec/status",
            "/apis/example.com/v1/namespaces/n/widgets/proxy",
            "/api/v1/namespaces/proxy",
            "/api/v1/namespaces/n/finalize",
            "/apis",
        ] {
            assert!(!is_long_running(&get(uri)), "{uri}");
        }
    }

    #[test]
    fn what_leads_past_the_api_server_is_no_read_whatever_its_method() {
        for (uri, expected) in [
            ("/api/v1/namespaces/n/pods/p/exec?command=ls", false),
            ("/api/v1/namespaces/n/pods/p/attach", false),
            ("/api/v1/namespaces/n/pods/p/portforward", false),
            ("/api/v1/namespaces/n/services/s/proxy/delete-all", false),
            ("/api/v1/namespaces/n/pods/p/log", true),
            ("/api/v1/namespaces/n/pods/exec", true),
            ("/api/v1/pods?watch=true", true),
        ] {
            assert_eq!(is_read(&Method::GET, get(uri).uri()), expected, "{uri}");
        }
        assert!(!is_read(&Method::POST, get("/api/v1/pods").uri()));
    }

    #[test]
    fn subresources_are_told_from_names() {
        for (path, expected) in [
            ("/api/v1/namespaces/n/pods/p/status", Some("status")),
            ("/apis/apps/v1/namespaces/n/deployments/d/scale", Some("scale")),
            ("/apis/example.com/v1/things/t/status", Some("status")),
            ("/api/v1/nodes/a/proxy/x", Some("proxy")),
            ("/api/v1/namespaces/n/pods/p", None),
            ("/api/v1/namespaces/n/pods", None),
            ("/version", None),
            ("", None),
        ] {
            assert_eq!(subresource(path), expected, "{path}");
        }
    }

    #[test]
    fn the_time_is_told_beside_what_is_there() {
        let told = |uri| {
            let mut request = get(uri);
            tell_time(&mut request, Duration::from_millis(1500));
            request.uri().to_string()
        };
        assert_eq!(told("/api/v1/pods"), "/api/v1/pods?timeout=1500ms");
        assert_eq!(told("/api/v1/pods?"), "/api/v1/pods?timeout=1500ms");
        assert_eq!(told("/api/v1/pods?a=b"), "/api/v1/pods?a=b&timeout=1500ms");
        assert_eq!(
            told("https://host:1/api?a=b"),
            "https://host:1/api?a=b&timeout=1500ms"
        );
    }
}
