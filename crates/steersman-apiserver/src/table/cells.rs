// SPDX-License-Identifier: Apache-2.0
//! The cells of built-in kinds, as the real server's printers fill them.

use std::{collections::BTreeSet, time::SystemTime};

use serde_json::{Map, Value, json};

use super::{human, pod};
use crate::{resource::at, store::Object};

/// The fields of an object, with the zero values of Go where there are none.
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

    fn number(&self, path: &[&str]) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or_default()
    }

    fn time(&self, path: &[&str]) -> Option<SystemTime> {
        let time: jiff::Timestamp = self.at(path)?.as_str()?.parse().ok()?;
        Some(SystemTime::from(time))
    }

    fn since(&self, path: &[&str], now: SystemTime) -> String {
        self.time(path)
            .map_or_else(|| "<unknown>".to_owned(), |then| human::since(then, now))
    }

    fn map(&self, path: &[&str]) -> Option<&'a Map<String, Value>> {
        self.at(path).and_then(Value::as_object)
    }

    /// Names and images of the containers of a template.
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

/// The cells of a kind whose columns are known.
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
        "services" => service(&fields, name, age),
        "endpoints" => vec![name, json!(endpoints(&fields)), age],
        "endpointslices.discovery.k8s.io" => endpoint_slice(&fields, name, age),
        "nodes" => node(&fields, name, age),
        "events" => event(&fields, name, now),
        "persistentvolumes" => volume(&fields, name, age),
        "persistentvolumeclaims" => claim(&fields, name, age),
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
        "ingresses.networking.k8s.io" => ingress(&fields, name, age),
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
            json!(metrics(&fields)),
            json!(fields.text_or(&["spec", "minReplicas"], "<unset>")),
            number(&["spec", "maxReplicas"]),
            number(&["status", "currentReplicas"]),
            age,
        ],
        "rolebindings.rbac.authorization.k8s.io" | "clusterrolebindings.rbac.authorization.k8s.io" => {
            binding(&fields, name, age)
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

fn or_none(text: String) -> String {
    if text.is_empty() {
        "<none>".to_owned()
    } else {
        text
    }
}

fn labels(labels: Option<&Map<String, Value>>) -> String {
    let pairs = labels.into_iter().flatten().map(|(key, value)| {
        let value = value.as_str().unwrap_or_default();
        format!("{key}={value}")
    });
    pairs.collect::<Vec<_>>().join(",")
}

/// A label selector in the form of query parameters, sorted by key.
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

/// The first three of a list, and how many more there are.
fn with_more(all: &[String]) -> String {
    let shown = all.iter().take(3).cloned().collect::<Vec<_>>().join(",");
    match all.len() {
        0 => "<unset>".to_owned(),
        1..=3 => shown,
        count => format!("{shown} + {} more...", count - 3),
    }
}

fn service(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let texts = |path: &[&str]| -> Vec<String> {
        let list = fields.list(path).iter().filter_map(Value::as_str);
        list.map(str::to_owned).collect()
    };
    let kind = fields.text(&["spec", "type"]);
    let mut external = texts(&["spec", "externalIPs"]);
    let external = match kind.as_str() {
        "ExternalName" => fields.text(&["spec", "externalName"]),
        "LoadBalancer" => {
            let mut all = balancer(fields);
            all.append(&mut external);
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        "ClusterIP" | "NodePort" => or_none(external.join(",")),
        _ => "<unknown>".to_owned(),
    };
    let port = |port: &Value| {
        let protocol = port["protocol"].as_str().unwrap_or_default();
        match port["nodePort"].as_i64().unwrap_or_default() {
            0 => format!("{}/{protocol}", port["port"]),
            node => format!("{}:{node}/{protocol}", port["port"]),
        }
    };
    let ports: Vec<String> = fields.list(&["spec", "ports"]).iter().map(port).collect();
    let address = texts(&["spec", "clusterIPs"])
        .into_iter()
        .next()
        .unwrap_or_default();
    vec![
        name,
        json!(kind),
        json!(or_none(address)),
        json!(external),
        json!(or_none(ports.join(","))),
        age,
        json!(or_none(labels(fields.map(&["spec", "selector"])))),
    ]
}

/// Where a load balancer takes traffic in, sorted.
fn balancer(fields: &Fields<'_>) -> Vec<String> {
    let ingress = fields.list(&["status", "loadBalancer", "ingress"]);
    let address = |entry: &Value| {
        let text = |key: &str| entry[key].as_str().filter(|text| !text.is_empty());
        text("ip").or(text("hostname")).map(str::to_owned)
    };
    let all: BTreeSet<String> = ingress.iter().filter_map(address).collect();
    all.into_iter().collect()
}

fn endpoints(fields: &Fields<'_>) -> String {
    let mut all = Vec::new();
    for subset in fields.list(&["subsets"]) {
        let items = |key: &str| subset[key].as_array().cloned().unwrap_or_default();
        let ports = items("ports");
        if ports.is_empty() {
            let addresses = items("addresses");
            all.extend(
                addresses
                    .iter()
                    .filter_map(|address| address["ip"].as_str())
                    .map(str::to_owned),
            );
        }
        for port in ports {
            for address in items("addresses") {
                all.push(format!(
                    "{}:{}",
                    address["ip"].as_str().unwrap_or_default(),
                    port["port"]
                ));
            }
        }
    }
    if all.is_empty() {
        "<none>".to_owned()
    } else {
        with_more(&all)
    }
}

fn endpoint_slice(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let port = |port: &Value| match (&port["port"], port["name"].as_str()) {
        (Value::Number(number), _) => number.to_string(),
        (_, Some(name)) => name.to_owned(),
        _ => "*".to_owned(),
    };
    let ports: Vec<String> = fields.list(&["ports"]).iter().map(port).collect();
    let addresses = fields.list(&["endpoints"]).iter().flat_map(|endpoint| {
        let addresses = endpoint["addresses"].as_array().cloned().unwrap_or_default();
        addresses
            .into_iter()
            .filter_map(|address| address.as_str().map(str::to_owned))
    });
    let addresses: Vec<String> = addresses.collect();
    let kind = fields.text(&["addressType"]);
    vec![
        name,
        json!(kind),
        json!(with_more(&ports)),
        json!(with_more(&addresses)),
        age,
    ]
}

fn node(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
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

fn event(fields: &Fields<'_>, name: Value, now: SystemTime) -> Vec<Value> {
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

fn volume(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
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

fn claim(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
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

fn ingress(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
    let rules = fields.list(&["spec", "rules"]);
    let hosts: Vec<&str> = rules
        .iter()
        .filter_map(|rule| rule["host"].as_str().filter(|host| !host.is_empty()))
        .collect();
    let shown = hosts.iter().take(3).copied().collect::<Vec<_>>().join(",");
    let shown = match (hosts.len(), rules.len()) {
        (0, _) => "*".to_owned(),
        (3.., rules) if rules > 3 => format!("{shown} + {} more...", rules - 3),
        _ => shown,
    };
    let ports = if fields.list(&["spec", "tls"]).is_empty() {
        "80"
    } else {
        "80, 443"
    };
    vec![
        name,
        json!(fields.text_or(&["spec", "ingressClassName"], "<none>")),
        json!(shown),
        json!(balancer(fields).join(",")),
        json!(ports),
        age,
    ]
}

fn binding(fields: &Fields<'_>, name: Value, age: Value) -> Vec<Value> {
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

/// The first two metrics of an autoscaler, each with what it is now and what it should be.
fn metrics(fields: &Fields<'_>) -> String {
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
