// SPDX-License-Identifier: Apache-2.0
//! A manager from its start to its end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::managed;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cluster::{ClusterName, DeleteOptions};
use steersman_core::{Action, Clock, TestClock};
use steersman_runtime::{
    AddError, BoxError, Controller, Manager, RunContext, RunError, RunFn, RunPolicy, Runnable,
    RunnableStatus, reconcile_fn, run_fn,
};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};
use tokio::sync::Notify;

use managed::{Log, Steps, cluster, cluster_through, config_map, key, let_go_on, run, until};

// R67, R99, R145
#[steersman_testing::test]
async fn existing_created_updated_and_deleted_objects_are_reconciled(fixture: Fixture) {
    let cluster = cluster(&fixture).await;
    let client = cluster.live();
    client.create(&config_map(&fixture, "before", "1")).await.unwrap();
    let manager = Manager::builder().cluster(cluster).build().await.unwrap();
    let log = Log::new();
    let controller = Controller::of::<ConfigMap>("maps")
        .add_to(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    log.saw("before", Some("1")).await;
    client.create(&config_map(&fixture, "after", "2")).await.unwrap();
    log.saw("after", Some("2")).await;
    let after = key(&fixture, "after");
    client
        .delete::<ConfigMap>(&after, DeleteOptions::default())
        .await
        .unwrap();
    log.saw("after", None).await;
    running.stop().await.unwrap();
    assert_eq!(controller.depth().in_flight(), 0);
}

/// Records its start and its end, and ends on a stop request.
fn task(
    name: &str,
    steps: &Steps,
    needs: RunPolicy,
) -> RunFn<
    impl Fn(RunContext) -> futures::future::BoxFuture<'static, Result<(), BoxError>> + Send + Sync + 'static,
> {
    let (steps, called) = (steps.clone(), name.to_owned());
    run_fn(name, move |cx: RunContext| {
        let (steps, called) = (steps.clone(), called.clone());
        async move {
            steps.add(format!("{called} starts"));
            cx.stop().requested().await;
            steps.add(format!("{called} ends"));
            Ok(())
        }
        .boxed()
    })
    .with_policy(needs)
}

async fn without_cluster() -> Manager {
    Manager::builder().without_cluster().build().await.unwrap()
}

// R43, R45, R48
#[tokio::test]
async fn a_manager_without_a_cluster_runs_independent_runnables_and_rejects_others() {
    let manager = without_cluster().await;
    let steps = Steps::new();
    manager
        .add(task("plain", &steps, RunPolicy::LeaderElected))
        .unwrap();
    let error = Controller::of::<ConfigMap>("maps")
        .add_to(&manager, Log::new())
        .unwrap_err();
    assert_eq!(error, AddError::NoCluster);
    assert_eq!(
        error.to_string(),
        "the manager has no cluster; add one, or name one with `.on(&cluster)`"
    );
    assert!(manager.cluster().is_err() && manager.client().is_err());
    let running = run(&manager);
    steps.saw("plain starts").await;
    manager.elected().await;
    assert!(manager.is_leading());
    running.stop().await.unwrap();
    steps.saw("plain ends").await;
    assert!(!manager.is_leading());
}

// R60
#[steersman_testing::test]
async fn the_first_cluster_is_the_default_cluster(fixture: Fixture) {
    let (a, b) = (
        managed::cluster_builder(&fixture, "a").build().await.unwrap(),
        managed::cluster_builder(&fixture, "b").build().await.unwrap(),
    );
    let manager = Manager::builder().cluster(a).cluster(b).build().await.unwrap();
    assert_eq!(manager.cluster().unwrap().name().as_str(), "a");
    assert!(manager.cluster_named(&"b".into()).is_some());
    assert!(manager.cluster_named(&"c".into()).is_none());
    let controller = Controller::of::<ConfigMap>("maps").add_to(&manager, Log::new());
    assert_eq!(controller.unwrap().cluster().name().as_str(), "a");
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();

    let twice = managed::cluster_builder(&fixture, "b").build().await.unwrap();
    let error = manager.add_cluster(twice).unwrap_err();
    assert!(matches!(error, AddError::DuplicateCluster(_)), "{error}");
    let other = managed::cluster_builder(&fixture, "c").build().await.unwrap();
    let stranger = Controller::of::<ConfigMap>("stranger").on(&other);
    assert_eq!(
        stranger.add_to(&manager, Log::new()).unwrap_err().to_string(),
        "cannot add `stranger`: the manager has no cluster `c`; add it first with `add_cluster`"
    );
}

// R45
#[tokio::test]
async fn guarantee_1_leader_elected_runnables_start_last_and_end_first() {
    let manager = without_cluster().await;
    let steps = Steps::new();
    manager
        .add(task("a-leader", &steps, RunPolicy::LeaderElected))
        .unwrap();
    manager.add(task("b-warm", &steps, RunPolicy::Warm)).unwrap();
    manager
        .add(task("c-always", &steps, RunPolicy::AllReplicas))
        .unwrap();
    manager
        .add(task("b-webhook", &steps, RunPolicy::BeforeCaches))
        .unwrap();
    // It ends late, and the others get their stop request only after that.
    let (go_on, ending) = (Arc::new(Notify::new()), steps.clone());
    let slow = {
        let go_on = Arc::clone(&go_on);
        run_fn("d-slow", move |cx: RunContext| {
            let (go_on, ending) = (Arc::clone(&go_on), ending.clone());
            async move {
                cx.stop().requested().await;
                ending.add("d-slow is told");
                go_on.notified().await;
                ending.add("d-slow ends");
                Ok(())
            }
        })
    };
    manager.add(slow).unwrap();
    let mut running = run(&manager);
    for name in ["a-leader", "b-warm", "c-always"] {
        steps.saw(&format!("{name} starts")).await;
    }
    assert_eq!(steps.all()[0], "b-webhook starts");
    running.tell();
    steps.saw("d-slow is told").await;
    steps.saw("a-leader ends").await;
    steps.saw("b-warm ends").await;
    let_go_on().await;
    assert!(!steps.all().contains(&"c-always ends".to_owned()));
    go_on.notify_one();
    running.ended().await.unwrap();
    let all = steps.all();
    assert_eq!(
        all[all.len() - 2..],
        ["c-always ends", "b-webhook ends"],
        "{all:?}"
    );
}

// R67
#[tokio::test]
async fn guarantee_3_a_failed_runnable_ends_the_run_with_its_name_and_error() {
    let manager = without_cluster().await;
    let steps = Steps::new();
    manager.add(task("good", &steps, RunPolicy::AllReplicas)).unwrap();
    let bad = run_fn("bad", async |_: RunContext| Err("not feeling like that".into()));
    manager.add(bad).unwrap();
    let error = run(&manager).ended().await.unwrap_err();
    assert_eq!(error.to_string(), "`bad` failed");
    assert_eq!(
        std::error::Error::source(&error).unwrap().to_string(),
        "not feeling like that"
    );
    assert_eq!(
        steps.all(),
        ["good starts", "good ends"],
        "the others may end in their way"
    );
}

// R67
#[tokio::test]
async fn guarantee_3_a_panic_is_a_failure() {
    let manager = without_cluster().await;
    let bad = run_fn("bad", async |_: RunContext| panic!("out of order"));
    manager.add(bad).unwrap();
    let RunError::Runnable { name, source } = run(&manager).ended().await.unwrap_err() else {
        panic!("it failed");
    };
    assert_eq!(
        (name.as_str(), source.to_string().as_str()),
        ("bad", "it panicked: out of order")
    );
}

// R65
#[test]
fn guarantee_3_an_endpoint_that_ends_ends_the_run() {
    // A runtime without I/O cannot serve sockets.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.unwrap().block_on(async {
        let manager = Manager::builder()
            .without_cluster()
            .health(([127, 0, 0, 1], 0).into())
            .build()
            .await
            .unwrap();
        let steps = Steps::new();
        manager.add(task("good", &steps, RunPolicy::AllReplicas)).unwrap();
        let error = manager.run_until(std::future::pending()).await.unwrap_err();
        assert!(matches!(error, RunError::Endpoint(_)), "{error:?}");
        let all = steps.all();
        assert!(
            all.is_empty() || all == ["good starts", "good ends"],
            "the others may end in their way: {all:?}"
        );
    });
}

// R67
#[tokio::test]
async fn a_runnable_that_ends_is_done_and_the_others_continue() {
    let manager = without_cluster().await;
    let steps = Steps::new();
    manager.add(run_fn("once", async |_: RunContext| Ok(()))).unwrap();
    manager.add(task("good", &steps, RunPolicy::AllReplicas)).unwrap();
    let running = run(&manager);
    steps.saw("good starts").await;
    manager.statuses().when(|all| !all.contains_key("once")).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_run_that_is_stopped_at_once_starts_nothing() {
    let manager = without_cluster().await;
    let steps = Steps::new();
    manager.add(task("task", &steps, RunPolicy::AllReplicas)).unwrap();
    manager.run_until(std::future::ready(())).await.unwrap();
    assert!(steps.all().is_empty());
}

// R61
#[tokio::test]
async fn guarantee_4_a_runnable_is_taken_in_before_and_while_it_runs_and_not_while_it_stops() {
    let manager = without_cluster().await;
    let steps = Steps::new();
    manager
        .add(task("before", &steps, RunPolicy::LeaderElected))
        .unwrap();
    let (told, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = {
        let (told, go_on) = (Arc::clone(&told), Arc::clone(&go_on));
        run_fn("slow", move |cx: RunContext| {
            let (told, go_on) = (Arc::clone(&told), Arc::clone(&go_on));
            async move {
                cx.stop().requested().await;
                told.notify_one();
                go_on.notified().await;
                Ok(())
            }
        })
    };
    manager.add(slow).unwrap();
    let mut running = run(&manager);
    steps.saw("before starts").await;
    for needs in [RunPolicy::AllReplicas, RunPolicy::Warm, RunPolicy::LeaderElected] {
        let name = format!("{needs:?}");
        manager.add(task(&name, &steps, needs)).unwrap();
        steps.saw(&format!("{name} starts")).await;
    }
    let error = manager
        .add(task("before", &steps, RunPolicy::AllReplicas))
        .unwrap_err();
    assert_eq!(
        error,
        AddError::DuplicateName {
            name: "before".to_owned()
        }
    );
    running.tell();
    told.notified().await;
    let error = manager
        .add(task("late", &steps, RunPolicy::AllReplicas))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot add `late`: the manager is shutting down"
    );
    go_on.notify_one();
    running.ended().await.unwrap();
    // Afterwards it is as before.
    manager.add(task("late", &steps, RunPolicy::AllReplicas)).unwrap();
    go_on.notify_one();
    let running = run(&manager);
    steps.saw("late starts").await;
    running.stop().await.unwrap();
}

// R61
#[tokio::test]
async fn guarantee_4_no_cluster_is_taken_in_while_it_stops() {
    let config = || kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let manager = Manager::builder()
        .cluster(steersman_cluster::Cluster::new(config()).unwrap())
        .build()
        .await
        .unwrap();
    let (told, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = {
        let (told, go_on) = (Arc::clone(&told), Arc::clone(&go_on));
        run_fn("slow", move |cx: RunContext| {
            let (told, go_on) = (Arc::clone(&told), Arc::clone(&go_on));
            async move {
                cx.stop().requested().await;
                told.notify_one();
                go_on.notified().await;
                Ok(())
            }
        })
    };
    manager.add(slow).unwrap();
    let mut running = run(&manager);
    until(|| manager.statuses().of("slow") == Some(RunnableStatus::Ready)).await;
    running.tell();
    told.notified().await;
    let late = steersman_cluster::Cluster::builder("late")
        .field_manager("test")
        .config(config())
        .build();
    let error = manager.add_cluster(late.await.unwrap()).unwrap_err();
    assert!(matches!(error, AddError::Stopping { .. }), "{error}");
    go_on.notify_one();
    running.ended().await.unwrap();
}

/// A manager with a manual clock and a runnable that ends at `until` at the earliest.
async fn reluctant(grace: Duration) -> (TestClock, Manager, Arc<Notify>) {
    let clock = TestClock::new();
    let manager = Manager::builder()
        .without_cluster()
        .clock(Arc::new(clock.clone()))
        .shutdown_timeout(grace)
        .build()
        .await
        .unwrap();
    let told = Arc::new(Notify::new());
    let reluctant = {
        let (told, clock) = (Arc::clone(&told), clock.clone());
        run_fn("reluctant", move |cx: RunContext| {
            let (told, clock) = (Arc::clone(&told), clock.clone());
            async move {
                cx.stop().requested().await;
                told.notify_one();
                clock.sleep_until(clock.now() + Duration::from_secs(100)).await;
                Ok(())
            }
        })
    };
    manager.add(reluctant).unwrap();
    (clock, manager, told)
}

#[tokio::test]
async fn guarantee_5_runnables_that_exceed_the_shutdown_timeout_are_named() {
    let (clock, manager, told) = reluctant(Duration::from_secs(30)).await;
    let steps = Steps::new();
    manager
        .add(task("prompt", &steps, RunPolicy::LeaderElected))
        .unwrap();
    let mut running = run(&manager);
    until(|| manager.statuses().of("reluctant") == Some(RunnableStatus::Ready)).await;
    running.tell();
    told.notified().await;
    clock.advance(Duration::from_secs(30));
    let error = running.ended().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "did not end within the shutdown timeout of 30s: reluctant"
    );
    assert!(std::error::Error::source(&error).is_none());
    // It was cancelled, and the next run is as the first.
    let mut running = run(&manager);
    until(|| manager.statuses().of("reluctant") == Some(RunnableStatus::Ready)).await;
    running.tell();
    told.notified().await;
    clock.advance(Duration::from_secs(30));
    assert!(running.ended().await.is_err());
}

#[tokio::test]
async fn guarantee_5_the_error_names_the_failure_and_late_runnables() {
    let (clock, manager, told) = reluctant(Duration::from_secs(30)).await;
    let bad = run_fn("bad", async |_: RunContext| Err("not feeling like that".into()));
    manager.add(bad).unwrap();
    let running = run(&manager);
    told.notified().await;
    clock.advance(Duration::from_secs(30));
    let RunError::Unfinished {
        names,
        source: Some(source),
        ..
    } = running.ended().await.unwrap_err()
    else {
        panic!("both are told");
    };
    assert_eq!(names, ["reluctant"]);
    assert!(matches!(*source, RunError::Runnable { name, .. } if name == "bad"));
}

#[tokio::test]
async fn a_zero_shutdown_timeout_waits_for_nothing() {
    let (_clock, manager, _told) = reluctant(Duration::ZERO).await;
    let running = run(&manager);
    until(|| manager.statuses().of("reluctant") == Some(RunnableStatus::Ready)).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn with_endless_grace_everybody_is_waited_for() {
    let (clock, manager, told) = reluctant(Duration::MAX).await;
    let mut running = run(&manager);
    until(|| manager.statuses().of("reluctant") == Some(RunnableStatus::Ready)).await;
    running.tell();
    told.notified().await;
    let_go_on().await;
    clock.advance(Duration::from_secs(99));
    let_go_on().await;
    assert!(!running.has_ended());
    clock.advance(Duration::from_secs(1));
    running.ended().await.unwrap();
}

// R20
#[tokio::test]
async fn guarantee_6_a_second_run_at_the_same_time_is_refused() {
    let manager = without_cluster().await;
    let steps = Steps::new();
    manager.add(task("task", &steps, RunPolicy::AllReplicas)).unwrap();
    let running = run(&manager);
    steps.saw("task starts").await;
    let error = manager.run_until(std::future::pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "the manager is already running");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn dropping_a_run_cancels_everything_and_another_can_follow() {
    let manager = without_cluster().await;
    let steps = Steps::new();
    manager.add(task("task", &steps, RunPolicy::AllReplicas)).unwrap();
    for _ in 0..3 {
        let running = run(&manager);
        steps.saw("task starts").await;
        drop(running);
        until(|| manager.statuses().all().is_empty()).await;
        steps.clear();
    }
}

// R49, R71, R157
#[steersman_testing::test]
async fn a_stop_is_heard_while_a_cache_cannot_sync(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    // Its clock stands still: steps are caused by the test, not by a limit.
    let clock: Arc<dyn Clock> = Arc::new(TestClock::new());
    let cluster = managed::cluster_builder(&fixture, "default")
        .config(proxy.endpoint().config(fixture.admin()).unwrap())
        .clock(Arc::clone(&clock));
    let manager = Manager::builder()
        .cluster(cluster.build().await.unwrap())
        .clock(clock)
        .build()
        .await
        .unwrap();
    let log = Log::new();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, log.clone())
        .unwrap();
    let stall = proxy.inject(Matching::any(), Fault::stall());
    let running = run(&manager);
    stall.hit().await;
    running.stop().await.unwrap();
    assert!(log.entries().is_empty());
    // The next run works as if nothing had happened.
    drop(stall);
    let running = run(&manager);
    manager
        .client()
        .unwrap()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    log.saw("a", Some("1")).await;
    running.stop().await.unwrap();
}

// R119
#[steersman_testing::test]
async fn guarantee_9_a_disabled_runnable_does_not_run(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let arguments = ["operator", "--disable-controllers=secrets,nobody"];
    let manager = Manager::builder()
        .cluster(cluster)
        .disable(steersman_runtime::disabled_by_args(arguments))
        .build()
        .await
        .unwrap();
    let (maps, secrets) = (Log::new(), Log::new());
    type Constructor = fn(&Manager, &Log) -> Result<(), AddError>;
    let constructors: [(Constructor, &Log); 2] = [
        (
            |manager, log| {
                let maps = Controller::of::<ConfigMap>("maps");
                maps.add_to(manager, log.clone()).map(drop)
            },
            &maps,
        ),
        (
            |manager, log| {
                let secrets = Controller::of::<k8s_openapi::api::core::v1::Secret>("secrets");
                secrets.add_to(manager, log.clone()).map(drop)
            },
            &secrets,
        ),
    ];
    for (add, log) in constructors {
        add(&manager, log).unwrap();
    }
    let taken = constructors[1].0(&manager, &secrets).unwrap_err();
    assert!(matches!(taken, AddError::DuplicateName { .. }));
    let running = run(&manager);
    manager
        .client()
        .unwrap()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    maps.saw("a", Some("1")).await;
    running.stop().await.unwrap();
    assert!(secrets.entries().is_empty());
    assert!(proxy.exchanges().iter().all(|one| !one.path.contains("/secrets")));
}

// R119, R174
#[steersman_testing::test]
async fn guarantee_8_the_name_of_a_disabled_runnable_is_free_when_its_cluster_is_removed(fixture: Fixture) {
    let manager = Manager::builder()
        .cluster(cluster(&fixture).await)
        .disable(["on-b".to_owned()])
        .build()
        .await
        .unwrap();
    for _ in 0..2 {
        let b = managed::cluster_builder(&fixture, "b").build().await.unwrap();
        manager.add_cluster(b.clone()).unwrap();
        let add = || {
            Controller::of::<ConfigMap>("on-b")
                .on(&b)
                .add_to(&manager, Log::new())
        };
        add().unwrap();
        assert!(matches!(add().unwrap_err(), AddError::DuplicateName { .. }));
        manager.remove_cluster(&"b".into(), Duration::ZERO).await.unwrap();
    }
}

// R174
#[steersman_testing::test]
async fn guarantee_8_removing_a_cluster_stops_the_runnables_that_require_it(fixture: Fixture) {
    let manager = Manager::builder()
        .cluster(cluster(&fixture).await)
        .build()
        .await
        .unwrap();
    let (name, grace) = (ClusterName::from("b"), Duration::from_secs(30));
    let (busy, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let steps = Steps::new();
    let running = run(&manager);
    for time in 1..=3 {
        let b = managed::cluster_builder(&fixture, "b").build().await.unwrap();
        manager.add_cluster(b.clone()).unwrap();
        let reconciler = {
            let (busy, go_on, steps) = (Arc::clone(&busy), Arc::clone(&go_on), steps.clone());
            reconcile_fn(
                move |request: steersman_runtime::Request, cx: steersman_runtime::Context| {
                    let (busy, go_on, steps) = (Arc::clone(&busy), Arc::clone(&go_on), steps.clone());
                    async move {
                        busy.fetch_add(1, Ordering::SeqCst);
                        go_on.notified().await;
                        let written = cx.client().get::<ConfigMap>(request.key()).await;
                        steps.add(format!("read: {}", written.is_ok()));
                        Ok::<_, BoxError>(Action::await_change())
                    }
                },
            )
        };
        let controller = Controller::of::<ConfigMap>("on-b")
            .on(&b)
            .add_to(&manager, reconciler)
            .unwrap();
        let a = key(&fixture, &format!("a-{time}"));
        controller.enqueue(steersman_runtime::Request::new(name.clone(), a));
        until(|| busy.load(Ordering::SeqCst) == time).await;
        let mut removed = Box::pin(manager.remove_cluster(&name, grace));
        assert!(removed.as_mut().now_or_never().is_none());
        // Others do not wait for that.
        let other = format!("other-{time}");
        manager.add(task(&other, &steps, RunPolicy::AllReplicas)).unwrap();
        steps.saw(&format!("{other} starts")).await;
        go_on.notify_one();
        removed.await.unwrap();
        steps.saw("read: true").await;
        steps.clear();
        assert!(b.is_closed());
        let error = b
            .client()
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap_err();
        assert!(error.is_fenced());
        // Its name is free, for a controller of the next cluster of that name.
        manager.statuses().when(|all| !all.contains_key("on-b")).await;
    }
    assert!(manager.remove_cluster(&name, grace).await.is_err(), "it is gone");
    running.stop().await.unwrap();
}

/// Leads and requires cluster `b`. After a stop request it continues until the test releases it.
struct Dependent {
    steps: Steps,
    go_on: Arc<Notify>,
}

impl Runnable for Dependent {
    fn name(&self) -> &str {
        "dependent"
    }

    fn clusters(&self) -> Vec<ClusterName> {
        vec!["b".into()]
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        self.steps.add("begun");
        cx.stop().requested().await;
        self.steps.add("told");
        self.go_on.notified().await;
        self.steps.add("ended");
        Ok(())
    }
}

// R174
#[tokio::test]
async fn guarantee_8_a_leader_whose_cluster_is_removed_has_its_time_also_when_the_run_ends() {
    let b = steersman_cluster::Cluster::builder("b")
        .field_manager("test")
        .config(kube::Config::new("http://127.0.0.1:1".parse().unwrap()))
        .build()
        .await
        .unwrap();
    let manager = Manager::builder().cluster(b).build().await.unwrap();
    let (steps, go_on) = (Steps::new(), Arc::new(Notify::new()));
    let dependent = Dependent {
        steps: steps.clone(),
        go_on: Arc::clone(&go_on),
    };
    manager.add(dependent).unwrap();
    let mut running = run(&manager);
    steps.saw("begun").await;
    let name = ClusterName::from("b");
    let mut removed = Box::pin(manager.remove_cluster(&name, Duration::from_secs(60)));
    assert!(removed.as_mut().now_or_never().is_none());
    steps.saw("told").await;
    running.tell();
    let_go_on().await;
    assert!(!running.has_ended(), "it is waited for");
    go_on.notify_one();
    running.ended().await.unwrap();
    assert_eq!(steps.all(), ["begun", "told", "ended"]);
    removed.await.unwrap();
}

// R174
#[steersman_testing::test]
async fn guarantee_8_a_reconcile_that_does_not_end_is_cancelled_with_its_cluster(fixture: Fixture) {
    let clock = TestClock::new();
    let build = async |name| {
        let builder = managed::cluster_builder(&fixture, name).clock(Arc::new(clock.clone()));
        builder.build().await.unwrap()
    };
    let (home, b) = (build("default").await, build("b").await);
    let manager = Manager::builder()
        .cluster(home)
        .cluster(b.clone())
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let steps = Steps::new();
    let reconciler = {
        let steps = steps.clone();
        reconcile_fn(
            move |_: steersman_runtime::Request, cx: steersman_runtime::Context| {
                let steps = steps.clone();
                async move {
                    let cluster = cx.cluster().name().clone();
                    steps.add(format!("{cluster} begins"));
                    if cluster.as_str() == "b" {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, BoxError>(Action::await_change())
                }
            },
        )
    };
    let controller = Controller::of::<ConfigMap>("everywhere")
        .on_every_cluster()
        .workers(2)
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    let request = |cluster: &str, name| steersman_runtime::Request::new(cluster.into(), key(&fixture, name));
    controller.enqueue(request("b", "a"));
    steps.saw("b begins").await;
    let name = ClusterName::from("b");
    let mut removed = Box::pin(manager.remove_cluster(&name, Duration::from_secs(5)));
    assert!(removed.as_mut().now_or_never().is_none());
    // Nothing new begins on it.
    controller.enqueue(request("b", "c"));
    controller.enqueue(request("default", "d"));
    steps.saw("default begins").await;
    clock.advance(Duration::from_secs(5));
    removed.await.unwrap();
    until(|| controller.depth().in_flight() == 0).await;
    assert_eq!(steps.all().iter().filter(|step| *step == "b begins").count(), 1);
    assert!(b.is_closed());
    running.stop().await.unwrap();
}

#[test]
fn a_runnable_needs_leadership_by_default() {
    struct Plain;
    impl Runnable for Plain {
        fn name(&self) -> &str {
            "plain"
        }
        async fn run(&self, _: RunContext) -> Result<(), BoxError> {
            Ok(())
        }
    }
    assert_eq!(Plain.run_policy(), RunPolicy::LeaderElected);
    assert!(Plain.caches().is_empty() && Plain.clusters().is_empty());
}
