// SPDX-License-Identifier: Apache-2.0
//! An object as the cache keeps it: its wire bytes without `managedFields`, beside a header.
//!
//! # Guarantees
//! 1. Making one takes one walk over the bytes and one copy of them; the object is not parsed.
//! 2. The header says what the bytes say, also where keys are escaped, doubled or out of order.
//! 3. `managedFields` is never kept.
//! 4. No input makes it panic: what is no Kubernetes object is an [`InvalidObject`].
//! 5. A decoded value is shared: while somebody holds it, the same is given out again.

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

/// An object with its header. It never changes; the store replaces it.
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
// In this order, what a lookup by name touches lies within 64 bytes, the counters of the `Arc` included. There are as many
// of these as there are objects in the cluster: each byte counts.
#[repr(C)]
pub struct Object {
    bytes: Box<[u8]>,
    /// What the representation of the kind keeps beside the bytes.
    kept: Option<Shared>,
    /// The value that was decoded last, and those that share the decoded values of the same store.
    sharing: ArcSwapOption<Sharing>,
    places: Places,
    deleting: bool,
    /// Whether the server was asked for the metadata only.
    metadata_only: bool,
    /// [`PARTIAL`] and [`TAIL`].
    marks: u8,
    /// Whether the decoded value was asked for lately.
    used: AtomicBool,
    /// What the bytes were made from, as a [`fingerprint`], if a transform or a projection left something out; otherwise 0.
    source: u32,
}

/// Some of the object was left out of the bytes, so that only [`kept`](Object::kept) tells of it.
const PARTIAL: u8 = 1;
/// Behind the JSON there are texts of the header that JSON writes with escapes, such as the name `CORP\admins`: each as it is
/// meant between two of [`BESIDE_TEXT`], and then the length of the JSON and one more of these.
const TAIL: u8 = 2;
/// No byte of a text is this one.
const BESIDE_TEXT: u8 = 0xff;

/// Where the fields of the header are in the bytes. Their ends are in the bytes, too, so that they need no room here.
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

/// The first byte of a value, such as the quote of a string, among the first 16 MiB. At 0 there is the brace of the object,
/// so that this says that there is nothing.
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
    /// This is no JSON.
    #[error("this is no JSON object: {reason}")]
    Json {
        /// What the parser says.
        reason: String,
    },
    /// There is no name in it.
    #[error("it has no metadata.name")]
    NoName,
    /// A field of its metadata begins behind the first 16 MiB, or it is longer than 4 GiB. API servers take 3 MiB.
    #[error("it is too long: its metadata is not within the first 16 MiB")]
    TooLong,
}

impl Object {
    /// Namespace and name.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text(self.places.name)
    }

    /// The namespace, empty for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.text(self.places.namespace)
    }

    /// The uid, empty if there is none.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.text(self.places.uid)
    }

    /// The resource version as it is written, empty if there is none.
    #[must_use]
    pub fn resource_version(&self) -> &str {
        self.text(self.places.resource_version)
    }

    /// The resource version as something that can be compared.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::new(self.resource_version())
    }

    /// The generation, if there is one.
    #[must_use]
    pub fn generation(&self) -> Option<i64> {
        std::str::from_utf8(self.json(self.places.generation))
            .ok()?
            .parse()
            .ok()
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// Whether only the metadata of the object is here, because nobody has asked for more.
    #[must_use]
    pub fn is_metadata_only(&self) -> bool {
        self.metadata_only
    }

    pub(crate) fn mark_metadata_only(&mut self) {
        self.metadata_only = true;
    }

    /// The labels.
    pub fn labels(&self) -> Pairs<'_> {
        Pairs::new(self.json(self.places.labels))
    }

    /// One label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        value_of(self.labels(), key)
    }

    /// The annotations.
    pub fn annotations(&self) -> Pairs<'_> {
        Pairs::new(self.json(self.places.annotations))
    }

    /// One annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        value_of(self.annotations(), key)
    }

    /// The owner references; those that do not have the shape of one are left out.
    #[must_use]
    pub fn owners(&self) -> Vec<OwnerReference> {
        let list: Vec<Value> = serde_json::from_slice(self.json(self.places.owners)).unwrap_or_default();
        list.into_iter()
            .filter_map(|owner| serde_json::from_value(owner).ok())
            .collect()
    }

    /// The whole object as JSON, without `managedFields`.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.json_length()]
    }

    fn json_length(&self) -> usize {
        // The bytes are not touched for the others, which are nearly all.
        if self.marks & TAIL == 0 {
            return self.bytes.len();
        }
        match self.bytes.last_chunk() {
            Some([a, b, c, d, BESIDE_TEXT]) => u32::from_le_bytes([*a, *b, *c, *d]) as usize,
            _ => self.bytes.len(),
        }
    }

    /// What is behind the text at a place: a quote, unless it is one that JSON writes with escapes.
    fn end_of_text(&self, place: Place) -> u8 {
        if self.marks & TAIL != 0 && place.at() >= self.json_length() {
            BESIDE_TEXT
        } else {
            b'"'
        }
    }

    /// Whether the server sent the same for both, of which each may be kept in another form.
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

    /// Notes that something was left out of `whole`.
    pub(crate) fn mark_cut_from(&mut self, whole: &Self) {
        self.source = match whole.source {
            0 => fingerprint(whole.bytes()),
            source => source,
        };
    }

    /// Whether these are its namespace and name. A store asks this so often that their ends are not looked for.
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

    /// The value at a place, as it is written.
    fn json(&self, place: Place) -> &[u8] {
        let start = place.at();
        match skip_value(&self.bytes, start) {
            Ok(end) if start > 0 => &self.bytes[start..end],
            _ => &[],
        }
    }

    /// The content of the string at a place.
    fn text(&self, place: Place) -> &str {
        if place.at() == 0 {
            return "";
        }
        let content = self.bytes.get(place.at() + 1..).unwrap_or_default();
        let end = memchr::memchr(self.end_of_text(place), content).unwrap_or_default();
        std::str::from_utf8(&content[..end]).expect("the walk lets only UTF-8 into the header")
    }
}

impl fmt::Debug for Object {
    /// Without the content, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("key", &self.key())
            .field("resource_version", &self.resource_version())
            .field("bytes", &self.bytes().len())
            .finish_non_exhaustive()
    }
}

/// Stands for bytes that are not kept. It is never 0.
fn fingerprint(bytes: &[u8]) -> u32 {
    (FixedState::default().hash_one(bytes) as u32).max(1)
}

/// Of a key that is there twice, the last counts, as it does for those who decode the object.
fn value_of<'a>(pairs: Pairs<'a>, key: &str) -> Option<Cow<'a, str>> {
    let (_, value) = pairs.filter(|(found, _)| found == key).last()?;
    Some(value)
}
