// SPDX-License-Identifier: Apache-2.0
//! The EndpointSlice controller: publishes the addresses of a Service's Pods.

use serde_json::{Value, json};

use super::{
    actor::{self, Kind, text},
    pods,
};
use crate::{
    resource::at,
    state::Context,
    store::{Object, metadata_of},
};

const SERVICES: Kind = ("", "services");
const SLICES: Kind = ("discovery.k8s.io", "endpointslices");

/// Processes a Service.
pub(super) fn advance(cx: &mut Context<'_>, key: &str) {
    let Some(service) = actor::get(cx, SERVICES, key) else {
        return;
    };
    let selector = at(&service, &["spec", "selector"])
        .and_then(Value::as_object)
        .cloned();
    let Some(selector) = selector.filter(|selector| !selector.is_empty() && !actor::is_deleting(&service))
    else {
        return;
    };
    let namespace = text(&service, &["metadata", "namespace"]);
    let selects = |pod: &Object| {
        let labels = metadata_of(pod).get("labels");
        let mut wanted = selector.iter();
        wanted.all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
    };
    let mut endpoints: Vec<Value> = cx
        .all("", "pods")
        .filter(|pod| pod.head().metadata.namespace == namespace.as_str())
        .map(|pod| pod.object())
        .filter(|pod| selects(pod) && pods::is_active(pod))
        .filter_map(|pod| endpoint(&pod))
        .collect();
    endpoints.sort_by_key(|endpoint| endpoint["targetRef"]["name"].to_string());
    let ports = ports(&service);
    let known = actor::owned(cx, SLICES, &service).into_iter().next();
    match known {
        Some(slice) => actor::change(cx, SLICES, &actor::key(&slice), "", |slice| {
            slice.insert("endpoints".to_owned(), json!(endpoints));
            slice.insert("ports".to_owned(), json!(ports));
        }),
        None => {
            let Some(resource) = actor::resource(cx, SERVICES) else {
                return;
            };
            let name = text(&service, &["metadata", "name"]);
            let slice = json!({
                "metadata": {
                    "generateName": format!("{name}-"), "ownerReferences": [actor::controller(&resource, &service)],
                    "labels": {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
                },
                "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
            });
            // A rejected EndpointSlice is retried when something changes.
            let _ = actor::create(cx, SLICES, &namespace, slice);
        }
    }
}

fn endpoint(pod: &Object) -> Option<Value> {
    let address = text(pod, &["status", "podIP"]);
    if address.is_empty() {
        return None;
    }
    let ready = pods::is_ready(pod);
    let of = |key: &str| text(pod, &["metadata", key]);
    Some(json!({
        "addresses": [address], "nodeName": text(pod, &["spec", "nodeName"]),
        "conditions": {"ready": ready, "serving": ready, "terminating": false},
        "targetRef": {"kind": "Pod", "name": of("name"), "namespace": of("namespace"), "uid": of("uid")},
    }))
}

/// Returns the ports of the Pods; a named target port is replaced by the port of the Service.
fn ports(service: &Object) -> Vec<Value> {
    let ports = at(service, &["spec", "ports"]).and_then(Value::as_array);
    let port = |port: &Value| {
        let target = port["targetPort"].as_i64().or_else(|| port["port"].as_i64());
        json!({"name": port["name"].as_str().unwrap_or_default(), "protocol": port["protocol"], "port": target})
    };
    ports.into_iter().flatten().map(port).collect()
}
