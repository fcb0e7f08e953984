// SPDX-License-Identifier: Apache-2.0
//! The values of an object at the fields that one field manager owns.
//!
//! An apply is needed only if the desired fields changed, or if another client changed one of the fields that the last apply set.
//! Desired and live fields cannot be compared with each other, because the server sets defaults, normalises quantities, and
//! passes objects to admission webhooks. So the kit compares each of them with its own state after the last apply, by a hash.
//!
//! # Guarantees
//! 1. Equal JSON has an equal hash, whatever the order of the members of its objects.
//! 2. A change of a value at an owned field changes the hash; a change elsewhere does not.
//! 3. Malformed field sets and objects never cause a panic.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

/// Hashes a JSON value.
pub(crate) fn hash(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash_value(value, &mut hasher);
    hasher.finish()
}

/// Hashes the values of `object` at the fields of a `fieldsV1` set.
pub(crate) fn hash_fields(fields: &Value, object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash_owned(fields, Some(object), &mut hasher);
    hasher.finish()
}

/// Returns the `fieldsV1` set that a field manager owns by apply, from the metadata of an answer of the server.
pub(crate) fn applied_fields<'a>(object: &'a Value, manager: &str) -> Option<&'a Value> {
    entries(object)
        .find(|entry| is_entry(entry, manager, "Apply"))
        .and_then(|entry| entry.get("fieldsV1"))
}

/// Returns the entries of `managedFields`.
pub(crate) fn entries(object: &Value) -> impl Iterator<Item = &Value> {
    let entries = object.pointer("/metadata/managedFields");
    entries.and_then(Value::as_array).into_iter().flatten()
}

/// Returns true if an entry of `managedFields` is of this manager and operation, and not of a subresource.
pub(crate) fn is_entry(entry: &Value, manager: &str, operation: &str) -> bool {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
    text("manager") == manager && text("operation") == operation && text("subresource").is_empty()
}

/// Removes the field at a JSON pointer from an object.
pub(crate) fn remove_field(object: &mut Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        return;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    match object.pointer_mut(parent) {
        Some(Value::Object(members)) => _ = members.remove(&name),
        Some(Value::Array(items)) => {
            if let Some(index) = name.parse().ok().filter(|index| *index < items.len()) {
                items.remove(index);
            }
        }
        _ => {}
    }
}

/// Removes the field at a JSON pointer from a `fieldsV1` set, and parents that are empty then.
pub(crate) fn remove_owned(fields: &mut Value, pointer: &str) {
    let names: Vec<String> = pointer
        .split('/')
        .skip(1)
        .map(|name| format!("f:{}", name.replace("~1", "/").replace("~0", "~")))
        .collect();
    remove_path(fields, &names);
}

/// Removes a path; returns true if nothing is left.
fn remove_path(fields: &mut Value, names: &[String]) -> bool {
    let (Some(members), Some((name, rest))) = (fields.as_object_mut(), names.split_first()) else {
        return false;
    };
    let is_empty = match members.get_mut(name) {
        Some(below) => rest.is_empty() || remove_path(below, rest),
        None => false,
    };
    if is_empty {
        members.remove(name);
    }
    members.is_empty()
}

/// Adds the fields of one `fieldsV1` set to another.
pub(crate) fn add_fields(fields: &mut Value, more: &Value) {
    let (Value::Object(fields), Value::Object(more)) = (fields, more) else {
        return;
    };
    for (name, below) in more {
        add_fields(
            fields
                .entry(name.clone())
                .or_insert_with(|| Value::Object(Map::new())),
            below,
        );
    }
}

/// Marks where a value is missing, so that a removed field differs from an empty one.
const MISSING: u8 = 0;

fn hash_owned(fields: &Value, object: Option<&Value>, hasher: &mut DefaultHasher) {
    let Some(object) = object else {
        return MISSING.hash(hasher);
    };
    let members = fields.as_object().into_iter().flatten();
    let mut below: Vec<(&String, &Value)> = members.filter(|(name, _)| *name != ".").collect();
    if below.is_empty() {
        // A leaf: the manager owns the whole value.
        return hash_value(object, hasher);
    }
    below.sort_unstable_by_key(|(name, _)| *name);
    for (name, fields) in below {
        name.hash(hasher);
        let found = step(object, name);
        if is_only_an_item(name, fields) {
            found.is_some().hash(hasher);
        } else {
            hash_owned(fields, found, hasher);
        }
    }
}

/// Returns true if the manager owns that a list item exists, and none of its fields.
fn is_only_an_item(name: &str, fields: &Value) -> bool {
    let mut names = fields.as_object().into_iter().flat_map(Map::keys);
    !name.starts_with("f:") && names.all(|name| name == ".")
}

/// Follows one path element of a `fieldsV1` set.
fn step<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let (form, rest) = name.split_at_checked(2)?;
    match form {
        "f:" => object.get(rest),
        "k:" => {
            let key: Map<String, Value> = serde_json::from_str(rest).ok()?;
            let is_item = |item: &&Value| key.iter().all(|(name, value)| item.get(name) == Some(value));
            object.as_array()?.iter().find(is_item)
        }
        "v:" => {
            let value: Value = serde_json::from_str(rest).ok()?;
            object.as_array()?.iter().find(|item| **item == value)
        }
        "i:" => object.get(rest.parse::<usize>().ok()?),
        _ => None,
    }
}

fn hash_value(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Null => 1u8.hash(hasher),
        Value::Bool(value) => (2u8, value).hash(hasher),
        Value::Number(number) => (3u8, number).hash(hasher),
        Value::String(text) => (4u8, text).hash(hasher),
        Value::Array(items) => {
            (5u8, items.len()).hash(hasher);
            items.iter().for_each(|item| hash_value(item, hasher));
        }
        Value::Object(members) => {
            (6u8, members.len()).hash(hasher);
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in members {
                name.hash(hasher);
                hash_value(value, hasher);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    // R103
    #[test]
    fn guarantee_1_the_order_of_members_does_not_matter() {
        assert_eq!(
            hash(&parse(r#"{"a":1,"b":{"c":2,"d":3}}"#)),
            hash(&parse(r#"{"b":{"d":3,"c":2},"a":1}"#))
        );
        assert_ne!(hash(&json!({"a": [1, 2]})), hash(&json!({"a": [2, 1]})));
        assert_ne!(hash(&json!({"a": "1"})), hash(&json!({"a": 1})));
        assert_ne!(hash(&json!({"a": [[], 1]})), hash(&json!({"a": [[1]]})));
    }

    // R110
    #[test]
    fn guarantee_2_only_owned_fields_count() {
        let fields = json!({
            "f:spec": {
                "f:replicas": {},
                "f:containers": {r#"k:{"name":"web"}"#: {".": {}, "f:image": {}, "f:name": {}}},
                "f:finalizers": {".": {}, r#"v:"a""#: {}},
            },
        });
        let object = |replicas: i64, image: &str, other: &str| {
            json!({"spec": {
                "replicas": replicas,
                "containers": [{"name": "side", "image": other}, {"name": "web", "image": image, "tty": other}],
                "finalizers": [other, "a"],
            }})
        };
        let hash = |object: &Value| hash_fields(&fields, object);
        let before = hash(&object(1, "a", "x"));
        assert_eq!(before, hash(&object(1, "a", "y")));
        assert_ne!(before, hash(&object(2, "a", "x")));
        assert_ne!(before, hash(&object(1, "b", "x")));
        let mut removed = object(1, "a", "x");
        remove_field(&mut removed, "/spec/containers/1");
        assert_ne!(before, hash(&removed));
        let mut removed = object(1, "a", "x");
        remove_field(&mut removed, "/spec/finalizers/1");
        assert_ne!(before, hash(&removed));
    }

    #[test]
    fn guarantee_2_a_leaf_is_the_whole_value() {
        let fields = json!({"f:data": {"f:list": {}}});
        let hash = |list: Value| hash_fields(&fields, &json!({"data": {"list": list}}));
        assert_ne!(hash(json!([1])), hash(json!([1, 2])));
        assert_ne!(hash_fields(&fields, &json!({"data": {}})), hash(Value::Null));
    }

    #[test]
    fn guarantee_3_malformed_sets_are_harmless() {
        let odd = json!({"f": {}, "k:{": {"f:a": {}}, "é": {}, "v:": {}, "i:x": {}, "f:a": 7, "": {}});
        for object in [json!({"a": 1}), json!([1]), json!(null), json!("a")] {
            let _ = hash_fields(&odd, &object);
        }
        let _ = hash_fields(&Value::Null, &json!({}));
        remove_field(&mut json!({"a": [1]}), "/a/7");
        remove_field(&mut json!({"a": [1]}), "no pointer");
        remove_owned(&mut json!({"f:a": 1}), "/a/b");
    }

    #[test]
    fn removes_a_field_from_a_set_with_its_empty_parents() {
        let mut fields =
            json!({"f:spec": {"f:replicas": {}}, "f:metadata": {"f:annotations": {"f:a/b": {}, "f:c": {}}}});
        remove_owned(&mut fields, "/spec/replicas");
        remove_owned(&mut fields, "/metadata/annotations/a~1b");
        remove_owned(&mut fields, "/data/missing");
        assert_eq!(fields, json!({"f:metadata": {"f:annotations": {"f:c": {}}}}));
    }

    #[test]
    fn adds_fields_of_another_set() {
        let mut fields = json!({"f:data": {".": {}, "f:a": {}}});
        add_fields(
            &mut fields,
            &json!({"f:data": {"f:b": {}}, "f:metadata": {"f:labels": {}}}),
        );
        let expected = json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}, "f:metadata": {"f:labels": {}}});
        assert_eq!(fields, expected);
    }
}
