// SPDX-License-Identifier: Apache-2.0
//! Kinds that a controller works without: what is left of them when they go, and how they come back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{kinds, managed};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cache::{Informer, WatchError};
use steersman_cluster::Cluster;
use steersman_core::{Action, Clock, PresenceStatus, TestClock};
use steersman_runtime::{
    BoxError, Context, Controller, Manager, Request, dynamic, map_metadata, reconcile_fn,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Cut, Exchange, Fault, Injected, Matching},
};

use kinds::{TestKind, Uids};
use managed::{Log, cluster, cluster_builder, cluster_through, manager_of, run, until};

/// Rejects all watches of widgets from now on.
fn hide_widgets(proxy: &FaultProxy) -> Injected {
    let hidden = proxy.inject(Matching::any().path("/widgets"), Fault::answer(503));
    assert!(proxy.cut(&Matching::watches().path("/widgets"), Cut::Clean) > 0);
    hidden
}

/// A controller of maps that a widget of the same name wakes.
fn of_maps(manager: &Manager, widgets: &TestKind) -> Log {
    let log = Log::new();
    Controller::of::<ConfigMap>("maps")
        .watches(
            dynamic(widgets.resource.clone()).optional(),
            map_metadata(|widget| Some(widget.key())),
        )
        .add_to(manager, log.clone())
        .unwrap();
    log
}

/// Waits until a key has been worked on more often than that.
async fn is_woken_again(log: &Log, name: &str, before: usize) {
    log.when(|log| log.iter().filter(|(request, _)| request.name() == name).count() > before)
        .await;
}

// R26, R168
#[steersman_testing::test]
async fn objects_that_are_removed_with_their_kind_trigger_their_mapped_keys(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched.clone()).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let log = of_maps(&manager, &widgets);
    let running = run(&manager);
    widgets.install().await;
    widgets.apply(&client, "one").await;
    is_woken_again(&log, "one", 0).await;

    // No watch sees their deletion.
    let hidden = hide_widgets(&proxy);
    let before = log.count("one");
    widgets.uninstall().await;
    is_woken_again(&log, "one", before).await;
    drop(hidden);

    // The same where another kind of the name has come meanwhile.
    widgets.install().await;
    widgets.apply(&client, "two").await;
    is_woken_again(&log, "two", 0).await;
    let mut presence = watched.presence(&widgets.resource, Duration::from_secs(3600));
    let former = presence.when(PresenceStatus::is_present).await;
    let hidden = hide_widgets(&proxy);
    let blind = proxy.inject(
        Matching::any().path("customresourcedefinitions"),
        Fault::answer(503),
    );
    proxy.cut(&Matching::any().path("customresourcedefinitions"), Cut::Clean);
    let before = log.count("two");
    widgets.uninstall().await;
    widgets.install().await;
    drop(blind);
    let is_another = |now: &PresenceStatus| now.is_present() && now.incarnation != former.incarnation;
    presence.when(is_another).await;
    drop(hidden);
    is_woken_again(&log, "two", before).await;
    running.stop().await.unwrap();
}

// R26
#[steersman_testing::test]
async fn on_deleted_everywhere_is_called_for_objects_that_are_removed_with_their_kind(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let (seen, gone) = (Uids::of(&widgets), Arc::new(Mutex::new(Vec::new())));
    let told = Arc::clone(&gone);
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .on_every_cluster()
        .when_installed()
        .on_deleted_everywhere(move |_, key| told.lock().unwrap().push(key.name().to_owned()))
        .add_to(&manager, seen.clone())
        .unwrap();
    let running = run(&manager);
    widgets.install().await;
    widgets.apply(&client, "one").await;
    seen.saw("one").await;
    let _hidden = hide_widgets(&proxy);
    widgets.uninstall().await;
    until(|| *gone.lock().unwrap() == ["one"]).await;
    running.stop().await.unwrap();
}

/// A cluster through a proxy, with a manual clock.
async fn timed(fixture: &Fixture, proxy: &FaultProxy) -> (TestClock, Cluster) {
    let clock = TestClock::new();
    let cluster = cluster_builder(fixture, "default")
        .config(proxy.endpoint().config(fixture.admin()).unwrap())
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    (clock, cluster)
}

/// Advances the clock for tasks that poll, as long as they do.
async fn go_on_by_moments(clock: &TestClock) {
    loop {
        let soon = clock.now() + Duration::from_millis(50);
        if let Some(deadline) = clock.next_deadline().filter(|deadline| *deadline <= soon) {
            clock.advance_to(deadline);
        }
        tokio::task::yield_now().await;
    }
}

// R2, R12, R168
#[steersman_testing::test]
async fn a_removed_kind_that_a_reconciler_reads_costs_nothing_and_is_read_at_once_when_installed(
    fixture: Fixture,
) {
    let proxy = fixture.proxy().await;
    let (clock, watched) = timed(&fixture, &proxy).await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched.clone()).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let (reads, read) = (Arc::new(AtomicBool::new(true)), Uids::of(&widgets));
    let (is_reading, seen, resource) = (Arc::clone(&reads), read.clone(), widgets.resource.clone());
    let reconciler = reconcile_fn(move |request: Request, cx: Context| {
        let (is_reading, seen) = (is_reading.load(Ordering::Relaxed), seen.clone());
        let resource = resource.clone();
        async move {
            // The run keeps the informer that it has read from.
            if is_reading {
                let object = cx.client().of(&resource).get(request.key()).await?;
                let uid = object.and_then(|object| object.metadata.uid.clone());
                seen.note(request.name(), uid);
            }
            Ok::<_, BoxError>(Action::await_change())
        }
    });
    Controller::of::<ConfigMap>("maps")
        .watches(
            dynamic(widgets.resource.clone()).optional(),
            map_metadata(|widget| Some(widget.key())),
        )
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    let goes_on = go_on_by_moments(&clock);
    let cycles = async {
        for _ in 0..2 {
            widgets.install().await;
            widgets.apply(&client, "one").await;
            read.saw("one").await;
            read.clear();
            reads.store(false, Ordering::Relaxed);
            widgets.uninstall().await;
            let of_widgets = |informer: &Informer| *informer.resource() == widgets.resource;
            let is_refused =
                |informer: &Informer| informer.health().error.as_deref() == Some(&WatchError::NotInstalled);
            let mut presence = watched.presence(&widgets.resource, Duration::from_secs(3600));
            presence.when(PresenceStatus::is_absent).await;
            until(|| {
                let informers = watched.cache().informers();
                informers.iter().any(|one| of_widgets(one) && is_refused(one))
            })
            .await;
            let asked = || {
                let all = proxy.exchanges();
                let is_widgets = |one: &&Exchange| one.path.ends_with("/widgets");
                all.iter().filter(is_widgets).count()
            };
            // All events in flight have arrived.
            for _ in 0..5 {
                fixture.client().apiserver_version().await.unwrap();
            }
            let before = asked();
            for _ in 0..5 {
                clock.advance(Duration::from_secs(60));
                for _ in 0..5 {
                    fixture.client().apiserver_version().await.unwrap();
                }
            }
            assert_eq!(asked(), before, "it is asked for");
            // From now on no back-off would end.
            reads.store(true, Ordering::Relaxed);
        }
    };
    tokio::select! {
        biased;
        () = cycles => {}
        () = goes_on => {}
    }
    running.stop().await.unwrap();
}
