// SPDX-License-Identifier: Apache-2.0
//! Creation of a child, such that later applies own its fields.
//!
//! Server-side apply has no precondition "only if absent": an apply to a name that is taken changes the object that has it. So a
//! child is created by POST, which the server rejects if the name is taken. POST makes the fields owned by the operation
//! `Update`, and an apply does not remove fields of that operation. So the entry in `managedFields` is changed to the operation
//! `Apply` afterwards.

use std::sync::Arc;

use kube::{api::Patch, core::DynamicObject};
use serde_json::{Value, json};
use steersman_cache::Object;
use steersman_cluster::Error;

use super::{ChildError, Children, Desired, TRIES, describe};
use crate::projection;

impl Children {
    /// Creates the child and takes over its fields.
    pub(super) async fn create(&self, desired: &Desired) -> Result<Arc<Object>, ChildError> {
        let encode = |source| ChildError::Encode {
            child: describe(desired.resource(), desired.key()),
            source,
        };
        let body: DynamicObject = serde_json::from_value(desired.whole.clone()).map_err(encode)?;
        let created = self.objects(desired).create(&body).await?;
        let created = serde_json::to_value(created).map_err(encode)?;
        let (mut answer, is_retried) = self.take_over(desired, created).await?;
        if is_retried {
            // Another client wrote the object before its fields were taken over, and can own some of them now.
            let uid = answer.pointer("/metadata/uid").and_then(Value::as_str);
            let uid = uid.unwrap_or_default().to_owned();
            answer = self.apply(desired, &uid).await?;
        }
        let object = self.remember(desired, &answer).await?;
        object.ok_or_else(|| ChildError::Contended {
            child: describe(desired.resource(), desired.key()),
        })
    }

    /// Changes the entry of the create in `managedFields` to the operation `Apply`, and returns the answer.
    ///
    /// Other clients write meanwhile, which moves the entries: the patch tests the entry, and is made anew from a live read if
    /// the test fails. The flag is true if that happened.
    pub(super) async fn take_over(
        &self,
        desired: &Desired,
        mut object: Value,
    ) -> Result<(Value, bool), ChildError> {
        let values = self.values(desired);
        let uid = object.pointer("/metadata/uid").cloned();
        for attempt in 0..TRIES {
            let is_retried = attempt > 0;
            let Some(operations) = self.takeover_of(&object, &desired.ignored) else {
                return Ok((object, is_retried));
            };
            let patch = serde_json::from_value(operations).expect("these are operations of a JSON patch");
            let error = match values.patch(desired.key(), &Patch::Json::<()>(patch)).await {
                Ok(answer) => return Ok((answer, is_retried)),
                Err(error) => error,
            };
            if !(error.is_invalid() || error.is_conflict()) {
                return Err(error.into());
            }
            match self.live_value(desired).await? {
                Some(newer) if newer.pointer("/metadata/uid").cloned() == uid => object = newer,
                _ => break,
            }
        }
        Err(ChildError::Contended {
            child: describe(desired.resource(), desired.key()),
        })
    }

    /// Returns true if an object has an entry of the create that was not taken over.
    pub(super) fn has_created_entry(&self, object: &Value) -> bool {
        projection::entries(object).any(|entry| self.ownership.is_created_entry(entry, &self.manager))
    }

    /// Returns the patch that turns the entry of the create into one of an apply.
    fn takeover_of(&self, object: &Value, ignored: &[String]) -> Option<Value> {
        let path = |index: usize| format!("/metadata/managedFields/{index}");
        let entries: Vec<&Value> = projection::entries(object).collect();
        let is_created = |entry: &&Value| self.ownership.is_created_entry(entry, &self.manager);
        let created = entries.iter().position(is_created)?;
        let applied = entries
            .iter()
            .position(|entry| projection::is_entry(entry, &self.manager, "Apply"));
        let mut fields = entries[created].get("fieldsV1").cloned().unwrap_or_default();
        for pointer in ignored {
            projection::remove_owned(&mut fields, pointer);
        }
        let kept = applied.unwrap_or(created);
        if let Some(own) = applied.and_then(|index| entries[index].get("fieldsV1")) {
            projection::add_fields(&mut fields, own);
        }
        let mut entry = entries[kept].clone();
        entry["operation"] = json!("Apply");
        entry["fieldsV1"] = fields;
        let mut operations = vec![
            json!({"op": "test", "path": "/metadata/uid", "value": object.pointer("/metadata/uid")}),
            json!({"op": "test", "path": path(created), "value": entries[created]}),
            json!({"op": "test", "path": path(kept), "value": entries[kept]}),
            json!({"op": "replace", "path": path(kept), "value": entry}),
        ];
        if kept != created {
            operations.push(json!({"op": "remove", "path": path(created)}));
        }
        Some(Value::Array(operations))
    }

    /// Reads the object with its `managedFields` from the server.
    pub(super) async fn live_value(&self, desired: &Desired) -> Result<Option<Value>, Error> {
        let live = self.client.live();
        let values = live.of_as::<Value>(desired.resource(), steersman_cache::ObjectDetail::Full);
        let found = values.get(desired.key()).await?;
        Ok(found.map(Arc::unwrap_or_clone))
    }
}
