// SPDX-License-Identifier: Apache-2.0
//! Informers are shared, lazy, and end one by one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use steersman_cache::{Cache, CacheMissPolicy, Event, InformerOptions, Query, ReadError, Resource, Scope};
use steersman_core::TestClock;
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Ended, Exchange, Fault, Matching},
};
use support::{
    Heard, Maps, cache, config_maps, context_at, here, is_list, names, next_deadline, requests, through,
};

fn secrets() -> Resource {
    Resource::of::<Secret>()
}

/// Returns the end of the only collection request.
async fn end_of(proxy: &FaultProxy, plural: &str) -> Ended {
    let is_of = |exchange: &&Exchange| exchange.path.ends_with(&format!("/{plural}"));
    proxy.wait_for(|all| all.iter().find(is_of)?.ended).await
}

// R118, R126, R135
#[steersman_testing::test]
async fn guarantee_1_all_users_of_a_kind_share_one_list_and_one_watch(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let users: Vec<_> = (0..5)
        .map(|_| (cache.informer(&config_maps()), Heard::default()))
        .collect();
    let _registrations: Vec<_> = users
        .iter()
        .flat_map(|(informer, heard)| [1, 2].map(|_| informer.handle("test", heard.handler())))
        .collect();
    let reader = cache.reader(CacheMissPolicy::Start);
    assert_eq!(
        reader
            .list::<ConfigMap>(&Query::new().namespace(fixture.namespace()))
            .await
            .unwrap()
            .len(),
        1
    );
    maps.create("b").await;
    for (informer, heard) in &users {
        assert_eq!(heard.count(4).await.len(), 4);
        assert_eq!(names(informer), ["a", "b"]);
    }
    assert_eq!(cache.informers().len(), 1);
    // A streamed list continues as the watch.
    let [request] = requests(&proxy, "configmaps").try_into().unwrap();
    assert!(is_list(&request) && request.is_watch() && request.is_open());
}

// R144
#[steersman_testing::test]
async fn guarantee_1_another_scope_is_another_informer(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let whole = cache.informer(&config_maps());
    let front = cache.informer_in(&config_maps(), &here(&fixture).labels("tier=front"));
    whole.synced().await;
    front.synced().await;
    assert_eq!((whole.store().len(), front.store().len()), (1, 0));
    assert_eq!(requests(&proxy, "configmaps").len(), 2);
    assert_eq!(cache.remove(&config_maps()), 2);
}

// R139
#[steersman_testing::test]
async fn guarantee_2_lists_only_kinds_that_are_used(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let mut builder = Cache::builder(through(&fixture, &proxy));
    for number in 0..49 {
        let kind = Resource::new(
            fixture.group(),
            "v1",
            &format!("Kind{number}"),
            &format!("kind{number}s"),
        );
        builder = builder.kind(kind, Scope::all(), InformerOptions::default());
    }
    let cache = builder
        .kind(config_maps(), here(&fixture), InformerOptions::default())
        .build();
    let reader = cache.reader(CacheMissPolicy::Refuse);
    let got = reader.get::<Secret>(fixture.namespace(), "a").await;
    assert!(matches!(got, Err(ReadError::NotCached { resource }) if resource == secrets()));
    let listed = reader.list::<Secret>(&Query::new()).await;
    assert!(matches!(listed, Err(ReadError::NotCached { resource }) if resource == secrets()));
    assert_eq!(proxy.exchanges().len(), 0);
    cache.informer(&config_maps()).synced().await;
    let [request] = proxy.exchanges().try_into().unwrap();
    assert!(is_list(&request) && request.path.ends_with("/configmaps"));
}

// R12, R16, R172
#[steersman_testing::test]
async fn guarantee_3_closes_the_watch_when_the_last_handle_is_dropped(fixture: Fixture) {
    Maps::of(&fixture).create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let (first, second) = (cache.informer(&config_maps()), cache.informer(&config_maps()));
    let others = cache.informer(&secrets());
    let heard = Heard::default();
    let _registration = others.handle("test", heard.handler());
    first.synced().await;
    others.synced().await;
    let object = Arc::downgrade(&first.store().get(fixture.namespace(), "a").unwrap());

    drop(first);
    second.synced().await;
    Maps::of(&fixture).create("b").await;
    let seen = Heard::default();
    let registration = second.handle("test", seen.handler());
    seen.count(2).await;
    assert!(
        requests(&proxy, "configmaps")[0].is_open(),
        "another user holds it"
    );
    drop((second, registration, seen));
    assert_eq!(end_of(&proxy, "configmaps").await, Ended::ClientGone);
    while object.strong_count() > 0 {
        // The memory is released a moment after the connection.
        tokio::task::yield_now().await;
    }

    secret(&fixture, "b").await;
    assert_eq!(heard.count(1).await, ["added b"]);
    let [request] = requests(&proxy, "secrets").try_into().unwrap();
    assert!(request.is_open(), "the same watch on the same connection");
    assert_eq!(cache.informers().len(), 1);
}

async fn secret(fixture: &Fixture, name: &str) {
    let secrets: kube::Api<Secret> = kube::Api::namespaced(fixture.client(), fixture.namespace());
    let secret = serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap();
    secrets.create(&Default::default(), &secret).await.unwrap();
}

// R12
#[steersman_testing::test]
async fn guarantee_3_an_informer_lingers_for_the_next_user(fixture: Fixture) {
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let client = proxy.client(fixture.admin()).unwrap();
    let linger = Duration::from_secs(5);
    let cache = cache(&fixture, context_at(client, Arc::new(clock.clone())))
        .linger(linger)
        .build();
    let held = cache.informer(&config_maps());
    held.synced().await;
    drop(held);
    next_deadline(&clock, linger).await;
    clock.advance(linger / 2);
    let held = cache.informer(&config_maps());
    clock.advance(linger);
    assert!(held.health().synced);
    assert_eq!(requests(&proxy, "configmaps").len(), 1);
    drop(held);
    next_deadline(&clock, linger).await;
    assert!(requests(&proxy, "configmaps")[0].is_open());
    clock.advance(linger);
    assert_eq!(end_of(&proxy, "configmaps").await, Ended::ClientGone);
}

#[steersman_testing::test]
async fn guarantee_3_an_informer_that_does_not_linger_ends_at_once(fixture: Fixture) {
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let client = proxy.client(fixture.admin()).unwrap();
    let cache = cache(&fixture, context_at(client, Arc::new(clock)))
        .linger(Duration::from_secs(3600))
        .build();
    let held = cache.informer(&config_maps());
    held.synced().await;
    assert_eq!(cache.end_idle(&config_maps()), 0);
    assert!(!held.is_ended());
    drop(held);
    assert_eq!(end_of(&proxy, "configmaps").await, Ended::ClientGone);
    assert!(cache.informers().is_empty());
}

// R12, R16, R172
#[steersman_testing::test]
async fn guarantee_4_removing_ends_an_informer_that_is_in_use(fixture: Fixture) {
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let client = proxy.client(fixture.admin()).unwrap();
    let cache = cache(&fixture, context_at(client, Arc::new(clock)))
        .linger(Duration::from_secs(3600))
        .build();
    let (held, others) = (cache.informer(&config_maps()), cache.informer(&secrets()));
    held.synced().await;
    others.synced().await;
    assert!(!held.is_ended());
    assert_eq!(cache.remove(&config_maps()), 1);
    held.ended().await;
    assert!(held.is_ended());
    assert_eq!(end_of(&proxy, "configmaps").await, Ended::ClientGone);
    assert_eq!(cache.remove(&config_maps()), 0);

    let heard = Heard::default();
    let _registration = others.handle("test", heard.handler());
    secret(&fixture, "a").await;
    assert_eq!(heard.count(1).await, ["added a"]);
    assert!(!others.is_ended());
    let [request] = requests(&proxy, "secrets").try_into().unwrap();
    assert!(request.is_open(), "the same watch on the same connection");
}

// R17
#[steersman_testing::test]
async fn guarantee_4_starts_a_new_informer_after_a_removal(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let old = cache.informer(&config_maps());
    old.synced().await;
    cache.remove(&config_maps());
    old.ended().await;
    maps.create("b").await;
    let new = cache.informer(&config_maps());
    new.synced().await;
    assert_eq!(names(&new), ["a", "b"]);
    assert_eq!(names(&old), ["a"], "what was there last");
    drop(old);
    let heard = Heard::default();
    let _registration = new.handle("test", heard.handler());
    maps.create("c").await;
    assert_eq!(
        heard.count(3).await[2],
        "added c",
        "the end of the old handle is not its end"
    );
    assert_eq!(requests(&proxy, "configmaps").len(), 2);
}

// R17
#[steersman_testing::test]
async fn guarantee_4_readers_do_not_read_from_a_removed_informer(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let (starting, refusing) = (
        cache.reader(CacheMissPolicy::Start),
        cache.reader(CacheMissPolicy::Refuse),
    );
    assert!(
        starting
            .get::<ConfigMap>(fixture.namespace(), "a")
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        refusing
            .get::<ConfigMap>(fixture.namespace(), "a")
            .await
            .unwrap()
            .is_some()
    );
    cache.remove(&config_maps());
    maps.create("b").await;
    let refused = refusing.get::<ConfigMap>(fixture.namespace(), "a").await;
    assert!(matches!(refused, Err(ReadError::NotCached { resource }) if resource == config_maps()));
    assert!(
        starting
            .get::<ConfigMap>(fixture.namespace(), "b")
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        refusing
            .get::<ConfigMap>(fixture.namespace(), "b")
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(requests(&proxy, "configmaps").len(), 2);
}

#[steersman_testing::test]
async fn a_read_waits_until_the_informer_is_in_sync_or_has_a_reason_not_to_be(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let reader = cache.reader(CacheMissPolicy::Start);
    let get = || reader.get::<ConfigMap>(fixture.namespace(), "a");
    let stall = proxy.inject(Matching::any().path("/configmaps"), Fault::stall());
    let (mut first, mut second) = (Box::pin(get()), Box::pin(get()));
    assert!(first.as_mut().now_or_never().is_none());
    stall.hit().await;
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    // A cancelled wait does not affect other waiters.
    drop(first);
    cache.remove(&config_maps());
    assert!(matches!(second.await, Err(ReadError::NotCached { .. })));
    drop(stall);

    let forbidden = proxy.inject(Matching::any().path("/configmaps"), Fault::answer(403));
    match get().await {
        Err(ReadError::NotSynced { resource, reason }) => {
            assert_eq!(resource, config_maps());
            assert!(reason.to_string().contains("forbidden"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let here = Query::new().namespace(fixture.namespace());
    let listed = reader.list::<ConfigMap>(&here).await;
    assert!(matches!(listed, Err(ReadError::NotSynced { .. })));
    drop(forbidden);
    cache.informer(&config_maps()).synced().await;
    assert!(get().await.unwrap().is_none(), "it knows now that there is none");
    assert!(reader.list::<ConfigMap>(&here).await.unwrap().is_empty());
}

// R144
#[steersman_testing::test]
async fn options_of_a_kind_override_the_defaults(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let scope = Scope::all().namespace(fixture.namespace()).labels("tier=front");
    let cache = cache(&fixture, through(&fixture, &proxy))
        .kind(secrets(), scope, InformerOptions::default())
        .build();
    let (maps, secrets) = (cache.informer(&config_maps()), cache.informer(&secrets()));
    maps.synced().await;
    secrets.synced().await;
    let selector = |plural| support::parameter(&requests(&proxy, plural)[0], "labelSelector");
    assert_eq!(selector("configmaps"), None);
    assert_eq!(selector("secrets").as_deref(), Some("tier=front"));
}

// R144
#[steersman_testing::test]
async fn guarantee_4_one_watch_serves_metadata_and_whole_objects(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let proxy = fixture.proxy().await;
    let scope = here(&fixture).metadata_only();
    let cache = Cache::builder(through(&fixture, &proxy))
        .defaults(scope, InformerOptions::default())
        .build();
    let metadata = cache.informer(&config_maps());
    metadata.synced().await;
    let object = metadata.store().get(fixture.namespace(), "a").unwrap();
    assert!(object.is_metadata_only());

    // A typed read wants the whole object, so it is listed anew, into the same store.
    let map = cache
        .reader(CacheMissPolicy::Start)
        .get::<ConfigMap>(fixture.namespace(), "a")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(support::value(&map), "first");
    let object = metadata.store().get(fixture.namespace(), "a").unwrap();
    assert!(!object.is_metadata_only());
    assert_eq!(cache.informers().len(), 1);

    // A metadata reader shares the informer.
    let again = cache.informer(&config_maps());
    again.synced().await;
    let open = |all: &[steersman_testing::proxy::Exchange]| all.iter().filter(|one| one.is_open()).count();
    proxy.wait_for(|all| (open(all) == 1).then_some(())).await;
    assert_eq!(requests(&proxy, "configmaps").len(), 2);
}

// R144
#[steersman_testing::test]
async fn guarantee_4_widening_delivers_each_object_as_added(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let scope = here(&fixture);
    let metadata = cache.informer_in(&config_maps(), &scope.clone().metadata_only());
    metadata.synced().await;
    let early = Heard::default();
    let _early = metadata.handle("early", early.handler());

    // One of them changes before the informer hears of it.
    let stall = proxy.inject(Matching::any().path("/configmaps"), Fault::stall());
    maps.set("b", "second").await;
    let whole = cache.informer_in(&config_maps(), &scope);
    let late = Heard::default();
    let _late = whole.handle("late", late.handler());
    drop(stall);
    for heard in [&early, &late] {
        let is_whole = |event: &&Event| !event.object().is_metadata_only();
        let events = heard
            .until(|events| events.iter().filter(is_whole).count() >= 3)
            .await;
        let of_whole = events.iter().filter(is_whole).map(support::say).collect();
        assert_eq!(support::sorted(of_whole), ["initial a", "initial b", "updated b"]);
    }
}

#[steersman_testing::test]
async fn a_deletion_of_a_metadata_informer_has_only_metadata(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let metadata = cache.informer_in(&config_maps(), &here(&fixture).metadata_only());
    let heard = Heard::default();
    let _registration = metadata.handle("test", heard.handler());
    metadata.synced().await;
    maps.delete("a").await;
    assert_eq!(heard.count(2).await, ["initial a", "deleted a"]);
    assert!(
        heard
            .events()
            .iter()
            .all(|event| event.object().is_metadata_only())
    );
}

// R144
#[steersman_testing::test]
async fn guarantee_6_shows_an_object_that_returns_to_a_selector(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_with("a", serde_json::json!({"tier": "front"})).await;
    let proxy = fixture.proxy().await;
    let cache = cache(&fixture, through(&fixture, &proxy)).build();
    let front = cache.informer_in(&config_maps(), &here(&fixture).labels("tier=front"));
    front.synced().await;
    let _stall = proxy.inject(Matching::watches(), Fault::stall());
    let mut answers = Vec::new();
    for tier in ["back", "front"] {
        let patch = serde_json::json!({"metadata": {"labels": {"tier": tier}}});
        let patch = kube::api::Patch::Merge(patch);
        let answer = maps.0.patch("a", &Default::default(), &patch).await.unwrap();
        answers.push(serde_json::to_vec(&answer).unwrap());
    }
    let is_seen = |answer: &[u8]| {
        cache.wrote(&config_maps(), answer).unwrap();
        front.view().get(fixture.namespace(), "a").is_some()
    };
    assert!(!is_seen(&answers[0]), "it has left");
    assert!(is_seen(&answers[1]), "it is back");
    assert!(is_seen(&answers[0]), "the first answer is late");
}
