// SPDX-License-Identifier: Apache-2.0
//! Objects with which other frameworks write for ever: server defaults, normalised values, and other writers.

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, Secret, Service},
};
use kube::{ResourceExt, api::Patch};
use serde_json::{Value, json};
use steersman_core::{Action, ObjectKey};
use steersman_kit::{Managed, managed};
use steersman_runtime::testing::Stand;
use steersman_testing::Fixture;

use super::{
    support::*,
    webhook::{self, Webhook},
};

fn pods(env: &Value, resources: &Value) -> Value {
    json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "web", "image": "web", "env": env, "resources": resources}]},
    })
}

fn deployment(name: &str, env: &Value, resources: &Value) -> Deployment {
    object(json!({
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pods(env, resources)},
    }))
}

/// One child, by the name of the widget.
fn corpus() -> Managed<Scripted> {
    managed(scripted(|widget, work| {
        Box::pin(async move {
            let name = widget.name_any();
            match &*name {
                "defaulted" => {
                    _ = work
                        .child(Cond::Available, deployment(&name, &json!([]), &json!({})))
                        .await
                }
                "empty-env" => {
                    let env = json!([{"name": "E", "value": ""}]);
                    work.child(Cond::Available, deployment(&name, &env, &json!({})))
                        .await;
                }
                "quantity" => {
                    let resources =
                        json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": "2.50"}});
                    work.child(Cond::Available, deployment(&name, &json!([]), &resources))
                        .await;
                }
                "autoscaled" => {
                    let mut child = deployment(&name, &json!([]), &json!({}));
                    child.spec.replicas = Some(2);
                    work.child(Cond::Available, child).ignore("/spec/replicas").await;
                }
                "claims" => {
                    let claim = json!({
                        "metadata": {"name": "v"},
                        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}},
                    });
                    let set: StatefulSet = object(json!({
                        "metadata": {"name": name},
                        "spec": {
                            "serviceName": "x", "selector": {"matchLabels": {"a": "b"}},
                            "template": pods(&json!([]), &json!({})), "volumeClaimTemplates": [claim],
                        },
                    }));
                    work.child(Cond::Available, set).await;
                }
                "string-data" => {
                    let secret: Secret =
                        object(json!({"metadata": {"name": name}, "stringData": {"k": widget.spec.value}}));
                    work.child(Cond::Available, secret).await;
                }
                _ => {
                    let service: Service = object(json!({
                        "metadata": {"name": name}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]},
                    }));
                    work.child(Cond::Available, service).await;
                }
            }
            Ok(Action::await_change())
        })
    }))
}

/// The writes of a reconcile that are not on the parent.
async fn child_writes(stand: &Stand, key: &ObjectKey, reconciler: &Managed<Scripted>) -> usize {
    let writes = call(stand, key.clone(), reconciler).await;
    writes
        .iter()
        .filter(|write| !write.contains("widgets.kit"))
        .count()
}

// R103, R108, R110
#[steersman_testing::test]
async fn no_child_of_the_corpus_is_written_again(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    for name in [
        "defaulted",
        "empty-env",
        "quantity",
        "autoscaled",
        "claims",
        "string-data",
        "service",
    ] {
        client.create(&widget(&fixture, name, "1")).await.unwrap();
        let key = key(&fixture, name);
        let mut counts = Vec::new();
        // A second process follows on the first.
        for _ in 0..2 {
            let reconciler = corpus();
            for _ in 0..3 {
                counts.push(child_writes(&stand, &key, &reconciler).await);
            }
        }
        // Create and takeover; after the failover one apply.
        assert_eq!(counts, [2, 0, 0, 1, 0, 0], "{name}");
    }
}

// R110
#[steersman_testing::test]
async fn an_autoscaler_and_the_parent_do_not_fight(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    client.create(&widget(&fixture, "autoscaled", "1")).await.unwrap();
    let key = key(&fixture, "autoscaled");
    let reconciler = corpus();
    assert_eq!(child_writes(&stand, &key, &reconciler).await, 2);
    let autoscaler = client.field_manager("autoscaler");
    for replicas in 3..6 {
        let scaled = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        autoscaler.patch::<Deployment>(&key, &scaled).await.unwrap();
        assert_eq!(child_writes(&stand, &key, &reconciler).await, 0);
        let next = corpus();
        assert_eq!(child_writes(&stand, &key, &next).await, 1, "after a failover");
        let found = client.get_required::<Deployment>(&key).await.unwrap();
        assert_eq!(found.spec.replicas, Some(replicas));
    }
}

// R110
#[steersman_testing::test]
async fn a_change_of_string_data_by_others_is_repaired(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    client
        .create(&widget(&fixture, "string-data", "1"))
        .await
        .unwrap();
    let key = key(&fixture, "string-data");
    let reconciler = corpus();
    child_writes(&stand, &key, &reconciler).await;
    let drift = Patch::Merge(json!({"data": {"k": "ZXZpbA=="}}));
    client
        .field_manager("other")
        .patch::<Secret>(&key, &drift)
        .await
        .unwrap();
    assert_eq!(child_writes(&stand, &key, &reconciler).await, 1);
    let secret = client.get_required::<Secret>(&key).await.unwrap();
    assert_eq!(secret.data.as_ref().unwrap()["k"].0, b"1");
    client
        .patch::<Widget>(&key, &Patch::Merge(json!({"spec": {"value": "2"}})))
        .await
        .unwrap();
    assert_eq!(child_writes(&stand, &key, &reconciler).await, 1);
    let secret = client.get_required::<Secret>(&key).await.unwrap();
    assert_eq!(secret.data.as_ref().unwrap()["k"].0, b"2");
}

/// A writer that puts its own value beside, as a mutating webhook or another controller does, does not cause writes.
// R110
#[steersman_testing::test]
async fn fields_that_others_add_cause_no_write(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let key = key(&fixture, "one");
    let reconciler = managed(configured());
    call(&stand, key.clone(), &reconciler).await;
    for round in 0..3 {
        let beside = json!({"metadata": {"annotations": {"injected": round.to_string()}}, "data": {"ca": round.to_string()}});
        client
            .field_manager("injector")
            .patch::<ConfigMap>(&key, &Patch::Merge(beside))
            .await
            .unwrap();
        assert_eq!(call(&stand, key.clone(), &reconciler).await, [""; 0]);
    }
}

// R103, R110
#[steersman_testing::test]
async fn a_mutating_webhook_causes_no_loop(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let webhook = Webhook::install(&fixture).await;
    let one = key(&fixture, "one");
    let mut counts = Vec::new();
    // A second process follows on the first.
    for _ in 0..2 {
        let reconciler = managed(configured());
        for _ in 0..3 {
            counts.push(child_writes(&stand, &one, &reconciler).await);
        }
    }
    // Create and takeover; after the failover one apply.
    assert_eq!(counts, [2, 0, 0, 1, 0, 0]);
    let map = client.get_required::<ConfigMap>(&one).await.unwrap();
    let data = map.data.as_ref().unwrap();
    assert_eq!(
        (&*data["value"], &*data["injected"]),
        (webhook::VALUE, webhook::VALUE)
    );
    webhook.remove().await;
}
