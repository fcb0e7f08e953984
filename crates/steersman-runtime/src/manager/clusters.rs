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
        self.0
            .surroundings
            .clusters()
            .get(name)
            .ok_or(AddError::NoCluster)
    }

    /// Returns a client of the default cluster.
    ///
    /// # Errors
    /// When there is no default cluster.
    pub fn client(&self) -> Result<Client, AddError> {
        Ok(self.cluster()?.client())
    }

    /// Returns the cluster of this name.
    #[must_use]
    pub fn cluster_named(&self, name: &ClusterName) -> Option<Cluster> {
        self.0.surroundings.clusters().get(name)
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
        self.0.surroundings.clusters().insert(cluster)?;
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
        let clock = self.0.surroundings.clock();
        let deadline = clock.now() + grace;
        let departure = self.0.depart(name, deadline);
        let departing = Departing(departure.ok_or_else(|| RemoveError::Unknown { name: name.clone() })?);
        departing.0.cluster().drain();
        tokio::select! {
            biased;
            () = departing.0.vacated() => {}
            () = clock.sleep_until(deadline) => {}
        }
        last_events::write(std::slice::from_ref(departing.0.cluster()), clock, deadline).await;
        Ok(())
    }
}

/// Closes a removed cluster, on drop.
struct Departing(ClusterRemoval);

impl Drop for Departing {
    fn drop(&mut self) {
        let cluster = self.0.cluster();
        cluster.close(format!("cluster {} was removed", cluster.name()));
    }
}

impl Inner {
    /// Removes a cluster and the runnables that require it, under one lock. A new cluster of the same name can be added
    /// only after both.
    fn depart(&self, cluster: &ClusterName, deadline: MonotonicTime) -> Option<ClusterRemoval> {
        let mut registry = self.lock();
        let departure = self.surroundings.clusters().depart(cluster)?;
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
        Some(departure)
    }
}
