// SPDX-License-Identifier: Apache-2.0
//! Object reconcilers, and reconcilers that trigger themselves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{core::v1::ConfigMap, events::v1::Event},
};
use kube::{api::Patch, core::ObjectMeta};
use serde::Deserialize;
use serde_json::json;
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{
    BoxError, Context, Controller, ObjectReconciler, Options, Request, Undecodable, kind, map_fn,
    testing::LeadershipKeeper,
};
use steersman_testing::{Fixture, eventually};
use support::{Calls, GRACE, Stage, config_map, delete, key, let_go_on, object, until};
use tokio::sync::watch;

/// Calls of a keeper, in order.
type Told = Arc<watch::Sender<Vec<(&'static str, String)>>>;

/// Remembers objects that are there and keys that are not.
#[derive(Clone)]
struct Keeper {
    told: Told,
    finalizer: Option<&'static str>,
    /// Number of times that it fails for a deleted object.
    failures: Arc<AtomicUsize>,
}

impl Keeper {
    fn new() -> Self {
        Self {
            told: Arc::default(),
            finalizer: None,
            failures: Arc::default(),
        }
    }

    fn tell(&self, what: &'static str, name: &str) {
        self.told.send_modify(|told| told.push((what, name.to_owned())));
    }

    fn count(&self, what: &str, name: &str) -> usize {
        let told = self.told.borrow();
        told.iter().filter(|(is, of)| *is == what && of == name).count()
    }

    async fn hears(&self, what: &str, name: &str) {
        let is_meant = |(is, of): &(&str, String)| *is == what && of == name;
        let mut told = self.told.subscribe();
        told.wait_for(|told| told.iter().any(is_meant)).await.unwrap();
    }
}

impl ObjectReconciler<ConfigMap> for Keeper {
    type Error = BoxError;

    async fn reconcile(&self, map: Arc<ConfigMap>, cx: Context) -> Result<Action, BoxError> {
        let name = map.metadata.name.clone().unwrap_or_default();
        if map.metadata.deletion_timestamp.is_none() {
            self.tell("there", &name);
            return Ok(Action::await_change());
        }
        self.tell("going", &name);
        let key = ObjectKey::new(map.metadata.namespace.as_deref().unwrap_or_default(), &name);
        let none = json!({"metadata": {"finalizers": null}});
        cx.client().patch::<ConfigMap>(&key, &Patch::Merge(none)).await?;
        Ok(Action::await_change())
    }

    async fn on_deleted(&self, key: ObjectKey, _cx: Context) -> Result<Action, BoxError> {
        self.tell("gone", key.name());
        let left = self.failures.load(Ordering::SeqCst);
        if left > 0 {
            self.failures.store(left - 1, Ordering::SeqCst);
            return Err("not yet".into());
        }
        Ok(Action::await_change())
    }

    fn finalizer(&self) -> Option<&str> {
        self.finalizer
    }
}

fn held(fixture: &Fixture, name: &str, finalizer: &str) -> ConfigMap {
    object(json!({
        "metadata": {"name": name, "namespace": fixture.namespace(), "finalizers": [finalizer]},
    }))
}

// R100, R164, D26
#[steersman_testing::test]
async fn on_deleted_is_retried_until_it_succeeds(fixture: Fixture) {
    let (stage, standby) = (Stage::new(&fixture).await, Stage::new(&fixture).await);
    let (keeper, idle) = (Keeper::new(), Keeper::new());
    keeper.failures.store(3, Ordering::SeqCst);
    let (forgotten, forgotten_there) = (Arc::default(), Arc::default());
    let make = |stage: &Stage, keeper: &Keeper, forgotten: &Arc<Mutex<Vec<_>>>| {
        let forgotten = Arc::clone(forgotten);
        Controller::of::<ConfigMap>("maps")
            .on_deleted_everywhere(move |cluster, key| {
                forgotten.lock().unwrap().push((cluster.clone(), key.clone()))
            })
            // A second function does not replace the first.
            .on_deleted_everywhere(|_, _| {})
            .build(&stage.cluster, keeper.clone())
    };
    let controller = make(&stage, &keeper, &forgotten);
    let waiting = make(&standby, &idle, &forgotten_there);
    let (_never_grants, leadership) = LeadershipKeeper::new();
    let standing_by = waiting.clone().spawn(&standby.context_led("maps", leadership));
    let running = stage.run(&controller);
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    keeper.hears("there", "a").await;
    let request = Request::new("default".into(), key(&fixture, "a"));
    until(|| waiting.status(&request).is_some()).await;
    delete::<ConfigMap>(&client, &key(&fixture, "a")).await;
    until(|| stage.reconciled("maps", "error") == 3 && controller.depth().in_flight() == 0).await;
    until(|| keeper.count("gone", "a") == 4).await;
    assert_eq!(keeper.count("there", "a"), 1);
    until(|| !forgotten_there.lock().unwrap().is_empty()).await;
    for forgotten in [forgotten, forgotten_there] {
        assert_eq!(
            *forgotten.lock().unwrap(),
            [("default".into(), key(&fixture, "a"))],
            "the hook of every replica is called once"
        );
    }
    assert!(idle.told.borrow().is_empty(), "a standby reconciles nothing");
    running.stop(GRACE).await.unwrap();
    standing_by.stop(GRACE).await.unwrap();
}

// R100
#[steersman_testing::test]
async fn an_object_that_is_deleted_at_once_is_no_error(fixture: Fixture) {
    struct Careless;
    impl ObjectReconciler<ConfigMap> for Careless {
        type Error = BoxError;
        async fn reconcile(&self, _: Arc<ConfigMap>, _: Context) -> Result<Action, BoxError> {
            Ok(Action::await_change())
        }
    }
    let stage = Stage::new(&fixture).await;
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, Careless);
    let running = stage.run(&controller);
    stage.stands("maps", |is| is == "ready").await;
    let client = stage.live();
    for number in 0..20 {
        let name = format!("m-{number}");
        client.create(&config_map(&fixture, &name, "1")).await.unwrap();
        delete::<ConfigMap>(&client, &key(&fixture, &name)).await;
    }
    client.create(&config_map(&fixture, "last", "1")).await.unwrap();
    until(|| stage.reconciled("maps", "success") > 0 && controller.depth() == Default::default()).await;
    assert_eq!(stage.reconciled("maps", "error"), 0);
    assert_eq!(
        stage.metric("workqueue_retries_total{name=\"maps\",controller=\"maps\"}"),
        0.0
    );
    running.stop(GRACE).await.unwrap();
}

// R101
#[steersman_testing::test]
async fn an_object_being_deleted_is_skipped_unless_it_has_our_finalizer(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let (ours, theirs) = ("steersman.example/ours", "steersman.example/theirs");
    client.create(&held(&fixture, "ours", ours)).await.unwrap();
    client.create(&held(&fixture, "theirs", theirs)).await.unwrap();
    let keeper = Keeper {
        finalizer: Some(ours),
        ..Keeper::new()
    };
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, keeper.clone());
    let running = stage.run(&controller);
    keeper.hears("there", "ours").await;
    keeper.hears("there", "theirs").await;
    delete::<ConfigMap>(&client, &key(&fixture, "theirs")).await;
    delete::<ConfigMap>(&client, &key(&fixture, "ours")).await;
    keeper.hears("going", "ours").await;
    keeper.hears("gone", "ours").await;
    // The deletion of the other one was heard of before.
    assert_eq!(keeper.count("going", "theirs"), 0);
    assert_eq!(keeper.count("there", "theirs"), 1);
    let none = json!({"metadata": {"finalizers": null}});
    client
        .patch::<ConfigMap>(&key(&fixture, "theirs"), &Patch::Merge(none))
        .await
        .unwrap();
    keeper.hears("gone", "theirs").await;
    running.stop(GRACE).await.unwrap();
}

/// A config map as one would have it who insists on certain numbers.
#[derive(Clone, Debug, Deserialize)]
struct Numbered {
    metadata: ObjectMeta,
    data: BTreeMap<String, Number>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Number {
    #[serde(rename = "7")]
    Seven = 7,
    #[serde(rename = "8")]
    Eight = 8,
}

impl kube::Resource for Numbered {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;
    fn kind(_: &()) -> Cow<'_, str> {
        "ConfigMap".into()
    }
    fn group(_: &()) -> Cow<'_, str> {
        "".into()
    }
    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural(_: &()) -> Cow<'_, str> {
        "configmaps".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// R150, R165, R167
#[steersman_testing::test]
async fn an_object_that_does_not_decode_fails_only_its_own_reconcile(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client
        .create(&config_map(&fixture, "bad", "hunter2"))
        .await
        .unwrap();
    let calls = Calls::new();
    let errors = Arc::new(Mutex::new(Vec::new()));
    let reconciler = {
        let (errors, namespace) = (Arc::clone(&errors), fixture.namespace().to_owned());
        calls.then(move |request: Request, cx, _| {
            let (errors, is_ours) = (Arc::clone(&errors), request.namespace() == namespace);
            async move {
                let found = cx.client().get::<Numbered>(request.key()).await;
                if let Err(error) = &found
                    && is_ours
                    && request.name() == "bad"
                {
                    let chain =
                        std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
                    let texts = chain.map(ToString::to_string).collect::<Vec<_>>();
                    errors.lock().unwrap().push(texts.join(": "));
                }
                assert!(found?.is_none_or(|found| found.data.len() <= 1));
                Ok(Action::await_change())
            }
        })
    };
    let mapping = map_fn(|numbered: &Numbered| {
        let namespace = numbered.metadata.namespace.as_deref()?;
        Some(ObjectKey::new(
            namespace,
            &format!("mapped-{}", numbered.data["value"] as u8),
        ))
    });
    let controller = Controller::of::<Numbered>("numbered")
        .watches(kind::<Numbered>(), mapping)
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    client.create(&config_map(&fixture, "good", "7")).await.unwrap();
    calls.reach("good", 1).await;
    calls.reach("mapped-7", 1).await;
    calls.reach("bad", 3).await;
    // It becomes good.
    client.update(&config_map(&fixture, "bad", "8")).await.unwrap();
    calls.reach("mapped-8", 1).await;
    until(|| {
        controller
            .status(&Request::new("default".into(), key(&fixture, "bad")))
            .is_none()
    })
    .await;
    running.stop(GRACE).await.unwrap();
    let errors = errors.lock().unwrap();
    assert!(
        errors[0].contains("bad") && errors[0].contains("data.value"),
        "{errors:?}"
    );
    assert!(!errors[0].contains("hunter2"), "no content is shown: {errors:?}");
}

/// Is handed config maps of certain numbers.
struct Numbers(Keeper);

impl ObjectReconciler<Numbered> for Numbers {
    type Error = BoxError;

    async fn reconcile(&self, numbered: Arc<Numbered>, _cx: Context) -> Result<Action, BoxError> {
        self.0
            .tell("read", numbered.metadata.name.as_deref().unwrap_or_default());
        Ok(Action::await_change())
    }
}

// R165, R167
#[steersman_testing::test]
async fn an_object_that_cannot_be_decoded_rests_until_it_changes(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    for (name, value) in [("bad", "hunter2"), ("good", "8")] {
        client.create(&config_map(&fixture, name, value)).await.unwrap();
    }
    let keeper = Keeper::new();
    let controller = Controller::of::<Numbered>("numbers").build(&stage.cluster, Numbers(keeper.clone()));
    let running = stage.run(&controller);
    keeper.hears("read", "good").await;
    until(|| stage.count("controller_runtime_terminal_reconcile_errors_total", "numbers") >= 1).await;
    until(|| controller.depth().in_flight() == 0).await;
    assert_eq!(controller.depth().delayed(), 0);
    client.update(&config_map(&fixture, "bad", "7")).await.unwrap();
    keeper.hears("read", "bad").await;
    running.stop(GRACE).await.unwrap();
}

/// Reconciles config maps with certain numbers, and removes the finalizer of undecodable ones.
struct Releasing(Keeper);

impl ObjectReconciler<Numbered> for Releasing {
    type Error = BoxError;

    async fn reconcile(&self, numbered: Arc<Numbered>, cx: Context) -> Result<Action, BoxError> {
        Numbers(self.0.clone()).reconcile(numbered, cx).await
    }

    async fn undecodable(&self, object: Undecodable, cx: Context) -> Result<Action, BoxError> {
        if object.key().name() != "bad" {
            return Err(object.into_error());
        }
        assert_eq!(object.object().data["data"]["value"], "hunter2");
        self.0.tell("undecodable", "bad");
        if !object.is_being_deleted() {
            return Err(object.into_error());
        }
        object.remove_finalizer(FINALIZER, &cx).await?;
        Ok(Action::await_change())
    }

    async fn on_deleted(&self, key: ObjectKey, _cx: Context) -> Result<Action, BoxError> {
        self.0.tell("gone", key.name());
        Ok(Action::await_change())
    }

    fn finalizer(&self) -> Option<&str> {
        Some(FINALIZER)
    }
}

const FINALIZER: &str = "example.com/numbers";

/// The notes of the events about objects that do not decode.
async fn decode_events(stage: &Stage, fixture: &Fixture) -> Vec<String> {
    stage.cluster.flush_events().await;
    let query = steersman_cache::Query::new().namespace(fixture.namespace());
    let events = stage.live().list::<Event>(&query).await.unwrap();
    let about = |event: &&Arc<Event>| {
        let regarding = event.regarding.as_ref().unwrap();
        assert_eq!(regarding.kind.as_deref(), Some("ConfigMap"));
        event.reason.as_deref() == Some("DecodeFailed") && regarding.name.as_deref() == Some("bad")
    };
    let notes = events.iter().filter(about);
    notes.map(|event| event.note.clone().unwrap()).collect()
}

// R165, D22
#[steersman_testing::test]
async fn an_undecodable_object_gets_an_event_and_can_be_released(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let mut bad = config_map(&fixture, "bad", "hunter2");
    bad.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    client.create(&bad).await.unwrap();
    let keeper = Keeper::new();
    let controller = Controller::of::<Numbered>("numbers").build(&stage.cluster, Releasing(keeper.clone()));
    let running = stage.run(&controller);
    keeper.hears("undecodable", "bad").await;
    let notes = decode_events(&stage, &fixture).await;
    assert!(notes.len() == 1 && notes[0].contains("data.value"), "{notes:?}");
    assert!(!notes[0].contains("hunter2"), "no content is shown: {notes:?}");

    delete::<ConfigMap>(&client, &key(&fixture, "bad")).await;
    keeper.hears("gone", "bad").await;
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "bad"))
            .await
            .unwrap()
            .is_none()
    );
    running.stop(GRACE).await.unwrap();
    assert_eq!(keeper.count("read", "bad"), 0);
}

/// Has a finalizer and no hook.
struct Holding(Keeper);

impl ObjectReconciler<Numbered> for Holding {
    type Error = BoxError;

    async fn reconcile(&self, numbered: Arc<Numbered>, cx: Context) -> Result<Action, BoxError> {
        let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let key = ObjectKey::new(numbered.metadata.namespace.as_deref().unwrap(), "bad");
        cx.client().patch::<ConfigMap>(&key, &none).await?;
        self.0.tell("released", key.name());
        Ok(Action::await_change())
    }

    fn finalizer(&self) -> Option<&str> {
        Some(FINALIZER)
    }
}

// R165, D22
#[steersman_testing::test]
async fn the_event_of_an_undecodable_object_under_deletion_names_the_finalizer(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let mut bad = config_map(&fixture, "bad", "hunter2");
    bad.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    client.create(&bad).await.unwrap();
    delete::<ConfigMap>(&client, &key(&fixture, "bad")).await;
    let keeper = Keeper::new();
    let controller = Controller::of::<Numbered>("numbers").build(&stage.cluster, Holding(keeper.clone()));
    let running = stage.run(&controller);
    stage.stands("numbers", |is| is == "ready").await;
    until(|| stage.count("controller_runtime_terminal_reconcile_errors_total", "numbers") >= 1).await;
    let notes = decode_events(&stage, &fixture).await;
    let expected = format!("the finalizer {FINALIZER} blocks the deletion until the object is repaired: ");
    assert!(notes.len() == 1 && notes[0].starts_with(&expected), "{notes:?}");
    // Repaired, it is cleaned up as usual.
    bad.data = config_map(&fixture, "bad", "7").data;
    client.update(&bad).await.unwrap();
    keeper.hears("released", "bad").await;
    running.stop(GRACE).await.unwrap();
}

/// How a reconcile ends that has written something.
#[derive(Clone, Copy, Debug)]
enum Ends {
    AwaitsChange,
    Requeues,
    Fails,
}

/// A controller that writes another value each time, as a timestamp or the text of an error.
fn stamping(stage: &Stage, calls: &Calls, ends: Ends, options: Options) -> Controller {
    let reconciler = calls.then(move |request: Request, cx, time| async move {
        if request.name() == "stamped" {
            let stamp = json!({"data": {"stamp": time.to_string()}});
            cx.client()
                .patch::<ConfigMap>(request.key(), &Patch::Merge(stamp))
                .await?;
        }
        match ends {
            Ends::AwaitsChange => Ok(Action::await_change()),
            Ends::Requeues => Ok(Action::requeue_after(Duration::from_secs(30))),
            Ends::Fails => Err("it is written to the object, too".into()),
        }
    });
    Controller::of::<ConfigMap>("stamping")
        .options(options)
        .build(&stage.cluster, reconciler)
}

/// Waits until the key waits for its time and nothing else happens.
async fn is_slowed(stage: &Stage, controller: &Controller, slowed: u64) {
    until(|| stage.count("reconcile_hot_loop_total", "stamping") >= slowed).await;
    until(|| controller.depth().in_flight() == 0 && controller.depth().ready() == 0).await;
}

// R149, D18
#[steersman_testing::test]
async fn a_controller_that_triggers_itself_is_slowed_down(fixture: Fixture) {
    for ends in [Ends::AwaitsChange, Ends::Requeues, Ends::Fails] {
        let (clock, stage) = Stage::timed(&fixture).await;
        let client = stage.live();
        client
            .force()
            .apply(&config_map(&fixture, "stamped", "1"))
            .await
            .unwrap();
        let calls = Calls::new();
        let controller = stamping(&stage, &calls, ends, Options::new().hot_loop_limit(20));
        let running = stage.run(&controller);
        calls.reach("stamped", 20).await;
        is_slowed(&stage, &controller, 1).await;
        assert_eq!(calls.count("stamped"), 20, "{ends:?}");

        // Other keys are as quick as ever.
        client
            .force()
            .apply(&config_map(&fixture, "other", "1"))
            .await
            .unwrap();
        calls.reach("other", 1).await;

        // One more after each three seconds.
        for more in 1..=3 {
            let slowed = stage.count("reconcile_hot_loop_total", "stamping");
            clock.advance(Duration::from_secs(3));
            calls.reach("stamped", 20 + more).await;
            is_slowed(&stage, &controller, slowed + 1).await;
            assert_eq!(calls.count("stamped"), 20 + more, "{ends:?}");
        }
        running.stop(GRACE).await.unwrap();
        delete::<ConfigMap>(&client, &key(&fixture, "stamped")).await;
        delete::<ConfigMap>(&client, &key(&fixture, "other")).await;
    }
}

// R149, D18
#[steersman_testing::test]
async fn the_limit_of_reconciles_that_write_can_be_turned_off(fixture: Fixture) {
    let (_clock, stage) = Stage::timed(&fixture).await;
    stage
        .live()
        .create(&config_map(&fixture, "stamped", "1"))
        .await
        .unwrap();
    let calls = Calls::new();
    let controller = stamping(
        &stage,
        &calls,
        Ends::AwaitsChange,
        Options::new().hot_loop_limit(0),
    );
    let running = stage.run(&controller);
    calls.reach("stamped", 100).await;
    assert_eq!(stage.count("reconcile_hot_loop_total", "stamping"), 0);
    running.stop(GRACE).await.unwrap();
}

// R149, D18
#[steersman_testing::test]
async fn a_state_machine_of_many_steps_is_not_slowed_down(fixture: Fixture) {
    const STEPS: usize = 50;
    let (_clock, stage) = Stage::timed(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "0")).await.unwrap();
    let calls = Calls::new();
    let reconciler = calls.then(|request: Request, cx, _| async move {
        if request.name() != "a" {
            return Ok(Action::await_change()); // A real server has config maps of its own.
        }
        let map = cx.client().get_required::<ConfigMap>(request.key()).await?;
        let step: usize = map.data.as_ref().map_or("0", |data| &data["value"]).parse()?;
        if step < STEPS {
            let next = json!({"data": {"value": (step + 1).to_string()}});
            cx.client()
                .patch::<ConfigMap>(request.key(), &Patch::Merge(next))
                .await?;
        }
        Ok(Action::await_change())
    });
    let controller = Controller::of::<ConfigMap>("steps").build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    // Time stands still, so a step that has to wait would wait for ever.
    eventually("the last step is done", async || {
        let map = client
            .get_required::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap();
        (map.data.as_ref().unwrap()["value"] == STEPS.to_string()).then_some(())
    })
    .await;
    assert_eq!(stage.count("reconcile_hot_loop_total", "steps"), 0);
    running.stop(GRACE).await.unwrap();
}

// R149
#[steersman_testing::test]
async fn a_controller_that_writes_only_differences_is_not_slowed_down(fixture: Fixture) {
    let (_clock, stage) = Stage::timed(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "0")).await.unwrap();
    let calls = Calls::new();
    let reconciler = calls.then(|request: Request, cx, _| async move {
        let map = cx.client().get_required::<ConfigMap>(request.key()).await?;
        let data = map.data.clone().unwrap_or_default();
        if request.name() == "a" && data.get("copy") != data.get("value") {
            let copy = json!({"data": {"copy": data["value"]}});
            cx.client()
                .patch::<ConfigMap>(request.key(), &Patch::Merge(copy))
                .await?;
        }
        Ok(Action::await_change())
    });
    let controller = Controller::of::<ConfigMap>("copying").build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    for value in 1..=30 {
        let value = json!({"data": {"value": value.to_string()}});
        let map = client
            .patch::<ConfigMap>(&key(&fixture, "a"), &Patch::Merge(&value))
            .await
            .unwrap();
        let wanted = map.data.unwrap()["value"].clone();
        loop {
            let map = client
                .get_required::<ConfigMap>(&key(&fixture, "a"))
                .await
                .unwrap();
            if map.data.as_ref().unwrap().get("copy") == Some(&wanted) {
                break;
            }
        }
    }
    until(|| controller.depth() == Default::default()).await;
    let_go_on().await;
    assert_eq!(stage.count("reconcile_hot_loop_total", "copying"), 0);
    running.stop(GRACE).await.unwrap();
}
