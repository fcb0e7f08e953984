// SPDX-License-Identifier: Apache-2.0
//! Validation of Services and Ingresses.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::{Value, json};

use super::{Errors, is_empty, items, text};
use crate::status::FieldError;

pub(super) fn service(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    let kind = text(spec, "type");
    let headless = text(spec, "clusterIP") == "None";
    if kind == "ExternalName" {
        if text(spec, "externalName").is_empty() {
            errors.required("spec.externalName");
        }
    } else if !headless && is_empty(&spec["ports"]) {
        errors.required("spec.ports");
    }
    ports(kind, spec, errors);
    errors.labels("spec.selector", &spec["selector"]);
    errors.one_of(
        "spec.sessionAffinity",
        text(spec, "sessionAffinity"),
        &["ClientIP", "None"],
    );
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    errors.one_of("spec.type", kind, &kinds);
    for (path, address) in items(spec, "clusterIPs", "spec.clusterIPs") {
        let text = address.as_str().unwrap_or_default();
        if !matches!(text, "None" | "") && text.parse::<IpAddr>().is_err() {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.invalid(&path, address, detail);
        }
    }
    let Some(old) = old else { return };
    let old = &old["spec"];
    if !is_empty(&old["clusterIP"])
        && kind != "ExternalName"
        && text(old, "type") != "ExternalName"
        && old["clusterIP"] != spec["clusterIP"]
    {
        errors.invalid(
            "spec.clusterIPs[0]",
            &spec["clusterIPs"],
            "may not change once set",
        );
    }
}

fn ports(kind: &str, spec: &Value, errors: &mut Errors<'_>) {
    let count = spec["ports"].as_array().map_or(0, Vec::len);
    let (mut names, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for (path, port) in items(spec, "ports", "spec.ports") {
        let at = |field: &str| format!("{path}.{field}");
        let name = text(port, "name");
        if name.is_empty() && count > 1 {
            errors.required(&at("name"));
        } else if !name.is_empty() {
            errors.label(&at("name"), name);
            if !names.insert(name.to_owned()) {
                errors.push(FieldError::duplicate(at("name"), &format!("{name:?}")));
            }
        }
        errors.port(&at("port"), &port["port"]);
        let protocol = text(port, "protocol");
        errors.one_of(&at("protocol"), protocol, &["SCTP", "TCP", "UDP"]);
        errors.target_port(&at("targetPort"), &port["targetPort"]);
        let node = port["nodePort"].as_i64().unwrap_or_default();
        if kind == "ClusterIP" && node != 0 {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(at("nodePort"), detail));
        }
        if !seen.insert((protocol.to_owned(), port["port"].to_string())) {
            let value = format!(
                "{{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{},\"TargetPort\":0,\"NodePort\":0}}",
                json!(protocol),
                port["port"]
            );
            errors.push(FieldError::duplicate(path.clone(), &value));
        }
    }
}

pub(super) fn ingress(object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    if is_empty(&spec["rules"]) && spec["defaultBackend"].is_null() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.invalid("spec", &Value::Null, detail);
    }
    if !spec["defaultBackend"].is_null() {
        backend("spec.defaultBackend", &spec["defaultBackend"], errors);
    }
    for (path, rule) in items(spec, "rules", "spec.rules") {
        let host = text(rule, "host");
        let named = host.strip_prefix("*.").unwrap_or(host);
        if !host.is_empty() {
            errors.subdomain(&format!("{path}.host"), named);
        }
        let Some(http) = rule.get("http").filter(|http| !http.is_null()) else {
            continue;
        };
        if is_empty(&http["paths"]) {
            errors.required(&format!("{path}.http.paths"));
        }
        for (path, one) in items(http, "paths", &format!("{path}.http.paths")) {
            let kind = text(one, "pathType");
            if one["pathType"].is_null() {
                let detail = "pathType must be specified";
                errors.push(FieldError::required(format!("{path}.pathType"), detail));
            } else {
                let kinds = ["Exact", "ImplementationSpecific", "Prefix"];
                errors.one_of(&format!("{path}.pathType"), kind, &kinds);
            }
            if matches!(kind, "Exact" | "Prefix") && !text(one, "path").starts_with('/') {
                errors.invalid(&format!("{path}.path"), &one["path"], "must be an absolute path");
            }
            backend(&format!("{path}.backend"), &one["backend"], errors);
        }
    }
}

fn backend(path: &str, backend: &Value, errors: &mut Errors<'_>) {
    let service = &backend["service"];
    if service.is_null() {
        if backend["resource"].is_null() {
            errors.invalid(path, &json!(""), "resource or service backend is required");
        }
        return;
    }
    if text(service, "name").is_empty() {
        errors.required(&format!("{path}.service.name"));
    }
    let port = &service["port"];
    let (name, number) = (text(port, "name"), port["number"].as_i64().unwrap_or_default());
    if name.is_empty() && number == 0 {
        errors.push(FieldError::required(path, "port name or number is required"));
    } else if name.is_empty() {
        errors.port(&format!("{path}.service.port.number"), &port["number"]);
    }
}
