// SPDX-License-Identifier: Apache-2.0
//! JSON patches that contain only the changes of a webhook.
//!
//! A webhook decodes an object into a type, changes it, and serialises it again. The result lacks fields that the type does not
//! have, and has others that the type adds. Both are no changes of the webhook: its changes are the differences between the
//! serialised object before and after the call. [`changes`] applies these differences to the object as the API server sent it.
//!
//! # Guarantees
//! 1. If the webhook changes nothing, the patch is empty.
//! 2. A field that the type does not have survives, also within elements of a list that have unique names, or that keep
//!    their name or have none while the length does not change. An element with a new name gets no fields of another one.
//! 3. A value that the type normalises (such as `"1"` to `1`) is sent only if the webhook changes it.

use json_patch::Patch;
use serde_json::{Map, Value};

/// Returns the patch for `raw` that has the effect of the change from `before` to `after`.
pub(crate) fn changes(raw: &Value, before: &Value, after: &Value) -> Patch {
    json_patch::diff(raw, &merge(raw, before, after))
}

/// Applies the change from `before` to `after` to `raw`.
fn merge(raw: &Value, before: &Value, after: &Value) -> Value {
    if before == after {
        return raw.clone();
    }
    match (raw, before, after) {
        (Value::Object(raw), Value::Object(before), Value::Object(after)) => {
            Value::Object(merge_objects(raw, before, after))
        }
        (Value::Array(raw), Value::Array(before), Value::Array(after)) if raw.len() == before.len() => {
            Value::Array(merge_lists(raw, before, after))
        }
        _ => after.clone(),
    }
}

fn merge_objects(
    raw: &Map<String, Value>,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
) -> Map<String, Value> {
    let mut merged = raw.clone();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        merged.remove(key);
    }
    for (key, after) in after {
        match before.get(key) {
            Some(before) if before == after => {}
            Some(before) => {
                let raw = raw.get(key).unwrap_or(before);
                merged.insert(key.clone(), merge(raw, before, after));
            }
            None => {
                merged.insert(key.clone(), after.clone());
            }
        }
    }
    merged
}

fn merge_lists(raw: &[Value], before: &[Value], after: &[Value]) -> Vec<Value> {
    let is_same_length = before.len() == after.len();
    let merge_element = |(index, after): (usize, &Value)| {
        let former = match position_by_name(before, after) {
            Some(named) => Some(named),
            None if is_same_length && before[index].get("name") == after.get("name") => Some(index),
            None => before.iter().position(|before| before == after),
        };
        former.map_or_else(
            || after.clone(),
            |former| merge(&raw[former], &before[former], after),
        )
    };
    after.iter().enumerate().map(merge_element).collect()
}

/// Returns the only element with the same `name`, which is the key of most lists in Kubernetes.
fn position_by_name(list: &[Value], element: &Value) -> Option<usize> {
    let name = element.get("name")?;
    let mut named = list
        .iter()
        .enumerate()
        .filter(|(_, one)| one.get("name") == Some(name));
    let (position, _) = named.next()?;
    named.next().is_none().then_some(position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn patch(raw: &Value, before: &Value, after: &Value) -> Value {
        json!(changes(raw, before, after))
    }

    #[test]
    fn guarantee_1_no_change_is_no_patch() {
        let raw = json!({"spec": {"unknown": 1, "size": "1"}});
        let typed = json!({"spec": {"size": 1, "added": null}});
        assert_eq!(patch(&raw, &typed, &typed), json!([]));
    }

    #[test]
    fn guarantee_2_unknown_fields_survive() {
        let raw = json!({"spec": {"unknown": 1, "items": [{"name": "a", "new": 1}, {"name": "b"}]}});
        let before = json!({"spec": {"items": [{"name": "a"}, {"name": "b"}]}});
        let after =
            json!({"spec": {"items": [{"name": "b", "port": 2}, {"name": "a", "port": 1}, {"name": "c"}]}});
        let mut patched = raw.clone();
        json_patch::patch(&mut patched, &changes(&raw, &before, &after)).unwrap();
        let items = json!([{"name": "b", "port": 2}, {"name": "a", "port": 1, "new": 1}, {"name": "c"}]);
        assert_eq!(patched, json!({"spec": {"unknown": 1, "items": items}}));
    }

    #[test]
    fn guarantee_2_a_new_element_gets_no_fields_of_a_removed_one() {
        let raw = json!([{"name": "a", "privileged": true}, {"name": "b", "new": 1}]);
        let before = json!([{"name": "a"}, {"name": "b"}]);
        let after = json!([{"name": "c"}, {"name": "b", "port": 2}]);
        let expected = json!([{"name": "c"}, {"name": "b", "new": 1, "port": 2}]);
        assert_eq!(merge(&raw, &before, &after), expected);

        let raw = json!([{"port": 1, "new": 1}]);
        let merged = merge(&raw, &json!([{"port": 1}]), &json!([{"port": 2}]));
        assert_eq!(merged, json!([{"port": 2, "new": 1}]));
    }

    #[test]
    fn adds_parents_that_only_the_type_has() {
        let (raw, before) = (
            json!({"metadata": {}}),
            json!({"metadata": {}, "spec": {"size": null}}),
        );
        let after = json!({"metadata": {}, "spec": {"size": 3}});
        let expected = json!([{"op": "add", "path": "/spec", "value": {"size": 3}}]);
        assert_eq!(patch(&raw, &before, &after), expected);
    }

    #[test]
    fn guarantee_3_a_normalised_value_is_not_sent() {
        let raw = json!({"cpu": "1000m", "size": 1});
        let (before, after) = (json!({"cpu": "1", "size": 1}), json!({"cpu": "1", "size": 2}));
        let expected = json!([{"op": "replace", "path": "/size", "value": 2}]);
        assert_eq!(patch(&raw, &before, &after), expected);
    }

    #[test]
    fn escapes_keys_and_removes_fields() {
        let raw = json!({"metadata": {"annotations": {"a/b~c": "1", "d": "2"}}});
        let after = json!({"metadata": {"annotations": {"a/b~c": "3"}}});
        let expected = json!([
            {"op": "remove", "path": "/metadata/annotations/d"},
            {"op": "replace", "path": "/metadata/annotations/a~1b~0c", "value": "3"},
        ]);
        let mut found = patch(&raw, &raw, &after);
        found
            .as_array_mut()
            .unwrap()
            .sort_by_key(|one| one["op"] != "remove");
        assert_eq!(found, expected);
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<u8>().prop_map(Value::from),
            "[a-c]".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map("[a-c/~]|name", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_type_without_losses_gets_exactly_its_change(before in values(), after in values()) {
            let mut patched = before.clone();
            json_patch::patch(&mut patched, &changes(&before, &before, &after)).unwrap();
            prop_assert_eq!(patched, after);
        }

        #[test]
        fn the_patch_always_applies(raw in values(), before in values(), after in values()) {
            let mut patched = raw.clone();
            json_patch::patch(&mut patched, &changes(&raw, &before, &after)).unwrap();
            prop_assert_eq!(patched, merge(&raw, &before, &after));
        }
    }
}
