// SPDX-License-Identifier: Apache-2.0
//! Reads responses as they arrive, with an idle timeout.

use std::{io::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::{Request, StatusCode, header, response::Parts};
use http_body_util::BodyExt;
use kube::{
    client::{Body, Client},
    core::Status,
};
use steersman_core::{Clock, MonotonicTime, Sleep};

use crate::WatchError;

/// Maximum number of bytes read from an error response.
const ERROR_LIMIT: usize = 1 << 16;

/// The body of a successful response.
pub(crate) struct Response {
    body: Body,
    decoder: Option<MultiGzDecoder<Vec<u8>>>,
    idle: Idle,
}

impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Response").finish_non_exhaustive()
    }
}

/// An idle timeout.
pub(crate) struct Idle {
    clock: Arc<dyn Clock>,
    limit: Duration,
    heard: MonotonicTime,
    timer: Sleep,
}

impl Idle {
    pub(crate) fn new(clock: &Arc<dyn Clock>, limit: Duration) -> Self {
        let heard = clock.now();
        Self {
            clock: Arc::clone(clock),
            limit,
            heard,
            timer: clock.sleep_until(heard + limit),
        }
    }

    /// Restarts the timeout.
    pub(crate) fn hear(&mut self) {
        self.heard = self.clock.now();
    }

    /// Completes with `IdleTimeout` once nothing was received for the idle timeout. A received chunk only stores the time; the
    /// timer is re-armed when it fires.
    pub(crate) async fn over(&mut self) -> WatchError {
        loop {
            (&mut self.timer).await;
            let due = self.heard + self.limit;
            if self.clock.now() >= due {
                return WatchError::IdleTimeout { limit: self.limit };
            }
            self.timer = self.clock.sleep_until(due);
        }
    }
}

/// An error response.
#[derive(Debug)]
pub(crate) struct Refusal {
    head: Parts,
    text: Vec<u8>,
}

impl Refusal {
    pub(crate) fn error(&self) -> WatchError {
        WatchError::of_answer(self.head.status, &self.head.headers, &self.text)
    }

    /// Returns true if it reports a missing object of this name, rather than an unknown kind.
    pub(crate) fn is_about(&self, name: &str) -> bool {
        let status: Option<Status> = serde_json::from_slice(&self.text).ok();
        let details = status.and_then(|status| status.details);
        self.head.status == StatusCode::NOT_FOUND && details.is_some_and(|details| details.name == name)
    }
}

impl Response {
    /// Sends a request. Any response other than success is an error.
    pub(crate) async fn to(
        client: &Client,
        request: Request<Body>,
        clock: &Arc<dyn Clock>,
        idle: Duration,
    ) -> Result<Self, WatchError> {
        let answer = Self::or_refusal(client, request, clock, idle).await?;
        answer.map_err(|refusal| refusal.error())
    }

    /// Sends a request. Only a missing response is an error; an error response is returned as a [`Refusal`].
    pub(crate) async fn or_refusal(
        client: &Client,
        request: Request<Body>,
        clock: &Arc<dyn Clock>,
        idle: Duration,
    ) -> Result<Result<Self, Refusal>, WatchError> {
        let mut idle = Idle::new(clock, idle);
        let answer = tokio::select! {
            biased;
            answer = client.send(request) => answer.map_err(|error| WatchError::unreachable(&error))?,
            error = idle.over() => return Err(error),
        };
        idle.hear();
        let (head, body) = answer.into_parts();
        let is_gzip = head
            .headers
            .get(header::CONTENT_ENCODING)
            .is_some_and(|encoding| encoding == "gzip");
        // A server can answer a watch with one gzip member per event: a decoder of only the first member would stall.
        let decoder = is_gzip.then(|| MultiGzDecoder::new(Vec::new()));
        let mut response = Self { body, decoder, idle };
        if head.status.is_success() {
            return Ok(Ok(response));
        }
        let mut text = Vec::new();
        while text.len() < ERROR_LIMIT
            && let Ok(Some(chunk)) = response.chunk().await
        {
            text.extend_from_slice(&chunk);
        }
        Ok(Err(Refusal { head, text }))
    }

    /// Sets the idle timeout from now on.
    pub(crate) fn set_idle(&mut self, limit: Duration) {
        self.idle = Idle::new(&self.idle.clock, limit);
    }

    /// Returns the next bytes; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, WatchError> {
        loop {
            let frame = tokio::select! {
                biased;
                frame = self.body.frame() => frame,
                error = self.idle.over() => return Err(error),
            };
            self.idle.hear();
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(WatchError::unreachable(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return self.decode(data).map(Some);
                    }
                }
            }
        }
    }

    fn decode(&mut self, data: Bytes) -> Result<Bytes, WatchError> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(data);
        };
        let decoded = decoder.write_all(&data).and_then(|()| decoder.flush());
        decoded.map_err(|error| WatchError::InvalidResponse {
            reason: format!("gzip: {error}"),
        })?;
        Ok(std::mem::take(decoder.get_mut()).into())
    }
}
