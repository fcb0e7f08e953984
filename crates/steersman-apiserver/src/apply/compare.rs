// SPDX-License-Identifier: Apache-2.0
//! Compares two objects field by field.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Atom, FieldSet, as_list, as_map, atom, field_schema, item_element, item_schema};
use crate::schema::Schema;

/// The fields that differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) removed: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) added: FieldSet,
}

impl Comparison {
    /// Removes `fields` and all fields below them.
    pub(crate) fn outside(&self, fields: &FieldSet) -> Self {
        Self {
            removed: self.removed.outside(fields),
            modified: self.modified.outside(fields),
            added: self.added.outside(fields),
        }
    }
}

/// Compares `left` with its replacement `right`.
pub(crate) fn compare(schema: &Schema, left: &Value, right: &Value) -> Comparison {
    let mut walker = Walker {
        comparison: Comparison::default(),
        path: Vec::new(),
    };
    walker.walk(schema, Some(left), Some(right));
    walker.comparison
}

struct Walker {
    comparison: Comparison,
    path: Vec<String>,
}

impl Walker {
    fn walk(&mut self, schema: &Schema, left: Option<&Value>, right: Option<&Value>) {
        let kinds = (atom(schema, left), atom(schema, right));
        let leaf = match (left, right) {
            (None, None) => return,
            (_, None) => self.atom(kinds.0, schema, left, right),
            (None, _) => self.atom(kinds.1, schema, left, right),
            _ if kinds.0 == kinds.1 => self.atom(kinds.1, schema, left, right),
            _ => {
                // The type of the value changed: one side counts as removed, the other as added.
                self.atom(kinds.0, schema, left, right);
                self.atom(kinds.1, schema, left, right)
            }
        };
        if !leaf {
            match (left, right) {
                (None, _) => self.comparison.added.insert(&self.path),
                (_, None) => self.comparison.removed.insert(&self.path),
                _ => {}
            }
        }
    }

    /// Compares the values as one atom; returns true if they were compared as a whole.
    fn atom(&mut self, kind: Atom, schema: &Schema, left: Option<&Value>, right: Option<&Value>) -> bool {
        match kind {
            Atom::Map => {
                let (left_map, right_map) = (as_map(left), as_map(right));
                if left_map.is_none_or(Map::is_empty) && right_map.is_none_or(Map::is_empty) {
                    self.leaf(left, right);
                    return true;
                }
                self.maps(schema, left_map, right_map);
                false
            }
            Atom::List => {
                let (left_list, right_list) = (as_list(left), as_list(right));
                if left_list.is_empty() && right_list.is_empty() {
                    self.leaf(left, right);
                    return true;
                }
                self.lists(schema, left_list, right_list);
                false
            }
            Atom::Scalar | Atom::AtomicList | Atom::AtomicMap => {
                self.leaf(left, right);
                true
            }
        }
    }

    fn leaf(&mut self, left: Option<&Value>, right: Option<&Value>) {
        match (left, right) {
            (None, _) => self.comparison.added.insert(&self.path),
            (_, None) => self.comparison.removed.insert(&self.path),
            (Some(left), Some(right)) if left != right => self.comparison.modified.insert(&self.path),
            _ => {}
        }
    }

    fn maps(
        &mut self,
        schema: &Schema,
        left: Option<&Map<String, Value>>,
        right: Option<&Map<String, Value>>,
    ) {
        for (name, value) in left.into_iter().flatten() {
            let other = right.and_then(|right| right.get(name));
            // Equal subtrees contain no differences.
            if other == Some(value) {
                continue;
            }
            self.path.push(format!("f:{name}"));
            self.walk(field_schema(schema, name).0, Some(value), other);
            self.path.pop();
        }
        for (name, value) in right.into_iter().flatten() {
            if left.is_none_or(|left| !left.contains_key(name)) {
                self.path.push(format!("f:{name}"));
                self.walk(field_schema(schema, name).0, None, Some(value));
                self.path.pop();
            }
        }
    }

    fn lists(&mut self, schema: &Schema, left: &[Value], right: &[Value]) {
        let mut pairs: BTreeMap<String, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for item in left {
            if let Ok(element) = item_element(schema, item) {
                pairs.entry(element).or_default().0.push(item);
            }
        }
        for item in right {
            if let Ok(element) = item_element(schema, item) {
                pairs.entry(element).or_default().1.push(item);
            }
        }
        let items = item_schema(schema);
        for (element, (left, right)) in pairs {
            self.path.push(element);
            match (&left[..], &right[..]) {
                ([] | [_], [] | [_]) => self.walk(items, left.first().copied(), right.first().copied()),
                ([_, _, ..], [_, _, ..]) => {
                    if left != right {
                        self.comparison.modified.insert(&self.path);
                    }
                }
                ([_, _, ..], _) => {
                    if let Some(first) = right.first() {
                        self.walk(items, None, Some(first));
                    }
                    self.comparison.removed.insert(&self.path);
                }
                _ => {
                    if let Some(first) = left.first() {
                        self.walk(items, Some(first), None);
                    }
                    self.comparison.added.insert(&self.path);
                }
            }
            self.path.pop();
        }
    }
}
