// SPDX-License-Identifier: Apache-2.0
//! Computes the quota usage of an object.

use std::time::SystemTime;

use serde_json::{Value, json};

use crate::{
    auth,
    quantity::amount::{Amount, Amounts, add, amounts, raise},
    resource::{Resource, at},
    store::{Object, metadata_of},
};

/// Returns the containers of a Pod, then its init containers.
pub(super) fn containers(pod: &Object) -> Vec<Value> {
    let lists = ["containers", "initContainers"];
    let lists = lists
        .iter()
        .filter_map(|list| at(pod, &["spec", list])?.as_array());
    lists.flatten().cloned().collect()
}

/// Returns the `requests` or `limits` of a Pod: the sum over its containers, or the needs of its init containers if
/// these are larger.
pub(super) fn of_pod(pod: &Object, field: &str) -> Amounts {
    let list = |list: &str| -> Vec<Value> {
        let containers = at(pod, &["spec", list]).and_then(Value::as_array);
        containers.cloned().unwrap_or_default()
    };
    let mut total = Amounts::new();
    for container in list("containers") {
        add(&mut total, &amounts(&container["resources"][field]));
    }
    // A sidecar runs beside all containers that start after it.
    let (mut sidecars, mut starting) = (Amounts::new(), Amounts::new());
    for container in list("initContainers") {
        let own = amounts(&container["resources"][field]);
        if container["restartPolicy"] == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut starting, &sidecars);
        } else {
            let mut all = own;
            add(&mut all, &sidecars);
            raise(&mut starting, &all);
        }
    }
    raise(&mut total, &starting);
    if let Some(own) = at(pod, &["spec", "resources", field]) {
        let own = amounts(own).into_iter();
        total.extend(own.filter(|(name, _)| name == "cpu" || name == "memory"));
    }
    total
}

/// Returns the usage of an object under the names that quotas use.
pub(super) fn of(resource: &Resource, object: &Object) -> Amounts {
    let mut used = Amounts::new();
    let group = if resource.group.is_empty() {
        String::new()
    } else {
        format!(".{}", resource.group)
    };
    used.insert(format!("count/{}{group}", resource.plural), Amount::ONE);
    if !resource.group.is_empty() {
        return used;
    }
    match resource.plural.as_str() {
        plural @ ("configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets") => {
            used.insert(plural.to_owned(), Amount::ONE);
        }
        "services" => service(object, &mut used),
        "persistentvolumeclaims" => claim(object, &mut used),
        "pods" => pod(object, &mut used),
        _ => {}
    }
    used
}

fn service(object: &Object, used: &mut Amounts) {
    let ports = at(object, &["spec", "ports"]).and_then(Value::as_array);
    let ports = ports.map_or(&[][..], Vec::as_slice);
    let kind = at(object, &["spec", "type"])
        .and_then(Value::as_str)
        .unwrap_or_default();
    let is_suppressed = at(object, &["spec", "allocateLoadBalancerNodePorts"]) == Some(&json!(false));
    let is_set = |port: &&Value| port["nodePort"].as_i64().is_some_and(|number| number != 0);
    let node_ports = match kind {
        "NodePort" => ports.len(),
        "LoadBalancer" if is_suppressed => ports.iter().filter(is_set).count(),
        "LoadBalancer" => ports.len(),
        _ => 0,
    };
    used.insert("services".to_owned(), Amount::ONE);
    used.insert("services.nodeports".to_owned(), Amount::count(node_ports));
    let balancers = Amount::count(usize::from(kind == "LoadBalancer"));
    used.insert("services.loadbalancers".to_owned(), balancers);
}

fn claim(object: &Object, used: &mut Amounts) {
    let storage = at(object, &["spec", "resources", "requests", "storage"])
        .and_then(|text| Amount::parse(text.as_str()?));
    let class = at(object, &["spec", "storageClassName"]).and_then(Value::as_str);
    let mut prefixes = vec![String::new()];
    if let Some(class) = class.filter(|class| !class.is_empty()) {
        prefixes.push(format!("{class}.storageclass.storage.k8s.io/"));
    }
    for prefix in prefixes {
        used.insert(format!("{prefix}persistentvolumeclaims"), Amount::ONE);
        if let Some(storage) = storage {
            used.insert(format!("{prefix}requests.storage"), storage);
        }
    }
}

fn pod(object: &Object, used: &mut Amounts) {
    // A Pod that has ended, or is overdue to end, uses nothing.
    let phase = at(object, &["status", "phase"]).and_then(Value::as_str);
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return;
    }
    let overhead = at(object, &["spec", "overhead"]).map(amounts).unwrap_or_default();
    let [requests, limits] = ["requests", "limits"].map(|field| {
        let mut total = of_pod(object, field);
        let counts = |name: &String| field == "requests" || total.contains_key(name);
        let overhead: Amounts = overhead
            .clone()
            .into_iter()
            .filter(|(name, _)| counts(name))
            .collect();
        add(&mut total, &overhead);
        total
    });
    used.insert("pods".to_owned(), Amount::ONE);
    used.extend(compute(&requests, &limits));
}

/// Returns the compute usage of the given requests and limits.
pub(super) fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::new();
    for (name, amount) in requests {
        let is_plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        if is_plain || name.starts_with("hugepages-") {
            used.insert(name.clone(), *amount);
        }
        let is_extended = name.contains('/') && !name.contains("kubernetes.io/");
        if is_plain || is_extended || name.starts_with("hugepages-") {
            used.insert(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), *amount);
        }
    }
    used
}

/// Returns true if a quota with these scopes counts an object.
pub(super) fn is_in_scopes(spec: &Value, resource: &Resource, object: &Object) -> bool {
    let plain = spec["scopes"].as_array().into_iter().flatten();
    let plain = plain.map(|scope| json!({"scopeName": scope, "operator": "Exists"}));
    let selected = spec.pointer("/scopeSelector/matchExpressions");
    let selected = selected.and_then(Value::as_array).into_iter().flatten();
    plain
        .chain(selected.cloned())
        .all(|scope| is_in_scope(&scope, resource, object))
}

fn is_in_scope(scope: &Value, resource: &Resource, object: &Object) -> bool {
    if resource.is("", "persistentvolumeclaims") {
        let class = at(object, &["spec", "volumeAttributesClassName"]);
        return scope["scopeName"] == "VolumeAttributesClass" && selects(scope, class);
    }
    if !resource.is("", "pods") {
        return false;
    }
    let ends =
        at(object, &["spec", "activeDeadlineSeconds"]).is_some_and(|seconds| seconds.as_i64() >= Some(0));
    let best_effort = || crate::write::kinds::service_class(object) == "BestEffort";
    match scope["scopeName"].as_str().unwrap_or_default() {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => selects(scope, at(object, &["spec", "priorityClassName"])),
        "CrossNamespacePodAffinity" => crosses_namespaces(object),
        _ => false,
    }
}

fn selects(scope: &Value, class: Option<&Value>) -> bool {
    let class = class.and_then(Value::as_str).filter(|class| !class.is_empty());
    let mut values = scope["values"].as_array().into_iter().flatten();
    let is_listed = |class: &str| values.any(|value| value == class);
    match scope["operator"].as_str().unwrap_or_default() {
        "In" => class.is_some_and(is_listed),
        "NotIn" => !class.is_some_and(is_listed),
        "DoesNotExist" => class.is_none(),
        _ => class.is_some(),
    }
}

/// Returns true if a Pod's affinity names other namespaces.
fn crosses_namespaces(pod: &Object) -> bool {
    let names_others = |term: &Value| {
        let list = term["namespaces"].as_array().is_some_and(|list| !list.is_empty());
        list || term["namespaceSelector"].is_object()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = at(pod, &["spec", "affinity", kind]).cloned().unwrap_or_default();
        let required = affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array();
        let preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array();
        let required = required.into_iter().flatten().any(names_others);
        let mut preferred = preferred.into_iter().flatten();
        required || preferred.any(|weighted| names_others(&weighted["podAffinityTerm"]))
    })
}

/// Returns true if a Pod is still terminating one grace period after its deletion time, so that its node counts as
/// lost.
pub(super) fn is_overdue(pod: &Object, now: SystemTime) -> bool {
    let metadata = metadata_of(pod);
    let grace = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    let time = metadata.get("deletionTimestamp").and_then(Value::as_str);
    let Some((time, grace)) = time
        .and_then(|time| time.parse::<jiff::Timestamp>().ok())
        .zip(grace)
    else {
        return false;
    };
    auth::unix(now) > time.as_second().saturating_add(grace)
}
