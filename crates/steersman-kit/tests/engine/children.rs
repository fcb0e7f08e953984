// SPDX-License-Identifier: Apache-2.0
//! Children, one reconcile at a time.

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, Secret, Service},
};
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use serde_json::json;
use steersman_cluster::{Client, DeleteOptions, ObjectExt};
use steersman_core::{Action, ObjectKey, error_chain};
use steersman_kit::managed;
use steersman_runtime::testing::Stand;
use steersman_testing::{
    Fixture, eventually,
    proxy::{Fault, Matching},
};

use super::support::*;

async fn get(client: &Client, key: &ObjectKey) -> Widget {
    Widget::clone(&*client.get_required::<Widget>(key).await.unwrap())
}

// R111, guarantee 1
#[steersman_testing::test]
async fn guarantee_1_a_missing_child_is_created_with_a_controller_reference(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    let parent = client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let one = key(&fixture, "one");
    let outcome = stand.call(one.clone(), &managed(configured())).await;
    assert_eq!(outcome.result.as_ref().unwrap(), &Action::await_change());
    let (ns, writes) = (fixture.namespace(), writes(&outcome));
    let expected = [
        format!("create configmaps {ns}/one"),
        format!("patch configmaps {ns}/one"),
        format!("apply widgets.kit.steersman.example {ns}/one status"),
    ];
    assert_eq!(writes, expected);
    let map = client.get_required::<ConfigMap>(&one).await.unwrap();
    let owner = &map.owner_references()[0];
    assert_eq!(
        (owner.controller, &owner.uid),
        (Some(true), &parent.uid().unwrap())
    );
    let managers: Vec<_> = map
        .managed_fields()
        .iter()
        .map(|entry| entry.operation.clone().unwrap())
        .collect();
    assert_eq!(managers, ["Apply"]);
}

// R109, R176, guarantee 2
#[steersman_testing::test]
async fn guarantee_2_a_foreign_object_is_not_written_and_the_next_child_is_reconciled(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    // It is controlled by an object of the same kind, with another name.
    let mut foreign = deployment_of(&widget(&fixture, "one", "1"));
    foreign.metadata.namespace = Some(fixture.namespace().to_owned());
    let other = client.create(&widget(&fixture, "other", "1")).await.unwrap();
    foreign.set_controller_reference(&other).unwrap();
    let foreign = client.create(&foreign).await.unwrap();
    let status = json!({"status": {"replicas": 7, "readyReplicas": 7, "observedGeneration": 1}});
    let foreign_status = client
        .patch_status::<Deployment>(&one, &Patch::Merge(status))
        .await
        .unwrap();
    let reconciler = managed(deployed());
    for _ in 0..2 {
        call(&stand, one.clone(), &reconciler).await;
    }
    let found = get(&client, &one).await;
    assert_eq!(
        condition(&found, "Available"),
        ("False".into(), "NotOwned".into())
    );
    assert_eq!(condition(&found, "Ready").0, "False");
    assert_eq!(
        found.status.unwrap().ready_replicas,
        0,
        "the state of a foreign object is not copied"
    );
    let now = client.get_required::<Deployment>(&one).await.unwrap();
    assert_eq!(
        (now.uid(), now.resource_version()),
        (foreign.uid(), foreign_status.resource_version())
    );
    assert!(
        client.get::<ConfigMap>(&one).await.unwrap().is_some(),
        "the next child is created"
    );
    // Its confirmation is remembered.
    let again = stand.call(one.clone(), &reconciler).await;
    assert_eq!(writes(&again), [""; 0]);
    // When it is deleted, the child is created.
    client
        .delete::<Deployment>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    let found = get(&client, &one).await;
    assert_eq!(condition(&found, "Available").0, "Unknown");
    assert_ne!(
        client.get_required::<Deployment>(&one).await.unwrap().uid(),
        foreign.uid()
    );
}

// R109
#[steersman_testing::test]
async fn an_orphan_is_foreign_unless_it_may_be_adopted(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    let one = key(&fixture, "one");
    let parent = client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let orphan = json!({"metadata": {"name": "one", "namespace": fixture.namespace()}, "data": {"value": "0", "other": "x"}});
    let orphan: ConfigMap = client.create(&object::<ConfigMap>(orphan)).await.unwrap();
    call(&stand, one.clone(), &managed(configured())).await;
    assert_eq!(condition(&get(&client, &one).await, "Configured").1, "NotOwned");
    let adopting = scripted(|widget, work| {
        Box::pin(async move {
            work.child(Cond::Configured, map_of(widget)).adopt_orphans().await;
            Ok(Action::await_change())
        })
    });
    let adopting = managed(adopting);
    call(&stand, one.clone(), &adopting).await;
    let map = client.get_required::<ConfigMap>(&one).await.unwrap();
    assert_eq!(map.uid(), orphan.uid());
    assert_eq!(map.owner_references()[0].uid, parent.uid().unwrap());
    let data = map.data.clone().unwrap();
    assert_eq!((&*data["value"], &*data["other"]), ("1", "x"));
    assert_eq!(condition(&get(&client, &one).await, "Configured").0, "True");
    assert!(stand.call(one, &adopting).await.writes.is_empty());
}

// R110, guarantee 4
#[steersman_testing::test]
async fn guarantee_4_owned_fields_are_restored_and_others_kept(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(configured());
    call(&stand, one.clone(), &reconciler).await;
    let other = client.field_manager("other").force();
    let change = json!({"data": {"value": "changed", "extra": "kept"}, "metadata": {"labels": {"a": "b"}}});
    other
        .patch::<ConfigMap>(&one, &Patch::Merge(change))
        .await
        .unwrap();
    let outcome = stand.call(one.clone(), &reconciler).await;
    assert_eq!(
        writes(&outcome),
        [format!("apply configmaps {}/one", fixture.namespace())]
    );
    let map = client.get_required::<ConfigMap>(&one).await.unwrap();
    let data = map.data.clone().unwrap();
    assert_eq!(
        (&*data["value"], &*data["extra"], &*map.labels()["a"]),
        ("1", "kept", "b")
    );
    // A removed field is restored too, and the reference to the owner.
    let change = json!({"data": {"value": null}, "metadata": {"ownerReferences": null}});
    other
        .patch::<ConfigMap>(&one, &Patch::Merge(change))
        .await
        .unwrap();
    let outcome = stand.call(one.clone(), &reconciler).await;
    assert_eq!(
        writes(&outcome),
        [format!(
            "apply widgets.kit.steersman.example {}/one status",
            fixture.namespace()
        )]
    );
    assert_eq!(
        condition(&get(&client, &one).await, "Configured").1,
        "NotOwned",
        "without the reference it is foreign"
    );
}

// R110, guarantee 4
#[steersman_testing::test]
async fn guarantee_4_a_field_that_is_not_desired_any_more_is_removed(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(scripted(|widget, work| {
        Box::pin(async move {
            let mut map = map_of(widget);
            if widget.spec.color.is_none() {
                map.data
                    .get_or_insert_default()
                    .insert("extra".into(), "x".into());
            }
            work.child(Cond::Configured, map).await;
            Ok(Action::await_change())
        })
    }));
    call(&stand, one.clone(), &reconciler).await;
    let change = Patch::Merge(json!({"spec": {"color": "red"}}));
    client.patch::<Widget>(&one, &change).await.unwrap();
    call(&stand, one.clone(), &reconciler).await;
    let data = client
        .get_required::<ConfigMap>(&one)
        .await
        .unwrap()
        .data
        .clone()
        .unwrap();
    assert_eq!(
        data.into_iter().collect::<Vec<_>>(),
        [("value".to_owned(), "1".to_owned())]
    );
}

// R111, guarantee 4
#[steersman_testing::test]
async fn guarantee_4_a_crash_after_the_create_leaves_no_field_behind(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live().field_manager("widgets");
    let one = key(&fixture, "one");
    let parent = client.create(&widget(&fixture, "one", "1")).await.unwrap();
    // The process that created it ended before it took the fields over.
    let mut map = map_of(&parent);
    map.metadata.namespace = Some(fixture.namespace().to_owned());
    map.data.get_or_insert_default().insert("old".into(), "x".into());
    map.set_controller_reference(&parent).unwrap();
    client.create(&map).await.unwrap();
    call(&stand, one.clone(), &managed(configured())).await;
    let map = client.get_required::<ConfigMap>(&one).await.unwrap();
    let data = map.data.clone().unwrap();
    assert_eq!(
        data.into_iter().collect::<Vec<_>>(),
        [("value".to_owned(), "1".to_owned())]
    );
    let operations: Vec<_> = map
        .managed_fields()
        .iter()
        .map(|entry| entry.operation.clone().unwrap())
        .collect();
    assert_eq!(operations, ["Apply"]);
}

// R108, R103, guarantees 5 and 8
#[steersman_testing::test]
async fn guarantee_8_after_a_failover_a_child_is_applied_once(fixture: Fixture) {
    let (stand, _, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(deployed());
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(call(&stand, one.clone(), &reconciler).await, [""; 0]);
    let (ns, next) = (fixture.namespace(), managed(deployed()));
    let outcome = stand.call(one.clone(), &next).await;
    let expected = [
        format!("apply deployments.apps {ns}/one"),
        format!("apply configmaps {ns}/one"),
    ];
    assert_eq!(writes(&outcome), expected);
    assert_eq!(call(&stand, one.clone(), &next).await, [""; 0]);
}

// R175, guarantee 7
#[steersman_testing::test]
async fn guarantee_7_a_child_under_deletion_is_not_written_and_is_created_again(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(configured());
    call(&stand, one.clone(), &reconciler).await;
    let first = client.get_required::<ConfigMap>(&one).await.unwrap();
    client.add_finalizer(&*first, "example.com/wait").await.unwrap();
    client
        .delete::<ConfigMap>(&one, DeleteOptions::default())
        .await
        .unwrap();
    let change = Patch::Merge(json!({"spec": {"value": "2"}}));
    client.patch::<Widget>(&one, &change).await.unwrap();
    let deleting = client.get_required::<ConfigMap>(&one).await.unwrap();
    let outcome = stand.call(one.clone(), &reconciler).await;
    assert_eq!(writes(&outcome).len(), 1, "only the status: {:?}", outcome.writes);
    assert_eq!(
        condition(&get(&client, &one).await, "Configured"),
        ("Unknown".into(), "Terminating".into())
    );
    let now = client.get_required::<ConfigMap>(&one).await.unwrap();
    assert_eq!(now.resource_version(), deleting.resource_version());
    client.remove_finalizer(&*now, "example.com/wait").await.unwrap();
    call(&stand, one.clone(), &reconciler).await;
    let second = client.get_required::<ConfigMap>(&one).await.unwrap();
    assert_ne!(second.uid(), first.uid());
    assert_eq!(second.data.as_ref().unwrap()["value"], "2");
}

// R175, R109, guarantee 7
#[steersman_testing::test]
async fn guarantee_7_a_child_of_a_former_parent_of_the_name_is_waited_for(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(configured());
    call(&stand, one.clone(), &reconciler).await;
    // Keep the child: no garbage collector runs on these servers.
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    client.create(&widget(&fixture, "one", "2")).await.unwrap();
    let left = client.get_required::<ConfigMap>(&one).await.unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(
        condition(&get(&client, &one).await, "Configured").1,
        "Terminating"
    );
    let now = client.get_required::<ConfigMap>(&one).await.unwrap();
    assert_eq!(now.resource_version(), left.resource_version());
    client
        .delete::<ConfigMap>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(
        client
            .get_required::<ConfigMap>(&one)
            .await
            .unwrap()
            .data
            .as_ref()
            .unwrap()["value"],
        "2"
    );
}

// R110
#[steersman_testing::test]
async fn an_ignored_field_is_set_once_and_then_left_to_others(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(scripted(|widget, work| {
        Box::pin(async move {
            let mut deployment = deployment_of(widget);
            deployment.metadata.labels = Some([("value".to_owned(), widget.spec.value.clone())].into());
            work.child(Cond::Available, deployment)
                .ignore("/spec/replicas")
                .await;
            Ok(Action::await_change())
        })
    }));
    call(&stand, one.clone(), &reconciler).await;
    let replicas = async || {
        client
            .get_required::<Deployment>(&one)
            .await
            .unwrap()
            .spec
            .replicas
    };
    assert_eq!(replicas().await, Some(1));
    let scaled = json!({"spec": {"replicas": 5}});
    let autoscaler = client.field_manager("autoscaler");
    autoscaler
        .patch::<Deployment>(&one, &Patch::Merge(scaled))
        .await
        .unwrap();
    let only_status = [format!(
        "apply widgets.kit.steersman.example {}/one status",
        fixture.namespace()
    )];
    assert_eq!(call(&stand, one.clone(), &reconciler).await, only_status);
    let change = Patch::Merge(json!({"spec": {"value": "2"}}));
    client.patch::<Widget>(&one, &change).await.unwrap();
    call(&stand, one.clone(), &reconciler).await;
    let deployment = client.get_required::<Deployment>(&one).await.unwrap();
    assert_eq!(
        (deployment.spec.replicas, &*deployment.labels()["value"]),
        (Some(5), "2")
    );
}

// R110
#[steersman_testing::test]
async fn a_child_with_immutable_fields_is_deleted_and_created_again_by_rule(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "a").await;
    let with = |recreates: bool| {
        managed(scripted(move |widget, work| {
            Box::pin(async move {
                let labels = json!({"app": widget.spec.value});
                let set: StatefulSet = object(json!({
                    "metadata": {"name": "one"},
                    "spec": {
                        "serviceName": widget.spec.value, "selector": {"matchLabels": labels},
                        "template": {
                            "metadata": {"labels": labels},
                            "spec": {"containers": [{"name": "web", "image": "web:1"}]},
                        },
                    },
                }));
                let call = work.child(Cond::Available, set);
                let call = match recreates {
                    true => {
                        call.recreate_if(|live, desired| live.spec.service_name != desired.spec.service_name)
                    }
                    false => call,
                };
                call.await;
                Ok(Action::await_change())
            })
        }))
    };
    let (plain, recreating) = (with(false), with(true));
    call(&stand, one.clone(), &recreating).await;
    let first = client.get_required::<StatefulSet>(&one).await.unwrap();
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"value": "b"}})))
        .await
        .unwrap();
    // Without the rule, the server rejects the change. The error is in the condition.
    let error = stand.call(one.clone(), &plain).await.result.unwrap_err();
    assert!(
        error_chain(&*error).contains("statefulsets"),
        "{}",
        error_chain(&*error)
    );
    assert_eq!(
        condition(&get(&client, &one).await, "Available"),
        ("False".into(), "Failed".into())
    );
    let ns = fixture.namespace();
    let outcome = stand.call(one.clone(), &recreating).await;
    assert_eq!(writes(&outcome)[0], format!("delete statefulsets.apps {ns}/one"));
    call(&stand, one.clone(), &recreating).await;
    let second = client.get_required::<StatefulSet>(&one).await.unwrap();
    assert_ne!(second.uid(), first.uid());
    assert_eq!(second.spec.service_name.as_deref(), Some("b"));
    assert_eq!(call(&stand, one.clone(), &recreating).await, [""; 0]);
}

// R112
#[steersman_testing::test]
async fn readiness_sets_the_condition_and_the_worst_child_counts(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(scripted(|widget, work| {
        Box::pin(async move {
            let deployment = work.child(Cond::Available, deployment_of(widget)).await;
            let ready = deployment.and_then(|found| found.status.as_ref()?.ready_replicas);
            work.status_mut().ready_replicas = ready.unwrap_or(0);
            // Ready at once, and after the worse one.
            work.child(Cond::Available, map_of(widget)).await;
            let service: Service =
                object(json!({"metadata": {"name": "one"}, "spec": {"ports": [{"port": 80}]}}));
            let is_ready = |service: &Service| service.labels().contains_key("ready");
            work.child(Cond::Configured, service).ready_if(is_ready).await;
            Ok(Action::await_change())
        })
    }));
    call(&stand, one.clone(), &reconciler).await;
    let found = get(&client, &one).await;
    assert_eq!(
        (
            condition(&found, "Available").0,
            condition(&found, "Configured").0
        ),
        ("Unknown".into(), "Unknown".into())
    );
    let status = json!({"status": {
        "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 1,
        "conditions": [
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
            {"type": "Available", "status": "True"},
        ],
    }});
    client
        .patch_status::<Deployment>(&one, &Patch::Merge(status))
        .await
        .unwrap();
    let label = json!({"metadata": {"labels": {"ready": "yes"}}});
    client.patch::<Service>(&one, &Patch::Merge(label)).await.unwrap();
    call(&stand, one.clone(), &reconciler).await;
    let found = get(&client, &one).await;
    assert_eq!(condition(&found, "Ready").0, "True", "{:?}", found.status);
    assert_eq!(found.status.unwrap().ready_replicas, 1);
}

// R110
#[steersman_testing::test]
async fn a_child_that_is_rejected_does_not_stop_the_next_one(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(scripted(|widget, work| {
        Box::pin(async move {
            let invalid: Secret = object(json!({"metadata": {"name": "No Name"}}));
            assert!(work.child(Cond::Available, invalid).await.is_none());
            let elsewhere: Secret = object(json!({"metadata": {"name": "one"}}));
            assert!(
                work.child_in("elsewhere", Cond::Available, elsewhere)
                    .await
                    .is_none()
            );
            work.child(Cond::Configured, map_of(widget)).await;
            Ok(Action::await_change())
        })
    }));
    let error = stand.call(one.clone(), &reconciler).await.result.unwrap_err();
    assert!(
        error_chain(&*error).starts_with("2 children or handlers failed"),
        "{}",
        error_chain(&*error)
    );
    let found = get(&client, &one).await;
    assert_eq!(condition(&found, "Available"), ("False".into(), "Failed".into()));
    assert_eq!(condition(&found, "Configured").0, "True");
    assert!(client.get::<ConfigMap>(&one).await.unwrap().is_some());
}

// R108
#[steersman_testing::test]
async fn children_are_listed_by_their_owner(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    for name in ["one", "two"] {
        client.create(&widget(&fixture, name, "1")).await.unwrap();
    }
    let reconciler = managed(scripted(|widget, work| {
        Box::pin(async move {
            work.child(Cond::Configured, map_of(widget)).await;
            let owned = work.owned::<ConfigMap, _>().await?;
            work.status_mut().note = owned.iter().map(|map| map.name_any()).collect();
            Ok(Action::await_change())
        })
    }));
    for name in ["one", "two"] {
        call(&stand, key(&fixture, name), &reconciler).await;
        let found = get(&client, &key(&fixture, name)).await;
        assert_eq!(found.status.unwrap().note, name);
    }
}

// R110, guarantee 4
#[steersman_testing::test]
async fn guarantee_4_a_change_right_after_the_create_is_restored(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let stand = Stand::new(proxy.client(fixture.admin()).unwrap()).await.unwrap();
    let (client, one) = (stand.cluster().live(), key(&fixture, "one"));
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    // The answer to the create arrives after another client has changed the child.
    let held = proxy.inject(
        Matching::method("POST").path("/configmaps").first(1),
        Fault::stall(),
    );
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap().live();
    let changing = async {
        eventually("the child is created", async || {
            beside.get::<ConfigMap>(&one).await.unwrap()
        })
        .await;
        let change = Patch::Merge(json!({"data": {"value": "changed"}}));
        beside.patch::<ConfigMap>(&one, &change).await.unwrap();
        drop(held);
    };
    let reconciler = managed(configured());
    tokio::join!(changing, call(&stand, one.clone(), &reconciler));
    let map = client.get_required::<ConfigMap>(&one).await.unwrap();
    assert_eq!(map.data.as_ref().unwrap()["value"], "1");
}
