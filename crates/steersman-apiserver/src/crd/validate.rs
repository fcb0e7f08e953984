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
    if old.is_none() && name != expected {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), detail));
    }
    check_group(&group, errors);
    check_scope(&text(&["spec", "scope"]), errors);
    check_versions(object, errors);
    check_names(object, errors);
    check_shared(object, errors);
    webhook::conversion(at(object, &["spec", "conversion"]), errors);
    if let Some(old) = old {
        check_change(old, object, errors);
    }
    check_stored(object, errors);
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
    let problems = names::subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !problems.is_empty() {
        let problems = problems.join(",");
        errors.push(FieldError::invalid("spec.group", &Value::from(group), &problems));
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        errors.push(FieldError::invalid("spec.group", &Value::from(group), detail));
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
    let names = at(object, &["spec", "names"]).cloned().unwrap_or_default();
    let text = |field: &str| names[field].as_str().unwrap_or_default();
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(field).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{field}"), ""));
        }
    }
    for field in ["plural", "singular"] {
        if !text(field).is_empty() {
            check_label(format!("spec.names.{field}"), text(field), errors);
        }
    }
    for field in ["kind", "listKind"] {
        let problems = names::NameRule::Label1035.check(&text(field).to_lowercase(), false);
        if !text(field).is_empty() && !problems.is_empty() {
            let problems = problems.join(",");
            let detail = format!("may have mixed case, but should otherwise match: {problems}");
            let path = format!("spec.names.{field}");
            errors.push(FieldError::invalid(path, &names[field], &detail));
        }
    }
    check_list(&names, "shortNames", errors);
    if !text("kind").is_empty() && text("kind") == text("listKind") {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(
            "spec.names.listKind",
            &names["listKind"],
            detail,
        ));
    }
    check_list(&names, "categories", errors);
}

fn check_list(names: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let items = names[field].as_array().into_iter().flatten();
    for (index, name) in items.enumerate() {
        let path = format!("spec.names.{field}[{index}]");
        check_label(path, name.as_str().unwrap_or_default(), errors);
    }
}

fn check_label(path: String, name: &str, errors: &mut Vec<FieldError>) {
    let problems = names::NameRule::Label1035.check(name, false);
    if !problems.is_empty() {
        errors.push(FieldError::invalid(path, &Value::from(name), &problems.join(",")));
    }
}

fn versions(object: &Object) -> &[Value] {
    let versions = at(object, &["spec", "versions"]).and_then(Value::as_array);
    versions.map(Vec::as_slice).unwrap_or_default()
}

/// Returns a part of the versions that is the same in all of them. The real server stores it once, checks it after the
/// names, and reports it under another path.
fn shared<'a>(versions: &'a [Value], pointer: &str) -> Option<&'a Value> {
    let first = versions.first()?.pointer(pointer)?;
    let mut all = versions.iter();
    all.all(|version| version.pointer(pointer) == Some(first))
        .then_some(first)
}

const SCHEMA: &str = "/schema/openAPIV3Schema";
const SUBRESOURCES: &str = "/subresources";

fn check_versions(object: &Object, errors: &mut Vec<FieldError>) {
    let versions = versions(object);
    for (index, version) in versions.iter().enumerate() {
        if version.pointer(SCHEMA).is_none() {
            let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
            errors.push(FieldError::required(path, ""));
        }
    }
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
        seen.insert(name);
        check_label(format!("{at}.name"), name, errors);
        if shared(versions, SCHEMA).is_none()
            && let Some(schema) = version.pointer(SCHEMA)
        {
            check_schema(schema, &format!("{at}.schema.openAPIV3Schema"), errors);
        }
        if shared(versions, SUBRESOURCES).is_none() {
            check_scale(&version["subresources"], &format!("{at}.subresources"), errors);
        }
    }
    let storing = versions
        .iter()
        .filter(|version| version["storage"] == json!(true));
    let storing = storing.count();
    let problems = [
        (seen.len() != versions.len(), "must contain unique version names"),
        (
            storing != 1,
            "must have exactly one version marked as storage version",
        ),
    ];
    for (_, detail) in problems.iter().filter(|(is_wrong, _)| *is_wrong) {
        let shown = match versions {
            [] => Value::Null,
            versions => Value::Array(versions.to_vec()),
        };
        errors.push(FieldError::invalid("spec.versions", &shown, detail));
    }
    // The real server knows the first version also under its old name.
    if let Some(first) = versions.first() {
        let name = first["name"].as_str().unwrap_or_default();
        check_label("spec.version".to_owned(), name, errors);
    }
}

/// Checks that the versions in which objects are stored are those of the spec.
fn check_stored(object: &Object, errors: &mut Vec<FieldError>) {
    let path = "status.storedVersions";
    let stored = at(object, &["status", "storedVersions"])
        .cloned()
        .unwrap_or_default();
    let mut left: Vec<(usize, &str)> = stored
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .enumerate()
        .collect();
    if left.is_empty() {
        let detail = "must have at least one stored version";
        errors.push(FieldError::invalid(path, &Value::Null, detail));
    }
    for version in versions(object) {
        let name = version["name"].as_str().unwrap_or_default();
        let place = left.iter().position(|(_, known)| *known == name);
        match place {
            Some(place) => drop(left.remove(place)),
            None if version["storage"] == json!(true) => {
                let detail = format!("must have the storage version {name}");
                errors.push(FieldError::invalid(path, &stored, &detail));
            }
            None => {}
        }
    }
    for (index, name) in left {
        let detail = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        errors.push(FieldError::invalid(
            format!("{path}[{index}]"),
            &Value::from(name),
            &detail,
        ));
    }
}

/// Checks what all versions have in common.
fn check_shared(object: &Object, errors: &mut Vec<FieldError>) {
    let versions = versions(object);
    if let Some(schema) = shared(versions, SCHEMA) {
        check_schema(schema, "spec.validation.openAPIV3Schema", errors);
    }
    if let Some(subresources) = shared(versions, SUBRESOURCES) {
        check_scale(subresources, "spec.subresources", errors);
    }
}

fn check_schema(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    structural::check(schema, path, errors);
    cel::check_schema(schema, path, errors);
}

fn check_scale(subresources: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = subresources.get("scale") else {
        return;
    };
    for (field, root, required) in [
        ("specReplicasPath", ".spec.", true),
        ("statusReplicasPath", ".status.", true),
        ("labelSelectorPath", ".", false),
    ] {
        let path = scale.get(field).and_then(Value::as_str).unwrap_or_default();
        let field = format!("{at}.scale.{field}");
        if path.is_empty() {
            if required {
                errors.push(FieldError::required(field, ""));
            }
        } else if !path.starts_with('.') {
            let detail = "must be a simple json path starting with .";
            errors.push(FieldError::invalid(field, &Value::from(path), detail));
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
}
