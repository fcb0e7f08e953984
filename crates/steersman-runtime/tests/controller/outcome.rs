// SPDX-License-Identifier: Apache-2.0
//! Effects of the result of a reconcile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cluster::ClusterName;
use steersman_core::{Action, Clock, MonotonicTime, ObjectKey, TestClock};
use steersman_queue::{Add, Backoff, RateLimiter, Stage as Place};
use steersman_runtime::{BoxError, Controller, ControllerError, Options, terminal};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};
use support::{Calls, GRACE, Stage, config_map, key, let_go_on, until};
use tokio::sync::{Notify, Semaphore};

/// How a reconcile can end.
fn end(how: &str) -> Result<Action, BoxError> {
    match how {
        "done" => Ok(Action::await_change()),
        "after" => Ok(Action::requeue_after(Duration::from_secs(30))),
        "requeue" => Ok(Action::requeue()),
        "fail" => Err("it did not work".into()),
        "terminal" => Err(terminal("it never will").into()),
        "panic" => panic!("out of order"),
        other => unreachable!("{other}"),
    }
}

/// A controller whose keys say how they end.
async fn ending(fixture: &Fixture) -> (TestClock, Stage, Controller<ObjectKey>, Calls) {
    let (clock, stage) = Stage::timed(fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|key: ObjectKey, _, _| async move { end(key.name()) });
    let controller = Controller::<ObjectKey>::named("ends")
        .rate_limiter(Backoff::new().jitter(0.0))
        .build(&stage.cluster, reconciler);
    (clock, stage, controller, calls)
}

// R133, R160
#[steersman_testing::test]
async fn the_table_holds(fixture: Fixture) {
    const BACK_OFF: Duration = Duration::from_millis(5);
    let table = [
        // Its result, the counted label, the delay of the retry, and the number of failures.
        ("done", "success", None, 0),
        ("after", "requeue_after", Some(Duration::from_secs(30)), 0),
        ("requeue", "requeue", Some(BACK_OFF), 1),
        ("fail", "error", Some(BACK_OFF), 1),
        ("panic", "error", Some(BACK_OFF), 1),
        ("terminal", "error", None, 0),
    ];
    for (how, result, again, failures) in table {
        let (clock, stage, controller, calls) = ending(&fixture).await;
        let running = stage.run(&controller);
        let key = ObjectKey::new("", how);
        controller.enqueue(key.clone());
        calls.reach(how, 1).await;
        until(|| controller.depth().in_flight() == 0).await;
        for counted in ["success", "error", "requeue", "requeue_after"] {
            let expected = u64::from(counted == result);
            assert_eq!(stage.reconciled("ends", counted), expected, "{how}: {counted}");
        }
        let count = |series: &str| stage.count(&format!("controller_runtime_{series}_total"), "ends");
        assert_eq!(
            count("reconcile_errors"),
            u64::from(["fail", "panic", "terminal"].contains(&how))
        );
        assert_eq!(count("terminal_reconcile_errors"), u64::from(how == "terminal"));
        assert_eq!(count("reconcile_panics"), u64::from(how == "panic"));
        assert_eq!(count("reconcile_timeouts"), 0);
        let status = controller.status(&key);
        let until = status.as_ref().and_then(|status| match status.stage() {
            Place::Delayed { until } => Some(until.saturating_since(clock.now())),
            _ => None,
        });
        assert_eq!(until, again, "{how}");
        assert_eq!(
            status.as_ref().map_or(0, |status| status.failures()),
            failures,
            "{how}"
        );
        running.stop(GRACE).await.unwrap();
    }
}

// D23
#[steersman_testing::test]
async fn reconciles_that_hang_are_counted_until_they_end(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let (calls, gate) = (Calls::new(), Arc::new(Semaphore::new(0)));
    let reconciler = {
        let gate = Arc::clone(&gate);
        calls.then(move |key: ObjectKey, _, _| {
            let gate = Arc::clone(&gate);
            async move {
                if key.name().starts_with("hangs") {
                    gate.acquire().await?.forget();
                }
                Ok(Action::await_change())
            }
        })
    };
    let controller = Controller::<ObjectKey>::named("keys")
        .workers(3)
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    let hanging = || stage.count("steersman_reconciles_long_running", "keys");
    controller.enqueue(ObjectKey::new("", "hangs-first"));
    calls.reach("hangs-first", 1).await;
    clock.advance(Duration::from_secs(30));
    controller.enqueue(ObjectKey::new("", "hangs-later"));
    calls.reach("hangs-later", 1).await;
    let_go_on().await;
    assert_eq!(hanging(), 0);
    // A minute after each has begun.
    clock.advance(Duration::from_secs(30));
    until(|| hanging() == 1).await;
    clock.advance(Duration::from_secs(30));
    until(|| hanging() == 2).await;
    // The others go on, and nothing is cancelled.
    controller.enqueue(ObjectKey::new("", "quick"));
    calls.reach("quick", 1).await;
    until(|| controller.depth().in_flight() == 2).await;
    gate.add_permits(2);
    until(|| hanging() == 0).await;
    until(|| stage.reconciled("keys", "success") == 3).await;
    running.stop(GRACE).await.unwrap();
}

// R133, D10
#[steersman_testing::test]
async fn requeue_after_zero_reconciles_again_at_once(fixture: Fixture) {
    // The clock stands still, so a delay of any length would never end.
    let (_clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|_: ObjectKey, _, time| async move {
        Ok(match time {
            1 | 2 => Action::requeue_after(Duration::ZERO),
            _ => Action::await_change(),
        })
    });
    let controller = Controller::<ObjectKey>::named("ends").build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    controller.enqueue(ObjectKey::new("", "a"));
    calls.reach("a", 3).await;
    until(|| controller.depth() == Default::default()).await;
    assert_eq!(stage.reconciled("ends", "requeue_after"), 2);
    assert_eq!(stage.reconciled("ends", "success"), 1);
    running.stop(GRACE).await.unwrap();
}

// R133, R146
#[steersman_testing::test]
async fn failures_are_counted_until_a_success_and_others_do_not_wait(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|key: ObjectKey, _, time| async move {
        // Fails five times, then succeeds, then fails again.
        if key.name() == "bad" && time != 6 {
            return Err("no".into());
        }
        Ok(Action::await_change())
    });
    let controller = Controller::<ObjectKey>::named("keys")
        .rate_limiter(Backoff::new().jitter(0.0))
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    let bad = ObjectKey::new("", "bad");
    controller.enqueue(bad.clone());
    for (failures, delay_ms) in [(1, 5), (2, 10), (3, 20), (4, 40), (5, 80)] {
        calls.reach("bad", failures).await;
        until(|| controller.depth().delayed() == 1).await;
        // Another one is not held up.
        let good = format!("good-{failures}");
        controller.enqueue(ObjectKey::new("", &good));
        calls.reach(&good, 1).await;
        let status = controller.status(&bad).unwrap();
        assert_eq!(status.failures() as usize, failures);
        let delay = Duration::from_millis(delay_ms);
        assert_eq!(
            status.stage(),
            Place::Delayed {
                until: clock.now() + delay
            }
        );
        clock.advance(delay);
    }
    calls.reach("bad", 6).await;
    until(|| controller.status(&bad).is_none()).await;
    controller.enqueue(bad.clone());
    calls.reach("bad", 7).await;
    until(|| controller.depth().delayed() == 1).await;
    assert_eq!(
        controller.status(&bad).unwrap().failures(),
        1,
        "the first gap again"
    );
    let attempts = calls.all();
    let attempts = attempts.iter().filter(|call| call.key == "bad");
    let attempts: Vec<_> = attempts.map(|call| call.attempt).collect();
    assert_eq!(attempts, [0, 1, 2, 3, 4, 5, 0]);
    running.stop(GRACE).await.unwrap();
}

/// Always the same gap.
struct Steady;

impl<K> RateLimiter<K> for Steady {
    fn delay(&self, _: &K, _: u32, _: MonotonicTime) -> Duration {
        Duration::from_secs(7)
    }
}

// R146
#[steersman_testing::test]
async fn a_limiter_of_ones_own_makes_the_gaps(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|_: ObjectKey, _, _| async { Err("no".into()) });
    let controller = Controller::<ObjectKey>::named("keys")
        .rate_limiter(Steady)
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    controller.enqueue(ObjectKey::new("", "a"));
    for time in 1..5 {
        calls.reach("a", time).await;
        until(|| controller.depth().delayed() == 1).await;
        clock.advance(Duration::from_nanos(6_999_999_999));
        let_go_on().await;
        assert_eq!(calls.count("a"), time);
        clock.advance(Duration::from_nanos(1));
    }
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_priority_is_kept_across_retries_unless_the_action_sets_another(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|_: ObjectKey, _, time| async move {
        match time {
            1 => Err("no".into()),
            2 => Ok(Action::requeue()),
            3 => Ok(Action::requeue_after(Duration::from_secs(1))),
            4 => Ok(Action::requeue().priority(7)),
            5 => Err("no".into()),
            _ => Ok(Action::await_change()),
        }
    });
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    controller.enqueue_with(ObjectKey::new("", "a"), Add::new().priority(-100));
    until(|| {
        clock.advance(Duration::from_millis(10));
        calls.count("a") >= 6
    })
    .await;
    let priorities: Vec<_> = calls.all().iter().map(|call| call.priority).collect();
    assert_eq!(priorities, [-100, -100, -100, -100, 7, 7]);
    running.stop(GRACE).await.unwrap();
}

// R160
#[steersman_testing::test]
async fn a_panic_ends_the_run_where_it_is_not_to_be_recovered_from(fixture: Fixture) {
    // Time stands still: what failed is not due again before the run has ended.
    let (_clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|key: ObjectKey, _, _| async move { end(key.name()) });
    let controller = Controller::<ObjectKey>::named("ends")
        .options(Options::new().recover_panics(false))
        .build(&stage.cluster, reconciler);
    controller.enqueue(ObjectKey::new("", "panic"));
    let error = stage.run(&controller).ended().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "controller `ends` panicked on panic: out of order"
    );
    assert!(matches!(
        error.downcast_ref(),
        Some(ControllerError::Panicked { .. })
    ));
    assert_eq!(
        stage.count("controller_runtime_reconcile_panics_total", "ends"),
        1
    );
    assert_eq!(controller.depth().delayed(), 1, "the key is kept");
}

// R134
#[steersman_testing::test]
async fn a_reconcile_that_takes_too_long_is_cancelled_and_tried_again(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let (calls, dropped) = (Calls::new(), Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&dropped);
    let reconciler = calls.then(move |_: ObjectKey, _, time| {
        let counting = Arc::clone(&counting);
        async move {
            let _counted = Counted(counting);
            if time == 1 {
                std::future::pending::<()>().await;
            }
            Ok(Action::await_change())
        }
    });
    let controller = Controller::<ObjectKey>::named("slow")
        .reconcile_timeout(Duration::from_secs(10))
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    controller.enqueue(ObjectKey::new("", "a"));
    calls.reach("a", 1).await;
    clock.advance(Duration::from_secs(9));
    let_go_on().await;
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    until(|| {
        clock.advance(Duration::from_millis(100));
        calls.count("a") >= 2
    })
    .await;
    assert_eq!(calls.all()[1].attempt, 1);
    until(|| stage.reconciled("slow", "success") == 1).await;
    assert_eq!(stage.reconciled("slow", "error"), 1);
    assert_eq!(
        stage.count("controller_runtime_reconcile_timeouts_total", "slow"),
        1
    );
    running.stop(GRACE).await.unwrap();
}

// R134
#[steersman_testing::test]
async fn only_the_limit_of_a_reconcile_counts_as_its_timeout(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let reconciler = calls.then(|key: ObjectKey, _, time| async move {
        match (key.name(), time) {
            // A limit of its own.
            ("impatient", 1) => tokio::time::timeout(Duration::ZERO, std::future::pending()).await?,
            ("stuck", _) => std::future::pending().await,
            _ => Ok(Action::await_change()),
        }
    });
    let controller = Controller::<ObjectKey>::named("slow")
        // Far more than passes by the test's clock while "impatient" waits for the real one.
        .reconcile_timeout(Duration::from_secs(86_400))
        .build(&stage.cluster, reconciler);
    let timeouts = || stage.count("controller_runtime_reconcile_timeouts_total", "slow");
    let running = stage.run(&controller);
    controller.enqueue(ObjectKey::new("", "impatient"));
    until(|| {
        clock.advance(Duration::from_millis(1));
        calls.count("impatient") == 2
    })
    .await;
    until(|| stage.reconciled("slow", "success") == 1).await;
    assert_eq!((stage.reconciled("slow", "error"), timeouts()), (1, 0));

    controller.enqueue(ObjectKey::new("", "stuck"));
    calls.reach("stuck", 1).await;
    let mut stopped = Box::pin(running.stop(GRACE));
    assert!(stopped.as_mut().now_or_never().is_none());
    clock.advance(GRACE);
    stopped.await.unwrap();
    // It was cancelled, and is about to be dropped.
    until(|| controller.depth().in_flight() == 0).await;
    assert_eq!(timeouts(), 0);
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

// R134, R155
#[steersman_testing::test]
async fn workers_reconcile_several_keys_at_once_and_a_waiting_one_delays_no_other(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (calls, gate) = (Calls::new(), Arc::new(Semaphore::new(0)));
    let reconciler = {
        let gate = Arc::clone(&gate);
        calls.then(move |key: ObjectKey, _, _| {
            let gate = Arc::clone(&gate);
            async move {
                if key.name().starts_with("slow") {
                    gate.acquire().await?.forget();
                }
                Ok(Action::await_change())
            }
        })
    };
    let controller = Controller::<ObjectKey>::named("keys")
        .workers(3)
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    controller.enqueue(ObjectKey::new("", "slow"));
    calls.reach("slow", 1).await;
    for number in 0..100 {
        controller.enqueue(ObjectKey::new("", &number.to_string()));
        // Added again while it is in flight, it waits for its own end only.
        controller.enqueue(ObjectKey::new("", "slow"));
    }
    calls.when(|calls| calls.len() == 101).await;
    assert_eq!(calls.count("slow"), 1);
    gate.add_permits(2);
    calls.reach("slow", 2).await;
    until(|| controller.depth().in_flight() == 0).await;
    assert_eq!(calls.count("slow"), 2);
    // Three at once, and no fourth before one of them has ended.
    for number in 0..5 {
        controller.enqueue(ObjectKey::new("", &format!("slow-{number}")));
    }
    for ended in 0..2 {
        calls.when(|calls| calls.len() == 102 + 3 + ended).await;
        let_go_on().await;
        assert_eq!(calls.all().len(), 102 + 3 + ended);
        let depth = controller.depth();
        assert_eq!((depth.in_flight(), depth.ready()), (3, 2 - ended));
        gate.add_permits(1);
    }
    gate.add_permits(3);
    until(|| controller.depth() == Default::default()).await;
    running.stop(GRACE).await.unwrap();
}

// R98, R148
#[steersman_testing::test]
async fn edits_during_a_reconcile_cause_one_more_that_sees_the_last(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (calls, go_on) = (Calls::new(), Arc::new(Notify::new()));
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let reconciler = {
        let (go_on, seen, key) = (Arc::clone(&go_on), Arc::clone(&seen), key(&fixture, "a"));
        calls.then(move |request: steersman_runtime::Request, cx, time| {
            let (go_on, seen, key) = (Arc::clone(&go_on), Arc::clone(&seen), key.clone());
            async move {
                if *request.key() != key {
                    return Ok(Action::await_change());
                }
                if time == 1 {
                    go_on.notified().await;
                }
                let map = cx.client().get_required::<ConfigMap>(&key).await?;
                seen.lock()
                    .unwrap()
                    .push(map.data.clone().unwrap()["value"].clone());
                Ok(Action::await_change())
            }
        })
    };
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "0")).await.unwrap();
    calls.reach("a", 1).await;
    for value in ["1", "2", "3"] {
        client.update(&config_map(&fixture, "a", value)).await.unwrap();
    }
    // All of them are known here before the reconcile continues.
    let informer = stage
        .cluster
        .cache()
        .informer(&steersman_cache::Resource::of::<ConfigMap>());
    until(|| {
        let map = informer.store().get(fixture.namespace(), "a").unwrap();
        map.decoded::<ConfigMap>().unwrap().data.as_ref().unwrap()["value"] == "3"
    })
    .await;
    // Registration waits until the objects of the store were delivered.
    drop(informer.handle("test", |_: &steersman_cache::Event| {}));
    go_on.notify_one();
    calls.reach("a", 2).await;
    until(|| controller.depth().in_flight() == 0).await;
    assert_eq!(calls.count("a"), 2);
    assert_eq!(*seen.lock().unwrap(), ["3", "3"]);
    running.stop(GRACE).await.unwrap();
}

// R161
#[steersman_testing::test]
async fn a_conflict_is_tried_again_and_converges(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let calls = Calls::new();
    let reconciler = calls.then(|request: steersman_runtime::Request, cx, _| async move {
        let Some(map) = cx.client().get::<ConfigMap>(request.key()).await? else {
            return Ok(Action::await_change());
        };
        if request.name() == "a" && map.data.as_ref().is_none_or(|data| data["value"] != "wanted") {
            let mut map = ConfigMap::clone(&map);
            map.data
                .get_or_insert_default()
                .insert("value".into(), "wanted".into());
            cx.client().update(&map).await?;
        }
        Ok(Action::await_change())
    });
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, reconciler);
    let conflict = proxy.inject(Matching::method("PUT").first(2), Fault::answer(409));
    let running = stage.run(&controller);
    stage
        .live()
        .create(&config_map(&fixture, "a", "0"))
        .await
        .unwrap();
    conflict.hit_times(2).await;
    calls.reach("a", 3).await;
    let a = key(&fixture, "a");
    loop {
        let map = stage.live().get_required::<ConfigMap>(&a).await.unwrap();
        if map.data.as_ref().unwrap()["value"] == "wanted" {
            break;
        }
    }
    let attempts = calls.all();
    let attempts: BTreeSet<_> = attempts.iter().map(|call| call.attempt).collect();
    assert!(attempts.contains(&2), "{attempts:?}");
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_context_describes_its_reconcile(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let calls = Calls::new();
    let numbers = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let reconciler = {
        let numbers = Arc::clone(&numbers);
        calls.then(move |_: ObjectKey, cx, time| {
            assert_eq!(cx.controller(), "keys");
            assert_eq!(*cx.cluster().name(), ClusterName::default());
            assert!(time > 1 || !cx.stop().is_requested());
            assert!(cx.client_of(&"elsewhere".into()).is_none());
            numbers.lock().unwrap().insert(cx.reconcile_id());
            async move {
                match time {
                    1 => Err("no".into()),
                    _ => Ok(Action::await_change()),
                }
            }
        })
    };
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    controller.enqueue(ObjectKey::new("", "a"));
    calls.reach("a", 2).await;
    running.stop(GRACE).await.unwrap();
    assert_eq!(numbers.lock().unwrap().len(), 2);
}
