// SPDX-License-Identifier: Apache-2.0
//! Errors of user code: in the status, retried, and limited by a budget.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use kube::{CustomResourceExt, api::Patch};
use serde_json::json;
use steersman_cluster::DeleteOptions;
use steersman_core::Action;
use steersman_kit::{Managed, managed};
use steersman_runtime::Controller;
use steersman_testing::{Fixture, eventually};

use super::support::*;

/// Fails while the value of the widget is `fail`.
fn failing() -> (Arc<AtomicUsize>, Managed<Scripted>) {
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let reconciler = scripted(move |widget, work| {
        count.fetch_add(1, Ordering::SeqCst);
        work.status_mut().note = format!("last {}", work.is_last_attempt());
        Box::pin(async move {
            work.set_true(Cond::Available);
            if widget.spec.value == "fail" {
                return Err("the registry is down".into());
            }
            work.set_true(Cond::Configured);
            Ok(Action::await_change())
        })
    });
    (attempts, managed(reconciler))
}

// R113, guarantee 5
#[steersman_testing::test]
async fn guarantee_5_an_error_reaches_the_status_by_the_hook_and_is_retried(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let cluster = cluster_builder(&fixture, "default").build().await.unwrap();
    let client = cluster.live();
    let manager = manager(cluster).await;
    let (attempts, reconciler) = failing();
    Controller::of::<Widget>("widgets")
        .add_to(&manager, reconciler)
        .unwrap();
    let _running = run(manager);
    let one = key(&fixture, "one");
    client.create(&widget(&fixture, "one", "fail")).await.unwrap();
    let found = when_condition(&client, &one, "Configured", ("False", "ReconcileFailed")).await;
    let status = found.status.as_ref().unwrap();
    assert_eq!(
        status.conditions.named("Configured").unwrap().message,
        "the registry is down"
    );
    assert_eq!(condition(&found, "Available").0, "True");
    let tried = || attempts.load(Ordering::SeqCst);
    eventually("it is retried", async || (tried() >= 3).then_some(())).await;
    let version = client
        .get_required::<Widget>(&one)
        .await
        .unwrap()
        .metadata
        .resource_version
        .clone();
    let before = tried();
    eventually("it is retried again", async || (tried() > before).then_some(())).await;
    let now = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        now.metadata.resource_version, version,
        "the same failure is not written again"
    );
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"value": "work"}})))
        .await
        .unwrap();
    when_condition(&client, &one, "Ready", ("True", "AllConditionsMet")).await;
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
}

// R113
#[steersman_testing::test]
async fn a_retry_budget_ends_the_retries_of_a_generation(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "fail").await;
    let (attempts, reconciler) = failing();
    let reconciler = reconciler.retry_budget(3);
    let note = async || {
        client
            .get_required::<Widget>(&one)
            .await
            .unwrap()
            .status
            .clone()
            .unwrap()
            .note
    };
    for attempt in 1..=4 {
        let outcome = stand.call(one.clone(), &reconciler).await;
        let error = outcome.result.unwrap_err();
        let is_terminal = error.downcast_ref::<steersman_runtime::Terminal>().is_some();
        assert_eq!(is_terminal, attempt >= 3, "attempt {attempt}");
        assert_eq!(note().await, format!("last {}", attempt >= 3));
        let events: Vec<_> = outcome.events.iter().map(ToString::to_string).collect();
        let expected: &[&str] = if attempt == 3 {
            &["Warning RetriesExhausted"]
        } else {
            &[]
        };
        assert_eq!(events, expected);
    }
    // A new generation has a new budget.
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"size": 2}})))
        .await
        .unwrap();
    let error = stand.call(one.clone(), &reconciler).await.result.unwrap_err();
    assert!(error.downcast_ref::<steersman_runtime::Terminal>().is_none());
    // And success restores it.
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"value": "work"}})))
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(attempts.load(Ordering::SeqCst), 6);
}
