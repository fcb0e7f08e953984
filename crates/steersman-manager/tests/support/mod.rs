// SPDX-License-Identifier: Apache-2.0
//! A client, and servers that run while a test does.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod careless;

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
use steersman_core::{Clock, Moment, TestClock, TokioClock};
use steersman_manager::{Routes, ServeError, Server};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::oneshot,
    task::JoinSet,
};

/// A free port of this machine.
pub const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A server that runs until it is stopped or dropped.
pub struct Running {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinSet<Result<(), ServeError>>,
}

impl Running {
    pub fn start(server: Server) -> Self {
        let (stop, stopped) = oneshot::channel();
        let address = server.address();
        let mut serving = JoinSet::new();
        serving.spawn(server.serve(async { stopped.await.unwrap_or_default() }));
        Self {
            address,
            stop,
            serving,
        }
    }

    /// On a free port, in real time.
    pub fn of(routes: Routes) -> Self {
        Self::start(Server::bind(HERE, routes, real_time()).unwrap())
    }

    /// Tells it to stop and does not wait.
    pub fn tell_to_stop(self) -> JoinSet<Result<(), ServeError>> {
        self.stop.send(()).unwrap();
        self.serving
    }

    pub async fn stop(self) -> Result<(), ServeError> {
        self.tell_to_stop().join_next().await.unwrap().unwrap()
    }

    pub async fn get(&self, path: &str) -> Reply {
        get(self.address, path).await
    }
}

pub fn real_time() -> Arc<dyn Clock> {
    Arc::new(TokioClock::new())
}

/// An answer that has come to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Reply {
    pub fn parts(&self) -> (u16, &str) {
        (self.status, &self.body)
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub async fn get(address: SocketAddr, path: &str) -> Reply {
    send(address, Request::get(path).body(Full::default()).unwrap()).await
}

pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    over(TcpStream::connect(address).await.unwrap(), request).await
}

/// Sends a request over a connection of its own.
pub async fn over(
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

/// Waits until somebody waits for a moment that far from now.
pub async fn waits_for(clock: &TestClock, after: Duration) {
    let wanted: Moment = clock.now() + after;
    while clock.next_deadline() != Some(wanted) {
        tokio::task::yield_now().await;
    }
}
