// SPDX-License-Identifier: Apache-2.0
//! The OpenAPI definitions of built-in kinds, parsed one by one when first used.

use std::{
    collections::HashMap,
    sync::{LazyLock, OnceLock},
};

use super::Schema;

/// Written by `data/generate.py`.
static TEXT: &str = include_str!("../../data/definitions.txt");

struct Definition {
    json: &'static str,
    schema: OnceLock<Schema>,
}

static TABLE: LazyLock<HashMap<&'static str, Definition>> = LazyLock::new(|| {
    let split = |line: &'static str| line.split_once('\t');
    TEXT.lines()
        .filter_map(split)
        .map(|(name, json)| {
            (
                name,
                Definition {
                    json,
                    schema: OnceLock::new(),
                },
            )
        })
        .collect()
});

/// The definition of that name; a schema that accepts everything if there is none.
pub(crate) fn find(name: &str) -> &'static Schema {
    static UNKNOWN: LazyLock<Schema> = LazyLock::new(Schema::anything);
    match TABLE.get(name) {
        Some(definition) => definition.schema.get_or_init(|| parse(name, definition.json)),
        None => &UNKNOWN,
    }
}

/// The definition as it was generated.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    TABLE.get(name).map(|definition| definition.json)
}

/// Refers to the metadata that all objects share.
pub(crate) fn object_meta() -> &'static Schema {
    static META: LazyLock<Schema> = LazyLock::new(|| Schema {
        reference: Some("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta".to_owned()),
        ..Schema::default()
    });
    &META
}

fn parse(name: &str, json: &str) -> Schema {
    let json = serde_json::from_str(json).expect("the generated definitions are JSON");
    let mut schema = Schema::parse(&json);
    // Go types that hold any JSON; their OpenAPI form does not say so.
    if name.ends_with(".RawExtension")
        || name.ends_with(".FieldsV1")
        || name.contains(".JSON") && schema.properties.is_empty()
    {
        schema.preserve_unknown = true;
        // Go holds them as bytes, so they are owned and replaced as a whole.
        schema.atomic_map = true;
    }
    if name.ends_with(".Quantity") {
        schema.format = Some("quantity".to_owned());
        schema.rules = None;
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_leads_to_a_definition() {
        fn walk(schema: &Schema, at: &str) {
            if let Some(name) = &schema.reference {
                assert!(TABLE.contains_key(name.as_str()), "{at} refers to {name}");
            }
            schema.properties.values().for_each(|property| walk(property, at));
            schema.items.iter().for_each(|items| walk(items, at));
            if let super::super::Additional::Schema(schema) = &schema.additional {
                walk(schema, at);
            }
        }
        for name in TABLE.keys() {
            walk(find(name), name);
        }
    }
}
