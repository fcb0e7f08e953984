// SPDX-License-Identifier: Apache-2.0
//! What runs controllers.

use steersman_cluster::{Cluster, ClusterName};

use crate::{BoxRunnable, NameTaken, Options};

/// Runs what it is given: a manager, or whatever stands in for one.
pub trait Host {
    /// The cluster of those that name none.
    ///
    /// # Errors
    /// When there is none.
    fn cluster(&self) -> Result<Cluster, HostError>;

    /// What holds for controllers that say nothing else.
    fn defaults(&self) -> Options {
        Options::new()
    }

    /// Takes a runnable in. If the host runs, it is started.
    ///
    /// # Errors
    /// When there is one of this name, the host does not have a cluster that it needs, or the host is stopping.
    fn add(&self, runnable: BoxRunnable) -> Result<(), HostError>;
}

/// A host does not take something in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// There is no cluster.
    #[error("there is no cluster: give the manager one, or say which one is meant with `on(&cluster)`")]
    NoCluster,
    /// Something of this name runs already.
    #[error(
        "there is a runnable named `{name}` already: names tell them apart in logs, metrics and readiness, so give each its own"
    )]
    NameTaken {
        /// The name.
        name: String,
    },
    /// It needs a cluster that the host does not have.
    #[error(
        "`{name}` works on cluster `{cluster}`, which is none of the manager's: add it before, with `add_cluster`"
    )]
    UnknownCluster {
        /// What was to be taken in.
        name: String,
        /// The cluster that it needs.
        cluster: ClusterName,
    },
    /// There is a cluster of this name.
    #[error(transparent)]
    ClusterTaken(#[from] NameTaken),
    /// It is about to end.
    #[error("`{name}` is not taken in, because the manager is stopping")]
    Stopping {
        /// What was to be taken in.
        name: String,
    },
}
