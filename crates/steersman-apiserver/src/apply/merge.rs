// SPDX-License-Identifier: Apache-2.0
//! Merges two objects.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::{Atom, as_list, as_map, atom, field_schema, item_element, item_schema};
use crate::schema::Schema;

/// Merges `right` into `left`; returns `None` if both are absent or the result is empty.
///
/// # Errors
/// Returns the error of a list item that cannot be identified.
pub(crate) fn merge(
    schema: &Schema,
    left: Option<&Value>,
    right: Option<&Value>,
) -> Result<Option<Value>, String> {
    let kind = match (left, right) {
        (None, None) => return Ok(None),
        (_, Some(right)) if !right.is_null() || left.is_none() => atom(schema, Some(right)),
        (Some(left), _) if !left.is_null() => atom(schema, Some(left)),
        _ => atom(schema, right),
    };
    let leaf = || right.or(left).cloned();
    match kind {
        Atom::Scalar | Atom::AtomicList | Atom::AtomicMap => Ok(leaf()),
        Atom::Map => {
            let (left_map, right_map) = (as_map(left), as_map(right));
            // An explicit null, or an empty map on both sides, is kept unchanged.
            if left_map.is_none_or(Map::is_empty) && right_map.is_none_or(Map::is_empty) {
                return Ok(leaf());
            }
            let names: BTreeSet<&String> = left_map
                .into_iter()
                .flatten()
                .chain(right_map.into_iter().flatten())
                .map(|(name, _)| name)
                .collect();
            let mut out = Map::new();
            for name in names {
                let (left, right) = (
                    left_map.and_then(|map| map.get(name)),
                    right_map.and_then(|map| map.get(name)),
                );
                if let Some(value) = merge(field_schema(schema, name).0, left, right)? {
                    out.insert(name.clone(), value);
                }
            }
            Ok((!out.is_empty()).then_some(Value::Object(out)))
        }
        Atom::List => {
            if as_list(left).is_empty() && as_list(right).is_empty() {
                return Ok(leaf());
            }
            let out = lists(schema, as_list(left), as_list(right))?;
            Ok((!out.is_empty()).then_some(Value::Array(out)))
        }
    }
}

/// Merges two lists. Items of both sides take the order of the right side; other items keep their position between
/// their neighbours.
fn lists(schema: &Schema, left: &[Value], right: &[Value]) -> Result<Vec<Value>, String> {
    let elements = |items: &[Value]| -> Result<Vec<String>, String> {
        let numbered = items.iter().enumerate();
        numbered
            .map(|(index, item)| {
                item_element(schema, item).map_err(|error| format!("element {index}: {error}"))
            })
            .collect()
    };
    let (left_keys, right_keys) = (elements(left)?, elements(right)?);
    let mut right_items: HashMap<&str, &Value> = HashMap::new();
    for (key, item) in right_keys.iter().zip(right) {
        if right_items.insert(key, item).is_some() {
            return Err(format!("duplicate entries for key [{}]", printed(key)));
        }
    }
    let mut left_items: HashMap<&str, Option<&Value>> = HashMap::new();
    for (key, item) in left_keys.iter().zip(left) {
        // A duplicate item is not merged with a new one.
        left_items
            .entry(key)
            .and_modify(|item| *item = None)
            .or_insert(Some(item));
    }
    let mut shared = right_keys
        .iter()
        .filter(|key| left_items.contains_key(key.as_str()));
    let mut next_shared = shared.next();
    let mut merged: BTreeSet<&str> = BTreeSet::new();
    let mut out = Vec::new();
    let items = item_schema(schema);
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            let key = left_keys[l].as_str();
            if key == right_keys[r] {
                merged.insert(key);
                out.extend(merge(items, left_items[key], right_items.get(key).copied())?);
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            if right_items.contains_key(key) && next_shared.is_some_and(|next| next != key) {
                l += 1;
                continue;
            }
        }
        if l < left.len() {
            let key = left_keys[l].as_str();
            if !right_items.contains_key(key) {
                out.extend(merge(items, Some(&left[l]), None)?);
                l += 1;
                continue;
            }
            if merged.contains(key) {
                l += 1;
            }
        }
        if r < right.len() {
            let key = right_keys[r].as_str();
            merged.insert(key);
            out.extend(merge(
                items,
                left_items.get(key).copied().flatten(),
                right_items.get(key).copied(),
            )?);
            r += 1;
            if next_shared.is_some_and(|next| next == key) {
                next_shared = shared.next();
            }
        }
    }
    Ok(out)
}

fn printed(element: &str) -> String {
    let keys: Map<String, Value> =
        serde_json::from_str(element.get(2..).unwrap_or_default()).unwrap_or_default();
    if keys.is_empty() {
        return format!("={}", element.get(2..).unwrap_or_default());
    }
    keys.iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",")
}
