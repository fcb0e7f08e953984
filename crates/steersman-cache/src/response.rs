// SPDX-License-Identifier: Apache-2.0
//! Reading an answer as it comes, and noticing when it does not come any more.

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

/// How much of an error's body is read.
const ERROR_LIMIT: usize = 1 << 16;

/// The body of a successful answer.
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

/// The time for which nothing may come.
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

    /// The time begins anew.
    pub(crate) fn hear(&mut self) {
        self.heard = self.clock.now();
    }

    /// Ends when nothing was heard for the limit. The timer is only set anew when it has run out, not with each byte.
    pub(crate) async fn over(&mut self) -> WatchError {
        loop {
            (&mut self.timer).await;
            let due = self.heard + self.limit;
            if self.clock.now() >= due {
                return WatchError::Silent { limit: self.limit };
            }
            self.timer = self.clock.sleep_until(due);
        }
    }
}

/// An answer other than success.
#[derive(Debug)]
pub(crate) struct Refusal {
    head: Parts,
    text: Vec<u8>,
}

impl Refusal {
    pub(crate) fn trouble(&self) -> WatchError {
        WatchError::of_answer(self.head.status, &self.head.headers, &self.text)
    }

    /// Whether it says that there is no object of this name, rather than that there is no such kind.
    pub(crate) fn is_about(&self, name: &str) -> bool {
        let status: Option<Status> = serde_json::from_slice(&self.text).ok();
        let details = status.and_then(|status| status.details);
        self.head.status == StatusCode::NOT_FOUND && details.is_some_and(|details| details.name == name)
    }
}

impl Response {
    /// Sends a request; anything but success is trouble.
    pub(crate) async fn to(
        client: &Client,
        request: Request<Body>,
        clock: &Arc<dyn Clock>,
        idle: Duration,
    ) -> Result<Self, WatchError> {
        let answer = Self::or_refusal(client, request, clock, idle).await?;
        answer.map_err(|refusal| refusal.trouble())
    }

    /// Sends a request; trouble is when no answer comes.
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
            trouble = idle.over() => return Err(trouble),
        };
        idle.hear();
        let (head, body) = answer.into_parts();
        let is_gzip = head
            .headers
            .get(header::CONTENT_ENCODING)
            .is_some_and(|encoding| encoding == "gzip");
        // A server may answer a watch with one gzip member per event: a decoder of the first member would go silent.
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

    /// From now on this much silence is too much.
    pub(crate) fn set_idle(&mut self, limit: Duration) {
        self.idle = Idle::new(&self.idle.clock, limit);
    }

    /// What comes next; nothing at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, WatchError> {
        loop {
            let frame = tokio::select! {
                biased;
                frame = self.body.frame() => frame,
                trouble = self.idle.over() => return Err(trouble),
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
        decoded.map_err(|error| WatchError::Undecodable {
            reason: format!("gzip: {error}"),
        })?;
        Ok(std::mem::take(decoder.get_mut()).into())
    }
}
