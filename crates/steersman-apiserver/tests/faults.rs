// SPDX-License-Identifier: Apache-2.0
//! Faults strike what they are meant for, and do what real ones do.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::time::Duration;

use harness::{Raw, Watch, builder};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use steersman_apiserver::{
    ApiServer, Workloads,
    clock::ManualClock,
    fault::{Cut, Effect, When},
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn create(server: &ApiServer, name: &str) -> Value {
    Raw::new("POST", MAPS)
        .json(&json!({"metadata": {"name": name}}))
        .send(server)
        .await
        .ok()
}

#[tokio::test]
async fn guarantee_1_only_the_matching_calls_are_struck_and_counted() {
    let server = builder().build();
    server.faults().inject(
        When::verb("create").resource("configmaps").nth(2).times(2),
        Effect::Fail { code: 503 },
    );
    let mut codes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        codes.push(
            Raw::new("POST", MAPS)
                .json(&json!({"metadata": {"name": name}}))
                .send(&server)
                .await
                .code,
        );
        assert_eq!(Raw::get(MAPS).send(&server).await.code, 200);
    }
    assert_eq!(codes, [201, 503, 503, 201]);
}

#[tokio::test]
async fn a_create_is_matched_by_the_name_in_its_body() {
    let server = builder().build();
    server
        .faults()
        .inject(When::verb("create").name("a"), Effect::Fail { code: 503 });
    let post = async |media: &str, body: &str| {
        let raw = Raw::new("POST", MAPS).header("content-type", media).body(body);
        raw.send(&server).await.code
    };
    let json = "application/json";
    assert_eq!(post(json, r#"{"metadata":{"name":"a"}}"#).await, 503);
    assert_eq!(post("application/yaml", "metadata: {name: a}").await, 503);
    assert_eq!(post(json, r#"{"metadata":{"name":"b"}}"#).await, 201);
    assert_eq!(post(json, r#"{"metadata":{"generateName":"a"}}"#).await, 201);
    assert_eq!(post(json, "not JSON").await, 400);
}

#[tokio::test]
async fn faults_match_by_name_and_by_user() {
    let server = builder().build();
    server
        .faults()
        .inject(When::any().user("alice").name("a"), Effect::Fail { code: 500 });
    create(&server, "a").await;
    let path = format!("{MAPS}/a");
    assert_eq!(Raw::get(&path).token("alice-token").send(&server).await.code, 500);
    assert_eq!(Raw::get(&path).token("bob-token").send(&server).await.code, 200);
    server.faults().clear();
    assert_eq!(Raw::get(&path).token("alice-token").send(&server).await.code, 200);
}

#[tokio::test]
async fn too_many_requests_has_a_retry_after() {
    let server = builder().build();
    server.faults().inject(
        When::verb("list").times(1),
        Effect::TooManyRequests {
            retry_after_seconds: 7,
        },
    );
    let answer = Raw::get(MAPS).send(&server).await;
    assert_eq!(
        (answer.code, answer.headers("retry-after")),
        (429, vec!["7".to_owned()])
    );
    assert_eq!(answer.json()["reason"], "TooManyRequests");
}

#[tokio::test]
async fn guarantee_2_a_conflict_is_made_by_a_real_write() {
    let server = builder().build();
    let object = create(&server, "a").await;
    let mut watch = Watch::open(&server, &format!("{MAPS}?watch=1")).await;
    watch.next().await.unwrap();
    server
        .faults()
        .inject(When::verb("update").name("a").times(1), Effect::Race);
    let update = Raw::new("PUT", &format!("{MAPS}/a")).json(&object);
    assert_eq!(update.send(&server).await.code, 409);
    let racing = watch.next().await.unwrap();
    assert_eq!(
        racing["object"]["metadata"]["annotations"]["steersman.dev/race"],
        "1"
    );
    let fresh = Raw::get(&format!("{MAPS}/a")).send(&server).await.ok();
    assert_eq!(
        fresh["metadata"]["resourceVersion"],
        racing["object"]["metadata"]["resourceVersion"]
    );
    Raw::new("PUT", &format!("{MAPS}/a"))
        .json(&fresh)
        .send(&server)
        .await
        .ok();
}

#[tokio::test]
async fn guarantee_3_a_write_whose_response_is_lost_has_been_applied() {
    let server = builder().build();
    server
        .faults()
        .inject(When::verb("create").times(1), Effect::LoseResponse);
    let create = Raw::new("POST", MAPS).json(&json!({"metadata": {"name": "a"}}));
    assert!(create.try_send(&server).await.is_none());
    assert_eq!(create.send(&server).await.json()["reason"], "AlreadyExists");
}

#[tokio::test]
async fn a_watch_is_cut_cleanly_after_some_events() {
    let server = builder().build();
    server.faults().inject(
        When::verb("watch").times(1),
        Effect::CutWatch {
            after: 2,
            how: Cut::Clean,
        },
    );
    let mut watch = Watch::open(&server, &format!("{MAPS}?watch=1")).await;
    for name in ["a", "b", "c"] {
        create(&server, name).await;
    }
    assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["name"], "a");
    assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["name"], "b");
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_watch_is_cut_in_the_middle_of_an_event() {
    let server = builder().build();
    let mut watch = Watch::open(&server, &format!("{MAPS}?watch=1")).await;
    create(&server, "a").await;
    watch.next().await.unwrap();
    create(&server, "b").await;
    server
        .faults()
        .cut_watches(&When::any().resource("configmaps"), Cut::MidLine);
    let broken = watch.try_next().await.unwrap_err();
    assert!(broken.contains("reset"), "{broken}");
}

#[tokio::test]
async fn a_reset_watch_breaks_between_events() {
    let server = builder().build();
    let mut watch = Watch::open(&server, &format!("{MAPS}?watch=1")).await;
    server.faults().cut_watches(&When::verb("watch"), Cut::Reset);
    assert!(watch.try_next().await.is_err());
    assert_eq!(watch.try_next().await, Ok(None));
}

#[tokio::test]
async fn a_paused_watch_sends_no_event_and_loses_none() {
    let server = builder().build();
    let mut paused = Watch::open(&server, &format!("{MAPS}?watch=1")).await;
    let faults = server.faults();
    faults.pause_watches(&When::any().resource("configmaps"));
    let mut other = Watch::open(&server, &format!("{MAPS}?watch=1")).await;
    create(&server, "a").await;
    assert_eq!(other.next().await.unwrap()["object"]["metadata"]["name"], "a");
    paused.quiet().await;
    faults.resume_watches(&When::any());
    assert_eq!(paused.next().await.unwrap()["object"]["metadata"]["name"], "a");
    assert_eq!(faults.watches(&When::any()), 2);
}

#[tokio::test]
async fn a_paused_watch_outlives_its_timers() {
    let clock = ManualClock::default();
    let workloads = Workloads::default().startup(Duration::from_secs(5));
    let server = builder().clock(clock.clone()).workloads(workloads).build();
    let revision = server.revision();
    let path =
        format!("{MAPS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion={revision}");
    let mut watch = Watch::open(&server, &path).await;
    server.faults().pause_watches(&When::any());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    Raw::new("POST", pods).json(&pod).send(&server).await.ok();
    let before = server.revision();
    // What is due, a bookmark, the next one and the last one: nobody asks for anything but this watch.
    for seconds in [6, 60, 60, 173] {
        watch.quiet().await;
        clock.advance(Duration::from_secs(seconds));
    }
    watch.quiet().await;
    assert!(server.revision() > before, "the Pod has not become ready");
    create(&server, "a").await;
    server.faults().resume_watches(&When::any());
    assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["name"], "a");
    clock.advance(Duration::from_secs(2));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_watch_is_cut_amid_the_state_that_it_begins_with() {
    let server = builder().build();
    for name in ["a", "b", "c"] {
        create(&server, name).await;
    }
    let begin = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    );
    let cut_after = async |after: usize, how: Cut| {
        let cut = Effect::CutWatch { after, how };
        server.faults().inject(When::verb("watch").times(1), cut);
        let mut watch = Watch::open(&server, &begin).await;
        let mut kinds = Vec::new();
        loop {
            match watch.try_next().await {
                Ok(Some(event)) => kinds.push(event["type"].as_str().unwrap().to_owned()),
                Ok(None) => return (kinds, true),
                Err(_) => return (kinds, false),
            }
        }
    };
    let added = |count: usize| vec!["ADDED".to_owned(); count];
    assert_eq!(cut_after(2, Cut::Clean).await, (added(2), true));
    // All that is there, but not the mark of its end.
    assert_eq!(cut_after(3, Cut::Clean).await, (added(3), true));
    for how in [Cut::MidLine, Cut::Reset] {
        assert_eq!(cut_after(0, how).await, (added(0), false));
        assert_eq!(cut_after(1, how).await, (added(1), false));
        assert_eq!(cut_after(3, how).await, (added(3), false));
    }
    let mut whole = Watch::open(&server, &begin).await;
    for expected in ["ADDED", "ADDED", "ADDED", "BOOKMARK"] {
        assert_eq!(whole.next().await.unwrap()["type"], expected);
    }
}

#[tokio::test]
async fn compaction_expires_the_past_at_once() {
    let server = builder().build();
    let first = create(&server, "a").await["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    create(&server, "b").await;
    server.faults().compact();
    let list = Raw::get(&format!(
        "{MAPS}?resourceVersion={first}&resourceVersionMatch=Exact"
    ))
    .send(&server)
    .await;
    assert_eq!(list.code, 410);
    let events = Raw::get(&format!("{MAPS}?watch=1&resourceVersion={first}"))
        .send(&server)
        .await
        .events();
    assert_eq!(events[0]["object"]["code"], 410);
}

#[tokio::test]
async fn a_slow_list_is_sent_in_chunks_by_the_servers_clock() {
    let clock = ManualClock::default();
    let server = builder().clock(clock.clone()).build();
    create(&server, "a").await;
    server.faults().inject(
        When::verb("list").times(1),
        Effect::SlowBody {
            bytes: 100,
            pause: Duration::from_secs(1),
        },
    );
    let mut body = Raw::get(MAPS).open(&server).await.into_body();
    let mut read = Vec::new();
    let mut seconds = 0;
    while let Some(frame) = {
        let next = body.frame();
        let tick = async {
            tokio::task::yield_now().await;
            clock.advance(Duration::from_secs(1));
            seconds += 1;
        };
        tokio::join!(next, tick).0
    } {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.len() <= 100);
        read.extend_from_slice(&data);
    }
    assert_eq!(
        serde_json::from_slice::<Value>(&read).unwrap()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert!(seconds > 2);
}

#[tokio::test]
async fn a_delayed_call_is_served_later() {
    let clock = ManualClock::default();
    let server = builder().clock(clock.clone()).build();
    server.faults().inject(
        When::verb("create").times(1),
        Effect::Delay(Duration::from_secs(5)),
    );
    let raw = Raw::new("POST", MAPS).json(&json!({"metadata": {"name": "a"}}));
    let mut call = Box::pin(raw.send(&server));
    assert!(
        tokio::time::timeout(Duration::from_millis(20), &mut call)
            .await
            .is_err()
    );
    clock.advance(Duration::from_secs(5));
    assert_eq!(call.await.code, 201);
}
