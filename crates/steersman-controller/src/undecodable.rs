// SPDX-License-Identifier: Apache-2.0
//! Objects that do not decode as the type of their controller.

use std::{fmt, sync::Arc};

use kube::{api::Patch, core::DynamicObject};
use serde::Serialize;
use steersman_cache::Resource;
use steersman_cluster::{Error, EventType, Kind as KnownType};
use steersman_core::ObjectKey;

use crate::{BoxError, Context, reconciler::Chain, terminal};

/// An object that does not decode as the type of its controller, such as after a change of its CRD. It is what
/// [`ObjectReconciler::undecodable`](crate::ObjectReconciler::undecodable) gets.
pub struct Undecodable {
    resource: Resource,
    key: ObjectKey,
    object: Arc<DynamicObject>,
    error: Error,
}

/// A merge patch of the finalizers. The server rejects it with a conflict if the object has changed.
#[derive(Serialize)]
struct FinalizerPatch<'a> {
    metadata: PatchedMetadata<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PatchedMetadata<'a> {
    resource_version: Option<&'a str>,
    finalizers: Vec<&'a str>,
}

impl Undecodable {
    /// Reads the raw object. Returns nothing if it was deleted.
    pub(crate) async fn read<K: KnownType>(
        key: &ObjectKey,
        error: Error,
        cx: &Context,
    ) -> Result<Option<Self>, BoxError> {
        let resource = Resource::of::<K>();
        let object = match cx.client().of(&resource).get(key).await {
            Ok(object) => object,
            // Not even its metadata decodes.
            Err(raw) if raw.is_undecodable() => return Err(terminal(error).into()),
            Err(raw) => return Err(raw.into()),
        };
        Ok(object.map(|object| Self {
            resource,
            key: key.clone(),
            object,
            error,
        }))
    }

    /// Records a Warning event on the object: its owner does not read the log of the controller.
    pub(crate) fn record<K: KnownType>(&self, finalizer: Option<&str>, cx: &Context) {
        let mut note = Chain(&self.error).to_string();
        if let Some(finalizer) = finalizer.filter(|finalizer| self.is_being_deleted() && self.has(finalizer))
        {
            note =
                format!("the finalizer {finalizer} blocks the deletion until the object is repaired: {note}");
        }
        let reference = k8s_openapi::api::core::v1::ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            namespace: self.object.metadata.namespace.clone(),
            name: self.object.metadata.name.clone(),
            uid: self.object.metadata.uid.clone(),
            resource_version: self.object.metadata.resource_version.clone(),
            field_path: None,
        };
        let about = cx.recorder().about_reference(reference);
        about.event(EventType::Warning, "DecodeFailed", "Reconcile", &note);
    }

    /// The raw object.
    #[must_use]
    pub fn object(&self) -> &DynamicObject {
        &self.object
    }

    /// The key of the object.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The error. It names the field that does not decode, and does not show its value.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Whether the object has a deletion timestamp.
    #[must_use]
    pub fn is_being_deleted(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// Whether the object has this finalizer.
    #[must_use]
    pub fn has(&self, finalizer: &str) -> bool {
        self.finalizers().any(|held| held == finalizer)
    }

    fn finalizers(&self) -> impl Iterator<Item = &str> {
        self.object
            .metadata
            .finalizers
            .iter()
            .flatten()
            .map(String::as_str)
    }

    /// Removes a finalizer from the object, so that its deletion can finish. Does nothing if the object does not have it, or was
    /// deleted meanwhile.
    ///
    /// # Errors
    /// When the server rejects the patch: with a conflict if the object has changed since it was read.
    pub async fn remove_finalizer(&self, finalizer: &str, cx: &Context) -> Result<(), Error> {
        if !self.has(finalizer) {
            return Ok(());
        }
        let patch = FinalizerPatch {
            metadata: PatchedMetadata {
                resource_version: self.object.metadata.resource_version.as_deref(),
                finalizers: self.finalizers().filter(|held| *held != finalizer).collect(),
            },
        };
        let client = cx.client().of(&self.resource);
        match client.patch(&self.key, &Patch::Merge(patch)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// The error as a [terminal](crate::terminal) one: the object is not reconciled again until it changes.
    #[must_use]
    pub fn into_error(self) -> BoxError {
        terminal(self.error).into()
    }
}

impl fmt::Debug for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Undecodable")
            .field("key", &self.key)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}
