// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `LimitRanger`: defaults and bounds of the resources of containers, Pods and claims.

use serde_json::{Value, json};

use super::{forbidden, usage};
use crate::{
    handler::Target,
    quantity::amount::{Amount, Amounts, amounts},
    state::Context,
    status::Result,
    store::Object,
};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Returns the limits of a namespace, one list for each LimitRange.
fn ranges(cx: &Context<'_>, namespace: &str) -> Vec<Vec<Value>> {
    let in_namespace = cx.in_namespace("", "limitranges", namespace);
    in_namespace
        .map(|range| {
            let object = range.object();
            let limits = object.get("spec").and_then(|spec| spec.get("limits"));
            limits.and_then(Value::as_array).cloned().unwrap_or_default()
        })
        .collect()
}

/// Sets the namespace's defaults on the containers of a Pod.
pub(super) fn set_defaults(cx: &Context<'_>, target: &Target, pod: &mut Object) {
    for limits in ranges(cx, &target.namespace) {
        let mut defaults = [Object::new(), Object::new()];
        for limit in limits.iter().filter(|limit| limit["type"] == "Container") {
            for (all, field) in defaults.iter_mut().zip(["defaultRequest", "default"]) {
                all.extend(limit[field].as_object().cloned().unwrap_or_default());
            }
        }
        let mut notes = Vec::new();
        for (list, kind) in [("containers", "container"), ("initContainers", "init container")] {
            let containers = pod.get_mut("spec").and_then(|spec| spec.get_mut(list));
            for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
                let name = container["name"].as_str().unwrap_or_default().to_owned();
                for (field, defaults) in ["requests", "limits"].into_iter().zip(&defaults) {
                    let set = fill(container, field, defaults);
                    if !set.is_empty() {
                        let what = field.trim_end_matches('s');
                        notes.push(format!("{} {what} for {kind} {name}", set.join(", ")));
                    }
                }
            }
        }
        if !notes.is_empty() {
            let note = format!("LimitRanger plugin set: {}", notes.join("; "));
            annotate(pod, note);
        }
    }
}

/// Sets the resources that a container omits; returns their names.
fn fill(container: &mut Value, field: &str, defaults: &Object) -> Vec<String> {
    let mut set = Vec::new();
    if defaults.is_empty() {
        return set;
    }
    let resources = container.as_object_mut().map(|container| {
        let resources = container.entry("resources").or_insert_with(|| json!({}));
        (resources.is_object()).then_some(resources)
    });
    let Some(Value::Object(resources)) = resources.flatten() else {
        return set;
    };
    let Value::Object(amounts) = resources.entry(field).or_insert_with(|| json!({})) else {
        return set;
    };
    for (name, amount) in defaults {
        if !amounts.contains_key(name) {
            amounts.insert(name.clone(), amount.clone());
            set.push(name.clone());
        }
    }
    set
}

fn annotate(pod: &mut Object, note: String) {
    if let Some(Value::Object(metadata)) = pod.get_mut("metadata")
        && let Value::Object(annotations) = metadata.entry("annotations").or_insert_with(|| json!({}))
    {
        annotations.insert(ANNOTATION.to_owned(), Value::from(note));
    }
}

/// Checks a Pod or a claim against the limits of its namespace.
pub(super) fn check(cx: &Context<'_>, target: &Target, object: &Object) -> Result<()> {
    for limits in ranges(cx, &target.namespace) {
        let mut errors = Vec::new();
        for limit in &limits {
            let kind = limit["type"].as_str().unwrap_or_default();
            let bounds = Bounds { kind, limit };
            match (kind, target.resource.plural.as_str()) {
                ("Container", "pods") => {
                    for container in usage::containers(object) {
                        let resources = &container["resources"];
                        bounds.check(
                            &amounts(&resources["requests"]),
                            &amounts(&resources["limits"]),
                            &mut errors,
                        );
                    }
                }
                ("Pod", "pods") => {
                    let [requests, limits] = ["requests", "limits"].map(|field| usage::of_pod(object, field));
                    bounds.check(&requests, &limits, &mut errors);
                }
                ("PersistentVolumeClaim", "persistentvolumeclaims") => {
                    let requests = object
                        .get("spec")
                        .and_then(|spec| spec.pointer("/resources/requests"));
                    bounds.check_claim(&requests.map(amounts).unwrap_or_default(), &mut errors);
                }
                _ => {}
            }
        }
        match errors.as_slice() {
            [] => {}
            [one] => return Err(forbidden(target, one)),
            many => return Err(forbidden(target, &format!("[{}]", many.join(", ")))),
        }
    }
    Ok(())
}

/// The bounds of one limit.
struct Bounds<'a> {
    kind: &'a str,
    limit: &'a Value,
}

impl Bounds<'_> {
    fn check(&self, requests: &Amounts, limits: &Amounts, errors: &mut Vec<String>) {
        for (name, enforced) in amounts(&self.limit["min"]) {
            self.minimum(&name, enforced, requests.get(&name), limits.get(&name), errors);
        }
        for (name, enforced) in amounts(&self.limit["max"]) {
            let start = format!("maximum {name} usage per {} is {enforced}", self.kind);
            match (limits.get(&name), requests.get(&name)) {
                (None, _) => errors.push(format!("{start}.  No limit is specified")),
                (Some(limit), _) if *limit > enforced => {
                    errors.push(format!("{start}, but limit is {limit}"))
                }
                (_, Some(request)) if *request > enforced => {
                    errors.push(format!("{start}, but request is {request}"));
                }
                _ => {}
            }
        }
        for (name, enforced) in amounts(&self.limit["maxLimitRequestRatio"]) {
            let start = format!(
                "{name} max limit to request ratio per {} is {enforced}",
                self.kind
            );
            let given = |amounts: &Amounts| amounts.get(&name).copied().filter(|amount| !amount.is_zero());
            match (given(requests), given(limits)) {
                (None, _) => errors.push(format!("{start}, but no request is specified or request is 0")),
                (_, None) => errors.push(format!("{start}, but no limit is specified or limit is 0")),
                (Some(request), Some(limit)) if limit.ratio(request) > enforced.number() => {
                    let ratio = limit.ratio(request);
                    errors.push(format!("{start}, but provided ratio is {ratio:.6}"));
                }
                _ => {}
            }
        }
    }

    fn minimum(
        &self,
        name: &str,
        enforced: Amount,
        request: Option<&Amount>,
        limit: Option<&Amount>,
        errors: &mut Vec<String>,
    ) {
        let start = format!("minimum {name} usage per {} is {enforced}", self.kind);
        match (request, limit) {
            (None, _) => errors.push(format!("{start}.  No request is specified")),
            (Some(request), _) if *request < enforced => {
                errors.push(format!("{start}, but request is {request}"))
            }
            (_, Some(limit)) if *limit < enforced => errors.push(format!("{start}, but limit is {limit}")),
            _ => {}
        }
    }

    /// Checks a claim, which has requests only.
    fn check_claim(&self, requests: &Amounts, errors: &mut Vec<String>) {
        for (name, enforced) in amounts(&self.limit["min"]) {
            self.minimum(&name, enforced, requests.get(&name), None, errors);
        }
        for (name, enforced) in amounts(&self.limit["max"]) {
            let start = format!("maximum {name} usage per {} is {enforced}", self.kind);
            match requests.get(&name) {
                None => errors.push(format!("{start}.  No request is specified")),
                Some(request) if *request > enforced => {
                    errors.push(format!("{start}, but request is {request}"))
                }
                Some(_) => {}
            }
        }
    }
}
