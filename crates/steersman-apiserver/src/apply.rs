// SPDX-License-Identifier: Apache-2.0
//! Structured merge and diff: treats objects as sets of fields, by their schema.
//!
//! The rules are those of `sigs.k8s.io/structured-merge-diff`; no Rust crate implements them.
//!
//! # Guarantees
//! 1. [`fields`] of an object, written as FieldsV1 and parsed again, is the same set.
//! 2. [`merge`] keeps fields that only one side has, and takes the right side if both have a leaf.
//! 3. [`compare`] puts each changed field in exactly one of removed, modified and added.

mod check;
mod compare;
mod fields;
pub(crate) mod fieldset;
mod merge;
mod remove;

use serde_json::Value;

use crate::schema::{ListType, Schema, Type};

pub(crate) use check::check;
pub(crate) use compare::{Comparison, compare};
pub(crate) use fields::fields;
pub(crate) use fieldset::FieldSet;
pub(crate) use merge::merge;
pub(crate) use remove::{name_members, remove};

/// Merge behaviour of a value, by its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Atom {
    Scalar,
    /// A list that is replaced as a whole.
    AtomicList,
    List,
    AtomicMap,
    Map,
}

/// Returns the atom of a value; if the schema gives no type, the value decides.
fn atom(schema: &Schema, value: Option<&Value>) -> Atom {
    let schema = schema.resolved();
    let list = if schema.list == ListType::Atomic {
        Atom::AtomicList
    } else {
        Atom::List
    };
    let map = if schema.atomic_map {
        Atom::AtomicMap
    } else {
        Atom::Map
    };
    match schema.r#type {
        Type::Object => map,
        Type::Array => list,
        Type::String | Type::Integer | Type::Number | Type::Boolean => Atom::Scalar,
        Type::Any if schema.int_or_string || schema.format.is_some() => Atom::Scalar,
        Type::Any => match value {
            Some(Value::Array(_)) => list,
            Some(Value::Object(_)) | None => map,
            Some(_) => Atom::Scalar,
        },
    }
}

/// Returns the schema of an unknown item or field, whose type is deduced from the value.
fn unknown() -> &'static Schema {
    static UNKNOWN: std::sync::LazyLock<Schema> = std::sync::LazyLock::new(Schema::anything);
    &UNKNOWN
}

fn field_schema<'a>(schema: &'a Schema, name: &str) -> (&'a Schema, bool) {
    schema
        .resolved()
        .field(name)
        .unwrap_or_else(|| (unknown(), false))
}

fn item_schema(schema: &Schema) -> &Schema {
    schema.resolved().items.as_deref().unwrap_or_else(|| unknown())
}

fn as_map(value: Option<&Value>) -> Option<&serde_json::Map<String, Value>> {
    value.and_then(Value::as_object)
}

fn as_list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the path element of a list item: its keys, or its value.
fn item_element(schema: &Schema, item: &Value) -> Result<String, String> {
    let list = schema.resolved();
    match &list.list {
        ListType::Map(keys) => {
            let Value::Object(fields) = item else {
                return Err("associative list with keys may not have non-map elements".to_owned());
            };
            let items = item_schema(schema).resolved();
            let mut found = serde_json::Map::new();
            for key in keys {
                let default = || {
                    items
                        .properties
                        .get(key)
                        .and_then(|property| property.default.as_ref())
                };
                if let Some(value) = fields.get(key).or_else(default) {
                    found.insert(key.clone(), value.clone());
                }
            }
            if found.is_empty() {
                let keys = keys
                    .iter()
                    .map(|key| format!("{key:?}"))
                    .collect::<Vec<_>>()
                    .join(" ");
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{keys}] (and doesn't have default values for any key fields)"
                ));
            }
            Ok(format!("k:{}", Value::Object(found)))
        }
        ListType::Set => match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".to_owned())
            }
            scalar => Ok(format!("v:{scalar}")),
        },
        ListType::Atomic => Err("invalid indexing of non-associative list".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        let list = |kind: &str, items: Value| json!({"type": "array", "x-kubernetes-list-type": kind, "items": items});
        let mut map = list(
            "map",
            json!({"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}),
        );
        map["x-kubernetes-list-map-keys"] = json!(["k"]);
        Schema::parse(&json!({
            "type": "object",
            "properties": {
                "leaf": {"type": "string"},
                "map": map,
                "set": list("set", json!({"type": "string"})),
                "plain": {"type": "array", "items": {"type": "string"}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "atom": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
            },
        }))
    }

    fn object() -> impl Strategy<Value = Value> {
        let word = || "[a-c]";
        let items = prop::collection::btree_map(word(), 0..3i64, 0..3).prop_map(|items| {
            items
                .into_iter()
                .map(|(k, v)| json!({"k": k, "v": v}))
                .collect::<Vec<_>>()
        });
        let words = || prop::collection::btree_set("[a-c]", 0..3);
        let labels = prop::collection::btree_map(word(), word(), 0..3);
        (word(), items, words(), words(), labels, word()).prop_map(|(leaf, map, set, plain, labels, a)| {
            json!({"leaf": leaf, "map": map, "set": set, "plain": plain, "labels": labels, "atom": {"a": a}})
        })
    }

    proptest! {
        #[test]
        fn guarantee_1_a_set_survives_fields_v1(object in object()) {
            let set = fields(&schema(), &object).unwrap();
            prop_assert_eq!(FieldSet::from_json(&set.to_json()), Some(set));
        }

        #[test]
        fn guarantee_2_a_merge_has_all_of_both_and_the_leaves_of_the_right(left in object(), right in object()) {
            let schema = schema();
            let merged = merge(&schema, Some(&left), Some(&right)).unwrap().unwrap();
            let set = |value: &Value| fields(&schema, value).unwrap();
            prop_assert!(set(&left).union(&set(&right)).difference(&name_members(&schema, &set(&merged))).is_empty());
            prop_assert_eq!(&merged["leaf"], &right["leaf"]);
            prop_assert_eq!(&merged["atom"], &right["atom"]);
            let again = merge(&schema, Some(&merged), Some(&right)).unwrap().unwrap();
            prop_assert_eq!(again, merged);
        }

        #[test]
        fn guarantee_3_each_change_is_in_exactly_one_set(left in object(), right in object()) {
            let schema = schema();
            let found = compare(&schema, &left, &right);
            prop_assert!(found.added.intersection(&found.removed).is_empty());
            prop_assert!(found.added.intersection(&found.modified).is_empty());
            prop_assert!(found.modified.intersection(&found.removed).is_empty());
            let same = compare(&schema, &left, &left);
            prop_assert!(same.added.is_empty() && same.removed.is_empty() && same.modified.is_empty());
        }
    }
}
