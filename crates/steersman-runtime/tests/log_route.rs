// SPDX-License-Identifier: Apache-2.0
//! The HTTP handler of the log filter.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "manager/support/mod.rs"]
mod support;

use std::sync::Mutex;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use steersman_endpoints::{MetricsRegistry, MetricsServer};
use steersman_runtime::{LogFormat, Logging};
use support::{HERE, get, send};
use tokio::task::JoinSet;

// R117
#[tokio::test]
async fn get_returns_the_log_filter_and_put_sets_it() {
    let (_log, handle) = Logging::new()
        .format(LogFormat::Json)
        .writer(Mutex::new(std::io::sink()))
        .build()
        .unwrap();
    let server = MetricsServer::new(MetricsRegistry::new())
        .address(HERE)
        .route("/loglevel", handle.handler());
    let server = server.bind().unwrap();
    let address = server.address();
    let mut serving = JoinSet::new();
    serving.spawn(server.serve(std::future::pending()));
    let put = |filter: String| {
        let request = Request::put("/loglevel")
            .body(Full::new(Bytes::from(filter)))
            .unwrap();
        send(address, request)
    };
    assert_eq!(get(address, "/loglevel").await.parts(), (200, "info\n"));
    assert_eq!(put("debug\n".to_owned()).await.parts(), (200, "debug\n"));
    assert_eq!(handle.filter(), "debug");

    let reply = put("steersman=loud".to_owned()).await;
    assert_eq!(reply.status, 400);
    let expected = "`steersman=loud` is not a valid log filter: write a level such as `debug`, or `target=level`, with commas between several: ";
    assert!(reply.body.starts_with(expected), "{}", reply.body);
    assert_eq!(put("a".repeat(5000)).await.status, 413);
    assert_eq!(put("\n".to_owned()).await.status, 400);
    assert_eq!(get(address, "/loglevel").await.parts(), (200, "debug\n"));

    let request = Request::post("/loglevel").body(Full::default()).unwrap();
    let reply = send(address, request).await;
    assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD, PUT"));
}
