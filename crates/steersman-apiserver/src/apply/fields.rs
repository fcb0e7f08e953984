// SPDX-License-Identifier: Apache-2.0
//! Computes the set of fields of an object.

use std::collections::HashSet;

use serde_json::Value;

use super::{Atom, FieldSet, as_list, as_map, atom, field_schema, item_element, item_schema};
use crate::schema::Schema;

/// Returns all fields of `value`.
///
/// # Errors
/// Returns the error of a list item that cannot be identified.
pub(crate) fn fields(schema: &Schema, value: &Value) -> Result<FieldSet, String> {
    let mut set = FieldSet::default();
    walk(schema, value, &mut Vec::new(), &mut set)?;
    Ok(set)
}

fn walk(schema: &Schema, value: &Value, path: &mut Vec<String>, set: &mut FieldSet) -> Result<(), String> {
    match atom(schema, Some(value)) {
        Atom::Scalar | Atom::AtomicList | Atom::AtomicMap => set.insert(path),
        Atom::Map => {
            for (name, value) in as_map(Some(value)).into_iter().flatten() {
                let (field, declared) = field_schema(schema, name);
                path.push(format!("f:{name}"));
                walk(field, value, path, set)?;
                let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                if empty || !declared {
                    set.insert(path);
                }
                path.pop();
            }
        }
        Atom::List => {
            let (mut seen, mut twice) = (HashSet::new(), HashSet::new());
            let items = as_list(Some(value));
            let elements = items
                .iter()
                .map(|item| item_element(schema, item))
                .collect::<Result<Vec<_>, _>>()?;
            for element in &elements {
                if !seen.insert(element) {
                    twice.insert(element);
                }
            }
            for (item, element) in items.iter().zip(&elements) {
                path.push(element.clone());
                // A duplicate item is owned as a whole.
                if !twice.contains(element) {
                    walk(item_schema(schema), item, path, set)?;
                }
                set.insert(path);
                path.pop();
            }
        }
    }
    Ok(())
}
