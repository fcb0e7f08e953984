// SPDX-License-Identifier: Apache-2.0
//! Several handlers of one object, each with its own condition.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Patch;
use serde_json::json;
use steersman_core::{Action, error_chain};
use steersman_kit::{KindReconciler, NoCleanup, StatusHandler, Work, managed};
use steersman_runtime::{BoxError, is_terminal, terminal, testing::Stand};
use steersman_testing::Fixture;

use super::support::*;

/// A reconciler of two handlers.
struct Two;

impl KindReconciler for Two {
    type Kind = Widget;
    type Status = WidgetStatus;
    type Children = (ConfigMap,);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.handle(&Registration, widget).await;
        work.handle(&Configuration, widget).await;
        Ok(Action::requeue_after(Duration::from_secs(60)))
    }
}

/// Its result is the value of the widget.
struct Registration;

impl StatusHandler<Two> for Registration {
    const CONDITION: Cond = Cond::Available;

    async fn handle(&self, widget: &Widget, work: &mut Work<Two>) -> Result<Action, BoxError> {
        match &*widget.spec.value {
            "fail" => Err("the registry is down".into()),
            "fail for a reason" => {
                work.set_false(Cond::Available, "QuotaExceeded", "no more widgets");
                Err("the registry rejected it".into())
            }
            "give up" => Err(terminal("no such registry").into()),
            "panic" => panic!("out of order"),
            "wait" => {
                work.set_unknown(Cond::Available, "Registering", "in a moment");
                Ok(Action::requeue_after(Duration::from_secs(5)))
            }
            _ => Ok(Action::await_change()),
        }
    }
}

/// Keeps a ConfigMap.
struct Configuration;

impl StatusHandler<Two> for Configuration {
    const CONDITION: Cond = Cond::Configured;

    async fn handle(&self, widget: &Widget, work: &mut Work<Two>) -> Result<Action, BoxError> {
        work.child(Cond::Configured, map_of(widget)).await;
        Ok(Action::requeue_after(Duration::from_secs(30)))
    }
}

/// Status and reason of the two conditions.
async fn both(stand: &Stand, fixture: &Fixture) -> [(String, String); 2] {
    let client = stand.cluster().live();
    let found = client.get_required::<Widget>(&key(fixture, "one")).await.unwrap();
    [condition(&found, "Available"), condition(&found, "Configured")]
}

fn texts(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[steersman_testing::test]
async fn guarantee_3_a_failed_handler_sets_its_condition_and_the_next_one_runs(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "fail").await;
    let reconciler = managed(Two);
    let error = stand.call(one.clone(), &reconciler).await.result.unwrap_err();
    assert_eq!(
        error_chain(&*error),
        "handler `Available` failed: the registry is down"
    );
    assert!(!is_terminal(&error), "it is retried");
    let expected = [texts("False", "Failed"), texts("True", "Configured")];
    assert_eq!(both(&stand, &fixture).await, expected);
    assert!(client.get::<ConfigMap>(&one).await.unwrap().is_some());

    let reason = Patch::Merge(json!({"spec": {"value": "fail for a reason"}}));
    client.patch::<Widget>(&one, &reason).await.unwrap();
    assert!(stand.call(one.clone(), &reconciler).await.result.is_err());
    assert_eq!(
        both(&stand, &fixture).await[0],
        texts("False", "QuotaExceeded"),
        "the reason of the handler is kept"
    );

    let work = Patch::Merge(json!({"spec": {"value": "work"}}));
    client.patch::<Widget>(&one, &work).await.unwrap();
    let action = stand.call(one, &reconciler).await.result.unwrap();
    assert_eq!(both(&stand, &fixture).await[0], texts("True", "Available"));
    assert_eq!(action, Action::requeue_after(Duration::from_secs(30)));
}

#[steersman_testing::test]
async fn guarantee_2_and_5_a_handler_can_wait_and_the_earliest_requeue_counts(fixture: Fixture) {
    let (stand, _, one) = with_widget(&fixture, "wait").await;
    let action = stand.call(one, &managed(Two)).await.result.unwrap();
    assert_eq!(action, Action::requeue_after(Duration::from_secs(5)));
    assert_eq!(both(&stand, &fixture).await[0], texts("Unknown", "Registering"));
}

// R160
#[steersman_testing::test]
async fn guarantee_4_a_panic_sets_the_condition_and_continues_after_the_status(fixture: Fixture) {
    let (stand, _, one) = with_widget(&fixture, "panic").await;
    let reconciler = managed(Two);
    let calling = AssertUnwindSafe(stand.call(one, &reconciler));
    assert!(calling.catch_unwind().await.is_err());
    let expected = [texts("False", "Panicked"), texts("True", "Configured")];
    assert_eq!(both(&stand, &fixture).await, expected);
}

#[steersman_testing::test]
async fn guarantee_6_one_error_that_can_be_retried_is_enough_for_a_retry(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "give up").await;
    let error = stand.call(one, &managed(Two)).await.result.unwrap_err();
    assert!(is_terminal(&error), "{}", error_chain(&*error));
    client.create(&widget(&fixture, "two", "1")).await.unwrap();
    let error = stand
        .call(key(&fixture, "two"), &managed(Rejected))
        .await
        .result
        .unwrap_err();
    assert!(!is_terminal(&error), "{}", error_chain(&*error));
    assert!(error_chain(&*error).starts_with("2 children or handlers failed"));
}

/// A terminal handler, and a child that the server rejects.
struct Rejected;

impl KindReconciler for Rejected {
    type Kind = Widget;
    type Status = WidgetStatus;
    type Children = (ConfigMap,);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.handle(&GivingUp, widget).await;
        let invalid = object(json!({"metadata": {"name": "two"}, "data": {"no key": "a"}}));
        work.child::<ConfigMap, _>(Cond::Configured, invalid).await;
        Ok(Action::await_change())
    }
}

struct GivingUp;

impl StatusHandler<Rejected> for GivingUp {
    const CONDITION: Cond = Cond::Available;

    async fn handle(&self, _: &Widget, _: &mut Work<Rejected>) -> Result<Action, BoxError> {
        Err(terminal("no such registry").into())
    }
}
