// SPDX-License-Identifier: Apache-2.0
//! Reads and writes of the simulated controllers.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use super::may_make;
use crate::{
    handler::{
        FieldValidation, Target, WriteOptions, create, decode,
        delete::{self, DeleteOptions, Propagation},
        update,
    },
    managed,
    resource::{Resource, at},
    state::Context,
    store::{Object, metadata_of},
};

const MANAGER: &str = "kube-controller-manager";

/// A kind by its group and plural.
pub(super) type Kind = (&'static str, &'static str);

pub(super) const PODS: Kind = ("", "pods");
pub(super) const REPLICA_SETS: Kind = ("apps", "replicasets");

fn target(cx: &Context<'_>, kind: Kind, key: &str, subresource: &str) -> Option<Target> {
    let resource = cx.state.registry.find(kind.0, kind.1)?;
    let (namespace, name) = match key.split_once('/') {
        Some(parts) if resource.namespaced => parts,
        _ => ("", key),
    };
    Some(Target {
        resource: Arc::clone(resource),
        version: resource.strategy.storage_version,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
    })
}

pub(super) fn get(cx: &Context<'_>, kind: Kind, key: &str) -> Option<Arc<Object>> {
    cx.find(kind.0, kind.1, key).map(|stored| stored.object())
}

/// Creates an object; returns `None` if it is rejected, or if its controller reached the limit of this second.
pub(super) fn create(cx: &mut Context<'_>, kind: Kind, namespace: &str, mut object: Value) -> Option<()> {
    let target = Target {
        name: String::new(),
        ..target(cx, kind, &format!("{namespace}/"), "")?
    };
    object["kind"] = json!(target.resource.kind);
    object["apiVersion"] = json!(target.api_version());
    let (mut object, _) = decode::object(&target, object, FieldValidation::Ignore, &[]).ok()?;
    if !may_make(cx, &object, namespace) {
        return None;
    }
    managed::on_update(cx, &target, None, &mut object, MANAGER);
    let options = WriteOptions {
        dry_run: false,
        validation: FieldValidation::Ignore,
        manager: MANAGER.to_owned(),
    };
    create::insert(cx, &target, object, &options).ok().map(|_| ())
}

/// Updates an object, or one of its subresources; without a difference, nothing is written.
pub(super) fn change(
    cx: &mut Context<'_>,
    kind: Kind,
    key: &str,
    subresource: &str,
    change: impl FnOnce(&mut Object),
) {
    let Some(target) = target(cx, kind, key, subresource) else {
        return;
    };
    let Some(existing) = cx.find(kind.0, kind.1, key).cloned() else {
        return;
    };
    let live = existing.object();
    let mut object = Object::clone(&live);
    change(&mut object);
    let manager = if kind == PODS { "kubelet" } else { MANAGER };
    managed::on_update(cx, &target, Some(&live), &mut object, manager);
    // A rejected update is retried when the object changes.
    let _ = update::replace(cx, &target, &existing, object, false);
}

/// Updates the status of an object.
pub(super) fn set_status(cx: &mut Context<'_>, kind: Kind, key: &str, status: impl FnOnce(&mut Object)) {
    change(cx, kind, key, "status", |object| {
        if let Value::Object(fields) = object.entry("status").or_insert_with(|| json!({})) {
            status(fields);
        }
    });
}

/// Schedules an object after `after`.
pub(super) fn look_again(cx: &mut Context<'_>, kind: Kind, key: &str, after: Duration) {
    if let Some(resource) = resource(cx, kind) {
        super::look_again(cx, after, resource.storage, Arc::from(key));
    }
}

/// Deletes an object without grace period.
pub(super) fn delete(cx: &mut Context<'_>, kind: Kind, key: &str) {
    let Some(target) = target(cx, kind, key, "") else {
        return;
    };
    let options = DeleteOptions {
        propagation: Some(Propagation::Background),
        grace_period: Some(0),
        ..DeleteOptions::default()
    };
    // An object that no longer exists needs no deletion.
    let _ = delete::remove(cx, &target, &options);
}

/// Returns the objects of a kind that `owner` controls, sorted by name.
pub(super) fn owned(cx: &Context<'_>, kind: Kind, owner: &Object) -> Vec<Arc<Object>> {
    let Some(storage) = cx
        .state
        .registry
        .find(kind.0, kind.1)
        .map(|resource| resource.storage)
    else {
        return Vec::new();
    };
    let uid = text(owner, &["metadata", "uid"]);
    let controls = |object: &Arc<Object>| {
        let owners = metadata_of(object)
            .get("ownerReferences")
            .and_then(Value::as_array);
        let mut owners = owners.into_iter().flatten();
        owners.any(|owner| owner["uid"] == uid && owner["controller"] == json!(true))
    };
    let places = cx.state.owners.dependents(&uid).into_iter();
    places
        .filter(|(place, _)| *place == storage)
        .filter_map(|(storage, key)| cx.state.store.get(storage, &key).map(|stored| stored.object()))
        .filter(controls)
        .collect()
}

/// Builds the owner reference of a controller.
pub(super) fn controller(resource: &Resource, owner: &Object) -> Value {
    json!({
        "apiVersion": resource.api_version(&resource.storage_version().name), "kind": resource.kind,
        "name": text(owner, &["metadata", "name"]), "uid": text(owner, &["metadata", "uid"]),
        "controller": true, "blockOwnerDeletion": true,
    })
}

pub(super) fn resource(cx: &Context<'_>, kind: Kind) -> Option<Arc<Resource>> {
    cx.state.registry.find(kind.0, kind.1).cloned()
}

/// Builds a Pod from a template, without a name.
pub(super) fn pod_of(template: &Value, owner: &Value) -> Value {
    let part = |pointer: &str| template.pointer(pointer).cloned().unwrap_or_default();
    let mut metadata = json!({"ownerReferences": [owner]});
    for key in ["labels", "annotations", "finalizers"] {
        let value = part(&format!("/metadata/{key}"));
        if !value.is_null() {
            metadata[key] = value;
        }
    }
    json!({"metadata": metadata, "spec": part("/spec")})
}

pub(super) fn key(object: &Object) -> String {
    match text(object, &["metadata", "namespace"]) {
        namespace if namespace.is_empty() => text(object, &["metadata", "name"]),
        namespace => format!("{namespace}/{}", text(object, &["metadata", "name"])),
    }
}

pub(super) fn text(object: &Object, path: &[&str]) -> String {
    let text = at(object, path).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

pub(super) fn number(object: &Object, path: &[&str], default: i64) -> i64 {
    at(object, path).and_then(Value::as_i64).unwrap_or(default)
}

pub(super) fn is_deleting(object: &Object) -> bool {
    metadata_of(object).contains_key("deletionTimestamp")
}

/// Parses a timestamp.
pub(super) fn time_of(timestamp: &Value) -> Option<SystemTime> {
    let time: jiff::Timestamp = timestamp.as_str()?.parse().ok()?;
    Some(time.into())
}

pub(super) fn has_condition(object: &Object, kind: &str) -> bool {
    let conditions = at(object, &["status", "conditions"]).and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Sets a condition; `lastTransitionTime` changes only if the status changes.
pub(super) fn set_condition(status: &mut Object, mut condition: Value, now: &Value) {
    let Value::Array(conditions) = status.entry("conditions").or_insert_with(|| json!([])) else {
        return;
    };
    let known = conditions
        .iter()
        .position(|known| known["type"] == condition["type"]);
    let since = known
        .map(|at| &conditions[at])
        .filter(|known| known["status"] == condition["status"])
        .map_or_else(|| now.clone(), |known| known["lastTransitionTime"].clone());
    condition["lastTransitionTime"] = since;
    match known {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

/// Returns a number, or a percentage of `total`.
pub(super) fn part_of(value: Option<&Value>, total: i64, up: bool, default: i64) -> i64 {
    match value {
        Some(Value::Number(number)) => number.as_i64().unwrap_or(default),
        Some(Value::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or_default();
            let hundredfold = percent.saturating_mul(total);
            hundredfold.saturating_add(if up { 99 } else { 0 }) / 100
        }
        _ => default,
    }
}

/// Returns a short hash of a template.
pub(super) fn hash(template: &Value) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = template.to_string();
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let digits = hash.to_string();
    digits
        .bytes()
        .map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()]))
        .collect()
}
