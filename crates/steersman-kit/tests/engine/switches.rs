// SPDX-License-Identifier: Apache-2.0
//! Switches: suspend, reconcile now, observe only.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{CustomResource, CustomResourceExt, ResourceExt, api::Patch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steersman_cluster::{Client, DeleteOptions, ResourceQuery};
use steersman_core::{Action, ObjectKey};
use steersman_endpoints::Exposition;
use steersman_kit::{
    Cleaned, Cleanup, Conditions, KindReconciler, RunsCleanup, Status, Switches, Work, lint_status, managed,
};
use steersman_runtime::{BoxError, Controller, testing::Stand};
use steersman_testing::{Fixture, eventually};

use super::support::{Cond, call, cluster_builder, key, manager, object, run};

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "switches.steersman.example",
    version = "v1",
    kind = "Lamp",
    namespaced,
    status = "LampStatus"
)]
struct LampSpec {
    color: String,
}

#[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct LampStatus {
    observed_generation: Option<i64>,
    last_handled_reconcile_at: Option<String>,
    conditions: Conditions<Cond>,
}

struct Lamps;

impl KindReconciler for Lamps {
    type Kind = Lamp;
    type Status = LampStatus;
    type Children = (ConfigMap,);
    type Finalizer = RunsCleanup;

    async fn reconcile(&self, lamp: &Lamp, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.set_true(Cond::Available);
        let map = json!({"metadata": {"name": lamp.name_any()}, "data": {"color": lamp.spec.color}});
        work.child(Cond::Configured, object::<ConfigMap>(map)).await;
        Ok(Action::await_change())
    }
}

impl Cleanup for Lamps {
    const FINALIZER: &str = "switches.steersman.example/cleanup";

    async fn cleanup(&self, _: &Lamp, _: &mut Work<Self>) -> Result<Cleaned, BoxError> {
        Ok(Cleaned::Done)
    }
}

fn lamp(fixture: &Fixture, annotations: &Value) -> Lamp {
    object(json!({
        "apiVersion": "switches.steersman.example/v1", "kind": "Lamp",
        "metadata": {"name": "one", "namespace": fixture.namespace(), "annotations": annotations},
        "spec": {"color": "red"},
    }))
}

/// A stand with a lamp `one`.
async fn with_lamp(fixture: &Fixture, annotations: &Value) -> (Stand, Client, ObjectKey) {
    fixture.install(&Lamp::crd()).await;
    let stand = Stand::new(fixture.client()).await.unwrap().controller("lamps");
    let query = ResourceQuery::of::<Lamp>();
    eventually("discovery of the kind", async || {
        stand.cluster().mapper().resolve_anew(&query).await.ok()
    })
    .await;
    let client = stand.cluster().live();
    client.create(&lamp(fixture, annotations)).await.unwrap();
    (stand, client, key(fixture, "one"))
}

/// Sets annotations; null removes one.
async fn annotate(client: &Client, one: &ObjectKey, annotations: &Value) {
    let change = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let person = client.field_manager("person");
    person.patch::<Lamp>(one, &change).await.unwrap();
}

/// Reason and message of a condition. The status passes the lint, unless the object was never reconciled.
async fn condition(client: &Client, one: &ObjectKey, name: &str) -> Option<(String, String)> {
    let lamp = client.get_required::<Lamp>(one).await.unwrap();
    let status = lamp.status.as_ref()?;
    if status.observed_generation.is_some() {
        assert_eq!(lint_status(&serde_json::to_value(&*lamp).unwrap()), []);
    }
    let found = status.conditions.named(name)?;
    assert!(!name.contains('/') || found.status == "True");
    Some((found.reason.clone(), found.message.clone()))
}

async fn handled(client: &Client, one: &ObjectKey) -> Option<String> {
    let lamp = client.get_required::<Lamp>(one).await.unwrap();
    lamp.status.as_ref()?.last_handled_reconcile_at.clone()
}

fn status_write(fixture: &Fixture) -> String {
    format!(
        "apply lamps.switches.steersman.example {}/one status",
        fixture.namespace()
    )
}

fn child_apply(fixture: &Fixture) -> String {
    format!("apply configmaps {}/one", fixture.namespace())
}

// Switches: guarantees 1 and 4
#[steersman_testing::test]
async fn guarantee_1_a_suspended_object_is_left_alone_until_the_annotation_is_removed(fixture: Fixture) {
    let (stand, client, one) = with_lamp(&fixture, &json!({Switches::SUSPEND: "true"})).await;
    let lamps = managed(Lamps);
    assert_eq!(call(&stand, one.clone(), &lamps).await, [status_write(&fixture)]);
    assert_eq!(call(&stand, one.clone(), &lamps).await, [""; 0]);
    let (reason, message) = condition(&client, &one, Switches::SUSPEND).await.unwrap();
    assert_eq!(reason, "Suspended");
    assert!(message.contains("annotation"), "{message}");
    assert!(client.get::<ConfigMap>(&one).await.unwrap().is_none());
    annotate(&client, &one, &json!({Switches::SUSPEND: null})).await;
    call(&stand, one.clone(), &lamps).await;
    assert_eq!(condition(&client, &one, Switches::SUSPEND).await, None);
    client.get_required::<ConfigMap>(&one).await.unwrap();
    // Children neither: the drift stays.
    annotate(&client, &one, &json!({Switches::SUSPEND: "true"})).await;
    client
        .delete::<ConfigMap>(&one, DeleteOptions::default())
        .await
        .unwrap();
    assert_eq!(call(&stand, one.clone(), &lamps).await, [status_write(&fixture)]);
    assert_eq!(call(&stand, one.clone(), &lamps).await, [""; 0]);
    // Its deletion works.
    client
        .delete::<Lamp>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one.clone(), &lamps).await;
    assert!(client.get::<Lamp>(&one).await.unwrap().is_none());
}

// Switches: guarantee 2
#[steersman_testing::test]
async fn guarantee_2_a_new_token_applies_the_children_once_and_is_recorded(fixture: Fixture) {
    let (stand, client, one) = with_lamp(&fixture, &json!({})).await;
    let lamps = managed(Lamps);
    call(&stand, one.clone(), &lamps).await;
    assert_eq!(call(&stand, one.clone(), &lamps).await, [""; 0]);
    assert_eq!(handled(&client, &one).await, None);
    for token in ["2026-11-18T09:00:00Z", "again"] {
        annotate(&client, &one, &json!({Switches::RECONCILE_NOW: token})).await;
        let writes = call(&stand, one.clone(), &lamps).await;
        assert_eq!(writes, [child_apply(&fixture), status_write(&fixture)]);
        assert_eq!(handled(&client, &one).await.as_deref(), Some(token));
        assert_eq!(call(&stand, one.clone(), &lamps).await, [""; 0]);
    }
    // The record remains when the request is removed.
    annotate(&client, &one, &json!({Switches::RECONCILE_NOW: null})).await;
    assert_eq!(call(&stand, one.clone(), &lamps).await, [""; 0]);
    assert_eq!(handled(&client, &one).await.as_deref(), Some("again"));
}

// Switches: guarantee 3
#[steersman_testing::test]
async fn guarantee_3_no_child_of_an_observed_object_is_written_and_the_status_names_them(fixture: Fixture) {
    let observed = json!({Switches::OBSERVE_ONLY: "true"});
    let (stand, client, one) = with_lamp(&fixture, &observed).await;
    let lamps = managed(Lamps);
    assert_eq!(call(&stand, one.clone(), &lamps).await, [status_write(&fixture)]);
    assert_eq!(call(&stand, one.clone(), &lamps).await, [""; 0]);
    assert!(client.get::<ConfigMap>(&one).await.unwrap().is_none());
    let (_, message) = condition(&client, &one, Switches::OBSERVE_ONLY).await.unwrap();
    assert!(
        message.contains("ConfigMap") && message.contains("created"),
        "{message}"
    );
    let (reason, _) = condition(&client, &one, "Configured").await.unwrap();
    assert_eq!(reason, "ObserveOnly");
    // Off: the child is created. On again: nothing would be written, and drift stays.
    annotate(&client, &one, &json!({Switches::OBSERVE_ONLY: "false"})).await;
    call(&stand, one.clone(), &lamps).await;
    let before = client.get_required::<ConfigMap>(&one).await.unwrap();
    annotate(&client, &one, &observed).await;
    call(&stand, one.clone(), &lamps).await;
    let (_, message) = condition(&client, &one, Switches::OBSERVE_ONLY).await.unwrap();
    assert_eq!(message, "no child would be written");
    let (reason, _) = condition(&client, &one, "Configured").await.unwrap();
    assert_eq!(reason, "Configured");
    // Another process knows nothing of the child: it asks by a dry run.
    let restarted = managed(Lamps);
    call(&stand, one.clone(), &restarted).await;
    let after = client.get_required::<ConfigMap>(&one).await.unwrap();
    assert_eq!(after.resource_version(), before.resource_version());
    assert_eq!(call(&stand, one.clone(), &restarted).await, [""; 0]);
    let drift = Patch::Merge(json!({"data": {"color": "blue"}}));
    let other = client.field_manager("other");
    other.patch::<ConfigMap>(&one, &drift).await.unwrap();
    call(&stand, one.clone(), &restarted).await;
    let (_, message) = condition(&client, &one, Switches::OBSERVE_ONLY).await.unwrap();
    assert!(message.contains("changed"), "{message}");
    let color = async || {
        let map = client.get_required::<ConfigMap>(&one).await.unwrap();
        map.data.as_ref().unwrap()["color"].clone()
    };
    assert_eq!(color().await, "blue");
    annotate(&client, &one, &json!({Switches::OBSERVE_ONLY: null})).await;
    call(&stand, one.clone(), &restarted).await;
    assert_eq!(color().await, "red");
    assert_eq!(condition(&client, &one, Switches::OBSERVE_ONLY).await, None);
}

#[steersman_testing::test]
async fn switches_can_have_other_names_and_can_be_turned_off(fixture: Fixture) {
    let paused = json!({"example.com/paused": "true", Switches::OBSERVE_ONLY: "true"});
    let (stand, client, one) = with_lamp(&fixture, &paused).await;
    let own = Switches::none().suspend("example.com/paused");
    let suspended = managed(Lamps).switches(own);
    assert_eq!(
        call(&stand, one.clone(), &suspended).await,
        [status_write(&fixture)]
    );
    let (reason, _) = condition(&client, &one, "example.com/paused").await.unwrap();
    assert_eq!(reason, "Suspended");
    let without = managed(Lamps).switches(Switches::none());
    call(&stand, one.clone(), &without).await;
    client.get_required::<ConfigMap>(&one).await.unwrap();
}

// Switches: guarantee 4, in a running controller
#[steersman_testing::test]
async fn guarantee_4_a_metric_counts_the_objects_whose_switch_is_on(fixture: Fixture) {
    fixture.install(&Lamp::crd()).await;
    let cluster = cluster_builder(&fixture, "default").build().await.unwrap();
    let client = cluster.live();
    let manager = manager(cluster).await;
    Controller::of::<Lamp>("lamps")
        .add_to(&manager, managed(Lamps))
        .unwrap();
    let running = run(manager);
    let one = key(&fixture, "one");
    client
        .create(&lamp(&fixture, &json!({Switches::SUSPEND: "true"})))
        .await
        .unwrap();
    let counts = async |series: &str| {
        eventually(series, async || {
            let metrics = running.manager.metrics().encode(Exposition::Text);
            metrics.contains(&format!("{series}\n")).then_some(())
        })
        .await;
    };
    let suspended = r#"steersman_switched_objects{controller="lamps",switch="suspend"}"#;
    let observed = r#"steersman_switched_objects{controller="lamps",switch="observe-only"}"#;
    let requests = r#"steersman_reconcile_now_handled_total{controller="lamps"}"#;
    counts(&format!("{suspended} 1.0")).await;
    let only_observed = json!({Switches::SUSPEND: null, Switches::OBSERVE_ONLY: "true"});
    annotate(&client, &one, &only_observed).await;
    counts(&format!("{suspended} 0.0")).await;
    counts(&format!("{observed} 1.0")).await;
    counts(&format!("{requests} 0")).await;
    let requested = json!({Switches::OBSERVE_ONLY: null, Switches::RECONCILE_NOW: "now"});
    annotate(&client, &one, &requested).await;
    counts(&format!("{requests} 1")).await;
    counts(&format!("{observed} 0.0")).await;
}
