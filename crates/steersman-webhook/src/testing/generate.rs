// SPDX-License-Identifier: Apache-2.0
//! Values that a structural schema permits.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Map, Value, json};
use steersman_core::Random;

/// Generates a value.
pub(super) fn value(schema: &JSONSchemaProps, random: &Random) -> Value {
    if schema.nullable == Some(true) && below(random, 8) == 0 {
        return Value::Null;
    }
    if let Some(values) = schema.enum_.as_ref().filter(|values| !values.is_empty()) {
        let index = below(random, values.len() as u64);
        return usize::try_from(index)
            .ok()
            .and_then(|index| values.get(index))
            .map_or(Value::Null, |one| one.0.clone());
    }
    match schema.type_.as_deref() {
        Some("object") => object(schema, random),
        Some("array") => {
            let count = below(random, 4);
            let items = (0..count).filter_map(|_| match &schema.items {
                Some(JSONSchemaPropsOrArray::Schema(items)) => Some(value(items, random)),
                _ => None,
            });
            items.collect()
        }
        Some("string") => string(schema, random),
        Some("boolean") => json!(below(random, 2) == 0),
        Some("integer") => json!(integer(schema, random)),
        Some("number") => json!(integer(schema, random) as f64 / 4.0),
        // Objects without a type are free, as `x-kubernetes-int-or-string` is.
        _ if schema.x_kubernetes_int_or_string == Some(true) => json!(below(random, 100)),
        _ => object(schema, random),
    }
}

fn object(schema: &JSONSchemaProps, random: &Random) -> Value {
    let mut map = Map::new();
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, property) in schema.properties.iter().flatten() {
        if required.contains(name) || below(random, 3) > 0 {
            map.insert(name.clone(), value(property, random));
        }
    }
    if let Some(JSONSchemaPropsOrBool::Schema(property)) = &schema.additional_properties {
        for key in 0..below(random, 3) {
            map.insert(format!("key-{key}"), value(property, random));
        }
    }
    Value::Object(map)
}

fn string(schema: &JSONSchemaProps, random: &Random) -> Value {
    match schema.format.as_deref() {
        Some("date-time") => json!("2030-01-02T03:04:05Z"),
        Some("date") => json!("2030-01-02"),
        Some("uuid") => json!("705ab4f5-6393-11e8-b7cc-42010a800002"),
        Some("byte") => json!("YWJj"),
        _ => {
            let shortest = u64::try_from(schema.min_length.unwrap_or_default()).unwrap_or_default();
            let letters = ['a', 'ü', '0', '-', ' ', '"', ':', '/'];
            let length = shortest + below(random, 6);
            let letter = |_| letters[usize::try_from(below(random, 8)).unwrap_or_default()];
            json!((0..length).map(letter).collect::<String>())
        }
    }
}

/// Returns an integer within the limits of the schema, often one of them.
fn integer(schema: &JSONSchemaProps, random: &Random) -> i64 {
    let is_unsigned = schema
        .format
        .as_deref()
        .is_some_and(|format| format.starts_with("uint"));
    let minimum = schema.minimum.unwrap_or(if is_unsigned { 0.0 } else { -1000.0 }) as i64;
    let maximum = schema
        .maximum
        .map_or(minimum.saturating_add(2000), |maximum| maximum as i64);
    // Types of eight bits have no limits in the schema.
    let maximum = if schema
        .format
        .as_deref()
        .is_some_and(|format| format.ends_with("int8"))
    {
        maximum.min(127)
    } else {
        maximum
    };
    let span = u64::try_from(maximum.saturating_sub(minimum)).unwrap_or_default();
    match below(random, 4) {
        0 => minimum,
        1 => minimum.saturating_add_unsigned(span),
        _ => minimum.saturating_add_unsigned(below(random, span.saturating_add(1))),
    }
}

fn below(random: &Random, limit: u64) -> u64 {
    random.next_u64() % limit.max(1)
}
