// SPDX-License-Identifier: Apache-2.0
//! Watches over time: with a clock that moves when told to.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::time::Duration;

use harness::{Raw, Watch, builder};
use serde_json::json;
use steersman_apiserver::{ApiServer, clock::ManualClock};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn create(server: &ApiServer, name: &str) -> String {
    let created = Raw::new("POST", MAPS)
        .json(&json!({"metadata": {"name": name}}))
        .send(server)
        .await
        .ok();
    created["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn timed() -> (ApiServer, ManualClock) {
    let clock = ManualClock::default();
    (builder().clock(clock.clone()).build(), clock)
}

#[tokio::test]
async fn a_watch_ends_cleanly_at_its_timeout() {
    let (server, clock) = timed();
    let mut watch = Watch::open(&server, &format!("{MAPS}?watch=1&timeoutSeconds=30")).await;
    watch.quiet().await;
    clock.advance(Duration::from_secs(30));
    assert_eq!(watch.next().await, None);
}

/// A server whose clock stands still keeps such a watch waiting for ever.
#[tokio::test]
async fn a_watch_waits_for_a_later_revision_by_the_servers_clock() {
    let (server, clock) = timed();
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=1000000"
    );
    let open = Watch::open(&server, &path);
    let mut open = std::pin::pin!(open);
    assert!(futures::poll!(open.as_mut()).is_pending());
    clock.advance(Duration::from_millis(2999));
    assert!(futures::poll!(open.as_mut()).is_pending());
    clock.advance(Duration::from_millis(1));
    let mut watch = open.await;
    let error = watch.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    assert_eq!(error["object"]["reason"], "Timeout");
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn bookmarks_are_sent_every_minute_and_shortly_before_the_end() {
    let (server, clock) = timed();
    let mut watch = Watch::open(
        &server,
        &format!("{MAPS}?watch=1&timeoutSeconds=100&allowWatchBookmarks=true"),
    )
    .await;
    let first = watch.next().await.unwrap();
    assert_eq!(
        first["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let revision = create(&server, "a").await;
    watch.next().await.unwrap();
    watch.quiet().await;
    clock.advance(Duration::from_secs(60));
    let bookmark = watch.next().await.unwrap();
    assert_eq!(
        (
            bookmark["type"].as_str(),
            bookmark["object"]["metadata"]["resourceVersion"].as_str()
        ),
        (Some("BOOKMARK"), Some(revision.as_str()))
    );
    watch.quiet().await;
    clock.advance(Duration::from_secs(38));
    assert_eq!(watch.next().await.unwrap()["type"], "BOOKMARK");
    clock.advance(Duration::from_secs(2));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_watch_from_a_compacted_revision_gets_410_as_an_event() {
    let server = builder().history(3).build();
    let first = create(&server, "a").await;
    for name in ["b", "c", "d", "e"] {
        create(&server, name).await;
    }
    let answer = Raw::get(&format!("{MAPS}?watch=1&resourceVersion={first}"))
        .send(&server)
        .await;
    assert_eq!(answer.code, 200);
    let events = answer.events();
    assert_eq!(
        (events.len(), events[0]["object"]["code"].as_u64()),
        (1, Some(410))
    );
    assert!(
        events[0]["object"]["message"]
            .as_str()
            .unwrap()
            .starts_with(&format!("too old resource version: {first} ("))
    );
}

#[tokio::test]
async fn an_expired_list_returns_a_token_to_continue_at_the_latest_revision() {
    let server = builder().build();
    for name in ["a", "b", "c"] {
        create(&server, name).await;
    }
    let page = Raw::get(&format!("{MAPS}?limit=1")).send(&server).await.ok();
    let token = page["metadata"]["continue"].as_str().unwrap();
    create(&server, "d").await;
    server.faults().compact();
    let expired = Raw::get(&format!("{MAPS}?limit=1&continue={token}"))
        .send(&server)
        .await;
    assert_eq!(expired.code, 410);
    assert_eq!(expired.json()["reason"], "Expired");
    let token = expired.json()["metadata"]["continue"]
        .as_str()
        .unwrap()
        .to_owned();
    let rest = Raw::get(&format!("{MAPS}?continue={token}"))
        .send(&server)
        .await
        .ok();
    let names: Vec<_> = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["b", "c", "d"]);
}

#[tokio::test]
async fn a_reader_that_falls_behind_the_log_is_cut_off_without_an_error() {
    let server = builder().history(3).build();
    let mut watch = Watch::open(&server, &format!("{MAPS}?watch=1")).await;
    for name in ["a", "b", "c", "d", "e"] {
        create(&server, name).await;
    }
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_read_of_a_future_revision_waits_for_it() {
    let (server, clock) = timed();
    let next = server.revision() + 1;
    let path = format!("{MAPS}?resourceVersion={next}&resourceVersionMatch=Exact");
    let (list, _) = tokio::join!(
        async { Raw::get(&path).send(&server).await.ok() },
        create(&server, "a")
    );
    assert_eq!(list["metadata"]["resourceVersion"], next.to_string());
    let path = format!("{MAPS}?resourceVersion={}", next + 1);
    let late = async {
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(3));
    };
    let raw = Raw::get(&path);
    let (answer, ()) = tokio::join!(raw.send(&server), late);
    assert_eq!(
        (answer.code, answer.headers("retry-after")),
        (504, vec!["1".to_owned()])
    );
}

#[tokio::test]
async fn every_watcher_sees_the_same_events_in_order() {
    let server = builder().build();
    let mut watches = Vec::new();
    for _ in 0..10 {
        watches.push(Watch::open(&server, &format!("{MAPS}?watch=1")).await);
    }
    for index in 0..50 {
        create(&server, &format!("m{index}")).await;
    }
    for watch in &mut watches {
        let mut last = 0;
        for index in 0..50 {
            let event = watch.next().await.unwrap();
            assert_eq!(event["object"]["metadata"]["name"], format!("m{index}"));
            let revision: u64 = event["object"]["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            assert!(revision > last);
            last = revision;
        }
        watch.quiet().await;
    }
}

#[tokio::test]
async fn events_live_for_an_hour_after_their_last_write() {
    let (server, clock) = timed();
    let path = "/api/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "reason": "R"});
    Raw::new("POST", path).json(&event).send(&server).await.ok();
    clock.advance(Duration::from_secs(3000));
    let patch =
        Raw::new("PATCH", &format!("{path}/e")).header("content-type", "application/merge-patch+json");
    patch.json(&json!({"count": 2})).send(&server).await.ok();
    clock.advance(Duration::from_secs(3000));
    assert_eq!(Raw::get(&format!("{path}/e")).send(&server).await.code, 200);
    let mut watch = Watch::open(&server, &format!("{path}?watch=1")).await;
    watch.next().await.unwrap();
    clock.advance(Duration::from_secs(600));
    assert_eq!(Raw::get(&format!("{path}/e")).send(&server).await.code, 404);
    assert_eq!(watch.next().await.unwrap()["type"], "DELETED");
}
