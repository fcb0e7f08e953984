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
        /// It was there when the handler came, or before the informer was in sync.
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

    /// Whether the object is gone.
    #[must_use]
    pub fn is_deletion(&self) -> bool {
        matches!(self, Self::Deleted { .. })
    }
}
