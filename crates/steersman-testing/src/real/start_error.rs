// SPDX-License-Identifier: Apache-2.0
//! Errors of starting a server.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

/// A real API server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The binaries are missing.
    #[error(transparent)]
    Assets(steersman_assets::FindError),
    /// The assets have no controller manager.
    #[error(
        "{} has no kube-controller-manager, which this test needs; unset KUBEBUILDER_ASSETS and run `cargo xtask kube`",
        dir.display()
    )]
    NoControllerManager {
        /// The assets' directory.
        dir: PathBuf,
    },
    /// Another program listens on the requested port.
    #[error("{address} is taken by another program: name another port, or none to get a free one")]
    PortTaken {
        /// The requested address.
        address: SocketAddr,
    },
    /// The port cannot be bound for another reason.
    #[error("cannot bind {address}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The disk is full.
    #[error("the disk is full at {}: free some space, or set TMPDIR to a directory that has it", path.display())]
    DiskFull {
        /// The file or directory that could not be written.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The certificates cannot be created.
    #[error("cannot create certificates")]
    Certificates(#[source] rcgen::Error),
    /// A program cannot be run.
    #[error("cannot run {}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A program exited instead of serving.
    #[error("{program} ended with {status} instead of serving; last output: {last}")]
    Ended {
        /// The program's name.
        program: &'static str,
        /// Exit status.
        status: std::process::ExitStatus,
        /// The end of its log.
        last: String,
    },
    /// The client cannot be created.
    #[error("cannot create a client for the new server")]
    Client(#[source] crate::ClientError),
    /// The server runs, but is not ready in time.
    #[error("kube-apiserver was not ready within {limit:?}: {last}")]
    NotReady {
        /// The timeout.
        limit: Duration,
        /// The last answer of the readiness check.
        last: String,
    },
}

impl StartError {
    pub(crate) fn write(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull => Self::DiskFull { path },
            _ => Self::Write { path, source },
        }
    }
}
