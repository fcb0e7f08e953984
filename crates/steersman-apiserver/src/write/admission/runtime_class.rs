// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `RuntimeClass`: overhead and scheduling of Pods that name a class.

use std::sync::Arc;

use serde_json::{Value, json};

use super::forbidden;
use crate::{handler::Target, quantity::amount::amounts, state::Context, status::Result, store::Object};

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

/// Returns the class that a Pod names.
fn class_of(cx: &Context<'_>, target: &Target, pod: &Object) -> Result<Option<Arc<Object>>> {
    let name = pod.get("spec").and_then(|spec| spec["runtimeClassName"].as_str());
    let Some(name) = name else { return Ok(None) };
    match cx.find("node.k8s.io", "runtimeclasses", name) {
        Some(class) => Ok(Some(class.object())),
        None => {
            let why = format!("pod rejected: RuntimeClass {name:?} not found");
            Err(forbidden(target, &why))
        }
    }
}

fn overhead(class: &Object) -> Option<&Value> {
    class.get("overhead").filter(|overhead| !overhead.is_null())
}

/// Adds the overhead, node selector and tolerations of its class to a new Pod.
pub(super) fn admit(cx: &Context<'_>, target: &Target, pod: &mut Object) -> Result<()> {
    let Some(class) = class_of(cx, target, pod)? else {
        return Ok(());
    };
    let Some(Value::Object(spec)) = pod.get_mut("spec") else {
        return Ok(());
    };
    if let Some(overhead) = overhead(&class) {
        let fixed = &overhead["podFixed"];
        let given = spec.get("overhead").map(amounts).unwrap_or_default();
        if !given.is_empty() && given != amounts(fixed) {
            return Err(forbidden(target, MISMATCH));
        }
        if !fixed.is_null() {
            spec.insert("overhead".to_owned(), fixed.clone());
        }
    }
    match class.get("scheduling") {
        Some(scheduling) if !scheduling.is_null() => schedule(target, scheduling, spec),
        _ => Ok(()),
    }
}

fn schedule(target: &Target, scheduling: &Value, spec: &mut Object) -> Result<()> {
    if let Some(wanted) = scheduling["nodeSelector"].as_object() {
        let selector = spec.entry("nodeSelector").or_insert_with(|| json!({}));
        for (key, value) in wanted {
            let known = selector.get(key).and_then(Value::as_str);
            let wanted = value.as_str().unwrap_or_default();
            if let Some(known) = known.filter(|known| *known != wanted) {
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {known}"
                );
                return Err(forbidden(target, &why));
            }
            selector[key] = value.clone();
        }
    }
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let all: Vec<Value> = list(spec.get("tolerations"))
        .into_iter()
        .chain(list(scheduling.get("tolerations")))
        .collect();
    let merged = merge(&all);
    if !merged.is_empty() {
        spec.insert("tolerations".to_owned(), Value::Array(merged));
    }
    Ok(())
}

/// Drops the tolerations that others include.
fn merge(all: &[Value]) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for (index, toleration) in all.iter().enumerate() {
        let is_known = merged.iter().any(|other| includes(other, toleration));
        let mut later = all[index + 1..].iter();
        if !is_known && !later.any(|other| other != toleration && includes(other, toleration)) {
            merged.push(toleration.clone());
        }
    }
    merged
}

/// Returns true if one toleration includes another.
fn includes(one: &Value, other: &Value) -> bool {
    let text = |toleration: &Value, key: &str| toleration[key].as_str().unwrap_or_default().to_owned();
    let same = |key: &str| text(one, key) == text(other, key);
    if one == other {
        return true;
    }
    let takes_all_keys = text(one, "key").is_empty() && text(one, "operator") == "Exists";
    if !same("key") && !takes_all_keys || !same("effect") && !text(one, "effect").is_empty() {
        return false;
    }
    if text(one, "effect") == "NoExecute"
        && let Some(seconds) = one["tolerationSeconds"].as_i64()
        && other["tolerationSeconds"]
            .as_i64()
            .is_none_or(|other| other > seconds)
    {
        return false;
    }
    match text(one, "operator").as_str() {
        "Equal" | "" => text(other, "operator") == "Equal" && same("value"),
        "Exists" => true,
        _ => false,
    }
}

/// Checks that the overhead of a new Pod is that of its class.
pub(super) fn check(cx: &Context<'_>, target: &Target, pod: &Object) -> Result<()> {
    let class = class_of(cx, target, pod)?;
    let given = pod
        .get("spec")
        .map(|spec| &spec["overhead"])
        .filter(|given| !given.is_null());
    match class.as_deref().and_then(overhead) {
        Some(overhead) if amounts(&overhead["podFixed"]) != given.map(amounts).unwrap_or_default() => {
            Err(forbidden(target, MISMATCH))
        }
        None if given.is_some() => Err(forbidden(
            target,
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        )),
        _ => Ok(()),
    }
}
