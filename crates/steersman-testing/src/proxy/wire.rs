// SPDX-License-Identifier: Apache-2.0
//! The network below TLS: connections that can be cut, frozen and refused.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::watch,
};

/// State that all connections share.
#[derive(Debug, Default)]
pub(super) struct Wire {
    state: Arc<Mutex<State>>,
    /// Number of open connections.
    open: Arc<watch::Sender<usize>>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections of an earlier era are cut.
    era: u64,
    /// Number of handles that keep the wire frozen.
    frozen: usize,
    /// Number of handles that keep it unplugged.
    unplugged: usize,
    connections: Vec<Weak<Mutex<Wakers>>>,
}

/// Tasks that wait for a connection: the reader and the writer.
#[derive(Debug, Default)]
struct Wakers {
    read: Option<Waker>,
    write: Option<Waker>,
}

/// Blocks all bytes while it exists. From [`FaultProxy::freeze`](super::FaultProxy::freeze).
#[derive(Debug)]
#[must_use = "bytes flow again when this drops"]
pub struct Frozen(Arc<Mutex<State>>);

/// Refuses connections while it exists. From [`FaultProxy::unplug`](super::FaultProxy::unplug).
#[derive(Debug)]
#[must_use = "connections are accepted again when this drops"]
pub struct Unplugged(Arc<Mutex<State>>);

/// A connection on the wire.
#[derive(Debug)]
pub(super) struct Plugged {
    stream: TcpStream,
    era: u64,
    wire: Arc<Mutex<State>>,
    wakers: Arc<Mutex<Wakers>>,
    open: Arc<watch::Sender<usize>>,
}

impl Wire {
    /// Adds a connection to the wire, unless the wire is unplugged.
    pub(super) fn plug(&self, stream: TcpStream) -> Option<Plugged> {
        let mut state = lock(&self.state);
        if state.unplugged > 0 {
            return None;
        }
        let wakers = Arc::default();
        state
            .connections
            .retain(|connection| connection.strong_count() > 0);
        state.connections.push(Arc::downgrade(&wakers));
        self.open.send_modify(|open| *open += 1);
        Some(Plugged {
            stream,
            era: state.era,
            wire: Arc::clone(&self.state),
            wakers,
            open: Arc::clone(&self.open),
        })
    }

    /// Returns the number of connections and its changes.
    pub(super) fn open(&self) -> watch::Receiver<usize> {
        self.open.subscribe()
    }

    pub(super) fn cut(&self) {
        change(&self.state, |state| state.era += 1);
    }

    pub(super) fn freeze(&self) -> Frozen {
        change(&self.state, |state| state.frozen += 1);
        Frozen(Arc::clone(&self.state))
    }

    pub(super) fn unplug(&self) -> Unplugged {
        change(&self.state, |state| {
            state.unplugged += 1;
            state.era += 1;
        });
        Unplugged(Arc::clone(&self.state))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        change(&self.0, |state| state.frozen -= 1);
    }
}

impl Drop for Unplugged {
    fn drop(&mut self) {
        change(&self.0, |state| state.unplugged -= 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes the state, then wakes every connection to check it.
fn change(wire: &Mutex<State>, change: impl FnOnce(&mut State)) {
    let connections = {
        let mut state = lock(wire);
        change(&mut state);
        state.connections.clone()
    };
    for wakers in connections.iter().filter_map(Weak::upgrade) {
        let mut wakers = lock(&wakers);
        let both = [wakers.read.take(), wakers.write.take()];
        both.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Plugged {
    /// Returns ready if bytes can pass now. The waker is registered first, so that no change is missed.
    fn poll_open(
        &self,
        cx: &Context<'_>,
        side: fn(&mut Wakers) -> &mut Option<Waker>,
    ) -> Poll<io::Result<()>> {
        *side(&mut lock(&self.wakers)) = Some(cx.waker().clone());
        let state = lock(&self.wire);
        if state.era != self.era {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        } else if state.frozen > 0 {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }
}

impl Drop for Plugged {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open -= 1);
    }
}

impl AsyncRead for Plugged {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_open(cx, |wakers| &mut wakers.read))?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Plugged {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_open(cx, |wakers| &mut wakers.write))?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_open(cx, |wakers| &mut wakers.write))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
