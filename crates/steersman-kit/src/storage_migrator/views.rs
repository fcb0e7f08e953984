// SPDX-License-Identifier: Apache-2.0
//! Fields that a rewrite would remove, for CRDs without a conversion webhook.
//!
//! With the strategy `None`, the API server removes the fields that the storage version does not have whenever it writes an
//! object, at whichever version a client sends it; and the fields that a version does not have when it reads at that version.
//! An object that was stored at an older version therefore keeps the fields of that version until its next write. This module
//! predicts that loss, by the pruning rules of structural schemas.

use serde_json::{Map, Value};

/// An object as one version shows it, and the schema of that version.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) schema: &'a Value,
    pub(super) object: Value,
}

/// Returns the path of a field that some view loses when the object is written as the first view shows it, or `None` if no view
/// changes. Defaults that the storage version adds are no change.
pub(super) fn lost_field(storage: &Value, views: &[View<'_>]) -> Option<String> {
    let mut stored = content(&views.first()?.object);
    prune(&mut stored, storage);
    views.iter().find_map(|view| {
        let mut shown = stored.clone();
        prune(&mut shown, view.schema);
        difference(&content(&view.object), &shown)
    })
}

/// Returns the path of the first difference, such as `spec.size`.
fn difference(before: &Value, after: &Value) -> Option<String> {
    if before == after {
        return None;
    }
    let within = |name: &str, before: &Value, after: Option<&Value>| {
        let rest = difference(before, after.unwrap_or(&Value::Null))?;
        Some(if rest.is_empty() {
            name.to_owned()
        } else {
            format!("{name}.{rest}")
        })
    };
    let inner = match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let mut members = before.iter();
            members.find_map(|(name, value)| within(name, value, after.get(name)))
        }
        (Value::Array(before), Value::Array(after)) => {
            let mut items = before.iter().enumerate();
            items.find_map(|(index, value)| within(&index.to_string(), value, after.get(index)))
        }
        _ => None,
    };
    Some(inner.unwrap_or_default())
}

/// Returns the members of an object that depend on the version.
fn content(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(members) = object.as_object_mut() {
        for common in ["apiVersion", "kind", "metadata"] {
            members.remove(common);
        }
    }
    object
}

fn is_set(schema: &Value, extension: &str) -> bool {
    schema.get(extension) == Some(&Value::Bool(true))
}

/// Schema of a member, if the schema of its object has it.
fn member<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    let own = schema
        .get("properties")
        .and_then(|properties| properties.get(name));
    own.or_else(|| {
        let additional = schema.get("additionalProperties");
        additional.filter(|additional| **additional != Value::Bool(false))
    })
}

/// Removes the fields that the schema does not have.
fn prune(value: &mut Value, schema: &Value) {
    // A version without a schema keeps everything.
    if schema.is_null() {
        return;
    }
    match value {
        Value::Object(members) => {
            let keeps_unknown = is_set(schema, "x-kubernetes-preserve-unknown-fields");
            let is_embedded = is_set(schema, "x-kubernetes-embedded-resource");
            let is_header = |name: &str| is_embedded && matches!(name, "apiVersion" | "kind" | "metadata");
            members.retain(|name, _| keeps_unknown || is_header(name) || member(schema, name).is_some());
            prune_members(members, schema);
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items").filter(|schema| schema.is_object()) {
                items.iter_mut().for_each(|item| prune(item, schema));
            }
        }
        _ => {}
    }
}

fn prune_members(members: &mut Map<String, Value>, schema: &Value) {
    for (name, value) in members {
        // `additionalProperties: true` has no schema for the values.
        if let Some(schema) = member(schema, name).filter(|schema| schema.is_object()) {
            prune(value, schema);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(spec: &Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}})
    }

    /// The lost field of an object that these versions show; the first one is the storage version.
    fn lost(beta: (&Value, Value), alpha: (&Value, Value)) -> Option<String> {
        let view = |(schema, spec)| View {
            schema,
            object: json!({"apiVersion": "any", "metadata": {"name": "one"}, "spec": spec}),
        };
        lost_field(beta.0, &[view(beta), view(alpha)])
    }

    #[test]
    fn a_field_that_only_the_old_version_has_is_lost() {
        let alpha = schema(&json!({"size": {"type": "integer"}, "color": {"type": "string"}}));
        let beta = schema(&json!({"replicas": {"type": "integer"}, "color": {"type": "string"}}));
        let same = json!({"color": "red"});
        assert_eq!(lost((&beta, same.clone()), (&alpha, same.clone())), None);
        let new = json!({"color": "red", "replicas": 1});
        assert_eq!(lost((&beta, new), (&alpha, same.clone())), None);
        let old = json!({"color": "red", "size": 1});
        assert_eq!(lost((&beta, same), (&alpha, old)).as_deref(), Some("spec.size"));
    }

    #[test]
    fn looks_into_lists_maps_and_preserved_fields() {
        let item = |fields: Value| json!({"type": "object", "properties": fields});
        let list = |item: Value| schema(&json!({"list": {"type": "array", "items": item}}));
        let alpha = list(item(json!({"a": {"type": "string"}, "b": {"type": "string"}})));
        let beta = list(item(json!({"a": {"type": "string"}})));
        let (new, old) = (
            json!({"list": [{"a": "1"}]}),
            json!({"list": [{"a": "1", "b": "2"}]}),
        );
        let found = lost((&beta, new), (&alpha, old.clone()));
        assert_eq!(found.as_deref(), Some("spec.list.0.b"));
        let any = schema(&json!({"list": {"x-kubernetes-preserve-unknown-fields": true}}));
        assert_eq!(lost((&any, old.clone()), (&alpha, old)), None);
        let map = schema(&json!({"map": {"additionalProperties": item(json!({"a": {"type": "string"}}))}}));
        let wider = schema(&json!({"map": {"additionalProperties": true}}));
        let (narrow, wide) = (
            json!({"map": {"k": {"a": "1"}}}),
            json!({"map": {"k": {"a": "1", "b": 2}}}),
        );
        let found = lost((&map, narrow), (&wider, wide));
        assert_eq!(found.as_deref(), Some("spec.map.k.b"));
    }
}
