// SPDX-License-Identifier: Apache-2.0
//! Finalizers: added before the first reconcile, removed after the cleanup.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{CustomResource, CustomResourceExt, ResourceExt, api::Patch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_cache::Resource;
use steersman_cluster::{DeleteOptions, ObjectExt};
use steersman_core::{Action, ObjectKey, error_chain};
use steersman_kit::{Cleaned, Cleanup, KindReconciler, NoStatus, RunsCleanup, Work, managed};
use steersman_runtime::{BoxError, Context, Controller, Undecodable};
use steersman_testing::{
    Fixture, eventually,
    proxy::{Fault, Matching},
};

use super::support::*;

/// A reconciler whose cleanup is counted, and ends as the value of the widget says.
fn cleaning() -> (Arc<AtomicUsize>, Cleaning) {
    let cleanups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&cleanups);
    let cleaning = Cleaning {
        reconcile: Arc::new(|_, work| {
            Box::pin(async move {
                work.set_true(Cond::Available);
                work.set_true(Cond::Configured);
                Ok(Action::await_change())
            })
        }),
        cleanup: Arc::new(move |widget, _| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                match &*widget.spec.value {
                    "wait" => Ok(Cleaned::RetryAfter(Duration::from_secs(7))),
                    "fail" => Err("the registry does not answer".into()),
                    _ => Ok(Cleaned::Done),
                }
            })
        }),
    };
    (cleanups, cleaning)
}

// R101
#[steersman_testing::test]
async fn guarantee_4_a_finalizer_is_added_first_and_removed_after_the_cleanup(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    let one = key(&fixture, "one");
    let mut held = widget(&fixture, "one", "wait");
    held.metadata.finalizers = Some(vec!["example.com/other".to_owned()]);
    client.create(&held).await.unwrap();
    let (cleanups, cleaning) = cleaning();
    let reconciler = managed(cleaning);
    let writes = call(&stand, one.clone(), &reconciler).await;
    let ns = fixture.namespace();
    let widgets = "widgets.kit.steersman.example";
    assert_eq!(
        writes,
        [
            format!("patch {widgets} {ns}/one"),
            format!("apply {widgets} {ns}/one status")
        ]
    );
    let finalizers = async || {
        client
            .get_required::<Widget>(&one)
            .await
            .unwrap()
            .finalizers()
            .to_vec()
    };
    assert_eq!(finalizers().await, ["example.com/other", Cleaning::FINALIZER]);
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();

    // Not done: the finalizer stays.
    let outcome = stand.call(one.clone(), &reconciler).await;
    assert_eq!(
        outcome.result.unwrap(),
        Action::requeue_after(Duration::from_secs(7))
    );
    assert_eq!(finalizers().await.len(), 2);
    // A failure: in the status by the one hook, and the finalizer stays.
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"value": "fail"}})))
        .await
        .unwrap();
    let error = stand.call(one.clone(), &reconciler).await.result.unwrap_err();
    assert_eq!(error.to_string(), "the registry does not answer");
    let found = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        condition(&found, "Available"),
        ("False".into(), "CleanupFailed".into())
    );
    // Done: only ours is removed.
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"value": "go"}})))
        .await
        .unwrap();
    assert_eq!(
        call(&stand, one.clone(), &reconciler).await,
        [format!("patch {widgets} {ns}/one")]
    );
    assert_eq!(finalizers().await, ["example.com/other"]);
    assert_eq!(cleanups.load(Ordering::SeqCst), 3);
    // Held by another controller, and none of our business any more.
    assert_eq!(call(&stand, one.clone(), &reconciler).await, [""; 0]);
    assert_eq!(cleanups.load(Ordering::SeqCst), 3);
}

// R101, guarantee 4
#[steersman_testing::test]
async fn guarantee_4_a_lost_answer_to_the_removal_does_not_repeat_the_cleanup(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    let (cleanups, cleaning) = cleaning();
    Controller::of::<Widget>("widgets")
        .add_to(&manager, managed(cleaning))
        .unwrap();
    let _running = run(manager);
    let one = key(&fixture, "one");
    client.create(&widget(&fixture, "one", "go")).await.unwrap();
    when_condition(&client, &one, "Ready", ("True", "AllConditionsMet")).await;
    // The server never gets the first removals; then it gets one, and its answer is lost.
    let rejected = proxy.inject(
        Matching::method("PATCH").path("/widgets/one").first(5),
        Fault::answer(500),
    );
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    rejected.hit_times(5).await;
    drop(rejected);
    eventually("the object is deleted", async || {
        client.get::<Widget>(&one).await.unwrap().is_none().then_some(())
    })
    .await;
    assert_eq!(cleanups.load(Ordering::SeqCst), 1);

    // A new object of the name is another one.
    client.create(&widget(&fixture, "one", "go")).await.unwrap();
    when_condition(&client, &one, "Ready", ("True", "AllConditionsMet")).await;
    let lost = proxy.inject(
        Matching::method("PATCH").path("/widgets/one").first(1),
        Fault::drop_response(),
    );
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    lost.hit().await;
    eventually("the object is deleted", async || {
        client.get::<Widget>(&one).await.unwrap().is_none().then_some(())
    })
    .await;
    assert_eq!(cleanups.load(Ordering::SeqCst), 2);
}

// R101, guarantee 6
#[steersman_testing::test]
async fn guarantee_6_a_failed_write_of_the_status_does_not_stop_a_cleanup(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let one = key(&fixture, "one");
    let _rejected = proxy.inject(
        Matching::method("PATCH").path("/widgets/one/status"),
        Fault::answer(500),
    );
    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    let cleanups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&cleanups);
    let cleaning = Cleaning {
        reconcile: Arc::new(|_, _| Box::pin(async { Ok(Action::await_change()) })),
        cleanup: Arc::new(move |_, work| {
            let round = count.fetch_add(1, Ordering::SeqCst);
            work.status_mut().note = format!("round {round}");
            Box::pin(async move {
                match round {
                    0 => Ok(Cleaned::RetryAfter(Duration::from_millis(1))),
                    _ => Ok(Cleaned::Done),
                }
            })
        }),
    };
    Controller::of::<Widget>("widgets")
        .add_to(&manager, managed(cleaning))
        .unwrap();
    let _running = run(manager);
    client.create(&widget(&fixture, "one", "go")).await.unwrap();
    eventually("the finalizer", async || {
        let found = client.get_required::<Widget>(&one).await.unwrap();
        found.has_finalizer(Cleaning::FINALIZER).then_some(())
    })
    .await;
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    eventually("the object is deleted", async || {
        client.get::<Widget>(&one).await.unwrap().is_none().then_some(())
    })
    .await;
    assert_eq!(cleanups.load(Ordering::SeqCst), 2);
}

/// A kind whose schema accepts everything, and whose type does not.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(group = "kit.steersman.example", version = "v1", kind = "Gauge", namespaced)]
struct GaugeSpec {
    size: i32,
}

/// Cleans up by the name alone, if it is told to.
struct Gauges {
    knows_names: bool,
}

impl KindReconciler for Gauges {
    type Kind = Gauge;
    type Status = NoStatus;
    type Children = ();
    type Finalizer = RunsCleanup;

    async fn reconcile(&self, _: &Gauge, _: &mut Work<Self>) -> Result<Action, BoxError> {
        Ok(Action::await_change())
    }
}

impl Cleanup for Gauges {
    const FINALIZER: &str = "kit.steersman.example/gauges";

    async fn cleanup(&self, _: &Gauge, _: &mut Work<Self>) -> Result<Cleaned, BoxError> {
        Ok(Cleaned::Done)
    }

    async fn cleanup_undecodable(&self, object: &Undecodable, _: &Context) -> Result<Cleaned, BoxError> {
        match self.knows_names && object.key().name() == "one" {
            true => Ok(Cleaned::Done),
            false => Err("the name is not enough".into()),
        }
    }
}

// R101, R165
#[steersman_testing::test]
async fn an_object_that_does_not_decode_any_more_can_be_cleaned_up(fixture: Fixture) {
    let mut crd = serde_json::to_value(Gauge::crd()).unwrap();
    crd["spec"]["versions"][0]["schema"] =
        json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    fixture.install(&object(crd)).await;
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    let one = key(&fixture, "one");
    let (silent, careful) = (
        managed(Gauges { knows_names: false }),
        managed(Gauges { knows_names: true }),
    );
    let gauge = json!({
        "apiVersion": "kit.steersman.example/v1", "kind": "Gauge",
        "metadata": {"name": "one", "namespace": fixture.namespace()}, "spec": {"size": 1},
    });
    client.create(&object::<Gauge>(gauge)).await.unwrap();
    call(&stand, one.clone(), &careful).await;
    let broken = Patch::Merge(json!({"spec": {"size": "large"}}));
    let gauges = client.of(&Resource::of::<Gauge>());
    gauges.patch(&one, &broken).await.unwrap();
    // Not under deletion: an error that is not retried, and nothing is written.
    let outcome = stand.call(one.clone(), &careful).await;
    let error = outcome.result.unwrap_err();
    assert!(
        error_chain(&*error).contains("spec.size"),
        "{}",
        error_chain(&*error)
    );
    assert!(outcome.writes.is_empty());
    gauges.delete(&one, DeleteOptions::default()).await.unwrap();
    let error = stand.call(one.clone(), &silent).await.result.unwrap_err();
    assert_eq!(error.to_string(), "the name is not enough");
    assert!(gauges.get(&one).await.unwrap().is_some());
    call(&stand, one.clone(), &careful).await;
    assert!(gauges.get(&one).await.unwrap().is_none());
}

// R101
#[steersman_testing::test]
async fn a_removal_that_finds_nothing_is_done(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "go").await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap().live();
    let cleaning = Cleaning {
        reconcile: Arc::new(|_, _| Box::pin(async { Ok(Action::await_change()) })),
        cleanup: Arc::new(move |widget, _| {
            let (beside, widget) = (beside.clone(), widget.clone());
            Box::pin(async move {
                // Someone else removes the finalizer, and with it the object, as when its namespace is purged.
                beside.remove_finalizer(&widget, Cleaning::FINALIZER).await?;
                Ok(Cleaned::Done)
            })
        }),
    };
    let reconciler = managed(cleaning);
    call(&stand, one.clone(), &reconciler).await;
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert!(client.get::<Widget>(&one).await.unwrap().is_none());
}

/// One of two controllers of widgets, each with its own finalizer.
#[derive(Clone, Default)]
struct Holder<const SECOND: bool> {
    can_end: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    done: Arc<AtomicUsize>,
}

impl<const SECOND: bool> KindReconciler for Holder<SECOND> {
    type Kind = Widget;
    type Status = NoStatus;
    type Children = ();
    type Finalizer = RunsCleanup;

    async fn reconcile(&self, _: &Widget, _: &mut Work<Self>) -> Result<Action, BoxError> {
        Ok(Action::await_change())
    }
}

impl<const SECOND: bool> Cleanup for Holder<SECOND> {
    const FINALIZER: &str = match SECOND {
        false => "kit.steersman.example/first",
        true => "kit.steersman.example/second",
    };

    async fn cleanup(&self, _: &Widget, _: &mut Work<Self>) -> Result<Cleaned, BoxError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if !self.can_end.load(Ordering::SeqCst) {
            return Ok(Cleaned::RetryAfter(Duration::from_millis(10)));
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(Cleaned::Done)
    }
}

// R101: several controllers on one object
#[steersman_testing::test]
async fn each_of_two_controllers_removes_only_its_own_finalizer(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let manager = manager(cluster_builder(&fixture, "default").build().await.unwrap()).await;
    let (first, second) = (Holder::<false>::default(), Holder::<true>::default());
    Controller::of::<Widget>("first")
        .add_to(&manager, managed(first.clone()))
        .unwrap();
    Controller::of::<Widget>("second")
        .add_to(&manager, managed(second.clone()))
        .unwrap();
    let _running = run(manager);
    let one = key(&fixture, "one");
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let when_held = async |expected: &[&str]| {
        eventually(&format!("the finalizers {expected:?}"), async || {
            let found = client.get_required::<Widget>(&one).await.unwrap();
            let mut finalizers = found.finalizers().to_vec();
            finalizers.sort();
            (finalizers == expected).then_some(())
        })
        .await;
    };
    let (of_first, of_second) = (Holder::<false>::FINALIZER, Holder::<true>::FINALIZER);
    when_held(&[of_first, of_second]).await;
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    // Both clean up, and neither waits for the other.
    for calls in [&first.calls, &second.calls] {
        eventually("a cleanup", async || {
            (calls.load(Ordering::SeqCst) > 0).then_some(())
        })
        .await;
    }
    when_held(&[of_first, of_second]).await;
    second.can_end.store(true, Ordering::SeqCst);
    when_held(&[of_first]).await;
    first.can_end.store(true, Ordering::SeqCst);
    eventually("the object is deleted", async || {
        client.get::<Widget>(&one).await.unwrap().is_none().then_some(())
    })
    .await;
    // The removal of the other finalizer did not repeat a cleanup that was done.
    assert_eq!(first.done.load(Ordering::SeqCst), 1);
    assert_eq!(second.done.load(Ordering::SeqCst), 1);
}

// R101: a namespace that is being deleted
#[steersman_testing::test]
async fn a_cleanup_survives_a_namespace_that_is_being_deleted(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    let doomed = format!("{}-doomed", fixture.namespace());
    let namespace = json!({"metadata": {"name": doomed}});
    client.create(&object::<Namespace>(namespace)).await.unwrap();
    let mut one = widget(&fixture, "one", "go");
    one.metadata.namespace = Some(doomed.clone());
    // Held, so that the namespace cannot end before the test.
    one.metadata.finalizers = Some(vec![
        "example.com/other".to_owned(),
        Cleaning::FINALIZER.to_owned(),
    ]);
    client.create(&one).await.unwrap();
    client
        .delete::<Namespace>(&ObjectKey::new("", &doomed), DeleteOptions::default())
        .await
        .unwrap();
    let cleanups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&cleanups);
    let reconciler = managed(Cleaning {
        reconcile: Arc::new(|widget, work| {
            Box::pin(async move {
                work.child(Cond::Configured, map_of(widget)).await;
                Ok(Action::await_change())
            })
        }),
        cleanup: Arc::new(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(Cleaned::Done) })
        }),
    });
    let key = ObjectKey::new(&doomed, "one");
    // Nothing can be created there. That is not an error: the parent is deleted too.
    call(&stand, key.clone(), &reconciler).await;
    let found = client.get_required::<Widget>(&key).await.unwrap();
    if found.metadata.deletion_timestamp.is_none() {
        assert_eq!(condition(&found, "Configured").1, "Terminating");
        client
            .delete::<Widget>(&key, DeleteOptions::default())
            .await
            .unwrap();
        call(&stand, key.clone(), &reconciler).await;
    }
    assert_eq!(cleanups.load(Ordering::SeqCst), 1);
    assert_eq!(
        client.get_required::<Widget>(&key).await.unwrap().finalizers(),
        ["example.com/other"]
    );
}
