// SPDX-License-Identifier: Apache-2.0
//! Objects that cannot be decoded as the type of their controller.

use std::{fmt, sync::Arc};

use kube::core::DynamicObject;
use steersman_cache::Resource;
use steersman_cluster::{Error, EventType, ObjectExt};
use steersman_core::{ObjectKey, error_chain};

use crate::{BoxError, Context, terminal};

/// An object that cannot be decoded as the type of its controller, for example after a change of its CRD. Passed to
/// [`ObjectReconciler::undecodable`](crate::ObjectReconciler::undecodable).
pub struct Undecodable {
    resource: Resource,
    key: ObjectKey,
    object: Arc<DynamicObject>,
    error: Error,
}

impl Undecodable {
    /// Reads the raw object. Returns `None` if it was deleted.
    pub(crate) async fn read(
        resource: &Resource,
        key: &ObjectKey,
        error: Error,
        cx: &Context,
    ) -> Result<Option<Self>, BoxError> {
        let object = match cx.client().of(resource).get(key).await {
            Ok(object) => object,
            // Even its metadata cannot be decoded.
            Err(raw) if raw.is_undecodable() => return Err(terminal(error).into()),
            Err(raw) => return Err(raw.into()),
        };
        Ok(object.map(|object| Self {
            resource: resource.clone(),
            key: key.clone(),
            object,
            error,
        }))
    }

    /// Records a Warning event on the object, because its owner does not read the log of the controller.
    pub(crate) fn record(&self, finalizer: Option<&str>, cx: &Context) {
        let mut note = error_chain(&self.error);
        if let Some(finalizer) =
            finalizer.filter(|finalizer| self.is_being_deleted() && self.object.has_finalizer(finalizer))
        {
            note =
                format!("the finalizer {finalizer} blocks the deletion until the object is repaired: {note}");
        }
        let about = cx.recorder().about_dynamic(&self.object, &self.resource);
        about.event(EventType::Warning, "DecodeFailed", "Reconcile", &note);
    }

    /// The raw object.
    #[must_use]
    pub fn object(&self) -> &DynamicObject {
        &self.object
    }

    /// Key of the object.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The error. It names the field that cannot be decoded, and does not show its value.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns true if the object has a deletion timestamp.
    #[must_use]
    pub fn is_being_deleted(&self) -> bool {
        self.object.is_being_deleted()
    }

    /// Removes a finalizer from the object, so that its deletion can finish; see
    /// [`Client::remove_finalizer`](steersman_cluster::Client::remove_finalizer).
    ///
    /// # Errors
    /// Same as [`Client::remove_finalizer`](steersman_cluster::Client::remove_finalizer).
    pub async fn remove_finalizer(&self, finalizer: &str, cx: &Context) -> Result<(), Error> {
        let client = cx.client().of(&self.resource);
        client.remove_finalizer(&self.object, finalizer).await
    }

    /// Converts into a [terminal](crate::terminal) error: the object is not reconciled again until it changes.
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
