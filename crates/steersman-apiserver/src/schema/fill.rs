// SPDX-License-Identifier: Apache-2.0
//! Sets defaults and removes nulls.

use serde_json::{Map, Value};

use super::{Additional, Schema};

/// Removes nulls that the schema does not allow and for which it has no default.
pub(crate) fn drop_nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(object) => drop_nulls_of(schema, object),
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| drop_nulls(schema, item));
            }
        }
        _ => {}
    }
}

/// Removes nulls as [`drop_nulls`] does, from the fields of an object.
pub(crate) fn drop_nulls_of(schema: &Schema, object: &mut Map<String, Value>) {
    object.retain(|name, value| {
        let Some((field, _)) = schema.field(name) else {
            return true;
        };
        if value.is_null() {
            return field.nullable || field.default.is_some();
        }
        drop_nulls(field, value);
        true
    });
}

/// Sets defaults, outer values first.
pub(crate) fn defaults(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(object) => defaults_of(schema, object),
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for item in items {
                    fill_null(schema, item);
                    defaults(schema, item);
                }
            }
        }
        _ => {}
    }
}

/// Sets defaults as [`defaults`] does, in the fields of an object.
pub(crate) fn defaults_of(schema: &Schema, object: &mut Map<String, Value>) {
    for (name, property) in &schema.properties {
        let Some(default) = &property.default else {
            continue;
        };
        let value = object.entry(name.clone()).or_insert_with(|| default.clone());
        fill_null(property, value);
    }
    for (name, value) in object.iter_mut() {
        if let Some(property) = schema.properties.get(name) {
            defaults(property, value);
        } else if let Additional::Schema(schema) = &schema.additional {
            fill_null(schema, value);
            defaults(schema, value);
        }
    }
}

fn fill_null(schema: &Schema, value: &mut Value) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
}
