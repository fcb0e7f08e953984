// SPDX-License-Identifier: Apache-2.0
//! Measures what a server costs: start, memory, creates, a large list, watch fan-out. Build it with `--release`.

#![expect(clippy::print_stdout, reason = "the figures are this program's output")]
#![expect(clippy::disallowed_methods, reason = "this program measures real time")]

use std::{net::Ipv4Addr, sync::Arc, time::Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use steersman_apiserver::{ApiServer, Identity, Service};
use tokio::task::JoinSet;
use tower_service::Service as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let begin = Instant::now();
    let server = ApiServer::builder().build();
    println!("cold start: {:?}", begin.elapsed());
    let begin = Instant::now();
    let second = ApiServer::builder().rbac(true).build();
    println!("next start, with RBAC: {:?}", begin.elapsed());
    drop(second);
    println!("memory after start: {} kB", resident());

    let mut service = server.service();
    let count = 50_000;
    let begin = Instant::now();
    for index in 0..count {
        create(&mut service, index).await;
    }
    let rate = f64::from(count) / begin.elapsed().as_secs_f64();
    println!("creates: {rate:.0}/s, then {} kB", resident());
    for index in count..100_000 {
        create(&mut service, index).await;
    }
    let begin = Instant::now();
    let bytes = get(&mut service, MAPS).await.len();
    println!("list of 100000: {:?}, {bytes} bytes", begin.elapsed());
    let begin = Instant::now();
    let bytes = get(&mut service, &format!("{MAPS}?limit=500")).await.len();
    println!("page of 500: {:?}, {bytes} bytes", begin.elapsed());

    let mut watches = Vec::new();
    for _ in 0..100 {
        let revision = server.revision();
        let request =
            Request::get(format!("{MAPS}?watch=1&resourceVersion={revision}")).body(Full::<Bytes>::default());
        watches.push(
            service
                .call(request.expect("a request"))
                .await
                .expect("a watch")
                .into_body(),
        );
    }
    let events = 1000;
    let begin = Instant::now();
    for index in 0..events {
        create(&mut service, 200_000 + index).await;
    }
    let mut seen = 0;
    for watch in &mut watches {
        let mut mine = 0;
        while mine < events {
            let frame = watch
                .frame()
                .await
                .expect("more events")
                .expect("no fault")
                .into_data()
                .unwrap_or_default();
            mine += i32::try_from(frame.iter().filter(|byte| **byte == b'\n').count()).unwrap_or_default();
        }
        seen += mine;
    }
    println!(
        "fan-out to 100 watchers: {:.0} events/s",
        f64::from(seen) / begin.elapsed().as_secs_f64()
    );
    over_https(20_000).await;
}

/// Creates over one TLS connection, one after the other.
async fn over_https(count: i32) {
    let server = ApiServer::builder().token("t", Identity::admin()).build();
    let listener = server.listen((Ipv4Addr::LOCALHOST, 0)).await.expect("a socket");
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(listener.ca_pem().as_bytes()).expect("PEM"))
        .expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(listener.address())
        .await
        .expect("a connection");
    stream.set_nodelay(true).expect("an open socket");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .expect("TLS");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .expect("HTTP");
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let begin = Instant::now();
    for index in 0..count {
        let body = format!(r#"{{"metadata":{{"name":"map-{index:06}"}},"data":{{"key":"value"}}}}"#);
        let request = Request::post(MAPS)
            .header("host", "localhost")
            .header("authorization", "Bearer t");
        let request = request
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)));
        let response = sender
            .send_request(request.expect("a request"))
            .await
            .expect("an answer");
        assert_eq!(response.status(), 201);
        response.into_body().collect().await.expect("a body");
    }
    println!(
        "creates over HTTPS, one connection: {:.0}/s",
        f64::from(count) / begin.elapsed().as_secs_f64()
    );
}

async fn create(service: &mut Service, index: i32) {
    let body = format!(
        r#"{{"metadata":{{"name":"map-{index:06}","labels":{{"app":"x"}}}},"data":{{"key":"value"}}}}"#
    );
    let request = Request::post(MAPS)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)));
    let response = service
        .call(request.expect("a request"))
        .await
        .expect("an answer");
    assert_eq!(response.status(), 201);
    response.into_body().collect().await.expect("a body");
}

async fn get(service: &mut Service, path: &str) -> Bytes {
    let request = Request::get(path)
        .body(Full::<Bytes>::default())
        .expect("a request");
    service
        .call(request)
        .await
        .expect("an answer")
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes()
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or_default()
}
