// SPDX-License-Identifier: Apache-2.0
//! Removes fields from an object.

use serde_json::{Map, Value};

use super::{Atom, FieldSet, as_list, as_map, atom, field_schema, item_element, item_schema};
use crate::schema::Schema;

/// Returns `value` without the fields of `set`; `None` if nothing is left.
pub(crate) fn remove(schema: &Schema, value: &Value, set: &FieldSet) -> Option<Value> {
    match atom(schema, Some(value)) {
        Atom::Scalar => Some(value.clone()),
        Atom::AtomicList | Atom::AtomicMap => None,
        Atom::List => {
            let mut kept = Vec::new();
            for item in as_list(Some(value)) {
                let element = item_element(schema, item).unwrap_or_default();
                if set.has(&element) {
                    continue;
                }
                match set.below(&element) {
                    Some(below) => kept.push(remove(item_schema(schema), item, below).unwrap_or(Value::Null)),
                    None => kept.push(item.clone()),
                }
            }
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        Atom::Map => {
            let mut kept = Map::new();
            for (name, value) in as_map(Some(value)).into_iter().flatten() {
                let element = format!("f:{name}");
                if set.has(&element) {
                    continue;
                }
                let value = match set.below(&element) {
                    Some(below) => remove(field_schema(schema, name).0, value, below).unwrap_or(Value::Null),
                    None => value.clone(),
                };
                kept.insert(name.clone(), value);
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
    }
}

/// Adds the declared parent fields of each member: a parent is removed if all fields below it are removed.
pub(crate) fn name_members(schema: &Schema, set: &FieldSet) -> FieldSet {
    let mut out = FieldSet::default();
    for (element, member, below) in set.children() {
        let (inner, declared) = match element.strip_prefix("f:") {
            Some(name) => field_schema(schema, name),
            None if element.starts_with("k:") => (item_schema(schema), false),
            None => (super::unknown(), false),
        };
        out.set_child(
            element,
            member || declared && !below.is_empty(),
            name_members(inner, below),
        );
    }
    out
}
