// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `Priority`: sets the priority of Pods from their class.

use std::sync::Arc;

use serde_json::{Value, json};

use super::forbidden;
use crate::{
    handler::Target,
    state::Context,
    status::Result,
    store::{Object, Stored, metadata_of},
};

/// The system priority classes with their values and descriptions.
pub(crate) const SYSTEM: [(&str, i64, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

/// Creates the system priority classes.
pub(crate) fn plant(cx: &mut Context<'_>) {
    for (name, value, description) in SYSTEM {
        let class = json!({
            "metadata": {"generation": 1}, "value": value, "description": description,
            "preemptionPolicy": "PreemptLowerPriority",
        });
        cx.plant("scheduling.k8s.io", "priorityclasses", "", name, class);
    }
}

/// Sets the priority of a new Pod from its class.
pub(super) fn admit_pod(cx: &Context<'_>, target: &Target, object: &mut Object) -> Result<()> {
    let Some(Value::Object(spec)) = object.get_mut("spec") else {
        return Ok(());
    };
    let name = spec.get("priorityClassName").and_then(Value::as_str);
    let name = name.unwrap_or_default().to_owned();
    let class = if name.is_empty() {
        default_class(cx)
    } else {
        let found = cx.find("scheduling.k8s.io", "priorityclasses", &name);
        let missing = || format!("no PriorityClass with name {name} was found");
        Some(found.ok_or_else(|| forbidden(target, &missing()))?)
    };
    let class = class.map(|class| class.object());
    let of_class = |field: &str| class.as_ref().and_then(|class| class.get(field)).cloned();
    let priority = of_class("value").unwrap_or(json!(0));
    let policy = of_class("preemptionPolicy").unwrap_or(json!("PreemptLowerPriority"));
    let given = |field: &str, wanted: &Value| {
        let given = spec.get(field).filter(|given| !given.is_null())?;
        (given != wanted).then(|| given.as_str().map_or_else(|| given.to_string(), str::to_owned))
    };
    if let Some(given) = given("priority", &priority) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        );
        return Err(forbidden(target, &why));
    }
    if let Some(given) = given("preemptionPolicy", &policy) {
        let policy = policy.as_str().unwrap_or_default();
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(forbidden(target, &why));
    }
    if let Some(name) = class.as_ref().and_then(|class| metadata_of(class).get("name")) {
        spec.insert("priorityClassName".to_owned(), name.clone());
    }
    spec.insert("priority".to_owned(), priority);
    spec.insert("preemptionPolicy".to_owned(), policy);
    Ok(())
}

/// Returns the default class; the one with the lowest value if there are several.
fn default_class<'a>(cx: &'a Context<'_>) -> Option<&'a Arc<Stored>> {
    let classes = cx.all("scheduling.k8s.io", "priorityclasses");
    classes
        .filter(|class| class.object().get("globalDefault") == Some(&json!(true)))
        .min_by_key(|class| class.object().get("value").and_then(Value::as_i64))
}

/// Rejects a second default class.
pub(super) fn check_class(cx: &Context<'_>, target: &Target, is_new: bool, object: &Object) -> Result<()> {
    if object.get("globalDefault") != Some(&json!(true)) {
        return Ok(());
    }
    match default_class(cx).map(|class| class.text("name")) {
        Some(name) if is_new || name != target.name => {
            let why =
                format!("PriorityClass {name} is already marked as default. Only one default can exist");
            Err(forbidden(target, &why))
        }
        _ => Ok(()),
    }
}
