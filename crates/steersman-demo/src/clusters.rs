// SPDX-License-Identifier: Apache-2.0
//! Adds and removes clusters while the operator runs: each Secret with the label [`LABEL`] names a cluster by its
//! kubeconfig.
//!
//! Every replica does this, leader or not, so that a standby that takes over is warm for all clusters.

use std::{convert::Infallible, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use steersman::Error;
use steersman::{
    cache::{Delivery, Event, Object, Resource, Scope},
    prelude::*,
};

/// Label of Secrets that name a cluster. The cluster has the name of the Secret.
pub const LABEL: &str = "examples.steersman.dev/cluster";

/// Entry of the Secret with the kubeconfig.
pub const KUBECONFIG: &str = "kubeconfig";

/// Timeout for work on a cluster that is removed.
const GRACE: Duration = Duration::from_secs(5);

/// Runs [`follow`] in every replica of a manager.
#[derive(Debug)]
pub struct Followed(Manager);

impl Followed {
    /// Follows the Secrets of the manager's own cluster.
    #[must_use]
    pub fn new(manager: &Manager) -> Self {
        Self(manager.clone())
    }
}

impl Runnable for Followed {
    fn name(&self) -> &str {
        "clusters"
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::AllReplicas
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        cx.ready();
        tokio::select! {
            biased;
            _ = cx.stop().requested() => Ok(()),
            Err(error) = follow(&self.0) => Err(error.to_string().into()),
        }
    }
}

/// Adds and removes clusters according to the Secrets of the manager's own cluster, without end.
///
/// # Errors
/// When the manager has no default cluster, or is shutting down.
///
/// # Cancel safety
/// Clusters that were added stay.
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
            // One invalid Secret is no reason to remove the other clusters.
            tracing::warn!(cluster = %name, %error, "cannot use the cluster that a Secret names");
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
        tracing::info!(cluster = %name, "removed cluster");
    }
    if let Some(ByteString(now)) = now
        && manager.cluster_named(name).is_none()
    {
        // The error does not show the kubeconfig, because it contains credentials.
        let now = String::from_utf8(now).map_err(|_| "its kubeconfig is not text")?;
        let cluster = Cluster::builder(name.clone()).kubeconfig(now);
        manager.add_cluster(cluster.build().await?)?;
        tracing::info!(cluster = %name, "added cluster");
    }
    Ok(())
}

fn kubeconfig(secret: &std::sync::Arc<Object>) -> Option<ByteString> {
    let secret = secret.decoded::<Secret>().ok()?;
    secret.data.as_ref()?.get(KUBECONFIG).cloned()
}
