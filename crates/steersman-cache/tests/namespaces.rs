// SPDX-License-Identifier: Apache-2.0
//! Informers over several namespaces, which come and go while it runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use http::{Request, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client, api::PostParams, client::Body};
use serde_json::json;
use steersman_cache::{
    Cache, CacheMissPolicy, Delivery, Event, EventHandler, Informer, InformerOptions, Query, ReadError,
    Scope, WatchError,
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
