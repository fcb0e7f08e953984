// SPDX-License-Identifier: Apache-2.0
//! Connections that carry long lists cheaply.
//!
//! An API server writes a list in records of 4 KB, one after the other as it encodes them. A client that is woken for
//! each of them, and reads each with two calls, spends more on that than on the list. Two streams help, one below TLS
//! and one above it: [`socket`] reads what is there by one call and lets a stream that is busy gather for 2 ms,
//! [`gather`] hands on many records at once.

mod gather;
mod socket;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Uri;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
};
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder};

use gather::Gather;
use socket::Socket;

/// A client for the lists and watches of a cache.
///
/// It sends what [`Client::try_from`] sends, with the same credentials. What differs:
///
/// * It reads a long list for less than half of the CPU. A stream that brings more than 16 MB a second is looked at
///   every other millisecond instead of being waited for, which adds up to 2 ms of latency then, and only then.
/// * It keeps to no read timeout: informers notice silence themselves, and a watch may be silent.
/// * It retries nothing and opens no span for a request: informers do the one, and say what is wrong themselves.
///
/// Behind a proxy, it is the same as [`Client::try_from`].
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// let config = kube::Config::infer().await?;
/// let client = steersman_cache::client(&config)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When the configuration has no use, such as certificates that cannot be read.
pub fn client(config: &Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        return Client::try_from(config.clone());
    }
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(config.connect_timeout);
    let below = Wrapping::new(http, |stream: TokioIo<TcpStream>| {
        TokioIo::new(Socket::new(stream.into_inner()))
    });
    let tls = config.rustls_https_connector_with_connector(below)?;
    let above = Wrapping::new(tls, |stream| TokioIo::new(Gather::new(TokioIo::new(stream))));
    let service: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(above);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(service);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// A connector whose streams are wrapped.
#[derive(Clone, Debug)]
struct Wrapping<C, F> {
    connector: C,
    wrap: F,
}

impl<C, F> Wrapping<C, F> {
    fn new(connector: C, wrap: F) -> Self {
        Self { connector, wrap }
    }
}

impl<C, F, W> Service<Uri> for Wrapping<C, F>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
    F: FnOnce(C::Response) -> W + Clone + Send + 'static,
{
    type Response = W;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<W, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, wrap) = (self.connector.call(uri), self.wrap.clone());
        Box::pin(async move { connecting.await.map(wrap) })
    }
}
