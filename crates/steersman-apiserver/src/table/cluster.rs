// SPDX-License-Identifier: Apache-2.0
//! The cells of nodes, volumes, bindings, events and autoscalers.

use std::{collections::BTreeSet, time::SystemTime};

use serde_json::{Value, json};

use super::{
    cells::{Fields, or_none},
    human,
};

pub(super) fn node(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let conditions = fields.list(&["status", "conditions"]);
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    let mut status = match ready {
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if fields.at(&["spec", "unschedulable"]) == Some(&json!(true)) {
        status += ",SchedulingDisabled";
    }
    let labels = fields.map(&["metadata", "labels"]).into_iter().flatten();
    let role = |(key, value): (&String, &Value)| match key.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_owned()),
        None if key == "kubernetes.io/role" => value.as_str().map(str::to_owned),
        None => None,
    };
    let roles: BTreeSet<String> = labels.filter_map(role).filter(|role| !role.is_empty()).collect();
    let roles = roles.into_iter().collect::<Vec<_>>().join(",");
    let address = |kind: &str| {
        let addresses = fields.list(&["status", "addresses"]);
        let found = addresses.iter().find(|address| address["type"] == kind);
        found.map_or_else(|| json!("<none>"), |address| address["address"].clone())
    };
    let info = |key: &str| fields.text_or(&["status", "nodeInfo", key], "<unknown>");
    let kernel = match fields.text(&["status", "nodeInfo", "architecture"]) {
        none if none.is_empty() => info("kernelVersion"),
        architecture => format!("{} ({architecture})", info("kernelVersion")),
    };
    vec![
        name,
        json!(status),
        json!(or_none(roles)),
        age,
        json!(fields.text(&["status", "nodeInfo", "kubeletVersion"])),
        address("InternalIP"),
        address("ExternalIP"),
        json!(info("osImage")),
        json!(kernel),
        json!(info("containerRuntimeVersion")),
    ]
}

pub(super) fn event(fields: &Fields<'_>, name: Value, now: SystemTime) -> Vec<Value> {
    let mut first = fields.since(&["firstTimestamp"], now);
    if fields.time(&["firstTimestamp"]).is_none() {
        first = fields.since(&["eventTime"], now);
    }
    let mut last = match fields.time(&["lastTimestamp"]) {
        Some(then) => human::since(then, now),
        None => first.clone(),
    };
    let mut count = fields.number(&["count"]);
    if fields.at(&["series"]).is_some() {
        last = fields.since(&["series", "lastObservedTime"], now);
        count = fields.number(&["series", "count"]);
    } else if count == 0 {
        count = 1;
    }
    let kind = fields.text(&["involvedObject", "kind"]).to_lowercase();
    let target = match fields.text(&["involvedObject", "name"]) {
        name if name.is_empty() => kind,
        name => format!("{kind}/{name}"),
    };
    let either = |path: &[&str], other: &[&str]| fields.text_or(path, &fields.text(other));
    let component = either(&["source", "component"], &["reportingComponent"]);
    let host = either(&["source", "host"], &["reportingInstance"]);
    let source = if host.is_empty() {
        component
    } else {
        format!("{component}, {host}")
    };
    vec![
        json!(last),
        json!(fields.text(&["type"])),
        json!(fields.text(&["reason"])),
        json!(target),
        json!(fields.text(&["involvedObject", "fieldPath"])),
        json!(source),
        json!(fields.text(&["message"]).trim()),
        json!(first),
        json!(count),
        name,
    ]
}

fn modes(modes: &[Value]) -> String {
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let known = short
        .iter()
        .filter(|(long, _)| modes.iter().any(|mode| mode == long));
    known.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn phase(fields: &Fields<'_>) -> String {
    if fields.at(&["metadata", "deletionTimestamp"]).is_some() {
        "Terminating".to_owned()
    } else {
        fields.text(&["status", "phase"])
    }
}

pub(super) fn volume(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let claim = match fields.at(&["spec", "claimRef"]) {
        Some(_) => format!(
            "{}/{}",
            fields.text(&["spec", "claimRef", "namespace"]),
            fields.text(&["spec", "claimRef", "name"])
        ),
        None => String::new(),
    };
    vec![
        name,
        json!(fields.text_or(&["spec", "capacity", "storage"], "0")),
        json!(modes(fields.list(&["spec", "accessModes"]))),
        json!(fields.text(&["spec", "persistentVolumeReclaimPolicy"])),
        json!(phase(fields)),
        json!(claim),
        json!(fields.text(&["spec", "storageClassName"])),
        json!(fields.text_or(&["spec", "volumeAttributesClassName"], "<unset>")),
        json!(fields.text(&["status", "reason"])),
        age,
        json!(fields.text_or(&["spec", "volumeMode"], "<unset>")),
    ]
}

pub(super) fn claim(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let volume = fields.text(&["spec", "volumeName"]);
    let (capacity, access) = if volume.is_empty() {
        (String::new(), String::new())
    } else {
        (
            fields.text_or(&["status", "capacity", "storage"], "0"),
            modes(fields.list(&["status", "accessModes"])),
        )
    };
    vec![
        name,
        json!(phase(fields)),
        json!(volume),
        json!(capacity),
        json!(access),
        json!(fields.text(&["spec", "storageClassName"])),
        json!(fields.text_or(&["spec", "volumeAttributesClassName"], "<unset>")),
        age,
        json!(fields.text_or(&["spec", "volumeMode"], "<unset>")),
    ]
}

pub(super) fn binding(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let role = format!(
        "{}/{}",
        fields.text(&["roleRef", "kind"]),
        fields.text(&["roleRef", "name"])
    );
    let of = |kind: &str| {
        let subjects = fields
            .list(&["subjects"])
            .iter()
            .filter(|subject| subject["kind"] == kind);
        let names = subjects.map(|subject| {
            let text = |key: &str| subject[key].as_str().unwrap_or_default();
            match kind {
                "ServiceAccount" => format!("{}/{}", text("namespace"), text("name")),
                _ => text("name").to_owned(),
            }
        });
        json!(names.collect::<Vec<_>>().join(", "))
    };
    vec![
        name,
        json!(role),
        age,
        of("User"),
        of("Group"),
        of("ServiceAccount"),
    ]
}

/// Formats the first two metrics of an autoscaler, each with current and target value.
pub(super) fn metrics(fields: &Fields<'_>) -> String {
    let statuses = fields.list(&["status", "currentMetrics"]);
    let metric = |(index, spec): (usize, &Value)| {
        let kind = spec["type"].as_str().unwrap_or_default();
        let mut key = kind.to_owned();
        key.get_mut(..1).map(str::make_ascii_lowercase);
        let part = |of: Option<&Value>, path: &str| -> Option<String> {
            let value = of?.get(&key)?.pointer(path)?;
            Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        let now = |path: &str| part(statuses.get(index), path).unwrap_or_else(|| "<unknown>".to_owned());
        let goal = |path: &str| part(Some(spec), path);
        let resource = kind.ends_with("Resource");
        let prefix = match goal("/name") {
            Some(name) if resource => format!("{name}: "),
            _ => String::new(),
        };
        match (goal("/target/averageValue"), goal("/target/averageUtilization")) {
            (Some(value), _) => {
                let suffix = if matches!(kind, "External" | "Object") {
                    " (avg)"
                } else {
                    ""
                };
                format!("{prefix}{}/{value}{suffix}", now("/current/averageValue"))
            }
            (None, goal) if resource => {
                let now = part(statuses.get(index), "/current/averageUtilization");
                let percent = |value: Option<String>, other: &str| {
                    value.map_or_else(|| other.to_owned(), |value| format!("{value}%"))
                };
                format!(
                    "{prefix}{}/{}",
                    percent(now, "<unknown>"),
                    percent(goal, "<auto>")
                )
            }
            _ => format!(
                "{}/{}",
                now("/current/value"),
                goal("/target/value").unwrap_or_default()
            ),
        }
    };
    let all: Vec<String> = fields
        .list(&["spec", "metrics"])
        .iter()
        .enumerate()
        .map(metric)
        .collect();
    let shown = all.iter().take(2).cloned().collect::<Vec<_>>().join(", ");
    match all.len() {
        0 => "<none>".to_owned(),
        1 | 2 => shown,
        count => format!("{shown} + {} more...", count - 2),
    }
}
