// SPDX-License-Identifier: Apache-2.0
//! Several handlers of one kind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Patch;
use prometheus_client::registry::Registry;
use serde_json::json;
use steersman_cluster::ClusterName;
use steersman_core::{Action, TestClock};
use steersman_queue::Backoff;
use steersman_runtime::{
    BoxError, Context, Controller, DuplicateHandler, Handlers, Handling, LOW_PRIORITY, Options, Request,
    retry_after, terminal,
};
use steersman_testing::Fixture;
use support::{Calls, GRACE, Stage, config_map, delete, key, let_go_on, until};

type Map = Option<Arc<ConfigMap>>;

/// Adds a handler that is remembered under its name and that of the object, and then does `work`, which is told how often
/// it was called.
fn add<F, Fut>(handlers: &Handlers<ConfigMap>, calls: &Calls, name: &'static str, work: F) -> Handling
where
    F: Fn(Map, Context, usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Action, BoxError>> + Send + 'static,
{
    let calls = calls.clone();
    let handler = move |request: Request, map: Map, cx: Context| {
        assert_eq!(cx.handler(), Some(name));
        let time = calls.add(&format!("{name}:{}", request.name()), &cx);
        work(map, cx, time)
    };
    handlers.add(name, handler).unwrap()
}

fn content(_: Map, _: Context, _: usize) -> std::future::Ready<Result<Action, BoxError>> {
    std::future::ready(Ok(Action::await_change()))
}

fn runs(stage: &Stage, handler: &str, result: &str) -> u64 {
    let series = format!(
        "steersman_handler_runs_total{{controller=\"maps\",handler=\"{handler}\",result=\"{result}\"}}"
    );
    stage.metric(&series) as u64
}

fn build(stage: &Stage, handlers: &Handlers<ConfigMap>) -> Controller {
    handlers.build(&stage.cluster, Controller::of::<ConfigMap>("maps").workers(4))
}

/// Without jitter.
fn handlers() -> Handlers<ConfigMap> {
    Handlers::with_limiter(Backoff::new().jitter(0.0).base(Duration::from_secs(1)))
}

// R118, R145
#[steersman_testing::test]
async fn guarantee_1_each_is_called_in_order_for_what_comes_changes_and_goes(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let (handlers, calls) = (handlers(), Calls::new());
    let writing = |map: Map, cx: Context, _| async move {
        if let Some(map) = map
            && map.data.as_ref().is_some_and(|data| !data.contains_key("seen"))
        {
            let namespace = map.metadata.namespace.as_deref().unwrap();
            let key = steersman_core::ObjectKey::new(namespace, map.metadata.name.as_deref().unwrap());
            let seen = json!({"data": {"seen": "yes"}});
            cx.client().patch::<ConfigMap>(&key, &Patch::Merge(seen)).await?;
        }
        Ok(Action::await_change())
    };
    let reading = |map: Map, _, _| async move {
        let is_seen = map.is_none_or(|map| map.data.as_ref().unwrap().contains_key("seen"));
        assert!(is_seen, "it reads what the one before has written");
        Ok(Action::await_change())
    };
    let _handling = [
        add(&handlers, &calls, "writing", writing),
        add(&handlers, &calls, "reading", reading),
    ];
    let running = stage.run(&build(&stage, &handlers));
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    calls.reach("reading:a", 1).await;
    client.update(&config_map(&fixture, "a", "2")).await.unwrap();
    // The write of a handler is a change, too.
    calls.reach("reading:a", 3).await;
    until(|| runs(&stage, "reading", "success") >= 3).await;
    let before = calls.count("reading:a");
    delete::<ConfigMap>(&client, &key(&fixture, "a")).await;
    calls.reach("reading:a", before + 1).await;
    running.stop(GRACE).await.unwrap();
    let order: Vec<_> = calls.keys();
    assert!(
        order.chunks(2).all(|pair| pair == ["writing:a", "reading:a"]),
        "{order:?}"
    );
    let all = proxy.exchanges();
    assert_eq!(
        all.iter().filter(|one| one.is_watch()).count(),
        1,
        "they share one informer"
    );
}

// R155
#[steersman_testing::test]
async fn guarantee_2_no_two_run_on_one_object_at_once(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (handlers, calls) = (handlers(), Calls::new());
    let busy: Arc<std::sync::Mutex<BTreeMap<String, usize>>> = Arc::default();
    let most = Arc::new(AtomicUsize::new(0));
    let handling: Vec<_> = ["one", "two", "three"]
        .into_iter()
        .map(|name| {
            let (busy, most) = (Arc::clone(&busy), Arc::clone(&most));
            add(&handlers, &calls, name, move |map: Map, _, _| {
                let (busy, most) = (Arc::clone(&busy), Arc::clone(&most));
                async move {
                    let name = map.and_then(|map| map.metadata.name.clone()).unwrap_or_default();
                    let now = {
                        let mut busy = busy.lock().unwrap();
                        let busy = busy.entry(name.clone()).or_default();
                        *busy += 1;
                        *busy
                    };
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    *busy.lock().unwrap().get_mut(&name).unwrap() -= 1;
                    Ok(Action::await_change())
                }
            })
        })
        .collect();
    let controller = build(&stage, &handlers);
    let running = stage.run(&controller);
    let client = stage.live();
    for name in ["a", "b"] {
        client.create(&config_map(&fixture, name, "0")).await.unwrap();
    }
    for value in 1..20 {
        for name in ["a", "b"] {
            client
                .update(&config_map(&fixture, name, &value.to_string()))
                .await
                .unwrap();
        }
    }
    calls.reach("three:b", 1).await;
    until(|| controller.depth() == Default::default()).await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
    running.stop(GRACE).await.unwrap();
    drop(handling);
}

/// Goes on until somebody waits for a moment, that far from now, and lets it come.
async fn pass(clock: &TestClock, controller: &Controller, time: Duration) {
    until(|| controller.depth().in_flight() == 0 && controller.depth().ready() == 0).await;
    let_go_on().await;
    clock.advance(time);
}

// R133, R145, R160
#[steersman_testing::test]
async fn guarantee_3_one_that_fails_is_called_again_alone_at_its_own_time(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let (handlers, calls) = (handlers(), Calls::new());
    let second = Duration::from_secs(1);
    let failing = |_, _, time| async move {
        match time {
            1..=3 => Err("not yet".into()),
            _ => Ok(Action::await_change()),
        }
    };
    let slow = |_, _, time| async move {
        match time {
            1 => Ok(Action::requeue_after(Duration::from_secs(5))),
            2 => Err(retry_after("busy", Duration::from_secs(20)).into()),
            _ => Ok(Action::await_change()),
        }
    };
    let giving_up = |_, _, _| async { Err(terminal("it never will").into()) };
    let _handling = [
        add(&handlers, &calls, "good", content),
        add(&handlers, &calls, "failing", failing),
        add(&handlers, &calls, "slow", slow),
        add(&handlers, &calls, "giving-up", giving_up),
    ];
    let controller = build(&stage, &handlers);
    let running = stage.run(&controller);
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    calls.reach("giving-up:a", 1).await;
    // One, two and four seconds after its failures, at 1, 3 and 7 s.
    pass(&clock, &controller, second).await;
    calls.reach("failing:a", 2).await;
    pass(&clock, &controller, second).await;
    let_go_on().await;
    assert_eq!(calls.count("failing:a"), 2);
    pass(&clock, &controller, second).await;
    calls.reach("failing:a", 3).await;
    assert_eq!(calls.count("slow:a"), 1);
    pass(&clock, &controller, second * 2).await;
    calls.reach("slow:a", 2).await;
    assert_eq!(calls.count("failing:a"), 3);
    pass(&clock, &controller, second * 2).await;
    calls.reach("failing:a", 4).await;
    pass(&clock, &controller, second * 17).await;
    let_go_on().await;
    assert_eq!(calls.count("slow:a"), 2);
    pass(&clock, &controller, second).await;
    calls.reach("slow:a", 3).await;
    until(|| controller.depth() == Default::default()).await;

    let attempts = |name: &str| -> Vec<u32> {
        let all = calls.all();
        let of_name = all.iter().filter(|call| call.key == format!("{name}:a"));
        of_name.map(|call| call.attempt).collect()
    };
    assert_eq!(attempts("good"), [0]);
    assert_eq!(attempts("giving-up"), [0]);
    assert_eq!(attempts("failing"), [0, 1, 2, 3]);
    assert_eq!(attempts("slow"), [0, 0, 1]);
    assert_eq!(runs(&stage, "good", "success"), 1);
    assert_eq!(runs(&stage, "failing", "error"), 3);
    assert_eq!(runs(&stage, "failing", "success"), 1);
    assert_eq!(runs(&stage, "slow", "requeue_after"), 1);
    assert_eq!(runs(&stage, "giving-up", "error"), 1);
    running.stop(GRACE).await.unwrap();
}

// R133, D10
#[steersman_testing::test]
async fn a_handler_that_asks_for_zero_delay_is_called_again_at_once(fixture: Fixture) {
    let (_clock, stage) = Stage::timed(&fixture).await;
    let (handlers, calls) = (handlers(), Calls::new());
    let eager = |_, _, time| async move {
        Ok(match time {
            1 => Action::requeue_after(Duration::ZERO),
            _ => Action::await_change(),
        })
    };
    let _handling = [
        add(&handlers, &calls, "good", content),
        add(&handlers, &calls, "eager", eager),
    ];
    let controller = build(&stage, &handlers);
    let running = stage.run(&controller);
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    calls.reach("eager:a", 2).await;
    until(|| controller.depth() == Default::default()).await;
    assert_eq!(calls.count("good:a"), 1);
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_3_a_change_calls_all_and_failures_count_on(fixture: Fixture) {
    let (_clock, stage) = Stage::timed(&fixture).await;
    let (handlers, calls) = (handlers(), Calls::new());
    let failing = |_, _, _| async { Err("never".into()) };
    let _handling = [
        add(&handlers, &calls, "good", content),
        add(&handlers, &calls, "failing", failing),
    ];
    let controller = build(&stage, &handlers);
    let running = stage.run(&controller);
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    calls.reach("failing:a", 1).await;
    for time in 2..=4 {
        until(|| controller.depth().delayed() == 1).await;
        client
            .update(&config_map(&fixture, "a", &time.to_string()))
            .await
            .unwrap();
        calls.reach("failing:a", time).await;
    }
    let all = calls.all();
    let failing = all.iter().filter(|call| call.key == "failing:a");
    assert_eq!(failing.map(|call| call.attempt).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(calls.count("good:a"), 4);
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_4_one_that_comes_late_is_called_for_every_object_and_one_that_goes_for_none(
    fixture: Fixture,
) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    for name in ["a", "b", "c"] {
        client.create(&config_map(&fixture, name, "1")).await.unwrap();
    }
    let (handlers, calls) = (handlers(), Calls::new());
    let early = add(&handlers, &calls, "early", content);
    let running = stage.run(&build(&stage, &handlers));
    for name in ["a", "b", "c"] {
        calls.reach(&format!("early:{name}"), 1).await;
    }
    let late = add(&handlers, &calls, "late", content);
    for name in ["a", "b", "c"] {
        calls.reach(&format!("late:{name}"), 1).await;
    }
    let all = calls.all();
    let late_calls = all.iter().filter(|call| call.key.starts_with("late:"));
    assert!(late_calls.clone().all(|call| call.priority == LOW_PRIORITY));
    let taken = handlers.add("late", |_: Request, _: Map, _: Context| async {
        Ok::<_, BoxError>(Action::await_change())
    });
    let DuplicateHandler { name, .. } = taken.unwrap_err();
    assert_eq!(name, "late");
    drop(early);
    let before = calls.count("early:a");
    client.update(&config_map(&fixture, "a", "2")).await.unwrap();
    calls.reach("late:a", 2).await;
    assert_eq!(calls.count("early:a"), before);
    // Its name is free.
    let _again = add(&handlers, &calls, "early", content);
    calls.reach("early:a", before + 1).await;
    running.stop(GRACE).await.unwrap();
    late.forever();
}

// R160
#[steersman_testing::test]
async fn guarantee_5_a_panic_of_one_keeps_no_other_from_running(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (handlers, calls) = (Handlers::new(), Calls::new());
    let panicking = |_, _, time| async move {
        assert!(time > 1, "out of order");
        Ok(Action::await_change())
    };
    let _handling = [
        add(&handlers, &calls, "panicking", panicking),
        add(&handlers, &calls, "good", content),
    ];
    let controller = build(&stage, &handlers);
    let running = stage.run(&controller);
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    calls.reach("panicking:a", 2).await;
    until(|| controller.depth() == Default::default()).await;
    assert_eq!(calls.count("good:a"), 1);
    assert_eq!(runs(&stage, "panicking", "error"), 1);
    assert_eq!(
        stage.count("controller_runtime_reconcile_panics_total", "maps"),
        1
    );
    assert_eq!(stage.reconciled("maps", "error"), 1);
    running.stop(GRACE).await.unwrap();

    // Where that is not to be recovered from, the run ends.
    let strict = Controller::of::<ConfigMap>("strict").options(Options::new().recover_panics(false));
    let calls = Calls::new();
    let handlers = Handlers::new();
    let _handling = add(&handlers, &calls, "panicking", |_, _, _| async {
        panic!("out of order")
    });
    let strict = handlers.build(&stage.cluster, strict);
    let error = stage.run(&strict).ended().await.unwrap_err();
    assert!(error.to_string().contains("out of order"), "{error}");
}

// R145
#[steersman_testing::test]
async fn guarantee_5_one_that_takes_too_long_keeps_no_other_from_running(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let (handlers, calls) = (handlers(), Calls::new());
    let hanging = |_, _, _| std::future::pending();
    let failing = |_, _, _| async { Err("never".into()) };
    let _handling = [
        add(&handlers, &calls, "failing", failing),
        add(&handlers, &calls, "hanging", hanging),
        add(&handlers, &calls, "last", content),
    ];
    let builder = Controller::of::<ConfigMap>("maps").reconcile_timeout(Duration::from_secs(10));
    let controller = handlers.build(&stage.cluster, builder);
    let running = stage.run(&controller);
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    // Time must not pass for the server that tells of it.
    calls.reach("hanging:a", 1).await;
    until(|| {
        clock.advance(Duration::from_millis(100));
        calls.count("hanging:a") >= 3
    })
    .await;
    let attempts = |name: &str| -> Vec<u32> {
        let all = calls.all();
        let of_name = all.iter().filter(|call| call.key == format!("{name}:a"));
        of_name.map(|call| call.attempt).collect()
    };
    assert_eq!(
        calls.count("last:a"),
        1,
        "the others go on, and are none the worse for it"
    );
    assert_eq!(attempts("hanging"), [0, 1, 2]);
    let failing = attempts("failing");
    assert_eq!(failing, (0..failing.len() as u32).collect::<Vec<_>>());
    assert_eq!(runs(&stage, "hanging", "error"), 2);
    assert_eq!(
        stage.count("controller_runtime_reconcile_timeouts_total", "maps"),
        2
    );
    running.stop(Duration::ZERO).await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_7_after_a_reconcile_that_was_cancelled_all_are_called_and_failures_count_on(
    fixture: Fixture,
) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let (handlers, calls) = (handlers(), Calls::new());
    let failing = |_, _, _| async { Err("never".into()) };
    let hanging = |_, _, time| async move {
        if time == 2 {
            std::future::pending::<()>().await;
        }
        Ok(Action::await_change())
    };
    let _handling = [
        add(&handlers, &calls, "failing", failing),
        add(&handlers, &calls, "hanging", hanging),
        add(&handlers, &calls, "last", content),
    ];
    let controller = build(&stage, &handlers);
    let running = stage.run(&controller);
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    for time in 1..=2 {
        calls.reach("last:a", 1).await;
        until(|| controller.depth().delayed() == 1).await;
        clock.advance(Duration::from_secs(time));
        calls.reach("failing:a", time as usize + 1).await;
    }
    until(|| controller.depth().delayed() == 1).await;
    client.update(&config_map(&fixture, "a", "2")).await.unwrap();
    calls.reach("hanging:a", 2).await;
    let controller = running.stop(Duration::ZERO).await.unwrap();
    let running = stage.run(&controller);
    calls.reach("last:a", 2).await;
    running.stop(GRACE).await.unwrap();
    let all = calls.all();
    let failing = all.iter().filter(|call| call.key == "failing:a");
    let attempts: Vec<_> = failing.map(|call| call.attempt).collect();
    assert_eq!(attempts, [0, 1, 2, 3, 3], "the fourth one came to no end");
}

#[steersman_testing::test]
async fn guarantee_6_what_is_purged_begins_anew(fixture: Fixture) {
    let (_clock, stage) = Stage::timed(&fixture).await;
    let (handlers, calls) = (handlers(), Calls::new());
    let go_on = Arc::new(tokio::sync::Semaphore::new(1));
    let failing = {
        let go_on = Arc::clone(&go_on);
        move |_, _, _| {
            let go_on = Arc::clone(&go_on);
            async move {
                go_on.acquire().await?.forget();
                Err("never".into())
            }
        }
    };
    let _handling = add(&handlers, &calls, "failing", failing);
    let controller = build(&stage, &handlers);
    let running = stage.run(&controller);
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    until(|| controller.depth().delayed() == 1).await;
    assert_eq!(controller.purge(), 1);
    client.update(&config_map(&fixture, "a", "2")).await.unwrap();
    calls.reach("failing:a", 2).await;
    // It is forgotten while it is worked on, so what comes of that does not count.
    controller.purge();
    go_on.add_permits(2);
    until(|| controller.depth() == Default::default()).await;
    client.update(&config_map(&fixture, "a", "3")).await.unwrap();
    calls.reach("failing:a", 3).await;
    let attempts: Vec<_> = calls.all().iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [0, 0, 0]);
    running.stop(GRACE).await.unwrap();
}

/// Whether there are series of a handler.
fn has_series(stage: &Stage, handler: &str) -> bool {
    let mut registry = Registry::default();
    stage.runtime.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text.contains(&format!("handler=\"{handler}\""))
}

#[steersman_testing::test]
async fn guarantee_6_the_series_of_a_handler_go_with_the_last_controller_of_their_name(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let (handlers, calls) = (handlers(), Calls::new());
    let _handling = add(&handlers, &calls, "greet", content);
    let (first, second) = (build(&stage, &handlers), build(&stage, &handlers));
    for (time, controller) in [(1, &first), (2, &second)] {
        let running = stage.run(controller);
        calls.reach("greet:a", time).await;
        running.stop(GRACE).await.unwrap();
    }
    drop(first);
    assert_eq!(runs(&stage, "greet", "success"), 2, "another has their name");
    drop(second);
    until(|| !has_series(&stage, "greet")).await;
}

#[steersman_testing::test]
async fn guarantee_6_a_cluster_that_is_added_again_starts_from_scratch(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let cluster_set = stage.runtime.clusters().clone();
    let (handlers, calls) = (Handlers::new(), Calls::new());
    let failing = |_, cx: Context, time| async move {
        match (cx.cluster().name().as_str(), time) {
            ("b", 1..=3) => Err("not yet".into()),
            ("b", 4) => Err(retry_after("busy", Duration::from_secs(3600)).into()),
            _ => Ok(Action::await_change()),
        }
    };
    let _handling = add(&handlers, &calls, "failing", failing);
    let home = cluster_set.begin_removal(&ClusterName::default()).unwrap();
    let builder = Controller::of::<ConfigMap>("maps").on_every_cluster();
    let controller = handlers.build(&stage.cluster, builder);
    let running = stage.run(&controller);
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    for time in [4, 5] {
        let b = support::cluster_builder(&fixture, "b").build().await.unwrap();
        cluster_set.insert(b).unwrap();
        calls.reach("failing:a", time).await;
        let removal = cluster_set.begin_removal(&"b".into()).unwrap();
        removal.vacated().await;
        until(|| controller.depth() == Default::default()).await;
        removal.cluster().close("the test says so");
    }
    let attempts: Vec<_> = calls.all().iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [0, 1, 2, 3, 0]);
    running.stop(GRACE).await.unwrap();
    drop(home);
}
