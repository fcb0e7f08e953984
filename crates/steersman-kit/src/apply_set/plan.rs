// SPDX-License-Identifier: Apache-2.0
//! Changes that a reconcile of a set would make. The server computes updates by a dry run, so that defaults and webhooks count.

use std::fmt;

use kube::api::Patch;
use serde_json::{Value, json};
use steersman_cache::{ObjectDetail, Resource};
use steersman_core::ObjectKey;

use super::{
    ApplySetError,
    member::Member,
    run::{SetRun, inventory_of, key_of},
    sweep::Swept,
};
use crate::children::ChildId;

/// Changes that a reconcile of an apply set would make; from [`ApplySets::plan`](crate::ApplySets::plan). It displays as a diff.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApplyPlan {
    /// Changes in the order in which they would be made.
    changes: Vec<PlannedChange>,
}

/// A change of one object.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlannedChange {
    /// Kind of the object.
    pub resource: Resource,
    /// Namespace and name of the object.
    pub key: ObjectKey,
    /// The change.
    pub action: PlannedAction,
}

/// Kind of a change.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PlannedAction {
    /// The object is created.
    Create,
    /// Fields of the object are changed.
    Update(Vec<FieldChange>),
    /// The object left the set and is deleted.
    Delete,
    /// The object belongs to someone else, and is not changed.
    Foreign,
    /// The object cannot be applied because its kind is not installed.
    NotInstalled,
}

/// A change of one field.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FieldChange {
    /// JSON pointer of the field.
    pub pointer: String,
    /// Value before; `None` if the field is added. Hidden for the data of a Secret.
    pub before: Option<Value>,
    /// Value after; `None` if the field is removed. Hidden for the data of a Secret.
    pub after: Option<Value>,
}

impl ApplyPlan {
    /// The changes, in the order in which they would be made.
    #[must_use]
    pub fn changes(&self) -> &[PlannedChange] {
        &self.changes
    }

    /// Returns true if nothing would be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl fmt::Display for ApplyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PlannedChange {
            resource,
            key,
            action,
        } in &self.changes
        {
            let name = format!("{} {key}", resource.kind());
            match action {
                PlannedAction::Create => writeln!(f, "+ {name}")?,
                PlannedAction::Delete => writeln!(f, "- {name}")?,
                PlannedAction::Foreign => writeln!(f, "! {name} belongs to someone else")?,
                PlannedAction::NotInstalled => writeln!(f, "! {name} is of a kind that is not installed")?,
                PlannedAction::Update(fields) => {
                    writeln!(f, "~ {name}")?;
                    for field in fields {
                        writeln!(f, "    {field}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pointer = &self.pointer;
        match (&self.before, &self.after) {
            (None, Some(after)) => write!(f, "+ {pointer}: {after}"),
            (Some(before), None) => write!(f, "- {pointer}: {before}"),
            (before, after) => {
                let text = |value: &Option<Value>| value.as_ref().map_or_else(String::new, Value::to_string);
                write!(f, "~ {pointer}: {} → {}", text(before), text(after))
            }
        }
    }
}

impl SetRun {
    /// Computes the changes of an apply without writing.
    pub(crate) async fn plan(&self, set: &[Box<dyn Member>]) -> Result<ApplyPlan, ApplySetError> {
        let ids = self.ids(set).await?;
        let mut plan = ApplyPlan::default();
        for is_first in [true, false] {
            for (id, member) in ids.iter().zip(set) {
                if key_of(id).0.is_foundation() == is_first
                    && let Some(action) = self.planned(id, &**member).await?
                {
                    plan.add(&id.0, &id.1, action);
                }
            }
        }
        let needed = self.object.completed(inventory_of(&ids));
        let stored = self.object.read(&self.members, false).await?;
        let recorded = stored.inventory.merged(&needed);
        let staying = ids.iter().map(key_of).collect();
        let found = self
            .sweep(&recorded, &needed, &staying)
            .find(&mut Swept::default())
            .await;
        let (last, first): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|((kind, _), _)| kind.is_foundation());
        for ((_, key), (resource, metadata)) in first.into_iter().chain(last) {
            if metadata.deletion_timestamp.is_none() {
                plan.add(&resource, &key, PlannedAction::Delete);
            }
        }
        Ok(plan)
    }

    async fn planned(
        &self,
        id: &ChildId,
        member: &dyn Member,
    ) -> Result<Option<PlannedAction>, ApplySetError> {
        let desired = member.desired(&self.members, id)?;
        let live = self.members.client().live();
        let found = match live.of(&id.0).get_object(&id.1).await {
            Err(error) if error.is_absent() => return Ok(Some(PlannedAction::NotInstalled)),
            found => found?,
        };
        let Some(found) = found else {
            return Ok(Some(PlannedAction::Create));
        };
        if !self.members.is_own(&desired, &found) {
            return Ok(Some(PlannedAction::Foreign));
        }
        let mut body = desired.kept.clone();
        body["metadata"]["uid"] = json!(found.uid());
        let dry = self.members.client().dry_run();
        let dry = dry.of_as::<Value>(&id.0, ObjectDetail::Full);
        let after = dry.patch(&id.1, &Patch::Apply(&body)).await?;
        let before: Value = serde_json::from_slice(found.bytes()).unwrap_or_default();
        let mut fields = Vec::new();
        compare("", Some(&before), Some(&after), &mut fields);
        if (id.0.group(), id.0.kind()) == ("", "Secret") {
            fields.iter_mut().for_each(FieldChange::hide_data);
        }
        Ok((!fields.is_empty()).then_some(PlannedAction::Update(fields)))
    }
}

impl ApplyPlan {
    fn add(&mut self, resource: &Resource, key: &ObjectKey, action: PlannedAction) {
        self.changes.push(PlannedChange {
            resource: resource.clone(),
            key: key.clone(),
            action,
        });
    }
}

impl FieldChange {
    /// Hides the values of the data of a Secret.
    fn hide_data(&mut self) {
        if self.pointer.starts_with("/data") || self.pointer.starts_with("/stringData") {
            for value in [&mut self.before, &mut self.after].into_iter().flatten() {
                *value = json!("(hidden)");
            }
        }
    }
}

/// Fields that every write changes.
const BOOKKEEPING: [&str; 3] = [
    "/metadata/managedFields",
    "/metadata/resourceVersion",
    "/metadata/generation",
];

fn compare(pointer: &str, before: Option<&Value>, after: Option<&Value>, fields: &mut Vec<FieldChange>) {
    if before == after || BOOKKEEPING.contains(&pointer) {
        return;
    }
    if let (Some(Value::Object(before)), Some(Value::Object(after))) = (before, after) {
        let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in names {
            let escaped = name.replace('~', "~0").replace('/', "~1");
            compare(
                &format!("{pointer}/{escaped}"),
                before.get(name),
                after.get(name),
                fields,
            );
        }
        return;
    }
    fields.push(FieldChange {
        pointer: pointer.to_owned(),
        before: before.cloned(),
        after: after.cloned(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(before: &Value, after: &Value) -> Vec<String> {
        let mut fields = Vec::new();
        compare("", Some(before), Some(after), &mut fields);
        fields.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_diff_names_each_changed_field() {
        let before = json!({"metadata": {"resourceVersion": "1"}, "data": {"a/b": "1", "c": "2"}});
        let after = json!({"metadata": {"resourceVersion": "2"}, "data": {"a/b": "3", "d": "4"}});
        let expected = [
            r#"~ /data/a~1b: "1" → "3""#,
            r#"- /data/c: "2""#,
            r#"+ /data/d: "4""#,
        ];
        assert_eq!(changes(&before, &after), expected);
        assert_eq!(changes(&before, &before), [""; 0]);
    }

    #[test]
    fn the_data_of_a_secret_is_hidden() {
        let mut field = FieldChange {
            pointer: "/data/token".to_owned(),
            before: None,
            after: Some(json!("c2VjcmV0")),
        };
        field.hide_data();
        assert_eq!(field.to_string(), r#"+ /data/token: "(hidden)""#);
    }
}
