// SPDX-License-Identifier: Apache-2.0
//! Errors and how they end.

use super::*;

#[tokio::test]
async fn guarantee_5_honours_retry_after() {
    let busy = Answer {
        headers: vec![("retry-after", "17")],
        ..refusal(429)
    };
    let scene = Scene::start(paged(), [busy, list(&[], 1, ""), watch_of(&[], End::Never)]);
    scene.settle().await;
    assert!(matches!(
        scene.error(),
        Some(WatchError::ServerError { code: 429, .. })
    ));
    assert_eq!(scene.wait().await, Duration::from_secs(17));
    assert_eq!(scene.events().await, ["begin", "abandon", "begin", "end 1"]);
}

#[tokio::test]
async fn guarantee_4_reports_each_failure_until_it_ends() {
    let script = [
        refusal(404),
        refusal(403),
        answer(200, "surprise"),
        list(&[], 1, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    scene.settle().await;
    assert_eq!(scene.error(), Some(WatchError::NotInstalled));
    scene.wait().await;
    assert_eq!(
        scene.error(),
        Some(WatchError::Forbidden {
            reason: "no 403".to_owned()
        })
    );
    scene.wait().await;
    assert!(matches!(scene.error(), Some(WatchError::InvalidResponse { .. })));
    assert!(!scene.health.borrow().synced);
    scene.wait().await;
    assert_eq!(scene.error(), None);
    assert!(scene.health.borrow().synced);
}

#[tokio::test]
async fn guarantee_4_a_kind_with_events_is_not_absent() {
    let begun = watch_of(&[event("ADDED", "a", 6)], End::Never);
    let scene = Scene::start(ReflectorOptions::default(), [refusal(404), begun]);
    scene.settle().await;
    assert_eq!(scene.error(), Some(WatchError::NotInstalled));
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "abandon", "begin", "listed a"]);
    assert_eq!(scene.error(), None);
    assert!(!scene.health.borrow().synced);
}

/// Creates a source that knows the presence of the kind, set by the test.
fn known(now: Presence) -> (watch::Sender<Presence>, watch::Sender<()>, PresenceSource) {
    let (presence, look) = watch::channel(now);
    let (changes, changed) = watch::channel(());
    let known = PresenceSource::new(move |_| *look.borrow(), changed);
    (presence, changes, known)
}

const AN_HOUR: Duration = Duration::from_secs(3600);

// R2
#[tokio::test]
async fn guarantee_8_lists_an_absent_kind_at_once_when_it_is_installed() {
    let (presence, changes, known) = known(Presence::Present);
    let script = [list(&["a"], 5, ""), watch_of(&[], End::Good), refusal(404)];
    let scene = Scene::knowing(paged(), script, known);
    assert_eq!(scene.events().await, ["begin", "listed a", "end 5"]);
    scene.wait().await;
    // D5
    assert_eq!(scene.error(), Some(WatchError::NotInstalled));
    assert!(!scene.health.borrow().absent, "it is known to be there");
    assert_eq!(scene.events().await, Vec::<String>::new(), "nobody else says so");
    scene.requests();

    // The absence becomes known only after the server's answer.
    presence.send_replace(Presence::Absent);
    changes.send_replace(());
    assert_eq!(scene.events().await, ["begin", "end 5"], "nothing is left");
    assert!(scene.health.borrow().absent);
    for _ in 0..3 {
        scene.clock.advance(AN_HOUR);
        changes.send_replace(());
        scene.settle().await;
    }
    assert_eq!(scene.requests(), Vec::<String>::new());
    scene.then(list(&["b"], 9, ""));
    scene.then(watch_of(&[], End::Never));
    presence.send_replace(Presence::Present);
    changes.send_replace(());
    assert_eq!(scene.events().await, ["begin", "listed b", "end 9"]);
    assert_eq!(scene.error(), None);
    assert!(!scene.health.borrow().absent);
}

// D30
#[tokio::test]
async fn retries_a_synced_kind_within_seconds_after_404() {
    let script = [list(&["a"], 5, ""), watch_of(&[], End::Good)];
    let scene = Scene::start(paged(), script.into_iter().chain((0..8).map(|_| refusal(404))));
    assert_eq!(scene.events().await, ["begin", "listed a", "end 5"]);
    scene.wait().await;
    assert_eq!(scene.error(), Some(WatchError::NotInstalled));
    for _ in 0..6 {
        let waited = scene.wait().await;
        assert!(waited <= Duration::from_secs(3), "{waited:?}");
    }
    scene.then(list(&["a"], 6, ""));
    scene.then(watch_of(&[], End::Never));
    scene.wait().await;
    scene.wait().await;
    assert_eq!(scene.error(), None);
}

#[tokio::test]
async fn guarantee_8_new_presence_ends_the_back_off() {
    let (presence, changes, known) = known(Presence::Unknown);
    let scene = Scene::knowing(paged(), [refusal(404)], known);
    assert_eq!(scene.events().await, ["begin", "abandon"]);
    changes.send_replace(());
    assert_eq!(scene.events().await, Vec::<String>::new());
    scene.then(list(&[], 1, ""));
    presence.send_replace(Presence::Present);
    changes.send_replace(());
    assert_eq!(scene.events().await, ["begin", "end 1"]);
}

#[tokio::test]
async fn guarantee_8_lists_a_kind_of_unknown_presence() {
    let (presence, changes, known) = known(Presence::Absent);
    let scene = Scene::knowing(paged(), [refusal(404)], known);
    scene.settle().await;
    scene.clock.advance(AN_HOUR);
    assert_eq!(scene.events().await, ["begin", "abandon"]);
    scene.then(list(&[], 1, ""));
    presence.send_replace(Presence::Unknown);
    changes.send_replace(());
    assert_eq!(scene.events().await, ["begin", "end 1"]);
}

// R167
#[tokio::test]
async fn guarantee_7_reports_a_panic_and_relists() {
    let lines = [
        bookmark(9, true),
        event("ADDED", "poison", 10),
        event("ADDED", "a", 11),
    ];
    let script = [
        watch_of(&lines, End::Never),
        watch_of(&[event("ADDED", "a", 11), bookmark(12, true)], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default(), script);
    assert_eq!(
        scene.events().await,
        ["begin", "end 9", "changed poison", "abandon"]
    );
    assert_eq!(scene.error(), Some(WatchError::Panicked));
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "listed a", "end 12"]);
    assert_eq!(scene.error(), None);
}

// D5
#[tokio::test]
async fn guarantee_8_only_a_404_of_an_api_server_means_absent() {
    let of_an_object = r#"{"kind":"Status","code":404,"details":{"name":"a","kind":"configmaps"}}"#;
    for (body, is_absent) in [
        ("404 page not found\n", true),
        (
            r#"{"kind":"Status","apiVersion":"v1","reason":"NotFound","code":404}"#,
            true,
        ),
        (of_an_object, false),
        ("<html>404 Not Found</html>", false),
        ("{}", false),
        (r#"{"message":"no Route matched with those values"}"#, false),
        ("", false),
    ] {
        let scene = Scene::start(paged(), [answer(404, body)]);
        scene.settle().await;
        let error = scene.error().unwrap();
        assert_eq!(error == WatchError::NotInstalled, is_absent, "{body}: {error}");
        let is_refused = matches!(error, WatchError::Rejected { code: 404, .. });
        assert_eq!(is_refused, !is_absent, "{body}: {error}");
    }
}

// D1
#[tokio::test]
async fn guarantee_9_rejects_a_response_that_is_not_a_list() {
    let item = object("a", 5);
    for body in [
        "{}".to_owned(),
        r#"{"status":"ok"}"#.to_owned(),
        r#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#.to_owned(),
        r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}"#.to_owned(),
        // The list lacks its revision.
        format!(r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{}},"items":[{item}]}}"#),
    ] {
        let script = [
            list(&["a"], 5, ""),
            refusal(410),
            answer(200, &body),
            list(&["a"], 6, ""),
            watch_of(&[], End::Never),
        ];
        let scene = Scene::start(paged(), script);
        let events = scene.events().await;
        assert_eq!(events.first().map(String::as_str), Some("begin"));
        assert_eq!(
            events.last().map(String::as_str),
            Some("abandon"),
            "{body}: {events:?}"
        );
        let error = scene.error();
        assert!(
            matches!(error, Some(WatchError::InvalidResponse { .. })),
            "{body}: {error:?}"
        );
        scene.wait().await;
        assert_eq!(scene.events().await, ["begin", "listed a", "end 6"], "{body}");
    }
}

// D1
#[tokio::test]
async fn guarantee_9_rejects_a_first_response_that_is_not_a_list() {
    for body in [
        "{}",
        r#"{"status":"ok"}"#,
        r#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#,
    ] {
        let scene = Scene::start(paged(), [answer(200, body)]);
        assert_eq!(scene.events().await, ["begin", "abandon"], "{body}");
        assert!(!scene.health.borrow().synced, "{body}");
    }
}

// D1
#[tokio::test]
async fn guarantee_9_rejects_a_page_of_another_list() {
    for page in ["{}", r#"{"metadata":{},"items":[]}"#] {
        let scene = Scene::start(paged(), [list(&["a"], 5, "more"), answer(200, page)]);
        assert_eq!(scene.events().await, ["begin", "listed a", "abandon"], "{page}");
        assert!(!scene.health.borrow().synced);
    }
}

// D5
#[tokio::test]
async fn guarantee_8_one_404_does_not_make_a_present_kind_absent() {
    let not_found = || answer(404, "404 page not found\n");
    let script = [
        list(&["a"], 5, ""),
        not_found(),
        not_found(),
        not_found(),
        not_found(),
    ];
    let scene = Scene::start(paged(), script);
    scene.settle().await;
    let is_absent = || scene.health.borrow().absent;
    assert_eq!(
        (scene.error(), is_absent()),
        (Some(WatchError::NotInstalled), false)
    );
    scene.wait().await;
    assert!(!is_absent(), "a second answer may come from the same gateway");
    scene.wait().await;
    assert!(is_absent());
}
