// SPDX-License-Identifier: Apache-2.0
//! A controller that works on two clusters: every Secret of the reference is to be in the mirror, too.
//!
//! A [`Manager`] has any number of clusters. A controller watches kinds in as many of them as it likes; here both
//! Secrets of one name have one key, so that it does not matter in which cluster something happens to them.

use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{AddError, BoxError, Context, Controller, Manager, Reconciler, kind, same_object};

/// Sees to it that Secrets of the manager's own cluster are in another one.
#[derive(Debug)]
pub struct SecretMirror {
    mirror: ClusterName,
}

/// Adds the controller. The mirror has to be one of the manager's clusters.
///
/// # Errors
/// When the manager does not take it in.
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
            return Ok(Action::await_change()); // What is in the mirror alone is none of our business.
        };
        let mirror = cx.client_of(&self.mirror).ok_or("the mirror is gone")?;
        if mirror.get::<Secret>(&key).await?.is_none() {
            mirror.create(&copy(&secret)).await?;
        }
        Ok(Action::await_change())
    }
}

/// The same without what only the server of the original knows.
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
