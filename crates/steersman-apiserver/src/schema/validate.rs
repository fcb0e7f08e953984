// SPDX-License-Identifier: Apache-2.0
//! Validation of a custom resource against its schema.
//!
//! # Guarantees
//! 1. Errors have the reasons, messages and fields of the real server.
//! 2. An unchanged part that was already invalid does not fail an update.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{Additional, ListType, Rules, Schema, Type};
use crate::status::FieldError;

/// Validates an object, or the replacement of `old`. With `status_only`, only the status is validated.
pub(crate) fn check(
    schema: &Schema,
    object: &Map<String, Value>,
    old: Option<&Map<String, Value>>,
    status_only: bool,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let fields = object.iter().filter(|(name, _)| !is_meta(name));
    for (name, value) in fields {
        if status_only && name != "status" {
            continue;
        }
        if let Some((field, _)) = schema.field(name) {
            value_at(field, value, old.and_then(|old| old.get(name)), name, &mut errors);
        }
    }
    for required in &schema.required {
        if !is_meta(required) && !object.contains_key(required) && !status_only {
            errors.push(FieldError::required(required.clone(), ""));
        }
    }
    if status_only {
        // The real server validates the status alone and reports field paths relative to it.
        errors = errors.into_iter().map(|error| error.worded("status.")).collect();
    }
    if let Some(rules) = &schema.rules {
        let whole = Value::Object(object.clone());
        let before = old.cloned().map(Value::Object);
        if before.as_ref() != Some(&whole) {
            combined(rules, schema, &whole, "", &mut errors);
        }
    }
    let mut duplicates = Vec::new();
    for (name, value) in object {
        if let Some((field, _)) = schema.field(name)
            && !is_meta(name)
        {
            uniqueness(
                field,
                value,
                old.and_then(|old| old.get(name)),
                name,
                &mut duplicates,
            );
        }
    }
    errors.extend(duplicates);
    errors
}

fn is_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

fn value_at(schema: &Schema, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
    // An unchanged value stays valid.
    if old == Some(value) || value.is_null() && schema.nullable {
        return;
    }
    if !has_type(schema, value) {
        let found = type_name(value);
        let expected = if schema.int_or_string {
            "integer,string"
        } else {
            schema.r#type.name()
        };
        let detail = format!("{path} in body must be of type {expected}: {found:?}");
        errors.push(FieldError::type_invalid(path, &format!("{found:?}"), &detail));
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if schema.embedded && is_meta(name) {
                    continue;
                }
                let old = old.and_then(|old| old.get(name));
                match (schema.properties.get(name), &schema.additional) {
                    (Some(property), _) => value_at(property, value, old, &format!("{path}.{name}"), errors),
                    (None, Additional::Schema(schema)) => {
                        value_at(schema, value, old, &format!("{path}.{name}"), errors)
                    }
                    (None, _) => {}
                }
            }
            for required in &schema.required {
                if !fields.contains_key(required) {
                    errors.push(FieldError::required(format!("{path}.{required}"), ""));
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    value_at(
                        schema,
                        item,
                        old_item(items, old, index, schema),
                        &format!("{path}[{index}]"),
                        errors,
                    );
                }
            }
        }
        _ => {}
    }
    format(schema, value, path, errors);
    if let Some(rules) = &schema.rules {
        single(rules, value, path, errors);
        combined(rules, schema, value, path, errors);
    }
}

/// Returns the old item that equals the item at `index`; only equal items are correlated.
fn old_item<'a>(
    items: &[Value],
    old: Option<&'a Value>,
    index: usize,
    _schema: &Schema,
) -> Option<&'a Value> {
    let old = old?.as_array()?;
    old.iter().find(|old| **old == items[index])
}

fn has_type(schema: &Schema, value: &Value) -> bool {
    if schema.int_or_string {
        return value.is_i64() || value.is_u64() || value.is_string();
    }
    match schema.r#type {
        Type::Any => true,
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Integer => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Checks the constraints on a single value.
fn single(rules: &Rules, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let at = if path.is_empty() { "" } else { path };
    let mut invalid = |detail: String| {
        errors.push(FieldError::invalid(
            path,
            value,
            &format!("{at} in body {detail}"),
        ))
    };
    if let Some(number) = value.as_f64() {
        if let Some(minimum) = rules.minimum {
            if rules.exclusive_minimum && number <= minimum {
                invalid(format!("should be greater than {minimum}"));
            } else if number < minimum {
                invalid(format!("should be greater than or equal to {minimum}"));
            }
        }
        if let Some(maximum) = rules.maximum {
            if rules.exclusive_maximum && number >= maximum {
                invalid(format!("should be less than {maximum}"));
            } else if number > maximum {
                invalid(format!("should be less than or equal to {maximum}"));
            }
        }
        if let Some(step) = rules.multiple_of
            && step != 0.0
            && (number / step).fract() != 0.0
        {
            invalid(format!("should be a multiple of {step}"));
        }
    }
    if let Some(text) = value.as_str() {
        let length = text.chars().count() as u64;
        if let Some(min) = rules.min_length.filter(|min| length < *min) {
            invalid(format!("should be at least {min} chars long"));
        }
        if let Some(max) = rules.max_length.filter(|max| length > *max) {
            errors.push(FieldError::too_long(path, max));
        }
        if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            errors.push(FieldError::invalid(
                path,
                value,
                &format!("{at} in body should match '{pattern}'"),
            ));
        }
    }
    if let Some(items) = value.as_array() {
        if let Some(min) = rules.min_items.filter(|min| (items.len() as u64) < *min) {
            errors.push(FieldError::invalid(
                path,
                &Value::from(items.len()),
                &format!("{at} in body should have at least {min} items"),
            ));
        }
        if let Some(max) = rules.max_items.filter(|max| items.len() as u64 > *max) {
            errors.push(FieldError::too_many(path, items.len(), max));
        }
        if rules.unique_items
            && items
                .iter()
                .enumerate()
                .any(|(index, item)| items[..index].contains(item))
        {
            errors.push(FieldError::invalid(
                path,
                value,
                &format!("{at} in body shouldn't contain duplicates"),
            ));
        }
    }
    if let Some(fields) = value.as_object() {
        if let Some(min) = rules.min_properties.filter(|min| (fields.len() as u64) < *min) {
            errors.push(FieldError::invalid(
                path,
                &Value::from(fields.len()),
                &format!("{at} in body should have at least {min} properties"),
            ));
        }
        if let Some(max) = rules.max_properties.filter(|max| fields.len() as u64 > *max) {
            errors.push(FieldError::too_many(path, fields.len(), max));
        }
    }
    if let Some(values) = &rules.one_of_values
        && !values.contains(value)
    {
        let supported: Vec<String> = values
            .iter()
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect();
        errors.push(FieldError::unsupported(path, value, &supported));
    }
}

/// Checks constraints that combine others: `allOf`, `anyOf`, `oneOf`, `not`.
fn combined(rules: &Rules, _schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let failures = |schema: &Schema| {
        let mut errors = Vec::new();
        value_at(schema, value, None, path, &mut errors);
        errors
    };
    let complaint =
        |text: &str| FieldError::invalid("<nil>", &Value::from(""), &format!("{path:?} must {text}"));
    if !rules.any_of.is_empty() && !rules.any_of.iter().any(|schema| failures(schema).is_empty()) {
        errors.push(complaint("validate at least one schema (anyOf)"));
        errors.extend(failures(&rules.any_of[0]));
    }
    if !rules.one_of.is_empty() {
        let fitting = rules
            .one_of
            .iter()
            .filter(|schema| failures(schema).is_empty())
            .count();
        if fitting != 1 {
            let found = if fitting == 0 {
                "Found none valid"
            } else {
                "Found 2 valid alternatives"
            };
            let found = if fitting > 2 {
                format!("Found {fitting} valid alternatives")
            } else {
                found.to_owned()
            };
            errors.push(complaint(&format!(
                "validate one and only one schema (oneOf). {found}"
            )));
            if fitting == 0 {
                errors.extend(failures(&rules.one_of[0]));
            }
        }
    }
    let broken: Vec<FieldError> = rules.all_of.iter().flat_map(failures).collect();
    if !broken.is_empty() {
        errors.push(complaint("validate all the schemas (allOf)"));
        errors.extend(broken);
    }
    if rules
        .not
        .as_ref()
        .is_some_and(|schema| failures(schema).is_empty())
    {
        errors.push(complaint("not validate the schema (not)"));
    }
}

fn format(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let (Some(format), Some(number)) = (schema.format.as_deref(), value.as_f64()) else {
        return text_format(schema, value, path, errors);
    };
    let fits = match format {
        "int32" => number >= f64::from(i32::MIN) && number <= f64::from(i32::MAX),
        _ => true,
    };
    if !fits {
        let detail = format!("{path} in body must be of type {format}: {value}");
        errors.push(FieldError::invalid(path, value, &detail));
    }
}

fn text_format(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    use base64::Engine as _;
    let (Some(format), Some(text)) = (schema.format.as_deref(), value.as_str()) else {
        return;
    };
    let fits = match format {
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "uuid" => {
            text.len() == 36
                && text.bytes().enumerate().all(|(at, byte)| {
                    if matches!(at, 8 | 13 | 18 | 23) {
                        byte == b'-'
                    } else {
                        byte.is_ascii_hexdigit()
                    }
                })
        }
        _ => true,
    };
    if !fits {
        let detail = format!("{path} in body must be of type {format}: {value}");
        errors.push(FieldError::type_invalid(path, &value.to_string(), &detail));
    }
}

/// Checks that items of sets and maps are unique.
fn uniqueness(schema: &Schema, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
    if old == Some(value) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some((field, _)) = schema.field(name) {
                    uniqueness(
                        field,
                        value,
                        old.and_then(|old| old.get(name)),
                        &format!("{path}.{name}"),
                        errors,
                    );
                }
            }
        }
        Value::Array(items) => {
            let mut seen = HashSet::new();
            for (index, item) in items.iter().enumerate() {
                let key = match &schema.list {
                    ListType::Atomic => None,
                    ListType::Set => Some(item.clone()),
                    ListType::Map(keys) => item.as_object().map(|fields| {
                        Value::Object(
                            keys.iter()
                                .filter_map(|key| Some((key.clone(), fields.get(key)?.clone())))
                                .collect(),
                        )
                    }),
                };
                if let Some(key) = key.map(|key| key.to_string())
                    && !seen.insert(key.clone())
                {
                    errors.push(FieldError::duplicate(format!("{path}[{index}]"), &key));
                }
                if let Some(schema) = &schema.items {
                    uniqueness(schema, item, None, &format!("{path}[{index}]"), errors);
                }
            }
        }
        _ => {}
    }
}
