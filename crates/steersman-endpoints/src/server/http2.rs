// SPDX-License-Identifier: Apache-2.0
//! One HTTP/2 connection.

use std::{convert::Infallible, future::Future, pin::pin, sync::Arc, time::Duration};

use hyper::{body::Incoming, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use steersman_core::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

use super::{
    activity::{Activity, ReportingBody},
    connection::{Connection, respond, shutdown_requested},
    log_panic,
    timeouts::{HeaderTimer, TimedStream},
};
use crate::tls::ClientCertificate;

/// The protocol has no reason for long headers, and each concurrent request can have one.
const HEADER_BYTES_MAX: u32 = 64 << 10;

const CONCURRENT_REQUESTS_MAX: u32 = 100;

/// Number of requests that a client can reset before the server has seen them.
const PENDING_RESETS_MAX: usize = 20;

/// Buffered bytes of each response.
const SEND_BUFFER_BYTES_MAX: usize = 64 << 10;

/// Time to tell an idle client that the connection ends.
const GOODBYE: Duration = Duration::from_secs(1);

/// Runs the requests of one connection. They end with it: hyper owns the only reference to it.
#[derive(Clone, Debug, Default)]
struct Requests(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Requests {
    fn execute(&self, request: F) {
        let mut requests = self.0.lock();
        while let Some(ended) = requests.try_join_next() {
            log_panic(ended);
        }
        requests.spawn(request);
    }
}

impl Connection {
    pub(super) async fn serve_http_2(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send,
        timer: HeaderTimer,
        certificate: Option<ClientCertificate>,
    ) {
        let mut shutdown = self.shutdown.clone();
        let clock = Arc::clone(&self.clock);
        let activity = Activity::new(Arc::clone(&clock), timer.accepted());
        let of_requests = activity.clone();
        let service = service_fn(move |request: http::Request<Incoming>| {
            let (routes, working) = (Arc::clone(&self.routes), of_requests.request());
            let request = self.accept(request, certificate.as_ref());
            async move {
                let response = respond(&routes, request).await;
                Ok::<_, Infallible>(response.map(|body| ReportingBody::new(body, working)))
            }
        });
        let stream = TimedStream::new(stream, timer);
        let mut connection = pin!(
            http2::Builder::new(Requests::default())
                .max_concurrent_streams(CONCURRENT_REQUESTS_MAX)
                .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
                .max_header_list_size(HEADER_BYTES_MAX)
                .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = shutdown_requested(&mut shutdown) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => ended,
                    () = activity.timed_out() => return tracing::debug!("HTTP/2 connection timed out"),
                }
            }
            () = activity.timed_out() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => ended,
                    () = clock.sleep_until(clock.now() + GOODBYE) => return tracing::debug!("HTTP/2 connection timed out"),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "HTTP/2 connection failed");
        }
    }
}
