// SPDX-License-Identifier: Apache-2.0
//! Connections of one client, which are replaced when the certificates change.

use std::{fmt, sync::Arc};

use http::{Request, Response};
use kube::client::Body;
use steersman_core::{Mutex, error_chain};
use tokio::runtime::Handle;

use crate::credentials::TlsVersion;

/// Opens connections with the current certificates.
type Open = Arc<dyn Fn() -> Result<kube::Client, steersman_cache::ClientError> + Send + Sync>;

/// A client whose connections are replaced when the certificates change. A replaced client finishes its requests:
/// dropping it closes only idle connections.
#[derive(Clone)]
pub(crate) struct Link {
    namespace: Arc<str>,
    current: Arc<Mutex<Current>>,
    reopen: Option<Reopen>,
}

struct Current {
    client: Arc<kube::Client>,
    version: TlsVersion,
}

#[derive(Clone)]
struct Reopen {
    open: Open,
    /// Connections belong to this runtime.
    runtime: Handle,
}

impl Link {
    /// Sends requests to a client that never changes.
    pub(crate) fn fixed(client: kube::Client) -> Self {
        Self {
            namespace: client.default_namespace().into(),
            current: Arc::new(Mutex::new(Current {
                client: Arc::new(client),
                version: TlsVersion::default(),
            })),
            reopen: None,
        }
    }

    /// Opens connections in the current tokio runtime, with certificates of this version.
    pub(crate) fn open(open: Open, version: TlsVersion) -> Result<Self, steersman_cache::ClientError> {
        let mut link = Self::fixed(open()?);
        link.current.lock().version = version;
        link.reopen = Some(Reopen {
            open,
            runtime: Handle::current(),
        });
        Ok(link)
    }

    pub(crate) fn default_namespace(&self) -> &str {
        &self.namespace
    }

    /// Sends a request over a connection with certificates of this version.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
        version: TlsVersion,
    ) -> Result<Response<Body>, kube::Error> {
        let client = self.client(version);
        client.send(request).await
    }

    fn client(&self, version: TlsVersion) -> Arc<kube::Client> {
        let mut current = self.current.lock();
        if let Some(Reopen { open, runtime }) = &self.reopen
            && current.version != version
        {
            let _entered = runtime.enter();
            current.version = version;
            match open() {
                Ok(client) => {
                    tracing::info!("certificates changed; new connections use them");
                    current.client = Arc::new(client);
                }
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(%error, "cannot use the changed certificates; using the last ones");
                }
            }
        }
        Arc::clone(&current.client)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}
