// SPDX-License-Identifier: Apache-2.0
//! Validation of kinds that are neither workloads nor networking.

use base64::Engine as _;
use serde_json::{Value, json};

use super::{Errors, fields, is_empty, items, text};
use crate::{quantity, status::FieldError};

fn keys(field: &str, object: &Value, errors: &mut Errors<'_>) {
    for key in fields(object, field).into_iter().flatten().map(|(key, _)| key) {
        let path = format!("{field}[{key}]");
        let value = json!(key);
        if !key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
            || key.is_empty()
        {
            let detail = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
            errors.invalid(&path, &value, detail);
        }
        match key.as_str() {
            "." => errors.invalid(&path, &value, "must not be '.'"),
            ".." => errors.invalid(&path, &value, "must not be '..'"),
            other if other.starts_with("..") => errors.invalid(&path, &value, "must not start with '..'"),
            _ => {}
        }
    }
}

/// Rejects changes of an object that is marked as immutable.
fn immutable_data(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let Some(old) = old.filter(|old| old["immutable"] == json!(true)) else {
        return;
    };
    for field in ["immutable", "data", "binaryData"] {
        if old.get(field) != object.get(field) {
            let detail = "field is immutable when `immutable` is set";
            errors.push(FieldError::forbidden(field, detail));
        }
    }
}

pub(super) fn config_map(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    immutable_data(old, object, errors);
    keys("data", object, errors);
    keys("binaryData", object, errors);
    for (key, _) in fields(object, "data").into_iter().flatten() {
        if fields(object, "binaryData").is_some_and(|binary| binary.contains_key(key)) {
            let detail = "duplicate of key present in binaryData";
            errors.invalid(&format!("data[{key}]"), &json!(key), detail);
        }
    }
}

pub(super) fn secret(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    immutable_data(old, object, errors);
    if let Some(old) = old {
        errors.immutable("type", &old["type"], &object["type"]);
        return;
    }
    keys("data", object, errors);
    let data = |key: &str| fields(object, "data").and_then(|data| data.get(key));
    let needed: &[&str] = match text(object, "type") {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/basic-auth" if data("username").is_none() && data("password").is_none() => {
            &["username", "password"]
        }
        _ => &[],
    };
    for key in needed.iter().filter(|key| data(key).is_none()) {
        errors.required(&format!("data[{key}]"));
    }
    for key in [".dockerconfigjson", ".dockercfg"] {
        let Some(config) = data(key).filter(|_| needed.contains(&key)) else {
            continue;
        };
        let bytes = base64::engine::general_purpose::STANDARD.decode(config.as_str().unwrap_or_default());
        if let Err(error) = crate::json::parse(&bytes.unwrap_or_default(), &mut Vec::new()) {
            errors.push(FieldError::invalid(
                format!("data[{key}]"),
                &json!("<secret contents redacted>"),
                &error,
            ));
        }
    }
    let account = "kubernetes.io/service-account.name";
    if text(object, "type") == "kubernetes.io/service-account-token"
        && text(&object["metadata"]["annotations"], account).is_empty()
    {
        errors.required(&format!("metadata.annotations[{account}]"));
    }
}

pub(super) fn claim(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    if let Some(old) = old {
        claim_change(old, object, errors);
        return;
    }
    if is_empty(&spec["accessModes"]) {
        let detail = "at least 1 access mode is required";
        errors.push(FieldError::required("spec.accessModes", detail));
    }
    for (_, mode) in items(spec, "accessModes", "spec.accessModes") {
        let modes = [
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOnce",
            "ReadWriteOncePod",
        ];
        errors.one_of("spec.accessModes", mode.as_str().unwrap_or_default(), &modes);
    }
    match spec.pointer("/resources/requests/storage") {
        None => errors.required("spec.resources[storage]"),
        Some(size) => {
            if quantity::number(size.as_str().unwrap_or_default()).is_none_or(|number| number <= 0.0) {
                errors.invalid("spec.resources[storage]", size, "must be greater than zero");
            }
        }
    }
}

/// Checks a change of a claim: the volume is set once, and only bound claims change their size and attributes.
fn claim_change(old: &Value, object: &Value, errors: &mut Errors<'_>) {
    let is_bound = text(&object["status"], "phase") == "Bound";
    let (before, mut spec) = (&old["spec"], object["spec"].clone());
    if text(before, "volumeName").is_empty()
        && let Value::Object(spec) = &mut spec
    {
        spec.remove("volumeName");
    }
    if is_bound {
        spec["resources"]["requests"]["storage"] = before["resources"]["requests"]["storage"].clone();
        match before.get("volumeAttributesClassName") {
            Some(class) => spec["volumeAttributesClassName"] = class.clone(),
            None => drop(
                spec.as_object_mut()
                    .and_then(|spec| spec.remove("volumeAttributesClassName")),
            ),
        }
    }
    if *before != spec {
        let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden("spec", detail));
    }
    let size = |of: &Value, pointer: &str| {
        let size = of.pointer(pointer).and_then(Value::as_str);
        size.and_then(quantity::number).unwrap_or_default()
    };
    let requested = "/spec/resources/requests/storage";
    let new = size(object, requested);
    if new < size(old, requested) && new <= size(old, "/status/capacity/storage") {
        let field = "spec.resources.requests.storage";
        let detail = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden(field, detail));
    }
}

pub(super) fn autoscaler(object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    let target = &spec["scaleTargetRef"];
    for field in ["kind", "name"] {
        if text(target, field).is_empty() {
            errors.required(&format!("spec.scaleTargetRef.{field}"));
        }
    }
    if text(target, "apiVersion").is_empty() {
        let detail = "apiVersion must specify API group";
        errors.invalid("spec.scaleTargetRef.apiVersion", &json!(""), detail);
    }
    let (least, most) = (
        &spec["minReplicas"],
        spec["maxReplicas"].as_i64().unwrap_or_default(),
    );
    errors.not_negative("spec.minReplicas", least);
    if most < 1 {
        errors.required("spec.maxReplicas");
    } else if least.as_i64().is_some_and(|least| most < least) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.invalid("spec.maxReplicas", &spec["maxReplicas"], detail);
    }
}

pub(super) fn budget(object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    let (least, most) = (&spec["minAvailable"], &spec["maxUnavailable"]);
    if !least.is_null() && !most.is_null() {
        let value = format!(
            "{{\"MinAvailable\":{least},\"Selector\":{},\"MaxUnavailable\":{most},\"UnhealthyPodEvictionPolicy\":{}}}",
            spec["selector"], spec["unhealthyPodEvictionPolicy"]
        );
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid_text("spec", &value, detail));
    }
    for (path, value) in [("spec.minAvailable", least), ("spec.maxUnavailable", most)] {
        if !value.is_null() {
            errors.share(path, value);
            errors.at_most_all(path, value);
        }
    }
}

pub(super) fn role(namespaced: bool, object: &Value, errors: &mut Errors<'_>) {
    for (path, rule) in items(object, "rules", "rules") {
        if is_empty(&rule["verbs"]) {
            errors.required(&format!("{path}.verbs"));
        }
        let urls = &rule["nonResourceURLs"];
        if !is_empty(urls) {
            if namespaced {
                let detail = "namespaced rules cannot apply to non-resource URLs";
                errors.invalid(&format!("{path}.nonResourceURLs"), urls, detail);
            }
            continue;
        }
        for (field, what) in [("apiGroups", "api group"), ("resources", "resource")] {
            if is_empty(&rule[field]) {
                let detail = format!("resource rules must supply at least one {what}");
                errors.push(FieldError::required(format!("{path}.{field}"), &detail));
            }
        }
    }
}

pub(super) fn binding(namespaced: bool, old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let role = &object["roleRef"];
    let group = text(role, "apiGroup");
    errors.one_of("roleRef.apiGroup", group, &["rbac.authorization.k8s.io"]);
    let kinds: &[&str] = if namespaced {
        &["Role", "ClusterRole"]
    } else {
        &["ClusterRole"]
    };
    errors.one_of("roleRef.kind", text(role, "kind"), kinds);
    if text(role, "name").is_empty() {
        errors.required("roleRef.name");
    }
    for (path, subject) in items(object, "subjects", "subjects") {
        if text(subject, "name").is_empty() {
            errors.required(&format!("{path}.name"));
        }
        let kinds = ["ServiceAccount", "User", "Group"];
        errors.one_of(&format!("{path}.kind"), text(subject, "kind"), &kinds);
        if text(subject, "kind") == "ServiceAccount" && !namespaced && text(subject, "namespace").is_empty() {
            errors.required(&format!("{path}.namespace"));
        }
    }
    if let Some(old) = old
        && old["roleRef"] != *role
    {
        let shown = json!({"APIGroup": group, "Kind": text(role, "kind"), "Name": text(role, "name")});
        errors.invalid("roleRef", &shown, "field is immutable");
    }
}

pub(super) fn lease(object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    let length = &spec["leaseDurationSeconds"];
    if length.as_i64().is_some_and(|seconds| seconds <= 0) {
        errors.invalid("spec.leaseDurationSeconds", length, "must be greater than 0");
    }
    errors.not_negative("spec.leaseTransitions", &spec["leaseTransitions"]);
}
