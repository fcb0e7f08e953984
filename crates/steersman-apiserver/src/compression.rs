// SPDX-License-Identifier: Apache-2.0
//! Compressed answers, where the client takes them: bodies from 128 KiB on, and watches that begin with the state.

use std::io::Write;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, header};

/// Smaller bodies are not worth it, as in kube-apiserver.
const THRESHOLD: usize = 128 << 10;

/// Whether the client takes gzip.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|coding| coding.split(';').next().map(str::trim) == Some("gzip"))
}

/// The body compressed, if it is worth it.
pub(crate) fn compress(bytes: &Bytes) -> Option<Bytes> {
    if bytes.len() <= THRESHOLD {
        return None;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    Some(encoder.finish().unwrap_or_default().into())
}

/// Compresses a watch as one stream that is flushed after each piece.
///
/// A member of its own for each piece would not do: Go's reader holds the end of a member back until the next begins.
#[derive(Debug)]
pub(crate) struct Pieces(GzEncoder<Vec<u8>>);

impl Pieces {
    pub(crate) fn new() -> Self {
        Self(GzEncoder::new(Vec::new(), Compression::fast()))
    }

    /// The next piece.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Bytes {
        // Writing to memory does not fail.
        let _ = self.0.write_all(bytes).and_then(|()| self.0.flush());
        std::mem::take(self.0.get_mut()).into()
    }
}
