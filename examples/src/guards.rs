// SPDX-License-Identifier: Apache-2.0
//! A controller for a dynamic kind that might not be installed: it delays the deletion of objects until a lock is released.
//!
//! The program has no Rust type of the kind and asks no server for it. The controller starts when the CRD is installed and
//! stops when it is removed (`when_installed`). Otherwise it is like a controller of a type: it is an [`ObjectReconciler`],
//! has a finalizer, and records events.

use std::sync::Arc;

use steersman::{
    cache::Resource,
    kube::{ResourceExt, core::DynamicObject},
    prelude::*,
    runtime::AddError,
};

/// Finalizer of the objects.
pub const FINALIZER: &str = "examples.steersman.dev/guard";

/// Annotation of an object that must not be deleted.
pub const LOCKED: &str = "examples.steersman.dev/locked";

/// Keeps locked objects.
#[derive(Debug)]
pub struct Guard {
    resource: Resource,
}

/// Adds a controller for the objects of a resource, such as `Resource::new("example.com", "v1", "Widget", "widgets")`.
///
/// # Errors
/// When the manager rejects it.
pub fn add(manager: &Manager, resource: Resource) -> Result<Controller, AddError> {
    Controller::of_kind(format!("guard-{}", resource.plural()), dynamic(resource.clone()))
        .when_installed()
        .add_to(manager, Guard { resource })
}

impl ObjectReconciler<DynamicObject> for Guard {
    type Error = ClientError;

    fn finalizer(&self) -> Option<&str> {
        Some(FINALIZER)
    }

    async fn reconcile(&self, object: Arc<DynamicObject>, cx: Context) -> Result<Action, ClientError> {
        let objects = cx.client().of(&self.resource);
        if !object.is_being_deleted() {
            objects.add_finalizer(&object, FINALIZER).await?;
        } else if object.annotations().contains_key(LOCKED) {
            let about = cx.recorder().about_dynamic(&object, &self.resource);
            let note = format!("remove the annotation {LOCKED} to let the deletion finish");
            about.event(EventType::Warning, "Locked", "Delete", &note);
        } else {
            objects.remove_finalizer(&object, FINALIZER).await?;
        }
        Ok(Action::await_change())
    }
}
