// SPDX-License-Identifier: Apache-2.0
//! Conversion between the versions of built-in kinds that have several.
//!
//! Events are stored in their core form; `events.k8s.io` shows them with other field names.

use serde_json::{Value, json};

use crate::{resource::Resource, store::Object};

/// Core names of Event fields, and their names in `events.k8s.io`.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Returns true if this version is not the stored one.
pub(crate) fn needed(resource: &Resource, version: usize) -> bool {
    resource.is("events.k8s.io", "events")
        || resource.is("autoscaling", "horizontalpodautoscalers") && version != 0
}

/// Converts an object from the stored form to a version.
pub(crate) fn from_storage(resource: &Resource, version: usize, object: &mut Object) {
    if !needed(resource, version) {
        return;
    }
    if resource.plural == "events" {
        for (core, new) in EVENT_FIELDS {
            rename(object, core, new);
        }
        for optional in ["reportingController", "reportingInstance"] {
            if object.get(optional) == Some(&json!("")) {
                object.remove(optional);
            }
        }
        return;
    }
    autoscaler_to_v1(object);
}

/// Converts an object from a version to the stored form.
pub(crate) fn to_storage(resource: &Resource, version: usize, object: &mut Object) {
    if !needed(resource, version) {
        return;
    }
    if resource.plural == "events" {
        for (core, new) in EVENT_FIELDS {
            rename(object, new, core);
        }
        // Adds the zero values that Go writes for fields of the core form only.
        for (name, empty) in [
            ("source", json!({})),
            ("firstTimestamp", Value::Null),
            ("lastTimestamp", Value::Null),
        ] {
            object.entry(name).or_insert(empty);
        }
        object.entry("reportingInstance").or_insert_with(|| json!(""));
        return;
    }
    autoscaler_from_v1(object);
}

/// Renames a field of a selector, such as `regarding.name`, to its name in the stored form.
pub(crate) fn field_to_storage(resource: &Resource, field: &mut String) {
    if !resource.is("events.k8s.io", "events") {
        return;
    }
    let (first, rest) = match field.split_once('.') {
        Some((first, rest)) => (first, format!(".{rest}")),
        None => (field.as_str(), String::new()),
    };
    if let Some((core, _)) = EVENT_FIELDS.iter().find(|(_, new)| *new == first) {
        *field = format!("{core}{rest}");
    }
}

fn rename(object: &mut Object, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.insert(to.to_owned(), value);
    }
}

/// Converts to `autoscaling/v1`, which has one metric, CPU utilisation; an annotation carries the others.
fn autoscaler_to_v1(object: &mut Object) {
    let mut others = Vec::new();
    if let Some(Value::Object(spec)) = object.get_mut("spec")
        && let Some(Value::Array(metrics)) = spec.remove("metrics")
    {
        for metric in metrics {
            match cpu_utilization(&metric) {
                Some(target) => {
                    spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
                }
                None => others.push(metric),
            }
        }
    }
    if !others.is_empty() {
        annotate(object, METRICS, &Value::Array(others));
    }
    if let Some(Value::Object(spec)) = object.get_mut("spec")
        && let Some(behavior) = spec.remove("behavior")
    {
        annotate(object, BEHAVIOR, &behavior);
    }
    if let Some(Value::Object(status)) = object.get_mut("status") {
        if let Some(Value::Array(metrics)) = status.remove("currentMetrics")
            && let Some(current) = metrics
                .iter()
                .find_map(|metric| metric.pointer("/resource/current/averageUtilization"))
        {
            status.insert("currentCPUUtilizationPercentage".to_owned(), current.clone());
        }
        status.entry("currentReplicas").or_insert(json!(0));
        if let Some(conditions) = status.remove("conditions") {
            annotate(object, CONDITIONS, &conditions);
        }
    }
}

fn autoscaler_from_v1(object: &mut Object) {
    let mut metrics = taken(object, METRICS)
        .and_then(|value| value.as_array().cloned())
        .unwrap_or_default();
    let behavior = taken(object, BEHAVIOR);
    let conditions = taken(object, CONDITIONS);
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage") {
            let target = json!({"type": "Utilization", "averageUtilization": target});
            metrics.insert(
                0,
                json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}),
            );
        }
        if !metrics.is_empty() {
            spec.insert("metrics".to_owned(), Value::Array(metrics));
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".to_owned(), behavior);
        }
    }
    if let Some(Value::Object(status)) = object.get_mut("status") {
        let current = status.remove("currentCPUUtilizationPercentage").map(|current| {
            let resource = json!({"name": "cpu", "current": {"averageUtilization": current}});
            json!([{"type": "Resource", "resource": resource}])
        });
        status.insert("currentMetrics".to_owned(), current.unwrap_or(Value::Null));
        if let Some(conditions) = conditions {
            status.insert("conditions".to_owned(), conditions);
        }
    }
}

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

fn cpu_utilization(metric: &Value) -> Option<Value> {
    let resource = metric.get("resource")?;
    (resource.get("name")? == "cpu")
        .then(|| resource.pointer("/target/averageUtilization").cloned())
        .flatten()
}

fn annotate(object: &mut Object, key: &str, value: &Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations[key] = Value::String(value.to_string());
    }
}

fn taken(object: &mut Object, key: &str) -> Option<Value> {
    let annotations = object
        .get_mut("metadata")?
        .get_mut("annotations")?
        .as_object_mut()?;
    let annotation = annotations.remove(key)?;
    crate::json::parse(annotation.as_str()?.as_bytes(), &mut Vec::new()).ok()
}
