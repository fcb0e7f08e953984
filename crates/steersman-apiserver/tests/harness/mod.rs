// SPDX-License-Identifier: Apache-2.0
//! Raw requests to a server in this process.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod conversation;
pub(crate) mod conversions;
pub(crate) mod hostile;
pub(crate) mod webhooks;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use steersman_apiserver::{
    ApiServer, Body, Builder, Identity,
    clock::{Clock, Sleep},
};
use tower_service::Service as _;

/// A clock on which it is always the same second, but whose waits pass.
struct Frozen;

impl Clock for Frozen {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A server with RBAC that leaves garbage, namespaces and the status of quotas and policies alone, as kube-apiserver without its controllers.
pub(crate) fn server_without_controllers() -> ApiServer {
    builder()
        .clock(Frozen)
        .rbac(true)
        .garbage_collection(false)
        .namespace_deletion(false)
        .quota_usage(false)
        .policy_status(false)
        .build()
}

/// A builder that knows three users.
pub(crate) fn builder() -> Builder {
    ApiServer::builder()
        .token("admin-token", Identity::admin().uid("admin"))
        .token("alice-token", Identity::user("alice").uid("alice"))
        .token("bob-token", Identity::user("bob").uid("bob"))
}

/// Waits until a second of the time of day begins.
pub(crate) async fn next_second() {
    #[expect(clippy::disallowed_methods, reason = "another process goes by this clock")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let passed = now.expect("it is later than 1970").subsec_nanos();
    tokio::time::sleep(Duration::from_nanos(u64::from(1_000_000_000 - passed))).await;
}

/// A body without the address of the machine that its server ran on.
pub(crate) fn without_address(body: &str) -> String {
    let Some((before, after)) = body.split_once("\"serverAddress\":") else {
        return body.to_owned();
    };
    let rest = after.trim_start().trim_start_matches('"');
    let rest = rest.split_once('"').map_or("", |(_, rest)| rest);
    format!("{before}\"serverAddress\": \"127.0.0.1:443\"{rest}")
}

/// A request.
pub(crate) struct Raw {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

/// A response that has been read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) header: HeaderMap,
    pub(crate) body: String,
}

impl Raw {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: vec![("user-agent".to_owned(), "tester/1.0".to_owned())],
            body: Bytes::new(),
        }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn body(self, body: &str) -> Self {
        self.bytes(body.as_bytes())
    }

    pub(crate) fn bytes(mut self, body: &[u8]) -> Self {
        self.body = Bytes::copy_from_slice(body);
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.body(&body.to_string())
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(self.method.as_str()).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if !self.body.is_empty()
            && !self
                .headers
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        {
            request = request.header("content-type", "application/json");
        }
        request
            .body(Full::new(self.body.clone()))
            .expect("the request is well formed")
    }

    /// Sends it and returns the response as soon as it begins.
    pub(crate) async fn open(&self, server: &ApiServer) -> Response<Body> {
        server
            .service()
            .call(self.request())
            .await
            .expect("the connection holds")
    }

    /// Sends it; nothing if the connection broke.
    pub(crate) async fn try_send(&self, server: &ApiServer) -> Option<Answer> {
        let response = server.service().call(self.request()).await.ok()?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("bodies are text");
        Some(Answer {
            code: parts.status.as_u16(),
            header: parts.headers,
            body,
        })
    }

    /// Sends it to another server.
    pub(crate) async fn send_by(&self, client: &kube::Client) -> Answer {
        self.try_send_by(client).await.expect("the connection holds")
    }

    /// Sends it to another server; nothing if the connection broke.
    pub(crate) async fn try_send_by(&self, client: &kube::Client) -> Option<Answer> {
        loop {
            let (parts, body) = self.request().into_parts();
            let body = body.collect().await.expect("the body is at hand").to_bytes();
            let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
            let (parts, body) = client.send(request).await.ok()?.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            let body = String::from_utf8(body.to_vec()).expect("bodies are text");
            // A cache that is still filling asks to be tried again, as clients do.
            if parts.status == 429 && body.contains("initializing") {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
            return Some(Answer {
                code: parts.status.as_u16(),
                header: parts.headers,
                body,
            });
        }
    }

    /// Sends it and reads the response to its end.
    pub(crate) async fn send(&self, server: &ApiServer) -> Answer {
        self.try_send(server).await.expect("the connection holds")
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    pub(crate) fn headers(&self, name: &str) -> Vec<String> {
        self.header
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .map(str::to_owned)
            .collect()
    }

    /// The JSON of a success.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!(self.code < 300, "{}: {}", self.code, self.body);
        self.json()
    }

    /// The lines of a watch.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.body
            .lines()
            .map(|line| serde_json::from_str(line).expect("events are JSON"))
            .collect()
    }
}

/// A watch that is read event by event.
pub(crate) struct Watch {
    body: Body,
    buffer: Vec<u8>,
}

impl Watch {
    pub(crate) async fn open(server: &ApiServer, path: &str) -> Self {
        let response = Raw::get(path).open(server).await;
        assert_eq!(response.status(), 200);
        Self {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }

    /// The next event; nothing at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.try_next().await.expect("the connection holds")
    }

    /// The next event, the end, or what broke.
    pub(crate) async fn try_next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(
                    serde_json::from_slice(&line).map_err(|error| error.to_string())?,
                ));
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err("the stream ended within a line".to_owned()),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => self
                    .buffer
                    .extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        }
    }

    /// Asserts that nothing comes.
    pub(crate) async fn quiet(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(30), self.next()).await;
        assert!(next.is_err(), "{next:?}");
    }
}
