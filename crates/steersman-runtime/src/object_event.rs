// SPDX-License-Identifier: Apache-2.0
//! A change of an object, as predicates and handlers see it.

use std::{fmt, marker::PhantomData, sync::Arc};

use serde::de::DeserializeOwned;
use steersman_cache::{DecodeError, Event, Object};
use steersman_cluster::ClusterName;

/// A change of an object of a kind whose objects are `T`s.
///
/// The header (key, labels, annotations, owners, generation) is at hand. The object is decoded when somebody asks, once
/// for all who do.
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

    /// What happened.
    #[must_use]
    pub fn event(&self) -> &'e Event {
        self.event
    }

    /// The object as it is now, or as it was last.
    #[must_use]
    pub fn object(&self) -> &'e Arc<Object> {
        self.event.object()
    }

    /// The object as it was before, where it is different now.
    #[must_use]
    pub fn old(&self) -> Option<&'e Arc<Object>> {
        self.event.old()
    }

    /// The cluster in which it happened.
    #[must_use]
    pub fn cluster(&self) -> &'e ClusterName {
        self.cluster
    }

    /// Whether nothing happened: the object was there before, or somebody asked to look at all again. What follows
    /// from this is not urgent.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        match self.event {
            Event::Added { initial, .. } => *initial,
            Event::Updated { old, new } => old.resource_version() == new.resource_version(),
            Event::Resynced { .. } => true,
            _ => false,
        }
    }

    /// The objects that it is about: as it is, and as it was where that is different.
    pub fn states(&self) -> impl Iterator<Item = &'e Arc<Object>> {
        std::iter::once(self.object()).chain(self.old())
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> ObjectEvent<'_, T> {
    /// The object as a `T`.
    ///
    /// # Errors
    /// When it does not have that shape.
    pub fn typed(&self) -> Result<Arc<T>, DecodeError> {
        self.object().decoded()
    }
}

impl<T> fmt::Debug for ObjectEvent<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Occurrence")
            .field("event", self.event)
            .field("cluster", self.cluster)
            .finish()
    }
}
