// SPDX-License-Identifier: Apache-2.0
//! Time limits of an HTTP/2 connection, which has several requests at once.
//!
//! hyper has no limit for an idle HTTP/2 connection, nor for a client that opens no window for a response. Both are the same:
//! the server waits for the client with every request of the connection.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use steersman_core::{Clock, MonotonicTime};
use tokio::sync::watch;

use super::timeouts::{HEADER_TIMEOUT, IDLE_TIMEOUT};
use crate::{Body, BoxError};

/// Maximum size of a frame that a body passes to hyper. hyper takes a frame when the client accepts data, and buffers the
/// rest of the frame: with small frames, the body shows whether the client accepts data.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// The activity of a connection. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    clock: Arc<dyn Clock>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Number of requests for which the server works: their handlers run, or their responses wait for data.
    working: usize,
    /// The last moment when the server began to wait for the client.
    since: MonotonicTime,
    has_served: bool,
}

/// One request of a connection, from its header to the end of its response.
#[derive(Debug)]
pub(super) struct Working {
    activity: Activity,
    /// False while the client has to accept data.
    is_working: bool,
}

/// A response body that reports when the client has to accept data.
pub(super) struct ReportingBody {
    body: Body,
    /// The rest of a frame that was too large.
    rest: Bytes,
    working: Working,
}

impl Activity {
    /// Starts with a connection that was accepted at this moment.
    pub(super) fn new(clock: Arc<dyn Clock>, accepted: MonotonicTime) -> Self {
        let state = State {
            working: 0,
            since: accepted,
            has_served: false,
        };
        Self {
            clock,
            state: watch::Sender::new(state),
        }
    }

    /// Records a request.
    pub(super) fn request(&self) -> Working {
        self.change(|state| {
            state.working += 1;
            state.has_served = true;
        });
        Working {
            activity: self.clone(),
            is_working: true,
        }
    }

    /// Waits until the client has been idle, or has accepted no data, for too long.
    pub(super) async fn timed_out(&self) {
        let mut changes = self.state.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            let limit = if state.has_served {
                IDLE_TIMEOUT
            } else {
                HEADER_TIMEOUT
            };
            tokio::select! {
                biased;
                // The sender lives as long as `self`.
                _ = changes.changed() => {}
                () = self.clock.sleep_until(state.since + limit), if state.working == 0 => return,
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let now = self.clock.now();
        self.state.send_modify(|state| {
            change(state);
            state.since = now;
        });
    }
}

impl Working {
    fn set(&mut self, is_working: bool) {
        if self.is_working == is_working {
            return;
        }
        self.is_working = is_working;
        self.activity.change(|state| match is_working {
            true => state.working += 1,
            false => state.working -= 1,
        });
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.set(true);
        self.set(false);
    }
}

impl ReportingBody {
    pub(super) fn new(body: Body, working: Working) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            working,
        }
    }
}

impl http_body::Body for ReportingBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, rest, working } = &mut *self;
        working.set(true);
        let mut frame = if rest.is_empty() {
            match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            }
        } else {
            std::mem::take(rest)
        };
        if frame.len() > FRAME_BYTES_MAX {
            *rest = frame.split_off(FRAME_BYTES_MAX);
        }
        working.set(false);
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, inner) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
