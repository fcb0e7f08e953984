// SPDX-License-Identifier: Apache-2.0
//! A webhook server for tests: the path of a call says what it answers.

use std::{net::SocketAddr, sync::OnceLock, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The server of this process. It has a thread of its own, so that tests with a paused clock can use it.
pub(crate) struct Webhooks {
    pub(crate) address: SocketAddr,
    /// The certificate to trust, as a `caBundle`.
    pub(crate) authority: String,
}

impl Webhooks {
    /// Returns the server, which starts with the first call.
    pub(crate) fn get() -> &'static Self {
        static SERVER: OnceLock<Webhooks> = OnceLock::new();
        SERVER.get_or_init(start)
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Inserts the address and the authority into a request.
    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("{{webhooks}}", &self.url())
            .replace("{{authority}}", &self.authority)
    }

    /// Removes the address and the authority from an answer.
    pub(crate) fn mask(&self, text: &str) -> String {
        text.replace(&self.address.to_string(), "127.0.0.1:443")
            .replace(&self.authority, "Q0E=")
    }
}

fn start() -> Webhooks {
    // Names for calls by URL, and by the services that tests name.
    let names = ["127.0.0.1", "hooks.default.svc"].map(str::to_owned);
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(names.to_vec()).expect("names");
    let certificate = params.self_signed(&key).expect("a certificate");
    let authority = STANDARD.encode(certificate.pem());
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("TLS settings");
    let acceptor = TlsAcceptor::from(std::sync::Arc::new(config));
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let address = socket.local_addr().expect("an address");
            sender.send(address).expect("the test waits");
            while let Ok((stream, _)) = socket.accept().await {
                tokio::task::spawn_local(serve(stream, acceptor.clone()));
            }
        });
    });
    Webhooks {
        address: receiver.recv().expect("the server starts"),
        authority,
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = hyper::service::service_fn(answer);
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let path = parts.uri.path().trim_start_matches('/').to_owned();
    let text = |code: u16, kind: &str, text: &str| {
        let response = Response::builder().status(code).header("content-type", kind);
        Ok(response
            .body(Full::new(Bytes::from(text.to_owned())))
            .expect("a response"))
    };
    match path.as_str() {
        "slow" => tokio::time::sleep(Duration::from_secs(20)).await,
        "hang-up" => return Err(std::io::Error::other("the test hangs up")),
        "garbage" => return text(200, "application/json", "garbage"),
        "array" => return text(200, "application/json", "[]"),
        "empty" => return text(200, "application/json", ""),
        "huge" => return text(200, "application/json", &"x".repeat(4 * 1024 * 1024)),
        "code-500" => return text(500, "text/plain", "it broke\n"),
        "code-500-json" => return text(500, "application/json", "{}"),
        "code-404" => return text(404, "text/plain", "no such thing"),
        "code-403" => return text(403, "text/plain", "not you"),
        "redirect" | "redirect-307" => {
            let code = if path == "redirect" { 302 } else { 307 };
            let response = Response::builder().status(code).header("location", "/allow");
            return Ok(response.body(Full::default()).expect("a response"));
        }
        _ => {}
    }
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut query = parts.uri.query().unwrap_or_default().to_owned();
    query.insert(0, '?');
    let answer = match review["kind"].as_str() {
        Some("ConversionReview") => super::conversions::converted(&path, &review),
        _ => admitted(&path, &query, &review),
    };
    text(200, "application/json", &answer.to_string())
}

/// The answer to an `AdmissionReview`.
fn admitted(path: &str, query: &str, review: &Value) -> Value {
    let request = &review["request"];
    let allow = || json!({"uid": request["uid"], "allowed": true});
    let deny = |status: Value| json!({"uid": request["uid"], "allowed": false, "status": status});
    let patch_of = |patch: Value| {
        let patch = STANDARD.encode(patch.to_string());
        json!({"uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch})
    };
    let with = |mut response: Value, key: &str, value: Value| {
        response[key] = value;
        response
    };
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let response = match first {
        "deny" => deny(json!({"message": "no"})),
        "deny-bare" => json!({"uid": request["uid"], "allowed": false}),
        "deny-reason" => deny(json!({"reason": "Forbidden", "code": 403})),
        "deny-details" => deny(
            json!({"message": "see the details", "reason": "Invalid", "code": 422, "details": {"causes": [{"field": "data.a", "message": "is bad"}]}}),
        ),
        "deny-success" => deny(json!({"status": "Success", "code": 200, "message": "contradictory"})),
        "deny-warn" => with(
            deny(json!({"message": "no"})),
            "warnings",
            json!(["denied with a warning"]),
        ),
        "warn" => with(allow(), "warnings", json!(["first warning", "second warning"])),
        "annotate" => with(allow(), "auditAnnotations", json!({"key": "value"})),
        "label" | "append" => patch_of(label(request, first == "append", rest)),
        "echo" => patch_of(
            json!([{"op": "add", "path": "/metadata/annotations", "value": {"review": shown(query, review)}}]),
        ),
        "echo-deny" => deny(json!({"message": shown(query, review)})),
        "wrong-uid" => json!({"uid": "00000000-0000-0000-0000-000000000000", "allowed": true}),
        "no-response" => return json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}),
        "no-kind" => return json!({"response": allow()}),
        "other-kind" => {
            return json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "response": allow()});
        }
        "patch-garbage" => with(patch_of(json!([])), "patch", json!(STANDARD.encode("garbage"))),
        "patch-object" => patch_of(json!({})),
        "patch-nothing" => patch_of(json!([])),
        "patch-missing" => patch_of(json!([{"op": "add", "path": "/spec/none/x", "value": 1}])),
        "patch-remove" => patch_of(json!([{"op": "remove", "path": "/none"}])),
        "patch-replace" => patch_of(json!([{"op": "replace", "path": "/none/x", "value": 1}])),
        "patch-test" => patch_of(json!([{"op": "test", "path": "/metadata/name", "value": "other"}])),
        "patch-type" => patch_of(json!([{"op": "add", "path": "/data", "value": 1}])),
        "patch-invalid" => patch_of(json!([{"op": "add", "path": "/data", "value": {"not a key": "x"}}])),
        "patch-unknown" => patch_of(json!([{"op": "add", "path": "/unknown", "value": 1}])),
        "patch-name" => patch_of(json!([{"op": "add", "path": "/metadata/name", "value": "other"}])),
        "patch-spec" => patch_of(json!([{"op": "add", "path": "/spec", "value": {"replicas": 4}}])),
        "patch-untyped" => json!({"uid": request["uid"], "allowed": true, "patch": STANDARD.encode("[]")}),
        "patch-only-type" => json!({"uid": request["uid"], "allowed": true, "patchType": "JSONPatch"}),
        "patch-other-type" => with(
            patch_of(json!([{"op": "add", "path": "/data", "value": {}}])),
            "patchType",
            json!("Merge"),
        ),
        _ => allow(),
    };
    json!({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response})
}

/// A patch that sets the label `KEY/VALUE`, or appends to it.
fn label(request: &Value, appends: bool, rest: &str) -> Value {
    let (key, value) = rest.split_once('/').unwrap_or((rest, "yes"));
    let before = request.pointer(&format!("/object/metadata/labels/{key}"));
    let before = before.and_then(Value::as_str).filter(|_| appends);
    let value = format!("{}{value}", before.unwrap_or_default());
    match request.pointer("/object/metadata/labels") {
        Some(_) => json!([{"op": "add", "path": format!("/metadata/labels/{key}"), "value": value}]),
        None => json!([{"op": "add", "path": "/metadata/labels", "value": {key: value}}]),
    }
}

/// A review as text, without what differs between two servers.
fn shown(query: &str, review: &Value) -> String {
    let mut review = review.clone();
    masked(&mut review, "");
    if review.pointer("/request/object/metadata/generateName").is_some() {
        for pointer in ["/request/name", "/request/object/metadata/name"] {
            if let Some(name) = review.pointer_mut(pointer) {
                *name = json!("<generated>");
            }
        }
    }
    format!("{query} {}", sorted(&review))
}

fn masked(value: &mut Value, key: &str) {
    match value {
        Value::Object(fields) => {
            // Which manager wrote a field is the subject of other conversations.
            fields.remove("managedFields");
            fields.iter_mut().for_each(|(key, value)| masked(value, key));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| masked(item, key)),
        Value::String(text) if text.len() == 36 && text.matches('-').count() == 4 => {
            *text = "<id>".to_owned()
        }
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => *text = "<time>".to_owned(),
        Value::String(text) if key == "resourceVersion" => *text = "<revision>".to_owned(),
        _ => {}
    }
}

/// JSON with sorted keys.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            let fields = keys
                .into_iter()
                .map(|key| format!("{}:{}", json!(key), sorted(&fields[key])));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(sorted).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}
