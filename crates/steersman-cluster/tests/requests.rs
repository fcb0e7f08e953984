// SPDX-License-Identifier: Apache-2.0
//! Requests on their way: time, tries, counters, warnings, and what is logged of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    api::{Api, WatchParams},
    client::Body,
};
use serde_json::json;
use steersman_cache::Query;
use steersman_cluster::{Cluster, Error, RequestMetric};
use steersman_core::{ObjectKey, TestClock};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};
use support::{builder, cluster, config_map, key, logged::Logged, next_deadline, requests};
use tower::service_fn;

const LIMIT: Duration = Duration::from_secs(30);

/// Number of retries.
fn retries(cluster: &Cluster) -> u64 {
    cluster.retries().iter().map(|one| one.count).sum()
}

// R141
#[steersman_testing::test]
async fn a_request_times_out(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let key = key(&fixture, "a");
    let stall = proxy.inject(Matching::any(), Fault::stall());
    for (client, limit) in [
        (cluster.live(), LIMIT),
        (cluster.live().timeout(LIMIT / 10), LIMIT / 10),
    ] {
        let hits = stall.hits();
        let (read, ()) = futures::join!(client.get::<ConfigMap>(&key), async {
            stall.hit_times(hits + 1).await;
            clock.advance(limit - Duration::from_nanos(1));
            tokio::task::yield_now().await;
            clock.advance(Duration::from_nanos(1));
        });
        let error = read.unwrap_err();
        assert!(
            matches!(&error, Error::TimedOut { source, .. } if source.limit == limit),
            "{error:?}"
        );
    }
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().kube(), fixture.namespace());
    let (read, ()) = futures::join!(maps.get("a"), async {
        stall.hit_times(3).await;
        clock.advance(LIMIT);
    });
    assert!(matches!(read, Err(kube::Error::Service(_))), "{read:?}");
}

// R141
#[steersman_testing::test]
async fn a_watch_has_no_timeout(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let client = cluster.live();
    let options = WatchParams::default().disable_bookmarks();
    let mut watch = client
        .watch::<ConfigMap>(fixture.namespace(), &options, "0")
        .await
        .unwrap();
    clock.advance(LIMIT * 100);
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    // Existing objects can arrive first.
    while let Some(event) = watch.next().await {
        if let kube::core::WatchEvent::Added(map) = event.unwrap()
            && map.metadata.name.as_deref() == Some("a")
        {
            return;
        }
    }
    panic!("the watch ended");
}

/// Begins, and does not end.
struct Endless(Option<Bytes>);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

// R141
#[tokio::test]
async fn the_timeout_covers_the_complete_response() {
    let clock = TestClock::new();
    let service = service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Endless(Some(Bytes::from_static(
            b"{\"metadata\":",
        )))))
    });
    let service = kube::Client::new(service, "default");
    let cluster = Cluster::builder("slow")
        .service(service)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let (client, key) = (cluster.live(), ObjectKey::new("web", "front"));
    let (read, ()) = futures::join!(client.get::<ConfigMap>(&key), async {
        let deadline = next_deadline(&clock, LIMIT).await;
        clock.advance_to(deadline);
    });
    assert!(read.unwrap_err().is_timeout());
}

#[steersman_testing::test]
async fn retries_a_read_twice(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let (client, key) = (cluster.live(), key(&fixture, "a"));
    let walk = async |count: usize| {
        for _ in 0..count {
            clock.advance_to(next_deadline(&clock, Duration::from_secs(10)).await);
        }
    };
    let _busy = proxy.inject(Matching::method("GET").first(2), Fault::answer(503));
    let (read, ()) = futures::join!(client.get::<ConfigMap>(&key), walk(2));
    assert!(read.unwrap().is_none());
    assert_eq!((requests(&proxy).len(), retries(&cluster)), (3, 2));

    let down = proxy.inject(Matching::method("GET"), Fault::answer(503));
    let (read, ()) = futures::join!(client.get::<ConfigMap>(&key), walk(2));
    let error = read.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { refusal, .. } if refusal.code == 503),
        "{error:?}"
    );
    assert_eq!((down.hits(), retries(&cluster)), (3, 4));
}

#[steersman_testing::test]
async fn retries_a_write_only_if_it_was_not_applied(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let client = cluster.live();
    let busy = proxy.inject(
        Matching::method("POST").first(1),
        Fault::answer_retry_after(429, 7),
    );
    let map = config_map(&fixture, "a", "first");
    let (written, ()) = futures::join!(client.create(&map), async {
        let deadline = next_deadline(&clock, Duration::from_secs(8)).await;
        assert_eq!(
            deadline.as_nanos(),
            7_000_000_000,
            "the server asked for so much patience"
        );
        clock.advance_to(deadline);
    });
    written.unwrap();
    assert_eq!(busy.hits(), 1);

    let _down = proxy.inject(Matching::method("POST").first(1), Fault::answer(503));
    let error = client
        .create(&config_map(&fixture, "b", "first"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Refused { refusal, .. } if refusal.code == 503),
        "{error:?}"
    );
    let _broken = proxy.inject(Matching::method("POST").first(1), Fault::drop_response());
    let error = client
        .create(&config_map(&fixture, "c", "first"))
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(retries(&cluster), 1);
    // The server did it, and was not asked twice.
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "c"))
            .await
            .unwrap()
            .is_some()
    );

    // Patience that takes longer than the request may take is none.
    let _busy = proxy.inject(
        Matching::method("POST").first(1),
        Fault::answer_retry_after(429, 3600),
    );
    let error = client
        .create(&config_map(&fixture, "d", "first"))
        .await
        .unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
}

#[steersman_testing::test]
async fn a_watch_does_not_wait_for_a_long_retry_after(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().kube(), fixture.namespace());
    let busy = proxy.inject(
        Matching::watches().first(1),
        Fault::answer_retry_after(503, 86_400),
    );
    let params = WatchParams::default();
    let (watch, ()) = futures::join!(maps.watch(&params, "0"), async {
        let deadline = next_deadline(&clock, Duration::from_secs(86_400)).await;
        assert_eq!(deadline.as_nanos(), 120_000_000_000);
        clock.advance_to(deadline);
    });
    watch.map(drop).unwrap();
    assert_eq!(busy.hits(), 1);
}

#[tokio::test]
async fn retries_a_write_without_a_connection() {
    let clock = TestClock::new();
    // A reserved port without a listener.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    let cluster = Cluster::builder("nowhere")
        .field_manager("tester")
        .config(config)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let client = cluster.live();
    let map: ConfigMap = support::object(json!({"metadata": {"name": "a", "namespace": "n"}}));
    let (written, ()) = futures::join!(client.create(&map), async {
        for _ in 0..2 {
            clock.advance_to(next_deadline(&clock, Duration::from_secs(10)).await);
        }
    });
    let error = written.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "cannot create configmaps/v1 n/a: the server does not answer"
    );
    assert_eq!(retries(&cluster), 2);
    let [count] = cluster.requests().try_into().unwrap();
    assert_eq!(
        (count.code, count.method.as_str(), count.count),
        (None, "POST", 3)
    );
    assert_eq!(count.host, address.to_string());
}

#[steersman_testing::test]
async fn counts_requests_by_status(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    client
        .create(&config_map(&fixture, "a", "first"))
        .await
        .unwrap_err();
    client.live().get::<ConfigMap>(&key(&fixture, "z")).await.unwrap();
    // Its cache and a client of kube count as well.
    client
        .list::<ConfigMap>(&Query::new().namespace(fixture.namespace()))
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.kube(), fixture.namespace());
    maps.get("a").await.unwrap();
    let counts: Vec<_> = cluster
        .requests()
        .into_iter()
        .map(|one| (one.method, one.code.unwrap(), one.count))
        .collect();
    let expected = [
        ("GET", 200, 2),
        ("GET", 404, 1),
        ("POST", 201, 1),
        ("POST", 409, 1),
    ];
    assert_eq!(
        counts,
        expected.map(|(method, code, count)| (method.to_owned(), code, count))
    );
}

#[tokio::test]
async fn a_warning_of_the_server_is_logged_once_and_content_never() {
    let logged = Logged::default();
    let _logging = tracing::subscriber::set_default(logged.clone());
    let service = service_fn(async |_: Request<Body>| {
        let answer = Response::builder()
            .header("Warning", r#"299 - "v1beta1 is going away""#)
            .body(http_body_util::Full::new(Bytes::from_static(
                br#"{"metadata":{"name":7},"data":{"password":"hunter2"}}"#,
            )));
        Ok::<_, Infallible>(answer.unwrap())
    });
    let service = kube::Client::new(service, "default");
    let client = Cluster::builder("old")
        .service(service)
        .build()
        .await
        .unwrap()
        .live();
    for _ in 0..3 {
        let error = client
            .get::<ConfigMap>(&ObjectKey::new("web", "front"))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Decode { path, .. } if path == "metadata.name"),
            "{error:?}"
        );
    }
    let all = logged.lines();
    let warnings: Vec<_> = all.iter().filter(|line| line.contains("going away")).collect();
    assert_eq!(warnings.len(), 1, "{all:?}");
    assert!(warnings[0].starts_with("WARN"));
    assert!(!all.iter().any(|line| line.contains("hunter2")), "{all:?}");
}

#[tokio::test]
async fn requests_have_a_user_agent() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&heads);
    let service = service_fn(move |request: Request<Body>| {
        let head = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
        noted.lock().unwrap().push((head("user-agent"), head("accept")));
        let answer = Response::builder()
            .status(404)
            .body(http_body_util::Full::new(Bytes::new()));
        std::future::ready(Ok::<_, Infallible>(answer.unwrap()))
    });
    let service = kube::Client::new(service, "default");
    let (named, other) = (Cluster::builder("a").user_agent("web/1.0"), Cluster::builder("b"));
    for builder in [named, other] {
        let live = builder.service(service.clone()).build().await.unwrap().live();
        let error = live
            .get::<ConfigMap>(&ObjectKey::new("n", "a"))
            .await
            .unwrap_err();
        assert!(
            error.is_absent(),
            "a server that says 404 and nothing else has no such kind"
        );
    }
    let heads = heads.lock().unwrap().clone();
    assert_eq!(heads[0], ("web/1.0".to_owned(), "application/json".to_owned()));
    assert!(
        heads[1].0.starts_with("requests-") && heads[1].0.contains(" steersman/"),
        "{heads:?}"
    );
    let odd = Cluster::builder("a")
        .service(service)
        .user_agent("a\nb")
        .build()
        .await;
    assert!(
        matches!(odd, Err(steersman_cluster::ConnectError::UserAgent { .. })),
        "{odd:?}"
    );
}

// C4
#[steersman_testing::test]
async fn requests_are_measured_and_watches_are_not(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    let values = |metric: RequestMetric, verb: &str| {
        let all = cluster.request_histograms().into_iter();
        let mut of_verb = all.filter(|one| one.metric == metric && one.verb == verb);
        let found = of_verb.next().map(|one| {
            let count: u64 = one.buckets.iter().map(|(_, count)| count).sum();
            (count, one.sum)
        });
        found.unwrap_or_default()
    };
    let created = client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let (count, seconds) = values(RequestMetric::Duration, "POST");
    assert!(count == 1 && seconds > 0.0);
    let (count, bytes) = values(RequestMetric::RequestSize, "POST");
    assert!(count == 1 && bytes > 50.0);
    let (_, received) = values(RequestMetric::ResponseSize, "POST");
    assert!(received > bytes, "the server adds metadata");

    // The list of the cache, which is streamed or paged, and its watch: only requests that end have a duration.
    client
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap()
        .unwrap();
    cluster
        .live()
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap()
        .unwrap();
    let ended = proxy
        .exchanges()
        .iter()
        .filter(|exchange| exchange.method == "GET" && !exchange.is_watch())
        .count();
    assert_eq!(values(RequestMetric::Duration, "GET").0, ended as u64);
    assert_eq!(values(RequestMetric::RequestSize, "GET"), (ended as u64, 0.0));
    // A change that the watch delivers adds nothing.
    let before = cluster.request_histograms();
    let revision = created.metadata.resource_version.unwrap();
    client
        .wait_for_revision::<ConfigMap>(fixture.namespace(), &revision)
        .await
        .unwrap();
    assert_eq!(cluster.request_histograms(), before);
    assert!(values(RequestMetric::RateLimiterDuration, "GET").0 == 0);
    assert!(cluster.plugin_calls().is_empty());
}
