// SPDX-License-Identifier: Apache-2.0
//! A controller that keeps copies of Secrets in another cluster up to date.
//!
//! [`mirror`](crate::mirror) creates what is missing. This example also updates a copy when its original changes, restores a copy that
//! was changed or deleted, and deletes the copy when the original is deleted or loses its label. It never touches a Secret that it
//! did not create.

use std::sync::Arc;

use steersman::{
    Client,
    cluster::DeleteOptions,
    k8s_openapi::api::core::v1::Secret,
    kube::{ResourceExt, api::Preconditions, core::ObjectMeta},
    prelude::*,
    runtime::{AddError, same_object},
};

/// Label of the Secrets that are copied.
pub const SELECTED: &str = "examples.steersman.dev/replicate=true";

/// Annotation of a copy: the uid of its original.
pub const ORIGIN: &str = "examples.steersman.dev/origin";

/// Copies Secrets of the default cluster to another cluster.
#[derive(Debug)]
pub struct Replicator {
    target: ClusterName,
}

/// Adds the controller. The target must be one of the manager's clusters.
///
/// # Errors
/// When the manager rejects the controller.
pub fn add(manager: &Manager, target: &Cluster) -> Result<Controller<ObjectKey>, AddError> {
    let reconciler = Replicator {
        target: target.name().clone(),
    };
    Controller::<ObjectKey>::named("secret-replicator")
        .watches(kind::<Secret>().labels(SELECTED), same_object())
        .watches(kind::<Secret>().on(target), same_object())
        .add_to(manager, reconciler)
}

impl Reconciler<ObjectKey> for Replicator {
    type Error = BoxError;

    async fn reconcile(&self, key: ObjectKey, cx: Context) -> Result<Action, BoxError> {
        let target = cx
            .client_of(&self.target)
            .ok_or("the target cluster was removed from the manager")?;
        let original = cx.client().get::<Secret>(&key).await?;
        let original = original.filter(|original| !original.is_being_deleted());
        let existing = target.get::<Secret>(&key).await?;
        match (original, existing) {
            (Some(original), Some(existing)) if !is_copy(&existing) => {
                let note = format!("cluster {} has another Secret of this name", self.target);
                cx.recorder().event(
                    &*original,
                    EventType::Warning,
                    "NotReplicated",
                    "Replicate",
                    &note,
                );
            }
            (Some(original), existing) if !is_current(&original, existing.as_deref()) => {
                target.force().apply(&copy(&original)).await?;
            }
            (None, Some(existing)) if is_copy(&existing) => delete(&target, &key, &existing).await?,
            _ => {}
        }
        Ok(Action::await_change())
    }
}

fn is_copy(secret: &Secret) -> bool {
    secret.annotations().contains_key(ORIGIN)
}

fn is_current(original: &Secret, existing: Option<&Secret>) -> bool {
    existing.is_some_and(|existing| {
        existing.data == original.data && existing.annotations().get(ORIGIN) == original.metadata.uid.as_ref()
    })
}

/// Returns the copy, without the fields that the server sets.
fn copy(original: &Arc<Secret>) -> Secret {
    let origin = (
        ORIGIN.to_owned(),
        original.metadata.uid.clone().unwrap_or_default(),
    );
    Secret {
        metadata: ObjectMeta {
            name: original.metadata.name.clone(),
            namespace: original.metadata.namespace.clone(),
            annotations: Some([origin].into()),
            ..ObjectMeta::default()
        },
        data: original.data.clone(),
        type_: original.type_.clone(),
        ..Secret::default()
    }
}

/// Deletes this copy, and no Secret that was created under its name meanwhile.
async fn delete(target: &Client, key: &ObjectKey, copy: &Secret) -> Result<(), ClientError> {
    let options = DeleteOptions {
        preconditions: Some(Preconditions {
            uid: copy.metadata.uid.clone(),
            ..Preconditions::default()
        }),
        ..DeleteOptions::default()
    };
    target.delete_if_exists::<Secret>(key, options).await?;
    Ok(())
}
