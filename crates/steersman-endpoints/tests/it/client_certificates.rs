// SPDX-License-Identifier: Apache-2.0
//! Users that authenticate with client certificates.

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::{
    authorization::v1::SubjectAccessReview,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{Api, api::PostParams};
use rustls::{HandshakeKind, ServerConfig, pki_types::ServerName};
use serde_json::json;
use steersman_core::TestClock;
use steersman_endpoints::{MetricsRegistry, MetricsServer, Routes, Server, Tls, TlsError};
use steersman_testing::Fixture;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::TlsConnector;

use crate::{
    auth_filter::reviews,
    support::{
        HERE, Reply, Running, hello,
        identities::{Ca, Identity, connector},
        next_deadline_in, real_time,
    },
};

const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// A CA file, which tests replace.
struct CaFile(TempDir);

impl CaFile {
    fn of(text: &str) -> Self {
        let file = Self(tempfile::tempdir().unwrap());
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("ca.crt")
    }

    fn tls(&self) -> Tls {
        Tls::self_signed().unwrap().client_ca(self.path()).unwrap()
    }
}

/// Gets a path with a certificate, and with a token. Returns `None` if the handshake fails.
async fn get(running: &Running, identity: Option<&Identity>, token: Option<&str>) -> Option<Reply> {
    let stream = TcpStream::connect(running.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector(identity, &[b"http/1.1"])
        .connect(name, stream)
        .await
        .ok()?;
    // With TLS 1.3, the client completes the handshake before the server has verified its certificate.
    let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let head = format!(
        "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n",
        authorization.unwrap_or_default()
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut text = Vec::new();
    // The server closes the connection without a TLS close.
    let _ = stream.read_to_end(&mut text).await;
    let text = String::from_utf8(text).unwrap();
    let status = text.split(' ').nth(1)?.parse().unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1.to_owned();
    Some(Reply {
        status,
        headers: http::HeaderMap::new(),
        body,
    })
}

/// Allows a user or a group to get `/metrics`, and waits until the API server enforces it.
async fn allow(fixture: &Fixture, kind: &str, subject: &str) {
    let name = format!("{}-{}", fixture.namespace(), kind.to_lowercase());
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": name}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject}],
    }))
    .unwrap();
    let options = PostParams::default();
    Api::all(fixture.client()).create(&options, &role).await.unwrap();
    Api::all(fixture.client())
        .create(&options, &binding)
        .await
        .unwrap();
    let (user, groups) = match kind {
        "User" => (subject, vec![]),
        _ => ("anyone", vec![subject]),
    };
    let review: SubjectAccessReview = serde_json::from_value(json!({"metadata": {}, "spec": {
        "user": user, "groups": groups, "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }}))
    .unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(fixture.client());
    while !reviews
        .create(&options, &review)
        .await
        .unwrap()
        .status
        .unwrap()
        .allowed
    {
        tokio::task::yield_now().await;
    }
}

fn serve(fixture: &Fixture, tls: Tls) -> Running {
    let server = MetricsServer::new(MetricsRegistry::new())
        .address(HERE)
        .tls(tls)
        .authorize(reviews(fixture.client()));
    Running::start(server.bind().unwrap())
}

// C6
#[steersman_testing::test]
async fn a_client_certificate_authenticates_its_user(fixture: Fixture) {
    let ca = Ca::new("clients");
    let file = CaFile::of(&ca.pem());
    let running = serve(&fixture, file.tls());
    let scraper = format!("{}-scraper", fixture.namespace());
    let scrapers = format!("{}-scrapers", fixture.namespace());
    allow(&fixture, "User", &scraper).await;
    allow(&fixture, "Group", &scrapers).await;

    let by_name = ca.identity(&scraper, "others");
    assert_eq!(get(&running, Some(&by_name), None).await.unwrap().status, 200);
    let by_group = ca.identity("somebody", &scrapers);
    assert_eq!(get(&running, Some(&by_group), None).await.unwrap().status, 200);
    let stranger = ca.identity("stranger", "strangers");
    let denied = get(&running, Some(&stranger), None).await.unwrap();
    assert_eq!(denied.parts(), (403, "Authorization denied for user stranger\n"));

    // Tokens work as before, without a certificate.
    assert_eq!(get(&running, None, None).await.unwrap().status, 401);
    let token = fixture.admin().token();
    assert_eq!(get(&running, None, Some(token)).await.unwrap().status, 200);
    // The certificate names the user, whatever the token says.
    assert_eq!(
        get(&running, Some(&stranger), Some(token)).await.unwrap().status,
        403
    );
    // A certificate of another CA of the same name is not accepted.
    let forged = Ca::new("clients").identity(&scraper, &scrapers);
    assert!(get(&running, Some(&forged), Some(token)).await.is_none());
}

// C6
#[steersman_testing::test]
async fn a_removed_ca_ends_permissions_on_open_connections(fixture: Fixture) {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let scraper = format!("{}-scraper", fixture.namespace());
    allow(&fixture, "User", &scraper).await;
    let file = CaFile::of(&old.pem());
    let clock = TestClock::new();
    let server = MetricsServer::new(MetricsRegistry::new())
        .address(HERE)
        .tls(file.tls())
        .clock(Arc::new(clock.clone()))
        .authorize(reviews(fixture.client()));
    let running = Running::start(server.bind().unwrap());
    let (before, after) = (old.identity(&scraper, "g"), new.identity(&scraper, "g"));
    assert_eq!(get(&running, Some(&before), None).await.unwrap().status, 200);
    assert!(get(&running, Some(&after), None).await.is_none());

    let reload = async || {
        next_deadline_in(&clock, RELOAD_INTERVAL).await;
        clock.advance(RELOAD_INTERVAL);
        next_deadline_in(&clock, RELOAD_INTERVAL).await;
    };
    // A file without a certificate changes nothing.
    file.write("rubbish");
    reload().await;
    assert_eq!(get(&running, Some(&before), None).await.unwrap().status, 200);

    let stream = TcpStream::connect(running.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector(Some(&before), &[b"http/1.1"])
        .connect(name, stream)
        .await
        .unwrap();
    let mut open = crate::support::Open::over(stream).await;
    assert_eq!(open.get("/metrics").await, 200);
    file.write(&new.pem());
    // The open connection has deadlines too.
    clock.advance(RELOAD_INTERVAL);
    while get(&running, Some(&after), None).await.is_none() {
        tokio::task::yield_now().await;
    }
    assert!(get(&running, Some(&before), None).await.is_none());
    assert_eq!(open.get("/metrics").await, 401);
}

// C6
#[tokio::test]
async fn probes_can_require_a_client_certificate() {
    let ca = Ca::new("clients");
    let file = CaFile::of(&ca.pem());
    let tls = file.tls().require_client_certificate().unwrap();
    let mut routes = Routes::new();
    routes.add("/metrics", hello()).unwrap();
    let running = Running::start(Server::bind(HERE, routes, real_time()).unwrap().tls(tls));
    assert!(get(&running, None, None).await.is_none());
    let reply = get(&running, Some(&ca.identity("kubelet", "nodes")), None)
        .await
        .unwrap();
    assert_eq!(reply.status, 200);
}

// C6
#[tokio::test]
async fn a_removed_ca_ends_open_connections_that_require_a_certificate() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let file = CaFile::of(&old.pem());
    let clock = TestClock::new();
    let mut routes = Routes::new();
    routes.add("/metrics", hello()).unwrap();
    let server = Server::bind(HERE, routes, Arc::new(clock.clone())).unwrap();
    let tls = file.tls().require_client_certificate().unwrap();
    let running = Running::start(server.tls(tls));
    next_deadline_in(&clock, RELOAD_INTERVAL).await;

    let (before, after) = (old.identity("kubelet", "nodes"), new.identity("kubelet", "nodes"));
    let (http_1, http_2) = (
        connector(Some(&before), &[b"http/1.1"]),
        connector(Some(&before), &[b"h2"]),
    );
    let connect = async |connector: &TlsConnector| {
        let stream = TcpStream::connect(running.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        connector.connect(name, stream).await.unwrap()
    };
    let mut open = crate::support::Open::over(connect(&http_1).await).await;
    assert_eq!(open.get("/metrics").await, 200);
    let stream = TokioIo::new(connect(&http_2).await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let mut driving = JoinSet::new();
    driving.spawn(connection);
    let get_2 = async || {
        let request = http::Request::get("https://localhost/metrics");
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        sender.clone().send_request(request).await.unwrap().status()
    };
    assert_eq!(get_2().await, 200);
    // A session is not resumed: the server would not verify the certificate again.
    let again = connect(&http_1).await;
    assert_eq!(again.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
    drop(again);

    file.write(&new.pem());
    clock.advance(RELOAD_INTERVAL);
    while get(&running, Some(&after), None).await.is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(open.get("/metrics").await, 401);
    assert_eq!(get_2().await, 401);
}

// C6
#[tokio::test]
async fn an_unusable_client_ca_is_an_error() {
    let own = || Tls::self_signed().unwrap();
    let file = CaFile::of("");
    let error = own().client_ca(file.path()).unwrap_err();
    assert!(matches!(error, TlsError::ClientCa { .. }), "{error:?}");
    assert!(error.to_string().contains("ca.crt"), "{error}");
    let missing = file.0.path().join("missing");
    assert!(matches!(
        own().client_ca(missing).unwrap_err(),
        TlsError::Read { .. }
    ));
    assert!(matches!(
        own().require_client_certificate().unwrap_err(),
        TlsError::NoClientCa
    ));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new()));
    file.write(&Ca::new("clients").pem());
    let error = Tls::config(Arc::new(config)).client_ca(file.path()).unwrap_err();
    assert!(matches!(error, TlsError::OwnConfig), "{error:?}");
}
