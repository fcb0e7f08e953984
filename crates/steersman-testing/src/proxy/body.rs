// SPDX-License-Identifier: Apache-2.0
//! Body of an answer that passes the proxy and can be held and cut.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Body as _, Frame, Incoming};
use tokio::{sync::watch, task};

use super::{
    Shared,
    fault::{Arrival, Cut},
    record::{Ended, Recorder},
};

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Forwards the body from the server until it ends or a fault ends it.
pub(super) fn pass(
    upstream: Incoming,
    recorder: Recorder,
    shared: Arc<Shared>,
    arrival: Arrival,
    cut_after: Option<(usize, Cut)>,
) -> Body {
    let plan = cut_after.map_or(Plan::Pass, |(lines, cut)| Plan::PassLines(lines, cut));
    let passing = Passing {
        upstream,
        recorder,
        shared,
        arrival,
        plan,
    };
    let frames = stream::unfold(passing, |mut passing| async move {
        let frame = passing.frame().await?;
        Some((frame, passing))
    });
    StreamBody::new(frames).boxed_unsync()
}

struct Passing {
    upstream: Incoming,
    recorder: Recorder,
    shared: Arc<Shared>,
    arrival: Arrival,
    plan: Plan,
}

/// Plan for the bytes that arrive.
#[derive(Clone, Copy)]
enum Plan {
    Pass,
    /// Forward this many lines, then cut.
    PassLines(usize, Cut),
    /// Forward half of a line, then break the connection.
    PassHalfLine,
    /// End cleanly.
    End,
    /// Break the connection.
    Break,
}

impl From<Cut> for Plan {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Clean => Self::End,
            Cut::Abrupt => Self::Break,
            Cut::MidLine => Self::PassHalfLine,
        }
    }
}

impl Passing {
    /// Returns the next frame, an error to break the connection, or `None` to end cleanly.
    async fn frame(&mut self) -> Option<io::Result<Frame<Bytes>>> {
        loop {
            match self.plan {
                Plan::End | Plan::Break => return self.end().await,
                Plan::PassLines(0, cut) => self.plan = cut.into(),
                Plan::Pass | Plan::PassLines(..) | Plan::PassHalfLine => {}
            }
            let Some(frame) = self.next_frame().await else {
                continue;
            };
            let data = match frame {
                Some(Ok(data)) => data,
                Some(Err(error)) => {
                    self.recorder.ended(Ended::ServerGone);
                    return Some(Err(io::Error::other(error)));
                }
                None => {
                    self.recorder.ended(Ended::Complete);
                    return None;
                }
            };
            self.hold().await;
            if let Plan::End | Plan::Break = self.plan {
                continue;
            }
            let data = self.shorten(&data);
            self.recorder.handed_on(data.len());
            // hyper does not poll after the last byte of an answer of known length.
            if matches!(self.plan, Plan::Pass) && self.upstream.is_end_stream() {
                self.recorder.ended(Ended::Complete);
            }
            return Some(Ok(Frame::data(data)));
        }
    }

    /// Returns the next frame from the server, or `None` if a cut was requested meanwhile, which is then the plan.
    async fn next_frame(&mut self) -> Option<Option<hyper::Result<Bytes>>> {
        tokio::select! {
            biased;
            cut = requested(&mut self.recorder.cut), if !matches!(self.plan, Plan::PassHalfLine) => {
                self.plan = cut.into();
                None
            }
            // Trailers are dropped; an API server sends none.
            frame = self.upstream.frame() => {
                Some(frame.map(|frame| frame.map(|frame| frame.into_data().unwrap_or_default())))
            }
        }
    }

    async fn end(&self) -> Option<io::Result<Frame<Bytes>>> {
        // hyper flushes its buffer when it has to wait, not when it sees an error.
        task::yield_now().await;
        self.recorder.ended(Ended::Cut);
        matches!(self.plan, Plan::Break).then(|| Err(io::ErrorKind::ConnectionAborted.into()))
    }

    /// Waits while a stall holds this stream. A requested cut ends the wait and becomes the plan.
    async fn hold(&mut self) {
        while let Some(stall) = self
            .recorder
            .exchange()
            .and_then(|exchange| self.shared.faults.stall(&exchange, &self.arrival))
        {
            tokio::select! {
                biased;
                cut = requested(&mut self.recorder.cut) => {
                    self.plan = cut.into();
                    return;
                }
                () = stall.released() => {}
            }
        }
    }

    /// Returns the part of `data` to forward, and updates the plan.
    fn shorten(&mut self, data: &Bytes) -> Bytes {
        match self.plan {
            Plan::PassHalfLine => {
                self.plan = Plan::Break;
                half_a_line(data)
            }
            Plan::PassLines(lines, cut) => match end_of_line(data, lines) {
                Err(seen) => {
                    self.plan = Plan::PassLines(lines - seen, cut);
                    data.clone()
                }
                Ok(end) if cut == Cut::MidLine && end < data.len() => {
                    self.plan = Plan::Break;
                    data.slice(..end + half_a_line(&data.slice(end..)).len())
                }
                Ok(end) => {
                    self.plan = cut.into();
                    data.slice(..end)
                }
            },
            Plan::Pass | Plan::End | Plan::Break => data.clone(),
        }
    }
}

/// Returns the offset after line number `lines` (counted from 1), or the number of lines if there are fewer.
fn end_of_line(data: &[u8], lines: usize) -> Result<usize, usize> {
    let mut seen = 0;
    for (at, _) in data.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        seen += 1;
        if seen == lines {
            return Ok(at + 1);
        }
    }
    Err(seen)
}

fn half_a_line(data: &Bytes) -> Bytes {
    let line = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    data.slice(..line.div_ceil(2))
}

/// Waits until a cut is requested.
async fn requested(cut: &mut watch::Receiver<Option<Cut>>) -> Cut {
    loop {
        if let Some(cut) = *cut.borrow_and_update() {
            return cut;
        }
        if cut.changed().await.is_err() {
            // The exchange was removed, so no cut can be requested any more.
            std::future::pending::<()>().await;
        }
    }
}
