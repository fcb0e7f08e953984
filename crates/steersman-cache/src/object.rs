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
mod reason;
mod sharing;

use std::{
    borrow::Cow,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use steersman_core::ObjectKey;

pub use self::{decoded::DecodeError, reason::without_content};
pub(crate) use self::{decoded::Shared, sharing::Sharing};
use crate::{
    revision::Revision,
    wire::{
        pairs::Pairs,
        scan::{Scanned, Stop, scan, skip_space, skip_value},
    },
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
pub struct Object {
    bytes: Box<[u8]>,
    name: Span,
    namespace: Span,
    uid: Span,
    resource_version: Span,
    labels: Span,
    annotations: Span,
    owners: Span,
    /// [`NO_GENERATION`] if there is none; an `Option` would take twice the room.
    generation: i64,
    deleting: bool,
    /// Whether the server was asked for the metadata only.
    metadata_only: bool,
    /// Whether some of the object was left out of the bytes, so that only [`kept`](Self::kept) tells of it.
    partial: bool,
    /// Whether the decoded value was asked for lately.
    used: AtomicBool,
    /// What the representation of the kind keeps beside the bytes.
    kept: Option<Shared>,
    /// The value that was decoded last, for as long as somebody holds it.
    decoded: Mutex<decoded::Slot>,
    /// Those that share the decoded values of the same store.
    sharing: Option<Arc<Sharing>>,
}

/// No server gives this generation: they count up from 1.
const NO_GENERATION: i64 = i64::MIN;

/// A place in the bytes. An empty one says that there is nothing.
#[derive(Clone, Copy, Default)]
struct Span {
    start: u32,
    length: u32,
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
    /// It is longer than 4 GiB.
    #[error("it is longer than 4 GiB")]
    TooLong,
}

impl Object {
    /// Takes one object from its JSON.
    ///
    /// # Errors
    /// When this is no object with a name.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, InvalidObject> {
        let (object, end) =
            Self::from_prefix(bytes).map_err(|stop| InvalidObject::stopped(stop, bytes.len()))?;
        match bytes[end..].iter().position(|byte| !byte.is_ascii_whitespace()) {
            None => object,
            Some(at) => Err(InvalidObject::stopped(
                Stop::Malformed { at: end + at },
                bytes.len(),
            )),
        }
    }

    /// Takes the object at the beginning of `bytes`, and says where it ends.
    ///
    /// The outer error says that no end was found, the inner one that the object which ends there is of no use.
    pub(crate) fn from_prefix(bytes: &[u8]) -> Result<(Result<Self, InvalidObject>, usize), Stop> {
        match scan(bytes) {
            Ok(found) => Ok((Self::cut(bytes, &found), found.end)),
            Err(Stop::Unusual) => {
                let start = skip_space(bytes, 0);
                let end = skip_value(bytes, start)?;
                Ok((Self::normalise(&bytes[start..end]), end))
            }
            Err(stop) => Err(stop),
        }
    }

    /// Copies what is kept.
    fn cut(input: &[u8], found: &Scanned) -> Result<Self, InvalidObject> {
        let name = found
            .name
            .clone()
            .filter(|name| !name.is_empty())
            .ok_or(InvalidObject::NoName)?;
        u32::try_from(found.end).map_err(|_| InvalidObject::TooLong)?;
        let start = skip_space(input, 0);
        let cut = found.managed_fields.clone().unwrap_or(start..start);
        let mut bytes = Vec::with_capacity(found.end - start - cut.len());
        bytes.extend_from_slice(&input[start..cut.start]);
        bytes.extend_from_slice(&input[cut.end..found.end]);
        let span = |range: &Option<Range<usize>>| {
            let Some(range) = range else {
                return Span::default();
            };
            let moved = start + if range.start >= cut.end { cut.len() } else { 0 };
            Span {
                start: (range.start - moved) as u32,
                length: range.len() as u32,
            }
        };
        let generation = found
            .generation
            .clone()
            .and_then(|range| std::str::from_utf8(&input[range]).ok()?.parse().ok())
            .unwrap_or(NO_GENERATION);
        Ok(Self {
            name: span(&Some(name)),
            namespace: span(&found.namespace),
            uid: span(&found.uid),
            resource_version: span(&found.resource_version),
            labels: span(&found.labels),
            annotations: span(&found.annotations),
            owners: span(&found.owners),
            generation,
            deleting: found.deleting,
            metadata_only: false,
            partial: false,
            used: AtomicBool::new(false),
            kept: None,
            decoded: Mutex::default(),
            sharing: None,
            bytes: bytes.into_boxed_slice(),
        })
    }

    /// The slow way, for JSON that is written unusually: parsed and written again, after which it is usual.
    fn normalise(bytes: &[u8]) -> Result<Self, InvalidObject> {
        let invalid = |error: serde_json::Error| InvalidObject::Json {
            reason: error.to_string(),
        };
        let value: Value = serde_json::from_slice(bytes).map_err(invalid)?;
        let bytes = serde_json::to_vec(&value).map_err(invalid)?;
        match scan(&bytes) {
            Ok(found) => Self::cut(&bytes, &found),
            // Still unusual: a header field has another type than it has in Kubernetes, or is a text that cannot be
            // written without escapes, of which names, uids and versions have none.
            Err(_) => Err(InvalidObject::Json {
                reason: "a field of metadata has the wrong type, or contains quotes or backslashes"
                    .to_owned(),
            }),
        }
    }

    /// Namespace and name.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text(self.name)
    }

    /// The namespace, empty for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.text(self.namespace)
    }

    /// The uid, empty if there is none.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.text(self.uid)
    }

    /// The resource version as it is written, empty if there is none.
    #[must_use]
    pub fn resource_version(&self) -> &str {
        self.text(self.resource_version)
    }

    /// The resource version as something that can be compared.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::new(self.resource_version())
    }

    /// The generation, if there is one.
    #[must_use]
    pub fn generation(&self) -> Option<i64> {
        (self.generation != NO_GENERATION).then_some(self.generation)
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
        Pairs::new(self.slice(self.labels))
    }

    /// One label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        value_of(self.labels(), key)
    }

    /// The annotations.
    pub fn annotations(&self) -> Pairs<'_> {
        Pairs::new(self.slice(self.annotations))
    }

    /// One annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        value_of(self.annotations(), key)
    }

    /// The owner references; those that do not have the shape of one are left out.
    #[must_use]
    pub fn owners(&self) -> Vec<OwnerReference> {
        let list: Vec<Value> = serde_json::from_slice(self.slice(self.owners)).unwrap_or_default();
        list.into_iter()
            .filter_map(|owner| serde_json::from_value(owner).ok())
            .collect()
    }

    /// The whole object as JSON, without `managedFields`.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn slice(&self, span: Span) -> &[u8] {
        let start = span.start as usize;
        self.bytes
            .get(start..start + span.length as usize)
            .unwrap_or_default()
    }

    fn text(&self, span: Span) -> &str {
        std::str::from_utf8(self.slice(span)).expect("the walk lets only UTF-8 into the header")
    }
}

impl fmt::Debug for Object {
    /// Without the content, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("key", &self.key())
            .field("resource_version", &self.resource_version())
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

impl InvalidObject {
    pub(crate) fn stopped(stop: Stop, length: usize) -> Self {
        let reason = match stop {
            Stop::Incomplete => format!("it ends after {length} bytes in the middle"),
            Stop::Malformed { at } => format!("something else begins at byte {at}"),
            Stop::Unusual => "it is written in an unusual way".to_owned(),
        };
        Self::Json { reason }
    }
}

/// Of a key that is there twice, the last counts, as it does for those who decode the object.
fn value_of<'a>(pairs: Pairs<'a>, key: &str) -> Option<Cow<'a, str>> {
    let (_, value) = pairs.filter(|(found, _)| found == key).last()?;
    Some(value)
}
