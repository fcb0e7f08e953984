// SPDX-License-Identifier: Apache-2.0
//! Handlers and subscribers hear of every change.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cache::{
    Cache, Delivery, Event, EventHandler, Index, Informer, InformerOptions, Object, StoreOptions,
    Subscription, Transform,
};
use steersman_core::TestClock;
use steersman_testing::Fixture;
use support::{Heard, Maps, config_maps, context, context_at, here, informer, names, say, value};

/// Ten objects that change and partly go; gives how many events that makes.
async fn commotion(maps: &Maps) -> usize {
    let names: Vec<String> = (0..10).map(|number| format!("object-{number}")).collect();
    for name in &names {
        maps.create(name).await;
    }
    for name in &names {
        maps.set(name, "second").await;
    }
    for name in &names[..5] {
        maps.delete(name).await;
    }
    25
}

// R127
#[steersman_testing::test]
async fn guarantee_1_events_are_in_order_and_the_store_is_as_new(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("object-early").await;
    let informer = informer(&fixture, &context(fixture.client()));
    let (store, heard, wrong) = (
        informer.store().clone(),
        Heard::default(),
        Arc::new(Mutex::new(Vec::new())),
    );
    let _registration = informer.handle("test", {
        let (next, wrong) = (heard.handler(), Arc::clone(&wrong));
        move |event: &Event| {
            let object = event.object();
            let stored = store.get_key(&object.key());
            let is_as_new = match &stored {
                Some(stored) => !event.is_deletion() && stored.revision().reached(&object.revision()),
                None => event.is_deletion(),
            };
            // The items of a first list do not say how far it has got.
            let is_initial = matches!(event, Event::Added { initial: true, .. });
            if !is_as_new || !(is_initial || store.revision().reached(&object.revision())) {
                wrong.lock().unwrap().push(say(event));
            }
            steersman_cache::EventHandler::on(&next, event);
        }
    });
    informer.synced().await;
    let count = commotion(&maps).await;
    let events = heard.until(|all| all.len() > count).await;

    assert_eq!(*wrong.lock().unwrap(), Vec::<String>::new());
    let mut known = BTreeMap::new();
    for pair in events[1..].windows(2) {
        let (before, after) = (pair[0].object().revision(), pair[1].object().revision());
        assert!(after.reached(&before) && after != before, "{before} {after}");
    }
    for event in &events {
        let (key, revision) = (event.object().key(), event.object().resource_version());
        let before = known.insert(key, revision);
        assert_eq!(
            before,
            event
                .old()
                .map(|old| old.resource_version())
                .or(before.filter(|_| event.is_deletion()))
        );
    }
    let said: Vec<String> = events.iter().map(say).collect();
    assert_eq!(said.iter().filter(|said| said.starts_with("added")).count(), 10);
    assert_eq!(said.iter().filter(|said| said.starts_with("updated")).count(), 10);
    assert_eq!(said.iter().filter(|said| said.starts_with("deleted")).count(), 5);
}

// R122
#[steersman_testing::test]
async fn guarantee_1_every_handler_receives_every_event(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let informer = informer(&fixture, &context(fixture.client()));
    let heard: Vec<Heard> = (0..5).map(|_| Heard::default()).collect();
    let _registrations: Vec<_> = heard
        .iter()
        .map(|heard| informer.handle("test", heard.handler()))
        .collect();
    informer.synced().await;
    let count = commotion(&maps).await;
    let first = heard[0].count(count).await;
    for other in &heard {
        assert_eq!(other.count(count).await, first);
    }
}

// R122
#[steersman_testing::test]
async fn guarantee_2_handlers_added_during_writes_miss_nothing(fixture: Fixture) {
    const COUNT: usize = 120;
    let maps = Maps::of(&fixture);
    let informer = informer(&fixture, &context(fixture.client()));
    let first = Heard::default();
    let _first = informer.handle("first", first.handler());
    let writes = async {
        let creations = (0..COUNT).map(|number| {
            let maps = &maps;
            async move { maps.create(&format!("object-{number}")).await }
        });
        futures::stream::iter(creations)
            .buffer_unordered(4)
            .for_each(async |_| {})
            .await;
    };
    let arrivals = async {
        let mut late = Vec::new();
        for count in (0..COUNT).step_by(5) {
            first.count(count).await;
            let heard = Heard::default();
            let registration = informer.handle("late", heard.handler());
            late.push((heard, registration));
        }
        late
    };
    let ((), late) = futures::join!(writes, arrivals);
    let all = support::sorted(first.count(COUNT).await);
    assert_eq!(all.len(), COUNT);
    for (heard, registration) in late {
        registration.synced().await;
        let said = heard.count(COUNT).await;
        let initial = said.iter().take_while(|said| said.starts_with("initial")).count();
        assert!(
            said[initial..].iter().all(|said| said.starts_with("added")),
            "what was there comes first: {said:?}"
        );
        let without_word = |said: &[String]| {
            support::sorted(
                said.iter()
                    .map(|said| said.rsplit(' ').next().unwrap().to_owned())
                    .collect(),
            )
        };
        assert_eq!(without_word(&said), without_word(&all));
    }
}

#[steersman_testing::test]
async fn guarantee_2_a_late_handler_receives_each_object_as_initial(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let informer = informer(&fixture, &context(fixture.client()));
    let early = Heard::default();
    let _early = informer.handle("early", early.handler());
    informer.synced().await;
    maps.create_all(&["a", "b"]).await;
    assert_eq!(early.count(2).await, ["added a", "added b"]);

    let late = Heard::default();
    let registration = informer.handle("late", late.handler());
    assert!(registration.is_synced(), "it was called before `handle` returned");
    assert_eq!(support::sorted(late.said()), ["initial a", "initial b"]);
    maps.set("a", "second").await;
    assert_eq!(late.count(3).await[2], "updated a");
    assert_eq!(early.count(3).await[2], "updated a");
}

#[steersman_testing::test]
async fn a_recreated_object_is_deleted_and_added(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let informer = informer(&fixture, &context(fixture.client()));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    maps.delete("a").await;
    maps.create("a").await;
    let events = heard.until(|all| all.len() == 3).await;
    assert_eq!(heard.said(), ["initial a", "deleted a", "added a"]);
    assert_eq!(events[0].object().uid(), events[1].object().uid());
    assert_ne!(events[1].object().uid(), events[2].object().uid());
}

// R164
#[steersman_testing::test]
async fn a_deletion_has_the_last_state(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let informer = informer(&fixture, &context(fixture.client()));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let last = maps.set("a", "last words").await;
    maps.delete("a").await;
    let events = heard.until(|all| all.len() == 3).await;
    let Event::Deleted {
        object,
        final_state_known: true,
        ..
    } = &events[2]
    else {
        panic!("the third is the deletion: {}", say(&events[2]));
    };
    assert_eq!(value(&object.decode::<ConfigMap>().unwrap()), "last words");
    assert_eq!(Some(object.uid()), last.metadata.uid.as_deref());
    assert!(
        informer.store().get_key(&object.key()).is_none(),
        "it is gone by then"
    );
}

#[steersman_testing::test]
async fn does_not_call_a_handler_without_a_registration(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let informer = informer(&fixture, &context(fixture.client()));
    let (stays, goes) = (Heard::default(), Heard::default());
    let _registration = informer.handle("stays", stays.handler());
    let registration = informer.handle("goes", goes.handler());
    informer.synced().await;
    maps.create("a").await;
    assert_eq!(goes.count(1).await, ["added a"]);
    drop(registration);
    maps.create("b").await;
    assert_eq!(stays.count(2).await, ["added a", "added b"]);
    assert_eq!(goes.said(), ["added a"]);
}

#[steersman_testing::test]
async fn a_dropped_registration_drops_its_handler_without_an_event(fixture: Fixture) {
    let informer = informer(&fixture, &context(fixture.client()));
    informer.synced().await;
    let memory = Arc::new(());
    for _ in 0..100 {
        let held = Arc::clone(&memory);
        drop(informer.handle("goes", move |_: &Event| _ = &held));
    }
    assert_eq!(Arc::strong_count(&memory), 1);
}

// D31
#[steersman_testing::test]
async fn a_handler_can_hold_the_cache_that_holds_its_informer(fixture: Fixture) {
    let (memory, cache) = (Arc::new(()), Cache::builder(context(fixture.client())).build());
    let held = cache.informer(&config_maps());
    let captured = (cache, held.clone(), Arc::clone(&memory));
    let registration = held.handle("holds", move |_: &Event| _ = &captured);
    held.synced().await;
    drop((held, registration));
    // A call that is under way ends first.
    while Arc::strong_count(&memory) > 1 {
        tokio::task::yield_now().await;
    }
}

/// Panics in `ended`.
struct Unprepared;

impl EventHandler for Unprepared {
    fn on(&self, _: &Event) {}
    fn ended(&self) {
        panic!("a handler of the test panics on purpose");
    }
}

#[steersman_testing::test]
async fn guarantee_4_a_panic_in_ended_does_not_affect_other_handlers(fixture: Fixture) {
    let informer = informer(&fixture, &context(fixture.client()));
    informer.synced().await;
    let clumsy = informer.handle("unprepared", Unprepared);
    let mut stream = informer.subscribe("stream", 8);
    informer.end();
    clumsy.synced().await;
    assert_eq!(next(&mut stream).await, "ended");
    assert_eq!(informer.stats().panicked_handlers, [("unprepared".to_owned(), 1)]);
}

/// Log of all tests in this file.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logging;

impl tracing::Subscriber for Logging {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("steersman")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
                self.0 = format!("{} {field}={value:?}", self.0);
            }
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[steersman_testing::test]
async fn guarantee_4_logs_a_panicking_handler_and_calls_the_others(fixture: Fixture) {
    // Another test may have been first, with the same one.
    let _ = tracing::subscriber::set_global_default(Logging);
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let informer = informer(&fixture, &context(fixture.client()));
    let (before, after) = (Heard::default(), Heard::default());
    let _before = informer.handle("before", before.handler());
    let _clumsy = informer.handle("clumsy", |event: &Event| {
        assert_ne!(
            event.object().name(),
            "b",
            "a handler of the test panics on purpose"
        );
    });
    let _after = informer.handle("after", after.handler());
    informer.synced().await;
    maps.create_all(&["b", "c"]).await;
    assert_eq!(before.count(3).await, ["initial a", "added b", "added c"]);
    assert_eq!(after.count(3).await, before.said());
    assert_eq!(names(&informer), ["a", "b", "c"]);
    assert_eq!(informer.health().error, None);

    let key = format!("{}/b", fixture.namespace());
    let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let named = logged
        .iter()
        .filter(|line| line.contains(&key))
        .collect::<Vec<_>>();
    let [line] = named.as_slice() else {
        panic!("once: {logged:?}")
    };
    for part in [
        "ERROR",
        "handler=\"clumsy\"",
        "resource=configmaps/v1",
        "panicked",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

// R167
#[steersman_testing::test]
async fn a_panicking_function_does_not_block_events(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let bad = |object: &Object| object.name() == "bad";
    let store = StoreOptions::new().transform(Transform::new().only(move |object| {
        assert!(!bad(object), "a transform of the test panics on purpose");
        true
    }));
    let informer = Informer::start(
        &context(fixture.client()),
        config_maps(),
        here(&fixture),
        InformerOptions::default().store(store),
    );
    let index = Index::on_header("fragile", move |object| {
        assert!(!bad(object), "an index of the test panics on purpose");
        Some(object.name().to_owned())
    });
    informer.store().add_index(&index).unwrap();
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    maps.create_all(&["bad", "good"]).await;
    assert_eq!(heard.count(2).await, ["added bad", "added good"]);
    let (health, stats) = (informer.health(), informer.stats());
    assert!(health.synced && health.error.is_none());
    assert_eq!((stats.decode_failures, stats.lists), (2, 1));
}

#[steersman_testing::test]
async fn guarantee_4_logs_a_slow_handler(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let clock = TestClock::new();
    let informer = informer(&fixture, &context_at(fixture.client(), Arc::new(clock.clone())));
    let heard = Heard::default();
    let _slow = informer.handle("slow", move |event: &Event| {
        if event.object().name() == "b" {
            clock.advance(Duration::from_millis(200));
        }
    });
    let _quick = informer.handle("quick", heard.handler());
    informer.synced().await;
    maps.create_all(&["a", "b", "c"]).await;
    assert_eq!(heard.count(3).await, ["added a", "added b", "added c"]);
    assert_eq!(informer.stats().slow_handlers, [("slow".to_owned(), 1)]);
}

async fn next(subscription: &mut Subscription) -> String {
    match subscription.next().await {
        Some(Delivery::Event(event)) => say(&event),
        Some(Delivery::Skipped(count)) => format!("skipped {count}"),
        Some(_) => "unknown".to_owned(),
        None => "ended".to_owned(),
    }
}

// R130, R131
#[steersman_testing::test]
async fn guarantee_5_a_slow_subscriber_skips_events_and_delays_no_other(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    let informer = informer(&fixture, &context(fixture.client()));
    informer.synced().await;
    let mut slow = informer.subscribe("slow", 4);
    let mut quick = informer.subscribe("quick", 100);
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    for number in 0..6 {
        maps.set("a", &number.to_string()).await;
    }
    maps.delete("b").await;
    maps.create("b").await;
    let expected = heard.count(10).await;
    for expected in &expected {
        assert_eq!(next(&mut quick).await, *expected);
    }

    // It has not read so far.
    assert_eq!(next(&mut slow).await, "skipped 10");
    let rest = [next(&mut slow).await, next(&mut slow).await];
    assert_eq!(
        support::sorted(rest.to_vec()),
        ["added b", "initial a"],
        "the first b came and went unseen"
    );
    // In step again, it gets each step again.
    maps.set("a", "last").await;
    assert_eq!(next(&mut slow).await, "updated a");
    maps.delete("b").await;
    maps.create("b").await;
    assert_eq!(
        [next(&mut slow).await, next(&mut slow).await],
        ["deleted b", "added b"]
    );
}

// R130
#[steersman_testing::test]
async fn guarantee_5_a_slow_subscriber_receives_a_replacement(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let informer = informer(&fixture, &context(fixture.client()));
    informer.synced().await;
    let mut slow = informer.subscribe("slow", 2);
    assert_eq!(next(&mut slow).await, "initial a");
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    maps.set("a", "second").await;
    maps.delete("a").await;
    maps.create("a").await;
    maps.set("a", "third").await;
    heard.count(5).await;
    assert_eq!(next(&mut slow).await, "skipped 4");
    assert_eq!(
        [next(&mut slow).await, next(&mut slow).await],
        ["deleted a", "added a"]
    );
}
