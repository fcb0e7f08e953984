// SPDX-License-Identifier: Apache-2.0
//! The events of a watch, built in advance.

use std::{
    io::{self, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use bench_protocol::{objects::SENT_PLACEHOLDER, participant::unix_nanos};
use serde_json::json;

use crate::Gate;

/// Bytes in a chunk where events come at once. An API server flushes when no event waits, so in a burst it is Go's
/// buffer that makes the chunks: `bufferBeforeChunkingSize` of `net/http`.
const CHUNK: usize = 2_048;

/// Bytes in one write where events come at once.
const WRITE: usize = 256 << 10;

/// Content of a watch.
#[derive(Debug)]
#[non_exhaustive]
pub enum Stream {
    /// Chunks, ready to be written.
    AtOnce(Vec<u8>),
    /// Single events, each a chunk with a place for the time, and the nanoseconds between two.
    Paced(Vec<Event>, u64),
    /// Another stream, once a gate is open.
    Gated(Arc<Gate>, Arc<Self>),
}

/// One event in its chunk.
#[derive(Debug)]
pub struct Event {
    chunk: Vec<u8>,
    sent_at: usize,
}

impl Stream {
    /// As many objects as fast as they are read. `object` makes one by its number and revision.
    pub fn at_once(count: usize, object: fn(usize, usize) -> String) -> Self {
        let lines: Vec<u8> = (0..count)
            .flat_map(|index| line(&object(index, index + 2)).into_bytes())
            .collect();
        Self::AtOnce(lines.chunks(CHUNK).flat_map(chunk).collect())
    }

    /// As many objects, so many nanoseconds apart, each of which says when it was sent.
    ///
    /// # Panics
    /// When an object has no place for the time.
    pub fn paced(count: usize, pace: u64, object: fn(usize, usize) -> String) -> Self {
        let event = |index| {
            let chunk = chunk(line(&object(index, index + 2)).as_bytes());
            let place = SENT_PLACEHOLDER.as_bytes();
            let sent_at = chunk.windows(place.len()).position(|part| part == place);
            Event {
                sent_at: sent_at.expect("an object has a place for the time"),
                chunk,
            }
        };
        Self::Paced((0..count).map(event).collect(), pace)
    }

    /// Sends everything.
    ///
    /// # Errors
    /// When the client has disconnected.
    pub fn send(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::AtOnce(chunks) => chunks.chunks(WRITE).try_for_each(|part| out.write_all(part)),
            Self::Gated(gate, stream) => {
                gate.pass();
                stream.send(out)
            }
            Self::Paced(events, pace) => {
                let start = unix_nanos();
                let mut buffer = Vec::new();
                for (event, index) in events.iter().zip(0..) {
                    wait_until(start + index * pace);
                    buffer.clone_from(&event.chunk);
                    let digits = format!("{:019}", unix_nanos());
                    buffer[event.sent_at..event.sent_at + digits.len()].copy_from_slice(digits.as_bytes());
                    out.write_all(&buffer)?;
                }
                Ok(())
            }
        }
    }
}

/// Sleeps; after a sleep that was too long, the next event is due at once.
fn wait_until(time: u64) {
    let left = time.saturating_sub(unix_nanos());
    if left > 0 {
        thread::sleep(Duration::from_nanos(left));
    }
}

/// The closing bookmark of a streaming list, as a chunk.
pub(crate) fn bookmark(kind: &str) -> Vec<u8> {
    let object = json!({
        "apiVersion": "bench.example/v1", "kind": kind,
        "metadata": {
            "annotations": {"k8s.io/initial-events-end": "true"}, "creationTimestamp": null, "resourceVersion": "1",
        },
        "spec": {"color": "", "image": "", "replicas": 0, "size": ""},
    });
    chunk(format!("{}\n", json!({"type": "BOOKMARK", "object": object})).as_bytes())
}

fn line(object: &str) -> String {
    format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n")
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

#[cfg(test)]
mod tests {
    use bench_protocol::objects::widget;

    use super::*;

    #[test]
    fn a_paced_event_contains_its_time() {
        let mut out = Vec::new();
        let before = unix_nanos();
        Stream::paced(1, 1, widget).send(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let (_, rest) = text.split_once(r#""bench.example/sent":""#).unwrap();
        let sent: u64 = rest[..SENT_PLACEHOLDER.len()].parse().unwrap();
        assert!((before..=unix_nanos()).contains(&sent));
    }
}
