// SPDX-License-Identifier: Apache-2.0
//! Serves `/metrics`, with authentication and authorization.

use std::{
    fmt,
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http_body_util::Full;
use serde_json::Value;
use steersman_core::{Clock, TokioClock};

use super::{Exposition, MetricsRegistry};
use crate::{
    BindError, BoxError, HttpHandler, RouteError, Routes, Server, Tls,
    auth_filter::{AuthFilter, SendFn, SendFuture},
};

/// The path of the metrics. No other handler can have it.
const PATH: &str = "/metrics";

/// The default port of controller-runtime.
const PORT: u16 = 8080;

/// Builds a [`Server`] for `/metrics` and other protected paths.
///
/// # Guarantees
/// 1. The default address is `127.0.0.1:8080`. An address that other machines can reach requires [TLS](Self::tls) and
///    [authorization](Self::authorize), or the option [`insecure`](Self::insecure).
/// 2. Authorization applies to every path: a request gets status 401 without a valid token or client certificate, 403 without
///    permission, and 500 if the review fails.
/// 3. `/metrics` shows the registry; no route replaces it.
///
/// ```no_run
/// use std::net::Ipv4Addr;
/// use steersman_endpoints::{MetricsRegistry, MetricsServer, Tls};
///
/// # async fn example(client: kube::Client, shutdown: impl Future<Output = ()> + Send) -> Result<(), Box<dyn std::error::Error>> {
/// let server = MetricsServer::new(MetricsRegistry::new())
///     .address((Ipv4Addr::UNSPECIFIED, 8443).into())
///     .tls(Tls::self_signed()?)
///     .authorize(move |request| {
///         let client = client.clone();
///         async move { client.request(request).await }
///     })
///     .bind()?;
/// server.serve(shutdown).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "call `bind`, then `Server::serve`"]
pub struct MetricsServer {
    registry: MetricsRegistry,
    address: SocketAddr,
    tls: Option<Tls>,
    send: Option<SendFn>,
    insecure: bool,
    routes: Vec<(String, HttpHandler)>,
    clock: Arc<dyn Clock>,
}

/// The metrics server could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsServerError {
    /// Other machines could read the metrics.
    #[error(
        "cannot serve metrics on {address}: other machines can reach it, and {missing} missing; configure TLS and authorization, use a loopback address, or call `insecure()`"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
        /// The missing options as a clause, such as "`tls` and `authorize` are".
        missing: &'static str,
    },
    /// A route is invalid or a duplicate.
    #[error("cannot add a route to the metrics server")]
    Route(#[from] RouteError),
    /// The address cannot be bound.
    #[error("cannot start the metrics server")]
    Bind(#[from] BindError),
}

impl MetricsServer {
    /// Creates a server for a registry, with the default options.
    pub fn new(registry: MetricsRegistry) -> Self {
        Self {
            registry,
            address: (Ipv4Addr::LOCALHOST, PORT).into(),
            tls: None,
            send: None,
            insecure: false,
            routes: Vec::new(),
            clock: Arc::new(TokioClock::new()),
        }
    }

    /// Address to listen on; port 0 selects a free port. Default: `127.0.0.1:8080`.
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Serves HTTPS. Default: plain HTTP.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Authenticates clients with a TokenReview and authorizes them with a SubjectAccessReview for the path, whose verb is
    /// the method in lower case. Default: no authorization.
    ///
    /// If the server has a [client CA](Tls::client_ca), a client certificate authenticates its user without a TokenReview.
    ///
    /// `send` sends a request to the API server and returns the JSON of a successful response, as `kube::Client::request`
    /// does. Its identity needs the ClusterRole `system:auth-delegator`. A scraper needs a rule such as
    /// `nonResourceURLs: ["/metrics"], verbs: ["get"]`. Identities are cached for 1 min, permissions for 5 min, denials for
    /// 30 s.
    pub fn authorize<F, Fut, E>(mut self, send: F) -> Self
    where
        F: Fn(http::Request<Vec<u8>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.send = Some(Arc::new(move |request| -> SendFuture {
            let response = send(request);
            Box::pin(async move { response.await.map_err(Into::into) })
        }));
        self
    }

    /// Allows an address that other machines can reach without TLS or authorization. Use it when a proxy or a network
    /// policy protects the address.
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// Adds a handler for another path, with the same authorization. A path that ends in `/` matches all paths below it.
    pub fn route(mut self, path: impl Into<String>, handler: HttpHandler) -> Self {
        self.routes.push((path.into(), handler));
        self
    }

    /// Clock for time limits and cached reviews. Default: the system's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Binds the address.
    ///
    /// # Errors
    /// If the address is in use or not protected, or a route is invalid.
    pub fn bind(self) -> Result<Server, MetricsServerError> {
        self.check_exposure()?;
        let mut routes = Routes::new();
        routes.add(PATH, metrics_handler(self.registry, self.tls.as_ref()))?;
        for (path, handler) in self.routes {
            routes.add(path, handler)?;
        }
        if let Some(send) = self.send {
            let filter = Arc::new(AuthFilter::new(send, Arc::clone(&self.clock)));
            routes = routes.map(|handler| filter.protect(handler));
        }
        let server = Server::bind(self.address, routes, self.clock)?;
        Ok(match self.tls {
            Some(tls) => server.tls(tls),
            None => server,
        })
    }

    fn check_exposure(&self) -> Result<(), MetricsServerError> {
        let missing = match (&self.tls, &self.send) {
            (None, None) => "`tls` and `authorize` are",
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

fn metrics_handler(registry: MetricsRegistry, tls: Option<&Tls>) -> HttpHandler {
    let certificate_metrics = tls.map(|tls| registry.register(|part| tls.register_metrics(part)));
    HttpHandler::new(move |request| {
        // The closure owns the guard, so the metrics stay registered as long as the handler exists.
        let _ = &certificate_metrics;
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
            .field("authorize", &self.send.is_some())
            .field("insecure", &self.insecure)
            .finish_non_exhaustive()
    }
}
