// SPDX-License-Identifier: Apache-2.0
//! Statistics of informers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use steersman_cache::{
    Event, Informer, InformerOptions, Representation, Resource, Scope, StoreOptions, WatchError,
};
use steersman_core::TestClock;
use steersman_testing::{
    Fixture,
    proxy::{Cut, Fault, Matching},
};
use support::{Heard, Maps, cache, config_maps, context, context_at, define, here, informer, through};

#[steersman_testing::test]
async fn stats_report_memory(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    let store = StoreOptions::new().representation(Representation::decoded::<ConfigMap>());
    let informer = Informer::start(
        &context(fixture.client()),
        config_maps(),
        here(&fixture),
        InformerOptions::default().store(store),
    );
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let stats = informer.stats();
    assert_eq!((stats.resource, stats.scope), (config_maps(), here(&fixture)));
    assert_eq!((stats.objects, stats.events), (2, 2));
    assert!(stats.synced && stats.error.is_none());
    assert!(stats.bytes > 0);
    assert_eq!(stats.decoded_bytes, stats.bytes);

    maps.delete("a").await;
    heard.count(3).await;
    let after = informer.stats();
    assert_eq!((after.objects, after.events), (1, 3));
    assert!(after.bytes < stats.bytes);
    assert!(informer.store().get_as::<Pod>(fixture.namespace(), "b").is_err());
    assert_eq!(informer.stats().decode_failures, 1);
    assert_eq!(informer.stats().invalid, 0);
}

#[steersman_testing::test]
async fn counts_relists_and_watch_restarts(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let proxy = fixture.proxy().await;
    let informer = informer(&fixture, &through(&fixture, &proxy));
    let heard = Heard::default();
    let _registration = informer.handle("test", heard.handler());
    informer.synced().await;
    let counts = |informer: &Informer| {
        let stats = informer.stats();
        (stats.lists, stats.relists, stats.watches, stats.watch_restarts)
    };
    assert_eq!(counts(&informer), (1, 0, 1, 0));

    proxy.cut(&Matching::watches(), Cut::Clean);
    maps.create("a").await;
    heard.count(1).await;
    assert_eq!(counts(&informer), (1, 0, 2, 1), "it went on where it was");

    let gone = proxy.inject(Matching::watches().first(1), Fault::error_event(410));
    proxy.cut(&Matching::watches(), Cut::Clean);
    gone.hit().await;
    informer.health_when(|health| health.relists == 1).await;
    maps.create("b").await;
    heard.count(2).await;
    assert_eq!(
        counts(&informer),
        (2, 1, 4, 3),
        "it listed again, by a watch of its own"
    );
}

#[steersman_testing::test]
async fn counters_survive_the_removal_of_a_namespace(fixture: Fixture) {
    let informer = informer(&fixture, &context(fixture.client()));
    informer.synced().await;
    informer.set_namespaces(["kube-system"]);
    informer.synced().await;
    let stats = informer.stats();
    assert_eq!((stats.lists, stats.watches), (2, 2));
    assert_eq!((stats.relists, stats.watch_restarts), (0, 0));
}

#[steersman_testing::test]
async fn stats_report_the_last_event_and_the_error(fixture: Fixture) {
    let clock = TestClock::new();
    let context = context_at(fixture.client(), Arc::new(clock.clone()));
    let absent = Resource::new(fixture.group(), "v1", "Nothing", "nothings");
    let nothing = Informer::start(&context, absent, Scope::all(), InformerOptions::default());
    nothing.health_when(|health| health.error.is_some()).await;
    let stats = nothing.stats();
    assert_eq!(stats.error.as_deref(), Some(&WatchError::NotInstalled));
    assert_eq!((stats.synced, stats.silent_for), (false, None));

    let informer = informer(&fixture, &context);
    informer.synced().await;
    clock.advance(Duration::from_secs(7));
    assert_eq!(informer.stats().silent_for, Some(Duration::from_secs(7)));
}

#[steersman_testing::test]
async fn stats_name_dropped_handlers(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let clock = TestClock::new();
    let context = context_at(fixture.client(), Arc::new(clock.clone()));
    let informer = informer(&fixture, &context);
    let heard = Heard::default();
    let slow = informer.handle("slow", move |_: &Event| clock.advance(Duration::from_secs(1)));
    let clumsy = informer.handle("clumsy", |_: &Event| panic!("as it must"));
    let _quick = informer.handle("quick", heard.handler());
    informer.synced().await;
    maps.create("a").await;
    heard.count(1).await;
    drop((slow, clumsy));
    maps.create("b").await;
    heard.count(2).await;
    let stats = informer.stats();
    assert_eq!(stats.slow_handlers, [("slow".to_owned(), 1)]);
    assert_eq!(stats.panicked_handlers, [("clumsy".to_owned(), 1)]);
}

/// A scrape may come at any time.
#[steersman_testing::test]
async fn stats_are_readable_while_a_handler_blocks(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    // The informer runs on a separate thread, so that its handler can block.
    let config = fixture.endpoint().config(fixture.admin()).unwrap();
    let scope = here(&fixture);
    let (stuck, is_stuck) = mpsc::sync_channel::<Informer>(1);
    let (release, released) = mpsc::sync_channel::<()>(0);
    let (started, has_started) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let context = context(steersman_cache::client(&config).unwrap());
            let informer = Informer::start(&context, config_maps(), scope, InformerOptions::default());
            informer.synced().await;
            let (seen, released) = (informer.clone(), std::sync::Mutex::new(released));
            let (done, is_done) = tokio::sync::watch::channel(false);
            let _registration = informer.handle("stuck", move |_: &Event| {
                stuck.send(seen.clone()).unwrap();
                released.lock().unwrap().recv().unwrap();
                done.send_replace(true);
            });
            started.send(()).unwrap();
            is_done.clone().wait_for(|done| *done).await.unwrap();
        });
    });
    has_started.await.unwrap();
    maps.create("a").await;
    let informer = tokio::task::spawn_blocking(move || is_stuck.recv().unwrap())
        .await
        .unwrap();
    let stats = informer.stats();
    assert_eq!((stats.objects, stats.events), (1, 1));
    release.send(()).unwrap();
    drop(informer);
    tokio::task::spawn_blocking(move || thread.join())
        .await
        .unwrap()
        .unwrap();
}

#[steersman_testing::test]
async fn informers_are_sorted(fixture: Fixture) {
    let gadgets = define(&fixture, "Gadget").await;
    let cache = cache(&fixture, context(fixture.client())).build();
    let resources = [Resource::of::<Secret>(), gadgets.clone(), config_maps()];
    let held: Vec<_> = resources
        .iter()
        .map(|resource| cache.informer(resource))
        .collect();
    let all = cache.informers();
    let found: Vec<&Resource> = all.iter().map(Informer::resource).collect();
    assert_eq!(found, [&config_maps(), &Resource::of::<Secret>(), &gadgets]);
    drop(held);
}
