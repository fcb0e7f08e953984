// SPDX-License-Identifier: Apache-2.0
//! Clusters that come and go while the operator runs: each Secret with the label [`LABEL`] names one by its kubeconfig.
//!
//! Every replica does this, whether or not it leads, so that one that takes over is warm for all clusters.

use std::{convert::Infallible, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use steersman::Error;
use steersman::{
    cache::{Delivery, Event, Object, Scope},
    prelude::*,
};

/// The label of Secrets that name a cluster. The cluster is called as the Secret.
pub const LABEL: &str = "examples.steersman.dev/cluster";

/// The entry that has the kubeconfig.
pub const KUBECONFIG: &str = "kubeconfig";

/// How long work on a cluster has to end when it is let go.
const GRACE: Duration = Duration::from_secs(5);

/// Takes clusters in and lets them go as the Secrets of the manager's own cluster say, for ever.
///
/// # Errors
/// When the manager has no cluster of its own, or is stopping.
///
/// # Cancel safety
/// Clusters that were taken in stay.
pub async fn follow(manager: &Manager) -> Result<Infallible, Error> {
    let home = manager.cluster()?;
    let secrets = Scope::all().labels(LABEL);
    let secrets = home.cache().informer_in(&Resource::of::<Secret>(), &secrets);
    let mut changes = secrets.subscribe("clusters", 1_000);
    while let Some(delivery) = changes.next().await {
        let Delivery::Event(event) = delivery else {
            continue;
        };
        let name = ClusterName::from(event.object().name());
        if let Err(error) = follow_one(manager, &name, &event).await {
            // One Secret that says nonsense is no reason to let the other clusters go.
            tracing::warn!(cluster = %name, %error, "a Secret names a cluster that cannot be used");
        }
    }
    Err("the watch of the Secrets that name clusters has ended".into())
}

async fn follow_one(manager: &Manager, name: &ClusterName, event: &Event) -> Result<(), Error> {
    let before = event.old().and_then(kubeconfig);
    let now = if event.is_deletion() {
        None
    } else {
        kubeconfig(event.object())
    };
    let is_known = manager.cluster_named(name).is_some();
    if is_known && (now.is_none() || before.is_some_and(|before| Some(before) != now)) {
        manager.remove_cluster(name, GRACE).await?;
        tracing::info!(cluster = %name, "let go");
    }
    if let Some(ByteString(now)) = now
        && manager.cluster_named(name).is_none()
    {
        // What is wrong with it is said without showing it: it has credentials in it.
        let now = String::from_utf8(now).map_err(|_| "its kubeconfig is no text")?;
        let cluster = Cluster::builder(name.clone()).kubeconfig(now);
        manager.add_cluster(cluster.build().await?)?;
        tracing::info!(cluster = %name, "taken in");
    }
    Ok(())
}

fn kubeconfig(secret: &std::sync::Arc<Object>) -> Option<ByteString> {
    let secret = secret.decoded::<Secret>().ok()?;
    secret.data.as_ref()?.get(KUBECONFIG).cloned()
}
