// SPDX-License-Identifier: Apache-2.0
//! An HTTP client.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use steersman_core::{Clock, TokioClock};
use tokio::{net::TcpStream, task::JoinSet};

/// A free port of this machine.
pub const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub fn real_time() -> Arc<dyn Clock> {
    Arc::new(TokioClock::new())
}

/// A response with its whole body.
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

/// Sends a request over a new connection.
pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    let stream = TcpStream::connect(address).await.unwrap();
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
