// SPDX-License-Identifier: Apache-2.0
//! The record of an external resource, in an annotation of its parent.

use std::marker::PhantomData;

use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steersman_cluster::{Kind, ObjectExt};
use steersman_core::ObjectKey;
use steersman_runtime::Context;

use super::{ExternalError, ExternalId};

/// Prefix of the annotations.
const PREFIX: &str = "external.steersman.dev";

/// Stored state of an external resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) token: String,
    /// Number of resources that were lost before this one.
    #[serde(default)]
    pub(super) incarnation: u64,
    /// Time of the last create call, or up to the grace period before it.
    pub(super) requested: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
}

impl Record {
    pub(super) fn external_id(&self) -> ExternalId {
        ExternalId {
            token: self.token.clone(),
            id: self.id.clone(),
        }
    }
}

/// The annotation of one external resource, as it was read or written last.
pub(super) struct Slot<'a, K> {
    name: &'a str,
    key: ObjectKey,
    uid: String,
    /// False if the parent has no annotations at all.
    has_annotations: bool,
    /// The stored value.
    value: Option<String>,
    kind: PhantomData<fn() -> K>,
}

impl<'a, K: Kind> Slot<'a, K> {
    pub(super) fn of(parent: &K, name: &'a str) -> Self {
        let metadata = parent.meta();
        let annotations = metadata.annotations.as_ref();
        let value = annotations.and_then(|all| all.get(&format!("{PREFIX}/{name}")));
        Self {
            name,
            key: parent.key(),
            uid: metadata.uid.clone().unwrap_or_default(),
            // The server does not keep an empty map.
            has_annotations: annotations.is_some_and(|all| !all.is_empty()),
            value: value.cloned(),
            kind: PhantomData,
        }
    }

    /// Returns the record, unless it belongs to another parent: a copy of an object has a copy of its annotations.
    pub(super) fn record(&self) -> Option<Record> {
        let record: Record = serde_json::from_str(self.value.as_deref()?).ok()?;
        let is_ours = record.token == self.token(record.incarnation);
        is_ours.then_some(record)
    }

    /// Makes the record of a create call that was not sent yet.
    pub(super) fn intent(&self, incarnation: u64, requested: Timestamp) -> Record {
        Record {
            token: self.token(incarnation),
            incarnation,
            requested,
            id: None,
        }
    }

    fn token(&self, incarnation: u64) -> String {
        format!("{}-{}-{incarnation}", self.uid, self.name)
    }

    /// Stores a record, if the annotation is still the one that was read.
    pub(super) async fn store(&mut self, record: &Record, cx: &Context) -> Result<(), ExternalError> {
        // These members have no maps with keys other than strings.
        let value = serde_json::to_string(record).unwrap_or_default();
        let pointer = format!("/metadata/annotations/{PREFIX}~1{}", self.name);
        let change = match self.has_annotations {
            true => json!([
                {"op": "test", "path": pointer, "value": self.value},
                {"op": "add", "path": pointer, "value": value},
            ]),
            false => json!([
                {"op": "test", "path": "/metadata/annotations", "value": Value::Null},
                {"op": "add", "path": "/metadata/annotations", "value": {format!("{PREFIX}/{}", self.name): value}},
            ]),
        };
        let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": self.uid})];
        operations.extend(change.as_array().cloned().unwrap_or_default());
        let patch =
            serde_json::from_value(Value::Array(operations)).expect("these are operations of a JSON patch");
        let stored = cx.client().patch::<K>(&self.key, &Patch::Json::<()>(patch)).await;
        match stored {
            Ok(_) => {
                (self.value, self.has_annotations) = (Some(value), true);
                Ok(())
            }
            // The server answers a failed test with the same status as an invalid object.
            Err(error) if error.is_invalid() || error.is_conflict() || error.is_not_found() => {
                Err(ExternalError::Outdated {
                    name: self.name.to_owned(),
                })
            }
            Err(source) => Err(ExternalError::Request {
                name: self.name.to_owned(),
                source,
            }),
        }
    }
}
