// SPDX-License-Identifier: Apache-2.0
//! APIServices: one for every served group and version, and one for each registration by a client.
//!
//! This server does not proxy, so a registered APIService is never available: its requests get 503 and its discovery is
//! stale, as on a real server whose extension API server is down.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    handler::Target,
    managed,
    resource::{Resource, at},
    state::Context,
    status::Failure,
    store::{Object, metadata_of},
};

const GROUP: &str = "apiregistration.k8s.io";

/// Priorities of built-in groups, equal to those of the real server.
const PRIORITIES: [(&str, u32, u32); 22] = [
    ("", 18000, 1),
    ("apps", 17800, 15),
    ("events.k8s.io", 17750, 15),
    ("authentication.k8s.io", 17700, 15),
    ("authorization.k8s.io", 17600, 15),
    ("autoscaling", 17500, 15),
    ("batch", 17400, 15),
    ("certificates.k8s.io", 17300, 15),
    ("networking.k8s.io", 17200, 15),
    ("policy", 17100, 15),
    ("rbac.authorization.k8s.io", 17000, 15),
    ("storage.k8s.io", 16800, 15),
    ("admissionregistration.k8s.io", 16700, 15),
    ("apiextensions.k8s.io", 16700, 15),
    ("scheduling.k8s.io", 16600, 15),
    ("coordination.k8s.io", 16500, 15),
    ("node.k8s.io", 16300, 15),
    ("discovery.k8s.io", 16200, 15),
    ("resource.k8s.io", 16200, 21),
    ("flowcontrol.apiserver.k8s.io", 16100, 21),
    ("storagemigration.k8s.io", 15800, 15),
    ("", 0, 0),
];

/// Creates the APIServices of all built-in groups.
pub(crate) fn plant(cx: &mut Context<'_>) {
    let mut known: Vec<(String, String)> = Vec::new();
    for resource in cx.state.registry.all() {
        for version in &resource.versions {
            let pair = (resource.group.clone(), version.name.clone());
            if !known.contains(&pair) && resource.group != GROUP {
                known.push(pair);
            }
        }
    }
    for (group, version) in known {
        let (_, minimum, priority) = PRIORITIES
            .iter()
            .find(|(known, ..)| *known == group)
            .copied()
            .unwrap_or(("", 1000, 100));
        let priority = if version == "v2" { 30 } else { priority };
        local(cx, &group, &version, minimum, priority, "onstart");
    }
}

fn local(cx: &mut Context<'_>, group: &str, version: &str, minimum: u32, priority: u32, managed: &str) {
    let mut spec = json!({"version": version, "groupPriorityMinimum": minimum, "versionPriority": priority});
    if !group.is_empty() {
        spec["group"] = json!(group);
    }
    let condition = json!({
        "type": "Available", "status": "True", "lastTransitionTime": cx.timestamp(),
        "reason": "Local", "message": "Local APIServices are always available",
    });
    let object = json!({
        "metadata": {"labels": {"kube-aggregator.kubernetes.io/automanaged": managed}},
        "spec": spec, "status": {"conditions": [condition]},
    });
    cx.plant(GROUP, "apiservices", "", &format!("{version}.{group}"), object);
}

/// Creates the APIServices of a CRD's group and versions.
pub(crate) fn ensure(cx: &mut Context<'_>, resource: &Resource) {
    for version in resource.versions.iter().filter(|version| version.served) {
        if cx
            .find(
                GROUP,
                "apiservices",
                &format!("{}.{}", version.name, resource.group),
            )
            .is_none()
        {
            local(cx, &resource.group, &version.name, 1000, 100, "true");
        }
    }
}

/// Deletes the APIServices of versions that no CRD of a group serves any more.
pub(crate) fn withdraw(cx: &mut Context<'_>, group: &str) {
    let Some(services) = cx.state.registry.find(GROUP, "apiservices").cloned() else {
        return;
    };
    let stale: Vec<String> = cx
        .all(GROUP, "apiservices")
        .map(|stored| stored.object())
        .filter(|object| at(object, &["spec", "group"]).and_then(Value::as_str) == Some(group))
        .filter(|object| {
            metadata_of(object)
                .get("labels")
                .and_then(|labels| labels.get("kube-aggregator.kubernetes.io/automanaged"))
                == Some(&json!("true"))
        })
        .filter(|object| {
            let version = at(object, &["spec", "version"])
                .and_then(Value::as_str)
                .unwrap_or_default();
            let served = |resource: &Resource| {
                resource.group == group && resource.version(version).is_some_and(|version| version.served)
            };
            !cx.state.registry.all().iter().any(|resource| served(resource))
        })
        .filter_map(|object| metadata_of(&object).get("name")?.as_str().map(str::to_owned))
        .collect();
    for name in stale {
        cx.remove(&services, &name);
    }
}

/// Sets the condition `Available` of a registered APIService to false.
pub(crate) fn advance(cx: &mut Context<'_>, name: &str) {
    let Some(stored) = cx.find(GROUP, "apiservices", name).cloned() else {
        return;
    };
    let old = stored.object();
    let mut object = Object::clone(&old);
    let Some(Value::Object(service)) = object.get_mut("spec").and_then(|spec| spec.get_mut("service")) else {
        return;
    };
    let text = |key: &str| {
        service
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (namespace, behind) = (text("namespace"), text("name"));
    let (reason, message) = if cx
        .find("", "services", &format!("{namespace}/{behind}"))
        .is_some()
    {
        (
            "MissingEndpoints",
            format!(
                "endpoints for service/{behind} in {namespace:?} have no addresses with port name \"https\""
            ),
        )
    } else {
        (
            "ServiceNotFound",
            format!("service/{behind} in {namespace:?} is not present"),
        )
    };
    let condition = json!({"type": "Available", "status": "False", "lastTransitionTime": cx.timestamp(), "reason": reason, "message": message});
    if at(&object, &["status", "conditions"]).is_some() {
        return;
    }
    object.insert("status".to_owned(), json!({"conditions": [condition]}));
    let Some(resource) = cx.state.registry.find(GROUP, "apiservices").cloned() else {
        return;
    };
    let target = Target {
        resource: Arc::clone(&resource),
        version: 0,
        namespace: String::new(),
        name: name.to_owned(),
        subresource: "status".to_owned(),
    };
    managed::on_update(cx, &target, Some(&old), &mut object, "kube-apiserver");
    cx.put(&resource, name, object);
}

/// Returns the groups and versions of registered APIServices without a backend.
pub(crate) fn remote<'a>(cx: &'a Context<'_>) -> impl Iterator<Item = (String, String)> + use<'a> {
    cx.all(GROUP, "apiservices").filter_map(|stored| {
        let object = stored.object();
        at(&object, &["spec", "service"]).filter(|service| !service.is_null())?;
        let text = |key: &str| {
            at(&object, &["spec", key])
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        Some((text("group")?, text("version")?))
    })
}

/// Returns the failure of requests to a registered APIService without a backend.
pub(crate) fn unavailable(cx: &Context<'_>, group: &str, version: &str) -> Option<Failure> {
    let stored = cx.find(GROUP, "apiservices", &format!("{version}.{group}"))?;
    let object = stored.object();
    let service = at(&object, &["spec", "service"]);
    service
        .is_some_and(|service| !service.is_null())
        .then(|| Failure::plain(StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n"))
}
