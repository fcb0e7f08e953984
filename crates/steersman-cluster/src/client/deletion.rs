// SPDX-License-Identifier: Apache-2.0
//! Deletes one object and interprets the answer.

use http::Method;
use kube::api::DeleteParams;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use steersman_core::ObjectKey;

use super::{Client, KindClient, answer, kind::encode, request::RequestPlan};
use crate::{Error, Operation};

/// Result of a deletion.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "an object is deleted, or it still exists")]
pub enum Deletion<K> {
    /// The object is deleted.
    Done,
    /// The deletion has started: finalizers or a grace period keep the object, which now has this state.
    Begun(Box<K>),
}

impl<K: DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::delete`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete(&self, key: &ObjectKey, mut options: DeleteParams) -> Result<Deletion<K>, Error> {
        let call = self.on("delete", key);
        options.dry_run |= self.client.0.writes.dry_run;
        let body = encode(&call, &options)?;
        let plan = RequestPlan::of_object(Method::DELETE, &call)?.carrying_json(body);
        let json = self.client.exchange(plan).await?;
        match self.client.deleted(&call, &json, options.dry_run) {
            true => Ok(Deletion::Done),
            false => Ok(Deletion::Begun(Box::new(answer::decode(&call, &json)?))),
        }
    }

    /// As [`Client::delete_if_exists`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_if_exists(
        &self,
        key: &ObjectKey,
        options: DeleteParams,
    ) -> Result<Deletion<K>, Error> {
        match self.delete(key, options).await {
            Err(error) if error.is_not_found() && !error.is_absent() => Ok(Deletion::Done),
            result => result,
        }
    }
}

impl Client {
    /// Reports whether the object is deleted according to the answer to a deletion, and updates the cache.
    fn deleted(&self, call: &Operation, json: &[u8], is_dry: bool) -> bool {
        let Some(answer) = WriteAnswer::read(json) else {
            return false;
        };
        let is_gone = answer.is_gone();
        match (is_dry, is_gone) {
            (true, _) => {}
            (false, true) => self.is_gone(call, &answer),
            (false, false) => self.wrote(call, json),
        }
        is_gone
    }

    /// Removes the object from cached reads.
    pub(super) fn is_gone(&self, call: &Operation, answer: &WriteAnswer<'_>) {
        let key = ObjectKey::new(call.namespace(), call.name());
        if !answer.uid().is_empty() {
            let cache = self.0.cluster.cache();
            cache.deleted(call.resource(), &key, answer.uid(), None);
        }
    }
}

/// The answer to a write: an object, or, for a deletion that is complete, a status. For some kinds the server answers a
/// complete deletion with the object too.
pub(super) struct WriteAnswer<'a> {
    json: &'a [u8],
    head: Head,
}

#[derive(Deserialize)]
struct Head {
    kind: Option<String>,
    #[serde(default)]
    metadata: Meta,
    details: Option<kube::core::response::StatusDetails>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    uid: String,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
}

/// A field of any shape.
#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    spec: Value,
}

impl<'a> WriteAnswer<'a> {
    pub(super) fn read(json: &'a [u8]) -> Option<Self> {
        let head = serde_json::from_slice(json).ok()?;
        Some(Self { json, head })
    }

    pub(super) fn kind(&self) -> Option<&str> {
        self.head.kind.as_deref()
    }

    /// Reports whether the write removed the last finalizer, and so deleted the object. The server then answers with
    /// the object as it would have been, at its previous resource version.
    pub(super) fn was_last(&self) -> bool {
        self.head.metadata.deletion_timestamp.is_some() && self.is_gone()
    }

    fn is_status(&self) -> bool {
        self.kind() == Some("Status")
    }

    /// Reports whether the object is deleted according to this answer to a deletion.
    fn is_gone(&self) -> bool {
        let metadata = &self.head.metadata;
        let is_over =
            metadata.deletion_timestamp.is_none() || metadata.deletion_grace_period_seconds == Some(0);
        self.is_status() || (is_over && !self.has_finalizers())
    }

    fn has_finalizers(&self) -> bool {
        let in_metadata = self.head.metadata.finalizers.iter().flatten().count();
        // A namespace has its finalizers in `spec`.
        let in_spec = || {
            let body: Option<Body> = serde_json::from_slice(self.json).ok();
            body.is_some_and(|body| {
                body.spec["finalizers"]
                    .as_array()
                    .is_some_and(|all| !all.is_empty())
            })
        };
        in_metadata > 0 || in_spec()
    }

    fn uid(&self) -> &str {
        let of_status = self.head.details.as_ref().map(|details| details.uid.as_str());
        of_status
            .filter(|_| self.is_status())
            .unwrap_or(&self.head.metadata.uid)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_gone(json: &Value) -> bool {
        WriteAnswer::read(json.to_string().as_bytes()).unwrap().is_gone()
    }

    #[test]
    fn the_response_to_a_deletion_shows_whether_it_is_complete() {
        let now = "2030-01-01T00:00:00Z";
        assert!(is_gone(
            &json!({"kind": "Status", "status": "Success", "details": {"uid": "1"}})
        ));
        // A PersistentVolumeClaim without finalizers.
        assert!(is_gone(
            &json!({"kind": "PersistentVolumeClaim", "metadata": {"uid": "1"}})
        ));
        // A Pod with and without a grace period.
        let pod =
            |grace| json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": grace}});
        assert!(is_gone(&pod(0)));
        assert!(!is_gone(&pod(30)));
        let held =
            json!({"deletionTimestamp": now, "deletionGracePeriodSeconds": 0, "finalizers": ["a.b/c"]});
        assert!(!is_gone(&json!({"metadata": held})));
        // A namespace.
        let over = json!({"deletionTimestamp": now, "deletionGracePeriodSeconds": 0});
        assert!(!is_gone(
            &json!({"metadata": over, "spec": {"finalizers": ["kubernetes"]}})
        ));
        // A custom resource.
        for spec in [json!(null), json!("text"), json!({"finalizers": 7}), json!([1])] {
            assert!(is_gone(&json!({"metadata": over, "spec": spec})), "{spec}");
        }
    }

    #[test]
    fn a_write_completes_only_a_pending_deletion() {
        let was_last = |json: Value| WriteAnswer::read(json.to_string().as_bytes()).unwrap().was_last();
        let now = "2030-01-01T00:00:00Z";
        assert!(was_last(
            json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": 0}})
        ));
        assert!(!was_last(json!({"metadata": {"uid": "1"}})));
        assert!(!was_last(
            json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": 30}})
        ));
    }

    #[test]
    fn reads_the_uid_of_the_object() {
        let uid = |json: Value| {
            WriteAnswer::read(json.to_string().as_bytes())
                .unwrap()
                .uid()
                .to_owned()
        };
        assert_eq!(uid(json!({"kind": "Status", "details": {"uid": "1"}})), "1");
        assert_eq!(uid(json!({"kind": "Pod", "metadata": {"uid": "2"}})), "2");
        assert_eq!(uid(json!({"kind": "Status"})), "");
    }
}
