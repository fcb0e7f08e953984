// SPDX-License-Identifier: Apache-2.0
//! Checks that a schema is structural: every field has a type, and constraints complement the type and do not replace
//! it.

use regex::Regex;
use serde_json::{Value, json};

use crate::status::FieldError;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Checks a schema in its OpenAPI form. Errors are sorted by text, unknown types last, as on the real server.
pub(crate) fn check(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut found = Vec::new();
    node(schema, Level::Root, path, &mut found);
    found.sort_by_key(|error: &FieldError| (error.reason == "FieldValueNotSupported", error.to_string()));
    errors.extend(found);
}

fn node(schema: &Value, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let flag = |key: &str| schema.get(key) == Some(&json!(true));
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    let (int_or_string, preserve, embedded) = (
        flag("x-kubernetes-int-or-string"),
        flag("x-kubernetes-preserve-unknown-fields"),
        flag("x-kubernetes-embedded-resource"),
    );
    if kind == "array" && schema.get("items").is_none() {
        errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            FieldError::required(format!("{path}.type"), detail)
        } else {
            FieldError::invalid(format!("{path}.type"), &Value::from(kind), detail)
        });
    } else if kind.is_empty() && !int_or_string && !preserve {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(format!("{path}.type"), detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(
            format!("{path}.type"),
            &Value::from(kind),
            "must be object at the root",
        ));
    }
    if int_or_string && preserve {
        let detail = "must be false if x-kubernetes-int-or-string is true";
        errors.push(FieldError::invalid(
            format!("{path}.x-kubernetes-preserve-unknown-fields"),
            &json!(true),
            detail,
        ));
    }
    if embedded && !preserve && schema.get("properties").is_none() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(format!("{path}.properties"), detail));
    }
    if !matches!(
        kind,
        "" | "object" | "array" | "string" | "integer" | "number" | "boolean"
    ) {
        let supported = ["array", "boolean", "integer", "number", "object", "string"].map(str::to_owned);
        errors.push(FieldError::unsupported(
            format!("{path}.type"),
            &Value::from(kind),
            &supported,
        ));
    }
    children(schema, level, path, errors);
    constraints(schema, path, is_int_or_string_pattern(schema), errors);
    lists(schema, kind, path, errors);
}

fn children(schema: &Value, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(items) = schema.get("items") {
        if items.is_array() {
            let detail = "items must be a schema object and not an array";
            errors.push(FieldError::forbidden(format!("{path}.items"), detail));
        } else {
            node(items, Level::Item, &format!("{path}.items"), errors);
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let at = format!("{path}.properties[{name}]");
        if level == Level::Root && name == "metadata" {
            metadata(property, &at, errors);
            continue;
        }
        node(property, Level::Field, &at, errors);
    }
    if let Some(additional) = schema.get("additionalProperties") {
        let at = format!("{path}.additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(at.clone(), "must not be used at the root"));
        }
        if properties.is_some_and(|properties| !properties.is_empty()) {
            errors.push(FieldError::forbidden(
                at.clone(),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if additional.is_object() {
            node(additional, Level::Field, &at, errors);
        }
    }
    for forbidden in [
        "$ref",
        "definitions",
        "dependencies",
        "patternProperties",
        "additionalItems",
        "id",
        "$schema",
    ] {
        if schema.get(forbidden).is_some() {
            errors.push(FieldError::forbidden(
                format!("{path}.{forbidden}"),
                &format!("{forbidden} is not supported"),
            ));
        }
    }
    if schema.get("uniqueItems") == Some(&json!(true)) {
        errors.push(FieldError::forbidden(
            format!("{path}.uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
}

fn metadata(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let allowed = |name: &String| matches!(name.as_str(), "type" | "properties" | "description");
    let properties = schema.get("properties").and_then(Value::as_object);
    let named = |name: &String| matches!(name.as_str(), "name" | "generateName");
    let plain = schema
        .as_object()
        .is_some_and(|fields| fields.keys().all(allowed));
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        let kind = schema.get("type").cloned().unwrap_or_else(|| json!(""));
        errors.push(FieldError::invalid(
            format!("{path}.type"),
            &kind,
            "must be object",
        ));
    }
    if !plain || !properties.into_iter().flatten().all(|(name, _)| named(name)) {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(path, detail));
    }
}

/// Returns true for the one constraint that is allowed to contain types.
fn is_int_or_string_pattern(schema: &Value) -> bool {
    let pattern = json!([{"type": "integer"}, {"type": "string"}]);
    schema.get("anyOf") == Some(&pattern) || schema.pointer("/allOf/0/anyOf") == Some(&pattern)
}

fn constraints(schema: &Value, path: &str, skip: bool, errors: &mut Vec<FieldError>) {
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Err(error) = Regex::new(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(
            format!("{path}.pattern"),
            &Value::from(pattern),
            &detail,
        ));
    }
    if skip {
        return;
    }
    for key in ["anyOf", "allOf", "oneOf"] {
        for (index, nested_schema) in schema
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate()
        {
            nested(nested_schema, &format!("{path}.{key}[{index}]"), errors);
        }
    }
    if let Some(not) = schema.get("not") {
        nested(not, &format!("{path}.not"), errors);
    }
}

fn nested(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (key, detail) in [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        (
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        if schema.get(key).is_some_and(|value| *value != json!(false)) {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), detail));
        }
    }
    constraints(schema, path, false, errors);
    for (name, property) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        nested(property, &format!("{path}.properties[{name}]"), errors);
    }
    if let Some(items) = schema.get("items") {
        nested(items, &format!("{path}.items"), errors);
    }
}

fn lists(schema: &Value, kind: &str, path: &str, errors: &mut Vec<FieldError>) {
    let list = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
    let keys: Vec<&str> = schema
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if let Some(list) = list {
        if kind != "array" {
            let detail = "must be array if x-kubernetes-list-type is specified";
            errors.push(FieldError::invalid(
                format!("{path}.type"),
                &Value::from(kind),
                detail,
            ));
        }
        if !matches!(list, "atomic" | "set" | "map") {
            let supported = ["atomic", "map", "set"].map(str::to_owned);
            errors.push(FieldError::unsupported(
                format!("{path}.x-kubernetes-list-type"),
                &Value::from(list),
                &supported,
            ));
        }
    }
    if list == Some("map") && keys.is_empty() {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        errors.push(FieldError::required(
            format!("{path}.x-kubernetes-list-map-keys"),
            detail,
        ));
    }
    if list != Some("map") && !keys.is_empty() {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match list {
            None => FieldError::required(format!("{path}.x-kubernetes-list-type"), detail),
            Some(list) => FieldError::invalid(
                format!("{path}.x-kubernetes-list-type"),
                &Value::from(list),
                detail,
            ),
        });
    }
    for (index, key) in keys.iter().enumerate() {
        if schema
            .pointer("/items/properties")
            .and_then(|properties| properties.get(key))
            .is_none()
        {
            let detail = "entries must all be names of item properties";
            errors.push(FieldError::invalid(
                format!("{path}.x-kubernetes-list-map-keys[{index}]"),
                &json!(key),
                detail,
            ));
        }
    }
}
