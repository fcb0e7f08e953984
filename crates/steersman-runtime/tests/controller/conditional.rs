// SPDX-License-Identifier: Apache-2.0
//! Runnables that hang on conditions, and what conditions say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{borrow::Cow, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::{NamespaceResourceScope, api::core::v1::ConfigMap};
use kube::api::ObjectMeta;
use serde::Deserialize;
use steersman_cluster::DeleteOptions;
use steersman_core::{
    Clock,
    Presence::{self, Absent, Present, Unknown},
    PresenceStatus, Random, Spawner, Task, TestClock,
};
use steersman_runtime::{
    Conditional, Leadership, RunCondition, RunContext, Runnable, RunnableStatus, StopHandle, run_fn,
    testing::RuntimeContext,
};
use steersman_testing::{
    Fixture,
    proxy::{Exchange, Fault, Matching},
};
use tokio::sync::watch;

use support::{Stage, cluster_through, config_map, key, let_go_on, until};

/// How what hangs on the condition ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    WhenTold,
    ByItself,
    NotInTime,
    WithAnError,
    /// On a stop request, after two more seconds of work.
    AfterWork,
}

/// Something that runs while the test says so.
struct Scene {
    clock: TestClock,
    presence_statuses: Arc<watch::Sender<PresenceStatus>>,
    runtime: Arc<RuntimeContext>,
    /// How often it began, and how often it ended.
    runs: Arc<watch::Sender<(u32, u32)>>,
    task: Task,
    stop: StopHandle,
}

/// Counts an end, also of what is cancelled.
struct Counted(Arc<watch::Sender<(u32, u32)>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|(_, ended)| *ended += 1);
    }
}

impl Scene {
    fn new(ending: Ending) -> Self {
        let presence_statuses = Arc::new(watch::Sender::new(PresenceStatus::new(Unknown, "it begins")));
        let runs = Arc::new(watch::Sender::default());
        let (told, counted) = (Arc::clone(&presence_statuses), Arc::clone(&runs));
        let condition = RunCondition::from_stream("told", move || {
            let mut told = told.subscribe();
            told.mark_changed();
            stream::unfold(told, |mut told| async move {
                told.changed().await.ok()?;
                let presence_status = told.borrow_and_update().clone();
                Some((presence_status, told))
            })
        });
        let task = run_fn("task", move |cx: RunContext| {
            counted.send_modify(|(begun, _)| *begun += 1);
            let ends = Counted(Arc::clone(&counted));
            async move {
                let _ends = ends;
                if ending != Ending::ByItself {
                    cx.stop().requested().await;
                }
                match ending {
                    Ending::AfterWork => {
                        let clock = cx.clock();
                        clock.sleep_until(clock.now() + Duration::from_secs(2)).await;
                        Ok(())
                    }
                    Ending::WhenTold | Ending::ByItself => Ok(()),
                    Ending::NotInTime => std::future::pending().await,
                    Ending::WithAnError => Err("it broke".into()),
                }
            }
        });
        let conditional = Conditional::new(task, condition).shutdown_timeout(Duration::from_secs(3));
        let clock = TestClock::new();
        let runtime = RuntimeContext::new(
            Arc::new(clock.clone()),
            Arc::new(Random::from_seed(7)),
            Spawner::current(),
        );
        let runtime = Arc::new(runtime);
        let (handle, stop) = StopHandle::new();
        let cx = runtime.context("task", Leadership::always(), stop);
        let task = Spawner::current().spawn("conditional", async move { conditional.run(cx).await.unwrap() });
        Self {
            clock,
            presence_statuses,
            runtime,
            runs,
            task,
            stop: handle,
        }
    }

    fn tell(&self, presence: Presence, reason: &str) {
        self.presence_statuses
            .send_replace(PresenceStatus::new(presence, reason));
    }

    /// Waits until it has begun and ended so often.
    async fn ran(&self, begun: u32, ended: u32) {
        let mut runs = self.runs.subscribe();
        runs.wait_for(|runs| *runs == (begun, ended)).await.unwrap();
    }

    async fn stands(&self, so: &str) {
        let is_so = |standing: &RunnableStatus| standing.to_string().contains(so);
        let standings = self.runtime.statuses();
        standings.when(|all| all.get("task").is_some_and(is_so)).await;
    }

    /// The condition is reported again, and changes nothing.
    async fn changes_nothing(&self, presence: Presence) {
        let before = (self.runtime.statuses().of("task"), *self.runs.borrow());
        for number in 0..3 {
            self.tell(presence, &format!("once more, {number}"));
            let_go_on().await;
        }
        let after = (self.runtime.statuses().of("task"), *self.runs.borrow());
        assert_eq!(after, before);
    }
}

// R2
#[tokio::test]
async fn guarantee_2_an_unknown_condition_changes_nothing() {
    let scene = Scene::new(Ending::WhenTold);
    scene.tell(Unknown, "nobody answers");
    scene.stands("waiting for nobody answers").await;
    scene.tell(Absent, "it is off");
    scene.stands("dormant: it is off").await;
    scene.changes_nothing(Unknown).await;
    scene.tell(Present, "it is on");
    scene.ran(1, 0).await;
    scene.changes_nothing(Unknown).await;
    scene.tell(Absent, "it is off again");
    scene.ran(1, 1).await;
    scene.stands("dormant: it is off again").await;
}

#[tokio::test]
async fn guarantee_1_a_runnable_that_ended_runs_again_when_its_condition_is_true_again() {
    let scene = Scene::new(Ending::ByItself);
    scene.tell(Present, "it is on");
    scene.ran(1, 1).await;
    scene.stands("ready").await;
    scene.changes_nothing(Present).await;
    scene.changes_nothing(Unknown).await;
    scene.changes_nothing(Present).await;
    scene.tell(Absent, "it is off");
    scene.stands("dormant").await;
    scene.tell(Present, "it is on");
    scene.ran(2, 2).await;
    let another = PresenceStatus::new(Present, "it is another one").incarnation("2");
    scene.presence_statuses.send_replace(another);
    scene.ran(3, 3).await;
}

#[tokio::test]
async fn guarantee_7_a_failure_while_stopping_does_not_end_the_run() {
    let scene = Scene::new(Ending::WithAnError);
    for cycle in 1..=3 {
        scene.tell(Present, "it is on");
        scene.ran(cycle, cycle - 1).await;
        if cycle < 3 {
            scene.tell(Absent, "it is off");
            scene.stands("dormant").await;
        }
        scene.ran(cycle, if cycle < 3 { cycle } else { cycle - 1 }).await;
    }
    // The same for one that makes room for another incarnation.
    let another = PresenceStatus::new(Present, "it is another one").incarnation("2");
    scene.presence_statuses.send_replace(another);
    scene.ran(4, 3).await;
    assert!(!scene.task.is_finished());
}

/// Counts the calls of `forget`, and runs until a stop is requested.
struct Forgetful(Arc<watch::Sender<u32>>);

impl Runnable for Forgetful {
    fn name(&self) -> &str {
        "forgetful"
    }

    fn forget(&self) {
        self.0.send_modify(|forgotten| *forgotten += 1);
    }

    async fn run(&self, cx: RunContext) -> Result<(), steersman_runtime::BoxError> {
        cx.ready();
        cx.stop().requested().await;
        Ok(())
    }
}

#[tokio::test]
async fn guarantee_3_another_incarnation_is_detected_also_while_nothing_runs() {
    let forgotten = Arc::new(watch::Sender::new(0));
    let presence_statuses = Arc::new(watch::Sender::new(
        PresenceStatus::new(Present, "the first").incarnation("1"),
    ));
    let told = Arc::clone(&presence_statuses);
    let condition = RunCondition::from_stream("told", move || {
        let presence_status = told.borrow().clone();
        stream::iter([presence_status]).chain(stream::pending())
    });
    let conditional = Conditional::new(Forgetful(Arc::clone(&forgotten)), condition);
    let run_once = async || {
        let runtime = Arc::new(RuntimeContext::new(
            Arc::new(TestClock::new()),
            Arc::new(Random::from_seed(7)),
            Spawner::current(),
        ));
        let (handle, stop) = StopHandle::new();
        let cx = runtime.context("forgetful", Leadership::always(), stop);
        let stop_when_ready = async {
            runtime
                .statuses()
                .when(|all| all.get("forgetful").is_some_and(|is| is.to_string() == "ready"))
                .await;
            handle.stop_by(runtime.clock().now());
        };
        let (ended, ()) = tokio::join!(conditional.run(cx), stop_when_ready);
        ended.unwrap();
        *forgotten.borrow()
    };
    assert_eq!(run_once().await, 0);
    assert_eq!(run_once().await, 0, "it is the same");
    presence_statuses.send_replace(PresenceStatus::new(Present, "the second").incarnation("2"));
    assert_eq!(run_once().await, 1);
    assert_eq!(run_once().await, 1, "it is the same");
}

#[tokio::test]
async fn work_that_exceeds_the_shutdown_timeout_is_cancelled() {
    let scene = Scene::new(Ending::NotInTime);
    scene.tell(Present, "it is on");
    scene.ran(1, 0).await;
    scene.tell(Absent, "it is off");
    let due = scene.clock.now() + Duration::from_secs(3);
    while scene.clock.next_deadline() != Some(due) {
        tokio::task::yield_now().await;
    }
    scene.clock.advance(Duration::from_millis(2_999));
    let_go_on().await;
    assert_eq!(*scene.runs.borrow(), (1, 0));
    scene.clock.advance(Duration::from_millis(1));
    scene.ran(1, 1).await;
    scene.stands("dormant").await;
}

// R25
#[tokio::test]
async fn a_closed_condition_stops_the_inner_runnable_only_and_a_stop_drains_it() {
    let scene = Scene::new(Ending::AfterWork);
    // Lets the inner runnable finish its work, and not earlier.
    let finishes = async |ended| {
        let due = scene.clock.now() + Duration::from_secs(2);
        until(|| scene.clock.next_deadline() == Some(due)).await;
        assert_eq!(*scene.runs.borrow(), (ended, ended - 1));
        scene.clock.advance_to(due);
        scene.ran(ended, ended).await;
    };
    scene.tell(Present, "it is on");
    scene.ran(1, 0).await;
    scene.tell(Absent, "it is off");
    finishes(1).await;
    scene.stands("dormant").await;
    assert!(!scene.task.is_finished());

    scene.tell(Present, "it is on again");
    scene.ran(2, 1).await;
    scene.stop.stop_by(scene.clock.now() + Duration::from_secs(10));
    finishes(2).await;
    until(|| scene.task.is_finished()).await;
}

/// A map whose entries are numbers: most maps cannot be read as one.
#[derive(Clone, Deserialize)]
struct Numbers {
    metadata: ObjectMeta,
    data: std::collections::BTreeMap<String, u32>,
}

impl kube::Resource for Numbers {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ConfigMap".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "configmaps".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A kind that no server has.
#[derive(Clone, Deserialize)]
struct Missing {
    metadata: ObjectMeta,
}

impl kube::Resource for Missing {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Missing".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "nowhere.example".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "missings".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// R28
#[steersman_testing::test]
async fn an_object_that_cannot_be_decoded_is_not_taken_for_a_missing_one(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client
        .create(&config_map(&fixture, "numbers", "many"))
        .await
        .unwrap();
    let has_seven = |numbers: &Numbers| numbers.data.values().any(|number| *number == 7);
    let condition = RunCondition::object_is(&stage.cluster, key(&fixture, "numbers"), has_seven);
    let mut presence_statuses = condition.watch(&stage.clock);
    let first = presence_statuses.next().await.unwrap();
    assert_eq!(first.presence, Unknown, "{first}");
    client
        .delete::<ConfigMap>(&key(&fixture, "numbers"), DeleteOptions::default())
        .await
        .unwrap();
    assert!(presence_statuses.next().await.unwrap().is_absent());
}

// R28
#[steersman_testing::test]
async fn a_condition_on_an_object_follows_its_existence(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let condition = RunCondition::object_exists::<ConfigMap>(&stage.cluster, key(&fixture, "flag"));
    let mut presence_statuses = condition.watch(&stage.clock);
    for _ in 0..2 {
        assert!(presence_statuses.next().await.unwrap().is_absent());
        // Another object is none of its business.
        client.apply(&config_map(&fixture, "another", "1")).await.unwrap();
        client.create(&config_map(&fixture, "flag", "1")).await.unwrap();
        let there = presence_statuses.next().await.unwrap();
        assert!(there.is_present(), "{there}");
        client
            .delete::<ConfigMap>(&key(&fixture, "flag"), DeleteOptions::default())
            .await
            .unwrap();
    }
    assert!(presence_statuses.next().await.unwrap().is_absent());
}

// R2, R28
#[steersman_testing::test]
async fn an_object_of_an_absent_kind_is_absent_and_not_requested_again(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let clock = TestClock::new();
    let builder = cluster_through(&fixture, &proxy, "default");
    let stage = Stage::of(builder, Arc::new(clock.clone())).await;
    let condition = RunCondition::object_exists::<Missing>(&stage.cluster, key(&fixture, "one"));
    let mut presence_statuses = condition.watch(&stage.clock);
    let first = presence_statuses.next().await.unwrap();
    assert!(first.is_absent() && first.reason.contains("missings"), "{first}");
    let asked = || {
        let all = proxy.exchanges();
        let is_meant = |one: &&Exchange| one.path.ends_with("/missings");
        all.iter().filter(is_meant).count()
    };
    let is_left_alone = async {
        until(|| {
            let mut all = stage.cluster.presences().into_iter();
            // As definitions and services have it: discovery would be queried again later.
            all.any(|(_, presence_status)| {
                presence_status.is_absent() && presence_status.reason.ends_with("is not installed")
            })
        })
        .await;
        let_go_on().await;
        let before = asked();
        for _ in 0..5 {
            clock.advance(Duration::from_secs(60));
            for _ in 0..5 {
                fixture.client().apiserver_version().await.unwrap();
            }
        }
        assert_eq!(asked(), before);
    };
    tokio::select! {
        another = presence_statuses.next() => panic!("{another:?}"),
        () = is_left_alone => {}
    }
    drop(presence_statuses);
    until(|| stage.cluster.presences().is_empty()).await;
}

// R28
#[steersman_testing::test]
async fn a_forbidden_object_is_not_a_missing_object(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let refused = proxy.inject(Matching::any().path("/configmaps"), Fault::answer(403));
    let condition = RunCondition::object_exists::<ConfigMap>(&stage.cluster, key(&fixture, "flag"));
    let mut presence_statuses = condition.watch(&stage.clock);
    let first = presence_statuses.next().await.unwrap();
    assert_eq!(first.presence, Unknown, "{first}");
    assert!(first.reason.contains("forbidden"), "{first}");
    drop(refused);
    assert!(presence_statuses.next().await.unwrap().is_absent());
    // Once it has been seen, what is in the way changes nothing.
    let client = fixture.client();
    let maps = kube::Api::<ConfigMap>::namespaced(client, fixture.namespace());
    let flag = config_map(&fixture, "flag", "1");
    maps.create(&Default::default(), &flag).await.unwrap();
    assert!(presence_statuses.next().await.unwrap().is_present());
    // Its informer ends, and another one continues.
    assert_eq!(stage.cluster.cache().informers().len(), 1);
    maps.delete("flag", &Default::default()).await.unwrap();
    assert!(presence_statuses.next().await.unwrap().is_absent());
    stage
        .cluster
        .cache()
        .remove(&steersman_cache::Resource::of::<ConfigMap>());
    maps.create(&Default::default(), &flag).await.unwrap();
    assert!(presence_statuses.next().await.unwrap().is_present());
}

// R28
#[steersman_testing::test]
async fn a_condition_on_a_kind_is_true_while_it_is_installed(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let first_known = async |condition: RunCondition| {
        let mut presence_statuses = condition.watch(&stage.clock);
        loop {
            let presence_status = presence_statuses.next().await.unwrap();
            if presence_status.presence != Unknown {
                return presence_status.presence;
            }
        }
    };
    let cluster = &stage.cluster;
    assert_eq!(
        first_known(RunCondition::installed::<ConfigMap>(cluster)).await,
        Present
    );
    assert_eq!(
        first_known(RunCondition::installed::<Missing>(cluster)).await,
        Absent
    );
    let either = RunCondition::installed::<Missing>(cluster).or(!RunCondition::installed::<Missing>(cluster));
    assert_eq!(first_known(either).await, Present);
}
