// SPDX-License-Identifier: Apache-2.0
//! Connections that carry long lists cheaply.
//!
//! An API server writes a list in records of 4 KB, one after the other as it encodes them. A client that is woken for
//! each of them, and reads each with two calls, spends more on that than on the list. Two streams help, one below TLS
//! and one above it: [`socket`] reads what is there by one call and lets a stream that is busy gather for 2 ms,
//! [`gather`] hands on many records at once.
//!
//! A watch may be silent for minutes, and a peer that has gone says nothing either. The kernel tells the two apart: it asks
//! the peer's, which answers for as long as it is there.

mod gather;
mod guard;
mod socket;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use kube::{Client, Config, client::ConfigExt};
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder};

use gather::Gather;
use guard::Guarded;
pub use guard::WriteGuard;
use socket::Socket;

/// A connection on which nothing came for so long is asked whether its peer is there.
const ASK_AFTER: Duration = Duration::from_secs(15);
/// Then it is asked at this interval.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// It is broken after so many questions without an answer: after 45 s in all, as with client-go.
const ASK_TIMES: u32 = 3;

/// How much of an answer is read ahead of whoever takes it. hyper would go up to 400 KB, for each of the connections that
/// fill a cache at once; beyond this nothing gets faster.
const READ_AHEAD: usize = 128 << 10;

/// A client for the lists and watches of a cache.
///
/// It sends what [`Client::try_from`] sends, with the same credentials. What differs:
///
/// * A connection whose peer has gone without a word, as behind a NAT that forgot it, breaks after 45 s. With kube's, a
///   watch on it would stay silent until somebody loses patience.
/// * It reads a long list for less than half of the CPU. A stream that brings more than 16 MB a second is looked at
///   every other millisecond instead of being waited for, which adds up to 2 ms of latency then, and only then.
/// * It keeps to no read timeout: informers notice silence themselves, and a watch may be silent.
/// * It asks the [`WriteGuard`] of a request before bytes of its body are written.
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
    let below = Wrapping::new(sockets(config), |stream: TokioIo<TcpStream>| {
        TokioIo::new(Socket::new(stream.into_inner()))
    });
    let tls = config.rustls_https_connector_with_connector(below)?;
    let above = Wrapping::new(tls, |stream| TokioIo::new(Gather::new(TokioIo::new(stream))));
    let service: legacy::Client<_, Guarded> = legacy::Client::builder(TokioExecutor::new())
        .http1_max_buf_size(READ_AHEAD)
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

/// What opens sockets.
fn sockets(config: &Config) -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(config.connect_timeout);
    http.set_keepalive(Some(ASK_AFTER));
    http.set_keepalive_interval(Some(ASK_EVERY));
    http.set_keepalive_retries(Some(ASK_TIMES));
    http
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

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tokio::net::TcpListener;

    use super::*;

    // D32
    #[tokio::test]
    async fn a_write_that_is_refused_when_its_bytes_are_due_sends_none() {
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
            let mut bytes = Vec::new();
            // Until the connection ends, in whichever way.
            let _ = stream.read_to_end(&mut bytes).await;
            bytes
        };
        let (sent, received) = futures::join!(client.send(request), receive);
        assert!(sent.is_err() && guard.has_refused());
        assert_eq!(String::from_utf8_lossy(&received), "");
    }

    #[tokio::test]
    async fn a_peer_that_has_gone_is_noticed_by_the_kernel_in_45_seconds() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let address: Uri = address.parse().unwrap();
        let connected = sockets(&Config::new(address.clone())).call(address).await;
        let stream = connected.unwrap().into_inner();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        let questions = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        let noticed = socket.tcp_keepalive_time().unwrap() + questions;
        assert_eq!(noticed, Duration::from_secs(45));
    }
}
