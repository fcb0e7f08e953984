// SPDX-License-Identifier: Apache-2.0
//! Validation of CRDs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    cel, names,
    resource::at,
    schema::structural,
    state::Context,
    status::FieldError,
    store::{Object, metadata_of},
    write::checks::webhook,
};

/// Validates a CRD.
pub(crate) fn check(_cx: &Context<'_>, old: Option<&Object>, object: &Object, errors: &mut Vec<FieldError>) {
    let text = |path: &[&str]| {
        at(object, path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (name, group, plural) = (
        text(&["metadata", "name"]),
        text(&["spec", "group"]),
        text(&["spec", "names", "plural"]),
    );
    let expected = format!("{plural}.{group}");
    if name != expected {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), detail));
    }
    check_group(&group, errors);
    check_scope(&text(&["spec", "scope"]), errors);
    check_names(object, errors);
    check_versions(object, errors);
    webhook::conversion(at(object, &["spec", "conversion"]), errors);
    if let Some(old) = old {
        check_change(old, object, errors);
    }
    let approved = metadata_of(object)
        .get("annotations")
        .and_then(|annotations| annotations.get("api-approved.kubernetes.io"));
    if (group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io"))
        && approved.is_none()
        && old.is_none()
    {
        let detail = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
        errors.push(FieldError::required(
            "metadata.annotations[api-approved.kubernetes.io]",
            detail,
        ));
    }
}

fn check_group(group: &str, errors: &mut Vec<FieldError>) {
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
        return;
    }
    for error in names::subdomain(group) {
        errors.push(FieldError::invalid("spec.group", &Value::from(group), &error));
    }
    if !group.contains('.') {
        errors.push(FieldError::invalid(
            "spec.group",
            &Value::from(group),
            "should be a domain with at least one dot",
        ));
    }
}

fn check_scope(scope: &str, errors: &mut Vec<FieldError>) {
    let supported = ["Cluster", "Namespaced"].map(str::to_owned);
    if scope.is_empty() {
        errors.push(FieldError::required("spec.scope", ""));
    } else if !supported.iter().any(|known| known == scope) {
        errors.push(FieldError::unsupported(
            "spec.scope",
            &Value::from(scope),
            &supported,
        ));
    }
}

fn check_names(object: &Object, errors: &mut Vec<FieldError>) {
    let names = at(object, &["spec", "names"])
        .cloned()
        .unwrap_or_else(|| json!({}));
    for (field, required) in [
        ("plural", true),
        ("singular", false),
        ("kind", true),
        ("listKind", true),
    ] {
        let name = names.get(field).and_then(Value::as_str).unwrap_or_default();
        let path = format!("spec.names.{field}");
        if name.is_empty() {
            if required {
                errors.push(FieldError::required(path, ""));
            }
            continue;
        }
        for error in names::NameRule::Label1035.check(&name.to_lowercase(), false) {
            errors.push(FieldError::invalid(path.clone(), &Value::from(name), &error));
        }
    }
    if names.get("kind").is_some() && names.get("kind") == names.get("listKind") {
        let value = names.get("listKind").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            "spec.names.listKind",
            &value,
            "kind and listKind may not be the same",
        ));
    }
}

fn check_versions(object: &Object, errors: &mut Vec<FieldError>) {
    let versions = at(object, &["spec", "versions"])
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let mut seen = BTreeSet::new();
    let schema_of = |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned();
    // If all versions have the same schema, the real server stores it once and names that path in errors.
    let shared = versions
        .iter()
        .all(|version| schema_of(version) == versions.first().and_then(schema_of));
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
        if !seen.insert(name.to_owned()) {
            errors.push(FieldError::invalid(
                "spec.versions",
                &Value::from(name),
                "must contain unique version names",
            ));
        }
        for error in names::NameRule::Label1035.check(name, false) {
            errors.push(FieldError::invalid(
                format!("{at}.name"),
                &Value::from(name),
                &error,
            ));
        }
        match version.pointer("/schema/openAPIV3Schema") {
            None => errors.push(FieldError::required(format!("{at}.schema.openAPIV3Schema"), "")),
            Some(_) if shared && index > 0 => {}
            Some(schema) => {
                let at = if shared {
                    "spec.validation.openAPIV3Schema".to_owned()
                } else {
                    format!("{at}.schema.openAPIV3Schema")
                };
                structural::check(schema, &at, errors);
                cel::check_schema(schema, &at, errors);
            }
        }
        check_scale(version, &at, errors);
    }
    let storing = versions
        .iter()
        .filter(|version| version.get("storage") == Some(&json!(true)))
        .count();
    if storing != 1 {
        let shown = Value::Array(versions);
        errors.push(FieldError::invalid(
            "spec.versions",
            &shown,
            "must have exactly one version marked as storage version",
        ));
    }
}

fn check_scale(version: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = version.pointer("/subresources/scale") else {
        return;
    };
    for (field, root, required) in [
        ("specReplicasPath", ".spec.", true),
        ("statusReplicasPath", ".status.", true),
        ("labelSelectorPath", ".", false),
    ] {
        let path = scale.get(field).and_then(Value::as_str).unwrap_or_default();
        let field = format!("{at}.subresources.scale.{field}");
        if path.is_empty() {
            if required {
                errors.push(FieldError::required(field, ""));
            }
        } else if !path.starts_with(root) {
            let detail = format!("should be a json path under {}", root.trim_end_matches('.'));
            errors.push(FieldError::invalid(field, &Value::from(path), &detail));
        }
    }
}

fn check_change(old: &Object, object: &Object, errors: &mut Vec<FieldError>) {
    let established = super::condition(old, "Established") == Some("True");
    for path in [&["spec", "scope"][..], &["spec", "names", "kind"][..]] {
        if established && at(old, path) != at(object, path) {
            let value = at(object, path).cloned().unwrap_or_default();
            errors.push(FieldError::invalid(path.join("."), &value, "field is immutable"));
        }
    }
    for path in [&["spec", "group"][..], &["spec", "names", "plural"][..]] {
        if at(old, path) != at(object, path) {
            let value = at(object, path).cloned().unwrap_or_default();
            errors.push(FieldError::invalid(path.join("."), &value, "field is immutable"));
        }
    }
    // A version in which objects may still be stored cannot be removed.
    let names: Vec<Value> = at(object, &["spec", "versions"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|version| version.get("name").cloned())
        .collect();
    let stored = at(object, &["status", "storedVersions"])
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for (index, version) in stored.iter().enumerate() {
        if !names.contains(version) {
            let detail = "missing from spec.versions; ";
            let detail = format!(
                "{detail}{} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {0} and removes {0} from status.storedVersions",
                version.as_str().unwrap_or_default()
            );
            errors.push(FieldError::invalid(
                format!("status.storedVersions[{index}]"),
                version,
                &detail,
            ));
        }
    }
}
