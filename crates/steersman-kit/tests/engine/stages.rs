// SPDX-License-Identifier: Apache-2.0
//! Each stage alone, in a plain reconciler.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use serde_json::json;
use steersman_core::Action;
use steersman_kit::{
    ChildMemory, ChildRules, ChildState, Children, KindReconciler, NoCleanup, NoConditions, NoStatus,
    StatusWrite, Work, apply_status, managed, update_status,
};
use steersman_runtime::{BoxError, Context, Controller, Request, kind, reconcile_fn, testing::Stand};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};

use super::support::*;

// R115, R108, R111
#[steersman_testing::test]
async fn children_are_usable_in_a_plain_reconciler(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let cluster = cluster_builder(&fixture, "default").build().await.unwrap();
    let client = cluster.live();
    let manager = manager(cluster).await;
    let memory = ChildMemory::new();
    let remembered = memory.clone();
    let reconciler = reconcile_fn(move |request: Request, cx: Context| {
        let memory = remembered.clone();
        async move {
            let Some(widget) = cx.client().get::<Widget>(request.key()).await? else {
                memory.forget(&request);
                return Ok::<_, BoxError>(Action::await_change());
            };
            let children = Children::of(&*widget, &cx, &memory)?;
            let state = children.reconcile(map_of(&widget), &ChildRules::new()).await?;
            let mut status = widget.status.clone().unwrap_or_default();
            let before = status.clone();
            status.note = match state {
                ChildState::Live(map) => format!("live {}", map.name_any()),
                ChildState::Foreign => "foreign".to_owned(),
                _ => "other".to_owned(),
            };
            apply_status(cx.client(), &*widget, &before, &status).await?;
            Ok(Action::await_change())
        }
    });
    Controller::of::<Widget>("plain")
        .owns::<ConfigMap>()
        .watches(kind::<ConfigMap>(), memory.handler::<ConfigMap>())
        .add_to(&manager, reconciler)
        .unwrap();
    let _running = run(manager);
    let orphan = json!({"metadata": {"name": "one", "namespace": fixture.namespace()}});
    client.create(&object::<ConfigMap>(orphan)).await.unwrap();
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let one = key(&fixture, "one");
    let noted = async |note: &str| {
        steersman_testing::eventually(note, async || {
            let found = client.get_required::<Widget>(&one).await.unwrap();
            (found.status.as_ref()?.note == note).then_some(())
        })
        .await;
    };
    noted("foreign").await;
    client
        .delete::<ConfigMap>(&one, Default::default())
        .await
        .unwrap();
    noted("live one").await;
}

// R104, guarantee 5
#[steersman_testing::test]
async fn guarantee_5_a_put_of_the_status_is_repeated_after_a_conflict(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy).await;
    let (client, one) = (cluster.live(), key(&fixture, "one"));
    let read = client.create(&widget(&fixture, "one", "1")).await.unwrap();
    // Another client writes another part of the object.
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    client.patch::<Widget>(&one, &label).await.unwrap();
    let change = |widget: &mut Widget| {
        widget.status.get_or_insert_default().note = "mine".to_owned();
        widget.spec.value = "leaked".to_owned();
        widget.metadata.labels = None;
    };
    assert_eq!(
        update_status(&client, &read, change).await.unwrap(),
        StatusWrite::Written
    );
    let found = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        (
            &*found.status.clone().unwrap().note,
            &*found.spec.value,
            found.labels().len()
        ),
        ("mine", "1", 1)
    );
    let puts = || proxy.exchanges().iter().filter(|one| one.method == "PUT").count();
    assert_eq!(puts(), 2);
    // The same again is not sent.
    assert_eq!(
        update_status(&client, &*found, change).await.unwrap(),
        StatusWrite::Unchanged
    );
    assert_eq!(puts(), 2);
    // One injected conflict: repeated.
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409});
    let conflict = Fault::respond(409, "application/json", status.to_string());
    let injected = proxy.inject(Matching::method("PUT").path("/status").first(1), conflict);
    let other = |widget: &mut Widget| widget.status.get_or_insert_default().note = "other".to_owned();
    assert_eq!(
        update_status(&client, &*found, other).await.unwrap(),
        StatusWrite::Written
    );
    assert_eq!(injected.hits(), 1);
    let third = |widget: &mut Widget| widget.status.get_or_insert_default().note = "third".to_owned();
    // The spec has changed meanwhile: the statement is about a former one.
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"value": "2"}})))
        .await
        .unwrap();
    assert_eq!(
        update_status(&client, &*found, third).await.unwrap(),
        StatusWrite::Outdated
    );
    client.delete::<Widget>(&one, Default::default()).await.unwrap();
    assert_eq!(
        update_status(&client, &*found, third).await.unwrap(),
        StatusWrite::Gone
    );
}

/// A kind without a status, with children.
struct Maps;

impl KindReconciler for Maps {
    type Kind = ConfigMap;
    type Status = NoStatus;
    type Children = (Secret,);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, map: &ConfigMap, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let token = json!({"metadata": {"name": map.name_any()}, "stringData": map.data});
        let token = work.child(NoConditions, object::<Secret>(token)).await;
        assert!(token.is_some());
        Ok(Action::await_change())
    }
}

// R111
#[steersman_testing::test]
async fn a_kind_without_a_status_has_children(fixture: Fixture) {
    let stand = Stand::new(fixture.client()).await.unwrap();
    let (client, one) = (stand.cluster().live(), key(&fixture, "one"));
    let map = json!({"metadata": {"name": "one", "namespace": fixture.namespace()}, "data": {"a": "b"}});
    client.create(&object::<ConfigMap>(map)).await.unwrap();
    let reconciler = managed(Maps);
    call(&stand, one.clone(), &reconciler).await;
    let token = client.get_required::<Secret>(&one).await.unwrap();
    assert!(token.data.as_ref().unwrap().contains_key("a"));
    assert_eq!(token.owner_references()[0].kind, "ConfigMap");
    assert_eq!(call(&stand, one, &reconciler).await, Vec::<String>::new());
}
