// SPDX-License-Identifier: Apache-2.0
//! Authentication and authorization by API servers.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{Api, Client, api::PostParams};
use prometheus_client::metrics::gauge::Gauge;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use steersman_core::{Clock, TestClock};
use steersman_endpoints::{HttpHandler, MetricsRegistry, MetricsServer, Tls};
use steersman_testing::{
    FaultProxy, Fixture, User,
    proxy::{Fault, Matching},
};
use tokio::net::TcpStream;

use crate::support::{HERE, Reply, Running, next_deadline_in, over, real_time, send, tls_client::unverified};

/// Sends reviews to the API server.
pub(crate) fn reviews(
    client: Client,
) -> impl Fn(http::Request<Vec<u8>>) -> BoxFuture<'static, Result<Value, kube::Error>> + Send + Sync + 'static
{
    move |request| {
        let client = client.clone();
        Box::pin(async move { client.request(request).await })
    }
}

fn serve(client: Client, clock: Arc<dyn Clock>) -> Running {
    let metrics = MetricsRegistry::new();
    let secret = |part: &mut prometheus_client::registry::Registry| {
        part.register("secret", "A secret", Gauge::<i64>::default());
    };
    metrics.register(secret).detach();
    let extra = HttpHandler::new(|_| async { Response::new(Full::new(Bytes::from("secret"))) });
    let server = MetricsServer::new(metrics)
        .address(HERE)
        .authorize(reviews(client))
        .route("/debug/", extra)
        .clock(clock);
    Running::start(server.bind().unwrap())
}

async fn request(running: &Running, method: &str, path: &str, authorization: Option<&str>) -> Reply {
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
    request(running, "GET", "/metrics", Some(&bearer(user)))
        .await
        .status
}

/// Allows a user to get these paths, and waits until the API server enforces it.
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

/// Returns the numbers of TokenReviews and SubjectAccessReviews that the API server received.
fn reviews_received(proxy: &FaultProxy) -> (usize, usize) {
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
async fn guarantee_1_all_paths_require_a_token_and_a_permission(fixture: Fixture) {
    let (scraper, stranger) = (fixture.user("scraper").await, fixture.user("stranger").await);
    allow(&fixture, &scraper, &["/metrics", "/debug/*"]).await;
    let running = serve(fixture.client(), real_time());
    for path in ["/metrics", "/debug/extra"] {
        let anonymous = request(&running, "GET", path, None).await;
        assert_eq!(anonymous.parts(), (401, "Unauthorized\n"), "{path}");
        assert_eq!(anonymous.header("www-authenticate"), "Bearer");
        for wrong in ["Bearer wrong", "Bearer ", "Bearer", "Basic YTpi", "wrong"] {
            let reply = request(&running, "GET", path, Some(wrong)).await;
            assert_eq!(reply.parts(), (401, "Unauthorized\n"), "{path} {wrong}");
        }
        let denied = request(&running, "GET", path, Some(&bearer(&stranger))).await;
        let expected = format!("Authorization denied for user {}\n", stranger.identity().name());
        assert_eq!(denied.parts(), (403, expected.as_str()));
        let allowed = request(&running, "GET", path, Some(&bearer(&scraper))).await;
        assert_eq!(allowed.status, 200);
        assert!(allowed.body.contains("secret"));
        let upper_case = bearer(&scraper).replace("Bearer", "BEARER");
        assert_eq!(
            request(&running, "GET", path, Some(&upper_case)).await.status,
            200
        );
    }
}

// R64
#[steersman_testing::test]
async fn a_reachable_address_works_with_tls_and_authorization(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/metrics"]).await;
    let server = MetricsServer::new(MetricsRegistry::new())
        .address((Ipv4Addr::UNSPECIFIED, 0).into())
        .tls(Tls::self_signed().unwrap())
        .authorize(reviews(fixture.client()));
    let running = Running::start(server.bind().unwrap());
    let authorization = bearer(&scraper);
    for (authorization, status) in [("", 401), (authorization.as_str(), 200)] {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, running.address.port()))
            .await
            .unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = unverified().connect(name, stream).await.unwrap();
        let request = Request::get("/metrics").header("authorization", authorization);
        assert_eq!(
            over(stream, request.body(Full::default()).unwrap()).await.status,
            status
        );
    }
}

#[steersman_testing::test]
async fn guarantee_1_the_verb_is_the_method_in_lower_case(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/metrics"]).await;
    let running = serve(fixture.client(), real_time());
    for (method, status) in [("GET", 200), ("POST", 403), ("HEAD", 403)] {
        let reply = request(&running, method, "/metrics?a=b", Some(&bearer(&scraper))).await;
        assert_eq!(reply.status, status, "{method}");
    }
}

#[steersman_testing::test]
async fn guarantee_1_authorizes_the_decoded_path(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/debug/extra"]).await;
    let running = serve(fixture.client(), real_time());
    for (path, status) in [
        ("/debug/extra", 200),
        ("/debug/%65xtra", 200),
        ("/debug/other", 403),
        ("/debug/extra/../other", 404),
    ] {
        let reply = request(&running, "GET", path, Some(&bearer(&scraper))).await;
        assert_eq!(reply.status, status, "{path}");
    }
}

#[steersman_testing::test]
async fn guarantee_2_caches_identities_and_permissions(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/metrics"]).await;
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let running = serve(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    let mut last = Duration::ZERO;
    // Time, and the expected numbers of reviews.
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
        assert_eq!(
            reviews_received(&proxy),
            (identities, permissions),
            "after {seconds} s"
        );
    }
}

#[steersman_testing::test]
async fn guarantee_2_caches_denials_for_a_shorter_time(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let running = serve(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    assert_eq!(scrape(&running, &scraper).await, 403);
    allow(&fixture, &scraper, &["/metrics"]).await;
    clock.advance(Duration::from_secs(29));
    assert_eq!(scrape(&running, &scraper).await, 403);
    assert_eq!(reviews_received(&proxy), (1, 1));
    clock.advance(Duration::from_secs(1));
    assert_eq!(scrape(&running, &scraper).await, 200);
    assert_eq!(reviews_received(&proxy), (1, 2));
}

#[steersman_testing::test]
async fn guarantee_2_caches_invalid_tokens(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let running = serve(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    for _ in 0..3 {
        assert_eq!(
            request(&running, "GET", "/metrics", Some("Bearer wrong"))
                .await
                .status,
            401
        );
    }
    assert_eq!(reviews_received(&proxy), (1, 0));
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        request(&running, "GET", "/metrics", Some("Bearer wrong"))
            .await
            .status,
        401
    );
    assert_eq!(reviews_received(&proxy), (2, 0));
}

#[steersman_testing::test]
async fn guarantee_2_a_failed_review_rejects_the_request_and_is_not_cached(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    allow(&fixture, &scraper, &["/metrics"]).await;
    let proxy = fixture.proxy().await;
    let running = serve(proxy.client(fixture.admin()).unwrap(), real_time());
    let unplugged = proxy.unplug();
    let reply = request(&running, "GET", "/metrics", Some(&bearer(&scraper))).await;
    assert_eq!(reply.parts(), (500, "Authentication failed\n"));
    drop(unplugged);
    let broken = proxy.inject(
        Matching::method("POST").path("/subjectaccessreviews"),
        Fault::answer(503),
    );
    let reply = request(&running, "GET", "/metrics", Some(&bearer(&scraper))).await;
    let expected = format!("Authorization for user {} failed\n", scraper.identity().name());
    assert_eq!(reply.parts(), (500, expected.as_str()));
    drop(broken);
    assert_eq!(scrape(&running, &scraper).await, 200);
}

#[steersman_testing::test]
async fn guarantee_3_a_review_times_out(fixture: Fixture) {
    let scraper = fixture.user("scraper").await;
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let running = serve(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    let silent = proxy.inject(Matching::method("POST").path("/tokenreviews"), Fault::stall());
    let timeout = Duration::from_secs(10);
    let time_out = async {
        silent.hit().await;
        next_deadline_in(&clock, timeout).await;
        clock.advance(timeout);
    };
    let (status, ()) = tokio::join!(scrape(&running, &scraper), time_out);
    assert_eq!(status, 500);
}

#[steersman_testing::test]
async fn rejects_requests_if_the_program_is_not_allowed_to_create_reviews(fixture: Fixture) {
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
