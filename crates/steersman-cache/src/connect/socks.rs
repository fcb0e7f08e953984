// SPDX-License-Identifier: Apache-2.0
//! Connects through a SOCKS 5 proxy.
//!
//! It opens the connection to the proxy before it hands it to `SocksV5`, whose error does not tell why a connection
//! cannot be opened.

use std::{
    future::{Future, ready},
    io,
    pin::Pin,
    task::{Context, Poll},
};

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::proxy::SocksV5;
use tower::{BoxError, Service, service_fn};

use super::proxy::Proxy;

#[derive(Clone, Debug)]
pub(super) struct Socks<C> {
    sockets: C,
    proxy: Proxy,
}

impl<C> Socks<C> {
    pub(super) fn new(proxy: Proxy, sockets: C) -> Self {
        Self { sockets, proxy }
    }
}

impl<C> Service<Uri> for Socks<C>
where
    C: Service<Uri>,
    C::Response: Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.sockets.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let (address, user) = (self.proxy.address.clone(), self.proxy.user());
        let connecting = self.sockets.call(address.clone());
        Box::pin(async move {
            let mut stream = Some(connecting.await.map_err(Into::into)?);
            let open = service_fn(move |_: Uri| {
                ready(
                    stream
                        .take()
                        .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)),
                )
            });
            let socks = SocksV5::new(address, open);
            let mut socks = match user {
                Some((user, password)) => socks.with_auth(user, password),
                None => socks,
            };
            socks.call(server).await.map_err(BoxError::from)
        })
    }
}
