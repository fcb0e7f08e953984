// SPDX-License-Identifier: Apache-2.0
//! The clusters of a manager, which come and go.

use std::time::Duration;

use crate::{AddError, ClusterRemoval, Runnable};
use steersman_cluster::{Client, Cluster, ClusterName};
use steersman_core::MonotonicTime;

use super::{Inner, Manager, Registry, State, last_events};

/// A cluster is not removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// There is none of this name.
    #[error("there is no cluster named `{name}`")]
    Unknown {
        /// The name.
        name: ClusterName,
    },
}

impl Manager {
    /// The cluster of those that name none.
    ///
    /// # Errors
    /// When the manager was made without one, or it was removed.
    pub fn cluster(&self) -> Result<Cluster, AddError> {
        let name = self.0.default_cluster.as_ref().ok_or(AddError::NoCluster)?;
        self.0
            .surroundings
            .clusters()
            .get(name)
            .ok_or(AddError::NoCluster)
    }

    /// The client of that cluster.
    ///
    /// # Errors
    /// When there is none.
    pub fn client(&self) -> Result<Client, AddError> {
        Ok(self.cluster()?.client())
    }

    /// The cluster of this name.
    #[must_use]
    pub fn cluster_named(&self, name: &ClusterName) -> Option<Cluster> {
        self.0.surroundings.clusters().get(name)
    }

    /// Takes a cluster in. Controllers that work on every cluster begin with it at once. When the manager stops, what
    /// nobody holds any more of its cache ends; connections that wait for the next request close with its last handle.
    ///
    /// # Errors
    /// When there is one of this name, or the manager is stopping.
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

    /// Lets a cluster go: it gets no new work and its keys are forgotten; what is in flight has `grace` to end and is
    /// then cancelled; its watches close, and its clients refuse. Runnables that cannot do without it, such as controllers
    /// whose own cluster it is, are stopped and let go, so that their names are free. In flight are reconciles of its keys,
    /// those of others that have its [client](crate::Context::client_of), and runnables that
    /// [name](Runnable::clusters) it. Of others who hold a client of it nobody knows.
    ///
    /// # Errors
    /// When there is none of this name.
    ///
    /// # Cancel safety
    /// If it is dropped, the cluster is closed at once.
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

/// Closes a cluster that has departed, when it drops.
struct Departing(ClusterRemoval);

impl Drop for Departing {
    fn drop(&mut self) {
        let cluster = self.0.cluster();
        cluster.close(format!("cluster {} was removed", cluster.name()));
    }
}

impl Inner {
    /// Takes a cluster out, and lets those go that cannot do without it. Who comes for another cluster of its name comes
    /// after both.
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
