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

    /// Sends a request over a connection with certificates of this version, or newer ones.
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
        // A request that has waited since an earlier change does not bring the old version back.
        let newest = current.version.newest(version);
        if let Some(Reopen { open, runtime }) = &self.reopen
            && current.version != newest
        {
            let _entered = runtime.enter();
            current.version = newest;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    // C2
    #[tokio::test]
    async fn connections_are_replaced_only_for_newer_certificates() {
        let opened = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&opened);
        let open: Open = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            let unused = tower::service_fn(|_: Request<Body>| async {
                Ok::<_, std::io::Error>(Response::new(Body::empty()))
            });
            Ok(kube::Client::new(unused, "default"))
        });
        let link = Link::open(open, TlsVersion::of(0, 1)).unwrap();
        for (files, exec, expected) in [(0, 1, 1), (1, 1, 2), (0, 1, 2), (0, 2, 3), (1, 1, 3), (1, 2, 3)] {
            let _ = link.client(TlsVersion::of(files, exec));
            assert_eq!(opened.load(Ordering::Relaxed), expected, "{files} {exec}");
        }
    }
}
