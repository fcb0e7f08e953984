// SPDX-License-Identifier: Apache-2.0
//! The metrics server without authorization.

use std::net::{Ipv4Addr, SocketAddr};

use http::Request;
use http_body_util::Full;
use prometheus_client::metrics::counter::Counter;
use steersman_endpoints::{BindError, MetricsRegistry, MetricsServer, MetricsServerError, RouteError, Tls};

use crate::support::{HERE, Running, get, hello, send};

fn registry() -> MetricsRegistry {
    let metrics = MetricsRegistry::new();
    metrics
        .register(|part| part.register("created", "Created", Counter::<u64>::default()))
        .detach();
    metrics
}

#[tokio::test]
async fn the_accept_header_selects_the_format() {
    let running = Running::start(MetricsServer::new(registry()).address(HERE).bind().unwrap());
    let reply = running.get("/metrics").await;
    let text = "# HELP created_total Created.\n# TYPE created_total counter\ncreated_total 0\n";
    assert_eq!(reply.parts(), (200, text));
    assert_eq!(
        reply.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );

    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let request = Request::get("/metrics").header("accept", accept);
    let reply = send(running.address, request.body(Full::default()).unwrap()).await;
    let open = "# HELP created Created.\n# TYPE created counter\ncreated_total 0\n# EOF\n";
    assert_eq!(reply.parts(), (200, open));
    let expected = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(reply.header("content-type"), expected);
}

// R64
#[tokio::test]
async fn serves_additional_routes() {
    let server = MetricsServer::new(registry())
        .address(HERE)
        .route("/debug/hello", hello())
        .route("/below/", hello());
    let running = Running::start(server.bind().unwrap());
    assert_eq!(running.get("/debug/hello").await.parts(), (200, "hello"));
    assert_eq!(running.get("/below/a").await.parts(), (200, "hello"));
    assert_eq!(running.get("/").await.status, 404);
}

#[test]
fn guarantee_3_rejects_duplicate_routes_and_a_route_for_metrics() {
    for (first, second) in [("/metrics", "/other"), ("/a", "/a")] {
        let server = MetricsServer::new(registry())
            .address(HERE)
            .route(first, hello())
            .route(second, hello());
        let error = server.bind().unwrap_err();
        let MetricsServerError::Route(RouteError::Duplicate { path }) = error else {
            panic!("{error}");
        };
        assert_eq!(path, first);
    }
}

#[test]
fn guarantee_1_the_default_address_is_loopback() {
    let metrics = format!("{:?}", MetricsServer::new(registry()));
    assert!(metrics.contains("address: 127.0.0.1:8080"), "{metrics}");
}

// R64
#[test]
fn guarantee_1_a_reachable_address_requires_tls_and_authorization() {
    let everywhere: [SocketAddr; 2] = ["0.0.0.0:0".parse().unwrap(), "[::]:0".parse().unwrap()];
    for address in everywhere {
        let error = MetricsServer::new(registry())
            .address(address)
            .bind()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot serve metrics on {address}: other machines can reach it, and `tls` and `authorize` are missing; \
                 configure TLS and authorization, use a loopback address, or call `insecure()`"
            )
        );
        let with_tls = MetricsServer::new(registry())
            .address(address)
            .tls(Tls::self_signed().unwrap());
        let error = with_tls.bind().unwrap_err();
        assert!(error.to_string().contains("`authorize` is missing"), "{error}");
    }
}

#[tokio::test]
async fn guarantee_1_insecure_allows_a_reachable_address() {
    let server = MetricsServer::new(registry())
        .address((Ipv4Addr::UNSPECIFIED, 0).into())
        .insecure();
    let running = Running::start(server.bind().unwrap());
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, running.address.port()));
    assert_eq!(get(loopback, "/metrics").await.status, 200);
}

#[tokio::test]
async fn bind_fails_if_the_port_is_in_use() {
    let first = MetricsServer::new(registry()).address(HERE).bind().unwrap();
    let again = MetricsServer::new(registry()).address(first.address()).bind();
    let Err(MetricsServerError::Bind(BindError::AddressInUse { address, .. })) = again else {
        panic!("{again:?}");
    };
    assert_eq!(address, first.address());
}
