// SPDX-License-Identifier: Apache-2.0
//! Time limits of a connection.
//!
//! hyper limits the time for reading a request header. Its limit also runs while a kept-alive connection waits for the next
//! request. Scrapers wait longer than a header is allowed to take, so the timer that hyper gets here has two limits, as
//! Go's server has: [`IDLE_TIMEOUT`] until the first byte of a header, [`HEADER_TIMEOUT`] from there.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::{body::Incoming, rt};
use steersman_core::{Clock, MonotonicTime, Mutex, Sleep};
use tokio::io::{self, AsyncRead, AsyncWrite, ReadBuf};

use crate::handler::{BodyTimeout, BoxError};

/// From the first byte of a header to its last; also for the TLS handshake and the first header together.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(32);

/// Between two requests.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// While a client accepts no data of a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(90);

/// From the moment when a handler first waits for the request body to the end of the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(32);

/// The timer that hyper uses for request headers. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct HeaderTimer {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The client connected at this moment.
    Connected(MonotonicTime),
    /// A header started at this moment. The state stays until the response ends; hyper does not use the timer then.
    Header(MonotonicTime),
    /// The connection is idle since this moment.
    Idle(MonotonicTime),
}

impl HeaderTimer {
    /// Creates the timer of a connection that was accepted now.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let state = Arc::new(Mutex::new(State::Connected(clock.now())));
        Self { clock, state }
    }

    /// Returns when the connection was accepted. To be called before the first request.
    pub(super) fn accepted(&self) -> MonotonicTime {
        match *self.state.lock() {
            State::Connected(since) | State::Header(since) | State::Idle(since) => since,
        }
    }

    pub(super) fn deadline(&self) -> MonotonicTime {
        match *self.state.lock() {
            State::Connected(since) | State::Header(since) => since + HEADER_TIMEOUT,
            State::Idle(since) => since + IDLE_TIMEOUT,
        }
    }

    /// Called when hyper starts to wait for a header.
    fn start(&self) {
        let mut state = self.state.lock();
        *state = match *state {
            State::Connected(since) => State::Header(since),
            State::Header(_) | State::Idle(_) => State::Idle(self.clock.now()),
        };
    }

    fn on_read(&self) {
        let mut state = self.state.lock();
        if let State::Idle(_) = *state {
            *state = State::Header(self.clock.now());
        }
    }
}

impl rt::Timer for HeaderTimer {
    /// Ignores the argument: the limits are those of this module.
    fn sleep(&self, _: Duration) -> Pin<Box<dyn rt::Sleep>> {
        self.start();
        Box::pin(HeaderSleep {
            timer: self.clone(),
            sleep: Mutex::new(None),
        })
    }

    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep(HEADER_TIMEOUT)
    }
}

/// Completes at the deadline of a [`HeaderTimer`], which moves. hyper polls it after each read.
struct HeaderSleep {
    timer: HeaderTimer,
    /// In a mutex, because hyper requires `Sync`.
    sleep: Mutex<Option<(MonotonicTime, Sleep)>>,
}

impl rt::Sleep for HeaderSleep {}

impl Future for HeaderSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { timer, sleep } = &mut *self;
        let sleep = sleep.get_mut();
        loop {
            let deadline = timer.deadline();
            let (_, armed) = match sleep {
                Some(armed) if armed.0 == deadline => armed,
                _ => sleep.insert((deadline, timer.clock.sleep_until(deadline))),
            };
            ready!(armed.as_mut().poll(cx));
            if timer.deadline() == deadline {
                return Poll::Ready(());
            }
        }
    }
}

/// A stream that reports reads to the timer and limits the time of a blocked write.
pub(super) struct TimedStream<S> {
    stream: S,
    timer: HeaderTimer,
    /// Since the client stopped accepting data.
    write_timeout: Option<Sleep>,
}

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S, timer: HeaderTimer) -> Self {
        Self {
            stream,
            timer,
            write_timeout: None,
        }
    }

    /// Replaces a pending write by an error when the time is over.
    fn limit<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.write_timeout = None;
            return polled;
        }
        let clock = &self.timer.clock;
        let timeout = self
            .write_timeout
            .get_or_insert_with(|| clock.sleep_until(clock.now() + WRITE_TIMEOUT));
        ready!(timeout.as_mut().poll(cx));
        self.write_timeout = None;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.timer.on_read();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limit(polled, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.limit(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A request body with a time limit.
pub(super) struct RequestBody {
    body: Incoming,
    clock: Arc<dyn Clock>,
    /// Since the first poll that had to wait.
    timeout: Option<Sleep>,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, clock: Arc<dyn Clock>) -> Self {
        Self {
            body,
            clock,
            timeout: None,
        }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, clock, timeout } = &mut *self;
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let sleep = timeout.get_or_insert_with(|| clock.sleep_until(clock.now() + BODY_TIMEOUT));
        ready!(sleep.as_mut().poll(cx));
        *timeout = None;
        Poll::Ready(Some(Err(BodyTimeout { limit: BODY_TIMEOUT }.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
