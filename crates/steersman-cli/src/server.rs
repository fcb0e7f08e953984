// SPDX-License-Identifier: Apache-2.0
//! The embedded API server on a port of this machine.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use steersman_apiserver::{ApiServer, Builder, Identity, ListenError, Listener};
use steersman_cluster::{Cluster, ConnectError};

/// Marks a kubeconfig that this program wrote and is allowed to overwrite.
const MARK: &str = "# Written by `steersman`. It is removed when the server ends.\n";

/// A server that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    server: ApiServer,
    kubeconfig: String,
    listener: Listener,
}

/// The server cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error(
        "{address} is taken by another program: name another port with `--port`, or none to get a free one"
    )]
    PortTaken { address: SocketAddr },
    #[error(
        "you are not allowed to use {address}: name a port above 1023 with `--port`, or none to get a free one"
    )]
    PortForbidden { address: SocketAddr },
    #[error("cannot start the API server")]
    Listen(#[source] ListenError),
}

/// The kubeconfig cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigError {
    #[error(
        "{} exists and was not written by `steersman`; name another path, or remove the file",
        path.display()
    )]
    Foreign { path: PathBuf },
    #[error("{} exists and cannot be read; name another path, or change its permissions", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the kubeconfig cannot be written to {}: name a path in a directory that is writable", path.display())]
    Unwritable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Returns a builder with the settings of a real cluster: RBAC, and random credentials.
pub(crate) fn builder() -> Builder {
    // The standard library's hash seeds are random.
    let seed = RandomState::new().hash_one("steersman");
    ApiServer::builder().rbac(true).seed(seed)
}

impl Server {
    pub(crate) async fn start(builder: Builder, port: u16) -> Result<Self, ServerError> {
        let server = builder.build();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = server.listen(address).await.map_err(ServerError::from)?;
        let kubeconfig = listener
            .kubeconfig_for(Identity::admin())
            .map_err(ServerError::Listen)?;
        Ok(Self {
            server,
            kubeconfig: format!("{MARK}{kubeconfig}"),
            listener,
        })
    }

    pub(crate) fn url(&self) -> String {
        self.listener.url()
    }

    /// Returns the kubeconfig of the administrator.
    pub(crate) fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Returns a cluster that uses the server within this process, without a socket.
    pub(crate) async fn cluster(&self, name: &str) -> Result<Cluster, ConnectError> {
        let client = kube::Client::new(self.server.service(), "default");
        Cluster::builder(name).service(client).build().await
    }
}

impl From<ListenError> for ServerError {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::Bind { address, ref source } => match source.kind() {
                io::ErrorKind::AddrInUse => Self::PortTaken { address },
                io::ErrorKind::PermissionDenied => Self::PortForbidden { address },
                _ => Self::Listen(error),
            },
            error => Self::Listen(error),
        }
    }
}

/// Writes a kubeconfig that only this user can read. Overwrites a file that this program wrote, but no other file.
pub(crate) fn write_kubeconfig(path: &Path, text: &str) -> Result<(), KubeconfigError> {
    let path_buf = || path.to_path_buf();
    match fs::read_to_string(path) {
        Ok(before) if before.starts_with(MARK) => {
            // Creates the file anew, so that its permissions are correct as well.
            let removed = fs::remove_file(path);
            removed.map_err(|source| KubeconfigError::Unwritable {
                path: path_buf(),
                source,
            })?;
        }
        Ok(_) => return Err(KubeconfigError::Foreign { path: path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(KubeconfigError::Unreadable {
                path: path_buf(),
                source,
            });
        }
    }
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| KubeconfigError::Unwritable {
            path: path_buf(),
            source,
        })
}
