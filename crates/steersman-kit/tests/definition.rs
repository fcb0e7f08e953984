// SPDX-License-Identifier: Apache-2.0
//! A CRD with a derived status: the API server accepts it, and merges the conditions of several controllers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition, jiff::Timestamp,
};
use kube::{
    Api, CustomResource, CustomResourceExt, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steersman_kit::{ConditionSet, Conditions, ObservedAt, Status, StatusParts, lint_status};
use steersman_testing::Fixture;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "definition.steersman.example",
    version = "v1",
    kind = "Gadget",
    namespaced,
    status = "GadgetStatus"
)]
struct GadgetSpec {
    size: i32,
}

/// The status as its main controller sees it.
#[derive(Status, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct GadgetStatus {
    ready_replicas: i32,
    observed_generation: Option<i64>,
    conditions: Conditions<Cond>,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
enum Cond {
    Available,
    #[condition(negative)]
    Degraded,
}

/// The part of the status that another controller sets.
#[derive(Status, Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct ScanStatus {
    conditions: Conditions<Scan>,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
#[conditions(no_summary)]
enum Scan {
    #[condition(name = "scan.example.com/Scanned")]
    Scanned,
}

fn at(generation: i64, second: i64) -> ObservedAt {
    ObservedAt::new(Some(generation), Timestamp::from_second(second).unwrap())
}

async fn gadget(fixture: &Fixture, name: &str) -> Api<Gadget> {
    fixture.install(&Gadget::crd()).await;
    let gadgets: Api<Gadget> = Api::namespaced(fixture.client(), fixture.namespace());
    let gadget = Gadget::new(name, GadgetSpec { size: 3 });
    gadgets.create(&PostParams::default(), &gadget).await.unwrap();
    gadgets
}

/// Applies a status with the given field manager.
async fn apply(
    gadgets: &Api<Gadget>,
    name: &str,
    manager: &str,
    status: &impl Serialize,
) -> kube::Result<Gadget> {
    let body = json!({
        "apiVersion": "definition.steersman.example/v1", "kind": "Gadget",
        "metadata": {"name": name}, "status": status,
    });
    let params = PatchParams::apply(manager);
    gadgets.patch_status(name, &params, &Patch::Apply(&body)).await
}

// R137
#[steersman_testing::test]
async fn the_server_keeps_the_derived_schema_of_the_conditions(fixture: Fixture) {
    let sent = Gadget::crd();
    fixture.install(&sent).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    let stored = definitions.get(&sent.name_any()).await.unwrap();
    let schema = |crd: &CustomResourceDefinition| {
        let crd = serde_json::to_value(crd).unwrap();
        crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/conditions")
            .cloned()
            .unwrap()
    };
    assert_eq!(schema(&stored), schema(&sent));
    assert_eq!(schema(&stored)["x-kubernetes-list-type"], "map");
    assert_eq!(schema(&stored)["x-kubernetes-list-map-keys"], json!(["type"]));
}

// R106, R137
#[steersman_testing::test]
async fn a_derived_status_survives_the_server(fixture: Fixture) {
    let gadgets = gadget(&fixture, "whole").await;
    let mut status = GadgetStatus {
        ready_replicas: 2,
        ..GadgetStatus::default()
    };
    status.conditions_mut().initialise(at(1, 5));
    status.conditions_mut().set_true(Cond::Available, at(1, 5));
    status
        .conditions_mut()
        .set_false(Cond::Degraded, "404 not ok", &"ä".repeat(40_000), at(1, 5));
    status.set_observed_generation(Some(1));
    status.conditions_mut().summarise(at(1, 5));
    let stored = apply(&gadgets, "whole", "main", &status).await.unwrap();
    assert_eq!(stored.status.as_ref(), Some(&status));
    assert!(status.conditions().is_ready(stored.metadata.generation));
    let object = serde_json::to_value(&stored).unwrap();
    assert_eq!(object["status"]["observedGeneration"], 1);
    assert_eq!(lint_status(&object), []);
    // An old object has none of the fields.
    let old: GadgetStatus = serde_json::from_value(json!({})).unwrap();
    assert_eq!(old, GadgetStatus::default());
}

// R176
#[steersman_testing::test]
async fn conditions_of_two_controllers_do_not_touch_each_other(fixture: Fixture) {
    let gadgets = gadget(&fixture, "shared").await;
    let mut main = GadgetStatus::default();
    let mut scan = ScanStatus::default();
    for second in 0..3 {
        main.conditions_mut().set_true(Cond::Available, at(1, second));
        main.conditions_mut().summarise(at(1, second));
        let stored = apply(&gadgets, "shared", "main", &main).await.unwrap();
        // Each reads the whole status, and sends only its own conditions.
        main = stored.status.clone().unwrap();
        main.conditions_mut().retain_own();

        scan.conditions_mut()
            .set_false(Scan::Scanned, "Busy", "", at(1, second));
        scan.conditions_mut().summarise(at(1, second));
        let stored = apply(&gadgets, "shared", "scanner", &scan).await.unwrap();
        let status = serde_json::to_value(stored.status.unwrap()).unwrap();
        scan = serde_json::from_value(status).unwrap();
        assert_eq!(scan.conditions().iter().count(), 4);
        scan.conditions_mut().retain_own();
        assert_eq!(scan.conditions().iter().count(), 1);
    }
    // A condition goes when its own manager no longer sends it, and only then.
    let stored = apply(&gadgets, "shared", "scanner", &json!({})).await.unwrap();
    let types: Vec<_> = stored
        .status
        .as_ref()
        .unwrap()
        .conditions
        .iter()
        .map(|one| &*one.type_)
        .collect();
    assert_eq!(types, ["Ready", "Available", "Degraded"]);
}

#[steersman_testing::test]
async fn the_schema_rejects_conditions_that_metav1_rejects(fixture: Fixture) {
    let gadgets = gadget(&fixture, "broken").await;
    let valid = json!({
        "type": "Available", "status": "True", "reason": "Ok", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    for (field, value) in [
        ("reason", json!("not a word")),
        ("reason", json!("")),
        ("status", json!("true")),
        ("type", json!("-")),
        ("message", json!("m".repeat(32_769))),
        ("lastTransitionTime", json!("yesterday")),
        ("observedGeneration", json!(-1)),
    ] {
        let mut broken = valid.clone();
        broken[field] = value;
        let status: Value = json!({"conditions": [broken]});
        let error = apply(&gadgets, "broken", "main", &status).await.unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 422),
            "{field}: {error}"
        );
    }
    apply(&gadgets, "broken", "main", &json!({"conditions": [valid]}))
        .await
        .unwrap();
}
