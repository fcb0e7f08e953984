// SPDX-License-Identifier: Apache-2.0
//! Prevents writes that have become invalid before they reach the socket.
//!
//! A request passes several tasks on its way to the socket. On a busy machine each of them can be late, and the permission to
//! write can end in between. So the last task, which writes the bytes, checks it once more.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tower::BoxError;

/// A request extension that decides whether the body is written, at the moment when its bytes are due. A rejected request is
/// incomplete, so no server acts on it. A request without a body is not checked.
#[derive(Clone)]
pub struct WriteGuard(Arc<Inner>);

struct Inner {
    check: Box<dyn Fn() -> Result<(), BoxError> + Send + Sync>,
    has_refused: AtomicBool,
}

impl WriteGuard {
    /// Creates a guard that calls `check` each time bytes are due.
    #[must_use]
    pub fn new(check: impl Fn() -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            check: Box::new(check),
            has_refused: AtomicBool::new(false),
        }))
    }

    /// Returns true if bytes were rejected. Then the server did not receive the request.
    #[must_use]
    pub fn has_refused(&self) -> bool {
        self.0.has_refused.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<(), BoxError> {
        (self.0.check)().inspect_err(|_| self.0.has_refused.store(true, Ordering::Release))
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteGuard")
            .field("has_refused", &self.has_refused())
            .finish_non_exhaustive()
    }
}

/// A body whose bytes are written only if its guard allows it.
pub(super) struct Guarded {
    body: Body,
    guard: Option<WriteGuard>,
}

/// Applies the guard of a request to its body.
pub(super) fn guarded(mut request: Request<Body>) -> Request<Guarded> {
    let guard = request.extensions_mut().remove();
    request.map(|body| Guarded { body, guard })
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_some()
            && let Some(guard) = &self.guard
            && let Err(refusal) = guard.check()
        {
            return Poll::Ready(Some(Err(refusal)));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
