// SPDX-License-Identifier: Apache-2.0
//! A small HTTP server for probes, metrics and webhooks, on top of hyper: HTTP/1.1, and over TLS also HTTP/2.
//!
//! hyper parses requests, enforces the limits of headers and ends connections gracefully. This module accepts connections and
//! owns them. It does not use `axum::serve`, which applies hyper's default limits, and whose connection tasks outlive the
//! future that serves them unless a custom executor ends them.
//!
//! # Guarantees
//! 1. [`Server::bind`] binds the address, so that a conflict of ports is an error before anything runs.
//! 2. Every connection belongs to the future of [`Server::serve`]: when that future completes or is dropped, all
//!    connections are closed.
//! 3. On shutdown, the server accepts no new connections, completes the requests in progress, and closes connections
//!    that are still open at the deadline.
//! 4. An idle connection is closed after 90 s. A connection is also closed if a request header takes longer than 32 s,
//!    counted from its first byte, or from the start of the connection, including the TLS handshake, for the first header.
//!    Over HTTP/2, each header after the first must be complete within the idle time.
//! 5. A header of more than 1 MiB gets status 431. Over HTTP/2, the limit is 64 KiB.
//! 6. A request body that is not complete 32 s after the handler first had to wait for it fails to be read.
//! 7. A connection is closed if its client accepts no data of a response for 90 s.
//! 8. An HTTP/2 connection has at most 100 concurrent requests. A client that resets requests, or sends more frames than
//!    they need, loses its connection.
//!
//! # Not promised
//! HTTP/2 without TLS.

mod activity;
mod connection;
mod http2;
mod timeouts;

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

use crate::{Routes, Tls};
use connection::Connection;

/// Delay after a failed accept, for example when the process has too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Default of [`Server::shutdown_timeout`].
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP server that is bound to an address. [`serve`](Self::serve) runs it.
///
/// Limits: request headers have at most 1 MiB and 32 s, request bodies 32 s, idle connections and blocked writes 90 s. Handlers limit the size
/// of bodies with [`read_body`](crate::read_body).
pub struct Server {
    address: SocketAddr,
    listener: TcpListener,
    routes: Arc<Routes>,
    tls: Option<Tls>,
    clock: Arc<dyn Clock>,
    shutdown_timeout: Duration,
}

/// A server could not be bound to its address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another socket is bound to the address.
    #[error(
        "cannot listen on {address}: the address is in use; stop the other program or choose another port"
    )]
    AddressInUse {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// This process cannot listen on the address.
    #[error(
        "cannot listen on {address}; choose an address of this machine and a port that this user can bind (usually 1024 or higher)"
    )]
    Unavailable {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// A server failed, or did not shut down in time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The runtime did not accept the socket.
    #[error("cannot serve {address}: the runtime did not register the socket; enable its I/O driver")]
    Runtime {
        /// The address of the server.
        address: SocketAddr,
        /// The error of the runtime.
        #[source]
        source: io::Error,
    },
    /// Requests were in progress at the shutdown deadline. Their connections were closed.
    #[error("shutdown of {address} timed out after {limit:?}: {connections} connection(s) were closed")]
    ShutdownTimeout {
        /// The address of the server.
        address: SocketAddr,
        /// Number of connections that were closed.
        connections: usize,
        /// The shutdown timeout.
        limit: Duration,
    },
}

impl Server {
    /// Binds an address; port 0 selects a free port. Clients that connect before [`Self::serve`] runs wait for it.
    ///
    /// # Errors
    /// If the address is in use or unavailable.
    pub fn bind(address: SocketAddr, routes: Routes, clock: Arc<dyn Clock>) -> Result<Self, BindError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::AddressInUse { address, source },
            _ => BindError::Unavailable { address, source },
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            address: listener.local_addr().map_err(failed)?,
            listener,
            routes: Arc::new(routes),
            tls: None,
            clock,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
        })
    }

    /// Serves HTTPS. Default: plain HTTP.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Time for requests in progress to complete on shutdown. Default: 10 s; zero does not wait.
    #[must_use]
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.shutdown_timeout = limit;
        self
    }

    /// Creates another server on the same socket, which can be served after this one has shut down.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            address: self.address,
            listener: self.listener.try_clone()?,
            routes: Arc::clone(&self.routes),
            tls: self.tls.clone(),
            clock: Arc::clone(&self.clock),
            shutdown_timeout: self.shutdown_timeout,
        })
    }

    /// Returns the address that the server is bound to, with the actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` completes, then completes the requests in progress.
    ///
    /// # Errors
    /// If the runtime has no I/O driver, or requests exceeded the shutdown timeout.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket and all connections.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let Self {
            address,
            listener,
            routes,
            tls,
            clock,
            shutdown_timeout,
        } = self;
        let listener = tokio::net::TcpListener::from_std(listener)
            .map_err(|source| ServeError::Runtime { address, source })?;
        let (sender, receiver) = watch::channel(false);
        let connection = Connection {
            routes,
            tls: tls.clone(),
            clock: Arc::clone(&clock),
            shutdown: receiver,
        };
        let mut connections = JoinSet::new();
        tokio::select! {
            biased;
            () = shutdown => {}
            () = accept(listener, &connection, &mut connections) => {}
            () = reload_certificate(tls.as_ref(), &*clock) => {}
        }
        sender.send_replace(true);
        let deadline = clock.sleep_until(clock.now() + shutdown_timeout);
        tokio::select! {
            biased;
            () = join_all(&mut connections) => Ok(()),
            () = deadline => Err(ServeError::ShutdownTimeout {
                address,
                connections: connections.len(),
                limit: shutdown_timeout,
            }),
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

/// Accepts connections. Never completes.
async fn accept(listener: tokio::net::TcpListener, connection: &Connection, connections: &mut JoinSet<()>) {
    loop {
        tokio::select! {
            biased;
            Some(ended) = connections.join_next() => log_panic(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection.clone().serve(stream));
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to accept connection");
                    connection.clock.sleep_until(connection.clock.now() + ACCEPT_RETRY_DELAY).await;
                }
            },
        }
    }
}

async fn join_all(connections: &mut JoinSet<()>) {
    while let Some(ended) = connections.join_next().await {
        log_panic(ended);
    }
}

/// A handler that panics ends its connection and no other.
fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        tracing::error!("HTTP handler panicked; closed its connection");
    }
}

async fn reload_certificate(tls: Option<&Tls>, clock: &dyn Clock) {
    match tls {
        Some(tls) => tls.reload(clock).await,
        None => std::future::pending().await,
    }
}
