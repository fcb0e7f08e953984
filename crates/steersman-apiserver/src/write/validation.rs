// SPDX-License-Identifier: Apache-2.0
//! Validation: metadata by the common rules, other fields by the schema.

use serde_json::Value;

use super::kinds;
use crate::{
    handler::Target,
    names,
    resource::at,
    schema::validate,
    state::Context,
    status::FieldError,
    store::{Object, metadata_of},
};

/// Validates a new object.
pub(crate) fn check_create(cx: &Context<'_>, target: &Target, object: &Object, errors: &mut Vec<FieldError>) {
    let metadata = metadata_of(object);
    let text = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let rule = target.resource.strategy.name;
    let (name, prefix) = (text("name"), text("generateName"));
    if !prefix.is_empty() {
        for error in rule.check(prefix, true) {
            errors.push(FieldError::invalid(
                "metadata.generateName",
                &Value::from(prefix),
                &error,
            ));
        }
    }
    if !name.is_empty() {
        for error in rule.check(name, false) {
            errors.push(FieldError::invalid("metadata.name", &Value::from(name), &error));
        }
    }
    names::check_metadata(metadata, errors);
    check_content(cx, target, None, object, errors);
}

/// Validates an object that replaces another.
pub(crate) fn check_update(
    cx: &Context<'_>,
    target: &Target,
    old: &Object,
    object: &Object,
    errors: &mut Vec<FieldError>,
) {
    names::check_metadata(metadata_of(object), errors);
    check_content(cx, target, Some(old), object, errors);
}

fn check_content(
    cx: &Context<'_>,
    target: &Target,
    old: Option<&Object>,
    object: &Object,
    errors: &mut Vec<FieldError>,
) {
    if target.resource.custom.is_some() {
        let schema = &target.version().schema;
        let found = validate::check(schema, object, old, target.subresource == "status");
        let blocked = found.iter().any(FieldError::is_blocking);
        errors.extend(found);
        check_scale(target, object, errors);
        match &target.version().cel {
            Some(_) if blocked => {
                let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
                errors.push(FieldError::invalid("<nil>", &Value::Null, detail));
            }
            Some(rules) => {
                errors.extend(rules.check(object, old, &target.api_version(), &target.resource.kind))
            }
            None => {}
        }
    } else {
        kinds::validate(cx, target, old, object, errors);
    }
}

/// Checks the number of replicas of a custom resource that can be scaled.
fn check_scale(target: &Target, object: &Object, errors: &mut Vec<FieldError>) {
    let Some(scale) = &target.version().scale else {
        return;
    };
    let path = if target.subresource == "status" {
        &scale.status
    } else {
        &scale.spec
    };
    let field = format!(".{}", path.join("."));
    match at(object, path) {
        None | Some(Value::Null) => {}
        Some(Value::Number(number)) => {
            if number.as_i64().is_some_and(|number| number < 0) {
                errors.push(FieldError::invalid(
                    field,
                    &Value::Number(number.clone()),
                    "should be a non-negative integer",
                ));
            }
        }
        Some(other) => {
            let kind = match other {
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                _ => "map[string]interface {}",
            };
            let shown = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            let detail = format!("{field} accessor error: {shown} is of the type {kind}, expected int64");
            errors.push(FieldError::invalid(field, &Value::from(0), &detail));
        }
    }
}
