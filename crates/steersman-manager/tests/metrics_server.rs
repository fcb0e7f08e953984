// SPDX-License-Identifier: Apache-2.0
//! `/metrics` on a socket, without an API server to ask.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Mutex,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use prometheus_client::metrics::counter::Counter;
use steersman_manager::{
    BindError, Handler, LogFormat, Logging, MetricsRegistry, MetricsServer, MetricsServerError, RouteError,
    Tls,
};
use support::{HERE, Running, send};

fn registry() -> MetricsRegistry {
    let metrics = MetricsRegistry::new();
    metrics
        .register(|part| part.register("made", "Made", Counter::<u64>::default()))
        .forever();
    metrics
}

fn hello() -> Handler {
    Handler::new(|_| async { Response::new(Full::new(Bytes::from("hello"))) })
}

#[tokio::test]
async fn a_scraper_gets_the_format_that_it_asks_for() {
    let running = Running::start(MetricsServer::new(registry()).address(HERE).bind().unwrap());
    let reply = running.get("/metrics").await;
    let text = "# HELP made_total Made.\n# TYPE made_total counter\nmade_total 0\n";
    assert_eq!(reply.parts(), (200, text));
    assert_eq!(
        reply.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );

    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let request = Request::get("/metrics").header("accept", accept);
    let reply = send(running.address, request.body(Full::default()).unwrap()).await;
    let open = "# HELP made Made.\n# TYPE made counter\nmade_total 0\n# EOF\n";
    assert_eq!(reply.parts(), (200, open));
    let expected = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(reply.header("content-type"), expected);
}

// R64
#[tokio::test]
async fn extra_paths_are_answered_on_loopback() {
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
fn guarantee_3_metrics_cannot_be_replaced_and_no_path_is_given_twice() {
    for (first, second) in [("/metrics", "/other"), ("/a", "/a")] {
        let server = MetricsServer::new(registry())
            .address(HERE)
            .route(first, hello())
            .route(second, hello());
        let error = server.bind().unwrap_err();
        let MetricsServerError::Route(RouteError::Taken { path }) = error else {
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
fn guarantee_1_an_address_that_others_reach_needs_tls_and_authorization() {
    let everywhere: [SocketAddr; 2] = ["0.0.0.0:0".parse().unwrap(), "[::]:0".parse().unwrap()];
    for address in everywhere {
        let error = MetricsServer::new(registry())
            .address(address)
            .bind()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "metrics on {address} could be read by others, and both `tls` and `authorize` are missing: \
                 add what is missing, use a loopback address, or say `insecure()`"
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
async fn who_says_insecure_gets_it() {
    let server = MetricsServer::new(registry())
        .address((Ipv4Addr::UNSPECIFIED, 0).into())
        .insecure();
    let running = Running::start(server.bind().unwrap());
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, running.address.port()));
    assert_eq!(support::get(here, "/metrics").await.status, 200);
}

#[tokio::test]
async fn a_taken_port_shows_when_the_server_is_made() {
    let first = MetricsServer::new(registry()).address(HERE).bind().unwrap();
    let again = MetricsServer::new(registry()).address(first.address()).bind();
    let Err(MetricsServerError::Bind(BindError::Taken { address, .. })) = again else {
        panic!("{again:?}");
    };
    assert_eq!(address, first.address());
}

// R117
#[tokio::test]
async fn the_log_filter_is_read_and_changed_over_http() {
    let (_log, handle) = Logging::new()
        .format(LogFormat::Json)
        .writer(Mutex::new(std::io::sink()))
        .build()
        .unwrap();
    let server = MetricsServer::new(registry())
        .address(HERE)
        .route("/loglevel", handle.handler());
    let running = Running::start(server.bind().unwrap());
    let put = |filter: String| {
        let request = Request::put("/loglevel")
            .body(Full::new(Bytes::from(filter)))
            .unwrap();
        send(running.address, request)
    };
    assert_eq!(running.get("/loglevel").await.parts(), (200, "info\n"));
    assert_eq!(put("debug\n".to_owned()).await.parts(), (200, "debug\n"));
    assert_eq!(handle.filter(), "debug");

    let reply = put("steersman=loud".to_owned()).await;
    assert_eq!(reply.status, 400);
    let expected = "`steersman=loud` is no log filter: write a level such as `debug`, or `target=level`, with commas between several: ";
    assert!(reply.body.starts_with(expected), "{}", reply.body);
    assert_eq!(put("a".repeat(5000)).await.status, 413);
    assert_eq!(put("\n".to_owned()).await.status, 400);
    assert_eq!(running.get("/loglevel").await.parts(), (200, "debug\n"));

    let request = Request::post("/loglevel").body(Full::default()).unwrap();
    let reply = send(running.address, request).await;
    assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD, PUT"));
}
