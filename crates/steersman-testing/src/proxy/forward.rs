// SPDX-License-Identifier: Apache-2.0
//! Forwards one request through the proxy.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header, uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::time;

use super::{
    Shared, StartError,
    body::{self, Body},
    fault::{Kind, Respond},
    record::{Ended, Recorder},
};
use crate::{ClientError, Endpoint};

/// The server behind the proxy.
#[derive(Debug)]
pub(super) struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Incoming>,
    authority: uri::Authority,
}

/// Breaks the client's connection instead of answering.
#[derive(Debug, thiserror::Error)]
#[error("the proxy breaks the connection on purpose, or the server behind it does not answer")]
pub(super) struct Broken;

impl Upstream {
    pub(super) fn new(server: &Endpoint) -> Result<Self, StartError> {
        let url: Uri = server.url().parse().map_err(|source| {
            StartError::Server(ClientError::Url {
                url: server.url().to_owned(),
                source,
            })
        })?;
        let authority = url
            .authority()
            .cloned()
            .expect("an address with a scheme has a host");
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(server.ca().map_err(StartError::Server)?)
            .map_err(StartError::Tls)?;
        let tls =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(StartError::Tls)?
                .with_root_certificates(roots)
                .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http1()
            .build();
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            authority,
        })
    }

    async fn send(&self, mut request: Request<Incoming>) -> Result<Response<Incoming>, Broken> {
        let path = request.uri().path_and_query().cloned();
        let uri = Uri::builder().scheme("https").authority(self.authority.clone());
        *request.uri_mut() = uri
            .path_and_query(path.map_or("/".to_owned(), |path| path.to_string()))
            .build()
            .map_err(|_| Broken)?;
        *request.version_mut() = http::Version::HTTP_11;
        remove_hop_by_hop(request.headers_mut());
        request.headers_mut().remove(header::HOST);
        self.client.request(request).await.map_err(|_| Broken)
    }
}

pub(super) async fn forward(
    shared: &Arc<Shared>,
    connection: u64,
    request: Request<Incoming>,
) -> Result<Response<Body>, Broken> {
    let (parts, body) = request.into_parts();
    let recorder = shared.log.begin(connection, &parts);
    let request = Request::from_parts(parts, body);
    let exchange = recorder.exchange().expect("what is under way is not forgotten");
    let arrival = shared.faults.on_arrival(&exchange);
    let fault = arrival.rule.as_ref().map(|rule| &rule.fault.0);

    match fault {
        Some(&Kind::Answer { code, retry_after }) => return Ok(answer(&recorder, code, retry_after)),
        Some(Kind::Respond(response)) => return Ok(respond(&recorder, response)),
        Some(&Kind::Initializing) => return Ok(initializing(&recorder)),
        Some(&Kind::ErrorEvent { code }) => return Ok(error_event(&recorder, code)),
        Some(&Kind::Delay(delay)) => time::sleep(delay).await,
        _ => {}
    }
    let answered = shared.upstream.send(request).await;
    let mut response = answered.inspect_err(|_| recorder.ended(Ended::ServerGone))?;
    let mut cut_after = None;
    match (fault, &arrival.rule) {
        (Some(Kind::DropResponse), _) => {
            // The server has processed the request when its whole answer has arrived.
            let _ = response.body_mut().collect().await;
            recorder.ended(Ended::Cut);
            return Err(Broken);
        }
        (Some(&Kind::DelayAnswer(delay)), _) => time::sleep(delay).await,
        (Some(Kind::Stall), Some(rule)) => rule.released().await,
        (Some(&Kind::CutAfterLines { lines, cut }), _) => cut_after = Some((lines, cut)),
        _ => {}
    }

    remove_hop_by_hop(response.headers_mut());
    recorder.answered(response.status().as_u16());
    Ok(response.map(|upstream| body::pass(upstream, recorder, Arc::clone(shared), arrival, cut_after)))
}

/// Removes headers that apply to one connection only.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE] {
        headers.remove(name);
    }
}

fn answer(recorder: &Recorder, code: u16, retry_after: Option<u64>) -> Response<Body> {
    refusal(recorder, code, &status(code), retry_after)
}

fn initializing(recorder: &Recorder) -> Response<Body> {
    let mut body = status(429);
    body["message"] = "storage is (re)initializing".into();
    body["details"] = json!({"retryAfterSeconds": 1});
    refusal(recorder, 429, &body, Some(1))
}

fn refusal(recorder: &Recorder, code: u16, body: &Value, retry_after: Option<u64>) -> Response<Body> {
    let mut response = whole(recorder, code, body);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn error_event(recorder: &Recorder, code: u16) -> Response<Body> {
    whole(recorder, 200, &json!({"type": "ERROR", "object": status(code)}))
}

fn whole(recorder: &Recorder, code: u16, body: &Value) -> Response<Body> {
    let json = header::HeaderValue::from_static("application/json");
    complete(recorder, code, json, Bytes::from(format!("{body}\n")))
}

fn respond(recorder: &Recorder, response: &Respond) -> Response<Body> {
    let content_type = header::HeaderValue::from_str(&response.content_type);
    let content_type = content_type.expect("a test names a content type that fits into a header");
    complete(
        recorder,
        response.code,
        content_type,
        Bytes::from(response.body.clone()),
    )
}

fn complete(
    recorder: &Recorder,
    code: u16,
    content_type: header::HeaderValue,
    bytes: Bytes,
) -> Response<Body> {
    recorder.answered(code);
    recorder.handed_on(bytes.len());
    recorder.ended(Ended::Complete);
    let mut response = Response::new(Full::new(bytes).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Returns the body that an API server sends with an error.
fn status(code: u16) -> Value {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("injected by the fault proxy: {reason}"), "reason": reason, "code": code,
    })
}
