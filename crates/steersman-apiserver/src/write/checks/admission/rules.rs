// SPDX-License-Identifier: Apache-2.0
//! Validation of admission rules: operations, groups, versions, resources and scope.

use serde_json::{Value, json};

use super::super::{Errors, items, text};
use crate::{names::NameRule, status::FieldError};

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// Checks the names that a rule of a policy selects.
pub(in crate::write::checks) fn names(path: &str, rule: &Value, errors: &mut Errors<'_>) {
    let mut seen = Vec::new();
    for (path, name) in items(rule, "resourceNames", &format!("{path}.resourceNames")) {
        let name = name.as_str().unwrap_or_default();
        for error in NameRule::PathSegment.check(name, false) {
            errors.invalid(&path, &json!(name), &error);
        }
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(path, &format!("{name:?}")));
        }
        seen.push(name);
    }
}

/// Checks a rule of a policy or webhook.
pub(in crate::write::checks) fn rule(path: &str, rule: &Value, errors: &mut Errors<'_>) {
    alone(path, rule, "operations", "operations", errors);
    for (path, operation) in items(rule, "operations", &format!("{path}.operations")) {
        errors.one_of(&path, operation.as_str().unwrap_or_default(), &OPERATIONS);
    }
    alone(path, rule, "apiGroups", "API groups", errors);
    alone(path, rule, "apiVersions", "API versions", errors);
    for (path, version) in items(rule, "apiVersions", &format!("{path}.apiVersions")) {
        if version == "" {
            errors.required(&path);
        }
    }
    resources(&format!("{path}.resources"), rule, errors);
    errors.one_of(
        &format!("{path}.scope"),
        text(rule, "scope"),
        &["*", "Cluster", "Namespaced"],
    );
}

/// Checks that a list is not empty, and that a wildcard is its only item.
fn alone(path: &str, rule: &Value, field: &str, noun: &str, errors: &mut Errors<'_>) {
    let path = format!("{path}.{field}");
    match rule[field].as_array().map(Vec::as_slice).unwrap_or_default() {
        [] => errors.required(&path),
        [_] => {}
        several if several.iter().any(|item| item == "*") => {
            let detail = format!("if '*' is present, must not specify other {noun}");
            errors.invalid(&path, &rule[field], &detail);
        }
        _ => {}
    }
}

fn resources(path: &str, rule: &Value, errors: &mut Errors<'_>) {
    let given: Vec<&str> = rule["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if given.is_empty() {
        errors.required(path);
    }
    let (mut of_resource, mut of_subresource) = (Vec::new(), Vec::new());
    let mut has_plain = false;
    for (index, pattern) in given.iter().enumerate() {
        let at = format!("{path}[{index}]");
        if pattern.is_empty() {
            errors.required(&at);
            continue;
        }
        let Some((resource, subresource)) = pattern.split_once('/') else {
            has_plain = *pattern != "*";
            continue;
        };
        if of_resource.contains(&resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {pattern}");
            errors.invalid(&at, &json!(pattern), &detail);
        }
        if of_subresource.contains(&subresource) {
            let detail = format!("if '*/{subresource}' is present, must not specify {pattern}");
            errors.invalid(&at, &json!(pattern), &detail);
        }
        if subresource == "*" {
            of_resource.push(resource);
        }
        if resource == "*" {
            of_subresource.push(subresource);
        }
    }
    if given.len() > 1 && given.contains(&"*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.invalid(path, &rule["resources"], detail);
    }
    if given.contains(&"*") && has_plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(path, &rule["resources"], detail);
    }
}
