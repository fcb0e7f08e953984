// SPDX-License-Identifier: Apache-2.0
//! Guarantees of the fault proxy: faults apply, other requests pass, and all requests are recorded.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeSet, env, fs::File, net::TcpStream, process::Command, time::Duration};

use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::{Value, json};
use steersman_testing::{
    EmbeddedServer, FaultProxy, Fixture,
    proxy::{Cut, Ended, Exchange, Fault, Matching},
};

fn maps(fixture: &Fixture, client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, fixture.namespace())
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"key": "value"}})).unwrap()
}

async fn create(fixture: &Fixture, name: &str) {
    maps(fixture, fixture.client())
        .create(&PostParams::default(), &map(name))
        .await
        .unwrap();
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// A watch of the test's namespace through the proxy, read as bytes: `kube` takes a broken connection for an end.
struct Watch {
    body: kube::client::Body,
    bytes: Vec<u8>,
}

/// Next event of a watch.
#[derive(Debug, PartialEq)]
enum Said {
    /// An event for the object of this name.
    Event(String),
    /// An error event with this code.
    Error(u64),
    /// The end, in good order. Nothing is left of a line.
    End,
    /// The end of the connection, and the number of bytes of an unfinished line before it.
    Broken(usize),
}

impl Watch {
    async fn open(fixture: &Fixture, proxy: &FaultProxy) -> Self {
        let client = proxy.client(fixture.admin()).unwrap();
        let path = format!(
            "/api/v1/namespaces/{}/configmaps?watch=1&resourceVersion=0",
            fixture.namespace()
        );
        let request = http::Request::get(path)
            .body(kube::client::Body::empty())
            .unwrap();
        Self {
            body: client.send(request).await.unwrap().into_body(),
            bytes: Vec::new(),
        }
    }

    async fn next(&mut self) -> Said {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap();
                return match event["object"]["code"].as_u64() {
                    Some(code) => Said::Error(code),
                    None => Said::Event(event["object"]["metadata"]["name"].as_str().unwrap().to_owned()),
                };
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self
                    .bytes
                    .extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(_)) => return Said::Broken(self.bytes.len()),
                None => {
                    assert!(self.bytes.is_empty(), "an end in good order is between two lines");
                    return Said::End;
                }
            }
        }
    }
}

fn event(name: &str) -> Said {
    Said::Event(name.to_owned())
}

#[steersman_testing::test]
async fn guarantee_1_records_identity_request_and_time(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let maps = maps(&fixture, proxy.client(fixture.admin()).unwrap());
    maps.create(&PostParams::default(), &map("a")).await.unwrap();
    maps.get("a").await.unwrap();

    let path = format!("/api/v1/namespaces/{}/configmaps", fixture.namespace());
    let exchanges = proxy
        .wait_for(|all| (all.len() == 2 && all.iter().all(|one| !one.is_open())).then(|| all.to_vec()))
        .await;
    let [create, get] = exchanges.as_slice() else {
        panic!("two requests")
    };
    assert_eq!(
        (create.method.as_str(), create.path.as_str()),
        ("POST", path.as_str())
    );
    assert_eq!(
        (get.method.as_str(), get.path.as_str()),
        ("GET", format!("{path}/a").as_str())
    );
    assert_eq!((create.status, get.status), (Some(201), Some(200)));
    assert!(create.is_write() && !get.is_write());
    for exchange in &exchanges {
        assert_eq!(exchange.identity.as_deref(), Some("admin"));
        assert_eq!(exchange.ended, Some(Ended::Complete));
        assert!(exchange.bytes > 0);
        assert!(exchange.arrived <= exchange.first_byte.unwrap());
        assert!(exchange.first_byte <= exchange.last_byte);
    }
    // A client opens another connection where the first is not back in its pool yet, but not for ever.
    let is_used_again = |all: &[Exchange]| {
        let connections: BTreeSet<_> = all.iter().map(|one| one.connection).collect();
        connections.len() < all.len()
    };
    while !is_used_again(&proxy.exchanges()) {
        maps.get("a").await.unwrap();
    }
}

#[steersman_testing::test]
async fn guarantee_2_a_fault_ends_with_its_handle(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let maps = maps(&fixture, proxy.client(fixture.admin()).unwrap());
    let forbidden = proxy.inject(Matching::any(), Fault::answer(403));
    assert_eq!(code(&maps.get("a").await.unwrap_err()), Some(403));
    assert_eq!(forbidden.hits(), 1);
    drop(forbidden);
    assert_eq!(code(&maps.get("a").await.unwrap_err()), Some(404));
}

#[steersman_testing::test]
async fn guarantee_3_the_first_matching_fault_applies(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let maps = maps(&fixture, proxy.client(fixture.admin()).unwrap());
    let _first = proxy.inject(
        Matching::reads().path("/configmaps/a").after(1).first(1),
        Fault::answer(503),
    );
    let _second = proxy.inject(Matching::any(), Fault::answer(500));
    let mut codes = Vec::new();
    for _ in 0..3 {
        codes.push(code(&maps.get("a").await.unwrap_err()).unwrap());
    }
    assert_eq!(codes, [500, 503, 500]);
}

#[steersman_testing::test]
async fn an_answer_has_the_body_of_an_api_server(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = proxy.client(fixture.admin()).unwrap();
    for (code, reason) in [
        (403, "Forbidden"),
        (409, "Conflict"),
        (410, "Expired"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ] {
        let _fault = proxy.inject(Matching::any(), Fault::answer(code));
        let Err(kube::Error::Api(status)) = maps(&fixture, client.clone()).get("a").await else {
            panic!("{code} is an answer of the API")
        };
        assert_eq!((status.code, status.reason.as_str()), (code, reason));
    }
    let _fault = proxy.inject(Matching::any(), Fault::answer_retry_after(429, 7));
    let request = http::Request::get("/version")
        .body(kube::client::Body::empty())
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "7");
}

#[steersman_testing::test]
async fn a_dropped_response_means_that_the_write_was_applied(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let through = maps(&fixture, proxy.client(fixture.admin()).unwrap());
    let lost = proxy.inject(Matching::method("POST").first(1), Fault::drop_response());
    let error = through
        .create(&PostParams::default(), &map("a"))
        .await
        .unwrap_err();
    assert_eq!(code(&error), None, "no answer came: {error}");
    assert_eq!(lost.hits(), 1);
    maps(&fixture, fixture.client()).get("a").await.unwrap();
    proxy
        .wait_for(|all| all.iter().any(|one| one.ended == Some(Ended::Cut)).then_some(()))
        .await;
}

#[steersman_testing::test]
async fn a_stalled_response_arrives_after_release(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let maps = maps(&fixture, proxy.client(fixture.admin()).unwrap());
    let stall = proxy.inject(Matching::reads(), Fault::stall());
    let get = maps.get("a");
    tokio::pin!(get);
    tokio::select! {
        biased;
        answer = &mut get => panic!("it is held back: {answer:?}"),
        () = stall.hit() => {}
    }
    drop(stall);
    get.await.unwrap();
}

#[steersman_testing::test]
async fn a_stall_holds_an_open_watch(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let mut watch = Watch::open(&fixture, &proxy).await;
    assert_eq!(watch.next().await, event("a"));

    let stall = proxy.inject(Matching::watches(), Fault::stall());
    create(&fixture, "b").await;
    let held = tokio::time::timeout(Duration::from_millis(300), watch.next()).await;
    assert!(held.is_err(), "the event is held back");
    drop(stall);
    assert_eq!(watch.next().await, event("b"));
}

#[steersman_testing::test]
async fn a_stall_holds_a_limited_number_of_requests(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let stall = proxy.inject(Matching::watches().first(1), Fault::stall());
    let mut first = std::pin::pin!(Watch::open(&fixture, &proxy));
    tokio::select! {
        biased;
        _ = &mut first => panic!("it is held back"),
        () = stall.hit() => {}
    }
    let mut second = Watch::open(&fixture, &proxy).await;
    assert_eq!(second.next().await, event("a"));
    create(&fixture, "b").await;
    assert_eq!(second.next().await, event("b"));
    assert_eq!(stall.hits(), 1);
    drop(stall);
    assert_eq!(first.await.next().await, event("a"));
}

#[steersman_testing::test]
async fn a_delay_holds_back_one_request(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let delay = Duration::from_millis(200);
    let _slow = proxy.inject(Matching::reads().first(1), Fault::delay(delay));
    maps(&fixture, proxy.client(fixture.admin()).unwrap())
        .get("a")
        .await
        .unwrap();
    let exchange = proxy.exchanges().remove(0);
    assert!(exchange.first_byte.unwrap() - exchange.arrived >= delay);
}

#[steersman_testing::test]
async fn an_error_event_ends_a_watch_with_410(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let _expired = proxy.inject(Matching::watches(), Fault::error_event(410));
    let mut watch = Watch::open(&fixture, &proxy).await;
    assert_eq!(watch.next().await, Said::Error(410));
    assert_eq!(watch.next().await, Said::End);
}

#[steersman_testing::test]
async fn a_clean_cut_ends_a_watch_normally(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let mut watch = Watch::open(&fixture, &proxy).await;
    assert_eq!(watch.next().await, event("a"));
    assert_eq!(proxy.cut(&Matching::watches().path("/configmaps"), Cut::Clean), 1);
    assert_eq!(watch.next().await, Said::End);
    assert_eq!(proxy.exchanges()[0].ended, Some(Ended::Cut));
}

#[steersman_testing::test]
async fn an_abrupt_cut_breaks_a_watch(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let mut watch = Watch::open(&fixture, &proxy).await;
    assert_eq!(watch.next().await, event("a"));
    assert_eq!(proxy.cut(&Matching::watches(), Cut::Abrupt), 1);
    assert_eq!(watch.next().await, Said::Broken(0));
}

#[steersman_testing::test]
async fn cuts_a_watch_after_a_number_of_lines(fixture: Fixture) {
    for name in ["a", "b", "c"] {
        create(&fixture, name).await;
    }
    let proxy = fixture.proxy().await;
    let endings = [(Cut::Clean, Said::End), (Cut::Abrupt, Said::Broken(0))];
    for (cut, ending) in endings {
        let _fault = proxy.inject(Matching::watches(), Fault::cut_after_lines(2, cut));
        let mut watch = Watch::open(&fixture, &proxy).await;
        assert!(matches!(
            (watch.next().await, watch.next().await),
            (Said::Event(_), Said::Event(_))
        ));
        assert_eq!(watch.next().await, ending);
    }
}

#[steersman_testing::test]
async fn cuts_a_watch_within_a_line(fixture: Fixture) {
    for name in ["a", "b", "c"] {
        create(&fixture, name).await;
    }
    let proxy = fixture.proxy().await;
    let _fault = proxy.inject(Matching::watches(), Fault::cut_after_lines(1, Cut::MidLine));
    let mut watch = Watch::open(&fixture, &proxy).await;
    assert!(matches!(watch.next().await, Said::Event(_)));
    assert!(matches!(watch.next().await, Said::Broken(half) if half > 0));
}

#[steersman_testing::test]
async fn cuts_an_open_watch_within_a_line(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let mut watch = Watch::open(&fixture, &proxy).await;
    assert_eq!(watch.next().await, event("a"));
    proxy.cut(&Matching::watches(), Cut::MidLine);
    create(&fixture, "b").await;
    assert!(matches!(watch.next().await, Said::Broken(half) if half > 0));
}

#[steersman_testing::test]
async fn cut_connections_are_replaced_by_new_ones(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let mut watch = Watch::open(&fixture, &proxy).await;
    assert_eq!(watch.next().await, event("a"));
    proxy.cut_connections();
    assert_eq!(watch.next().await, Said::Broken(0));

    let maps = maps(&fixture, proxy.client(fixture.admin()).unwrap());
    maps.get("a").await.unwrap();
    let exchanges = proxy.exchanges();
    assert_ne!(exchanges[0].connection, exchanges[1].connection);
}

#[steersman_testing::test]
async fn a_frozen_network_resumes(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let mut watch = Watch::open(&fixture, &proxy).await;
    assert_eq!(watch.next().await, event("a"));
    let frozen = proxy.freeze();
    create(&fixture, "b").await;
    let held = tokio::time::timeout(Duration::from_millis(300), watch.next()).await;
    assert!(held.is_err(), "nothing passes");
    drop(frozen);
    assert_eq!(watch.next().await, event("b"));
}

#[steersman_testing::test]
async fn an_unplugged_server_is_unreachable_until_it_is_plugged_in(fixture: Fixture) {
    create(&fixture, "a").await;
    let proxy = fixture.proxy().await;
    let maps = maps(&fixture, proxy.client(fixture.admin()).unwrap());
    maps.get("a").await.unwrap();
    let unplugged = proxy.unplug();
    assert_eq!(code(&maps.get("a").await.unwrap_err()), None);
    // No client has a closed connection any more.
    proxy.has_connections(0).await;
    drop(unplugged);
    maps.get("a").await.unwrap();
}

#[steersman_testing::test]
async fn faults_can_match_one_identity(fixture: Fixture) {
    create(&fixture, "a").await;
    let user = fixture.user("reader").await;
    let _grant = user.grant("", &["configmaps"], &["get"]).await.unwrap();
    let proxy = fixture.proxy().await;
    let (of_user, of_admin) = (
        proxy.client(user.identity()).unwrap(),
        proxy.client(fixture.admin()).unwrap(),
    );
    let _fault = proxy.inject(
        Matching::any().identity(user.identity().name()),
        Fault::answer(503),
    );
    assert_eq!(
        code(&maps(&fixture, of_user).get("a").await.unwrap_err()),
        Some(503)
    );
    maps(&fixture, of_admin).get("a").await.unwrap();
    assert_eq!(
        proxy.exchanges()[0].identity.as_deref(),
        Some(user.identity().name())
    );
}

#[steersman_testing::test]
async fn closing_a_client_connection_ends_its_watch(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    drop(Watch::open(&fixture, &proxy).await);
    let end = proxy.wait_for(|all| all[0].ended).await;
    assert_eq!(end, Ended::ClientGone);
}

/// Set in the copy of this test that may have few files only.
const POOR: &str = "STEERSMAN_TEST_POOR";

/// Runs itself in a separate process, because other tests need file descriptors as well.
#[tokio::test]
async fn a_proxy_survives_exhausted_file_descriptors() {
    if env::var_os(POOR).is_none() {
        let copy = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "a_proxy_survives_exhausted_file_descriptors",
                "--nocapture",
            ])
            .env(POOR, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&copy.stderr);
        assert!(copy.status.success(), "{said}");
        return;
    }
    let server = EmbeddedServer::start(false).await.unwrap();
    let proxy = FaultProxy::start(server.endpoint()).await.unwrap();
    let address = proxy.endpoint().url().trim_start_matches("https://").to_owned();
    let few = Rlimit {
        current: Some(256),
        maximum: Some(256),
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // One is left for this end of the connection, and none for the other.
    files.pop();
    let waiting = TcpStream::connect(&address).unwrap();
    let early = tokio::time::timeout(Duration::from_millis(300), proxy.has_connections(1)).await;
    assert!(early.is_err(), "it cannot be accepted");
    files.clear();
    // The limit is that of a hang.
    let late = tokio::time::timeout(Duration::from_secs(60), proxy.has_connections(1)).await;
    assert!(late.is_ok(), "it is accepted once it can be");
    drop(waiting);
}

// D29
#[steersman_testing::test]
async fn answers_with_any_status_content_type_and_body(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let client = proxy.client(fixture.admin()).unwrap();
    let page = "<html>no such page</html>";
    let answered = proxy.inject(
        Matching::reads().path("/configmaps"),
        Fault::respond(200, "text/html", page),
    );
    let path = format!("/api/v1/namespaces/{}/configmaps", fixture.namespace());
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    assert_eq!(client.request_text(request).await.unwrap(), page);
    assert_eq!(answered.hits(), 1);
}
