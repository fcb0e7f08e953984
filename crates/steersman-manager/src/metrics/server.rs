// SPDX-License-Identifier: Apache-2.0
//! `/metrics` on a socket, and who may read it.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http_body_util::Full;
use kube::Client;
use steersman_core::{Clock, TokioClock};

use super::{Exposition, MetricsRegistry, door::Door};
use crate::{BindError, Handler, RouteError, Routes, Server, Tls};

/// Where metrics are. It cannot be given to another handler.
const PATH: &str = "/metrics";

/// The port that controllers have had for a decade.
const PORT: u16 = 8080;

/// Shows metrics, and whatever else is not for everybody, to those who may see it.
///
/// # Guarantees
/// 1. It is bound to `127.0.0.1:8080` unless told otherwise, and to an address that others can reach only with
///    [TLS](Self::tls) and [authorization](Self::authorize), or if it is told to be [insecure](Self::insecure).
/// 2. With authorization, every path is behind the same door: 401 without a token that the API server knows, 403 without
///    permission, 500 if the API server cannot be asked.
/// 3. `/metrics` is what the registry shows; no route takes its place.
///
/// ```no_run
/// use std::net::Ipv4Addr;
/// use steersman_manager::{MetricsRegistry, MetricsServer, Tls};
///
/// # async fn example(client: kube::Client, stop: impl Future<Output = ()> + Send) -> Result<(), Box<dyn std::error::Error>> {
/// let server = MetricsServer::new(MetricsRegistry::new())
///     .address((Ipv4Addr::UNSPECIFIED, 8443).into())
///     .tls(Tls::self_signed()?)
///     .authorize(client)
///     .bind()?;
/// server.serve(stop).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "it does nothing before `bind` and `Server::serve`"]
pub struct MetricsServer {
    registry: MetricsRegistry,
    address: SocketAddr,
    tls: Option<Tls>,
    client: Option<Client>,
    insecure: bool,
    routes: Vec<(String, Handler)>,
    clock: Arc<dyn Clock>,
}

/// The metrics server could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsServerError {
    /// Anybody could read the metrics.
    #[error(
        "metrics on {address} could be read by others, and {missing} missing: add what is missing, use a loopback address, or say `insecure()`"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
        /// What would keep them out.
        missing: &'static str,
    },
    /// A route was not accepted.
    #[error("a route of the metrics server was not accepted")]
    Route(#[from] RouteError),
    /// No socket could be had.
    #[error("the metrics server has no address")]
    Bind(#[from] BindError),
}

impl MetricsServer {
    /// A server of these metrics on `127.0.0.1:8080`.
    pub fn new(registry: MetricsRegistry) -> Self {
        Self {
            registry,
            address: (Ipv4Addr::LOCALHOST, PORT).into(),
            tls: None,
            client: None,
            insecure: false,
            routes: Vec::new(),
            clock: Arc::new(TokioClock::new()),
        }
    }

    /// The address to listen on; port 0 takes one that is free. Default: `127.0.0.1:8080`.
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Speaks HTTPS. Default: plain HTTP.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Asks the API server who sends a request (TokenReview) and whether they may (SubjectAccessReview for the path,
    /// with the method in lower case for a verb). Default: everybody may.
    ///
    /// The client needs what the ClusterRole `system:auth-delegator` allows. A scraper needs a rule such as
    /// `nonResourceURLs: ["/metrics"], verbs: ["get"]`. An identity is remembered for a minute, a permission for five, a
    /// refusal for half of one.
    pub fn authorize(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Serves an address that others can reach without TLS or authorization: something else keeps them out.
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// Answers another path (or, if it ends in a slash, all below it) behind the same door.
    pub fn route(mut self, path: impl Into<String>, handler: Handler) -> Self {
        self.routes.push((path.into(), handler));
        self
    }

    /// The time by which connections and memories age. Default: real time.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Takes the address.
    ///
    /// # Errors
    /// If it is taken, others could read the metrics there, or a route is not accepted.
    pub fn bind(self) -> Result<Server, MetricsServerError> {
        self.check_exposure()?;
        let mut routes = Routes::new();
        routes.add(PATH, metrics(self.registry, self.tls.as_ref()))?;
        for (path, handler) in self.routes {
            routes.add(path, handler)?;
        }
        if let Some(client) = self.client {
            let door = Arc::new(Door::new(client, Arc::clone(&self.clock)));
            routes = routes.map(|handler| Door::before(&door, handler));
        }
        let server = Server::bind(self.address, routes, self.clock)?;
        Ok(match self.tls {
            Some(tls) => server.tls(tls),
            None => server,
        })
    }

    fn check_exposure(&self) -> Result<(), MetricsServerError> {
        let missing = match (&self.tls, &self.client) {
            (None, None) => "both `tls` and `authorize` are",
            (None, Some(_)) => "`tls` is",
            (Some(_), None) => "`authorize` is",
            (Some(_), Some(_)) => return Ok(()),
        };
        if self.insecure || self.address.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(MetricsServerError::Exposed {
            address: self.address,
            missing,
        })
    }
}

fn metrics(registry: MetricsRegistry, tls: Option<&Tls>) -> Handler {
    let certificates = tls.map(|tls| registry.register(|part| tls.register(part)));
    Handler::new(move |request| {
        // They are shown as long as there is this handler.
        let _ = &certificates;
        let exposition = Exposition::preferred(request.headers());
        let mut response = http::Response::new(Full::new(Bytes::from(registry.encode(exposition))));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, exposition.content_type());
        std::future::ready(response)
    })
}

impl fmt::Debug for MetricsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsServer")
            .field("address", &self.address)
            .field("tls", &self.tls)
            .field("authorize", &self.client.is_some())
            .field("insecure", &self.insecure)
            .finish_non_exhaustive()
    }
}
