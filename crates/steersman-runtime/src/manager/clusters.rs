// SPDX-License-Identifier: Apache-2.0
//! The clusters of a manager, which can be added and removed.

use std::time::Duration;

use crate::{AddError, ClusterRemoval, Runnable};
use steersman_cluster::{Client, Cluster, ClusterName};
use steersman_core::MonotonicTime;

use super::{Inner, Manager, Registry, State, last_events};

/// Error of [`Manager::remove_cluster`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// No cluster has this name.
    #[error("cannot remove cluster `{name}`: the manager has no cluster of this name")]
    Unknown {
        /// The name.
        name: ClusterName,
    },
}

impl Manager {
    /// Returns the default cluster.
    ///
    /// # Errors
    /// When the manager was built without one, or it was removed.
    pub fn cluster(&self) -> Result<Cluster, AddError> {
        let name = self.0.default_cluster.as_ref().ok_or(AddError::NoCluster)?;
        self.0.runtime.clusters().get(name).ok_or(AddError::NoCluster)
    }

    /// Returns a client of the default cluster. It writes with the [field manager](crate::ManagerBuilder::field_manager) of
    /// the manager, or with that of the cluster if the manager has none. Its writes are not fenced.
    ///
    /// # Errors
    /// When there is no default cluster.
    pub fn client(&self) -> Result<Client, AddError> {
        let client = self.cluster()?.client();
        Ok(match &self.0.field_manager {
            Some(name) => client.field_manager(name),
            None => client,
        })
    }

    /// Returns the cluster of this name.
    #[must_use]
    pub fn cluster_named(&self, name: &ClusterName) -> Option<Cluster> {
        self.0.runtime.clusters().get(name)
    }

    /// Adds a cluster. Controllers that work on every cluster start to work on it at once. When the manager stops,
    /// informers of its cache that have no user end. Idle connections close when the last handle of the cluster is dropped.
    ///
    /// # Errors
    /// When a cluster of this name exists, or the manager is shutting down.
    pub fn add_cluster(&self, cluster: Cluster) -> Result<(), AddError> {
        let registry = self.0.lock();
        if matches!(registry.state, State::Stopping) {
            let name = cluster.name().to_string();
            return Err(AddError::Stopping { name });
        }
        self.0.runtime.clusters().insert(cluster)?;
        drop(registry);
        self.0.changed.send_replace(());
        Ok(())
    }

    /// Removes a cluster. It gets no new work, and its keys are dropped. Work in flight has `grace` to end and is then
    /// cancelled. Then its watches close, and its clients reject requests. Runnables that require it, such as controllers
    /// whose default cluster it is, are stopped and removed, so that their names are free.
    ///
    /// Work in flight includes reconciles of its keys, reconciles of other clusters that hold its
    /// [client](crate::Context::client_of), and runnables that [name](Runnable::clusters) it. The manager does not know of
    /// other users of its clients.
    ///
    /// # Errors
    /// When no cluster has this name.
    ///
    /// # Cancel safety
    /// Dropping the future closes the cluster at once.
    pub async fn remove_cluster(&self, name: &ClusterName, grace: Duration) -> Result<(), RemoveError> {
        let clock = self.0.runtime.clock();
        let deadline = clock.now() + grace;
        let removal = self.0.remove(name, deadline);
        let removal = ClosedOnDrop(removal.ok_or_else(|| RemoveError::Unknown { name: name.clone() })?);
        removal.0.cluster().drain();
        clock.timeout_at(deadline, removal.0.vacated()).await;
        last_events::write(std::slice::from_ref(removal.0.cluster()), clock, deadline).await;
        Ok(())
    }
}

/// Closes a removed cluster, on drop.
struct ClosedOnDrop(ClusterRemoval);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        let cluster = self.0.cluster();
        cluster.close(format!("cluster {} was removed", cluster.name()));
    }
}

impl Inner {
    /// Removes a cluster and the runnables that require it, under one lock. A new cluster of the same name can be added
    /// only after both.
    fn remove(&self, cluster: &ClusterName, deadline: MonotonicTime) -> Option<ClusterRemoval> {
        let mut registry = self.lock();
        let removal = self.runtime.clusters().begin_removal(cluster)?;
        let Registry {
            runnables,
            disabled,
            dismissed,
            ..
        } = &mut *registry;
        disabled.retain(|_, clusters| !clusters.contains(cluster));
        runnables.retain(|name, runnable| {
            let stays = !runnable.clusters().contains(cluster);
            if !stays {
                dismissed.push((name.clone(), deadline));
            }
            stays
        });
        drop(registry);
        self.changed.send_replace(());
        Some(removal)
    }
}
