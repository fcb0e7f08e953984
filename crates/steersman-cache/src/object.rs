// SPDX-License-Identifier: Apache-2.0
//! An object as the cache keeps it: its wire bytes without `managedFields`, plus a header.
//!
//! # Guarantees
//! 1. Creating one takes one scan and one copy of the bytes; the object is not parsed.
//! 2. The header agrees with the bytes, even if keys are escaped, duplicated or unordered.
//! 3. `managedFields` is never kept.
//! 4. No input causes a panic: bytes that are no Kubernetes object are an [`InvalidObject`].
//! 5. A decoded value is shared: while a caller holds it, others get the same value.

mod decoded;
mod parse;
mod reason;
mod sharing;

use std::{borrow::Cow, fmt, hash::BuildHasher, sync::atomic::AtomicBool};

use arc_swap::ArcSwapOption;
use foldhash::fast::FixedState;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use steersman_core::ObjectKey;

pub use self::{decoded::DecodeError, reason::without_content};
pub(crate) use self::{decoded::Shared, sharing::Sharing};
use crate::{
    revision::Revision,
    wire::{pairs::Pairs, skip::skip_value},
};

/// An object with its header. Immutable; the store replaces it.
///
/// ```
/// use steersman_cache::Object;
///
/// let object = Object::from_slice(
///     br#"{"metadata":{"name":"front","namespace":"web","labels":{"tier":"a"},"managedFields":[{}]},"data":{}}"#,
/// )?;
/// assert_eq!(object.key().to_string(), "web/front");
/// assert_eq!(object.label("tier").as_deref(), Some("a"));
/// assert_eq!(object.bytes(), br#"{"metadata":{"name":"front","namespace":"web","labels":{"tier":"a"}},"data":{}}"#);
/// # Ok::<(), steersman_cache::InvalidObject>(())
/// ```
// In this order, the fields that a lookup by name touches fit within 64 bytes, including the counters of the `Arc`. There is
// one of these for each object of the cluster, so each byte counts.
#[repr(C)]
pub struct Object {
    bytes: Box<[u8]>,
    /// The value that the representation of the kind keeps beside the bytes.
    kept: Option<Shared>,
    /// The last decoded value, and the bookkeeping of decoded values of the store.
    sharing: ArcSwapOption<Sharing>,
    places: Places,
    deleting: bool,
    /// True if only the metadata was requested from the server.
    metadata_only: bool,
    /// [`PARTIAL`] and [`TAIL`].
    marks: u8,
    /// True if the decoded value was used recently.
    used: AtomicBool,
    /// [`fingerprint`] of the original bytes, if a transform or projection dropped some; otherwise 0.
    source: u32,
}

/// Some fields were dropped from the bytes, so only [`kept`](Object::kept) has them.
const PARTIAL: u8 = 1;
/// The JSON is followed by header texts that JSON escapes, such as the name `CORP\admins`: each unescaped between two
/// [`BESIDE_TEXT`], then the length of the JSON and one more [`BESIDE_TEXT`].
const TAIL: u8 = 2;
/// A byte that occurs in no UTF-8 text.
const BESIDE_TEXT: u8 = 0xff;

/// Positions of the header fields in the bytes. The bytes also mark their ends, so these are not stored.
#[derive(Clone, Copy)]
#[repr(C)]
struct Places {
    name: Place,
    namespace: Place,
    uid: Place,
    resource_version: Place,
    generation: Place,
    labels: Place,
    annotations: Place,
    owners: Place,
}

/// Position of the first byte of a value, such as the quote of a string, within the first 16 MiB. Position 0 is the brace of
/// the object, so 0 means no value.
#[derive(Clone, Copy, Default)]
struct Place([u8; 3]);

impl Place {
    fn new(at: usize) -> Option<Self> {
        let [a, b, c, rest @ ..] = at.to_le_bytes();
        rest.iter().all(|byte| *byte == 0).then_some(Self([a, b, c]))
    }

    fn at(self) -> usize {
        let [a, b, c] = self.0;
        u32::from_le_bytes([a, b, c, 0]) as usize
    }
}

/// Bytes that are no Kubernetes object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidObject {
    /// The bytes are no JSON object.
    #[error("invalid JSON object: {reason}")]
    Json {
        /// The parser's message.
        reason: String,
    },
    /// The object has no name.
    #[error("the object has no metadata.name")]
    NoName,
    /// A field of its metadata begins after the first 16 MiB, or the object is longer than 4 GiB. API servers accept 3 MiB.
    #[error("the object is too long: its metadata is not within the first 16 MiB")]
    TooLong,
}

impl Object {
    /// Returns namespace and name.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text(self.places.name)
    }

    /// Returns the namespace; empty for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.text(self.places.namespace)
    }

    /// Returns the uid; empty if there is none.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.text(self.places.uid)
    }

    /// Returns the resource version as text; empty if there is none.
    #[must_use]
    pub fn resource_version(&self) -> &str {
        self.text(self.places.resource_version)
    }

    /// Returns the resource version in comparable form.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::new(self.resource_version())
    }

    /// Returns the generation, if there is one.
    #[must_use]
    pub fn generation(&self) -> Option<i64> {
        std::str::from_utf8(self.json(self.places.generation))
            .ok()?
            .parse()
            .ok()
    }

    /// Returns true if the object has a `deletionTimestamp`.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// Returns true if only the metadata is available, because the informer requested only that.
    #[must_use]
    pub fn is_metadata_only(&self) -> bool {
        self.metadata_only
    }

    pub(crate) fn mark_metadata_only(&mut self) {
        self.metadata_only = true;
    }

    /// Returns the labels.
    pub fn labels(&self) -> Pairs<'_> {
        Pairs::new(self.json(self.places.labels))
    }

    /// Returns one label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        value_of(self.labels(), key)
    }

    /// Returns the annotations.
    pub fn annotations(&self) -> Pairs<'_> {
        Pairs::new(self.json(self.places.annotations))
    }

    /// Returns one annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        value_of(self.annotations(), key)
    }

    /// Returns the owner references, without malformed ones.
    #[must_use]
    pub fn owners(&self) -> Vec<OwnerReference> {
        let list: Vec<Value> = serde_json::from_slice(self.json(self.places.owners)).unwrap_or_default();
        list.into_iter()
            .filter_map(|owner| serde_json::from_value(owner).ok())
            .collect()
    }

    /// Returns the whole object as JSON, without `managedFields`.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.json_length()]
    }

    fn json_length(&self) -> usize {
        // Nearly all objects have no tail: for them the bytes are not touched.
        if self.marks & TAIL == 0 {
            return self.bytes.len();
        }
        match self.bytes.last_chunk() {
            Some([a, b, c, d, BESIDE_TEXT]) => u32::from_le_bytes([*a, *b, *c, *d]) as usize,
            _ => self.bytes.len(),
        }
    }

    /// Returns the byte after the text at a position: a quote, or [`BESIDE_TEXT`] for a text in the tail.
    fn end_of_text(&self, place: Place) -> u8 {
        if self.marks & TAIL != 0 && place.at() >= self.json_length() {
            BESIDE_TEXT
        } else {
            b'"'
        }
    }

    /// Returns true if the server sent the same content for both, even if they are kept in different forms.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if (self.source, other.source) == (0, 0) {
            return self.bytes() == other.bytes();
        }
        let source = |object: &Self| match object.source {
            0 => fingerprint(object.bytes()),
            source => source,
        };
        source(self) == source(other)
    }

    /// Records that the object was reduced from `whole`.
    pub(crate) fn mark_cut_from(&mut self, whole: &Self) {
        self.source = match whole.source {
            0 => fingerprint(whole.bytes()),
            source => source,
        };
    }

    /// Returns true if namespace and name are equal. A hot path of the store, so it does not search for their ends.
    pub(crate) fn is_named(&self, namespace: &str, name: &str) -> bool {
        let is = |place: Place, text: &str| {
            let rest = self.bytes.get(place.at() + 1..).unwrap_or_default();
            let behind = rest.strip_prefix(text.as_bytes());
            let end = self.end_of_text(place);
            let is_whole = behind.is_some_and(|behind| behind.first() == Some(&end));
            is_whole && memchr::memchr(end, text.as_bytes()).is_none()
        };
        let is_in_namespace = match self.places.namespace {
            place if place.at() == 0 => namespace.is_empty(),
            place => is(place, namespace),
        };
        is(self.places.name, name) && is_in_namespace
    }

    /// Returns the value at a position, as written.
    fn json(&self, place: Place) -> &[u8] {
        let start = place.at();
        match skip_value(&self.bytes, start) {
            Ok(end) if start > 0 => &self.bytes[start..end],
            _ => &[],
        }
    }

    /// Returns the content of the string at a position.
    fn text(&self, place: Place) -> &str {
        if place.at() == 0 {
            return "";
        }
        let content = self.bytes.get(place.at() + 1..).unwrap_or_default();
        let end = memchr::memchr(self.end_of_text(place), content).unwrap_or_default();
        std::str::from_utf8(&content[..end]).expect("the scan accepts only UTF-8 in header fields")
    }
}

impl fmt::Debug for Object {
    /// Omits the content, which can be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("key", &self.key())
            .field("resource_version", &self.resource_version())
            .field("bytes", &self.bytes().len())
            .finish_non_exhaustive()
    }
}

/// Computes a hash of bytes that are not kept. Never 0.
fn fingerprint(bytes: &[u8]) -> u32 {
    (FixedState::default().hash_one(bytes) as u32).max(1)
}

/// Returns the value of a key. If the key is duplicated, the last wins, as when the object is decoded.
fn value_of<'a>(pairs: Pairs<'a>, key: &str) -> Option<Cow<'a, str>> {
    let (_, value) = pairs.filter(|(found, _)| found == key).last()?;
    Some(value)
}
