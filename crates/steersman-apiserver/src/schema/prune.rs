// SPDX-License-Identifier: Apache-2.0
//! Prunes fields that a structural schema does not specify.

use serde_json::{Map, Value};

use super::{Additional, Schema};

/// Removes unknown fields from a custom resource, but never `apiVersion`, `kind` and `metadata`.
///
/// Appends the paths of removed fields to `unknown`.
pub(crate) fn prune(schema: &Schema, object: &mut Map<String, Value>, unknown: &mut Vec<String>) {
    fields(schema, object, true, "", unknown);
}

fn walk(schema: &Schema, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(object) => fields(schema, object, schema.embedded, path, unknown),
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                let path = format!("{path}[{index}]");
                match &schema.items {
                    Some(schema) => walk(schema, item, &path, unknown),
                    None if schema.preserve_unknown => {}
                    None => walk(&Schema::default(), item, &path, unknown),
                }
            }
        }
        _ => {}
    }
}

fn fields(
    schema: &Schema,
    object: &mut Map<String, Value>,
    is_resource: bool,
    path: &str,
    unknown: &mut Vec<String>,
) {
    object.retain(|name, value| {
        if is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            return true;
        }
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        if let Some(property) = schema.properties.get(name) {
            walk(property, value, &path, unknown);
            return true;
        }
        match &schema.additional {
            Additional::Schema(schema) => {
                walk(schema, value, &path, unknown);
                true
            }
            Additional::Any => true,
            Additional::Absent if schema.preserve_unknown => true,
            Additional::Absent => {
                unknown.push(path);
                false
            }
        }
    });
}
