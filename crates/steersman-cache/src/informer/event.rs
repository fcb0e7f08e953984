// SPDX-License-Identifier: Apache-2.0
//! What handlers and subscribers hear.

use std::sync::Arc;

use crate::Object;

/// A change in the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An object is there.
    Added {
        /// The object.
        object: Arc<Object>,
        /// It was there when the handler came, or before the informer was in sync. It is told of once more, so, when
        /// there was only its metadata and now there is all of it.
        initial: bool,
    },
    /// An object is different.
    Updated {
        /// What it was.
        old: Arc<Object>,
        /// What it is.
        new: Arc<Object>,
    },
    /// An object is gone.
    Deleted {
        /// Its last known state.
        object: Arc<Object>,
        /// Whether that was its last state. It was not seen to go where this is false.
        final_state_known: bool,
    },
    /// An object is as it was; somebody asked to look at all of them again.
    Resynced {
        /// The object.
        object: Arc<Object>,
    },
}

impl Event {
    /// The object as it is now, or as it was last.
    #[must_use]
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Self::Added { object, .. } | Self::Deleted { object, .. } | Self::Resynced { object } => object,
            Self::Updated { new, .. } => new,
        }
    }

    /// The object as it was before, where the event is about a difference.
    #[must_use]
    pub fn old(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Updated { old, .. } => Some(old),
            _ => None,
        }
    }

    /// Whether it tells of something new: not a [resync](Self::Resynced), nor an update that only adds to the metadata of an
    /// object what else the server has of the same revision.
    ///
    /// A handler that reacts to other events works on objects again and again although nothing happened to them.
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

    /// Whether the object is gone.
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
    fn an_update_to_the_same_content_is_no_change() {
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
        // Without revisions nobody can tell.
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
