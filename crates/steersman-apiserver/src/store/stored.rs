// SPDX-License-Identifier: Apache-2.0
//! One object as of one revision, kept as its bytes.
//!
//! The bytes are those that lists and watches send, so that the log, the state and every reader share them. Whoever
//! looks at fields decodes them; what was just written, and the few kinds that the server itself reads on the way of
//! each request, stay decoded.
//!
//! # Guarantees
//! 1. An object costs its JSON and about two hundred bytes, however deep it is.
//! 2. What [`Stored::object`] returns is what was written, decoded or not.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use serde::Deserialize;

use super::{Object, encode, metadata_of};

/// One object as of one revision.
#[derive(Debug)]
pub(crate) struct Stored {
    encoded: Bytes,
    pub(crate) revision: u64,
    /// Which edition of its schema the object was last brought in line with.
    pub(crate) edition: u64,
    deleting: bool,
    decoded: Mutex<Option<Arc<Object>>>,
}

/// The part of an object that most selectors look at, read without the rest.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Head<'a> {
    #[serde(default, borrow)]
    pub(crate) metadata: HeadMetadata<'a>,
}

/// The part of an object's metadata that most selectors look at.
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
    /// Keeps `object`, decoded until [`Self::forget`].
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

    /// The JSON of the object, without `apiVersion` and `kind`.
    pub(crate) fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// The fields of the object.
    pub(crate) fn object(&self) -> Arc<Object> {
        if let Some(object) = self.at_hand() {
            return object;
        }
        // What clients send is nested at most `json::DEPTH` deep, which leaves room for the owners of its fields.
        let object = serde_json::from_slice(&self.encoded).expect("what was written as JSON can be read");
        Arc::new(object)
    }

    /// The fields, if nobody has to decode them.
    pub(crate) fn at_hand(&self) -> Option<Arc<Object>> {
        self.decoded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Lets the decoded form go.
    pub(super) fn forget(&self) {
        *self.decoded.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Name, namespace and labels.
    pub(crate) fn head(&self) -> Head<'_> {
        serde_json::from_slice(&self.encoded).unwrap_or_default()
    }

    /// True once somebody has deleted the object and it is still there.
    pub(crate) fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// A copy of the metadata.
    pub(crate) fn metadata(&self) -> Object {
        metadata_of(&self.object()).clone()
    }

    /// A text of the metadata, empty if there is none.
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
