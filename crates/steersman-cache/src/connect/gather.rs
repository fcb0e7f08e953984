// SPDX-License-Identifier: Apache-2.0
//! A stream that combines several reads.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads until no more bytes are available, or the buffer is full. TLS returns one record at a time.
#[derive(Debug)]
pub(super) struct Gather<S> {
    stream: S,
    /// An error that occurred after bytes that were passed on.
    failed: Option<io::Error>,
}

impl<S> Gather<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, failed: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gather<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        loop {
            let so_far = buffer.filled().len();
            let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
            let is_more = buffer.filled().len() > so_far;
            match read {
                Poll::Ready(Ok(())) if is_more && buffer.remaining() > 0 => {}
                Poll::Pending if so_far > before => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) if so_far > before => {
                    self.failed = Some(error);
                    return Poll::Ready(Ok(()));
                }
                read => return read,
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gather<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: Connection> Connection for Gather<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt;

    use super::*;

    /// Returns these results one after another, and then nothing.
    struct Script(VecDeque<Poll<Result<&'static [u8], io::ErrorKind>>>);

    impl AsyncRead for Script {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0.pop_front().unwrap_or(Poll::Ready(Ok(b""))) {
                Poll::Pending => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Ready(Ok(bytes)) => {
                    let (now, later) = bytes.split_at(bytes.len().min(buffer.remaining()));
                    buffer.put_slice(now);
                    if !later.is_empty() {
                        self.0.push_front(Poll::Ready(Ok(later)));
                    }
                    Poll::Ready(Ok(()))
                }
                Poll::Ready(Err(kind)) => Poll::Ready(Err(kind.into())),
            }
        }
    }

    fn ready(text: &'static str) -> Poll<Result<&'static [u8], io::ErrorKind>> {
        Poll::Ready(Ok(text.as_bytes()))
    }

    #[tokio::test]
    async fn returns_available_bytes_at_once() {
        let script = [ready("a"), ready("bc"), Poll::Pending, ready("defgh"), ready("")];
        let mut gather = Gather::new(Script(script.into()));
        let mut room = [0; 4];
        let mut reads = Vec::new();
        loop {
            let length = gather.read(&mut room).await.unwrap();
            reads.push(String::from_utf8_lossy(&room[..length]).into_owned());
            if length == 0 {
                break;
            }
        }
        assert_eq!(reads, ["abc", "defg", "h", ""]);
    }

    #[tokio::test]
    async fn returns_bytes_before_an_error() {
        let script = [ready("a"), Poll::Ready(Err(io::ErrorKind::ConnectionReset))];
        let mut gather = Gather::new(Script(script.into()));
        let mut room = [0; 4];
        assert_eq!(gather.read(&mut room).await.unwrap(), 1);
        let error = gather.read(&mut room).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
