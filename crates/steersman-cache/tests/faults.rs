// SPDX-License-Identifier: Apache-2.0
//! Whatever happens on the wire, the store gets there and nothing is lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::json;
use steersman_cache::{
    Informer, InformerOptions, Query, ReflectorOptions, Resource, Revision, Scope, WatchError,
};
use steersman_core::{Clock, TestClock};
use steersman_testing::{
    FaultProxy, Fixture, OwnServerOptions, ServerKind,
    proxy::{Cut, Fault, Injected, Matching},
};
use support::{
    Heard, Maps, config_maps, context, context_at, custom, define, here, informer, informer_with, is_list,
    names, next_deadline, parameter, requests, served, sorted, through,
};

/// Cuts the watch, changes something, and checks that the next watch resumes from the last revision.
async fn a_cut_watch_goes_on(fixture: &Fixture, cut: Cut) {
    let maps = Maps::of(fixture);
    maps.create_all(&["a", "b"]).await;
    let proxy = fixture.proxy().await;
    let informer = informer(fixture, &through(fixture, &proxy));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let before = informer.store().revision();

    assert_eq!(proxy.cut(&Matching::watches(), cut), 1);
    let created = maps.create("c").await;
    maps.set("a", "second").await;
    maps.delete("b").await;
    let said = heard.count(5).await;
    assert_eq!(said[2..], ["added c", "updated a", "deleted b"]);
    assert_eq!(names(&informer), ["a", "c"]);

    let requests = requests(&proxy, "configmaps");
    assert_eq!(requests.iter().filter(|one| is_list(one)).count(), 1);
    assert_eq!(informer.stats().lists, 1);
    let from = Revision::new(&parameter(&requests[1], "resourceVersion").unwrap());
    let missed = Revision::new(&created.metadata.resource_version.unwrap());
    assert!(
        from.reached(&before) && !from.reached(&missed),
        "{before} {from} {missed}"
    );
    assert_eq!(informer.health().error, None);
}

// R123
#[steersman_testing::test]
async fn resumes_a_watch_that_ends(fixture: Fixture) {
    a_cut_watch_goes_on(&fixture, Cut::Clean).await;
}

// R123
#[steersman_testing::test]
async fn resumes_a_broken_watch(fixture: Fixture) {
    a_cut_watch_goes_on(&fixture, Cut::Abrupt).await;
}

// R123
#[steersman_testing::test]
async fn resumes_a_watch_that_breaks_within_a_line(fixture: Fixture) {
    a_cut_watch_goes_on(&fixture, Cut::MidLine).await;
}

// R124
#[steersman_testing::test]
async fn a_watch_that_breaks_repeatedly_loses_nothing(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let proxy = fixture.proxy().await;
    let informer = informer(&fixture, &through(&fixture, &proxy));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let _breaking = proxy.inject(Matching::watches(), Fault::cut_after_lines(2, Cut::MidLine));
    proxy.cut(&Matching::watches(), Cut::MidLine);
    for number in 0..12 {
        maps.create(&format!("object-{number:02}")).await;
    }
    let expected: Vec<String> = (0..12)
        .map(|number| format!("added object-{number:02}"))
        .collect();
    assert_eq!(heard.count(12).await, expected);
    assert_eq!(informer.stats().lists, 1);
}

// R124, D26
#[steersman_testing::test]
async fn a_burst_of_changes_over_breaking_watches_ends_in_what_the_server_has(fixture: Fixture) {
    const OBJECTS: usize = 200;
    // 10,000 changes. The real server writes each to a disk; there, `cargo xtask test --long` asks for as many.
    let asked = std::env::var("STEERSMAN_BURST_ROUNDS").ok();
    let asked = asked.map(|asked| asked.parse().unwrap());
    let rounds = asked.unwrap_or(match fixture.server_kind() {
        ServerKind::Embedded => 50,
        _ => 5,
    });
    let maps = Maps::of(&fixture);
    let proxy = fixture.proxy().await;
    let informer = informer(&fixture, &through(&fixture, &proxy));
    informer.synced().await;
    let _breaking = proxy.inject(Matching::watches(), Fault::cut_after_lines(300, Cut::MidLine));
    proxy.cut(&Matching::watches(), Cut::MidLine);
    let changes = (0..OBJECTS).map(|number| {
        let (name, maps) = (format!("object-{number:03}"), &maps);
        async move {
            maps.create(&name).await;
            for round in 0..rounds - 2 {
                maps.set(&name, &format!("round {round}")).await;
            }
            if number % 2 == 0 {
                maps.delete(&name).await;
            } else {
                maps.set(&name, "last").await;
            }
        }
    });
    futures::stream::iter(changes)
        .buffer_unordered(8)
        .collect::<()>()
        .await;

    let listed = maps.0.list(&ListParams::default()).await.unwrap();
    let server: BTreeMap<String, String> = listed
        .iter()
        .filter(|map| map.name_any().starts_with("object-"))
        .map(|map| (map.name_any(), map.resource_version().unwrap()))
        .collect();
    assert_eq!(server.len(), OBJECTS / 2);
    let is_it = || {
        let stored = informer.store().list(&Query::new());
        let ours = stored
            .iter()
            .filter(|object| object.name().starts_with("object-"));
        let ours = ours.map(|object| (object.name().to_owned(), object.resource_version().to_owned()));
        ours.collect::<BTreeMap<_, _>>() == server
    };
    let mut events = informer.subscribe("until it is so", 1);
    while !is_it() {
        events.next().await;
    }
}

// R123, R150
#[steersman_testing::test]
async fn guarantee_3_deletions_missed_before_410_have_an_unknown_final_state(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["same", "changed", "replaced", "gone"]).await;
    let proxy = fixture.proxy().await;
    let informer = informer(&fixture, &through(&fixture, &proxy));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;

    let unplugged = proxy.unplug();
    maps.set("changed", "second").await;
    maps.delete("replaced").await;
    let replaced = maps.create("replaced").await;
    maps.delete("gone").await;
    maps.create("new").await;
    let expired = proxy.inject(Matching::watches().first(1), Fault::error_event(410));
    drop(unplugged);

    let said = heard.count(9).await;
    assert_eq!(expired.hits(), 1);
    assert_eq!(
        sorted(said[4..].to_vec()),
        [
            "added new",
            "added replaced",
            "updated changed",
            "vanished gone",
            "vanished replaced"
        ]
    );
    let position = |wanted: &str| said.iter().position(|said| said == wanted);
    assert!(position("vanished replaced") < position("added replaced"));
    assert_eq!(names(&informer), ["changed", "new", "replaced", "same"]);
    let stored = informer.store().get(fixture.namespace(), "replaced").unwrap();
    assert_eq!(stored.uid(), replaced.metadata.uid.unwrap());

    let lists: Vec<_> = requests(&proxy, "configmaps")
        .into_iter()
        .filter(is_list)
        .collect();
    assert_eq!(lists.len(), 2);
    assert!(
        parameter(&lists[1], "resourceVersion").is_some(),
        "nothing older than what was seen"
    );
    informer.health_when(|health| health.error.is_none()).await;
    maps.delete("new").await;
    assert_eq!(heard.count(10).await[9], "deleted new");
}

#[steersman_testing::test]
async fn reports_a_revoked_permission_until_it_is_granted(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let user = fixture.user("reader").await;
    let verbs = ["list", "watch"];
    let grant = user.grant("", &["configmaps"], &verbs).await.unwrap();
    let proxy = fixture.proxy().await;
    let informer = informer(&fixture, &context(proxy.client(user.identity()).unwrap()));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;

    grant.revoke().await.unwrap();
    proxy.cut(&Matching::watches(), Cut::Clean);
    let is_forbidden = |error: &Arc<WatchError>| matches!(&**error, WatchError::Forbidden { reason } if reason.contains("configmaps"));
    informer
        .health_when(|health| health.error.as_ref().is_some_and(is_forbidden))
        .await;
    assert_eq!(names(&informer), ["a"], "the last known state stays");
    maps.create("b").await;
    maps.delete("a").await;

    let _grant = user.grant("", &["configmaps"], &verbs).await.unwrap();
    assert_eq!(heard.count(3).await, ["initial a", "added b", "vanished a"]);
    informer.health_when(|health| health.error.is_none()).await;
    maps.create("c").await;
    assert_eq!(heard.count(4).await[3], "added c");
}

#[steersman_testing::test]
async fn syncs_a_kind_that_is_installed_later(fixture: Fixture) {
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let context = context_at(proxy.client(fixture.admin()).unwrap(), Arc::new(clock.clone()));
    let widgets = Resource::new(fixture.group(), "v1", "Widget", "widgets");
    // With limits for answers that are not reached: what is waited for is the time to ask again.
    let hour = Duration::from_secs(3600);
    let options = ReflectorOptions::default()
        .initial_events_within(hour)
        .answer_within(hour);
    let options = InformerOptions::default().reflector(options);
    let informer = Informer::start(&context, widgets.clone(), here(&fixture), options);
    let error = informer.settled().await.unwrap_err();
    assert_eq!(*error, WatchError::NotInstalled);
    // It asks again and again, ever more seldom.
    let longest = Duration::from_secs(60);
    for _ in 0..4 {
        clock.advance_to(next_deadline(&clock, longest).await);
    }
    let deadline = next_deadline(&clock, longest).await;
    assert_eq!(requests(&proxy, "widgets").len(), 5);
    assert!(!informer.health().synced);

    let widgets = define(&fixture, "Widget").await;
    let api = served(&fixture, &widgets).await;
    api.create(&PostParams::default(), &custom(&widgets, "a"))
        .await
        .unwrap();
    clock.advance_to(deadline);
    informer.synced().await;
    assert_eq!(names(&informer), ["a"]);
    assert_eq!(informer.health().error, None);
    // That the kind was not there does not mean that its lists cannot be streamed.
    assert!(requests(&proxy, "widgets").last().unwrap().is_watch());
}

#[steersman_testing::test]
async fn removing_a_kind_deletes_its_objects(fixture: Fixture) {
    let widgets = define(&fixture, "Widget").await;
    let api = served(&fixture, &widgets).await;
    api.create(&PostParams::default(), &custom(&widgets, "a"))
        .await
        .unwrap();
    let informer = Informer::start(
        &context(fixture.client()),
        widgets.clone(),
        here(&fixture),
        InformerOptions::default(),
    );
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    let name = format!("widgets.{}", fixture.group());
    definitions.delete(&name, &Default::default()).await.unwrap();
    assert_eq!(heard.count(2).await, ["initial a", "deleted a"]);
    informer
        .health_when(|health| health.error.as_deref() == Some(&WatchError::NotInstalled))
        .await;
}

#[steersman_testing::test]
async fn honours_retry_after_of_the_server(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let client = proxy.client(fixture.admin()).unwrap();
    let busy = proxy.inject(Matching::any().first(1), Fault::answer_retry_after(429, 17));
    let start = clock.now();
    let informer = informer(&fixture, &context_at(client, Arc::new(clock.clone())));
    let error = informer.settled().await.unwrap_err();
    assert!(
        matches!(&*error, WatchError::ServerError { code: 429, retry_after: Some(time), .. } if *time == Duration::from_secs(17)),
        "{error:?}"
    );
    let deadline = next_deadline(&clock, Duration::from_secs(60)).await;
    assert_eq!(deadline, start + Duration::from_secs(17));
    assert_eq!(proxy.exchanges().len(), 1);
    clock.advance_to(deadline);
    informer.synced().await;
    assert_eq!((busy.hits(), proxy.exchanges().len()), (1, 2));
    assert_eq!(names(&informer), ["a"]);
}

#[steersman_testing::test]
async fn limits_retry_after_of_a_day_to_two_minutes(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let client = proxy.client(fixture.admin()).unwrap();
    let _busy = proxy.inject(Matching::any().first(1), Fault::answer_retry_after(503, 86_400));
    let start = clock.now();
    let informer = informer(&fixture, &context_at(client, Arc::new(clock.clone())));
    informer.settled().await.unwrap_err();
    let deadline = next_deadline(&clock, Duration::from_secs(86_400)).await;
    assert_eq!(deadline, start + Duration::from_secs(120));
    clock.advance_to(deadline);
    informer.synced().await;
    assert_eq!(names(&informer), ["a"]);
}

#[steersman_testing::test]
async fn reports_an_unreachable_server_and_catches_up(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let proxy = fixture.proxy().await;
    let informer = informer(&fixture, &through(&fixture, &proxy));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let unplugged = proxy.unplug();
    maps.delete("a").await;
    maps.create("b").await;
    informer
        .health_when(|health| matches!(health.error.as_deref(), Some(WatchError::Unreachable { .. })))
        .await;
    drop(unplugged);
    assert_eq!(heard.count(3).await, ["initial a", "deleted a", "added b"]);
    assert_eq!(informer.stats().lists, 1, "the history has no hole");
    assert_eq!(informer.health().error, None);
}

#[steersman_testing::test]
async fn catches_up_after_a_restart_of_the_server(fixture: Fixture) {
    let mut server = fixture.own_server(OwnServerOptions::default()).await;
    let maps = Maps(Api::<ConfigMap>::namespaced(server.client(), "default"));
    maps.create("a").await;
    let informer = Informer::start(
        &context(server.client()),
        config_maps(),
        Scope::all().namespace("default"),
        InformerOptions::default(),
    );
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    server.stop();
    let health = informer.health_when(|health| health.error.is_some()).await;
    assert!(
        matches!(health.error.as_deref(), Some(WatchError::Unreachable { .. })),
        "{health:?}"
    );
    assert!(health.synced && names(&informer) == ["a"]);
    server.restart().await.unwrap();
    // Its connections are new: a client notices a dead connection at its next write.
    let maps = Maps(Api::<ConfigMap>::namespaced(server.client(), "default"));
    maps.create("b").await;
    maps.delete("a").await;
    heard.until(|all| all.len() == 3).await;
    assert_eq!(names(&informer), ["b"]);
    informer.health_when(|health| health.error.is_none()).await;
    maps.create("c").await;
    assert_eq!(heard.count(4).await[3], "added c");
}

// R123, D26
#[steersman_testing::test]
async fn relists_after_the_server_has_compacted_the_revision_of_a_watch(fixture: Fixture) {
    let server = fixture
        .own_server(OwnServerOptions::default().short_history())
        .await;
    let proxy = FaultProxy::start(server.endpoint()).await.unwrap();
    let maps = Maps(Api::<ConfigMap>::namespaced(server.client(), "default"));
    maps.create_all(&["a", "b"]).await;
    let informer = Informer::start(
        &context(proxy.client(server.admin()).unwrap()),
        config_maps(),
        Scope::all().namespace("default"),
        InformerOptions::default(),
    );
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let lists = informer.stats().lists;
    let seen = informer.store().revision().to_string();

    let unplugged = proxy.unplug();
    maps.delete("a").await;
    maps.create("c").await;
    server.compacted(&seen).await;
    drop(unplugged);
    let said = heard.count(4).await;
    assert_eq!(sorted(said[2..].to_vec()), ["added c", "vanished a"]);
    assert_eq!(names(&informer), ["b", "c"]);
    assert_eq!(informer.stats().lists, lists + 1);
}

// R150
#[steersman_testing::test]
async fn an_object_of_another_type_does_not_affect_the_others(fixture: Fixture) {
    #[derive(Debug, serde::Deserialize)]
    struct Widget {
        spec: Spec,
    }
    #[derive(Debug, serde::Deserialize)]
    struct Spec {
        size: u32,
    }
    let widgets = define(&fixture, "Widget").await;
    let api = served(&fixture, &widgets).await;
    let create = async |name: &str, size: serde_json::Value| {
        let mut widget = custom(&widgets, name);
        widget.data = json!({"spec": {"size": size}});
        api.create(&PostParams::default(), &widget).await.unwrap();
    };
    create("first", json!(1)).await;
    create("odd", json!("large")).await;
    let informer = Informer::start(
        &context(fixture.client()),
        widgets.clone(),
        here(&fixture),
        InformerOptions::default(),
    );
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    create("last", json!(3)).await;
    assert_eq!(heard.count(3).await[2], "added last");

    let (store, namespace) = (informer.store(), fixture.namespace());
    for (name, size) in [("first", 1), ("last", 3)] {
        assert_eq!(
            store
                .get_as::<Widget>(namespace, name)
                .unwrap()
                .unwrap()
                .spec
                .size,
            size
        );
    }
    let error = store.get_as::<Widget>(namespace, "odd").unwrap_err();
    assert_eq!((error.key().name(), error.path()), ("odd", Some("spec.size")));
    assert_eq!(store.decode_failures(), 1);
    assert_eq!(informer.stats().invalid, 0, "its bytes are fine");
}

/// Answers that come from something else than an API server, or from one that is out of its mind.
fn garbage() -> Vec<Fault> {
    let pods = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#;
    let cut = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"na"#;
    let bodies = [
        "<html><body>It works!</body></html>\n",
        "{}",
        "{}\n",
        r#"{"status":"ok"}"#,
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#,
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}"#,
        cut,
        pods,
        "",
    ];
    let accepted = bodies.map(|body| Fault::respond(200, "application/json", body));
    let refused = ["<html>404 Not Found</html>", "{}", ""].map(|body| Fault::respond(404, "text/html", body));
    accepted.into_iter().chain(refused).collect()
}

/// Moves the clock on to the next moment that is due within a minute, if there is one.
async fn move_on(clock: &TestClock) {
    let latest = clock.now() + Duration::from_secs(60);
    if let Some(due) = clock.next_deadline().filter(|due| *due <= latest) {
        clock.advance_to(due);
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// Waits until a fault has caused trouble and that is over.
async fn recovered(informer: &Informer, clock: &TestClock, fault: &Injected) {
    let mut was_in_trouble = false;
    loop {
        let (is_hit, is_in_trouble) = (fault.hits() > 0, informer.health().error.is_some());
        was_in_trouble |= is_hit && is_in_trouble;
        informer.settled().await.expect("reads of what was in sync go on");
        if was_in_trouble && !is_in_trouble {
            return;
        }
        // Trouble lasts until the clock moves on, so that it is not missed.
        if is_in_trouble || !is_hit {
            move_on(clock).await;
        } else {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Garbage instead of an answer to requests that match, each shape once, loses no object and invents none.
async fn garbage_does_no_harm(
    fixture: &Fixture,
    options: ReflectorOptions,
    matching: Matching,
    relists: bool,
) {
    let maps = Maps::of(fixture);
    maps.create_all(&["a", "b", "c"]).await;
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let client = proxy.client(fixture.admin()).unwrap();
    let context = context_at(client, Arc::new(clock.clone()));
    let hour = Duration::from_secs(3600);
    let options = options
        .watch_for(24 * hour)
        .initial_events_within(hour)
        .answer_within(hour);
    let informer = informer_with(fixture, &context, options);
    informer.synced().await;
    let before = names(&informer);
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    let start = heard.said();
    for fault in garbage() {
        let _expired = relists.then(|| {
            proxy.inject(
                Matching::watches().query("resourceVersion=").first(1),
                Fault::error_event(410),
            )
        });
        let injected = proxy.inject(matching.clone().first(1), fault.clone());
        proxy.cut(&Matching::watches(), Cut::Clean);
        recovered(&informer, &clock, &injected).await;
        assert_eq!(names(&informer), before, "{fault:?}");
        assert_eq!(heard.said(), start, "{fault:?}");
    }
    // It still receives events.
    maps.delete("a").await;
    while heard.said().len() == start.len() {
        move_on(&clock).await;
    }
    assert!(!names(&informer).contains(&"a".to_owned()));
}

// D1, D5, D29
#[steersman_testing::test]
async fn garbage_instead_of_a_list_loses_no_object(fixture: Fixture) {
    let paged = ReflectorOptions::default().streaming(false);
    garbage_does_no_harm(&fixture, paged, Matching::reads(), true).await;
}

// D1, D5, D29
#[steersman_testing::test]
async fn garbage_instead_of_a_page_loses_no_object(fixture: Fixture) {
    let paged = ReflectorOptions::default().streaming(false).page_size(1);
    garbage_does_no_harm(&fixture, paged, Matching::reads().query("continue="), true).await;
}

// D1, D5, D29
#[steersman_testing::test]
async fn garbage_instead_of_a_streamed_list_loses_no_object(fixture: Fixture) {
    let streamed = Matching::watches().query("sendInitialEvents=true");
    garbage_does_no_harm(&fixture, ReflectorOptions::default(), streamed, true).await;
}

// D1, D5, D29
#[steersman_testing::test]
async fn garbage_instead_of_a_watch_loses_no_object(fixture: Fixture) {
    let paged = ReflectorOptions::default().streaming(false);
    garbage_does_no_harm(&fixture, paged, Matching::watches(), false).await;
}

// D1, D5, D29
#[steersman_testing::test]
async fn garbage_instead_of_a_polled_list_loses_no_object(fixture: Fixture) {
    let polled = ReflectorOptions::default().poll(Duration::from_secs(30));
    garbage_does_no_harm(&fixture, polled, Matching::reads(), false).await;
}
