// SPDX-License-Identifier: Apache-2.0
//! A proxy between client and API server that records what is on the wire, and breaks it on purpose.
//!
//! It runs in this process and speaks TLS to both sides, so it sees every request in clear. Two levels can be broken:
//! single requests and streams ([`FaultProxy::inject`], [`FaultProxy::cut`]), and the network as a whole
//! ([`FaultProxy::cut_connections`], [`FaultProxy::freeze`], [`FaultProxy::unplug`]).
//!
//! # Guarantees
//! 1. A request is in [`FaultProxy::exchanges`] before its first byte goes to the server.
//! 2. A fault lasts as long as its handle; dropping the handle releases what it holds.
//! 3. Of several faults that match a request, the one that was injected first is used.
//! 4. Nothing is cut or held that no fault asks for; bytes pass in the pieces in which they came.
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
//! // … the first update of a ConfigMap through `client` is answered 409, the server never sees it …
//! conflict.hit().await;
//! assert_eq!(proxy.exchanges().iter().filter(|exchange| exchange.status == Some(409)).count(), 1);
//! # Ok(())
//! # }
//! ```

mod body;
mod fault;
mod forward;
mod record;
mod wire;

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, task::JoinSet, time};
use tokio_rustls::TlsAcceptor;

pub use fault::{Cut, Fault, Injected, Matching};
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

/// What every connection of a proxy has in hand.
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
    /// Certificates cannot be made.
    #[error("cannot make certificates")]
    Certificates(#[source] rcgen::Error),
    /// TLS refuses them.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The server's address or certificate makes no sense.
    #[error("cannot reach the server behind the proxy")]
    Server(#[source] ClientError),
}

impl FaultProxy {
    /// Starts a proxy before `server`, on a free port.
    ///
    /// # Errors
    /// When no port can be bound, or the endpoint makes no sense. Whether the server answers is not looked at.
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

    /// Where clients find the proxy.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Announces an identity, so that recordings name it.
    pub fn announce(&self, identity: &Identity) {
        self.shared.log.announce(identity);
    }

    /// A client through the proxy that speaks as `identity`, which is announced by this.
    ///
    /// # Errors
    /// As [`Endpoint::client`].
    pub fn client(&self, identity: &Identity) -> Result<kube::Client, ClientError> {
        self.announce(identity);
        self.endpoint.client(identity)
    }

    /// Breaks requests that match, from now on and as long as the handle lives.
    ///
    /// [`Fault::stall`] also holds streams that are open already, whatever is said by [`Matching::first`] and
    /// [`Matching::after`], which are about requests that come from now on.
    pub fn inject(&self, matching: Matching, fault: Fault) -> Injected {
        self.shared.faults.inject(matching, fault)
    }

    /// Cuts the responses that match and are open now; returns how many there are.
    pub fn cut(&self, matching: &Matching, cut: Cut) -> usize {
        self.shared.log.cut(matching, cut)
    }

    /// Closes every connection at once. New ones are accepted.
    pub fn cut_connections(&self) {
        self.shared.wire.cut();
    }

    /// Lets no byte pass in either direction, on old and new connections, until the handle drops.
    pub fn freeze(&self) -> Frozen {
        self.shared.wire.freeze()
    }

    /// Closes every connection and each new one as it comes, until the handle drops.
    pub fn unplug(&self) -> Unplugged {
        self.shared.wire.unplug()
    }

    /// Waits until there are so many connections through the proxy, those without a request included.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn has_connections(&self, count: usize) {
        // The sender lives as long as `self`.
        let _ = self.shared.wire.open().wait_for(|open| *open == count).await;
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.shared.wire.open().borrow()
    }

    /// Every request so far, in the order of arrival.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.log.exchanges()
    }

    /// Forgets the requests that have ended.
    pub fn forget_ended(&self) {
        self.shared.log.forget_ended();
    }

    /// Waits until the recording satisfies `condition`, and returns what it found.
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

/// A failed accept is tried again after this time.
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
                // One peer's (it gave up), or descriptors ran out for a moment: the next may fare better.
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
    // How a connection ended shows in its exchanges.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
