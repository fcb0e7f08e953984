// SPDX-License-Identifier: Apache-2.0
//! A controller that works on two clusters: it copies every Secret of the reference to the mirror.
//!
//! A [`Manager`] has any number of clusters. A controller can watch kinds in any of them. Here both Secrets of one name
//! have one key, so that a change in either cluster triggers the same reconcile.

use steersman::{
    k8s_openapi::api::core::v1::Secret,
    kube::core::ObjectMeta,
    prelude::*,
    runtime::{AddError, same_object},
};

/// Copies Secrets of the manager's own cluster to another one.
#[derive(Debug)]
pub struct SecretMirror {
    mirror: ClusterName,
}

/// Adds the controller. The mirror has to be one of the manager's clusters.
///
/// # Errors
/// When the manager rejects it.
pub fn add(manager: &Manager, mirror: &Cluster) -> Result<Controller<ObjectKey>, AddError> {
    let reconciler = SecretMirror {
        mirror: mirror.name().clone(),
    };
    Controller::<ObjectKey>::named("secret-mirror")
        .watches(kind::<Secret>(), same_object())
        .watches(kind::<Secret>().on(mirror), same_object())
        .add_to(manager, reconciler)
}

impl Reconciler<ObjectKey> for SecretMirror {
    type Error = BoxError;

    async fn reconcile(&self, key: ObjectKey, cx: Context) -> Result<Action, BoxError> {
        let Some(secret) = cx.client().get::<Secret>(&key).await? else {
            return Ok(Action::await_change()); // A Secret that exists only in the mirror is ignored.
        };
        let mirror = cx
            .client_of(&self.mirror)
            .ok_or("the manager does not have the mirror any more")?;
        if mirror.get::<Secret>(&key).await?.is_none() {
            mirror.create(&copy(&secret)).await?;
        }
        Ok(Action::await_change())
    }
}

/// Returns a copy without the fields that the server sets.
fn copy(secret: &Secret) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: secret.metadata.name.clone(),
            namespace: secret.metadata.namespace.clone(),
            labels: secret.metadata.labels.clone(),
            ..ObjectMeta::default()
        },
        data: secret.data.clone(),
        type_: secret.type_.clone(),
        ..Secret::default()
    }
}
