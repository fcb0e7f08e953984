// SPDX-License-Identifier: Apache-2.0
//! Each namespace of a cache stands for itself, and kinds that are in none are not asked for in one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;
use steersman_cache::{
    Cache, CacheMissPolicy, Event, InformerContext, InformerOptions, Query, ReadError, Resource, Scope,
    WatchError,
};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};
use support::{Maps, config_maps, context, here, is_list, names, through};

/// So long something is looked at that must not wait, or must not happen.
const LOOK: Duration = Duration::from_secs(20);

/// Another namespace of the test, and a config map in each.
async fn two(fixture: &Fixture) -> [String; 2] {
    let all = ["", "-b"].map(|suffix| format!("{}{suffix}", fixture.namespace()));
    let namespace = serde_json::from_value(json!({"metadata": {"name": all[1]}})).unwrap();
    let namespaces: Api<Namespace> = Api::all(fixture.client());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    for (namespace, name) in all.iter().zip(["a", "b"]) {
        maps(fixture, namespace).create(name).await;
    }
    all
}

fn maps(fixture: &Fixture, namespace: &str) -> Maps {
    Maps(Api::namespaced(fixture.client(), namespace))
}

fn cache_of(context: InformerContext, namespaces: &[String]) -> Cache {
    let scope = namespaces
        .iter()
        .fold(Scope::all(), |scope, namespace| scope.namespace(namespace));
    Cache::builder(context)
        .defaults(scope, InformerOptions::default())
        .build()
}

// R144
#[steersman_testing::test]
async fn reads_a_namespace_while_another_is_forbidden(fixture: Fixture) {
    let all = two(&fixture).await;
    let proxy = fixture.proxy().await;
    let forbidden = Matching::any().path(format!("/namespaces/{}/", all[1]));
    let forbidden = proxy.inject(forbidden, Fault::answer(403));
    let cache = cache_of(through(&fixture, &proxy), &all);
    let reader = cache.reader(CacheMissPolicy::Start);
    assert!(reader.get::<ConfigMap>(&all[0], "a").await.unwrap().is_some());
    let of_one = Query::new().namespace(&all[0]);
    let found = reader.list::<ConfigMap>(&of_one).await.unwrap();
    assert!(found.iter().any(|map| map.name_any() == "a"));
    for _ in 0..2 {
        match reader.get::<ConfigMap>(&all[1], "b").await {
            Err(ReadError::NotSynced { reason, .. }) => {
                assert!(matches!(*reason, WatchError::Forbidden { .. }), "{reason}");
            }
            other => panic!("an error, not {other:?}"),
        }
    }
    assert!(!cache.informer(&config_maps()).health().synced);
    drop(forbidden);
    cache.informer(&config_maps()).synced().await;
    assert!(reader.get::<ConfigMap>(&all[1], "b").await.unwrap().is_some());
}

// R144
#[steersman_testing::test]
async fn reads_a_namespace_while_another_syncs(fixture: Fixture) {
    let all = two(&fixture).await;
    let proxy = fixture.proxy().await;
    let cache = cache_of(through(&fixture, &proxy), &all[..1]);
    let reader = cache.reader(CacheMissPolicy::Start);
    assert!(reader.get::<ConfigMap>(&all[0], "a").await.unwrap().is_some());
    let stall = Matching::any().path(format!("/namespaces/{}/", all[1]));
    let stall = proxy.inject(stall, Fault::stall());
    cache.set_namespaces(&config_maps(), all.iter().map(String::as_str));
    stall.hit().await;
    assert!(reader.get::<ConfigMap>(&all[0], "a").await.unwrap().is_some());
    let mut other = Box::pin(reader.get::<ConfigMap>(&all[1], "b"));
    assert!((&mut other).now_or_never().is_none());
    drop(stall);
    assert!(other.await.unwrap().is_some());
}

// R144
#[steersman_testing::test]
async fn waiting_for_a_removed_namespace_is_an_error(fixture: Fixture) {
    let all = two(&fixture).await;
    let proxy = fixture.proxy().await;
    let stall = Matching::any().path(format!("/namespaces/{}/", all[1]));
    let _stall = proxy.inject(stall, Fault::stall());
    let cache = cache_of(through(&fixture, &proxy), &all);
    let reader = cache.reader(CacheMissPolicy::Start);
    let mut waiting = Box::pin(reader.get::<ConfigMap>(&all[1], "b"));
    assert!((&mut waiting).now_or_never().is_none());
    cache.set_namespaces(&config_maps(), [all[0].as_str()]);
    match waiting.await {
        Err(ReadError::UnknownNamespace { cached, asked, .. }) => assert_eq!([cached, asked], all),
        other => panic!("an error, not {other:?}"),
    }
}

// R144
#[steersman_testing::test]
async fn default_namespaces_do_not_apply_to_cluster_scoped_kinds(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let namespace = fixture.namespace();
    let cache = Cache::builder(through(&fixture, &proxy))
        .defaults(here(&fixture).labels("!unwanted"), InformerOptions::default())
        .build();
    let reader = cache.reader(CacheMissPolicy::Start);
    assert!(reader.get::<Namespace>("", namespace).await.unwrap().is_some());
    let listed = reader.list::<Namespace>(&Query::new()).await.unwrap();
    assert!(listed.iter().any(|found| found.name_any() == namespace));
    let by_name = Resource::new("", "v1", "Namespace", "namespaces").namespaced(false);
    for resource in [Resource::of::<Namespace>(), by_name] {
        assert_eq!(cache.scope(&resource), Scope::all().labels("!unwanted"));
        cache.informer(&resource).synced().await;
    }
    assert_eq!(cache.informers().len(), 1);
    assert!(
        proxy
            .exchanges()
            .iter()
            .all(|one| one.path == "/api/v1/namespaces")
    );
    assert!(proxy.exchanges().iter().any(is_list));
}

// R144
#[steersman_testing::test]
async fn a_cluster_scoped_kind_is_not_listed_in_a_namespace(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let kind = Resource::of::<Namespace>();
    let cache = Cache::builder(through(&fixture, &proxy))
        .kind(kind.clone(), here(&fixture), InformerOptions::default())
        .build();
    let refused = WatchError::NotNamespaced {
        namespaces: fixture.namespace().to_owned(),
    };
    let reader = cache.reader(CacheMissPolicy::Start);
    match reader.get::<Namespace>("", fixture.namespace()).await {
        Err(error @ ReadError::NotSynced { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("namespaces/v1") && text.contains(&refused.to_string()),
                "{text}"
            );
        }
        other => panic!("an error, not {other:?}"),
    }
    let held = cache.informer(&kind);
    let registration = held.handle("test", |_: &Event| {});
    assert_eq!(held.settled().await, Err(Arc::new(refused)));
    assert!(!held.health().synced && !registration.is_synced());
    assert!(proxy.exchanges().is_empty());
    // Without one it is there.
    cache.set_namespaces(&kind, []);
    assert_eq!(held.settled().await, Ok(()));
    registration.synced().await;
    assert!(
        reader
            .get::<Namespace>("", fixture.namespace())
            .await
            .unwrap()
            .is_some()
    );
}

/// Runs it on a separate thread, with a timeout.
fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let runtime = tokio::runtime::Handle::current();
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || {
        let _entered = runtime.enter();
        _ = done.send(what());
    });
    result.recv_timeout(LOOK).expect("it waits for a handler")
}

#[steersman_testing::test]
async fn guarantee_8_a_slow_handler_blocks_no_caller_of_the_cache(fixture: Fixture) {
    let all = two(&fixture).await;
    let cache = cache_of(context(fixture.client()), &all[..1]);
    let held = cache.informer(&config_maps());
    held.synced().await;
    let (go_on, wait) = mpsc::channel::<()>();
    let (called, calls) = mpsc::channel();
    let wait = Mutex::new(wait);
    let runtime = tokio::runtime::Handle::current();
    let registering = {
        let held = held.clone();
        // It is called for the existing object, and blocks until it is released.
        runtime.spawn_blocking(move || {
            held.handle("slow", move |_: &Event| {
                called.send(()).unwrap();
                _ = wait.lock().unwrap().recv();
            })
        })
    };
    in_time(move || calls.recv()).unwrap();
    let changing = {
        let (cache, all) = (cache.clone(), all.clone());
        runtime.spawn_blocking(move || cache.set_namespaces(&config_maps(), [all[1].as_str()]))
    };
    let (same, namespace) = (cache.clone(), all[1].clone());
    let secrets = in_time(move || {
        while same.informer(&config_maps()).scope() != Scope::all().namespace(&namespace) {
            std::thread::yield_now();
        }
        let [stats] = same
            .informers()
            .iter()
            .map(|one| one.stats())
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        assert_eq!(stats.scope, Scope::all().namespace(&namespace));
        let json = format!(
            r#"{{"metadata":{{"name":"w","namespace":"{namespace}","uid":"1","resourceVersion":"9"}}}}"#
        );
        same.wrote(&config_maps(), json.as_bytes()).unwrap();
        same.informer(&Resource::of::<Secret>())
    });
    // Nothing is awaited before this: a reflector that waits for the handler blocks its thread, which can be the one that reads
    // for all tasks of the runtime.
    drop(go_on);
    secrets.synced().await;
    changing.await.unwrap();
    let _registration = registering.await.unwrap();
    held.synced().await;
    assert!(names(&held).contains(&"b".to_owned()) && !names(&held).contains(&"a".to_owned()));
}

#[steersman_testing::test]
async fn guarantee_8_a_handler_can_use_the_cache_while_namespaces_are_removed(fixture: Fixture) {
    let all = two(&fixture).await;
    let cache = cache_of(context(fixture.client()), &all);
    let held = cache.informer(&config_maps());
    held.synced().await;
    let (same, asked) = (cache.clone(), Arc::new(Mutex::new(None)));
    let (answer, shared) = (Arc::clone(&asked), cache.informer(&Resource::of::<Secret>()));
    let shared = Mutex::new(Some(shared));
    let _registration = held.handle("asks", move |event: &Event| {
        if event.is_deletion() {
            _ = shared.lock().unwrap().take();
            let scope = same.informer(&config_maps()).scope();
            *answer.lock().unwrap() = Some((scope, same.informer(&Resource::of::<Secret>())));
        }
    });
    // If it hangs, dropping it would hang as well, without a message.
    std::mem::forget(held.clone());
    let (same, namespace) = (cache.clone(), all[1].clone());
    in_time(move || same.set_namespaces(&config_maps(), [namespace.as_str()]));
    let asked = asked.lock().unwrap().take();
    assert_eq!(asked.unwrap().0, Scope::all().namespace(&all[1]));
}

// D13
#[steersman_testing::test]
async fn guarantee_8_a_handler_can_widen_its_informer(fixture: Fixture) {
    let maps = maps(&fixture, fixture.namespace());
    maps.create("first").await;
    // On a separate thread, so that the test can report that it blocks.
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.unwrap();
        sender.send(runtime.handle().clone()).unwrap();
        _ = runtime.block_on(ended);
    });
    let thread = receiver.recv().unwrap();
    let context = {
        let _entered = thread.enter();
        context(fixture.client())
    };
    let cache = cache_of(context, &[fixture.namespace().to_owned()]);
    let metadata = cache.informer_in(&config_maps(), &here(&fixture).metadata_only());
    metadata.synced().await;
    let (asking, whole) = (cache.clone(), Arc::new(Mutex::new(None)));
    let answer = Arc::clone(&whole);
    let registration = metadata.handle("asks", move |event: &Event| {
        if event.object().name() == "second" {
            *answer.lock().unwrap() = Some(asking.informer(&config_maps()));
        }
    });
    maps.create("second").await;
    let look = async {
        loop {
            let found = metadata.store().get(fixture.namespace(), "second");
            if found.is_some_and(|found| !found.is_metadata_only()) {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    let found = tokio::time::timeout(LOOK, look).await;
    found.expect("the handler blocks the thread on which it runs");
    registration.synced().await;
    metadata.synced().await;
    drop(end);
}
