// SPDX-License-Identifier: Apache-2.0
//! Validation of Pods and Pod templates.

mod changes;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, fields, is_empty, items, text};
use crate::{quantity, status::FieldError, write::kinds};

/// Volume sources in the order in which the real server checks them.
const SOURCES: [&str; 12] = [
    "emptyDir",
    "hostPath",
    "secret",
    "nfs",
    "iscsi",
    "persistentVolumeClaim",
    "downwardAPI",
    "configMap",
    "projected",
    "csi",
    "ephemeral",
    "image",
];

/// Validates a Pod.
pub(super) fn check(old: Option<&Value>, pod: &Value, errors: &mut Errors<'_>) {
    spec("spec", &pod["spec"], errors);
    let gated = items(&pod["spec"], "schedulingGates", "").next().is_some();
    match old {
        Some(old) => changes::check(&old["spec"], &pod["spec"], errors),
        None if gated && !text(&pod["spec"], "nodeName").is_empty() => {
            let detail = "cannot be set until all schedulingGates have been cleared";
            errors.push(FieldError::forbidden("spec.nodeName", detail));
        }
        None => {}
    }
}

/// Validates an update of a Pod through the `ephemeralcontainers` or `resize` subresource.
pub(super) fn check_subresource(subresource: &str, old: &Value, pod: &Value, errors: &mut Errors<'_>) {
    spec("spec", &pod["spec"], errors);
    if subresource == "ephemeralcontainers" {
        changes::ephemeral(&old["spec"], &pod["spec"], errors);
    } else {
        let class = text(&old["status"], "qosClass").to_owned();
        let now = pod.as_object().map_or("", kinds::service_class);
        changes::resize(&old["spec"], &pod["spec"], (&class, now), errors);
    }
}

/// Validates the spec of a Pod or template.
pub(super) fn spec(path: &str, spec: &Value, errors: &mut Errors<'_>) {
    let at = |field: &str| format!("{path}.{field}");
    let volumes = volumes(&at("volumes"), spec, errors);
    if is_empty(&spec["containers"]) {
        errors.required(&at("containers"));
    }
    let mut names = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for (path, one) in items(spec, list, &at(list)) {
            container(&path, one, &volumes, errors);
            let name = text(one, "name");
            if !name.is_empty() && !names.insert(name.to_owned()) {
                errors.push(FieldError::duplicate(
                    format!("{path}.name"),
                    &format!("{name:?}"),
                ));
            }
        }
    }
    errors.one_of(
        &at("restartPolicy"),
        text(spec, "restartPolicy"),
        &["Always", "OnFailure", "Never"],
    );
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.one_of(&at("dnsPolicy"), text(spec, "dnsPolicy"), &policies);
    if let Some(deadline) = spec.get("activeDeadlineSeconds").filter(|value| !value.is_null())
        && !(1..=2_147_483_647).contains(&deadline.as_i64().unwrap_or_default())
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.invalid(&at("activeDeadlineSeconds"), deadline, detail);
    }
    errors.labels(&at("nodeSelector"), &spec["nodeSelector"]);
    let account = text(spec, "serviceAccountName");
    if !account.is_empty() {
        errors.subdomain(&at("serviceAccountName"), account);
    }
    for (path, toleration) in items(spec, "tolerations", &at("tolerations")) {
        tolerate(&path, toleration, errors);
    }
}

fn tolerate(path: &str, toleration: &Value, errors: &mut Errors<'_>) {
    let (operator, value) = (text(toleration, "operator"), text(toleration, "value"));
    let at = format!("{path}.operator");
    if text(toleration, "key").is_empty() && operator != "Exists" {
        let detail =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(&at, &json!(operator), detail);
    }
    match operator {
        "" | "Equal" | "Lt" | "Gt" => {}
        "Exists" if value.is_empty() => {}
        "Exists" => errors.invalid(
            &at,
            &json!(value),
            "value must be empty when `operator` is 'Exists'",
        ),
        other => errors.one_of(&at, other, &["Equal", "Exists"]),
    }
}

/// Checks volumes and returns their names.
fn volumes(path: &str, spec: &Value, errors: &mut Errors<'_>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let account = text(spec, "serviceAccountName");
    for (path, volume) in items(spec, "volumes", path) {
        let name = text(volume, "name");
        let at = format!("{path}.name");
        if name.is_empty() {
            errors.required(&at);
        } else {
            errors.label(&at, name);
        }
        if !names.insert(name.to_owned()) {
            errors.push(FieldError::duplicate(at, &format!("{name:?}")));
        }
        let sources = SOURCES.iter().filter(|source| volume.get(**source).is_some());
        for source in sources.skip(1) {
            let detail = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(format!("{path}.{source}"), detail));
        }
        for (path, source) in items(
            &volume["projected"],
            "sources",
            &format!("{path}.projected.sources"),
        ) {
            if source.get("serviceAccountToken").is_some() && account.is_empty() {
                let detail = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(
                    format!("{path}.serviceAccountToken"),
                    detail,
                ));
            }
        }
    }
    names
}

fn container(path: &str, container: &Value, volumes: &BTreeSet<String>, errors: &mut Errors<'_>) {
    let at = |field: &str| format!("{path}.{field}");
    match text(container, "name") {
        "" => errors.required(&at("name")),
        name => errors.label(&at("name"), name),
    }
    if text(container, "image").is_empty() {
        errors.required(&at("image"));
    }
    ports(&at("ports"), container, errors);
    for (path, variable) in items(container, "env", &at("env")) {
        environment(&path, variable, errors);
    }
    mounts(&at("volumeMounts"), container, volumes, errors);
    let policies = ["Always", "IfNotPresent", "Never"];
    errors.one_of(
        &at("imagePullPolicy"),
        text(container, "imagePullPolicy"),
        &policies,
    );
    errors.one_of(
        &at("terminationMessagePolicy"),
        text(container, "terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    resources(&at("resources"), &container["resources"], errors);
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(found) = container.get(kind).filter(|probe| !probe.is_null()) {
            probe(&at(kind), found, kind != "readinessProbe", errors);
        }
    }
}

fn ports(path: &str, container: &Value, errors: &mut Errors<'_>) {
    let mut names = BTreeSet::new();
    for (path, port) in items(container, "ports", path) {
        let name = text(port, "name");
        if !name.is_empty() {
            let before = errors.0.len();
            errors.port_name(&format!("{path}.name"), name);
            if errors.0.len() == before && !names.insert(name.to_owned()) {
                errors.push(FieldError::duplicate(
                    format!("{path}.name"),
                    &format!("{name:?}"),
                ));
            }
        }
        match port["containerPort"].as_i64().unwrap_or_default() {
            0 => errors.required(&format!("{path}.containerPort")),
            _ => errors.port(&format!("{path}.containerPort"), &port["containerPort"]),
        }
        errors.one_of(
            &format!("{path}.protocol"),
            text(port, "protocol"),
            &["SCTP", "TCP", "UDP"],
        );
    }
}

fn environment(path: &str, variable: &Value, errors: &mut Errors<'_>) {
    let name = text(variable, "name");
    if name.is_empty() {
        errors.required(&format!("{path}.name"));
    } else if !name.chars().all(|c| (' '..='~').contains(&c) && c != '=') {
        let detail = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        errors.invalid(&format!("{path}.name"), &json!(name), detail);
    }
    if !text(variable, "value").is_empty() && variable.get("valueFrom").is_some() {
        let detail = "may not be specified when `value` is not empty";
        errors.invalid(&format!("{path}.valueFrom"), &json!(""), detail);
    }
}

fn mounts(path: &str, container: &Value, volumes: &BTreeSet<String>, errors: &mut Errors<'_>) {
    let mut places = BTreeSet::new();
    for (path, mount) in items(container, "volumeMounts", path) {
        let (name, place) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.required(&format!("{path}.name"));
        }
        if !volumes.contains(name) {
            errors.push(FieldError::not_found(format!("{path}.name"), name));
        }
        if place.is_empty() {
            errors.required(&format!("{path}.mountPath"));
        } else if !places.insert(place.to_owned()) {
            errors.invalid(&format!("{path}.mountPath"), &json!(place), "must be unique");
        }
    }
}

fn resources(path: &str, resources: &Value, errors: &mut Errors<'_>) {
    let number = |value: &Value| quantity::number(value.as_str().unwrap_or_default());
    for kind in ["limits", "requests"] {
        for (name, value) in fields(resources, kind).into_iter().flatten() {
            if number(value).is_some_and(|number| number < 0.0) {
                let detail = "must be greater than or equal to 0";
                errors.invalid(&format!("{path}.{kind}[{name}]"), value, detail);
            }
        }
    }
    for (name, request) in fields(resources, "requests").into_iter().flatten() {
        let Some(limit) = fields(resources, "limits").and_then(|limits| limits.get(name)) else {
            continue;
        };
        if number(request) > number(limit) {
            let limit = limit.as_str().unwrap_or_default();
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            errors.invalid(&format!("{path}.requests"), request, &detail);
        }
    }
}

fn probe(path: &str, probe: &Value, once: bool, errors: &mut Errors<'_>) {
    let at = |field: &str| format!("{path}.{field}");
    let handlers = ["exec", "httpGet", "tcpSocket", "grpc"];
    let found: Vec<&str> = handlers
        .into_iter()
        .filter(|kind| probe.get(*kind).is_some())
        .collect();
    if found.is_empty() {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
    for extra in found.iter().skip(1) {
        let detail = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(at(extra), detail));
    }
    let numbers = [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ];
    for field in numbers {
        errors.not_negative(&at(field), &probe[field]);
    }
    if once
        && probe["successThreshold"]
            .as_i64()
            .is_some_and(|number| number > 1)
    {
        errors.invalid(&at("successThreshold"), &probe["successThreshold"], "must be 1");
    }
}
