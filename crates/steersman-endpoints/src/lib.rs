// SPDX-License-Identifier: Apache-2.0
//! HTTP endpoints of a Kubernetes operator: probes, metrics, and routes of your own.
//!
//! | type | purpose |
//! |---|---|
//! | [`Server`] | serves [`Routes`] on one address, with limits, TLS and a graceful shutdown |
//! | [`Routes`], [`HttpHandler`] | map paths to handlers; a handler is an async function or a tower service |
//! | [`Tls`] | a self-signed certificate, or certificate files that are reloaded when they change |
//! | [`Checks`] | named health checks behind `/healthz` and `/readyz`, with the responses of controller-runtime |
//! | [`MetricsRegistry`] | metrics of `prometheus-client`, registered until a [`RegistrationGuard`] is dropped |
//! | [`MetricsServer`] | `/metrics` and other protected paths, with authentication and authorization by the API server |
//!
//! The crate knows neither clusters nor controllers. `steersman-runtime` configures it for you; use it directly for a
//! server of your own, such as a webhook.
//!
//! # Example
//! A server with probes and a handler that accepts a POST body of at most 1 MiB:
//! ```
//! use std::{net::Ipv4Addr, sync::Arc};
//! use http::{Method, StatusCode};
//! use steersman_core::TokioClock;
//! use steersman_endpoints::{Checks, HttpHandler, Routes, Server, read_body, text_response};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let ready = Checks::new();
//! ready.add_sync("database", || Ok::<(), std::io::Error>(()))?.detach();
//!
//! let echo = HttpHandler::new(|request| async move {
//!     if request.method() != Method::POST {
//!         return text_response(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
//!     }
//!     match read_body(request.into_body(), 1 << 20).await {
//!         Ok(body) => text_response(StatusCode::OK, body),
//!         Err(error) => error.response(),
//!     }
//! });
//!
//! let mut routes = Routes::new();
//! ready.mount(&mut routes, "/readyz")?;
//! routes.add("/echo", echo)?;
//! let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into(), routes, Arc::new(TokioClock::new()))?;
//! println!("listening on {}", server.address());
//! server.serve(async { /* completes when the program shuts down */ }).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod auth_filter;
mod checks;
mod handler;
mod metrics;
mod registration;
mod routes;
mod server;
mod tls;

pub use checks::{CheckError, Checks, DuplicateCheck};
pub use handler::{
    Body, BodyError, BoxError, HttpHandler, HttpRequest, HttpResponse, read_body, text_response,
};
pub use metrics::{Exposition, MetricsRegistry, MetricsServer, MetricsServerError};
pub use registration::RegistrationGuard;
pub use routes::{RouteError, Routes};
pub use server::{BindError, ServeError, Server};
pub use tls::{Tls, TlsError};

/// The version of `prometheus-client` whose types [`MetricsRegistry`] accepts.
pub use prometheus_client;
