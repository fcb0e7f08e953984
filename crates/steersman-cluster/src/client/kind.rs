// SPDX-License-Identifier: Apache-2.0
//! The verbs of one kind about one object.

use std::{fmt, marker::PhantomData, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use kube::{
    api::{DeleteParams, Patch, PatchParams},
    core::request,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use steersman_cache::{ReadError, Resource, Wanted};
use steersman_core::ObjectKey;

use super::{
    Client, answer,
    request::{JSON, Plan, invalid},
};
use crate::{Call, Error};

/// A kind that is known as a type. Every type has it that is a [`kube::Resource`] and can be decoded.
pub trait Kind: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static {}

impl<K: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static> Kind for K {}

/// Reads and writes the objects of one kind; from [`Client::of`]. [`Client`] has the same verbs for kinds that are types.
pub struct KindClient<K> {
    pub(super) client: Client,
    pub(super) resource: Resource,
    kind: PhantomData<fn() -> K>,
}

/// What a deletion has come to.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "an object is gone, or it is still there")]
pub enum Deletion<K> {
    /// It is gone.
    Done,
    /// It has begun: finalizers or time for a graceful end keep the object, which is this now.
    Begun(Box<K>),
}

impl<K> KindClient<K> {
    pub(super) fn new(client: Client, resource: Resource) -> Self {
        Self {
            client,
            resource,
            kind: PhantomData,
        }
    }

    /// Which kind it is.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    pub(super) fn on(&self, verb: &'static str, key: &ObjectKey) -> Call {
        Call::on(verb, &self.resource, key)
    }
}

impl<K: DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Error> {
        let call = self.on("get", key);
        if let Some(store) = self.client.view(&call, Wanted::Whole).await? {
            let found = store.get_as(key.namespace(), key.name());
            return found.map_err(|error| unreadable(&call, ReadError::Decode(error)));
        }
        let found = self.client.get_live(&call, JSON).await?;
        let decoded = found.map(|json| answer::decode(&call, &json)).transpose()?;
        Ok(decoded.map(Arc::new))
    }

    /// As [`Client::get_required`].
    ///
    /// # Errors
    /// As there.
    pub async fn get_required(&self, key: &ObjectKey) -> Result<Arc<K>, Error> {
        let found = self.get(key).await?;
        found.ok_or_else(|| Error::NotFound {
            call: Box::new(self.on("get", key)),
        })
    }

    /// As [`Client::patch`].
    ///
    /// # Errors
    /// As there.
    pub async fn patch(&self, key: &ObjectKey, patch: &Patch<impl Serialize>) -> Result<K, Error> {
        self.patched(&self.on("patch", key), patch).await
    }

    /// As [`Client::patch_status`].
    ///
    /// # Errors
    /// As there.
    pub async fn patch_status(&self, key: &ObjectKey, patch: &Patch<impl Serialize>) -> Result<K, Error> {
        self.patched(&self.on("patch", key).subresource_of("status"), patch)
            .await
    }

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

    pub(super) async fn patched<T: DeserializeOwned>(
        &self,
        call: &Call,
        patch: &Patch<impl Serialize>,
    ) -> Result<T, Error> {
        // kube knows the forms of patches, and says them in no other way.
        let any_owner = PatchParams::apply("any");
        let written = kube::core::Request::new("").patch("any", &any_owner, patch);
        let (head, body) = written.map_err(|error| unpatchable(call, error))?.into_parts();
        let form = head.headers.get(header::CONTENT_TYPE);
        let form = form.cloned().unwrap_or(HeaderValue::from_static(JSON));
        let body = match patch {
            Patch::Apply(object) => self.whole(call, object)?,
            _ => body,
        };
        let is_forced = self.client.0.writes.force && matches!(patch, Patch::Apply(_));
        let plan = Plan::of_object(Method::PATCH, call)?
            .with_if(is_forced, "force", "true")
            .carrying(form, body);
        let json = self.client.write(plan).await?;
        answer::decode(call, &json)
    }

    /// An object as it is applied: it says what it is, and nothing about who manages its fields.
    fn whole(&self, call: &Call, object: &impl Serialize) -> Result<Vec<u8>, Error> {
        let mut value = self.said(call, object)?;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        encode(call, &value)
    }

    /// An object that says what it is. Lists leave that out of their items, and so may types.
    fn said(&self, call: &Call, object: &impl Serialize) -> Result<Value, Error> {
        let mut value = serde_json::to_value(object).map_err(|source| unwritable(call, source))?;
        if let Some(object) = value.as_object_mut() {
            object
                .entry("apiVersion")
                .or_insert_with(|| json!(self.resource.api_version()));
            object
                .entry("kind")
                .or_insert_with(|| json!(self.resource.kind()));
        }
        Ok(value)
    }
}

impl<K: kube::Resource + Serialize + DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::create`].
    ///
    /// # Errors
    /// As there.
    pub async fn create(&self, object: &K) -> Result<K, Error> {
        let call = self.on("create", &key_of(object));
        let body = encode(&call, &self.said(&call, object)?)?;
        let plan = Plan::of_collection(Method::POST, &call)?.carrying_json(body);
        let json = self.client.write(plan).await?;
        answer::decode(&call, &json)
    }

    /// As [`Client::update`].
    ///
    /// # Errors
    /// As there.
    pub async fn update(&self, object: &K) -> Result<K, Error> {
        self.put(self.on("update", &key_of(object)), object).await
    }

    /// As [`Client::update_status`].
    ///
    /// # Errors
    /// As there.
    pub async fn update_status(&self, object: &K) -> Result<K, Error> {
        let call = self.on("update", &key_of(object)).subresource_of("status");
        self.put(call, object).await
    }

    /// As [`Client::apply`].
    ///
    /// # Errors
    /// As there.
    pub async fn apply(&self, object: &K) -> Result<K, Error> {
        let call = self.on("apply", &key_of(object));
        self.patched(&call, &Patch::Apply(object)).await
    }

    /// As [`Client::apply_status`].
    ///
    /// # Errors
    /// As there.
    pub async fn apply_status(&self, object: &K) -> Result<K, Error> {
        let call = self.on("apply", &key_of(object)).subresource_of("status");
        self.patched(&call, &Patch::Apply(object)).await
    }

    async fn put(&self, call: Call, object: &K) -> Result<K, Error> {
        let body = encode(&call, &self.said(&call, object)?)?;
        let plan = Plan::of_object(Method::PUT, &call)?.carrying_json(body);
        let json = self.client.write(plan).await?;
        answer::decode(&call, &json)
    }
}

impl<K> Clone for KindClient<K> {
    fn clone(&self) -> Self {
        Self::new(self.client.clone(), self.resource.clone())
    }
}

impl<K> fmt::Debug for KindClient<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KindClient")
            .field("resource", &self.resource)
            .field("client", &self.client)
            .finish()
    }
}

impl Client {
    /// The object of a call from the server, or nothing if there is none.
    pub(super) async fn get_live(&self, call: &Call, form: &'static str) -> Result<Option<Bytes>, Error> {
        let plan = Plan::of_object(Method::GET, call)?.accepting(form);
        match self.exchange(plan).await {
            Ok(json) => Ok(Some(json)),
            Err(error) if error.is_not_found() && !error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

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

pub(super) fn key_of(object: &impl kube::Resource) -> ObjectKey {
    let metadata = object.meta();
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    ObjectKey::new(&part(&metadata.namespace), &part(&metadata.name))
}

pub(super) fn encode(call: &Call, value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|source| unwritable(call, source))
}

fn unwritable(call: &Call, source: serde_json::Error) -> Error {
    let call = Box::new(call.clone());
    Error::Encode { call, source }
}

fn unpatchable(call: &Call, error: request::Error) -> Error {
    match error {
        request::Error::SerializeBody(source) => unwritable(call, source),
        _ => invalid(call, "kube does not take the patch"),
    }
}

pub(super) fn unreadable(call: &Call, source: ReadError) -> Error {
    Error::Read {
        call: Box::new(call.clone()),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
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
