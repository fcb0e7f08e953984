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
    (bytes.len() > THRESHOLD).then(|| member(bytes))
}

/// One gzip member. A watch is a sequence of them, one for each time that the server writes out what it has.
pub(crate) fn member(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default().into()
}
