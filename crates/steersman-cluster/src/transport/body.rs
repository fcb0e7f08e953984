// SPDX-License-Identifier: Apache-2.0
//! Body of an answer, which ends when the conditions of its attempt do not hold any more.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use kube::client::Body;

use super::{AttemptGuard, SendError, histogram::Measured, limits::Permit};

/// Body with the conditions of its attempt. Aborting it closes its connection.
pub(crate) struct Guarded {
    /// `None` after an abort.
    body: Option<Body>,
    pass: AttemptGuard,
    ended: Pin<Box<dyn Future<Output = SendError> + Send>>,
    /// Place among the requests in flight, until the answer is read.
    permit: Permit,
    _held: Option<Arc<dyn Send + Sync>>,
    /// `None` for a watch.
    measured: Option<Measured>,
}

impl Guarded {
    pub(super) fn new(
        body: Body,
        pass: AttemptGuard,
        permit: Permit,
        held: Option<Arc<dyn Send + Sync>>,
    ) -> Self {
        let conditions = pass.clone();
        Self {
            body: Some(body),
            pass,
            ended: Box::pin(async move { conditions.ended().await }),
            permit,
            _held: held,
            measured: None,
        }
    }

    /// Returns the place among the requests in flight before the answer is read.
    pub(super) fn release(&mut self) {
        self.permit = None;
    }

    /// Measures the request up to the end of this body.
    pub(super) fn measured(mut self, measured: Measured) -> Self {
        self.measured = Some(measured);
        self
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(measured) = &self.measured {
            self.pass.measure(measured);
        }
    }
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = SendError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SendError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        // Checked on each poll: a stream that is always ready would never reach the wait below.
        let error = match this.pass.check() {
            Err(error) => error,
            Ok(()) => match Pin::new(body).poll_frame(cx) {
                Poll::Ready(frame) => {
                    if frame.is_none() {
                        this.permit = None;
                    }
                    if let (Some(measured), Some(Ok(frame))) = (&mut this.measured, &frame) {
                        measured.receive(frame.data_ref().map_or(0, Bytes::len));
                    }
                    return Poll::Ready(frame.map(|frame| frame.map_err(SendError::Failed)));
                }
                Poll::Pending => match this.ended.as_mut().poll(cx) {
                    Poll::Ready(error) => error,
                    Poll::Pending => return Poll::Pending,
                },
            },
        };
        (this.body, this.permit) = (None, None);
        Poll::Ready(Some(Err(this.pass.given_up(error))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map(http_body::Body::size_hint)
            .unwrap_or_default()
    }
}
