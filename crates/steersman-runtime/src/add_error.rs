// SPDX-License-Identifier: Apache-2.0
//! The error of adding to a manager.

use steersman_cluster::ClusterName;

use crate::DuplicateCluster;

/// A runnable, controller or cluster cannot be added to a manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// The manager has no cluster.
    #[error("the manager has no cluster; add one, or name one with `.on(&cluster)`")]
    NoCluster,
    /// Another runnable has the same name.
    #[error(
        "cannot add `{name}`: another runnable has this name; names identify runnables in logs, metrics and readiness"
    )]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The runnable needs a cluster that the manager does not have.
    #[error("cannot add `{name}`: the manager has no cluster `{cluster}`; add it first with `add_cluster`")]
    UnknownCluster {
        /// Name of the runnable.
        name: String,
        /// The missing cluster.
        cluster: ClusterName,
    },
    /// Another cluster has the same name.
    #[error(transparent)]
    DuplicateCluster(#[from] DuplicateCluster),
    /// The manager is shutting down.
    #[error("cannot add `{name}`: the manager is shutting down")]
    Stopping {
        /// Name of the runnable.
        name: String,
    },
}
