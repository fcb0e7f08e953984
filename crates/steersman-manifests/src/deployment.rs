// SPDX-License-Identifier: Apache-2.0
//! The Deployment and its disruption budget.

use serde_json::{Value, json};

use crate::{HEALTH_PORT, METRICS_PORT, Operator, target::Target};

/// User of the container, for images that name none. It is `nonroot` in distroless images.
const USER: u32 = 65532;

/// More than the shutdown timeout of a manager, so that it ends by itself.
const GRACE_SECONDS: u32 = 40;

pub(crate) fn deployment(operator: &Operator, target: &Target<'_>) -> Value {
    let labels = operator.labels();
    let mut pod = json!({
        "serviceAccountName": operator.name,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(operator, target)],
    });
    let mut template = json!({"labels": labels});
    set(&mut template, "annotations", target.pod_annotations());
    set(&mut pod, "nodeSelector", target.node_selector());
    set(&mut pod, "tolerations", target.tolerations());
    set(&mut pod, "affinity", target.affinity());
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": operator.metadata(&operator.name, target),
        "spec": {
            "replicas": target.replicas(),
            "selector": {"matchLabels": labels},
            "template": {"metadata": template, "spec": pod},
        },
    })
}

fn container(operator: &Operator, target: &Target<'_>) -> Value {
    let probe = |path: &str, period: u32| json!({"httpGet": {"path": path, "port": "health"}, "periodSeconds": period});
    let mut ports = vec![port("health", HEALTH_PORT), port("metrics", METRICS_PORT)];
    ports.extend(operator.ports.iter().map(|(name, number)| port(name, *number)));
    json!({
        "name": "operator",
        "image": target.image(),
        "imagePullPolicy": target.pull_policy(),
        "args": arguments(target),
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "WATCH_NAMESPACE", "value": target.watch_namespace()},
            {"name": "RUST_LOG", "value": target.log_filter()},
        ],
        "ports": ports,
        "livenessProbe": probe("/healthz", 20),
        "readinessProbe": probe("/readyz", 10),
        "resources": target.resources(),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        },
    })
}

fn port(name: &str, number: u16) -> Value {
    json!({"name": name, "containerPort": number, "protocol": "TCP"})
}

/// Returns the arguments of the program. A Helm chart appends those of its values; see `helm.rs`.
fn arguments(target: &Target<'_>) -> Vec<String> {
    let mut arguments = vec![
        "run".to_owned(),
        "--leader-elect".to_owned(),
        format!("--health-address=0.0.0.0:{HEALTH_PORT}"),
        format!("--metrics-address=0.0.0.0:{METRICS_PORT}"),
    ];
    if !target.is_helm() {
        arguments.extend(target.values().args.iter().cloned());
    }
    arguments
}

/// Sets a field, unless it is empty.
fn set(object: &mut Value, field: &str, value: Value) {
    let is_empty = match &value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    if !is_empty {
        object[field] = value;
    }
}

/// Returns the budget: at most one replica is unavailable, which permits to drain a node also with a single replica.
pub(crate) fn budget(operator: &Operator, target: &Target<'_>) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": operator.metadata(&operator.name, target),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": operator.labels()}},
    })
}
