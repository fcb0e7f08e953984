// SPDX-License-Identifier: Apache-2.0
//! Who may read metrics, as API servers see it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{Api, Client, api::PostParams};
use prometheus_client::metrics::gauge::Gauge;
use rustls::pki_types::ServerName;
use serde_json::json;
use steersman_core::{Clock, TestClock};
use steersman_manager::{Handler, MetricsRegistry, MetricsServer, Tls};
use steersman_testing::{
    FaultProxy, Fixture, User,
    proxy::{Fault, Matching},
};
use support::{HERE, Reply, Running, careless::careless, over, real_time, send, waits_for};
use tokio::net::TcpStream;

fn serve(client: Client, clock: Arc<dyn Clock>) -> Running {
    let metrics = MetricsRegistry::new();
    let secret = |part: &mut prometheus_client::registry::Registry| {
        part.register("secret", "A secret", Gauge::<i64>::default());
    };
    metrics.register(secret).forever();
    let extra = Handler::new(|_| async { Response::new(Full::new(Bytes::from("secret"))) });
    let server = MetricsServer::new(metrics)
        .address(HERE)
        .authorize(client)
        .route("/debug/", extra)
        .clock(clock);
    Running::start(server.bind().unwrap())
}

async fn ask(running: &Running, method: &str, path: &str, authorization: Option<&str>) -> Reply {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    send(running.address, request.body(Full::default()).unwrap()).await
}

fn bearer(user: &User) -> String {
    format!("Bearer {}", user.identity().token())
}

async fn scrape(running: &Running, user: &User) -> u16 {
    ask(running, "GET", "/metrics", Some(&bearer(user))).await.status
}

/// Lets a user get these paths, and waits until the server acts on it.
async fn allow(fixture: &Fixture, user: &User, paths: &[&str]) {
    let account = user.identity().name().rsplit(':').next().unwrap();
    let name = format!("{}-{account}-paths", fixture.namespace());
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": name}, "rules": [{"nonResourceURLs": paths, "verbs": ["get"]}],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": fixture.namespace()}],
    }))
    .unwrap();
    let options = PostParams::default();
    Api::all(fixture.client()).create(&options, &role).await.unwrap();
    Api::all(fixture.client())
        .create(&options, &binding)
        .await
        .unwrap();
    let review: SelfSubjectAccessReview = serde_json::from_value(json!({
        "metadata": {}, "spec": {"nonResourceAttributes": {"path": paths[0], "verb": "get"}},
    }))
    .unwrap();
    let reviews = Api::all(user.client());
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

/// How often the API server was asked who somebody is, and what they may do.
fn questions(proxy: &FaultProxy) -> (usize, usize) {
    let exchanges = proxy.exchanges();
    let count = |plural: &str| {
        exchanges
            .iter()
            .filter(|exchange| exchange.path.ends_with(plural))
            .count()
    };
    (count("/tokenreviews"), count("/subjectaccessreviews"))
}

// R64
#[steersman_testing::test]
async fn guarantee_1_metrics_and_extra_paths_are_for_those_who_may(fixture: Fixture) {
    let (scraper, stranger) = (fixture.user("scraper").await, fixture.user("stranger").await);
    allow(&fixture, &scraper, &["/metrics", "/debug/*"]).await;
    let running = serve(fixture.client(), real_time());
    for path in ["/metrics", "/debug/extra"] {
        let nobody = ask(&running, "GET", path, None).await;
        assert_eq!(nobody.parts(), (401, "Unauthorized\n"), "{path}");
        assert_eq!(nobody.header("www-authenticate"), "Bearer");
        for wrong in ["Bearer wrong", "Bearer ", "Bearer", "Basic YTpi", "wrong"] {
            let reply = ask(&running, "GET", path, Some(wrong)).await;
            assert_eq!(reply.parts(), (401, "Unauthorized\n"), "{path} {wrong}");
        }
        let refused = ask(&running, "GET", path, Some(&bearer(&stranger))).await;
        let expected = format!("Authorization denied for user {}\n", stranger.identity().name());
        assert_eq!(refused.parts(), (403, expected.as_str()));
        let allowed = ask(&running, "GET", path, Some(&bearer(&scraper))).await;
        assert_eq!(allowed.status, 200);
        assert!(allowed.body.contains("secret"));
        let shouted = bearer(&scraper).replace("Bearer", "BEARER");
        assert_eq!(ask(&running, "GET", path, Some(&shouted)).await.status, 200);
    }
}

// R64
#[steersman_testing::test]
async fn an_address_that_others_reach_is_served_with_tls_to_those_who_may(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/metrics"]).await;
    let server = MetricsServer::new(MetricsRegistry::new())
        .address((Ipv4Addr::UNSPECIFIED, 0).into())
        .tls(Tls::self_signed().unwrap())
        .authorize(fixture.client());
    let running = Running::start(server.bind().unwrap());
    let authorization = bearer(&scraper);
    for (authorization, status) in [("", 401), (authorization.as_str(), 200)] {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, running.address.port()))
            .await
            .unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = careless().connect(name, stream).await.unwrap();
        let request = Request::get("/metrics").header("authorization", authorization);
        assert_eq!(
            over(stream, request.body(Full::default()).unwrap()).await.status,
            status
        );
    }
}

#[steersman_testing::test]
async fn guarantee_1_the_verb_is_the_method(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/metrics"]).await;
    let running = serve(fixture.client(), real_time());
    for (method, status) in [("GET", 200), ("POST", 403), ("HEAD", 403)] {
        let reply = ask(&running, method, "/metrics?a=b", Some(&bearer(&scraper))).await;
        assert_eq!(reply.status, status, "{method}");
    }
}

#[steersman_testing::test]
async fn guarantee_1_a_path_is_the_same_however_it_is_written(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/debug/extra"]).await;
    let running = serve(fixture.client(), real_time());
    for (path, status) in [
        ("/debug/extra", 200),
        ("/debug/%65xtra", 200),
        ("/debug/other", 403),
        ("/debug/extra/../other", 404),
    ] {
        let reply = ask(&running, "GET", path, Some(&bearer(&scraper))).await;
        assert_eq!(reply.status, status, "{path}");
    }
}

#[steersman_testing::test]
async fn guarantee_2_what_was_learned_is_remembered_for_a_while(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/metrics"]).await;
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let running = serve(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    let mut last = Duration::ZERO;
    // When, and how often each was asked by then.
    for (seconds, identities, permissions) in [
        (0, 1, 1),
        (59, 1, 1),
        (60, 2, 1),
        (119, 2, 1),
        (299, 3, 1),
        (300, 3, 2),
        (599, 4, 2),
    ] {
        let now = Duration::from_secs(seconds);
        clock.advance(now - last);
        last = now;
        assert_eq!(scrape(&running, &scraper).await, 200);
        assert_eq!(questions(&proxy), (identities, permissions), "after {seconds} s");
    }
}

#[steersman_testing::test]
async fn guarantee_2_a_refusal_is_remembered_for_a_shorter_while(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let running = serve(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    assert_eq!(scrape(&running, &scraper).await, 403);
    allow(&fixture, &scraper, &["/metrics"]).await;
    clock.advance(Duration::from_secs(29));
    assert_eq!(scrape(&running, &scraper).await, 403);
    assert_eq!(questions(&proxy), (1, 1));
    clock.advance(Duration::from_secs(1));
    assert_eq!(scrape(&running, &scraper).await, 200);
    assert_eq!(questions(&proxy), (1, 2));
}

#[steersman_testing::test]
async fn guarantee_2_an_unknown_token_is_remembered_as_well(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let running = serve(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    for _ in 0..3 {
        assert_eq!(
            ask(&running, "GET", "/metrics", Some("Bearer wrong"))
                .await
                .status,
            401
        );
    }
    assert_eq!(questions(&proxy), (1, 0));
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        ask(&running, "GET", "/metrics", Some("Bearer wrong"))
            .await
            .status,
        401
    );
    assert_eq!(questions(&proxy), (2, 0));
}

#[steersman_testing::test]
async fn guarantee_2_a_failure_to_ask_lets_nobody_in_and_is_not_remembered(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/metrics"]).await;
    let proxy = fixture.proxy().await;
    let running = serve(proxy.client(fixture.admin()).unwrap(), real_time());
    let unplugged = proxy.unplug();
    let reply = ask(&running, "GET", "/metrics", Some(&bearer(&scraper))).await;
    assert_eq!(reply.parts(), (500, "Authentication failed\n"));
    drop(unplugged);
    let broken = proxy.inject(
        Matching::method("POST").path("/subjectaccessreviews"),
        Fault::answer(503),
    );
    let reply = ask(&running, "GET", "/metrics", Some(&bearer(&scraper))).await;
    let expected = format!("Authorization for user {} failed\n", scraper.identity().name());
    assert_eq!(reply.parts(), (500, expected.as_str()));
    drop(broken);
    assert_eq!(scrape(&running, &scraper).await, 200);
}

#[steersman_testing::test]
async fn guarantee_4_an_api_server_that_keeps_silent_has_failed(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let running = serve(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    let silent = proxy.inject(Matching::method("POST").path("/tokenreviews"), Fault::stall());
    let patience = Duration::from_secs(10);
    let elapse = async {
        silent.hit().await;
        waits_for(&clock, patience).await;
        clock.advance(patience);
    };
    let (status, ()) = tokio::join!(scrape(&running, &scraper), elapse);
    assert_eq!(status, 500);
}

#[steersman_testing::test]
async fn a_program_that_may_not_ask_lets_nobody_in(fixture: Fixture) {
    let (program, scraper) = (fixture.user("program").await, fixture.user("scraper").await);
    allow(&fixture, &scraper, &["/metrics"]).await;
    let running = serve(program.client(), real_time());
    assert_eq!(scrape(&running, &scraper).await, 500);
    let _ = program
        .grant("authentication.k8s.io", &["tokenreviews"], &["create"])
        .await
        .unwrap();
    assert_eq!(scrape(&running, &scraper).await, 500);
    let _ = program
        .grant("authorization.k8s.io", &["subjectaccessreviews"], &["create"])
        .await
        .unwrap();
    assert_eq!(scrape(&running, &scraper).await, 200);
}
