// SPDX-License-Identifier: Apache-2.0
//! Sets of fields, stored as a tree.
//!
//! A path element is its FieldsV1 text: `f:name`, `k:{"key":"value"}`, `v:"value"`, `i:0`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A set of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet(BTreeMap<String, Node>);

/// The members at and below one path element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    below: FieldSet,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(Node::is_empty)
    }

    /// Adds a path.
    pub(crate) fn insert(&mut self, path: &[String]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        // Most paths exist already; the name is copied only for a new one.
        if !self.0.contains_key(first) {
            self.0.insert(first.clone(), Node::default());
        }
        let Some(node) = self.0.get_mut(first) else { return };
        if rest.is_empty() {
            node.member = true
        } else {
            node.below.insert(rest)
        }
    }

    /// Creates the set of these paths of plain fields.
    pub(crate) fn of(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(&path.iter().map(|name| format!("f:{name}")).collect::<Vec<_>>());
        }
        set
    }

    pub(crate) fn has(&self, element: &str) -> bool {
        self.0.get(element).is_some_and(|node| node.member)
    }

    pub(crate) fn below(&self, element: &str) -> Option<&Self> {
        self.0
            .get(element)
            .map(|node| &node.below)
            .filter(|below| !below.is_empty())
    }

    pub(crate) fn children(&self) -> impl Iterator<Item = (&str, bool, &Self)> {
        self.0
            .iter()
            .map(|(element, node)| (element.as_str(), node.member, &node.below))
    }

    /// Replaces the node of a path element.
    pub(crate) fn set_child(&mut self, element: &str, member: bool, below: Self) {
        let node = Node { member, below };
        if node.is_empty() {
            self.0.remove(element);
        } else {
            self.0.insert(element.to_owned(), node);
        }
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        for (element, node) in &other.0 {
            let mine = out.0.entry(element.clone()).or_default();
            mine.member |= node.member;
            mine.below = mine.below.union(&node.below);
        }
        out
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let both = self.0.iter().filter_map(|(element, node)| {
            let theirs = other.0.get(element)?;
            let node = Node {
                member: node.member && theirs.member,
                below: node.below.intersection(&theirs.below),
            };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Self(both.collect())
    }

    /// Returns the paths that `other` does not contain.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        let left = self.0.iter().filter_map(|(element, node)| {
            let node = match other.0.get(element) {
                Some(theirs) => Node {
                    member: node.member && !theirs.member,
                    below: node.below.difference(&theirs.below),
                },
                None => node.clone(),
            };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Self(left.collect())
    }

    /// Returns the paths that are neither in `other` nor below one of its paths.
    pub(crate) fn outside(&self, other: &Self) -> Self {
        let left = self.0.iter().filter_map(|(element, node)| {
            let node = match other.0.get(element) {
                Some(theirs) if theirs.member => return None,
                Some(theirs) => Node {
                    member: node.member,
                    below: node.below.outside(&theirs.below),
                },
                None => node.clone(),
            };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Self(left.collect())
    }

    /// Returns all paths in readable form: `.spec.containers[name="web"].image`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        for (element, node) in &self.0 {
            if node.member {
                out.push(format!("{prefix}{}", readable(element)));
            }
        }
        for (element, node) in &self.0 {
            if !node.below.0.is_empty() {
                node.below.collect(&format!("{prefix}{}", readable(element)), out);
            }
        }
    }

    /// Serializes the set as FieldsV1.
    pub(crate) fn to_json(&self) -> Value {
        let fields = self.0.iter().map(|(element, node)| {
            let Value::Object(mut below) = node.below.to_json() else {
                unreachable!("a set is written as an object")
            };
            if node.member && !below.is_empty() {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (element.clone(), Value::Object(below))
        });
        Value::Object(fields.collect())
    }

    /// Parses a set from FieldsV1.
    pub(crate) fn from_json(json: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (element, below) in json.as_object()? {
            if element == "." {
                continue;
            }
            let known = ["f:", "k:", "v:", "i:"]
                .iter()
                .any(|prefix| element.starts_with(prefix));
            let fields = below.as_object()?;
            if !known {
                return None;
            }
            let member = fields.is_empty() || fields.contains_key(".");
            set.0.insert(
                element.clone(),
                Node {
                    member,
                    below: Self::from_json(below)?,
                },
            );
        }
        Some(set)
    }
}

pub(super) fn readable(element: &str) -> String {
    match element.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("v:", value)) => format!("[={value}]"),
        Some(("i:", index)) => format!("[{index}]"),
        Some(("k:", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        _ => element.to_owned(),
    }
}
