// SPDX-License-Identifier: Apache-2.0
//! Events that handlers and subscribers receive.

use std::sync::Arc;

use crate::Object;

/// A change in the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An object was created, or existed already.
    Added {
        /// The object.
        object: Arc<Object>,
        /// True if the object existed when the handler registered or before the informer was in sync. An object of which only
        /// the metadata was known is reported again, as initial, when the whole object is known.
        initial: bool,
    },
    /// An object was updated.
    Updated {
        /// The object before the update.
        old: Arc<Object>,
        /// The object after the update.
        new: Arc<Object>,
    },
    /// An object was deleted.
    Deleted {
        /// Its last known state.
        object: Arc<Object>,
        /// True if `object` is the final state. False if the watch missed the deletion.
        final_state_known: bool,
    },
    /// An object is unchanged and delivered again by a resync.
    Resynced {
        /// The object.
        object: Arc<Object>,
    },
}

impl Event {
    /// Returns the object in its current or last known state.
    #[must_use]
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Self::Added { object, .. } | Self::Deleted { object, .. } | Self::Resynced { object } => object,
            Self::Updated { new, .. } => new,
        }
    }

    /// Returns the object before an update.
    #[must_use]
    pub fn old(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Updated { old, .. } => Some(old),
            _ => None,
        }
    }

    /// Returns true if the object changed. False for a [resync](Self::Resynced), and for an update that only completes the
    /// metadata of an object with the rest of the same revision.
    ///
    /// A handler that reacts to events that are no change processes objects repeatedly although they did not change.
    #[must_use]
    pub fn is_change(&self) -> bool {
        match self {
            Self::Added { .. } | Self::Deleted { .. } => true,
            Self::Updated { old, new } => {
                let revision = new.resource_version();
                revision.is_empty()
                    || revision != old.resource_version()
                    || (old.is_metadata_only() == new.is_metadata_only() && !old.is_same(new))
            }
            Self::Resynced { .. } => false,
        }
    }

    /// Returns true if the object was deleted.
    #[must_use]
    pub fn is_deletion(&self) -> bool {
        matches!(self, Self::Deleted { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // R147
    #[test]
    fn an_update_with_the_same_content_is_not_a_change() {
        let object = |revision: &str| {
            let json = format!(r#"{{"metadata":{{"name":"a","resourceVersion":"{revision}"}}}}"#);
            Arc::new(Object::from_slice(json.as_bytes()).unwrap())
        };
        let update = |old: &str, new: &str| Event::Updated {
            old: object(old),
            new: object(new),
        };
        assert!(update("1", "2").is_change());
        assert!(!update("1", "1").is_change());
        // Without revisions a change cannot be ruled out.
        assert!(update("", "").is_change());
        // D2
        let defaulted = br#"{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"size":1}}"#;
        let defaulted = Event::Updated {
            old: object("1"),
            new: Arc::new(Object::from_slice(defaulted).unwrap()),
        };
        assert!(defaulted.is_change());
        let object = object("1");
        assert!(!Event::Resynced { object }.is_change());
    }
}
