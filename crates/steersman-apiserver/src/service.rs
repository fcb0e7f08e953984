// SPDX-License-Identifier: Apache-2.0
//! The server as a tower service: no sockets, bytes in and bytes out.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};

use crate::{
    auth::Identity,
    body::Body,
    server::{Inner, failed},
    status::Failure,
};

/// Maximum number of body bytes read. It exceeds the allowed size, so that the handler can reject a larger body.
const READ_LIMIT: usize = 4 * 1024 * 1024;

/// The response did not arrive: a fault broke the connection, or the request could not be read.
#[derive(Debug, thiserror::Error)]
#[error("the connection was lost before the response arrived")]
#[non_exhaustive]
pub struct ConnectionLost {}

impl ConnectionLost {
    pub(crate) fn new() -> Self {
        Self {}
    }
}

/// Serves in-process requests; pass it to `kube::Client::new`. Clones are cheap.
#[derive(Clone)]
pub struct Service {
    server: Arc<Inner>,
    identity: Identity,
}

impl Service {
    pub(crate) fn new(server: Arc<Inner>, identity: Identity) -> Self {
        Self { server, identity }
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl<B> tower_service::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = ConnectionLost;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, ConnectionLost>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), ConnectionLost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (server, identity) = (Arc::clone(&self.server), self.identity.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = match Limited::new(body, READ_LIMIT).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                    let failure = Failure::new(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        "RequestEntityTooLarge",
                        format!("Request entity too large: limit is {}", 3 * 1024 * 1024),
                    );
                    return Ok(failed(&failure));
                }
                Err(_) => return Err(ConnectionLost::new()),
            };
            server.serve(Request::from_parts(parts, body), identity).await
        })
    }
}
