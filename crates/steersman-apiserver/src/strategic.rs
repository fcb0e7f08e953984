// SPDX-License-Identifier: Apache-2.0
//! Strategic merge patches: merge patches that know how lists of built-in kinds are keyed.
//!
//! No crate has them: the merge keys live in the schema, and the directives (`$patch`, `$retainKeys`,
//! `$deleteFromPrimitiveList/…`, `$setElementOrder/…`) are Kubernetes' own.

use serde_json::{Map, Value};

use crate::schema::Schema;

/// Applies a patch to an object.
///
/// # Errors
/// What is wrong with the patch.
pub(crate) fn patch(schema: &Schema, live: &Value, patch: &Map<String, Value>) -> Result<Value, String> {
    let live = live.as_object().cloned().unwrap_or_default();
    objects(schema, live, patch).map(|object| Value::Object(object.unwrap_or_default()))
}

/// The patched object, or nothing if the patch deletes it.
fn objects(schema: &Schema, mut live: Map<String, Value>, patch: &Map<String, Value>) -> Result<Option<Map<String, Value>>, String> {
    match patch.get("$patch").map(|directive| directive.as_str().unwrap_or_default()) {
        Some("replace") => return Ok(Some(cleaned(patch))),
        Some("delete") => return Ok(None),
        Some("merge") | None => {}
        Some(other) => return Err(format!("unknown patch type: {other}")),
    }
    if let Some(kept) = patch.get("$retainKeys").and_then(Value::as_array) {
        live.retain(|name, _| kept.iter().any(|kept| kept == name));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(Value::Array(items)) = live.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
        }
    }
    for (name, value) in patch {
        if name.starts_with('$') {
            continue;
        }
        let field = schema.resolved().field(name).map(|(field, _)| field);
        field_of(field, &mut live, name, value)?;
    }
    for (name, order) in patch {
        if let Some(list) = name.strip_prefix("$setElementOrder/") {
            let key = schema.resolved().field(list).and_then(|(field, _)| field.merge_key.clone());
            if let (Some(Value::Array(items)), Some(order)) = (live.get_mut(list), order.as_array()) {
                reorder(items, order, key.as_deref());
            }
        }
    }
    Ok(Some(live))
}

fn field_of(field: Option<&Schema>, live: &mut Map<String, Value>, name: &str, value: &Value) -> Result<(), String> {
    let unknown = Schema::anything();
    let schema = field.unwrap_or(&unknown);
    match (value, live.get(name).cloned()) {
        (Value::Null, _) => {
            live.remove(name);
        }
        (Value::Object(patch), current) => {
            let current = current.and_then(|current| current.as_object().cloned()).unwrap_or_default();
            match objects(schema, current, patch)? {
                Some(object) => live.insert(name.to_owned(), Value::Object(object)),
                None => live.remove(name),
            };
        }
        (Value::Array(patch), current) => {
            let merges = schema.patch_strategy.as_deref().is_some_and(|strategy| strategy.split(',').any(|part| part == "merge"));
            let current = current.and_then(|current| current.as_array().cloned()).unwrap_or_default();
            let items = match (merges, &schema.merge_key) {
                (true, Some(key)) => keyed(schema, current, patch, key)?,
                (true, None) => primitives(current, patch),
                (false, _) => patch.clone(),
            };
            live.insert(name.to_owned(), Value::Array(items));
        }
        (value, _) => {
            live.insert(name.to_owned(), value.clone());
        }
    }
    Ok(())
}

fn primitives(mut current: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    for item in patch {
        if !current.contains(item) {
            current.push(item.clone());
        }
    }
    current
}

fn keyed(schema: &Schema, mut current: Vec<Value>, patch: &[Value], key: &str) -> Result<Vec<Value>, String> {
    let items = schema.resolved().items.as_deref();
    let unknown = Schema::anything();
    let items = items.unwrap_or(&unknown);
    if patch.iter().any(|item| item.get("$patch").is_some_and(|directive| directive == "replace")) {
        let kept = patch.iter().filter(|item| item.get("$patch").is_none_or(|directive| directive != "replace"));
        return Ok(kept.cloned().collect());
    }
    for item in patch {
        let Value::Object(item) = item else { return Err(format!("unable to find merge key {key} in a list item that is not an object")) };
        let Some(id) = item.get(key) else {
            return Err(format!("map: {} does not contain declared merge key: {key}", Value::Object(item.clone())));
        };
        let place = current.iter().position(|known| known.get(key) == Some(id));
        match place {
            Some(place) => {
                let known = current[place].as_object().cloned().unwrap_or_default();
                match objects(items, known, item)? {
                    Some(object) => current[place] = Value::Object(object),
                    None => {
                        current.remove(place);
                    }
                }
            }
            None => {
                if let Some(object) = objects(items, Map::new(), item)? {
                    current.push(Value::Object(object));
                }
            }
        }
    }
    Ok(current)
}

/// Puts the items that `order` names in that order; the others stay after those they followed.
fn reorder(items: &mut Vec<Value>, order: &[Value], key: Option<&str>) {
    let id = |item: &Value| key.map_or_else(|| Some(item.clone()), |key| item.get(key).cloned());
    let wanted: Vec<Option<Value>> = order.iter().map(id).collect();
    let rank = |item: &Value| wanted.iter().position(|wanted| *wanted == id(item));
    let (mut named, others): (Vec<_>, Vec<_>) = std::mem::take(items).into_iter().partition(|item| rank(item).is_some());
    named.sort_by_key(|item| rank(item));
    named.extend(others);
    *items = named;
}

fn cleaned(patch: &Map<String, Value>) -> Map<String, Value> {
    patch.iter().filter(|(name, _)| !name.starts_with('$')).map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(patch_value: &Value) -> Value {
        let schema = Schema { reference: Some("io.k8s.api.core.v1.Pod".to_owned()), ..Schema::default() };
        let live = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}], "nodeName": "n"}});
        patch(&schema, &live, patch_value.as_object().unwrap()).unwrap()
    }

    #[test]
    fn items_of_keyed_lists_are_merged_by_their_key() {
        let merged = pod(&json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}}));
        assert_eq!(merged["spec"]["containers"], json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}]));
    }

    #[test]
    fn directives_delete_and_replace() {
        let deleted = pod(&json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}], "nodeName": null}}));
        assert_eq!(deleted, json!({"spec": {"containers": [{"name": "b", "image": "1"}]}}));
        let replaced = pod(&json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}));
        assert_eq!(replaced["spec"]["containers"], json!([{"name": "z"}]));
    }
}
