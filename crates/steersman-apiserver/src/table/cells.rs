// SPDX-License-Identifier: Apache-2.0
//! The cells of built-in kinds, as the real server's printers write them.

use std::{collections::BTreeSet, time::SystemTime};

use serde_json::{Map, Value, json};

use super::{cluster, human, network, pod};
use crate::{resource::at, store::Object};

/// The fields of an object, with Go's zero values for absent fields.
pub(super) struct Fields<'a>(&'a Object);

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Object) -> Self {
        Self(object)
    }

    pub(super) fn at(&self, path: &[&str]) -> Option<&'a Value> {
        at(self.0, path).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, path: &[&str]) -> String {
        match self.at(path) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }

    pub(super) fn text_or(&self, path: &[&str], other: &str) -> String {
        let text = self.text(path);
        if text.is_empty() { other.to_owned() } else { text }
    }

    pub(super) fn list(&self, path: &[&str]) -> &'a [Value] {
        self.at(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(super) fn name(&self) -> Value {
        json!(self.text(&["metadata", "name"]))
    }

    pub(super) fn age(&self, now: SystemTime) -> Value {
        json!(self.since(&["metadata", "creationTimestamp"], now))
    }

    pub(super) fn number(&self, path: &[&str]) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(super) fn time(&self, path: &[&str]) -> Option<SystemTime> {
        let time: jiff::Timestamp = self.at(path)?.as_str()?.parse().ok()?;
        Some(SystemTime::from(time))
    }

    pub(super) fn since(&self, path: &[&str], now: SystemTime) -> String {
        self.time(path)
            .map_or_else(|| "<unknown>".to_owned(), |then| human::since(then, now))
    }

    pub(super) fn map(&self, path: &[&str]) -> Option<&'a Map<String, Value>> {
        self.at(path).and_then(Value::as_object)
    }

    /// Returns names and images of the containers of a template.
    fn containers(&self, path: &[&str]) -> [Value; 2] {
        let containers = self.list(path);
        ["name", "image"].map(|key| {
            let texts: Vec<&str> = containers
                .iter()
                .map(|container| container[key].as_str().unwrap_or_default())
                .collect();
            json!(texts.join(","))
        })
    }

    fn has_condition(&self, kind: &str) -> bool {
        self.list(&["status", "conditions"])
            .iter()
            .any(|condition| condition["type"] == kind && condition["status"] == "True")
    }
}

const TEMPLATE: [&str; 4] = ["spec", "template", "spec", "containers"];
const SELECTOR: [&str; 2] = ["spec", "selector"];

/// Returns the cells of a kind with known columns.
pub(super) fn of(kind: &str, object: &Object, now: SystemTime) -> Option<Vec<Value>> {
    let fields = Fields::new(object);
    let (name, age) = (fields.name(), fields.age(now));
    let number = |path: &[&str]| json!(fields.number(path));
    let [names, images] = fields.containers(&TEMPLATE);
    let size = |key: &str| fields.map(&[key]).map_or(0, Map::len);
    Some(match kind {
        "pods" => pod::cells(object, now),
        "namespaces" => vec![name, json!(fields.text(&["status", "phase"])), age],
        "configmaps" => vec![name, json!(size("data") + size("binaryData")), age],
        "secrets" => vec![name, json!(fields.text(&["type"])), json!(size("data")), age],
        "serviceaccounts" => vec![name, age],
        "leases.coordination.k8s.io" => vec![name, json!(fields.text(&["spec", "holderIdentity"])), age],
        "services" => network::service(&fields, name, age),
        "endpoints" => vec![name, json!(network::endpoints(&fields)), age],
        "endpointslices.discovery.k8s.io" => network::endpoint_slice(&fields, name, age),
        "nodes" => cluster::node(&fields, name, age),
        "events" => cluster::event(&fields, name, now),
        "persistentvolumes" => cluster::volume(&fields, name, age),
        "persistentvolumeclaims" => cluster::claim(&fields, name, age),
        "deployments.apps" => vec![
            name,
            json!(ready(&fields)),
            number(&["status", "updatedReplicas"]),
            number(&["status", "availableReplicas"]),
            age,
            names,
            images,
            json!(selector(fields.at(&SELECTOR))),
        ],
        "statefulsets.apps" => vec![name, json!(ready(&fields)), age, names, images],
        "replicasets.apps" => vec![
            name,
            number(&["spec", "replicas"]),
            number(&["status", "replicas"]),
            number(&["status", "readyReplicas"]),
            age,
            names,
            images,
            json!(or_none(selector(fields.at(&SELECTOR)))),
        ],
        "daemonsets.apps" => daemon_set(&fields, name, age),
        "jobs.batch" => job(&fields, name, age, now),
        "cronjobs.batch" => cron_job(&fields, name, age, now),
        "ingresses.networking.k8s.io" => network::ingress(&fields, name, age),
        "poddisruptionbudgets.policy" => vec![
            name,
            json!(fields.text_or(&["spec", "minAvailable"], "N/A")),
            json!(fields.text_or(&["spec", "maxUnavailable"], "N/A")),
            number(&["status", "disruptionsAllowed"]),
            age,
        ],
        "horizontalpodautoscalers.autoscaling" => vec![
            name,
            json!(format!(
                "{}/{}",
                fields.text(&["spec", "scaleTargetRef", "kind"]),
                fields.text(&["spec", "scaleTargetRef", "name"])
            )),
            json!(cluster::metrics(&fields)),
            json!(fields.text_or(&["spec", "minReplicas"], "<unset>")),
            number(&["spec", "maxReplicas"]),
            number(&["status", "currentReplicas"]),
            age,
        ],
        "rolebindings.rbac.authorization.k8s.io" | "clusterrolebindings.rbac.authorization.k8s.io" => {
            cluster::binding(&fields, name, age)
        }
        "storageclasses.storage.k8s.io" => vec![
            name,
            json!(fields.text(&["provisioner"])),
            json!(fields.text_or(&["reclaimPolicy"], "Delete")),
            json!(fields.text_or(&["volumeBindingMode"], "Immediate")),
            json!(fields.at(&["allowVolumeExpansion"]) == Some(&json!(true))),
            age,
        ],
        _ => return None,
    })
}

fn ready(fields: &Fields<'_>) -> String {
    let number = |path: &[&str]| fields.number(path);
    format!(
        "{}/{}",
        number(&["status", "readyReplicas"]),
        number(&["spec", "replicas"])
    )
}

pub(super) fn or_none(text: String) -> String {
    if text.is_empty() {
        "<none>".to_owned()
    } else {
        text
    }
}

pub(super) fn labels(labels: Option<&Map<String, Value>>) -> String {
    let pairs = labels.into_iter().flatten().map(|(key, value)| {
        let value = value.as_str().unwrap_or_default();
        format!("{key}={value}")
    });
    pairs.collect::<Vec<_>>().join(",")
}

/// Formats a label selector as a query parameter, sorted by key.
fn selector(selector: Option<&Value>) -> String {
    let part = |key: &str| selector.and_then(|selector| selector.get(key));
    let mut parts: Vec<(String, String)> = Vec::new();
    for (key, value) in part("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        parts.push((
            key.clone(),
            format!("{key}={}", value.as_str().unwrap_or_default()),
        ));
    }
    for expression in part("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: BTreeSet<&str> = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let values = values.into_iter().collect::<Vec<_>>().join(",");
        let text = match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        parts.push((key.to_owned(), text));
    }
    parts.sort();
    parts
        .into_iter()
        .map(|(_, text)| text)
        .collect::<Vec<_>>()
        .join(",")
}

/// Formats the first three items of a list and the number of further items.
pub(super) fn with_more(all: &[String]) -> String {
    let shown = all.iter().take(3).cloned().collect::<Vec<_>>().join(",");
    match all.len() {
        0 => "<unset>".to_owned(),
        1..=3 => shown,
        count => format!("{shown} + {} more...", count - 3),
    }
}

fn daemon_set(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let number = |key: &str| json!(fields.number(&["status", key]));
    let [names, images] = fields.containers(&TEMPLATE);
    let nodes = fields.map(&["spec", "template", "spec", "nodeSelector"]);
    vec![
        name,
        number("desiredNumberScheduled"),
        number("currentNumberScheduled"),
        number("numberReady"),
        number("updatedNumberScheduled"),
        number("numberAvailable"),
        json!(or_none(labels(nodes))),
        age,
        names,
        images,
        json!(or_none(selector(fields.at(&SELECTOR)))),
    ]
}

fn job(fields: &Fields<'_>, name: Value, age: Value, now: SystemTime) -> Vec<Value> {
    let succeeded = fields.number(&["status", "succeeded"]);
    let completions = match fields.at(&["spec", "completions"]) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None => match fields.number(&["spec", "parallelism"]) {
            parallel if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
            _ => format!("{succeeded}/1"),
        },
    };
    let end = fields.time(&["status", "completionTime"]).unwrap_or(now);
    let taken = fields
        .time(&["status", "startTime"])
        .map_or_else(String::new, |start| human::since(start, end));
    let deleting = fields.at(&["metadata", "deletionTimestamp"]).is_some();
    let status = match () {
        () if fields.has_condition("Complete") => "Complete",
        () if fields.has_condition("Failed") => "Failed",
        () if deleting => "Terminating",
        () if fields.has_condition("Suspended") => "Suspended",
        () if fields.has_condition("FailureTarget") => "FailureTarget",
        () if fields.has_condition("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    };
    let [names, images] = fields.containers(&TEMPLATE);
    let selected = or_none(selector(fields.at(&SELECTOR)));
    vec![
        name,
        json!(status),
        json!(completions),
        json!(taken),
        age,
        names,
        images,
        json!(selected),
    ]
}

fn cron_job(fields: &Fields<'_>, name: Value, age: Value, now: SystemTime) -> Vec<Value> {
    let template = ["spec", "jobTemplate", "spec", "template", "spec", "containers"];
    let [names, images] = fields.containers(&template);
    let last = fields
        .time(&["status", "lastScheduleTime"])
        .map_or_else(|| "<none>".to_owned(), |then| human::since(then, now));
    let suspended = match fields.at(&["spec", "suspend"]) {
        Some(Value::Bool(true)) => "True",
        Some(_) => "False",
        None => "<unset>",
    };
    let selected = selector(fields.at(&["spec", "jobTemplate", "spec", "selector"]));
    vec![
        name,
        json!(fields.text(&["spec", "schedule"])),
        json!(fields.text_or(&["spec", "timeZone"], "<none>")),
        json!(suspended),
        json!(fields.list(&["status", "active"]).len()),
        json!(last),
        age,
        names,
        images,
        json!(or_none(selected)),
    ]
}
