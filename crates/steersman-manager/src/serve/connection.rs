// SPDX-License-Identifier: Apache-2.0
//! The life of one connection.

use std::{convert::Infallible, pin::pin, sync::Arc};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use steersman_core::Clock;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

use super::{
    Routes,
    pace::{Pace, Paced},
};

/// As Go's servers.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// What a connection needs; each has its own copy.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) routes: Arc<Routes>,
    pub(super) acceptor: Option<TlsAcceptor>,
    pub(super) clock: Arc<dyn Clock>,
    /// Whether to end after the request that is going on.
    pub(super) stopped: watch::Receiver<bool>,
}

impl Connection {
    pub(super) async fn serve(self, stream: TcpStream) {
        // Without it, small responses wait for acknowledgements.
        let _ = stream.set_nodelay(true);
        let pace = Pace::new(Arc::clone(&self.clock));
        tokio::select! {
            biased;
            () = self.converse(stream, &pace) => {}
            () = pace.expired() => tracing::debug!("a connection was closed, since it kept silent for too long"),
        }
    }

    async fn converse(mut self, stream: TcpStream, pace: &Pace) {
        let Some(acceptor) = self.acceptor.take() else {
            return self.http(stream, pace).await;
        };
        let accepted = tokio::select! {
            biased;
            () = told_to_stop(&mut self.stopped) => return,
            accepted = acceptor.accept(stream) => accepted,
        };
        match accepted {
            Ok(stream) => self.http(stream, pace).await,
            Err(error) => tracing::debug!(%error, "a client did not agree with our TLS"),
        }
    }

    async fn http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send, pace: &Pace) {
        let mut stopped = self.stopped;
        let stream = Paced {
            stream,
            pace: pace.clone(),
        };
        let service = service_fn(|request| {
            let (routes, answering) = (Arc::clone(&self.routes), pace.answering());
            async move {
                let response = routes.answer(request).await;
                Ok::<_, Infallible>(answering.until_the_end_of(response))
            }
        });
        let mut connection = pin!(
            http1::Builder::new()
                // It would run between requests as well; see `pace`.
                .header_read_timeout(None)
                .max_header_size(HEADER_BYTES_MAX)
                .max_buf_size(HEADER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = told_to_stop(&mut stopped) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke");
        }
    }
}

async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    // A server that is gone tells it as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
