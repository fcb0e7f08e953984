// SPDX-License-Identifier: Apache-2.0
//! A socket that reads many bytes at once, and is polled by a timer while it is busy.
//!
//! While a server sends a list, each of its writes would wake this process. If the rate is high, the socket is removed from
//! the reactor and read once per tick; bytes accumulate in the kernel in between. When the rate falls, the socket returns to
//! the reactor.

#[cfg(test)]
mod tests;

use std::{
    io::{self, Read},
    mem,
    net::TcpStream as PlainStream,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

/// Poll interval of a busy socket. Timers of tokio have no finer resolution.
const TICK: Duration = Duration::from_millis(2);

/// A socket is busy if it receives this many bytes within [`WINDOW`]: 16 MB per second. Lists reach this rate, changes do not.
const BUSY: usize = 64 << 10;
const WINDOW: Duration = Duration::from_millis(4);

/// A socket is no longer busy after this many ticks in a row with fewer than [`QUIET`] bytes: 8 MB per second.
const QUIET_TICKS: u32 = 4;
const QUIET: usize = 16 << 10;

/// Initial size of the buffer. It grows up to [`BUFFER_MAX`] while it is filled repeatedly.
const BUFFER_MIN: usize = 16 << 10;
const BUFFER_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Socket {
    mode: Mode,
    /// The bytes between `start` and `end` are unread.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    rate: Rate,
    /// True if a writer waits until the socket is writable, which only the reactor reports.
    writer_waits: bool,
}

#[derive(Debug)]
enum Mode {
    /// The reactor reports when bytes are available.
    Waited(TcpStream),
    Polled(Polled),
    /// In transition, and after an error in it.
    Neither,
}

#[derive(Debug)]
struct Polled {
    stream: PlainStream,
    tick: Pin<Box<Sleep>>,
    /// True if nothing is to be read before the tick.
    is_waiting: bool,
    quiet_ticks: u32,
    /// The waker of the reader that waits for the tick.
    reader: Option<Waker>,
}

/// The recent rate of received bytes.
#[derive(Debug)]
struct Rate {
    since: Instant,
    bytes: usize,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            mode: Mode::Waited(stream),
            buffer: Box::default(),
            start: 0,
            end: 0,
            rate: Rate {
                since: Instant::now(),
                bytes: 0,
            },
            writer_waits: false,
        }
    }

    /// Fills the empty buffer. It stays empty at the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.is_empty() {
            self.resize(BUFFER_MIN);
        } else if self.end == self.buffer.len() && self.end < BUFFER_MAX {
            self.resize(self.end * 2);
        }
        (self.start, self.end) = (0, 0);
        loop {
            match &mut self.mode {
                Mode::Waited(stream) => {
                    let mut read = ReadBuf::new(&mut self.buffer);
                    match Pin::new(stream).poll_read(cx, &mut read) {
                        Poll::Ready(result) => {
                            self.end = read.filled().len();
                            self.rate.add(self.end);
                            return Poll::Ready(result);
                        }
                        Poll::Pending if self.rate.bytes < BUSY || self.writer_waits => {
                            return Poll::Pending;
                        }
                        Poll::Pending => self.poll_from_now_on()?,
                    }
                }
                Mode::Polled(polled) => match ready!(polled.poll_read(cx, &mut self.buffer))? {
                    Some(length) => {
                        self.end = length;
                        return Poll::Ready(Ok(()));
                    }
                    None => {
                        self.wait_from_now_on()?;
                    }
                },
                Mode::Neither => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            }
        }
    }

    fn poll_from_now_on(&mut self) -> io::Result<()> {
        if let Mode::Waited(stream) = mem::replace(&mut self.mode, Mode::Neither) {
            self.mode = Mode::Polled(Polled {
                stream: stream.into_std()?,
                tick: Box::pin(sleep(TICK)),
                is_waiting: true,
                quiet_ticks: 0,
                reader: None,
            });
        }
        Ok(())
    }

    /// Returns the stream to the reactor, if it is polled. A reader that waits for the tick must read again: the tick no longer
    /// exists, and the reactor does not know the reader.
    fn wait_from_now_on(&mut self) -> io::Result<&mut TcpStream> {
        if matches!(self.mode, Mode::Polled(_))
            && let Mode::Polled(polled) = mem::replace(&mut self.mode, Mode::Neither)
        {
            self.mode = Mode::Waited(TcpStream::from_std(polled.stream)?);
            if let Some(reader) = polled.reader {
                reader.wake();
            }
            self.rate.bytes = 0;
            if self.start == self.end {
                self.resize(BUFFER_MIN);
            }
        }
        match &mut self.mode {
            Mode::Waited(stream) => Ok(stream),
            Mode::Polled(_) | Mode::Neither => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn resize(&mut self, size: usize) {
        self.buffer = vec![0; size].into();
        (self.start, self.end) = (0, 0);
    }
}

impl Polled {
    /// Reads at the next tick, or at once if the last read filled the buffer. `None` if polling is no longer worth it.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Option<usize>>> {
        while self.quiet_ticks < QUIET_TICKS {
            if self.is_waiting {
                if self.tick.as_mut().poll(cx).is_pending() {
                    self.reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                self.reader = None;
                self.is_waiting = false;
            }
            let read = self.read(buffer)?;
            if read != Some(buffer.len()) {
                self.is_waiting = true;
                self.tick.as_mut().reset(Instant::now() + TICK);
            }
            self.quiet_ticks = match read {
                Some(length) if length >= QUIET => 0,
                _ => self.quiet_ticks + 1,
            };
            if read.is_some() {
                return Poll::Ready(Ok(read));
            }
        }
        Poll::Ready(Ok(None))
    }

    /// Reads the available bytes; `None` if there are none at the moment.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                result => return result.map(Some),
            }
        }
    }
}

impl Rate {
    fn add(&mut self, bytes: usize) {
        let now = Instant::now();
        if now.duration_since(self.since) > WINDOW {
            *self = Self { since: now, bytes: 0 };
        }
        self.bytes += bytes;
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.start == self.end {
            ready!(self.poll_fill(cx))?;
        }
        let length = out.remaining().min(self.end - self.start);
        out.put_slice(&self.buffer[self.start..self.start + length]);
        self.start += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.wait_from_now_on()?).poll_write(cx, bytes);
        self.writer_waits = written.is_pending();
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.wait_from_now_on()?).poll_write_vectored(cx, slices);
        self.writer_waits = written.is_pending();
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// A socket has nothing to flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.wait_from_now_on()?).poll_shutdown(cx)
    }
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        match &self.mode {
            Mode::Waited(stream) => stream.connected(),
            Mode::Polled(_) | Mode::Neither => Connected::new(),
        }
    }
}
