// SPDX-License-Identifier: Apache-2.0
//! Conditions through a whole reconcile: kstatus as a mode, and conditions that were not set for a new generation.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use kube::{CustomResource, CustomResourceExt, api::Patch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steersman_cluster::{Client, ResourceQuery};
use steersman_core::{Action, ObjectKey};
use steersman_kit::{
    ConditionSet, Conditions, KindReconciler, NoCleanup, Readiness, Status, Work, lint_status,
    lint_status_change, managed, readiness,
};
use steersman_runtime::{
    BoxError, terminal,
    testing::{Case, Stand},
};
use steersman_testing::{Fixture, eventually};

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kstatus.steersman.example",
    version = "v1",
    kind = "Pump",
    namespaced,
    status = "PumpStatus"
)]
struct PumpSpec {
    /// `run`, `wait`, `broken`, `terminal` or `impossible`.
    wish: String,
}

#[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct PumpStatus {
    observed_generation: Option<i64>,
    conditions: Conditions<Cond>,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
#[conditions(kstatus)]
enum Cond {
    Running,
    Inspected,
}

struct Pumps;

impl KindReconciler for Pumps {
    type Kind = Pump;
    type Status = PumpStatus;
    type Children = ();
    type Finalizer = NoCleanup;

    async fn reconcile(&self, pump: &Pump, work: &mut Work<Self>) -> Result<Action, BoxError> {
        match &*pump.spec.wish {
            "run" => {
                work.set_true(Cond::Running);
                work.set_true(Cond::Inspected);
            }
            "broken" => return Err("the valve is stuck".into()),
            "terminal" => return Err(terminal("there is no water").into()),
            "wait" => work.set_unknown(Cond::Running, "Starting", "in a moment"),
            _ => {
                work.set_false(Cond::Running, "Impossible", "water does not run uphill");
                work.set_stalled("Impossible", "water does not run uphill");
            }
        }
        Ok(Action::await_change())
    }
}

/// Returns the object, and checks its conventions.
async fn read(client: &Client, key: &ObjectKey, before: &Value) -> Value {
    let pump = client.get_required::<Pump>(key).await.unwrap();
    let object = serde_json::to_value(&*pump).unwrap();
    assert_eq!(lint_status(&object), []);
    assert_eq!(lint_status_change(before, &object), []);
    object
}

/// Returns the conditions as `Type=Status/Reason`.
fn conditions(object: &Value) -> Vec<String> {
    let list = object["status"]["conditions"].as_array().unwrap();
    let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    let show = |one| {
        format!(
            "{}={}/{}",
            text(one, "type"),
            text(one, "status"),
            text(one, "reason")
        )
    };
    list.iter().map(show).collect()
}

/// A stand with a pump of this wish.
async fn with_pump(fixture: &Fixture, wish: &str) -> (Stand, ObjectKey) {
    fixture.install(&Pump::crd()).await;
    let stand = Stand::new(fixture.client()).await.unwrap();
    let query = ResourceQuery::of::<Pump>();
    eventually("the kind is discovered", async || {
        stand.cluster().mapper().resolve_anew(&query).await.ok()
    })
    .await;
    let mut pump = Pump::new(
        "pump",
        PumpSpec {
            wish: wish.to_owned(),
        },
    );
    pump.metadata.namespace = Some(fixture.namespace().to_owned());
    stand.cluster().live().create(&pump).await.unwrap();
    (stand, ObjectKey::new(fixture.namespace(), "pump"))
}

// R106, R176
#[steersman_testing::test]
async fn conditions_follow_the_generations_of_an_object(fixture: Fixture) {
    let (stand, key) = with_pump(&fixture, "run").await;
    let (reconciler, client) = (managed(Pumps), stand.cluster().live());

    let status = format!("apply pumps.kstatus.steersman.example {key} status");
    let written = |name: &str| Case::new(name).request(key.clone()).writes([status.clone()]);
    written("a new pump runs").check(&stand, &reconciler).await;
    let running = read(&client, &key, &json!({})).await;
    assert_eq!(
        conditions(&running),
        [
            "Ready=True/AllConditionsMet",
            "Running=True/Running",
            "Inspected=True/Inspected"
        ]
    );
    let found = readiness("kstatus.steersman.example", "Pump", &running);
    assert_eq!(found, Readiness::Ready);

    // A former inspection says nothing about the new spec.
    let wait = Patch::Merge(json!({"spec": {"wish": "wait"}}));
    client.patch::<Pump>(&key, &wait).await.unwrap();
    written("it waits").check(&stand, &reconciler).await;
    let waiting = read(&client, &key, &running).await;
    let mut found = conditions(&waiting);
    found.sort();
    assert_eq!(
        found,
        [
            "Inspected=Unknown/NotObserved",
            "Ready=Unknown/Starting",
            "Reconciling=True/Starting",
            "Running=Unknown/Starting",
        ]
    );

    let impossible = Patch::Merge(json!({"spec": {"wish": "uphill"}}));
    client.patch::<Pump>(&key, &impossible).await.unwrap();
    written("it stalls").check(&stand, &reconciler).await;
    let stalled = read(&client, &key, &waiting).await;
    let found = readiness("kstatus.steersman.example", "Pump", &stalled);
    assert_eq!(
        found,
        Readiness::failed("Impossible", "water does not run uphill")
    );
    assert!(
        conditions(&stalled)
            .iter()
            .all(|one| !one.starts_with("Reconciling"))
    );
    Case::new("nothing is written again")
        .request(key)
        .check(&stand, &reconciler)
        .await;
}

#[steersman_testing::test]
async fn a_terminal_error_stalls_an_object_that_was_ready(fixture: Fixture) {
    let (stand, key) = with_pump(&fixture, "run").await;
    let (reconciler, client) = (managed(Pumps), stand.cluster().live());
    let action = stand.call(key.clone(), &reconciler).await.result.unwrap();
    assert_eq!(action, Action::await_change());
    let running = read(&client, &key, &json!({})).await;
    let change = Patch::Merge(json!({"spec": {"wish": "terminal"}}));
    client.patch::<Pump>(&key, &change).await.unwrap();
    assert!(stand.call(key.clone(), &reconciler).await.result.is_err());
    let stalled = read(&client, &key, &running).await;
    let found = readiness("kstatus.steersman.example", "Pump", &stalled);
    let Readiness::Failed { reason, message } = found else {
        panic!("{found:?}");
    };
    assert_eq!(reason, "TerminalError");
    assert!(message.ends_with("there is no water"), "{message}");
    assert!(!conditions(&stalled).contains(&"Ready=True/AllConditionsMet".to_owned()));
}

#[steersman_testing::test]
async fn the_last_attempt_of_a_retry_budget_stalls_the_object(fixture: Fixture) {
    let (stand, key) = with_pump(&fixture, "broken").await;
    let (reconciler, client) = (managed(Pumps).retry_budget(2), stand.cluster().live());
    let mut before = json!({});
    for expected in ["Reconciling=True/", "Stalled=True/RetriesExhausted"] {
        assert!(stand.call(key.clone(), &reconciler).await.result.is_err());
        let pump = read(&client, &key, &before).await;
        let found = conditions(&pump);
        assert!(
            found.iter().any(|one| one.starts_with(expected)),
            "{expected} in {found:?}"
        );
        before = pump;
    }
}
