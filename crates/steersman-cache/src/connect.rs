// SPDX-License-Identifier: Apache-2.0
//! Connections that carry long lists cheaply.
//!
//! An API server writes a list in records of 4 KB, one after another as it encodes them. A client that is woken for each record,
//! and reads each with two calls, spends more on that than on the list. Two stream wrappers help, one below TLS and one above
//! it: [`socket`] reads all available bytes with one call and lets a busy stream accumulate for 2 ms; [`gather`] passes on
//! many records at once.
//!
//! A watch can be silent for minutes, and so is a peer that has disappeared. TCP keepalive tells the two apart: the peer's
//! kernel answers as long as it runs.

mod authority;
mod failure;
mod gather;
mod guard;
mod proxy;
mod socket;
mod socks;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connection, HttpConnector, proxy::Tunnel},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::{Client, Config, client::ConfigExt, config::AuthInfo};
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder};

pub use authority::{AuthorityPlace, InvalidAuthority};
use failure::{Failing, Route};
use gather::Gather;
use guard::Guarded;
pub use guard::WriteGuard;
pub use proxy::{InvalidProxy, ProxyOrigin};
use proxy::{Protocol, Proxy};
use socket::Socket;
use socks::Socks;

/// Idle time of a connection before the first keepalive probe.
const ASK_AFTER: Duration = Duration::from_secs(15);
/// Interval of keepalive probes.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which a connection is broken: after 45 s in all, as with client-go.
const ASK_TIMES: u32 = 3;

/// Time after which an unused connection is closed. An API server closes it after 90 s; a request that is sent at that
/// moment fails.
const IDLE: Duration = Duration::from_secs(60);

/// Number of bytes of a response that are read ahead. hyper would read up to 400 KB, for each of the connections that fill a
/// cache at once. A larger value makes nothing faster.
const READ_AHEAD: usize = 128 << 10;

/// A client cannot be created from a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The proxy URL is invalid.
    #[error(transparent)]
    Proxy(#[from] InvalidProxy),
    /// The certificate authority is missing, invalid or expired.
    #[error(transparent)]
    Authority(#[from] InvalidAuthority),
    /// kube rejects the configuration, for example an unreadable client certificate.
    #[error(transparent)]
    Config(Box<kube::Error>),
}

impl From<kube::Error> for ClientError {
    fn from(error: kube::Error) -> Self {
        Self::Config(Box::new(error))
    }
}

/// Creates a client for the lists and watches of a cache.
///
/// It sends the same requests as [`Client::try_from`], with the same credentials. The differences:
///
/// * A connection whose peer has disappeared silently, for example behind a NAT that dropped it, breaks after 45 s. With
///   kube's client, a watch on it would stay silent until a timeout.
/// * It reads a long list for less than half of the CPU. A stream of more than 16 MB per second is polled every 2 ms instead
///   of by the reactor. This adds up to 2 ms of latency to such a stream, and to no other.
/// * It has no read timeout: a watch can be silent, and informers have their own timeouts.
/// * It checks the [`WriteGuard`] of a request before it writes bytes of its body.
/// * It does not retry and opens no tracing span for a request: informers retry and report errors themselves.
/// * It uses proxies as client-go does: `proxy-url` of the kubeconfig, otherwise `HTTPS_PROXY` and `NO_PROXY` of the
///   environment, also in a Pod. HTTP, HTTPS and SOCKS 5 proxies are supported. Proxies of the environment are not used for
///   loopback hosts. An HTTPS proxy is verified with the CA of the cluster, and does not get the client certificate.
/// * `connect_timeout` includes the handshakes with the proxy and of TLS.
/// * An expired certificate authority is an error. The file of one (`root_cert_file`) is read once.
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
/// If the configuration is invalid, for example with unreadable certificates or an unusable proxy URL.
pub fn client(config: &Config) -> Result<Client, ClientError> {
    let mut config = config.clone();
    let proxy = Proxy::of(&config)?;
    let place = authority::load(&mut config)?;
    let sockets = Wrapping::new(sockets(&config), |stream: TokioIo<TcpStream>| {
        TokioIo::new(Socket::new(stream.into_inner()))
    });
    let Some(proxy) = proxy else {
        return over(sockets, &config, Route::direct(place));
    };
    let (address, route) = (proxy.address.clone(), Route::through(proxy.clone(), place));
    match proxy.protocol {
        Protocol::Socks5 => {
            let socks = Socks::new(proxy, sockets);
            over(Failing::of_proxy(socks, &route), &config, route)
        }
        Protocol::Http => {
            let tunnel = authorized(Tunnel::new(address, sockets), &proxy);
            over(Failing::of_proxy(tunnel, &route), &config, route)
        }
        Protocol::Https => {
            let mut without_identity = config.clone();
            without_identity.auth_info = AuthInfo::default();
            without_identity.tls_server_name = None;
            let sockets = without_identity.rustls_https_connector_with_connector(sockets)?;
            let tunnel = authorized(Tunnel::new(address, sockets), &proxy);
            over(Failing::of_proxy(tunnel, &route), &config, route)
        }
    }
}

fn authorized<C>(tunnel: Tunnel<C>, proxy: &Proxy) -> Tunnel<C> {
    match proxy.authorization() {
        Some(header) => tunnel.with_auth(header),
        None => tunnel,
    }
}

/// Creates a client whose bytes go over the streams of `connector`.
fn over<C>(connector: C, config: &Config, route: Route) -> Result<Client, ClientError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let tls = config.rustls_https_connector_with_connector(connector)?;
    let tls = Failing::of_server(tls, route, config.connect_timeout);
    let above = Wrapping::new(tls, |stream| TokioIo::new(Gather::new(TokioIo::new(stream))));
    let service: legacy::Client<_, Guarded> = legacy::Client::builder(TokioExecutor::new())
        .http1_max_buf_size(READ_AHEAD)
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(above);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_request(guard::guarded)
        .service(service);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Creates the connector that opens sockets.
fn sockets(config: &Config) -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    // A request is written at once, and must not wait for the acknowledgement of the one before.
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    http.set_keepalive(Some(ASK_AFTER));
    http.set_keepalive_interval(Some(ASK_EVERY));
    http.set_keepalive_retries(Some(ASK_TIMES));
    http
}

/// A connector that wraps its streams.
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

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tokio::net::TcpListener;

    use super::*;

    // D32
    #[tokio::test]
    async fn a_rejected_write_sends_no_bytes() {
        use tokio::io::AsyncReadExt;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: Uri = format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let client = client(&Config::new(address)).unwrap();
        let mut request = http::Request::post("/api/v1/pods")
            .body(kube::client::Body::from(b"{}".to_vec()))
            .unwrap();
        let guard = WriteGuard::new(|| Err("too late".into()));
        request.extensions_mut().insert(guard.clone());
        assert!(!guard.has_refused());
        let receive = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 1024];
            // Until bytes arrive, or the connection ends in any way.
            let length = stream.read(&mut bytes).await.unwrap_or(0);
            bytes.truncate(length);
            bytes
        };
        let (sent, received) = futures::join!(client.send(request), receive);
        assert!(sent.is_err() && guard.has_refused());
        assert_eq!(String::from_utf8_lossy(&received), "");
    }

    #[tokio::test]
    async fn the_kernel_detects_a_dead_peer_within_45_seconds() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let address: Uri = address.parse().unwrap();
        let connected = sockets(&Config::new(address.clone())).call(address).await;
        let stream = connected.unwrap().into_inner();
        let socket = SockRef::from(&stream);
        // C3
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        let questions = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        let noticed = socket.tcp_keepalive_time().unwrap() + questions;
        assert_eq!(noticed, Duration::from_secs(45));
    }
}
