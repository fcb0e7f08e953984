// SPDX-License-Identifier: Apache-2.0
//! The entries of `metadata.managedFields`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::apply::FieldSet;

/// The operation by which a manager owns its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The identity of a manager. An applier has one entry for all versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Manager {
    pub(super) operation: Operation,
    pub(super) name: String,
    /// Empty for appliers.
    pub(super) api_version: String,
    pub(super) subresource: String,
}

impl Manager {
    /// Returns the name that conflicts show.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text = format!("{text} with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text = format!("{text} using {}", self.api_version);
        }
        text
    }
}

/// The fields that a manager owns.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) api_version: String,
    pub(super) time: Option<String>,
    pub(super) set: FieldSet,
}

/// All managers of an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Managers(pub(super) BTreeMap<Manager, Entry>);

impl Managers {
    /// Parses the entries; returns `None` if one of them is invalid.
    pub(super) fn decode(entries: &Value) -> Option<Self> {
        let mut managers = Self::default();
        for entry in entries.as_array()? {
            let text = |key: &str| {
                entry
                    .get(key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let operation = match text("operation").as_str() {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return None,
            };
            if text("fieldsType") != "FieldsV1" {
                return None;
            }
            let set = FieldSet::from_json(entry.get("fieldsV1").unwrap_or(&json!({})))?;
            let api_version = text("apiVersion");
            let manager = Manager {
                operation,
                name: text("manager"),
                api_version: if operation == Operation::Update {
                    api_version.clone()
                } else {
                    String::new()
                },
                subresource: text("subresource"),
            };
            let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
            managers.0.insert(
                manager,
                Entry {
                    api_version,
                    time,
                    set,
                },
            );
        }
        Some(managers)
    }

    /// Serializes the entries in the order of the real server; returns `None` if there are none.
    pub(super) fn encode(&self) -> Option<Value> {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_by(|(a, x), (b, y)| {
            let key = |manager: &Manager, entry: &Entry| {
                (
                    manager.operation,
                    entry.time.clone(),
                    manager.name.clone(),
                    entry.api_version.clone(),
                )
            };
            key(a, x)
                .cmp(&key(b, y))
                .then_with(|| a.subresource.cmp(&b.subresource))
        });
        let encoded: Vec<Value> = entries
            .into_iter()
            .map(|(manager, entry)| {
                let mut out = json!({
                    "manager": manager.name, "operation": manager.operation.name(), "apiVersion": entry.api_version,
                    "fieldsType": "FieldsV1", "fieldsV1": entry.set.to_json(),
                });
                if let Some(time) = &entry.time {
                    out["time"] = json!(time);
                }
                if !manager.subresource.is_empty() {
                    out["subresource"] = json!(manager.subresource);
                }
                out
            })
            .collect();
        (!encoded.is_empty()).then_some(Value::Array(encoded))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Retains the managers for which `keep` returns true; `keep` can change their sets.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Manager, &str, &mut FieldSet) -> bool) {
        self.0
            .retain(|manager, entry| keep(manager, &entry.api_version, &mut entry.set));
    }

    /// Adds fields to a manager.
    pub(super) fn extend(&mut self, manager: Manager, set: &FieldSet, now: &str) {
        let api_version = manager.api_version.clone();
        let entry = self.0.entry(manager).or_insert_with(|| Entry {
            api_version,
            time: None,
            set: FieldSet::default(),
        });
        entry.set = entry.set.union(set);
        entry.time = Some(now.to_owned());
    }

    /// Sets the fields of an applier; returns its previous set.
    pub(super) fn replace(
        &mut self,
        manager: &Manager,
        api_version: &str,
        set: FieldSet,
    ) -> Option<FieldSet> {
        let time = self.time(manager).map(str::to_owned);
        let entry = Entry {
            api_version: api_version.to_owned(),
            time,
            set,
        };
        self.0.insert(manager.clone(), entry).map(|old| old.set)
    }

    /// Removes fields from one manager.
    pub(super) fn strip(&mut self, manager: &Manager, fields: &FieldSet) {
        if let Some(entry) = self.0.get_mut(manager) {
            entry.set = entry.set.difference(fields);
            if entry.set.is_empty() {
                self.0.remove(manager);
            }
        }
    }

    pub(super) fn time(&self, manager: &Manager) -> Option<&str> {
        self.0.get(manager)?.time.as_deref()
    }

    pub(super) fn stamp(&mut self, manager: &Manager, now: &str) {
        if let Some(entry) = self.0.get_mut(manager) {
            entry.time = Some(now.to_owned());
        }
    }

    /// Returns all owned fields.
    pub(super) fn all(&self) -> FieldSet {
        self.0
            .values()
            .fold(FieldSet::default(), |all, entry| all.union(&entry.set))
    }

    /// Merges the oldest update managers until at most `most` are left.
    pub(super) fn cap(&mut self, most: usize) {
        let mut updaters: Vec<Manager> = self
            .0
            .keys()
            .filter(|manager| manager.operation == Operation::Update)
            .cloned()
            .collect();
        if updaters.len() <= most {
            return;
        }
        updaters.sort_by_key(|manager| (self.time(manager).map(str::to_owned), manager.clone()));
        let mut left = updaters.len();
        let mut first_of: BTreeMap<String, Manager> = BTreeMap::new();
        for manager in updaters {
            if left <= most {
                break;
            }
            let version = manager.api_version.clone();
            let Some(first) = first_of.get(&version).cloned() else {
                first_of.insert(version, manager);
                continue;
            };
            let bucket = Manager {
                operation: Operation::Update,
                name: "ancient-changes".to_owned(),
                api_version: version,
                subresource: String::new(),
            };
            if !self.0.contains_key(&bucket)
                && let Some(entry) = self.0.remove(&first)
            {
                self.0.insert(bucket.clone(), entry);
            }
            if let Some(entry) = self.0.remove(&manager)
                && let Some(ancient) = self.0.get_mut(&bucket)
            {
                ancient.set = ancient.set.union(&entry.set);
                ancient.time = entry.time;
            }
            left -= 1;
        }
    }
}
