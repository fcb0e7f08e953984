// SPDX-License-Identifier: Apache-2.0
//! Strategic merge patches: merge patches that merge the lists of built-in kinds by key.
//!
//! No Rust crate implements them: the merge keys are part of the schema, and the directives (`$patch`, `$retainKeys`,
//! `$deleteFromPrimitiveList/…`, `$setElementOrder/…`) are specific to Kubernetes.

use serde_json::{Map, Value};

use crate::schema::Schema;

/// Applies a patch to an object.
///
/// # Errors
/// Returns the error in the patch.
pub(crate) fn patch(schema: &Schema, live: &Value, patch: &Map<String, Value>) -> Result<Value, String> {
    let live = live.as_object().cloned().unwrap_or_default();
    objects(schema, live, patch).map(|object| Value::Object(object.unwrap_or_default()))
}

/// Patches an object; returns `None` if the patch deletes it.
fn objects(
    schema: &Schema,
    mut live: Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Option<Map<String, Value>>, String> {
    match patch
        .get("$patch")
        .map(|directive| directive.as_str().unwrap_or_default())
    {
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
        let order = patch
            .get(&format!("$setElementOrder/{name}"))
            .and_then(Value::as_array);
        field_of(field, &mut live, name, value, order)?;
    }
    for (name, order) in patch {
        // An order without a patch of the list sorts the existing items.
        if let Some(list) = name.strip_prefix("$setElementOrder/")
            && !patch.contains_key(list)
            && let (Some(Value::Array(items)), Some(order)) = (live.get_mut(list), order.as_array())
        {
            let key = schema
                .resolved()
                .field(list)
                .and_then(|(field, _)| field.merge_key.clone());
            let id = |item: &Value| {
                key.as_deref()
                    .map_or_else(|| Some(item.clone()), |key| item.get(key).cloned())
            };
            let wanted: Vec<Option<Value>> = order.iter().map(id).collect();
            let (named, others) = std::mem::take(items)
                .into_iter()
                .partition(|item| wanted.contains(&id(item)));
            let all: Vec<Value> = Vec::clone(&named)
                .into_iter()
                .chain(Vec::clone(&others))
                .collect();
            *items = ordered(named, others, &all, Some(order), key.as_deref());
        }
    }
    Ok(Some(live))
}

fn field_of(
    field: Option<&Schema>,
    live: &mut Map<String, Value>,
    name: &str,
    value: &Value,
    order: Option<&Vec<Value>>,
) -> Result<(), String> {
    let unknown = Schema::anything();
    let schema = field.unwrap_or(&unknown);
    match (value, live.get(name).cloned()) {
        (Value::Null, _) => {
            live.remove(name);
        }
        (Value::Object(patch), current) => {
            let current = current
                .and_then(|current| current.as_object().cloned())
                .unwrap_or_default();
            match objects(schema, current, patch)? {
                Some(object) => live.insert(name.to_owned(), Value::Object(object)),
                None => live.remove(name),
            };
        }
        (Value::Array(patch), current) => {
            let merges = schema
                .patch_strategy
                .as_deref()
                .is_some_and(|strategy| strategy.split(',').any(|part| part == "merge"));
            let current = current
                .and_then(|current| current.as_array().cloned())
                .unwrap_or_default();
            let items = match (merges, &schema.merge_key) {
                (true, Some(key)) => keyed(schema, &current, patch, key, order)?,
                (true, None) => primitives(&current, patch, order),
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

fn primitives(current: &[Value], patch: &[Value], order: Option<&Vec<Value>>) -> Vec<Value> {
    let server_only = current
        .iter()
        .filter(|item| !patch.contains(item))
        .cloned()
        .collect();
    let mut items: Vec<Value> = Vec::new();
    for item in patch {
        if !items.contains(item) {
            items.push(item.clone());
        }
    }
    ordered(items, server_only, current, order, None)
}

fn keyed(
    schema: &Schema,
    current: &[Value],
    patch: &[Value],
    key: &str,
    order: Option<&Vec<Value>>,
) -> Result<Vec<Value>, String> {
    let unknown = Schema::anything();
    let items = schema.resolved().items.as_deref().unwrap_or(&unknown);
    let directive = |item: &Value| item.get("$patch").and_then(Value::as_str).map(str::to_owned);
    if patch
        .iter()
        .any(|item| directive(item).as_deref() == Some("replace"))
    {
        return Ok(patch
            .iter()
            .filter(|item| directive(item).is_none())
            .cloned()
            .collect());
    }
    let mut merged = Vec::new();
    let mut named = Vec::new();
    for item in patch {
        let Some(id) = item.get(key) else {
            return Err(format!(
                "map: {} does not contain declared merge key: {key}",
                go_map(item)
            ));
        };
        let Value::Object(fields) = item else { continue };
        named.push(id.clone());
        let known = current
            .iter()
            .find(|known| known.get(key) == Some(id))
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        merged.extend(objects(items, known, fields)?.map(Value::Object));
    }
    let server_only = current
        .iter()
        .filter(|item| item.get(key).is_none_or(|id| !named.contains(id)))
        .cloned()
        .collect();
    Ok(ordered(merged, server_only, current, order, Some(key)))
}

/// Orders merged items: items of the patch take its order, or the order that it sets; the others stay before the items
/// that they preceded.
fn ordered(
    mut patch: Vec<Value>,
    server_only: Vec<Value>,
    server: &[Value],
    order: Option<&Vec<Value>>,
    key: Option<&str>,
) -> Vec<Value> {
    let id = |item: &Value| key.map_or_else(|| Some(item.clone()), |key| item.get(key).cloned());
    if let Some(order) = order {
        let wanted: Vec<Option<Value>> = order.iter().map(id).collect();
        patch.sort_by_key(|item| wanted.iter().position(|wanted| *wanted == id(item)));
    }
    let place = |item: &Value| server.iter().position(|known| id(known) == id(item));
    let mut out = Vec::new();
    let (mut left, mut right) = (server_only.into_iter().peekable(), patch.into_iter().peekable());
    loop {
        let first = match (left.peek(), right.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(left), Some(right)) => place(left)
                .zip(place(right))
                .is_some_and(|(left, right)| left < right),
        };
        out.extend(if first { left.next() } else { right.next() });
    }
}

/// Formats a map as Go prints it.
pub(crate) fn go_map(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}:{}", go_map(value)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_map).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn cleaned(patch: &Map<String, Value>) -> Map<String, Value> {
    patch
        .iter()
        .filter(|(name, _)| !name.starts_with('$'))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(patch_value: &Value) -> Value {
        let schema = Schema {
            reference: Some("io.k8s.api.core.v1.Pod".to_owned()),
            ..Schema::default()
        };
        let live = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}], "nodeName": "n"}});
        patch(&schema, &live, patch_value.as_object().unwrap()).unwrap()
    }

    #[test]
    fn items_of_keyed_lists_are_merged_by_their_key() {
        let merged = pod(&json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}}));
        assert_eq!(
            merged["spec"]["containers"],
            json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}])
        );
    }

    #[test]
    fn directives_delete_and_replace() {
        let deleted =
            pod(&json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}], "nodeName": null}}));
        assert_eq!(
            deleted,
            json!({"spec": {"containers": [{"name": "b", "image": "1"}]}})
        );
        let replaced = pod(&json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}}));
        assert_eq!(replaced["spec"]["containers"], json!([{"name": "z"}]));
    }
}
