// SPDX-License-Identifier: Apache-2.0
//! Gzip compression for clients that accept it: bodies larger than 128 KiB, and watches that start with the state.

use std::io::Write;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, header};

/// Size in bytes above which a body is compressed, as in kube-apiserver.
const THRESHOLD: usize = 128 << 10;

/// Returns true if the client accepts gzip.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|coding| coding.split(';').next().map(str::trim) == Some("gzip"))
}

/// Compresses a body that is larger than the threshold; returns `None` for a smaller one.
pub(crate) fn compress(bytes: &Bytes) -> Option<Bytes> {
    if bytes.len() <= THRESHOLD {
        return None;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    Some(encoder.finish().unwrap_or_default().into())
}

/// Compresses a watch as one stream that is flushed after each chunk.
///
/// One gzip member for each chunk would not work: Go's reader holds back the end of a member until the next one starts.
#[derive(Debug)]
pub(crate) struct Pieces(GzEncoder<Vec<u8>>);

impl Pieces {
    pub(crate) fn new() -> Self {
        Self(GzEncoder::new(Vec::new(), Compression::fast()))
    }

    /// Compresses the next chunk.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Bytes {
        // Writing to memory does not fail.
        let _ = self.0.write_all(bytes).and_then(|()| self.0.flush());
        std::mem::take(self.0.get_mut()).into()
    }
}
