// SPDX-License-Identifier: Apache-2.0
//! HTTPS listener with HTTP/1.1 and HTTP/2.
//!
//! # Guarantees
//! 1. Each listener has its own certificate authority, created at start and trusted by no other listener.
//! 2. Requests without a token or certificate are anonymous.
//! 3. Dropping the [`Listener`] closes the socket and all connections.

mod certificates;
mod kubeconfig;

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{ApiServer, Identity, service::Service};

use certificates::Authority;

/// The server cannot listen on a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is in use or not local.
    #[error("listening on {address} failed")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A certificate cannot be created.
    #[error("making certificates failed")]
    Certificate(#[source] rcgen::Error),
    /// The TLS library rejected the certificate.
    #[error("setting up TLS failed")]
    Tls(#[source] rustls::Error),
}

/// A server that listens on a socket.
pub struct Listener {
    address: SocketAddr,
    authority: Arc<Authority>,
    /// Dropping this value ends the accept loop and all connections.
    _tasks: JoinSet<()>,
}

impl ApiServer {
    /// Listens on a socket; port 0 selects a free port. Requires a tokio runtime.
    ///
    /// # Errors
    /// Fails if the address cannot be bound or a certificate cannot be created.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn listen(&self, address: impl Into<SocketAddr>) -> Result<Listener, ListenError> {
        let wanted = address.into();
        let bind = |source| ListenError::Bind {
            address: wanted,
            source,
        };
        let socket = TcpListener::bind(wanted).await.map_err(bind)?;
        let address = socket.local_addr().map_err(bind)?;
        let authority = Arc::new(Authority::new(address.ip())?);
        let acceptor = TlsAcceptor::from(Arc::new(authority.server_config()?));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(self.clone(), socket, acceptor, Arc::clone(&authority)));
        Ok(Listener {
            address,
            authority,
            _tasks: tasks,
        })
    }
}

impl Listener {
    /// Returns the address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the CA certificate that clients must trust, as PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Returns a kubeconfig with a bearer token.
    #[must_use]
    pub fn kubeconfig(&self, token: &str) -> String {
        kubeconfig::with_token(&self.url(), self.ca_pem(), token)
    }

    /// Returns a kubeconfig with a client certificate for an identity.
    ///
    /// # Errors
    /// Fails if the certificate cannot be created.
    pub fn kubeconfig_for(&self, identity: Identity) -> Result<String, ListenError> {
        let (certificate, key) = self.authority.issue(identity)?;
        Ok(kubeconfig::with_certificate(
            &self.url(),
            self.ca_pem(),
            &certificate,
            &key,
        ))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Pause after a failed accept, for example with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

async fn accept(server: ApiServer, socket: TcpListener, acceptor: TlsAcceptor, authority: Arc<Authority>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            accepted = socket.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(server.clone(), stream, acceptor.clone(), Arc::clone(&authority)));
                }
                Err(_) => server.inner().clock.sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(server: ApiServer, stream: TcpStream, acceptor: TlsAcceptor, authority: Arc<Authority>) {
    // Without this option, small responses wait for acknowledgements.
    let _ = stream.set_nodelay(true);
    // The client closed the connection or does not use TLS; no response is possible.
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first())
        .cloned();
    let identity = certificate
        .and_then(|certificate| authority.identify(&certificate))
        .unwrap_or_else(Identity::anonymous);
    let service = Service::new(Arc::clone(server.inner()), identity);
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut service = service.clone();
        async move { tower_service::Service::call(&mut service, request).await }
    });
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
