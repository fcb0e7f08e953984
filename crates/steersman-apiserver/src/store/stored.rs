// SPDX-License-Identifier: Apache-2.0
//! One object at one revision, stored as JSON bytes.
//!
//! Lists and watches send these bytes, so the log, the state and every reader share them. Readers of fields decode the
//! bytes. Recent writes, and the few kinds that the server itself reads for each request, stay decoded.
//!
//! # Guarantees
//! 1. An object costs the size of its JSON plus about 200 bytes, however deep it is.
//! 2. [`Stored::object`] returns the fields that were written, decoded or not.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use serde::Deserialize;

use super::{Object, encode, metadata_of};

/// One object at one revision.
#[derive(Debug)]
pub(crate) struct Stored {
    encoded: Bytes,
    pub(crate) revision: u64,
    /// The edition of the schema that the object last conformed to.
    pub(crate) edition: u64,
    deleting: bool,
    decoded: Mutex<Option<Arc<Object>>>,
}

/// The fields that most selectors read, parsed without the rest of the object.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Head<'a> {
    #[serde(default, borrow)]
    pub(crate) metadata: HeadMetadata<'a>,
}

/// The metadata fields that most selectors read.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct HeadMetadata<'a> {
    #[serde(default, borrow)]
    pub(crate) name: Cow<'a, str>,
    #[serde(default, borrow)]
    pub(crate) namespace: Cow<'a, str>,
    #[serde(default)]
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

impl Stored {
    /// Stores `object`, decoded until [`Self::forget`].
    pub(crate) fn new(object: Object, revision: u64, edition: u64) -> Self {
        let encoded = encode(&object);
        let deleting = metadata_of(&object).contains_key("deletionTimestamp");
        Self {
            encoded,
            revision,
            edition,
            deleting,
            decoded: Mutex::new(Some(Arc::new(object))),
        }
    }

    /// Returns the JSON of the object, without `apiVersion` and `kind`.
    pub(crate) fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Returns the fields of the object.
    pub(crate) fn object(&self) -> Arc<Object> {
        if let Some(object) = self.at_hand() {
            return object;
        }
        // Objects from clients are nested at most `json::DEPTH` levels, which leaves room for their managed fields.
        let object = serde_json::from_slice(&self.encoded).expect("what was written as JSON can be read");
        Arc::new(object)
    }

    /// Returns the fields if they are decoded already.
    pub(crate) fn at_hand(&self) -> Option<Arc<Object>> {
        self.decoded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Drops the decoded form.
    pub(super) fn forget(&self) {
        *self.decoded.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns name, namespace and labels.
    pub(crate) fn head(&self) -> Head<'_> {
        serde_json::from_slice(&self.encoded).unwrap_or_default()
    }

    /// Returns true if the object is terminating.
    pub(crate) fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// Returns a copy of the metadata.
    pub(crate) fn metadata(&self) -> Object {
        metadata_of(&self.object()).clone()
    }

    /// Returns a text field of the metadata; empty if it is absent.
    pub(crate) fn text(&self, key: &str) -> String {
        let object = self.object();
        let text = metadata_of(&object).get(key).and_then(serde_json::Value::as_str);
        text.unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn guarantee_2_a_forgotten_object_is_decoded_again() {
        let object = json!({"metadata": {"name": "ä\"", "labels": {"a\n": "b"}}, "n": 1.5});
        let object = object.as_object().unwrap().clone();
        let stored = Stored::new(object.clone(), 1, 0);
        stored.forget();
        assert!(stored.at_hand().is_none());
        assert_eq!(*stored.object(), object);
        assert_eq!(stored.head().metadata.name, "ä\"");
        assert_eq!(stored.head().metadata.labels.unwrap()["a\n"], "b");
    }
}
