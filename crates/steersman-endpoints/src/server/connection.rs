// SPDX-License-Identifier: Apache-2.0
//! One connection, from the TLS handshake to its end.

use std::{convert::Infallible, pin::pin, sync::Arc};

use http::StatusCode;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use steersman_core::Clock;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
};

use super::timeouts::{HEADER_TIMEOUT, HeaderTimer, RequestBody, TimedStream};
use crate::{
    Body, HttpRequest, HttpResponse, Routes, Tls, text_response,
    tls::{ClientCertificate, HTTP_2},
};

/// The limit of Go's servers.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// The state of a server that each connection gets a clone of.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) routes: Arc<Routes>,
    pub(super) tls: Option<Tls>,
    pub(super) clock: Arc<dyn Clock>,
    /// Becomes true when the server shuts down.
    pub(super) shutdown: watch::Receiver<bool>,
}

impl Connection {
    pub(super) async fn serve(mut self, stream: TcpStream) {
        // Without it, small responses wait for acknowledgements.
        let _ = stream.set_nodelay(true);
        let timer = HeaderTimer::new(Arc::clone(&self.clock));
        let Some(tls) = self.tls.take() else {
            return self.serve_http_1(stream, timer, None).await;
        };
        let accepted = tokio::select! {
            biased;
            () = shutdown_requested(&mut self.shutdown) => return,
            () = self.clock.sleep_until(timer.deadline()) => return tracing::debug!("TLS handshake timed out"),
            accepted = tls.acceptor().accept(stream) => accepted,
        };
        match accepted {
            Ok(stream) => {
                let (_, session) = stream.get_ref();
                let certificate = tls.client_certificate(session.peer_certificates());
                if session.alpn_protocol() == Some(HTTP_2) {
                    self.serve_http_2(stream, timer, certificate).await;
                } else {
                    self.serve_http_1(stream, timer, certificate).await;
                }
            }
            Err(error) => tracing::debug!(%error, "TLS handshake failed"),
        }
    }

    /// Prepares a request for its handler. Returns `None` if its client certificate is required and no longer valid.
    pub(super) fn accept(
        &self,
        request: http::Request<Incoming>,
        certificate: Option<&ClientCertificate>,
    ) -> Option<HttpRequest> {
        if certificate.is_some_and(|certificate| !certificate.is_accepted()) {
            return None;
        }
        let clock = Arc::clone(&self.clock);
        let mut request = request.map(|body| Body::new(RequestBody::new(body, clock)));
        if let Some(certificate) = certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        Some(request)
    }

    async fn serve_http_1(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send,
        timer: HeaderTimer,
        certificate: Option<ClientCertificate>,
    ) {
        let mut shutdown = self.shutdown.clone();
        let service = service_fn(move |request: http::Request<Incoming>| {
            let (routes, request) = (
                Arc::clone(&self.routes),
                self.accept(request, certificate.as_ref()),
            );
            async move { Ok::<_, Infallible>(respond(&routes, request).await) }
        });
        let stream = TimedStream::new(stream, timer.clone());
        let mut connection = pin!(
            http1::Builder::new()
                .timer(timer)
                .header_read_timeout(HEADER_TIMEOUT)
                .max_header_size(HEADER_BYTES_MAX)
                .max_buf_size(HEADER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = shutdown_requested(&mut shutdown) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "HTTP connection failed");
        }
    }
}

/// Responds to a request that was [accepted](Connection::accept), and rejects others.
pub(super) async fn respond(routes: &Routes, request: Option<HttpRequest>) -> HttpResponse {
    match request {
        Some(request) => routes.respond(request).await,
        None => text_response(StatusCode::UNAUTHORIZED, "Unauthorized\n"),
    }
}

/// Completes also when the server no longer exists.
pub(super) async fn shutdown_requested(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|shutdown| *shutdown).await;
}
