// SPDX-License-Identifier: Apache-2.0
//! An HTTP client, and servers that run during a test.

pub(crate) mod identities;
pub(crate) mod tls_client;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use steersman_core::{Clock, MonotonicTime, TestClock, TokioClock};
use steersman_endpoints::{HttpHandler, Routes, ServeError, Server};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::oneshot,
    task::JoinSet,
};

/// A free port of this machine.
pub(crate) const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A server that runs until it is shut down or dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    shutdown: oneshot::Sender<()>,
    serving: JoinSet<Result<(), ServeError>>,
}

impl Running {
    pub(crate) fn start(server: Server) -> Self {
        let (shutdown, requested) = oneshot::channel();
        let address = server.address();
        let mut serving = JoinSet::new();
        serving.spawn(server.serve(async { requested.await.unwrap_or_default() }));
        Self {
            address,
            shutdown,
            serving,
        }
    }

    /// Starts a server on a free port, in real time.
    pub(crate) fn of(routes: Routes) -> Self {
        Self::start(Server::bind(HERE, routes, real_time()).unwrap())
    }

    /// Requests a shutdown without waiting for it.
    pub(crate) fn request_shutdown(self) -> JoinSet<Result<(), ServeError>> {
        self.shutdown.send(()).unwrap();
        self.serving
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        get(self.address, path).await
    }
}

/// Responds with `hello`.
pub(crate) fn hello() -> HttpHandler {
    HttpHandler::new(|_| async { http::Response::new(Full::new(Bytes::from("hello"))) })
}

pub(crate) fn real_time() -> Arc<dyn Clock> {
    Arc::new(TokioClock::new())
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn parts(&self) -> (u16, &str) {
        (self.status, &self.body)
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Reply {
    send(address, Request::get(path).body(Full::default()).unwrap()).await
}

pub(crate) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    over(TcpStream::connect(address).await.unwrap(), request).await
}

/// Sends a request over a stream.
pub(crate) async fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Reply {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let mut driving = JoinSet::new();
    driving.spawn(connection);
    let response = sender.send_request(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Reply {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// Waits until the next deadline of the clock is this far away.
pub(crate) async fn next_deadline_in(clock: &TestClock, after: Duration) {
    let wanted: MonotonicTime = clock.now() + after;
    while clock.next_deadline() != Some(wanted) {
        tokio::task::yield_now().await;
    }
}

/// An HTTP/1.1 connection that stays open.
pub(crate) struct Open {
    sender: http1::SendRequest<Full<Bytes>>,
    _driving: JoinSet<hyper::Result<()>>,
}

impl Open {
    pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut driving = JoinSet::new();
        driving.spawn(connection);
        Self {
            sender,
            _driving: driving,
        }
    }

    /// Gets a path, and returns the status.
    pub(crate) async fn get(&mut self, path: &str) -> u16 {
        self.sender.ready().await.unwrap();
        let request = Request::get(path).body(Full::default()).unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        status
    }
}
