// SPDX-License-Identifier: Apache-2.0
//! Response bodies: complete bytes or a stream of chunks.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::Stream;
use http_body::{Frame, SizeHint};

use crate::clock::Clock;

/// A body ended in a way that the reader must treat as a broken connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// An injected fault reset the connection.
    #[error("the connection was reset by an injected fault")]
    Reset,
}

/// The body of a response.
pub struct Body(Inner);

enum Inner {
    Once(Option<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>>),
}

impl Body {
    pub(crate) fn once(bytes: Bytes) -> Self {
        Self(Inner::Once(Some(bytes)))
    }

    /// Returns the same body in chunks of `bytes`, with a pause before each.
    pub(crate) fn slowed(self, clock: Arc<dyn Clock>, bytes: usize, pause: Duration) -> Self {
        let Inner::Once(whole) = self.0 else { return self };
        let rest = whole.unwrap_or_default();
        Self::stream(futures::stream::unfold(rest, move |mut rest| {
            let wait = (!rest.is_empty()).then(|| clock.sleep(pause));
            async move {
                wait?.await;
                let piece = rest.split_to(bytes.clamp(1, rest.len()));
                Some((Ok(piece), rest))
            }
        }))
    }

    pub(crate) fn stream(stream: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Self {
        Self(Inner::Stream(Box::pin(stream)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Inner::Once(bytes) => Poll::Ready(
                bytes
                    .take()
                    .filter(|bytes| !bytes.is_empty())
                    .map(|bytes| Ok(Frame::data(bytes))),
            ),
            Inner::Stream(stream) => stream
                .as_mut()
                .poll_next(cx)
                .map(|item| item.map(|item| item.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Inner::Once(bytes) if bytes.as_ref().is_none_or(Bytes::is_empty))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Once(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Inner::Stream(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Once(bytes) => f.debug_tuple("Body").field(bytes).finish(),
            Inner::Stream(_) => f.write_str("Body(stream)"),
        }
    }
}
