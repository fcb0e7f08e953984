// SPDX-License-Identifier: Apache-2.0
//! Checks an apply configuration against its schema.

use std::collections::HashSet;

use serde_json::Value;

use super::{Atom, as_list, as_map, atom, fieldset::readable, item_element, item_schema, unknown};
use crate::schema::{Additional, ListType, Schema, Type};

/// Checks a configuration.
///
/// # Errors
/// Returns the mismatches with the message of the real server.
pub(crate) fn check(schema: &Schema, value: &Value) -> Result<(), String> {
    let mut errors = Vec::new();
    walk(schema, value, "", &mut errors);
    match &errors[..] {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!(
            "errors:\n{}",
            many.iter()
                .map(|error| format!("  {error}"))
                .collect::<Vec<_>>()
                .join("\n")
        )),
    }
}

fn walk(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<String>) {
    let mut complain = |error: String| {
        errors.push(if path.is_empty() {
            error
        } else {
            format!("{path}: {error}")
        })
    };
    if value.is_null() {
        return;
    }
    let resolved = schema.resolved();
    match atom(schema, Some(value)) {
        Atom::Scalar => {
            if let Some(error) = scalar(resolved, value) {
                complain(error);
            }
        }
        Atom::List | Atom::AtomicList => {
            if !value.is_array() {
                complain(format!("expected list, got {}", shown(value)));
                return;
            }
            let mut seen = HashSet::new();
            for (index, item) in as_list(Some(value)).iter().enumerate() {
                let element = if resolved.list == ListType::Atomic {
                    Ok(format!("i:{index}"))
                } else {
                    item_element(schema, item)
                };
                let element = match element {
                    Ok(element) => element,
                    Err(error) => {
                        errors.push(format!("{path}: element {index}: {error}"));
                        return;
                    }
                };
                if !seen.insert(element.clone()) {
                    errors.push(format!(
                        "{path}: duplicate entries for key {}",
                        readable(&element)
                    ));
                }
                walk(
                    item_schema(schema),
                    item,
                    &format!("{path}{}", readable(&element)),
                    errors,
                );
            }
        }
        Atom::Map | Atom::AtomicMap => {
            if !value.is_object() {
                complain(format!("expected map, got {}", shown(value)));
                return;
            }
            for (name, value) in as_map(Some(value)).into_iter().flatten() {
                let path = format!("{path}.{name}");
                match (resolved.properties.get(name), &resolved.additional) {
                    (Some(property), _) => walk(property, value, &path, errors),
                    (None, Additional::Schema(element)) => walk(element, value, &path, errors),
                    (None, Additional::Any) => {}
                    (None, Additional::Absent)
                        if resolved.preserve_unknown || resolved.r#type == Type::Any =>
                    {
                        walk(unknown(), value, &path, errors)
                    }
                    (None, Additional::Absent) => {
                        errors.push(format!("{path}: field not declared in schema"))
                    }
                }
            }
        }
    }
}

fn scalar(schema: &Schema, value: &Value) -> Option<String> {
    match schema.r#type {
        Type::Integer | Type::Number if !value.is_number() => {
            let kind = match value {
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                _ => "map[string]interface {}",
            };
            Some(format!("expected numeric (int or float), got {kind}"))
        }
        // The merge treats times as untyped.
        Type::String if !value.is_string() && schema.format.as_deref() != Some("date-time") => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            value
        )),
        Type::Boolean if !value.is_boolean() => Some(format!("expected boolean, got {}", shown(value))),
        _ if value.is_object() || value.is_array() => {
            Some(format!("expected any scalar, got {}", shown(value)))
        }
        _ => None,
    }
}

fn shown(value: &Value) -> String {
    format!("&{{{}}}", crate::strategic::go_map(value))
}
