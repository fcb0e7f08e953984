// SPDX-License-Identifier: Apache-2.0
//! Deleting one object, and what the answer says about it.

use http::Method;
use kube::api::DeleteParams;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use steersman_core::ObjectKey;

use super::{Client, KindClient, answer, kind::encode, request::Plan};
use crate::{Call, Error};

/// What a deletion has come to.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "an object is gone, or it is still there")]
pub enum Deletion<K> {
    /// It is gone.
    Done,
    /// It has begun: finalizers or time for a graceful end keep the object, which is this now.
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
        let plan = Plan::of_object(Method::DELETE, &call)?.carrying_json(body);
        let json = self.client.exchange(plan).await?;
        match self.client.deleted(&call, &json, options.dry_run) {
            true => Ok(Deletion::Done),
            false => Ok(Deletion::Begun(Box::new(answer::decode(&call, &json)?))),
        }
    }
}

impl Client {
    /// Whether the answer to a deletion says that the object is gone. Readers of the cache see what it says.
    fn deleted(&self, call: &Call, json: &[u8], is_dry: bool) -> bool {
        let Ok(answer) = serde_json::from_slice::<Deleted>(json) else {
            return false;
        };
        let is_gone = answer.is_gone();
        if is_dry {
            return is_gone;
        }
        if !is_gone {
            self.wrote(call, json);
            return false;
        }
        let key = ObjectKey::new(call.namespace(), call.name());
        if !answer.uid().is_empty() {
            let cache = self.0.cluster.cache();
            cache.deleted(call.resource(), &key, answer.uid(), None);
        }
        is_gone
    }
}

/// What a server answers to a deletion: a status if the object is gone; else the object, which with some kinds may be
/// gone as well.
#[derive(Deserialize)]
struct Deleted {
    kind: Option<String>,
    #[serde(default)]
    metadata: DeletedMeta,
    #[serde(default)]
    spec: DeletedSpec,
    details: Option<kube::core::response::StatusDetails>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeletedMeta {
    uid: String,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Vec<String>,
}

/// Of a namespace, which has finalizers here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DeletedSpec {
    finalizers: Vec<Value>,
}

impl Deleted {
    fn is_status(&self) -> bool {
        self.kind.as_deref() == Some("Status")
    }

    fn is_gone(&self) -> bool {
        let metadata = &self.metadata;
        let has_finalizers = !metadata.finalizers.is_empty() || !self.spec.finalizers.is_empty();
        let is_over =
            metadata.deletion_timestamp.is_none() || metadata.deletion_grace_period_seconds == Some(0);
        self.is_status() || (is_over && !has_finalizers)
    }

    fn uid(&self) -> &str {
        let of_status = self.details.as_ref().map(|details| details.uid.as_str());
        of_status
            .filter(|_| self.is_status())
            .unwrap_or(&self.metadata.uid)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_gone(json: Value) -> bool {
        serde_json::from_value::<Deleted>(json).unwrap().is_gone()
    }

    #[test]
    fn the_answer_to_a_deletion_says_whether_the_object_is_gone() {
        let now = "2030-01-01T00:00:00Z";
        assert!(is_gone(
            json!({"kind": "Status", "status": "Success", "details": {"uid": "1"}})
        ));
        // A claim without finalizers.
        assert!(is_gone(
            json!({"kind": "PersistentVolumeClaim", "metadata": {"uid": "1"}})
        ));
        // A Pod with and without time to end.
        let pod =
            |grace| json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": grace}});
        assert!(is_gone(pod(0)));
        assert!(!is_gone(pod(30)));
        let held =
            json!({"deletionTimestamp": now, "deletionGracePeriodSeconds": 0, "finalizers": ["a.b/c"]});
        assert!(!is_gone(json!({"metadata": held})));
        // A namespace.
        assert!(!is_gone(
            json!({"metadata": {"deletionTimestamp": now}, "spec": {"finalizers": ["kubernetes"]}})
        ));
    }

    #[test]
    fn the_uid_is_that_of_the_object() {
        let uid = |json| serde_json::from_value::<Deleted>(json).unwrap().uid().to_owned();
        assert_eq!(uid(json!({"kind": "Status", "details": {"uid": "1"}})), "1");
        assert_eq!(uid(json!({"kind": "Pod", "metadata": {"uid": "2"}})), "2");
        assert_eq!(uid(json!({"kind": "Status"})), "");
    }
}
