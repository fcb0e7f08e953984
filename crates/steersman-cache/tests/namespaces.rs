// SPDX-License-Identifier: Apache-2.0
//! Informers over several namespaces, which come and go while it runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::FutureExt;
use http::{Request, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client, api::PostParams, client::Body};
use serde_json::json;
use steersman_cache::{
    Cache, CacheMissPolicy, Delivery, Event, EventHandler, Informer, InformerOptions, ObjectDetail, Query,
    ReadError, Revision, Scope, WatchError,
};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};
use support::{Heard, Maps, config_maps, context, names, through};

/// Three namespaces, each with a ConfigMap: that of the fixture and two more.
async fn three(fixture: &Fixture) -> [String; 3] {
    let namespaces: Api<Namespace> = Api::all(fixture.client());
    let all = ["", "-b", "-c"].map(|suffix| format!("{}{suffix}", fixture.namespace()));
    for (namespace, name) in all.iter().zip(["a", "b", "c"]) {
        if namespace != fixture.namespace() {
            let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
            namespaces.create(&PostParams::default(), &object).await.unwrap();
        }
        maps(fixture, namespace).create(name).await;
    }
    all
}

fn maps(fixture: &Fixture, namespace: &str) -> Maps {
    Maps(Api::namespaced(fixture.client(), namespace))
}

fn scope(namespaces: &[String]) -> Scope {
    namespaces
        .iter()
        .fold(Scope::all(), |scope, namespace| scope.namespace(namespace))
}

fn start(context: &steersman_cache::InformerContext, namespaces: &[String]) -> Informer {
    Informer::start(
        context,
        config_maps(),
        scope(namespaces),
        InformerOptions::default(),
    )
}

// R144
#[steersman_testing::test]
async fn several_namespaces_share_one_store(fixture: Fixture) {
    let all = three(&fixture).await;
    let informer = start(&context(fixture.client()), &all[..2]);
    informer.synced().await;
    assert_eq!(names(&informer), ["a", "b"]);
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    maps(&fixture, &all[1]).create("more").await;
    maps(&fixture, &all[2])
        .create("not ours".replace(' ', "-").as_str())
        .await;
    maps(&fixture, &all[0]).delete("a").await;
    assert_eq!(
        support::sorted(heard.count(4).await),
        ["added more", "deleted a", "initial a", "initial b"]
    );
}

// R144
#[steersman_testing::test]
async fn changing_namespaces_does_not_affect_the_others(fixture: Fixture) {
    let all = three(&fixture).await;
    let proxy = fixture.proxy().await;
    let informer = start(&through(&fixture, &proxy), &all[..2]);
    informer.synced().await;
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());

    informer.set_namespaces([all[1].as_str(), all[2].as_str()]);
    assert_eq!(
        support::sorted(heard.count(4).await),
        ["initial a", "initial b", "initial c", "vanished a"]
    );
    informer.synced().await;
    assert_eq!(names(&informer), ["b", "c"]);
    let kept = |path: &str| {
        proxy
            .exchanges()
            .iter()
            .filter(|one| one.path.contains(path))
            .count()
    };
    assert_eq!(
        kept(&format!("/namespaces/{}/", all[1])),
        1,
        "the one that stays is neither listed nor watched again"
    );
    let gone = format!("/namespaces/{}/", all[0]);
    proxy
        .wait_for(|seen| {
            seen.iter()
                .all(|one| !one.path.contains(&gone) || !one.is_open())
                .then_some(())
        })
        .await;
}

// R144
#[steersman_testing::test]
async fn switching_to_all_namespaces_and_back_loses_no_object(fixture: Fixture) {
    let all = three(&fixture).await;
    let informer = start(&context(fixture.client()), &all[..2]);
    informer.synced().await;
    let heard = Heard::default();
    let (handler, ours) = (heard.handler(), all.clone());
    let _registration = informer.handle("test", move |event: &Event| {
        if ours.iter().any(|one| one == event.object().namespace()) {
            handler.on(event);
        }
    });
    heard.count(2).await;

    informer.set_namespaces([]);
    assert_eq!(heard.count(3).await[2], "initial c");
    informer.synced().await;
    informer.set_namespaces([all[1].as_str()]);
    assert_eq!(
        support::sorted(heard.count(5).await)[3..],
        ["vanished a", "vanished c"]
    );
    informer.synced().await;
    assert_eq!(names(&informer), ["b"]);
    maps(&fixture, &all[1]).set("b", "new").await;
    assert_eq!(heard.count(6).await[5], "updated b");
}

// R144
#[steersman_testing::test]
async fn set_namespaces_applies_to_all_users_of_an_informer(fixture: Fixture) {
    let all = three(&fixture).await;
    let cache = Cache::builder(context(fixture.client()))
        .defaults(scope(&all[..1]), InformerOptions::default())
        .build();
    let maps = config_maps();
    let (first, own) = (cache.informer(&maps), cache.informer_in(&maps, &scope(&all[2..])));
    first.synced().await;
    cache.set_namespaces(&maps, [all[1].as_str()]);
    let second = cache.informer(&maps);
    second.synced().await;
    assert_eq!(names(&first), ["b"]);
    assert_eq!(names(&second), ["b"]);
    assert_eq!(
        cache.informers().len(),
        2,
        "the one of all, and the one that asked for its own"
    );
    own.synced().await;
    assert_eq!(names(&own), ["c"]);
    // A handle with the former scope keeps it.
    let before = cache.informer_in(&maps, &scope(&all[..1]));
    before.synced().await;
    assert_eq!(names(&before), ["a"]);
}

#[steersman_testing::test]
async fn a_list_of_one_namespace_does_not_affect_the_others(fixture: Fixture) {
    let all = three(&fixture).await;
    let proxy = fixture.proxy().await;
    let informer = start(&through(&fixture, &proxy), &all);
    informer.synced().await;
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    heard.count(3).await;

    let path = format!("/namespaces/{}/", all[1]);
    let expired = proxy.inject(Matching::watches().path(&path).first(1), Fault::error_event(410));
    proxy.cut(
        &Matching::watches().path(&path),
        steersman_testing::proxy::Cut::Clean,
    );
    expired.hit().await;
    maps(&fixture, &all[1]).delete("b").await;
    let said = heard.count(4).await;
    assert!(said[3] == "vanished b" || said[3] == "deleted b", "{said:?}");
    assert_eq!(names(&informer), ["a", "c"]);
}

#[steersman_testing::test]
async fn reading_a_namespace_outside_the_cache_is_an_error(fixture: Fixture) {
    let all = three(&fixture).await;
    let cache = Cache::builder(context(fixture.client()))
        .defaults(scope(&all[..2]), InformerOptions::default())
        .build();
    let reader = cache.reader(CacheMissPolicy::Start);
    type Map = k8s_openapi::api::core::v1::ConfigMap;
    assert!(reader.get::<Map>(&all[0], "a").await.unwrap().is_some());
    match reader.get::<Map>(&all[2], "c").await {
        Err(error @ ReadError::UnknownNamespace { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains(&all[0]) && text.ends_with(&format!("not in {}", all[2])),
                "{text}"
            );
        }
        other => panic!("an error, not {other:?}"),
    }
}

#[steersman_testing::test]
async fn waiting_on_an_ended_informer_is_an_error(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let proxy = fixture.proxy().await;
    let _stall = proxy.inject(Matching::any(), Fault::stall());
    let informer = support::informer(&fixture, &through(&fixture, &proxy));
    let registration = informer.handle("test", Heard::default().handler());
    let mut subscription = informer.subscribe("stream", 8);
    informer.end();
    registration.synced().await;
    informer.synced().await;
    assert!(subscription.next().await.is_none());
    assert!(informer.is_ended() && !informer.health().synced);
}

// R144
#[steersman_testing::test]
async fn waits_for_namespaces_changed_before_the_first_list(fixture: Fixture) {
    let all = three(&fixture).await;
    let proxy = fixture.proxy().await;
    let stall = proxy.inject(Matching::any(), Fault::stall());
    let informer = start(&through(&fixture, &proxy), &all[..1]);
    let heard = Heard::default();
    let registration = informer.handle("test", heard.handler());
    informer.set_namespaces([all[1].as_str(), all[2].as_str()]);
    assert!(!registration.is_synced() && !informer.health().synced);
    drop(stall);
    registration.synced().await;
    assert_eq!(support::sorted(heard.said()), ["initial b", "initial c"]);
}

#[steersman_testing::test]
async fn a_handler_of_an_ended_informer_is_ended(fixture: Fixture) {
    let all = three(&fixture).await;
    let proxy = fixture.proxy().await;
    let informer = start(&through(&fixture, &proxy), &all[..1]);
    informer.synced().await;
    informer.end();
    let mut subscription = informer.subscribe("stream", 8);
    subscription.synced().await;
    let Some(Delivery::Event(event)) = subscription.next().await else {
        panic!("what was there last is told of");
    };
    assert_eq!(support::say(&event), "initial a");
    assert!(subscription.next().await.is_none());

    informer.set_namespaces([all[1].as_str()]);
    informer.widen();
    assert_eq!(informer.scope(), scope(&all[..1]));
    let of_another = format!("/namespaces/{}/", all[1]);
    let sent = proxy.exchanges();
    assert!(sent.iter().all(|one| !one.path.contains(&of_another)));
    assert_eq!(names(&informer), ["a"]);
}

// R144
#[tokio::test]
async fn an_informer_starts_with_the_changed_namespaces() {
    let service =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let context = context(Client::new(service, "default"));
    for round in 0..1000 {
        let cache = Cache::builder(context.clone())
            .defaults(Scope::all().namespace("old"), InformerOptions::default())
            .build();
        let here = AtomicUsize::new(0);
        // Both go on at the same moment, or a little apart.
        let together = |apart: usize| {
            here.fetch_add(1, Ordering::AcqRel);
            while here.load(Ordering::Acquire) < 2 {
                std::thread::yield_now();
            }
            (0..apart).for_each(|_| std::hint::spin_loop());
        };
        let held = std::thread::scope(|scope| {
            let starting = scope.spawn(|| {
                together(round % 7);
                cache.informer(&config_maps())
            });
            together(round % 11);
            cache.set_namespaces(&config_maps(), ["new"]);
            starting.join().unwrap()
        });
        assert_eq!(held.scope(), Scope::all().namespace("new"), "round {round}");
    }
}

// D6
#[steersman_testing::test]
async fn an_empty_name_means_all_namespaces(fixture: Fixture) {
    let label = fixture.namespace();
    maps(&fixture, fixture.namespace())
        .create_with("a", json!({"test": label}))
        .await;
    let scope = Scope::all().namespace("").labels(format!("test={label}"));
    let cache = Cache::builder(context(fixture.client()))
        .defaults(scope, InformerOptions::default())
        .build();
    let reader = cache.reader(CacheMissPolicy::Start);
    let found = reader.get::<ConfigMap>(fixture.namespace(), "a").await.unwrap();
    assert!(found.is_some());
    let all = reader.list::<ConfigMap>(&Query::new()).await.unwrap();
    assert_eq!(all.len(), 1);
    // A write is visible.
    let created = maps(&fixture, fixture.namespace())
        .create_with("b", json!({"test": label}))
        .await;
    cache
        .wrote(&config_maps(), &serde_json::to_vec(&created).unwrap())
        .unwrap();
    assert!(
        reader
            .get::<ConfigMap>(fixture.namespace(), "b")
            .await
            .unwrap()
            .is_some()
    );
}

// D6
#[steersman_testing::test]
async fn rejects_an_invalid_namespace_and_lists_the_others(fixture: Fixture) {
    maps(&fixture, fixture.namespace()).create("a").await;
    let names_of = |text: &str| text.split(',').fold(Scope::all(), Scope::namespace);
    let scope = names_of(&format!(" {} ,not a name", fixture.namespace()));
    let cache = Cache::builder(context(fixture.client()))
        .defaults(scope, InformerOptions::default())
        .build();
    let reader = cache.reader(CacheMissPolicy::Start);
    let found = reader.get::<ConfigMap>(fixture.namespace(), "a").await.unwrap();
    assert!(found.is_some());
    let error = reader.get::<ConfigMap>("not a name", "a").await.unwrap_err();
    let ReadError::NotSynced { reason, .. } = error else {
        panic!("{error}")
    };
    let name = "not a name".to_owned();
    assert_eq!(*reason, WatchError::InvalidNamespace { name });
}

// C5
#[steersman_testing::test]
async fn a_list_without_a_namespace_merges_the_namespaces_of_the_cache(fixture: Fixture) {
    let all = three(&fixture).await;
    let proxy = fixture.proxy().await;
    let stall = proxy.inject(
        Matching::any().path(format!("/namespaces/{}/", all[1])),
        Fault::stall(),
    );
    let cache = Cache::builder(through(&fixture, &proxy))
        .defaults(scope(&all[..2]).labels("!unwanted"), InformerOptions::default())
        .build();
    let reader = cache.reader(CacheMissPolicy::Start);
    let listed = |found: Vec<std::sync::Arc<ConfigMap>>| {
        let mut names: Vec<_> = found.iter().filter_map(|map| map.metadata.name.clone()).collect();
        names.retain(|name| name.len() == 1);
        names.sort();
        names
    };
    let everything = Query::new();
    let mut both = Box::pin(reader.list::<ConfigMap>(&everything));
    // One namespace is in sync, the other is not.
    assert!(reader.get::<ConfigMap>(&all[0], "a").await.unwrap().is_some());
    assert!((&mut both).now_or_never().is_none());
    drop(stall);
    assert_eq!(listed(both.await.unwrap()), ["a", "b"]);

    // A further namespace, and a selection among all of them.
    cache.set_namespaces(&config_maps(), all.iter().map(String::as_str));
    assert_eq!(listed(reader.list(&Query::new()).await.unwrap()), ["a", "b", "c"]);
    let front = maps(&fixture, &all[2]);
    front.create_with("d", json!({"tier": "front"})).await;
    let informer = cache.informer(&config_maps());
    informer
        .store()
        .reached(&all[2], &revision(&front.set("d", "second").await))
        .await;
    let query = Query::new().label("tier", "front");
    assert_eq!(listed(reader.list(&query).await.unwrap()), ["d"]);
    assert_eq!(
        listed(reader.list(&Query::new().namespace(&all[1])).await.unwrap()),
        ["b"]
    );
}

fn revision(map: &ConfigMap) -> Revision {
    Revision::new(map.metadata.resource_version.as_deref().unwrap())
}

// C5
#[steersman_testing::test]
async fn each_namespace_can_have_its_own_selectors(fixture: Fixture) {
    let all = three(&fixture).await;
    for namespace in &all {
        let maps = maps(&fixture, namespace);
        maps.create_with("front", json!({"tier": "front"})).await;
        maps.create_with("back", json!({"tier": "back"})).await;
    }
    let scope = Scope::all()
        .labels("tier=front")
        .namespace(&all[0])
        .labels_in(&all[1], "tier=back")
        .labels_in(&all[2], "")
        .fields_in(&all[2], "metadata.name=c");
    let cache = Cache::builder(context(fixture.client()))
        .defaults(scope, InformerOptions::default())
        .build();
    let informer = cache.informer(&config_maps());
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    assert_eq!(names(&informer), ["back", "c", "front"]);
    let view = informer.view();
    assert!(view.get(&all[0], "front").is_some() && view.get(&all[1], "back").is_some());

    // The watches select in the same way, and so do writes through the cache.
    let json = |namespace: &str, name: &str, tier: &str| {
        let object = json!({"metadata": {
            "name": name, "namespace": namespace, "uid": name, "resourceVersion": "99999999999",
            "labels": {"tier": tier},
        }});
        serde_json::to_vec(&object).unwrap()
    };
    for (namespace, name, tier) in [
        (&all[0], "w", "front"),
        (&all[0], "x", "back"),
        (&all[1], "y", "back"),
        (&all[1], "z", "front"),
    ] {
        cache.wrote(&config_maps(), &json(namespace, name, tier)).unwrap();
    }
    let shown = [(&all[0], "w"), (&all[0], "x"), (&all[1], "y"), (&all[1], "z")]
        .map(|(namespace, name)| view.get(namespace, name).is_some());
    assert_eq!(shown, [true, false, true, false]);
    let before = heard.events().len();
    maps(&fixture, &all[1])
        .create_with("front2", json!({"tier": "front"}))
        .await;
    maps(&fixture, &all[1])
        .create_with("back2", json!({"tier": "back"}))
        .await;
    assert_eq!(heard.count(before + 1).await[before], "added back2");
}

// C5
#[steersman_testing::test]
async fn a_view_taken_before_the_first_write_sees_it(fixture: Fixture) {
    let cache = support::cache(&fixture, context(fixture.client())).build();
    let informer = cache.informer(&config_maps());
    informer.synced().await;
    let (early, plain) = (informer.view(), informer.store().clone());
    let written = json!({"metadata": {
        "name": "w", "namespace": fixture.namespace(), "uid": "w", "resourceVersion": "99999999999",
    }});
    let json = serde_json::to_vec(&written).unwrap();
    cache.wrote(&config_maps(), &json).unwrap();
    assert!(early.get(fixture.namespace(), "w").is_some());
    assert!(
        early
            .list(&Query::new())
            .iter()
            .any(|object| object.name() == "w")
    );
    assert!(
        plain.get(fixture.namespace(), "w").is_none(),
        "the store of the informer itself"
    );
}

// C5
#[steersman_testing::test]
async fn a_caller_waits_until_the_cache_has_reached_a_revision(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let proxy = fixture.proxy().await;
    let cache = support::cache(&fixture, through(&fixture, &proxy)).build();
    let reader = cache.reader(CacheMissPolicy::Start);
    reader.list::<ConfigMap>(&Query::new()).await.unwrap();
    let stall = proxy.inject(Matching::any().path("/configmaps"), Fault::stall());
    proxy.cut(&Matching::watches(), steersman_testing::proxy::Cut::Clean);
    let revision = revision(&maps.set("a", "second").await);
    let (kind, here) = (config_maps(), fixture.namespace());
    let mut waiting = Box::pin(reader.reached(&kind, here, ObjectDetail::Full, &revision));
    assert!((&mut waiting).now_or_never().is_none());
    drop(stall);
    waiting.await.unwrap();
    let read = reader.get::<ConfigMap>(here, "a").await.unwrap().unwrap();
    assert_eq!(support::value(&read), "second");
    // It has been reached already; and a namespace outside of the cache never reaches it.
    reader
        .reached(&kind, "", ObjectDetail::Full, &revision)
        .await
        .unwrap();
    let outside = reader
        .reached(&kind, "elsewhere", ObjectDetail::Full, &revision)
        .await;
    assert!(matches!(outside, Err(ReadError::UnknownNamespace { .. })));
    // A removed informer ends the wait.
    let late = Revision::new("99999999999");
    let mut waiting = Box::pin(reader.reached(&kind, here, ObjectDetail::Full, &late));
    assert!((&mut waiting).now_or_never().is_none());
    cache.remove(&kind);
    assert!(matches!(waiting.await, Err(ReadError::NotCached { .. })));
}
