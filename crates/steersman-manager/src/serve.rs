// SPDX-License-Identifier: Apache-2.0
//! A small HTTP server: probes, metrics and the like, for a few clients at a time.
//!
//! # Guarantees
//! 1. The address is taken when the [`Server`] is made, so that a clash of ports shows before anything runs.
//! 2. Every connection belongs to the future of [`Server::serve`]: when that ends or is dropped, none is left.
//! 3. Told to stop, the server takes no new connections, answers the requests that it has, and cuts what is not done
//!    at the deadline.
//! 4. A connection without a request is closed after 90 s. A request whose header takes longer than 32 s, counted from
//!    its first byte (or, for the first one, from the start of the connection, with its TLS handshake), closes it too.
//! 5. A header of more than 1 MiB is answered with 431.
//!
//! # Not promised
//! HTTP/2. Probes and scrapers do well without, its streams are tasks that no connection owns, and its known attacks
//! need not be defended against where it is not spoken.
//!
//! # Example
//! ```
//! use std::{net::Ipv4Addr, sync::Arc};
//! use steersman_core::TokioClock;
//! use steersman_manager::{Checks, Routes, Server};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let mut routes = Routes::new();
//! Checks::new().mount(&mut routes, "/healthz")?;
//! let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into(), routes, Arc::new(TokioClock::new()))?;
//! println!("probes on {}", server.address());
//! server.serve(async { /* until a signal comes */ }).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connection;
mod pace;
mod routes;
mod tls;

use std::{
    fmt,
    future::Future,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use steersman_core::Clock;
use tokio::{sync::watch, task::JoinSet};

pub use routes::{BoxError, Handler, Request, Response, RouteError, Routes};
pub(crate) use routes::{causes, decoded, not_found, text};
pub use tls::{Tls, TlsError};

use connection::Connection;

/// A failed accept (too many open files) is tried again after this time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long requests may take to end once the server is told to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// A server that has its address, and serves once it is told to.
pub struct Server {
    address: SocketAddr,
    listener: TcpListener,
    routes: Arc<Routes>,
    tls: Option<Tls>,
    clock: Arc<dyn Clock>,
    drain: Duration,
}

/// No socket could be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Somebody else has the address.
    #[error("{address} is taken by another program: end that one, or name another port")]
    Taken {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The address cannot be listened on here.
    #[error(
        "cannot listen on {address}: name an address of this machine, and a port that this user may have (most may not have those below 1024)"
    )]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Serving did not end as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The runtime did not take the socket.
    #[error("the socket on {address} cannot be waited for: is the runtime's I/O driver enabled?")]
    Runtime {
        /// Where the server listens.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Requests were still going on at the deadline, and were cut.
    #[error("{connections} connection(s) to {address} were cut, since they did not end within {limit:?}")]
    NotDrained {
        /// Where the server listened.
        address: SocketAddr,
        /// How many there were.
        connections: usize,
        /// How long they had.
        limit: Duration,
    },
}

impl Server {
    /// Takes the address; port 0 takes one that is free. Clients that come before [`Self::serve`] wait.
    ///
    /// # Errors
    /// If the address is taken, or not ours to take.
    pub fn bind(address: SocketAddr, routes: Routes, clock: Arc<dyn Clock>) -> Result<Self, BindError> {
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::Taken { address, source },
            _ => BindError::Address { address, source },
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        Ok(Self {
            address: listener.local_addr().map_err(refused)?,
            listener,
            routes: Arc::new(routes),
            tls: None,
            clock,
            drain: DRAIN,
        })
    }

    /// Speaks HTTPS. Default: plain HTTP.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How long requests may take to end once the server is told to stop. Default: 10 s.
    #[must_use]
    pub fn drain(mut self, limit: Duration) -> Self {
        self.drain = limit;
        self
    }

    /// Another server on the same socket: when this one has ended, that one can go on with the address.
    ///
    /// # Errors
    /// If the system has no more file descriptors to give.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            address: self.address,
            listener: self.listener.try_clone()?,
            routes: Arc::clone(&self.routes),
            tls: self.tls.clone(),
            clock: Arc::clone(&self.clock),
            drain: self.drain,
        })
    }

    /// The address that was taken, with its real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` ends, and then until the requests that are going on have ended.
    ///
    /// # Errors
    /// If the runtime cannot serve sockets, or connections had to be cut.
    ///
    /// # Cancel safety
    /// Dropped, it closes the socket and cuts all connections.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Self {
            address,
            listener,
            routes,
            tls,
            clock,
            drain,
        } = self;
        let listener = tokio::net::TcpListener::from_std(listener)
            .map_err(|source| ServeError::Runtime { address, source })?;
        let (stopping, stopped) = watch::channel(false);
        let connection = Connection {
            routes,
            acceptor: tls.as_ref().map(Tls::acceptor),
            clock: Arc::clone(&clock),
            stopped,
        };
        let mut connections = JoinSet::new();
        tokio::select! {
            biased;
            () = stop => {}
            () = accept(listener, &connection, &mut connections) => {}
            () = keep_fresh(tls.as_ref(), &*clock) => {}
        }
        // The receiver that new connections were given is still here, so somebody hears it.
        let _ = stopping.send(true);
        let deadline = clock.sleep_until(clock.now() + drain);
        tokio::select! {
            biased;
            () = empty(&mut connections) => Ok(()),
            () = deadline => Err(ServeError::NotDrained { address, connections: connections.len(), limit: drain }),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .field("routes", &self.routes)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// Takes connections, for ever.
async fn accept(listener: tokio::net::TcpListener, connection: &Connection, connections: &mut JoinSet<()>) {
    loop {
        tokio::select! {
            biased;
            Some(ended) = connections.join_next() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection.clone().serve(stream));
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    connection.clock.sleep_until(connection.clock.now() + ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn empty(connections: &mut JoinSet<()>) {
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

/// A handler that panics ends its connection and no other.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        tracing::error!("a handler panicked; its connection was closed");
    }
}

async fn keep_fresh(tls: Option<&Tls>, clock: &dyn Clock) {
    match tls {
        Some(tls) => tls.keep_fresh(clock).await,
        None => std::future::pending().await,
    }
}
