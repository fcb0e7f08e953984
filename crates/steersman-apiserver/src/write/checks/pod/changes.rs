// SPDX-License-Identifier: Apache-2.0
//! Validation of Pod updates.

use serde_json::{Value, json};

use super::{Errors, items, text};
use crate::status::FieldError;

/// Error that lists the mutable fields of the spec.
const MUTABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

/// Compares the specs of a Pod before and after an update.
pub(super) fn check(old: &Value, new: &Value, errors: &mut Errors<'_>) {
    for list in CONTAINERS {
        if !images(list, old, new, errors) {
            return;
        }
    }
    if !deadline(
        &old["activeDeadlineSeconds"],
        &new["activeDeadlineSeconds"],
        errors,
    ) {
        return;
    }
    tolerations(old, new, errors);
    gates(old, new, errors);
    // Fields that were compared above count as unchanged.
    let mut rest = new.clone();
    for list in CONTAINERS {
        for (index, _) in items(old, list, "").enumerate() {
            let image = old[list][index]["image"].clone();
            put(&mut rest[list][index], "image", image);
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        put(&mut rest, field, old[field].clone());
    }
    let period = "terminationGracePeriodSeconds";
    if old[period].as_i64().is_some_and(|seconds| seconds < 0) && new[period] == json!(1) {
        put(&mut rest, period, old[period].clone());
    }
    if items(old, "schedulingGates", "").next().is_some() {
        placement(old, &mut rest, errors);
    }
    if rest != *old {
        errors.push(FieldError::forbidden("spec", MUTABLE));
    }
}

/// Sets a field, or removes it if the value is null.
fn put(object: &mut Value, field: &str, value: Value) {
    if let Value::Object(fields) = object {
        match value {
            Value::Null => fields.remove(field),
            value => fields.insert(field.to_owned(), value),
        };
    }
}

/// Checks the images of containers; returns false if the lists of containers differ, so that nothing more can be
/// compared.
fn images(list: &str, old: &Value, new: &Value, errors: &mut Errors<'_>) -> bool {
    let path = format!("spec.{list}");
    if items(old, list, "").count() != items(new, list, "").count() {
        let detail = "pod updates may not add or remove containers";
        errors.push(FieldError::forbidden(path, detail));
        return false;
    }
    for (path, container) in items(new, list, &path) {
        let image = text(container, "image");
        if image.trim() != image {
            let detail = "must not have leading or trailing whitespace";
            errors.invalid(&format!("{path}.image"), &json!(image), detail);
        }
    }
    true
}

/// Checks that a deadline is only set or shortened; returns false to end the comparison.
fn deadline(old: &Value, new: &Value, errors: &mut Errors<'_>) -> bool {
    let path = "spec.activeDeadlineSeconds";
    let Some(seconds) = new.as_i64() else {
        if !old.is_null() {
            let detail = "must not update from a positive integer to nil value";
            errors.invalid(path, &Value::Null, detail);
        }
        return true;
    };
    if !(0..=2_147_483_647).contains(&seconds) {
        errors.invalid(path, new, "must be between 0 and 2147483647, inclusive");
        return false;
    }
    if old.as_i64().is_some_and(|old| old < seconds) {
        errors.invalid(path, new, "must be less than or equal to previous value");
        return false;
    }
    true
}

fn tolerations(old: &Value, new: &Value, errors: &mut Errors<'_>) {
    let timeless = |toleration: &Value| {
        let mut toleration = toleration.clone();
        put(&mut toleration, "tolerationSeconds", Value::Null);
        toleration
    };
    let mut before = items(old, "tolerations", "").map(|(_, toleration)| timeless(toleration));
    let stays = |old: &Value| items(new, "tolerations", "").any(|(_, new)| timeless(new) == *old);
    if !before.all(|old| stays(&old)) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", detail));
    }
}

/// Checks that scheduling gates are only removed.
fn gates(old: &Value, new: &Value, errors: &mut Errors<'_>) {
    for (path, gate) in items(new, "schedulingGates", "spec.schedulingGates") {
        let name = text(gate, "name");
        if !items(old, "schedulingGates", "").any(|(_, gate)| text(gate, "name") == name) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(format!("{path}.name"), &detail));
        }
    }
}

/// Checks that an update of a gated Pod only narrows its node selection.
fn placement(old: &Value, rest: &mut Value, errors: &mut Errors<'_>) {
    let selector = &rest["nodeSelector"];
    let mut before = old["nodeSelector"].as_object().into_iter().flatten();
    if !before.all(|(key, value)| selector.get(key) == Some(value)) {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.invalid("spec.nodeSelector", selector, detail);
    }
    put(rest, "nodeSelector", old["nodeSelector"].clone());
    affinity(
        &old["affinity"]["nodeAffinity"],
        &rest["affinity"]["nodeAffinity"],
        errors,
    );
    let kept = old["affinity"]["nodeAffinity"].clone();
    if rest["affinity"].is_null() && !kept.is_null() {
        put(rest, "affinity", json!({}));
    }
    if let Some(affinity) = rest.get_mut("affinity") {
        put(affinity, "nodeAffinity", kept);
    }
    if old["affinity"].is_null() && rest["affinity"] == json!({}) {
        put(rest, "affinity", Value::Null);
    }
}

fn affinity(old: &Value, new: &Value, errors: &mut Errors<'_>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = |affinity: &Value| -> Vec<Value> {
        let terms = affinity[REQUIRED]["nodeSelectorTerms"].as_array();
        terms.cloned().unwrap_or_default()
    };
    let (before, after) = (terms(old), terms(new));
    let path = format!("spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms");
    if !before.is_empty() && before.len() != after.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.invalid(&path, &json!(after), detail);
        return;
    }
    for (index, (before, after)) in before.iter().zip(&after).enumerate() {
        if !only_adds(before, after) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.invalid(&format!("{path}[{index}]"), after, detail);
        }
    }
}

/// Returns true if a term keeps all its requirements. A term without requirements matches nothing and must stay empty.
fn only_adds(before: &Value, after: &Value) -> bool {
    let requirements = |term: &Value, field: &str| term[field].as_array().cloned().unwrap_or_default();
    let fields = ["matchExpressions", "matchFields"];
    let is_empty = |term: &Value| fields.iter().all(|field| requirements(term, field).is_empty());
    if is_empty(before) {
        return is_empty(after);
    }
    fields
        .iter()
        .all(|field| requirements(after, field).starts_with(&requirements(before, field)))
}

/// Checks that ephemeral containers are only added.
pub(super) fn ephemeral(old: &Value, new: &Value, errors: &mut Errors<'_>) {
    let list = "ephemeralContainers";
    for (_, before) in items(old, list, "") {
        let name = text(before, "name");
        let after = items(new, list, "").find(|(_, after)| text(after, "name") == name);
        let verb = match after {
            None => "removed",
            Some((_, after)) if after != before => "changed",
            Some(_) => continue,
        };
        let detail = format!("existing ephemeral containers {name:?} may not be {verb}\n");
        errors.push(FieldError::forbidden("spec.ephemeralContainers", &detail));
    }
}

/// Checks that a resize changes only CPU and memory, and keeps the QoS class.
pub(super) fn resize(old: &Value, new: &Value, class: (&str, &str), errors: &mut Errors<'_>) {
    let before = errors.0.len();
    if class.0 != class.1 {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.invalid("spec", &json!(class.0), detail);
    }
    let mut rest = new.clone();
    for list in CONTAINERS {
        let same = items(old, list, "").map(|(_, container)| text(container, "name"));
        if !same.eq(items(new, list, "").map(|(_, container)| text(container, "name"))) {
            let detail = format!("{list} may not be renamed or reordered on resize");
            errors.push(FieldError::forbidden("spec", &detail));
            return;
        }
        for (index, (_, container)) in items(old, list, "").enumerate() {
            let resources = &mut rest[list][index];
            put(resources, "resizePolicy", container["resizePolicy"].clone());
            for kind in ["requests", "limits"] {
                keep_amounts(&container["resources"][kind], &mut resources["resources"][kind]);
            }
            let settled = settled(&resources["resources"]);
            put(resources, "resources", settled);
            if resources["resources"].is_null() {
                put(resources, "resources", container["resources"].clone());
            }
        }
    }
    if errors.0.len() == before && rest != *old {
        let detail = "only cpu and memory resources are mutable";
        errors.push(FieldError::forbidden("spec", detail));
    }
}

/// Restores CPU and memory to the old amounts.
fn keep_amounts(old: &Value, new: &mut Value) {
    if new.is_null() {
        *new = json!({});
    }
    for name in ["cpu", "memory"] {
        put(new, name, old[name].clone());
    }
}

/// Removes empty lists from resources.
fn settled(resources: &Value) -> Value {
    let mut resources = resources.clone();
    for kind in ["requests", "limits"] {
        if resources[kind] == json!({}) {
            put(&mut resources, kind, Value::Null);
        }
    }
    if resources == json!({}) {
        Value::Null
    } else {
        resources
    }
}
