// SPDX-License-Identifier: Apache-2.0
//! A change of an object, as predicates and handlers see it.

use std::{fmt, marker::PhantomData, sync::Arc};

use serde::de::DeserializeOwned;
use steersman_cache::{DecodeError, Event, Object};
use steersman_cluster::ClusterName;

/// A change of an object of a kind, whose objects decode as `T`.
///
/// Metadata (key, labels, annotations, owners, generation) is available without decoding. The object is decoded on first
/// use, once for all users.
pub struct ObjectEvent<'e, T> {
    event: &'e Event,
    cluster: &'e ClusterName,
    _type: PhantomData<fn() -> T>,
}

impl<'e, T> ObjectEvent<'e, T> {
    pub(crate) fn new(event: &'e Event, cluster: &'e ClusterName) -> Self {
        Self {
            event,
            cluster,
            _type: PhantomData,
        }
    }

    /// The watch event.
    #[must_use]
    pub fn event(&self) -> &'e Event {
        self.event
    }

    /// The current object, or its last state if it was deleted.
    #[must_use]
    pub fn object(&self) -> &'e Arc<Object> {
        self.event.object()
    }

    /// The object before the change, if it differs.
    #[must_use]
    pub fn old(&self) -> Option<&'e Arc<Object>> {
        self.event.old()
    }

    /// Cluster of the object.
    #[must_use]
    pub fn cluster(&self) -> &'e ClusterName {
        self.cluster
    }

    /// Returns true if nothing changed: a first list, a resync or a replay. Keys from such events are not urgent.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        match self.event {
            Event::Added { initial, .. } => *initial,
            Event::Updated { old, new } => old.resource_version() == new.resource_version(),
            Event::Resynced { .. } => true,
            _ => false,
        }
    }

    /// Returns the states of the object: the current one, and the one before if it differs.
    pub fn states(&self) -> impl Iterator<Item = &'e Arc<Object>> {
        std::iter::once(self.object()).chain(self.old())
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> ObjectEvent<'_, T> {
    /// Decodes the object.
    ///
    /// # Errors
    /// When the object cannot be decoded as a `T`.
    pub fn typed(&self) -> Result<Arc<T>, DecodeError> {
        self.object().decoded()
    }
}

impl<T> fmt::Debug for ObjectEvent<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectEvent")
            .field("event", self.event)
            .field("cluster", self.cluster)
            .finish()
    }
}
