// SPDX-License-Identifier: Apache-2.0
//! Round trip of an object through the Go struct in which the real server stores it.
//!
//! # Guarantees
//! 1. After [`decode`] an object has only fields of its definition and no nulls, and each field is present or absent as
//!    Go would write it: `omitempty` fields only if not zero, others always.
//! 2. A value of the wrong type is rejected with the message of Go's decoder.

use serde_json::{Map, Value};

use super::{Additional, Go, Schema, Type};
use crate::{json::COMPLAINTS, quantity::Precision};

/// Converts `value` to the form that Go writes; appends the names of unknown fields to `unknown`.
///
/// # Errors
/// Returns the message of Go's decoder if a value has the wrong type.
pub(crate) fn decode(schema: &Schema, value: &mut Value, unknown: &mut Vec<String>) -> Result<(), String> {
    let mut path = Vec::new();
    Decoder { unknown }.value(schema, value, "", &mut path)
}

/// Returns the JSON that Go writes for a struct without any field set.
pub(crate) fn zero(schema: &Schema) -> Value {
    let schema = schema.resolved();
    let always = schema
        .properties
        .iter()
        .filter_map(|(name, property)| absent(property).map(|value| (name.clone(), value)));
    Value::Object(always.collect())
}

struct Decoder<'a> {
    unknown: &'a mut Vec<String>,
}

impl Decoder<'_> {
    fn value<'s>(
        &mut self,
        schema: &'s Schema,
        value: &mut Value,
        owner: &'s str,
        path: &mut Vec<String>,
    ) -> Result<(), String> {
        let target = schema.resolved();
        if target.preserve_unknown {
            return Ok(());
        }
        match target.r#type {
            Type::Any if target.int_or_string => match value {
                Value::String(_) => Ok(()),
                Value::Number(number) if number.is_i64() || number.is_u64() => Ok(()),
                _ => Err(mismatch(value, owner, path, "intstr.IntOrString")),
            },
            Type::Any if target.format.as_deref() == Some("quantity") => {
                quantity(value, owner, path, Precision::Nano)
            }
            Type::Any => Ok(()),
            Type::Object => self.object(schema, target, value, owner, path),
            Type::Array => {
                let Value::Array(items) = value else {
                    return Err(mismatch(value, owner, path, &go_type(schema)));
                };
                let Some(schema) = &target.items else {
                    return Ok(());
                };
                for (index, item) in items.iter_mut().enumerate() {
                    if item.is_null() {
                        *item = zero_value(schema);
                    }
                    let at = self.unknown.len();
                    self.value(schema, item, owner, path)?;
                    // Unknown fields in lists are reported with their index, type errors without.
                    let prefix = path.join(".");
                    for name in &mut self.unknown[at..] {
                        if let Some(rest) = name.strip_prefix(prefix.as_str()) {
                            *name = format!("{prefix}[{index}]{rest}");
                        }
                    }
                }
                Ok(())
            }
            Type::String => string(schema, target, value, owner, path),
            Type::Integer => match value {
                Value::Number(number) if fits(number, target.format.as_deref()) => Ok(()),
                Value::Number(number) => {
                    let number = format!("number {number}");
                    Err(refusal(&number, owner, path, &go_type(schema)))
                }
                _ => Err(mismatch(value, owner, path, &go_type(schema))),
            },
            Type::Number if value.is_number() => Ok(()),
            Type::Boolean if value.is_boolean() => Ok(()),
            Type::Number | Type::Boolean => Err(mismatch(value, owner, path, &go_type(schema))),
        }
    }

    fn object<'s>(
        &mut self,
        schema: &'s Schema,
        target: &'s Schema,
        value: &mut Value,
        owner: &str,
        path: &mut Vec<String>,
    ) -> Result<(), String> {
        let Value::Object(fields) = value else {
            return Err(mismatch(value, owner, path, &go_type(schema)));
        };
        if let Additional::Schema(element) = &target.additional {
            for (_, value) in fields.iter_mut() {
                if value.is_null() {
                    *value = zero_value(element);
                }
                // Go names the map instead of the key.
                if element.resolved().format.as_deref() == Some("quantity") {
                    // Such maps are resource lists, whose amounts Go's defaulting rounds.
                    quantity(value, owner, path, Precision::Milli)?;
                } else {
                    self.value(element, value, owner, path)?;
                }
            }
            return Ok(());
        }
        let owner = schema
            .reference
            .as_deref()
            .map_or(owner, |name| name.rsplit('.').next().unwrap_or(name));
        for (name, value) in fields.iter_mut() {
            let Some(property) = target.properties.get(name) else {
                if self.unknown.len() < COMPLAINTS {
                    let parts = path.iter().map(String::as_str).chain([name.as_str()]);
                    self.unknown.push(parts.collect::<Vec<_>>().join("."));
                }
                continue;
            };
            if value.is_null() {
                continue;
            }
            path.push(name.clone());
            self.value(property, value, owner, path)?;
            path.pop();
        }
        fields.retain(|name, _| target.properties.contains_key(name));
        settle(target, fields);
        Ok(())
    }
}

/// Adds the fields that Go always writes and removes the fields that it omits.
pub(crate) fn settle(schema: &Schema, fields: &mut Map<String, Value>) {
    fields.retain(|name, value| {
        let Some(property) = schema.properties.get(name) else {
            return true;
        };
        let dropped = value.is_null() || property.go == Go::NonZero && is_zero(property, value);
        !dropped
    });
    for (name, property) in &schema.properties {
        if !fields.contains_key(name)
            && let Some(value) = absent(property)
        {
            fields.insert(name.clone(), value);
        }
    }
}

fn is_zero(property: &Schema, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => {
            fields.is_empty() || property.reference.is_some() && *value == zero(property)
        }
    }
}

/// Returns the value that Go writes for an absent field.
fn absent(property: &Schema) -> Option<Value> {
    match property.go {
        Go::Pointer | Go::NonZero => None,
        Go::Null => Some(Value::Null),
        Go::Always => Some(zero_value(property)),
    }
}

fn zero_value(property: &Schema) -> Value {
    let target = property.resolved();
    match target.r#type {
        Type::Object if matches!(target.additional, Additional::Schema(_)) || target.preserve_unknown => {
            Value::Null
        }
        Type::Object => zero(target),
        Type::Array => Value::Null,
        Type::String if matches!(target.format.as_deref(), Some("date-time" | "byte")) => Value::Null,
        Type::String => Value::String(String::new()),
        Type::Integer | Type::Number => Value::from(0),
        Type::Boolean => Value::Bool(false),
        Type::Any if target.int_or_string => Value::from(0),
        Type::Any if target.format.as_deref() == Some("quantity") => Value::from("0"),
        Type::Any => Value::Null,
    }
}

/// Ignores trailing bits after the last byte, as Go does.
const LENIENT: base64::engine::GeneralPurpose = base64::engine::GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    base64::engine::GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

fn string(
    schema: &Schema,
    target: &Schema,
    value: &mut Value,
    owner: &str,
    path: &[String],
) -> Result<(), String> {
    let Value::String(text) = value else {
        return Err(mismatch(value, owner, path, &go_type(schema)));
    };
    match target.format.as_deref() {
        Some("byte") => {
            use base64::Engine as _;
            match LENIENT.decode(&*text) {
                Ok(bytes) => {
                    *text = LENIENT.encode(bytes);
                    Ok(())
                }
                Err(
                    base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _),
                ) => Err(format!("illegal base64 data at input byte {at}")),
                Err(_) => Err(format!(
                    "illegal base64 data at input byte {}",
                    text.len() / 4 * 4
                )),
            }
        }
        Some("date-time") => {
            let micro = schema
                .reference
                .as_deref()
                .is_some_and(|name| name.ends_with(".MicroTime"));
            let layout = if micro {
                "2006-01-02T15:04:05.000000Z07:00"
            } else {
                "2006-01-02T15:04:05Z07:00"
            };
            let refused =
                |_| format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"");
            let time: jiff::Timestamp = text.parse().map_err(refused)?;
            *text = if micro {
                time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
            } else {
                time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
            };
            Ok(())
        }
        _ => Ok(()),
    }
}

fn quantity(value: &mut Value, owner: &str, path: &[String], precision: Precision) -> Result<(), String> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return Err(mismatch(value, owner, path, "resource.Quantity")),
    };
    *value = Value::String(crate::quantity::canonical(&text, precision)?);
    Ok(())
}

fn fits(number: &serde_json::Number, format: Option<&str>) -> bool {
    match format {
        Some("int32") => number.as_i64().is_some_and(|value| i32::try_from(value).is_ok()),
        _ => number.is_i64(),
    }
}

fn mismatch(value: &Value, owner: &str, path: &[String], expected: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    refusal(found, owner, path, expected)
}

fn refusal(found: &str, owner: &str, path: &[String], expected: &str) -> String {
    if path.is_empty() {
        return format!("json: cannot unmarshal {found} into Go value of type {expected}");
    }
    format!(
        "json: cannot unmarshal {found} into Go struct field {owner}.{} of type {expected}",
        path.join(".")
    )
}

/// Returns the Go type of a field as the decoder prints it.
fn go_type(schema: &Schema) -> String {
    if let Some(name) = &schema.reference {
        let mut parts = name.rsplit('.');
        let (kind, package) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        return format!("{package}.{kind}");
    }
    match schema.r#type {
        Type::Integer => schema.format.clone().unwrap_or_else(|| "int64".to_owned()),
        Type::Number => "float64".to_owned(),
        Type::Boolean => "bool".to_owned(),
        Type::Array => format!("[]{}", schema.items.as_deref().map(go_type).unwrap_or_default()),
        Type::Object => match &schema.additional {
            Additional::Schema(element) => format!("map[string]{}", go_type(element)),
            Additional::Any | Additional::Absent => "map[string]interface {}".to_owned(),
        },
        Type::String | Type::Any => "string".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::definitions::find, *};

    fn round_trip(definition: &str, mut value: Value) -> (Result<(), String>, Value, Vec<String>) {
        let mut unknown = Vec::new();
        let named = Schema {
            reference: Some(definition.to_owned()),
            ..Schema::default()
        };
        assert!(!find(definition).properties.is_empty());
        let result = decode(&named, &mut value, &mut unknown);
        (result, value, unknown)
    }

    #[test]
    fn guarantee_1_fields_are_present_as_go_writes_them() {
        let (result, value, unknown) = round_trip(
            "io.k8s.api.core.v1.Service",
            json!({"metadata": {"labels": {}}, "spec": {"type": "", "nope": 1, "ports": null}}),
        );
        assert_eq!(result, Ok(()));
        assert_eq!(unknown, ["spec.nope"]);
        assert_eq!(
            value,
            json!({"metadata": {}, "spec": {}, "status": {"loadBalancer": {}}})
        );
    }

    #[test]
    fn guarantee_2_a_wrong_type_is_refused_with_the_text_of_go() {
        let replicas = json!({"spec": {"replicas": "x"}});
        let (result, ..) = round_trip("io.k8s.api.apps.v1.Deployment", replicas);
        assert_eq!(
            result.unwrap_err(),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
        );
        let (result, ..) = round_trip("io.k8s.api.apps.v1.Deployment", json!({"spec": []}));
        assert_eq!(
            result.unwrap_err(),
            "json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec"
        );
    }
}
