// SPDX-License-Identifier: Apache-2.0
//! How long a connection may take for what it is doing.
//!
//! hyper has a limit for reading a header, which also runs while a connection waits for its next request. Scrapers keep
//! a connection for longer than a header may take, so the two have limits of their own here, as in Go.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use steersman_core::{Clock, Moment};
use tokio::{
    io::{self, AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

use super::{BoxError, Response};

/// From the first byte of a header to its last.
const HEADER: Duration = Duration::from_secs(32);

/// Between two requests.
const IDLE: Duration = Duration::from_secs(90);

/// What a connection does, and since when.
#[derive(Clone, Debug)]
pub(super) struct Pace(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    stage: Mutex<Stage>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A header has begun.
    Header(Moment),
    /// A request is being answered. That is the handler's time.
    Answering,
    /// Nothing has happened since then.
    Idle(Moment),
}

/// A request is being answered while this lives.
#[derive(Debug)]
pub(super) struct Answering(Pace);

impl Pace {
    /// Begins with a header: who connects has something to ask.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let stage = Mutex::new(Stage::Header(clock.now()));
        Self(Arc::new(Shared {
            clock,
            stage,
            changed: Notify::new(),
        }))
    }

    /// Ends when the connection has taken too long.
    pub(super) async fn expired(&self) {
        loop {
            let Some(deadline) = self.deadline() else {
                self.0.changed.notified().await;
                continue;
            };
            if deadline <= self.0.clock.now() {
                return;
            }
            tokio::select! {
                biased;
                // A permit is kept for a change between the look above and here.
                () = self.0.changed.notified() => {}
                () = self.0.clock.sleep_until(deadline) => {}
            }
        }
    }

    pub(super) fn answering(&self) -> Answering {
        *self.lock() = Stage::Answering;
        self.0.changed.notify_one();
        Answering(self.clone())
    }

    fn deadline(&self) -> Option<Moment> {
        match *self.lock() {
            Stage::Header(since) => Some(since + HEADER),
            Stage::Answering => None,
            Stage::Idle(since) => Some(since + IDLE),
        }
    }

    fn heard(&self) {
        let mut stage = self.lock();
        if let Stage::Idle(_) = *stage {
            *stage = Stage::Header(self.0.clock.now());
            self.0.changed.notify_one();
        }
    }

    /// The end of an answer still leaves for a slow reader after its body is done with.
    fn said(&self) {
        if let Stage::Idle(since) = &mut *self.lock() {
            *since = self.0.clock.now();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let pace = &self.0;
        *pace.lock() = Stage::Idle(pace.0.clock.now());
        pace.0.changed.notify_one();
    }
}

/// A stream that tells what passes.
#[derive(Debug)]
pub(super) struct Paced<S> {
    pub(super) stream: S,
    pub(super) pace: Pace,
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pace.heard();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        if polled.is_ready() {
            self.pace.said();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of an answer, which is not given before its end.
#[derive(Debug)]
pub(super) struct Body {
    body: http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>,
    _answering: Answering,
}

impl Answering {
    /// Lasts as long as the answer's body from now on.
    pub(super) fn until_the_end_of(self, response: Response) -> http::Response<Body> {
        response.map(|body| Body {
            body,
            _answering: self,
        })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
