// SPDX-License-Identifier: Apache-2.0
//! Runs of a controller: when they begin, what stands in their way, how they end, and that another can follow.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use steersman_cache::Resource;
use steersman_cluster::Fence;
use steersman_core::{Action, Clock, ObjectKey};
use steersman_queue::Add;
use steersman_runtime::{
    Context, Controller, ControllerError, Options, Request, RequestKey, RunContext, RunningController,
    Source, SourceContext, dynamic, handle_fn, kind, testing::LeadershipKeeper,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Fault, Matching},
};
use support::{Calls, GRACE, Stage, config_map, key, let_go_on, until};
use tokio::{runtime::Handle, sync::Notify};

fn request(fixture: &Fixture, name: &str) -> Request {
    Request::new("default".into(), key(fixture, name))
}

fn failed(error: &steersman_runtime::BoxError) -> &ControllerError {
    error.downcast_ref().unwrap()
}

/// A controller of config maps that also has to know all secrets.
fn of_both(stage: &Stage, calls: &Calls) -> Controller {
    Controller::of::<ConfigMap>("both")
        .watches(kind::<Secret>(), handle_fn(|_, _| {}))
        .sync_timeout(Duration::from_secs(60))
        .build(&stage.cluster, calls.only())
}

// R158
#[steersman_testing::test]
async fn guarantee_3_no_reconcile_before_every_source_is_in_sync(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let stall = proxy.inject(Matching::any().path("/secrets"), Fault::stall());
    let calls = Calls::new();
    let controller = of_both(&stage, &calls);
    let running = stage.run(&controller);
    stall.hit().await;
    stage.stands("both", |is| is == "waiting for secrets/v1").await;
    assert!(controller.depth().warm() > 0, "the maps are enqueued");
    assert!(calls.all().is_empty());
    drop(stall);
    calls.reach("a", 1).await;
    stage.stands("both", |is| is == "ready").await;
    running.stop(GRACE).await.unwrap();
}

// R158
#[steersman_testing::test]
async fn guarantee_3_no_reconcile_while_a_handler_processes_existing_objects(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    for number in 0..20 {
        let map = config_map(&fixture, &format!("map-{number}"), "1");
        stage.live().create(&map).await.unwrap();
    }
    let (calls, handled) = (Calls::new(), Arc::new(AtomicUsize::new(0)));
    let (go_on, blocked) = std::sync::mpsc::sync_channel::<()>(0);
    let (counting, blocked) = (Arc::clone(&handled), Mutex::new(blocked));
    let slow = handle_fn(move |event, enqueue| {
        if counting.fetch_add(1, Ordering::SeqCst) == 10 {
            // Until the other end is dropped.
            let _ = blocked.lock().unwrap().recv();
        }
        enqueue.add(event.object().key());
    });
    let controller = Controller::<ObjectKey>::named("maps")
        .watches(kind::<ConfigMap>(), slow)
        .workers(4)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    until(|| handled.load(Ordering::SeqCst) == 11).await;
    let_go_on().await;
    assert_eq!(controller.depth().warm(), 10, "they are enqueued");
    assert!(calls.all().is_empty());
    drop(go_on);
    calls.when(|calls| calls.len() == 20).await;
    running.stop(GRACE).await.unwrap();
}

// R9, R20
#[steersman_testing::test]
async fn guarantee_2_a_second_run_at_the_same_time_is_refused(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    stage.stands("maps", |is| is == "ready").await;
    let error = stage.run(&controller).stop(GRACE).await.unwrap_err();
    assert!(matches!(failed(&error), ControllerError::AlreadyRunning { .. }));
    assert_eq!(
        error.to_string(),
        "controller `maps` is already running: stop that run first"
    );
    // The first one does not notice.
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    calls.reach("a", 1).await;
    running.stop(GRACE).await.unwrap();
}

/// Tells at compile time whether a type is a runnable.
struct Is<T>(std::marker::PhantomData<T>);

trait NoRunnable {
    const RUNNABLE: bool = false;
}

impl<T> NoRunnable for Is<T> {}

impl<T: steersman_runtime::Runnable> Is<T> {
    const RUNNABLE: bool = true;
}

/// A controller is moved into its run, and a run cannot be started.
// R22
#[test]
fn a_running_controller_cannot_be_started_again() {
    const { assert!(Is::<Controller>::RUNNABLE && !Is::<RunningController>::RUNNABLE) };
    let _by_value: fn(Controller, &RunContext) -> RunningController = Controller::spawn;
}

/// The watch request, without the parameters that differ between watches.
fn watched(proxy: &FaultProxy) -> BTreeSet<String> {
    let all = proxy.exchanges();
    let reads = all.iter().filter(|exchange| !exchange.is_write());
    let shape = reads.map(|exchange| {
        let selectors = exchange
            .query
            .split('&')
            .filter(|pair| pair.contains("Selector="));
        format!("{}?{}", exchange.path, selectors.collect::<Vec<_>>().join("&"))
    });
    shape.collect()
}

// R9, R13, R18, R19, R20
#[steersman_testing::test]
async fn guarantee_1_a_run_follows_another_as_if_it_were_the_first(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let labelled: ConfigMap = support::object(serde_json::json!({
        "metadata": {"name": "a", "namespace": fixture.namespace(), "labels": {"app": "web"}},
    }));
    fixture_client(&fixture).create(&labelled).await.unwrap();
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps")
        .namespace(fixture.namespace())
        .labels("app=web")
        .watches(kind::<Secret>(), handle_fn(|_, _| {}))
        .workers(3)
        .build(&stage.cluster, calls.only());
    let mut first = None;
    let mut tasks = None;
    for cycle in 1..=20 {
        let running = stage.run(&controller);
        calls.reach("a", cycle).await;
        assert_eq!(
            stage.count("controller_runtime_max_concurrent_reconciles", "maps"),
            3
        );
        until(|| stage.reconciled("maps", "success") == cycle as u64).await;
        running.stop(GRACE).await.unwrap();
        assert_eq!(
            stage.count("controller_runtime_max_concurrent_reconciles", "maps"),
            0
        );
        proxy
            .wait_for(|all| all.iter().all(|one| !one.is_open()).then_some(()))
            .await;
        let now = watched(&proxy);
        assert_eq!(*first.get_or_insert_with(|| now.clone()), now);
        proxy.forget_ended();
        // The connections of the proxy have tasks of their own, which live on after the first run.
        let base = *tasks.get_or_insert_with(|| Handle::current().metrics().num_alive_tasks());
        until(|| Handle::current().metrics().num_alive_tasks() <= base).await;
    }
    assert_eq!(calls.count("a"), 20);
}

fn fixture_client(fixture: &Fixture) -> steersman_cluster::Client {
    let config = fixture.endpoint().config(fixture.admin()).unwrap();
    let cluster = steersman_cluster::Cluster::new(config).unwrap();
    cluster.live().field_manager("test")
}

// R33
#[steersman_testing::test]
async fn a_controller_that_does_not_run_sends_no_request(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let controller = of_both(&stage, &Calls::new());
    controller.enqueue(request(&fixture, "a"));
    let_go_on().await;
    assert!(proxy.exchanges().is_empty());
}

// R151, R160
#[steersman_testing::test]
async fn guarantee_4_keys_enqueued_before_or_between_runs_are_reconciled(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, calls.only());
    let later = Add::new().after(Duration::from_secs(10));
    controller.enqueue(key(&fixture, "now"));
    controller.enqueue_with(key(&fixture, "later"), later);
    let running = stage.run(&controller);
    calls.reach("now", 1).await;
    running.stop(GRACE).await.unwrap();

    controller.enqueue(key(&fixture, "between"));
    clock.advance(Duration::from_secs(9));
    let running = stage.run(&controller);
    calls.reach("between", 1).await;
    assert_eq!(calls.count("later"), 0);
    clock.advance(Duration::from_secs(1));
    calls.reach("later", 1).await;
    running.stop(GRACE).await.unwrap();
}

// R157
#[steersman_testing::test]
async fn guarantee_5_reconciles_in_flight_finish_with_a_working_client(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (calls, go_on) = (Calls::new(), Arc::new(Notify::new()));
    let reconciler = {
        let (go_on, map) = (Arc::clone(&go_on), config_map(&fixture, "written", "1"));
        calls.then(move |_: ObjectKey, cx, _| {
            let (go_on, map) = (Arc::clone(&go_on), map.clone());
            async move {
                cx.stop().requested().await;
                go_on.notified().await;
                cx.client().create(&map).await?;
                Ok(Action::await_change())
            }
        })
    };
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, reconciler);
    controller.enqueue(key(&fixture, "first"));
    let running = stage.run(&controller);
    calls.reach("first", 1).await;
    controller.enqueue(key(&fixture, "second"));
    let mut stopped = Box::pin(running.stop(GRACE));
    assert!(stopped.as_mut().now_or_never().is_none());
    go_on.notify_one();
    stopped.await.unwrap();
    let written = key(&fixture, "written");
    assert!(stage.live().get::<ConfigMap>(&written).await.unwrap().is_some());
    assert_eq!(
        calls.count("second"),
        0,
        "nothing new begins after a stop was asked for"
    );
    assert_eq!(controller.depth().warm(), 1);
}

// R157
#[steersman_testing::test]
async fn guarantee_5_a_reconcile_that_exceeds_the_timeout_is_cancelled_and_its_key_is_kept(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|_: ObjectKey, _, time| async move {
        match time {
            1 => std::future::pending().await,
            _ => Ok(Action::await_change()),
        }
    });
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, reconciler);
    controller.enqueue(key(&fixture, "a"));
    let running = stage.run(&controller);
    calls.reach("a", 1).await;
    let mut stopped = Box::pin(running.stop(GRACE));
    assert!(stopped.as_mut().now_or_never().is_none());
    clock.advance(GRACE - Duration::from_nanos(1));
    let_go_on().await;
    assert!(stopped.as_mut().now_or_never().is_none());
    clock.advance(Duration::from_nanos(1));
    stopped.await.unwrap();

    let running = stage.run(&controller);
    clock.advance(Duration::from_secs(1)); // Its back-off.
    until(|| {
        clock.advance(Duration::from_millis(1));
        calls.count("a") >= 2
    })
    .await;
    assert_eq!(calls.all()[1].attempt, 1);
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_draining_controller_reconciles_its_ready_keys(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|_: ObjectKey, cx, _| async move {
        cx.stop().requested().await;
        Ok(Action::await_change())
    });
    let controller = Controller::<ObjectKey>::named("keys")
        .options(Options::new().drain(true))
        .build(&stage.cluster, reconciler);
    for name in ["a", "b", "c"] {
        controller.enqueue(key(&fixture, name));
    }
    let running = stage.run(&controller);
    calls.reach("a", 1).await;
    running.stop(GRACE).await.unwrap();
    assert_eq!(calls.all().len(), 3);
}

#[steersman_testing::test]
async fn a_panic_while_it_drains_ends_a_run_that_is_not_to_recover_from_it(fixture: Fixture) {
    // Time stands still, so that nothing ends because its time is over.
    let (_clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|key: ObjectKey, cx, _| async move {
        cx.stop().requested().await;
        assert_ne!(key.name(), "b", "out of order");
        Ok(Action::await_change())
    });
    let controller = Controller::<ObjectKey>::named("keys")
        .options(Options::new().drain(true).recover_panics(false))
        .build(&stage.cluster, reconciler);
    for name in ["a", "b", "c"] {
        controller.enqueue(key(&fixture, name));
    }
    let running = stage.run(&controller);
    calls.reach("a", 1).await;
    let error = running.stop(GRACE).await.unwrap_err();
    assert!(
        matches!(error.downcast_ref(), Some(ControllerError::Panicked { .. })),
        "{error:?}"
    );
    assert_eq!(calls.count("c"), 0);
    assert_eq!(controller.depth().warm(), 1);
}

#[steersman_testing::test]
async fn dropping_a_run_ends_it(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    stage.stands("maps", |is| is == "ready").await;
    drop(running);
    proxy
        .wait_for(|all| all.iter().all(|one| !one.is_open()).then_some(()))
        .await;
    until(|| stage.count("controller_runtime_max_concurrent_reconciles", "maps") == 0).await;
    controller.enqueue(request(&fixture, "a"));
    assert_eq!(controller.depth().warm(), 1, "it waits for the next run");
}

// R90, R94
#[steersman_testing::test]
async fn guarantee_6_a_failing_source_delays_only_its_own_controller(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let forbidden = proxy.inject(Matching::any().path("/secrets"), Fault::answer(403));
    let (held, free) = (Calls::new(), Calls::new());
    let both = stage.run(&of_both(&stage, &held));
    let maps = Controller::of::<ConfigMap>("maps").build(&stage.cluster, free.only());
    let maps = stage.run(&maps);
    free.reach("a", 1).await;
    let is = stage.stands("both", |is| is.starts_with("degraded")).await;
    assert!(is.starts_with("degraded: secrets/v1: forbidden"), "{is}");
    assert_eq!(held.all().len(), 0);
    drop(forbidden);
    held.reach("a", 1).await;
    stage.stands("both", |is| is == "ready").await;

    // A source that fails later continues with its stored objects.
    let unplugged = proxy.unplug();
    let is = stage.stands("both", |is| is.starts_with("degraded")).await;
    assert!(is.contains("unreachable"), "{is}");
    drop(unplugged);
    stage.stands("both", |is| is == "ready").await;
    stage
        .live()
        .create(&config_map(&fixture, "b", "1"))
        .await
        .unwrap();
    held.reach("b", 1).await;
    both.stop(GRACE).await.unwrap();
    maps.stop(GRACE).await.unwrap();
}

/// Waits for a timer at exactly this delay, and advances the clock to it.
async fn pass(clock: &steersman_core::TestClock, time: Duration) {
    let until = clock.now() + time;
    while clock.now() < until {
        let next = clock.next_deadline().filter(|next| *next <= until);
        match next {
            Some(next) => clock.advance_to(next),
            None => clock.advance_to(until),
        }
        let_go_on().await;
    }
}

// R34
#[steersman_testing::test]
async fn a_kind_that_is_not_there_ends_the_run_after_the_time_for_sync(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let widgets = Resource::new(fixture.group(), "v1", "Widget", "widgets");
    let controller = Controller::of_kind("widgets", dynamic(widgets.clone()))
        .sync_timeout(Duration::from_secs(60))
        .owns::<ConfigMap>()
        .build(&stage.cluster, Calls::new().only());
    let running = stage.run(&controller);
    let is = stage
        .stands("widgets", |is| is.contains("does not have this resource"))
        .await;
    assert!(is.starts_with(&format!("degraded: {widgets}: ")), "{is}");
    let mut ended = Box::pin(running.ended());
    pass(&clock, Duration::from_secs(59)).await;
    assert!(ended.as_mut().now_or_never().is_none());
    pass(&clock, Duration::from_secs(1)).await;
    let error = ended.await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "controller `widgets` watches {widgets}, which the server does not have: install it, or call \
             `.when_installed()` to run the controller only while it is there"
        )
    );
}

// R34, R90
#[steersman_testing::test]
async fn a_strict_controller_ends_at_once_with_name_and_reason(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let strict = |source| {
        Controller::of_kind("strict", dynamic(source))
            .options(Options::new().strict(true))
            .build(&stage.cluster, Calls::new().only())
    };
    let widgets = Resource::new(fixture.group(), "v1", "Widget", "widgets");
    let error = stage.run(&strict(widgets)).ended().await.unwrap_err();
    assert!(
        matches!(failed(&error), ControllerError::Absent { .. }),
        "{error}"
    );

    let _forbidden = proxy.inject(Matching::any().path("/secrets"), Fault::answer(403));
    let secrets = stage.run(&strict(Resource::of::<Secret>()));
    let error = secrets.ended().await.unwrap_err();
    let is_named = |text: &str| text.starts_with("controller `strict` cannot start: secrets/v1: forbidden");
    assert!(is_named(&error.to_string()), "{error}");
}

#[steersman_testing::test]
async fn a_started_strict_controller_waits_for_a_failing_source(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let calls = Calls::new();
    let strict = Controller::of::<ConfigMap>("strict")
        .options(Options::new().strict(true))
        .build(&stage.cluster, calls.only());
    let running = stage.run(&strict);
    stage.stands("strict", |is| is == "ready").await;
    let unplugged = proxy.unplug();
    stage.stands("strict", |is| is.starts_with("degraded")).await;
    strict.enqueue(request(&fixture, "a"));
    calls.reach("a", 1).await;
    drop(unplugged);
    stage.stands("strict", |is| is == "ready").await;
    running.stop(GRACE).await.unwrap();
}

// R68
#[steersman_testing::test]
async fn every_client_of_a_context_passes_the_fence_of_its_term(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let other = support::cluster_through(&fixture, &proxy, "other")
        .build()
        .await
        .unwrap();
    stage.runtime.clusters().insert(other).unwrap();
    let (calls, go_on) = (Calls::new(), Arc::new(Notify::new()));
    let reconciler = {
        let go_on = Arc::clone(&go_on);
        calls.then(move |key: ObjectKey, cx: Context, time| {
            let go_on = Arc::clone(&go_on);
            async move {
                let value = |way: &str| json!({"metadata": {"labels": {way: time.to_string()}}});
                // A raw client that was made earlier is fenced too.
                let maps: Api<ConfigMap> = Api::namespaced(cx.kube(), key.namespace());
                let (own, other) = (cx.client().clone(), cx.client_of(&"other".into()).unwrap());
                if time == 2 {
                    go_on.notified().await;
                }
                let raw = Patch::Merge(value("raw"));
                let raw = maps.patch(key.name(), &PatchParams::default(), &raw).await;
                let own = own.patch::<ConfigMap>(&key, &Patch::Merge(value("own"))).await;
                let other = other
                    .patch::<ConfigMap>(&key, &Patch::Merge(value("other")))
                    .await;
                match time {
                    1 => assert!(raw.is_ok() && own.is_ok() && other.is_ok()),
                    _ => assert!(raw.is_err() && own.is_err() && other.is_err()),
                }
                Ok(Action::await_change())
            }
        })
    };
    let direct = fixture_client(&fixture);
    direct.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, reconciler);
    let (fence_keeper, fence) = Fence::new(Arc::clone(&stage.clock));
    fence_keeper.open_until(None);
    let (keeper, leadership) = LeadershipKeeper::new();
    keeper.grant(fence);
    let running = controller.clone().spawn(&stage.context_led("keys", leadership));
    controller.enqueue(key(&fixture, "a"));
    calls.reach("a", 1).await;
    until(|| stage.reconciled("keys", "success") == 1).await;
    controller.enqueue(key(&fixture, "a"));
    calls.reach("a", 2).await;
    fence_keeper.close("the time is up");
    go_on.notify_one();
    until(|| stage.reconciled("keys", "success") == 2).await;
    assert_eq!(
        stage.count("controller_runtime_reconcile_panics_total", "keys"),
        0
    );
    let writes = proxy.exchanges().into_iter().filter(|one| one.is_write());
    assert_eq!(writes.count(), 3);
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_source_that_is_not_in_sync_in_time_is_named_and_waited_for(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let clock = steersman_core::TestClock::new();
    let builder = support::cluster_through(&fixture, &proxy, "default");
    let stage = Stage::of(builder, Arc::new(clock.clone())).await;
    let stall = proxy.inject(Matching::any().path("/secrets"), Fault::stall());
    let calls = Calls::new();
    let patient = stage.run(&of_both(&stage, &calls));
    let strict = Controller::of::<Secret>("strict")
        .options(Options::new().strict(true).sync_timeout(Duration::from_secs(1)))
        .build(&stage.cluster, Calls::new().only());
    let strict = stage.run(&strict);
    stall.hit().await;
    // Time must not pass for the server that answers.
    stage.stands("both", |is| is == "waiting for secrets/v1").await;
    stage.stands("strict", |is| is == "waiting for secrets/v1").await;
    pass(&clock, Duration::from_secs(1)).await;
    let error = strict.ended().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "controller `strict` cannot start: secrets/v1 not in sync in time"
    );
    pass(&clock, Duration::from_secs(59)).await;
    let is_named = |is: &str| is.starts_with("degraded") && is.contains("secrets/v1");
    stage.stands("both", is_named).await;
    // It still waits: it has not failed.
    patient.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_run_that_waits_for_caches_can_be_stopped(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let stall = proxy.inject(Matching::any(), Fault::stall());
    let running = stage.run(&of_both(&stage, &Calls::new()));
    stall.hit_times(2).await;
    running.stop(GRACE).await.unwrap();
}

/// A source that panics a given number of times, then enqueues a key and ends.
struct Fragile {
    breaks: usize,
    key: ObjectKey,
    runs: Arc<AtomicUsize>,
}

impl Source<ObjectKey> for Fragile {
    fn name(&self) -> String {
        "fragile".to_owned()
    }

    async fn run(&self, cx: SourceContext<ObjectKey>) {
        assert!(
            self.runs.fetch_add(1, Ordering::SeqCst) >= self.breaks,
            "out of order"
        );
        cx.enqueue().add(self.key.clone());
    }
}

#[steersman_testing::test]
async fn a_source_that_breaks_begins_anew_and_one_that_ends_is_not_waited_for(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let source = Fragile {
        breaks: 2,
        key: key(&fixture, "a"),
        runs: Arc::default(),
    };
    let controller = Controller::<ObjectKey>::named("fragile")
        .source(source)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    let is = stage.stands("fragile", |is| is.starts_with("degraded")).await;
    assert_eq!(is, "degraded: fragile: it panicked: out of order");
    assert!(calls.all().is_empty());
    until(|| {
        clock.advance(Duration::from_millis(100));
        calls.count("a") >= 1
    })
    .await;
    stage.stands("fragile", |is| is == "ready").await;
    assert_eq!(stage.count("steersman_controller_panics_total", "fragile"), 2);
    running.stop(GRACE).await.unwrap();
}

/// A key that cannot be shown the first time.
#[derive(Clone, Debug)]
struct Cursed(&'static str, Arc<AtomicUsize>);

impl PartialEq for Cursed {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl Eq for Cursed {}
impl std::hash::Hash for Cursed {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl RequestKey for Cursed {}
impl fmt::Display for Cursed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(self.1.fetch_add(1, Ordering::SeqCst) > 0, "a curse");
        f.write_str(self.0)
    }
}

// R160
#[steersman_testing::test]
async fn a_worker_that_panics_outside_of_a_reconcile_continues(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let (calls, shown) = (Calls::new(), Arc::new(AtomicUsize::new(0)));
    let reconciler = {
        let calls = calls.clone();
        steersman_runtime::reconcile_fn(move |key: Cursed, cx: Context| {
            // The message of the panic panics as well.
            assert!(key.1.load(Ordering::SeqCst) > 0, "a panic within");
            calls.add(&key, &cx);
            std::future::ready(Ok::<_, std::convert::Infallible>(Action::await_change()))
        })
    };
    let controller = Controller::<Cursed>::named("cursed").build(&stage.cluster, reconciler);
    controller.enqueue(Cursed("a", Arc::clone(&shown)));
    controller.enqueue(Cursed("b", Arc::new(AtomicUsize::new(1))));
    let running = stage.run(&controller);
    until(|| {
        clock.advance(Duration::from_millis(1));
        calls.count("a") == 1 && calls.count("b") >= 1
    })
    .await;
    assert_eq!(
        stage.count("controller_runtime_reconcile_panics_total", "cursed"),
        1
    );
    assert_eq!(stage.count("steersman_controller_panics_total", "cursed"), 1);
    assert_eq!(
        stage.count("controller_runtime_max_concurrent_reconciles", "cursed"),
        1
    );
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn runs_without_a_manager(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("alone").build(&stage.cluster, calls.only());
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let (handle, cx) = RunContext::standalone("alone", [stage.cluster.clone()]).unwrap();
    let running = controller.spawn(&cx);
    until(|| calls.count("a") >= 1).await;
    assert!(cx.cluster(stage.cluster.name()).is_some() && cx.cluster(&"other".into()).is_none());
    drop(handle);
    running.ended().await.unwrap();
    let twice = RunContext::standalone("alone", [stage.cluster.clone(), stage.cluster.clone()]);
    assert!(twice.is_err());
}
