// SPDX-License-Identifier: Apache-2.0
//! A proxy between client and API server that records requests and injects faults.
//!
//! It runs in this process and uses TLS on both sides, so it sees every request in clear text. It injects faults at two
//! levels: into single requests and streams ([`FaultProxy::inject`], [`FaultProxy::cut`]), and into the network as a
//! whole ([`FaultProxy::cut_connections`], [`FaultProxy::freeze`], [`FaultProxy::unplug`]).
//!
//! # Guarantees
//! 1. A request is in [`FaultProxy::exchanges`] before its first byte is sent to the server.
//! 2. A fault lasts as long as its handle. Dropping the handle releases the requests that it holds.
//! 3. If several faults match a request, the one that was injected first is used.
//! 4. The proxy cuts or holds nothing without a fault. It forwards bytes in the chunks in which they arrive.
//! 5. Tokens are never recorded, only the names of identities that were announced.
//!
//! # Example
//! ```no_run
//! # async fn example(fixture: steersman_testing::Fixture) -> Result<(), Box<dyn std::error::Error>> {
//! use steersman_testing::proxy::{Fault, Matching};
//!
//! let proxy = fixture.proxy().await;
//! let client = proxy.client(fixture.admin())?;
//! let conflict = proxy.inject(Matching::method("PUT").path("/configmaps/").first(1), Fault::answer(409));
//! // … the proxy answers the first update of a ConfigMap through `client` with 409; the server never sees it …
//! conflict.hit().await;
//! assert_eq!(proxy.exchanges().iter().filter(|exchange| exchange.status == Some(409)).count(), 1);
//! # Ok(())
//! # }
//! ```

mod body;
mod fault;
mod forward;
mod matching;
mod record;
mod wire;

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, task::JoinSet, time};
use tokio_rustls::TlsAcceptor;

pub use fault::{Cut, Fault, Injected};
pub use matching::Matching;
pub use record::{Ended, Exchange};
pub use wire::{Frozen, Unplugged};

use crate::{ClientError, Endpoint, Identity, certificates::Authority};
use fault::Faults;
use forward::Upstream;
use record::Log;
use wire::Wire;

/// A running proxy. Dropping it cuts every connection through it.
#[derive(Debug)]
pub struct FaultProxy {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    // Ends with the proxy.
    _accepting: JoinSet<Infallible>,
}

/// State shared by all connections of a proxy.
#[derive(Debug)]
struct Shared {
    faults: Faults,
    log: Log,
    wire: Wire,
    upstream: Upstream,
}

/// The proxy could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No port of the loopback address could be bound.
    #[error("cannot listen on the loopback address")]
    Listen(#[source] io::Error),
    /// The certificates cannot be created.
    #[error("cannot create certificates")]
    Certificates(#[source] rcgen::Error),
    /// TLS rejects the certificates.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The server's address or certificate is invalid.
    #[error("cannot reach the server behind the proxy")]
    Server(#[source] ClientError),
}

impl FaultProxy {
    /// Starts a proxy in front of `server`, on a free port.
    ///
    /// # Errors
    /// When no port can be bound, or the endpoint is invalid. It does not check that the server answers.
    pub async fn start(server: &Endpoint) -> Result<Self, StartError> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .await
            .map_err(StartError::Listen)?;
        let address = listener.local_addr().map_err(StartError::Listen)?;
        let authority = Authority::new("steersman fault proxy").map_err(StartError::Certificates)?;
        let shared = Arc::new(Shared {
            faults: Faults::default(),
            log: Log::default(),
            wire: Wire::default(),
            upstream: Upstream::new(server)?,
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, acceptor(&authority)?, Arc::clone(&shared)));
        let endpoint = Endpoint::new(format!("https://{address}"), authority.pem());
        Ok(Self {
            endpoint,
            shared,
            _accepting: accepting,
        })
    }

    /// Returns the endpoint of the proxy.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Announces an identity, so that recordings show its name.
    pub fn announce(&self, identity: &Identity) {
        self.shared.log.announce(identity);
    }

    /// Returns a client through the proxy for `identity`, and announces that identity.
    ///
    /// # Errors
    /// Same as [`Endpoint::client`].
    pub fn client(&self, identity: &Identity) -> Result<kube::Client, ClientError> {
        self.announce(identity);
        self.endpoint.client(identity)
    }

    /// Injects a fault into matching requests, from now on and while the handle exists.
    ///
    /// [`Fault::stall`] also holds streams that are already open. [`Matching::first`] and [`Matching::after`] apply
    /// only to later requests.
    pub fn inject(&self, matching: Matching, fault: Fault) -> Injected {
        self.shared.faults.inject(matching, fault)
    }

    /// Cuts all matching responses that are open now; returns their number.
    pub fn cut(&self, matching: &Matching, cut: Cut) -> usize {
        self.shared.log.cut(matching, cut)
    }

    /// Closes every connection at once. New connections are accepted.
    pub fn cut_connections(&self) {
        self.shared.wire.cut();
    }

    /// Blocks all bytes in both directions, on old and new connections, until the handle is dropped.
    pub fn freeze(&self) -> Frozen {
        self.shared.wire.freeze()
    }

    /// Closes every connection and each new one, until the handle is dropped.
    pub fn unplug(&self) -> Unplugged {
        self.shared.wire.unplug()
    }

    /// Waits until there are exactly `count` connections through the proxy, including idle ones.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn has_connections(&self, count: usize) {
        // The sender exists as long as `self`.
        let _ = self.shared.wire.open().wait_for(|open| *open == count).await;
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.shared.wire.open().borrow()
    }

    /// Returns every request so far, in the order of arrival.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.log.exchanges()
    }

    /// Removes the requests that have ended from the recording.
    pub fn forget_ended(&self) {
        self.shared.log.forget_ended();
    }

    /// Waits until `condition` returns a value for the recording, and returns that value.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn wait_for<T>(&self, condition: impl FnMut(&[Exchange]) -> Option<T>) -> T {
        self.shared.log.wait_for(condition).await
    }
}

fn acceptor(authority: &Authority) -> Result<TlsAcceptor, StartError> {
    let serving = authority.serving().map_err(StartError::Certificates)?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(serving.key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(StartError::Tls)?
        .with_no_client_auth()
        .with_single_cert(vec![serving.certificate.der().clone()], key.into())
        .map_err(StartError::Tls)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Delay before a failed accept is retried.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

async fn accept(listener: TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) -> Infallible {
    let mut connections = JoinSet::new();
    let mut next = 0_u64;
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let Some(stream) = shared.wire.plug(stream) else { continue };
                    next += 1;
                    connections.spawn(serve(tls.clone(), stream, Arc::clone(&shared), next));
                }
                // The peer disconnected, or file descriptors ran out for a moment: the next accept can succeed.
                Err(_) => time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

async fn serve(tls: TlsAcceptor, stream: wire::Plugged, shared: Arc<Shared>, connection: u64) {
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let service = hyper::service::service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { forward::forward(&shared, connection, request).await }
    });
    // The exchanges show how a connection ended.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
