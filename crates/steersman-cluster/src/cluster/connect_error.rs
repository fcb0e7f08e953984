// SPDX-License-Identifier: Apache-2.0
//! Errors of building a cluster.

use std::{io, path::PathBuf};

use steersman_cache::{ClientError, IndexConflict};

use super::{
    ClusterName,
    config::{BadKubeconfig, InferError},
};
use crate::{CertificateError, PluginError};

/// A cluster cannot be built. Building does not check that the server answers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The environment names no cluster.
    #[error(transparent)]
    Infer(InferError),
    /// The kubeconfig is invalid.
    #[error("the kubeconfig of cluster {cluster} is invalid")]
    Kubeconfig {
        /// The cluster.
        cluster: ClusterName,
        /// Cause.
        #[source]
        source: BadKubeconfig,
    },
    /// The configuration cannot be used.
    #[error("the configuration of cluster {cluster} cannot be used")]
    Config {
        /// The cluster.
        cluster: ClusterName,
        /// Cause.
        #[source]
        source: Box<ClientError>,
    },
    /// The exec plugin returned no credentials.
    #[error("cluster {cluster}: exec plugin `{command}` returned no credentials; run it by hand to see why")]
    Plugin {
        /// The cluster.
        cluster: ClusterName,
        /// The command, without its arguments.
        command: String,
        /// Cause.
        #[source]
        source: PluginError,
    },
    /// The client certificate cannot be used.
    #[error("cluster {cluster} cannot use its client certificate")]
    Certificate {
        /// The cluster.
        cluster: ClusterName,
        /// Cause.
        #[source]
        source: CertificateError,
    },
    /// The token file cannot be used.
    #[error("cluster {cluster} cannot use the token file {}", path.display())]
    Token {
        /// The cluster.
        cluster: ClusterName,
        /// Path of the token file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The `User-Agent` contains characters that are not allowed in a header.
    #[error("invalid User-Agent `{text}`; use letters, digits and punctuation")]
    UserAgent {
        /// The rejected text.
        text: String,
    },
    /// Two indexes conflict.
    #[error("conflicting indexes in the cache of cluster {cluster}")]
    Index {
        /// The cluster.
        cluster: ClusterName,
        /// Cause.
        #[source]
        source: IndexConflict,
    },
    /// The cluster is built outside of a tokio runtime.
    #[error("cannot build cluster {cluster}: no tokio runtime; call it within one")]
    NoRuntime {
        /// The cluster.
        cluster: ClusterName,
    },
    /// The thread of the cluster cannot be started.
    #[error("cannot start the cache thread of cluster {cluster}")]
    Thread {
        /// The cluster.
        cluster: ClusterName,
        /// Cause.
        #[source]
        source: io::Error,
    },
}
