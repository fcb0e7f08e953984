// SPDX-License-Identifier: Apache-2.0
//! Reconcilers called as the functions they are, without a controller: line by line of a table.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch},
};
use serde_json::{Value, json};
use steersman_cluster::{DeleteOptions, EventType};
use steersman_core::Action;
use steersman_runtime::{
    BoxError, Context, Reconciler, Request, reconcile_fn, terminal,
    testing::{Case, Stand},
};
use steersman_testing::Fixture;
use support::{key, object};

/// Keeps `copy` equal to `value`, and deletes objects that are `done`.
async fn tidy_up(request: Request, cx: Context) -> Result<Action, BoxError> {
    let Some(map) = cx.client().get::<ConfigMap>(request.key()).await? else {
        return Ok(Action::await_change());
    };
    let data = map.data.clone().unwrap_or_default();
    let Some(value) = data.get("value") else {
        cx.recorder().event(
            &*map,
            EventType::Warning,
            "NoValue",
            "TidyUp",
            "there is nothing to copy",
        );
        return Err(terminal("it has no value").into());
    };
    if value == "done" {
        // By the raw client, which is seen as well.
        let maps: Api<ConfigMap> = Api::namespaced(cx.kube(), request.namespace());
        maps.delete(&map.name_any(), &DeleteOptions::default()).await?;
        cx.recorder().event(
            &*map,
            EventType::Normal,
            "Done",
            "TidyUp",
            "it is not needed any more",
        );
        return Ok(Action::await_change());
    }
    if data.get("copy") != Some(value) {
        let copy = Patch::Merge(json!({"data": {"copy": value}}));
        cx.client().patch::<ConfigMap>(request.key(), &copy).await?;
        return Ok(Action::requeue());
    }
    Ok(Action::await_change())
}

fn map(fixture: &Fixture, name: &str, data: &Value) -> ConfigMap {
    object(json!({"metadata": {"name": name, "namespace": fixture.namespace()}, "data": data}))
}

#[steersman_testing::test]
async fn the_table_of_a_reconciler(fixture: Fixture) {
    let stand = Stand::new(fixture.client()).await.unwrap();
    let at = |name: &str| key(&fixture, name);
    let namespace = fixture.namespace();
    let table = [
        Case::new("one that is gone is none of our business").request(at("gone")),
        Case::new("one that differs is made equal")
            .given(&map(&fixture, "differs", &json!({"value": "1"})))
            .writes([format!("patch configmaps {namespace}/differs")])
            .action(Action::requeue()),
        Case::new("one that is equal is left alone").given(&map(
            &fixture,
            "equal",
            &json!({"value": "1", "copy": "1"}),
        )),
        Case::new("one that is done is deleted")
            .given(&map(&fixture, "done", &json!({"value": "done"})))
            .writes([format!("delete configmaps {namespace}/done")])
            .events(["Normal Done"]),
        Case::new("one without a value is a mistake")
            .given(&map(&fixture, "mistake", &json!({})))
            .fails("it has no value")
            .events(["Warning NoValue"]),
    ];
    let reconciler = reconcile_fn(tidy_up);
    for case in table {
        case.check(&stand, &reconciler).await;
    }
    // A second look at the first one changes nothing.
    let again = Case::new("again").request(at("differs"));
    again.check(&stand, &reconciler).await;
}

#[steersman_testing::test]
async fn a_case_that_does_not_hold_is_named(fixture: Fixture) {
    let stand = Stand::new(fixture.client()).await.unwrap();
    let case = Case::new("the wrong expectation")
        .given(&map(&fixture, "a", &json!({"value": "1"})))
        .action(Action::requeue())
        .writes(["delete configmaps x/y"]);
    let reconciler = reconcile_fn(tidy_up);
    let checked = std::panic::AssertUnwindSafe(case.check(&stand, &reconciler));
    let panic = futures::FutureExt::catch_unwind(checked).await.unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("the wrong expectation: what was written"), "{text}");
}

#[steersman_testing::test]
async fn events_are_compared_on_their_own_and_are_with_the_server_when_a_call_has_ended(fixture: Fixture) {
    let stand = Stand::new(fixture.client()).await.unwrap();
    let mistake = map(&fixture, "mistake", &json!({}));
    let reconciler = reconcile_fn(tidy_up);
    let case = Case::new("the first time")
        .given(&mistake)
        .fails("no value")
        .events(["Warning NoValue"]);
    let outcome = case.check(&stand, &reconciler).await;
    assert_eq!(outcome.events[0].action, "TidyUp");
    assert_eq!(outcome.events[0].regarding.name.as_deref(), Some("mistake"));
    let events: Api<Event> = Api::namespaced(fixture.client(), fixture.namespace());
    let written = events.list(&ListParams::default()).await.unwrap();
    assert_eq!(written.items[0].reason.as_deref(), Some("NoValue"));
    // Of repetitions the recorder writes what it likes, but all of them are recorded.
    for _ in 0..3 {
        let again = Case::new("again").request(key(&fixture, "mistake"));
        let again = again.fails("no value").events(["Warning NoValue"]);
        again.check(&stand, &reconciler).await;
    }
    let forgotten = Case::new("one that nobody expects").request(key(&fixture, "mistake"));
    let forgotten = forgotten.fails("no value");
    let checked = std::panic::AssertUnwindSafe(forgotten.check(&stand, &reconciler));
    let panic = futures::FutureExt::catch_unwind(checked).await.unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("one that nobody expects: the events"), "{text}");
}

#[steersman_testing::test]
async fn a_reconciler_is_a_function_that_a_test_can_call(fixture: Fixture) {
    let cluster = support::cluster_builder(&fixture, "test").build().await.unwrap();
    let differs = map(&fixture, "a", &json!({"value": "1"}));
    cluster.live().create(&differs).await.unwrap();
    let (_handle, cx) = Context::standalone(&cluster);
    assert_eq!(cx.controller(), "standalone");
    let request = Request::new("test".into(), key(&fixture, "a"));
    let action = reconcile_fn(tidy_up).reconcile(request, cx).await.unwrap();
    assert_eq!(action, Action::requeue());
}

/// Releases the finalizer of what is being deleted.
async fn release(request: Request, cx: Context) -> Result<Action, BoxError> {
    let map = cx.client().get_required::<ConfigMap>(request.key()).await?;
    assert!(map.metadata.deletion_timestamp.is_some(), "{map:?}");
    let without = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    cx.client().patch::<ConfigMap>(request.key(), &without).await?;
    Ok(Action::await_change())
}

// D27
#[steersman_testing::test]
async fn a_case_gives_an_object_under_deletion(fixture: Fixture) {
    let stand = Stand::new(fixture.client()).await.unwrap();
    let mut deleted = map(&fixture, "deleted", &json!({}));
    deleted.metadata.finalizers = Some(vec!["example.com/keep".to_owned()]);
    deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    Case::new("the finalizer of a deleted object is released")
        .given(&deleted)
        .writes([format!("patch configmaps {}/deleted", fixture.namespace())])
        .check(&stand, &reconcile_fn(release))
        .await;
    let left = stand
        .cluster()
        .live()
        .get::<ConfigMap>(&key(&fixture, "deleted"))
        .await;
    assert!(left.unwrap().is_none());
}
