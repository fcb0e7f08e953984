// SPDX-License-Identifier: Apache-2.0
//! The stages of a reconcile, and what they promise.

use kube::{ResourceExt, api::Patch};
use serde_json::json;
use steersman_cluster::DeleteOptions;
use steersman_core::Action;
use steersman_kit::{lint_status, managed};
use steersman_testing::Fixture;

use super::support::*;

// R100, R101
#[steersman_testing::test]
async fn an_object_that_is_absent_or_being_deleted_is_left_alone(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    let one = key(&fixture, "one");
    let reconciler = managed(configured());
    assert_eq!(call(&stand, one.clone(), &reconciler).await, [""; 0]);
    let mut held = widget(&fixture, "one", "1");
    held.metadata.finalizers = Some(vec!["example.com/foreign".to_owned()]);
    client.create(&held).await.unwrap();
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    assert_eq!(call(&stand, one.clone(), &reconciler).await, [""; 0]);
}

// R102, R104, guarantee 1
#[steersman_testing::test]
async fn guarantee_1_changes_of_spec_and_metadata_are_never_written(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    let one = key(&fixture, "one");
    let before = client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let reconciler = managed(scripted(|widget, work| {
        Box::pin(async move {
            let mut changed = widget.clone();
            changed.spec.value = "leaked".to_owned();
            changed.metadata.labels = Some([("leaked".to_owned(), "yes".to_owned())].into());
            work.status_mut().note = changed.spec.value;
            Ok(Action::await_change())
        })
    }));
    let writes = call(&stand, one.clone(), &reconciler).await;
    assert_eq!(
        writes,
        [format!(
            "apply widgets.kit.steersman.example {}/one status",
            fixture.namespace()
        )]
    );
    let after = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        (&after.spec.value, after.labels().len(), after.metadata.generation),
        (&"1".to_owned(), 0, before.metadata.generation)
    );
    assert_eq!(after.status.as_ref().unwrap().note, "leaked");
}

// R103, R106, R176, guarantees 2 and 3
#[steersman_testing::test]
async fn guarantee_2_the_status_is_written_once_with_all_conditions_and_then_not_again(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(scripted(|widget, work| {
        Box::pin(async move {
            // Set in the first generation only.
            if widget.spec.value == "1" {
                work.set_true(Cond::Available);
            }
            Ok(Action::await_change())
        })
    }));
    assert_eq!(call(&stand, one.clone(), &reconciler).await.len(), 1);
    assert_eq!(call(&stand, one.clone(), &reconciler).await, [""; 0]);
    let found = client.get_required::<Widget>(&one).await.unwrap();
    let names: Vec<_> = found
        .status
        .as_ref()
        .unwrap()
        .conditions
        .iter()
        .map(|one| one.type_.clone())
        .collect();
    assert_eq!(names, ["Ready", "Available", "Configured"]);
    assert_eq!(condition(&found, "Configured").0, "Unknown");
    assert_eq!(condition(&found, "Available").0, "True");
    assert_eq!(found.status.as_ref().unwrap().observed_generation, Some(1));
    assert_eq!(lint_status(&serde_json::to_value(&*found).unwrap()), []);
    // A statement about a former generation does not survive it.
    let change = Patch::Merge(json!({"spec": {"value": "2"}}));
    client.patch::<Widget>(&one, &change).await.unwrap();
    assert_eq!(call(&stand, one.clone(), &reconciler).await.len(), 1);
    let found = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(condition(&found, "Available").0, "Unknown");
    assert_eq!(found.status.as_ref().unwrap().observed_generation, Some(2));
    assert_eq!(lint_status(&serde_json::to_value(&*found).unwrap()), []);
}

// R104, guarantee 3
#[steersman_testing::test]
async fn guarantee_3_a_spec_that_changed_during_the_reconcile_is_reconciled_again(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let beside = client.clone();
    let reconciler = managed(scripted(move |widget, work| {
        let beside = beside.clone();
        Box::pin(async move {
            if widget.spec.value == "1" {
                let change = Patch::Merge(json!({"spec": {"value": "2"}}));
                beside.patch::<Widget>(work.request().key(), &change).await?;
            }
            work.status_mut().note = widget.spec.value.clone();
            Ok(Action::await_change())
        })
    }));
    let outcome = stand.call(one.clone(), &reconciler).await;
    assert_eq!(
        outcome.result.unwrap(),
        Action::requeue_after(std::time::Duration::ZERO)
    );
    let found = client.get_required::<Widget>(&one).await.unwrap();
    let status = found.status.clone().unwrap();
    assert_eq!(
        (
            &*status.note,
            status.observed_generation,
            found.metadata.generation
        ),
        ("1", Some(1), Some(2))
    );
    let outcome = stand.call(one.clone(), &reconciler).await;
    assert_eq!(outcome.result.unwrap(), Action::await_change());
    let status = client
        .get_required::<Widget>(&one)
        .await
        .unwrap()
        .status
        .clone()
        .unwrap();
    assert_eq!((&*status.note, status.observed_generation), ("2", Some(2)));
}

// R103, R104, guarantee 4
#[steersman_testing::test]
async fn a_status_of_a_replaced_object_is_dropped(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let (beside, next) = (client.clone(), widget(&fixture, "one", "2"));
    let reconciler = managed(scripted(move |_, work| {
        let (beside, next) = (beside.clone(), next.clone());
        Box::pin(async move {
            let key = work.request().key().clone();
            beside.delete::<Widget>(&key, DeleteOptions::default()).await?;
            beside.create(&next).await?;
            work.status_mut().note = "about the former".to_owned();
            Ok(Action::await_change())
        })
    }));
    call(&stand, one.clone(), &reconciler).await;
    let found = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(found.status.clone().unwrap_or_default(), WidgetStatus::default());
}
