// SPDX-License-Identifier: Apache-2.0
//! CustomResourceDefinitions: defaulting, establishing, serving and removal.
//!
//! # Guarantees
//! 1. The server accepts and then establishes a new CRD by two writes to its status, as the real server does.
//! 2. A kind is served as soon as the names of its CRD are accepted.
//! 3. Any change of a CRD's spec closes the kind's watches; watches from an earlier revision get 410 Expired.
//! 4. A deleted CRD stays until all its objects are deleted. Until then its kind is served, except for creates.

pub(crate) mod conversion;
pub(crate) mod lifecycle;
pub(crate) mod validate;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    resource::{Custom, Resource, ScalePaths, Subresource, Version, at, strategy},
    schema::Schema,
    state::State,
    store::{Object, metadata_of},
    table,
};

/// Finalizer that keeps a CRD until its objects are deleted.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Sets the defaults of a CRD.
pub(crate) fn defaults(object: &mut Object) {
    let Some(Value::Object(spec)) = object.get_mut("spec") else {
        return;
    };
    if let Some(Value::Object(names)) = spec.get_mut("names") {
        let kind = names
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let missing = |names: &Object, key: &str| {
            names
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .is_empty()
        };
        if !kind.is_empty() && missing(names, "singular") {
            names.insert("singular".to_owned(), json!(kind.to_lowercase()));
        }
        if !kind.is_empty() && missing(names, "listKind") {
            names.insert("listKind".to_owned(), json!(format!("{kind}List")));
        }
    }
    spec.entry("conversion")
        .or_insert_with(|| json!({"strategy": "None"}));
}

/// Resets the status of a new CRD, except for its stored version.
pub(crate) fn prepare_create(object: &mut Object) {
    let stored: Vec<Value> = storage_version(object).into_iter().collect();
    object.insert(
        "status".to_owned(),
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored}),
    );
}

/// Adds the storage version to `storedVersions`; versions are never removed here.
pub(crate) fn prepare_update(_old: &Object, object: &mut Object) {
    let Some(storage) = storage_version(object) else {
        return;
    };
    if let Some(Value::Array(stored)) = object
        .get_mut("status")
        .and_then(|status| status.get_mut("storedVersions"))
        && !stored.contains(&storage)
    {
        stored.push(storage);
    }
}

fn storage_version(object: &Object) -> Option<Value> {
    let versions = at(object, &["spec", "versions"])?.as_array()?;
    versions
        .iter()
        .find(|version| version.get("storage") == Some(&json!(true)))?
        .get("name")
        .cloned()
}

/// Returns the status of a condition.
pub(crate) fn condition<'a>(object: &'a Object, kind: &str) -> Option<&'a str> {
    let conditions = at(object, &["status", "conditions"])?.as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)?
        .get("status")?
        .as_str()
}

/// Builds the resource that a CRD describes.
pub(crate) fn resource(state: &mut State, object: &Object) -> Option<Resource> {
    let text = |path: &[&str]| {
        at(object, path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let list = |path: &[&str]| -> Vec<String> {
        at(object, path)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let versions = at(object, &["spec", "versions"])?.as_array()?;
    let storage_version = versions
        .iter()
        .position(|version| version.get("storage") == Some(&json!(true)))?;
    let (group, plural, kind) = (
        text(&["spec", "group"]),
        text(&["spec", "names", "plural"]),
        text(&["spec", "names", "kind"]),
    );
    let known = state.registry.find(&group, &plural);
    let mut written = known
        .and_then(|known| known.custom.as_ref())
        .map(|custom| custom.written.clone())
        .unwrap_or_default();
    let storage = match known {
        Some(known) => known.storage,
        None => state.store.allocate(),
    };
    let count = state.next_count();
    let stored = versions[storage_version].get("name").and_then(Value::as_str);
    written.insert(count, stored.unwrap_or_default().to_owned());
    Some(Resource {
        singular: text(&["spec", "names", "singular"]),
        list_kind: text(&["spec", "names", "listKind"]),
        namespaced: text(&["spec", "scope"]) == "Namespaced",
        short_names: list(&["spec", "names", "shortNames"]),
        categories: list(&["spec", "names", "categories"]),
        verbs: [
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "create",
            "update",
            "watch",
        ]
        .map(str::to_owned)
        .to_vec(),
        versions: versions
            .iter()
            .map(|json| {
                version(
                    json,
                    &group,
                    &kind,
                    at(object, &["spec", "preserveUnknownFields"]) == Some(&json!(true)),
                )
            })
            .collect(),
        storage,
        strategy: strategy::custom(storage_version),
        custom: Some(Custom {
            definition: metadata_of(object)
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            edition: count,
            terminating: metadata_of(object).contains_key("deletionTimestamp"),
            converter: conversion::Converter::of(object),
            written,
        }),
        epoch: count,
        floor: state.store.revision(),
        group,
        plural,
        kind,
    })
}

fn version(json: &Value, group: &str, kind: &str, preserve: bool) -> Version {
    let mut schema = json
        .pointer("/schema/openAPIV3Schema")
        .map_or_else(Schema::anything, Schema::parse);
    schema.preserve_unknown |= preserve;
    add_object_fields(&mut schema);
    let verbs = ["get", "patch", "update"].map(str::to_owned).to_vec();
    let mut subresources = Vec::new();
    if json.pointer("/subresources/status").is_some() {
        subresources.push(Subresource {
            name: "status".to_owned(),
            group: String::new(),
            version: String::new(),
            kind: kind.to_owned(),
            verbs: verbs.clone(),
        });
    }
    let scale = json.pointer("/subresources/scale").map(|scale| ScalePaths {
        spec: path(scale, "specReplicasPath").unwrap_or_default(),
        status: path(scale, "statusReplicasPath").unwrap_or_default(),
        selector: path(scale, "labelSelectorPath"),
    });
    if scale.is_some() {
        subresources.push(Subresource {
            name: "scale".to_owned(),
            group: "autoscaling".to_owned(),
            version: "v1".to_owned(),
            kind: "Scale".to_owned(),
            verbs,
        });
    }
    let selectable = json
        .get("selectableFields")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let flag = |key: &str| json.get(key) == Some(&json!(true));
    let name = json.get("name").and_then(Value::as_str).unwrap_or_default();
    Version {
        columns: table::custom_columns(json),
        name: name.to_owned(),
        served: flag("served"),
        schema: Arc::new(schema),
        cel: json
            .pointer("/schema/openAPIV3Schema")
            .and_then(crate::cel::Rules::compile),
        subresources,
        scale,
        selectable: selectable
            .filter_map(|field| field.get("jsonPath")?.as_str())
            .map(|path| path.trim_start_matches('.').to_owned())
            .collect(),
        deprecation: flag("deprecated").then(|| {
            let warning = json
                .get("deprecationWarning")
                .and_then(Value::as_str)
                .map(str::to_owned);
            warning.unwrap_or_else(|| format!("{group}/{name} {kind} is deprecated"))
        }),
    }
}

/// Adds `apiVersion`, `kind` and `metadata` to a schema; `metadata` is always `ObjectMeta`, even if the schema defines
/// it.
fn add_object_fields(schema: &mut Schema) {
    let metadata = schema.properties.entry("metadata".to_owned()).or_default();
    metadata.reference = Some("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta".to_owned());
    metadata.default = None;
    for name in ["apiVersion", "kind"] {
        schema
            .properties
            .entry(name.to_owned())
            .or_insert_with(|| Schema::parse(&json!({"type": "string"})));
    }
}

/// Parses a JSON path of plain fields, such as `.spec.replicas`.
fn path(json: &Value, key: &str) -> Option<Vec<String>> {
    let text = json.get(key)?.as_str()?.trim_start_matches('.');
    (!text.is_empty()).then(|| text.split('.').map(str::to_owned).collect())
}
