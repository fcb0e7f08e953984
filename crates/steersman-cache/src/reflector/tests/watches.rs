// SPDX-License-Identifier: Apache-2.0
//! Ends of watches, and the opening of the next one.

use super::*;

#[tokio::test]
async fn backs_off_if_the_server_closes_each_watch_at_once() {
    let script = [
        list(&[], 5, ""),
        watch_of(&[], End::Good),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    scene.settle().await;
    assert_eq!(scene.requests().len(), 2);
    assert!(scene.wait().await >= Duration::from_millis(800));
    assert_eq!(scene.requests().len(), 1);
}

/// Checks that the watch is not reopened without a delay after an answer that had no effect, with the expected error.
async fn assert_given_time(name: &str, answer: Answer, is_expected: fn(&WatchError) -> bool) {
    let scene = Scene::start(paged(), [list(&[], 5, ""), answer]);
    assert_eq!(scene.events().await.last().unwrap(), "end 5", "{name}");
    assert_eq!(scene.requests().len(), 2, "{name}");
    let error = scene.error();
    assert!(error.as_ref().is_some_and(is_expected), "{name}: {error:?}");
    // If events can have been missed, a relist is next.
    if !matches!(error, Some(WatchError::Unreachable { .. })) {
        scene.then(list(&[], 6, ""));
    }
    scene.then(watch_of(&[], End::Never));
    assert!(scene.wait().await >= Duration::from_millis(800), "{name}");
    assert!(!scene.requests().is_empty(), "{name}");
    assert_eq!(scene.error(), None, "{name}");
}

#[tokio::test]
async fn guarantee_5_backs_off_after_an_invalid_watch() {
    let page = "<html>\n<body>\n<h1>It works!</h1>\n</body>\n</html>\n";
    let is_undecodable = |error: &WatchError| matches!(error, WatchError::InvalidResponse { .. });
    assert_given_time("a page", answer(200, page), is_undecodable).await;
    let page = Answer {
        end: End::Never,
        ..answer(200, page)
    };
    assert_given_time("a page without an end", page, is_undecodable).await;
    let error = r#"{"type":"ERROR","object":"gone"}"#.to_owned();
    assert_given_time(
        "an error that is no status",
        watch_of(&[error], End::Never),
        is_undecodable,
    )
    .await;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(b"{").unwrap();
    let whole = encoder.finish().unwrap();
    let gzip = Answer {
        chunks: vec![whole.into(), Bytes::from_static(b"this is no gzip at all")],
        headers: vec![("content-encoding", "gzip")],
        ..answer(200, "")
    };
    assert_given_time("gzip that breaks off", gzip, is_undecodable).await;
}

#[tokio::test]
async fn guarantee_5_backs_off_after_a_watch_without_new_events() {
    let is_unreachable = |error: &WatchError| matches!(error, WatchError::Unreachable { .. });
    let known = watch_of(&[bookmark(5, false)], End::Good);
    let scene = Scene::start(paged(), [list(&[], 5, ""), known]);
    assert_eq!(scene.events().await, ["begin", "end 5", "progressed 5"]);
    assert!(scene.error().as_ref().is_some_and(is_unreachable));
    assert_eq!(scene.requests().len(), 2);
    scene.then(watch_of(&[], End::Never));
    assert!(scene.wait().await >= Duration::from_millis(800));
    assert!(has(&scene.requests()[0], "resourceVersion=5"), "it goes on");
    assert_eq!(scene.error(), None);
    assert_given_time("half a line", answer(200, "{"), is_unreachable).await;
    assert_given_time("empty lines", answer(200, "\n\n"), is_unreachable).await;
}

#[tokio::test]
async fn reopens_a_long_watch_at_once() {
    let (more, later) = mpsc::channel(1);
    let script = [
        list(&[], 5, ""),
        watch_of(&[], End::Later(later)),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    scene.settle().await;
    scene.clock.advance(Duration::from_secs(1));
    drop(more);
    scene.settle().await;
    assert_eq!(scene.requests().len(), 3);
    assert_eq!(scene.error(), None);
}

// R123
#[tokio::test]
async fn guarantee_4_reports_and_resumes_a_silent_watch() {
    let scene = Scene::start(
        ReflectorOptions::default(),
        [watch_of(&[bookmark(5, true), event("ADDED", "a", 6)], End::Never)],
    );
    assert_eq!(scene.events().await, ["begin", "end 5", "changed a"]);
    scene.requests();
    let limit = Duration::from_secs(615);
    let mut waited = Duration::ZERO;
    while scene.error().is_none() {
        waited += scene.wait().await;
    }
    assert_eq!(waited, limit);
    assert_eq!(scene.error(), Some(WatchError::IdleTimeout { limit }));
    assert!(scene.health.borrow().synced, "what is known stays");
    scene.then(watch_of(&[event("ADDED", "b", 7)], End::Never));
    scene.wait().await;
    assert_eq!(scene.events().await, ["changed b"]);
    let requests = scene.requests();
    assert_eq!(requests.len(), 1);
    assert!(
        has(&requests[0], "watch=true") && has(&requests[0], "resourceVersion=6"),
        "{requests:?}"
    );
    assert_eq!(scene.error(), None);
}

// D9
#[tokio::test]
async fn relists_after_a_few_watches_that_end_with_an_error_of_the_server() {
    let failed = || watch_of(&[error_event(500)], End::Good);
    let script = [
        list(&["a"], 5, ""),
        failed(),
        refusal(500),
        failed(),
        list(&["b"], 9, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    assert_eq!(scene.events().await, ["begin", "listed a", "end 5"]);
    for _ in 0..2 {
        scene.wait().await;
        assert_eq!(scene.events().await, Vec::<String>::new());
        assert!(has(scene.requests().last().unwrap(), "resourceVersion=5"));
    }
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "listed b", "end 9"]);
    assert_eq!(scene.error(), None);
}

// D9
#[tokio::test]
async fn resumes_a_failed_watch_after_its_last_event() {
    let mut script = vec![list(&[], 5, "")];
    let fails_after = |revision| {
        [
            event("ADDED", &format!("x{revision}"), revision),
            error_event(500),
        ]
    };
    script.extend((6..12).map(|revision| watch_of(&fails_after(revision), End::Good)));
    script.push(watch_of(&[], End::Never));
    let scene = Scene::start(paged(), script);
    for _ in 6..12 {
        scene.wait().await;
    }
    let lists = scene
        .requests()
        .iter()
        .filter(|request| !request.contains("watch=true"))
        .count();
    assert_eq!(lists, 1);
}
