// SPDX-License-Identifier: Apache-2.0
//! Streamed lists: when the reflector asks for them, and when for pages.

use super::*;

// R123
#[tokio::test]
async fn a_streamed_list_continues_as_a_watch() {
    let lines = [
        event("ADDED", "a", 5),
        event("ADDED", "b", 3),
        bookmark(9, true),
        event("MODIFIED", "a", 10),
    ];
    let scene = Scene::start(ReflectorOptions::default(), [watch_of(&lines, End::Never)]);
    assert_eq!(
        scene.events().await,
        ["begin", "listed a", "listed b", "end 9", "changed a"]
    );
    let requests = scene.requests();
    assert_eq!(requests.len(), 1);
    for parameter in [
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "watch=true",
        "labelSelector=a%3Db",
    ] {
        assert!(has(&requests[0], parameter), "{requests:?}");
    }
    assert!(scene.health.borrow().synced);
}

// R123
#[tokio::test]
async fn pages_if_the_server_rejects_streamed_lists() {
    let script = [
        refusal(422),
        list(&["a"], 7, "more"),
        list(&["b"], 7, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default().page_size(1), script);
    assert_eq!(
        scene.events().await,
        ["begin", "abandon", "begin", "listed a", "listed b", "end 7"]
    );
    let requests = scene.requests();
    assert!(
        has(&requests[1], "limit=1") && !requests[1].contains("resourceVersion"),
        "{requests:?}"
    );
    assert!(has(&requests[2], "continue=more"));
    assert!(has(&requests[3], "watch=true") && has(&requests[3], "resourceVersion=7"));
}

// R123
#[tokio::test]
async fn pages_if_no_initial_bookmark_arrives() {
    let script = [
        watch_of(&[event("ADDED", "a", 5)], End::Never),
        list(&["a"], 7, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default(), script);
    assert_eq!(scene.events().await, ["begin", "listed a"]);
    assert_eq!(scene.wait().await, Duration::from_secs(10));
    assert_eq!(scene.events().await, ["abandon", "begin", "listed a", "end 7"]);
}

// R123
#[tokio::test]
async fn pages_if_changes_but_no_initial_bookmark_arrive() {
    let (mut more, changes) = mpsc::channel(1);
    let script = [
        watch_of(&[event("ADDED", "a", 5)], End::Later(changes)),
        list(&["a"], 90, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default(), script);
    assert_eq!(scene.events().await, ["begin", "listed a"]);
    for revision in 6..9 {
        scene.clock.advance(Duration::from_secs(3));
        let change = event("MODIFIED", "a", revision);
        more.try_send(Bytes::from(change + "\n")).unwrap();
        assert_eq!(scene.events().await, ["listed a"]);
    }
    scene.clock.advance(Duration::from_secs(1));
    assert_eq!(scene.events().await, ["abandon", "begin", "listed a", "end 90"]);
}

// R123
#[tokio::test]
async fn pages_if_new_objects_but_no_initial_bookmark_arrive() {
    let (mut more, created) = mpsc::channel(1);
    let script = [
        watch_of(&[], End::Later(created)),
        list(&["a"], 900, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default(), script);
    for number in 0..33 {
        scene.settle().await;
        scene.clock.advance(Duration::from_secs(9));
        let _ = more.try_send(Bytes::from(
            event("ADDED", &format!("n{number}"), number + 5) + "\n",
        ));
    }
    scene.clock.advance(Duration::from_secs(3));
    let events = scene.events().await;
    assert_eq!(events.last().unwrap(), "end 900", "{events:?}");
}

#[tokio::test]
async fn retries_a_broken_streamed_list_as_a_stream() {
    let script = [
        watch_of(&[event("ADDED", "a", 5)], End::Broken),
        watch_of(&[event("ADDED", "a", 5), bookmark(6, true)], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default(), script);
    assert_eq!(scene.events().await, ["begin", "listed a", "abandon"]);
    assert!(matches!(scene.error(), Some(WatchError::Unreachable { .. })));
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "listed a", "end 6"]);
    assert_eq!(scene.error(), None);
}

/// Returns, for each request, true if it asks for a streamed list.
fn streams(requests: &[String]) -> Vec<bool> {
    requests
        .iter()
        .map(|request| has(request, "sendInitialEvents=true"))
        .collect()
}

#[tokio::test]
async fn pages_once_after_several_broken_streamed_lists() {
    let broken = || watch_of(&[event("ADDED", "a", 5)], End::Broken);
    let script = [
        broken(),
        refusal(502),
        broken(),
        // Pages fail too; they are tried until a list is complete.
        refusal(504),
        list(&["a"], 7, ""),
        watch_of(&[error_event(410)], End::Good),
        watch_of(&[bookmark(8, true)], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default(), script);
    for _ in 0..4 {
        scene.wait().await;
    }
    assert_eq!(scene.events().await.last().unwrap(), "end 7");
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "end 8"]);
    let expected = [true, true, true, false, false, false, true];
    assert_eq!(streams(&scene.requests()), expected);
}

#[tokio::test]
async fn streams_again_after_a_slow_streamed_list() {
    let script = [
        watch_of(&[event("ADDED", "a", 5)], End::Never),
        list(&["a"], 7, ""),
        watch_of(&[error_event(410)], End::Good),
        watch_of(&[bookmark(8, true)], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default(), script);
    assert_eq!(scene.wait().await, Duration::from_secs(10));
    assert_eq!(scene.events().await.last().unwrap(), "end 8");
    assert_eq!(streams(&scene.requests()), [true, false, false, true]);
}

#[tokio::test]
async fn does_not_retry_rejected_streamed_lists() {
    for code in [400, 405, 422] {
        let script = [
            refusal(code),
            list(&["a"], 7, ""),
            watch_of(&[error_event(410)], End::Good),
            list(&["a"], 8, ""),
            watch_of(&[], End::Never),
        ];
        let scene = Scene::start(ReflectorOptions::default(), script);
        assert_eq!(scene.events().await.last().unwrap(), "end 8", "{code}");
        assert_eq!(streams(&scene.requests()), [true, false, false, false, false]);
    }
}
