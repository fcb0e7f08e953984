// SPDX-License-Identifier: Apache-2.0
//! Verbs of one kind that act on one object.

use std::{fmt, marker::PhantomData, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use kube::{
    api::{Patch, PatchParams},
    core::request,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use steersman_cache::{Object, ObjectDetail, ReadError, Resource, Scope, View};
use steersman_core::ObjectKey;

use super::{
    Client, answer, metadata,
    request::{JSON, RequestPlan, invalid},
};
use crate::{Error, ObjectExt, Operation};

/// A kind that is known as a Rust type. Implemented for every [`kube::Resource`] that can be decoded.
pub trait Kind: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static {}

impl<K: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static> Kind for K {}

/// Reads and writes the objects of one kind; from [`Client::of`]. [`Client`] has the same verbs for kinds that are Rust
/// types.
pub struct KindClient<K> {
    pub(super) client: Client,
    pub(super) resource: Resource,
    pub(super) wanted: ObjectDetail,
    kind: PhantomData<fn() -> K>,
}

impl<K> KindClient<K> {
    pub(super) fn new(client: Client, resource: Resource, wanted: ObjectDetail) -> Self {
        Self {
            client,
            resource,
            wanted,
            kind: PhantomData,
        }
    }

    /// Returns the resource that this client reads and writes.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// As [`Client::in_scope`].
    #[must_use]
    pub fn in_scope(&self, scope: &Scope) -> Self {
        Self {
            client: self.client.reading(&self.resource, scope),
            ..self.clone()
        }
    }

    /// Returns the cached objects, or `None` if the read has to query the server.
    pub(super) async fn view(
        &self,
        namespace: &str,
        call: impl Fn() -> Operation,
    ) -> Result<Option<View>, Error> {
        self.client
            .view(&self.resource, namespace, self.wanted, call)
            .await
    }

    /// Returns the media types to request for an object and for a list.
    pub(super) fn forms(&self) -> [&'static str; 2] {
        match self.wanted {
            ObjectDetail::Full => [JSON, JSON],
            ObjectDetail::Metadata => metadata::FORMS,
        }
    }

    pub(super) fn on(&self, verb: &'static str, key: &ObjectKey) -> Operation {
        Operation::on(verb, &self.resource, key)
    }

    /// Checks that a key is complete. A read with an incomplete key finds nothing, which would look like a deleted
    /// object.
    pub(super) fn check(&self, key: &ObjectKey) -> Result<(), Error> {
        let lacking = if key.name().is_empty() {
            "the key has no name; set it"
        } else if key.namespace().is_empty() && self.resource.is_namespaced() == Some(true) {
            "the kind is namespaced; set the namespace of the key"
        } else {
            return Ok(());
        };
        Err(invalid(&self.on("get", key), lacking))
    }
}

impl<K: DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Error> {
        self.check(key)?;
        let call = || self.on("get", key);
        if let Some(view) = self.view(key.namespace(), call).await? {
            let found = view.get_as(key.namespace(), key.name());
            return found.map_err(|error| unreadable(&call(), ReadError::Decode(error)));
        }
        let (call, [form, _]) = (call(), self.forms());
        let found = self.client.get_live(&call, form).await?;
        let decoded = found.map(|json| answer::decode(&call, &json)).transpose()?;
        Ok(decoded.map(Arc::new))
    }

    /// Returns the object with this key as the bytes that the server sent, without `managedFields`. Nothing is decoded until
    /// the caller asks for it with [`Object::decoded`].
    ///
    /// # Errors
    /// As [`get`](Self::get), except that no object is undecodable.
    pub async fn get_object(&self, key: &ObjectKey) -> Result<Option<Arc<Object>>, Error> {
        self.check(key)?;
        let call = || self.on("get", key);
        if let Some(view) = self.view(key.namespace(), call).await? {
            return Ok(view.get(key.namespace(), key.name()));
        }
        let (call, [form, _]) = (call(), self.forms());
        let found = self.client.get_live(&call, form).await?;
        let read = found.map(|json| Object::from_slice(&json)).transpose();
        let object = read.map_err(|error| Error::Decode {
            call: Box::new(call),
            type_name: "Object",
            path: ".".to_owned(),
            reason: error.to_string(),
        })?;
        Ok(object.map(Arc::new))
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

    pub(super) async fn patched<T: DeserializeOwned>(
        &self,
        call: &Operation,
        patch: &Patch<impl Serialize>,
    ) -> Result<T, Error> {
        // kube exposes the content types of patches only through a request.
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
        let plan = RequestPlan::of_object(Method::PATCH, call)?
            .with_if(is_forced, "force", "true")
            .carrying(form, body);
        let json = self.client.write(plan).await?;
        answer::decode(call, &json)
    }

    /// Encodes an object for apply: with `apiVersion` and `kind`, without managed fields.
    fn whole(&self, call: &Operation, object: &impl Serialize) -> Result<Vec<u8>, Error> {
        let mut value = self.said(call, object)?;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        encode(call, &value)
    }

    /// Encodes an object with `apiVersion` and `kind`. List items do not have them, and Rust types can omit them.
    fn said(&self, call: &Operation, object: &impl Serialize) -> Result<Value, Error> {
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
        let call = self.on("create", &object.key());
        let body = encode(&call, &self.said(&call, object)?)?;
        let plan = RequestPlan::of_collection(Method::POST, &call)?.carrying_json(body);
        let json = self.client.write(plan).await?;
        answer::decode(&call, &json)
    }

    /// As [`Client::update`].
    ///
    /// # Errors
    /// As there.
    pub async fn update(&self, object: &K) -> Result<K, Error> {
        self.put(self.on("update", &object.key()), object).await
    }

    /// As [`Client::update_status`].
    ///
    /// # Errors
    /// As there.
    pub async fn update_status(&self, object: &K) -> Result<K, Error> {
        let call = self.on("update", &object.key()).subresource_of("status");
        self.put(call, object).await
    }

    /// As [`Client::apply`].
    ///
    /// # Errors
    /// As there.
    pub async fn apply(&self, object: &K) -> Result<K, Error> {
        let call = self.on("apply", &object.key());
        self.patched(&call, &Patch::Apply(object)).await
    }

    /// As [`Client::apply_status`].
    ///
    /// # Errors
    /// As there.
    pub async fn apply_status(&self, object: &K) -> Result<K, Error> {
        let call = self.on("apply", &object.key()).subresource_of("status");
        self.patched(&call, &Patch::Apply(object)).await
    }

    async fn put(&self, call: Operation, object: &K) -> Result<K, Error> {
        let body = encode(&call, &self.said(&call, object)?)?;
        let plan = RequestPlan::of_object(Method::PUT, &call)?.carrying_json(body);
        let json = self.client.write(plan).await?;
        answer::decode(&call, &json)
    }
}

impl<K> Clone for KindClient<K> {
    fn clone(&self) -> Self {
        Self::new(self.client.clone(), self.resource.clone(), self.wanted)
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
    /// Reads the object of a call from the server. Returns `None` if it does not exist.
    pub(super) async fn get_live(
        &self,
        call: &Operation,
        form: &'static str,
    ) -> Result<Option<Bytes>, Error> {
        let version = &self.0.reads.resource_version;
        let plan = RequestPlan::of_object(Method::GET, call)?
            .accepting(form)
            .with_if(!version.is_empty(), "resourceVersion", version);
        match self.exchange(plan).await {
            Ok(json) => Ok(Some(json)),
            Err(error) if error.is_not_found() && !error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn encode(call: &Operation, value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|source| unwritable(call, source))
}

pub(super) fn unwritable(call: &Operation, source: serde_json::Error) -> Error {
    let call = Box::new(call.clone());
    Error::Encode { call, source }
}

fn unpatchable(call: &Operation, error: request::Error) -> Error {
    match error {
        request::Error::SerializeBody(source) => unwritable(call, source),
        _ => invalid(call, "kube rejects the patch"),
    }
}

pub(super) fn unreadable(call: &Operation, source: ReadError) -> Error {
    Error::Read {
        call: Box::new(call.clone()),
        source: Box::new(source),
    }
}
