// SPDX-License-Identifier: Apache-2.0
//! The single writer of a store.

use std::{fmt, sync::Arc};

use super::{
    Inner,
    indexes::{self, Functions},
    state::{ReadConsistency, Stored},
};
use crate::{Object, Revision};

/// Writes a store. A store has one writer, so that changes have an order.
///
/// After the writer is dropped, the store keeps its contents and readers continue to work.
pub struct StoreWriter {
    inner: Arc<Inner>,
}

/// The change that a write made.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an object is added, updated or removed, there is nothing else"
)]
pub enum Change {
    /// The object is new.
    Added(Arc<Object>),
    /// The object existed. If the uid differs, it was deleted and created again in between.
    Updated {
        /// The object before the change.
        old: Arc<Object>,
        /// The object after the change.
        new: Arc<Object>,
    },
    /// The object was removed, because the transform now [leaves it out](crate::Transform::only).
    Removed(Arc<Object>),
}

impl Change {
    /// Returns the object before the change, if it existed.
    #[must_use]
    pub fn before(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Added(_) => None,
            Self::Updated { old, .. } | Self::Removed(old) => Some(old),
        }
    }

    /// Returns the object after the change, if it still exists.
    #[must_use]
    pub fn after(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Added(new) | Self::Updated { new, .. } => Some(new),
            Self::Removed(_) => None,
        }
    }
}

impl StoreWriter {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Stores an object. Changes nothing if the store has the same, or a newer revision of the same uid.
    ///
    /// Does not change the [revision](Self::set_revision) of the store: the items of a list do not say how far the store is.
    pub fn apply(&mut self, object: impl Into<Arc<Object>>) -> Option<Change> {
        self.enter(object.into(), ReadConsistency::Watch)
    }

    /// Same as [`apply`](Self::apply). An object of a list of the newest state replaces the stored one, whatever its revision.
    pub(crate) fn enter(&mut self, object: Arc<Object>, consistency: ReadConsistency) -> Option<Change> {
        let (object, functions, values) =
            if self.inner.is_plain() && !self.inner.read().indexes.has_functions() {
                (self.inner.shape(object), Functions::default(), None)
            } else {
                // Check first whether the object changes anything: most objects of a relist do not.
                let functions = {
                    let mut state = self.inner.write();
                    if state.refuses(&object, consistency) {
                        return None;
                    }
                    Arc::clone(state.indexes.functions())
                };
                if !self.inner.admits(&object) {
                    return self
                        .inner
                        .write()
                        .remove(&object, consistency)
                        .map(Change::Removed);
                }
                let object = self.inner.shape(object);
                let values = indexes::compute(&functions, &object);
                (object, functions, Some(values))
            };
        let mut state = self.inner.write();
        match state.enter(&object, consistency, &functions, values) {
            Stored::Refused => None,
            Stored::Now { old: Some(old), .. } => Some(Change::Updated { old, new: object }),
            Stored::Now { old: None, .. } => Some(Change::Added(object)),
        }
    }

    /// Removes a deleted object, and returns the stored one. Returns `None` if it was not stored or the stored one is newer.
    pub fn remove(&mut self, object: &Object) -> Option<Arc<Object>> {
        self.inner.write().remove(object, ReadConsistency::Watch)
    }

    /// Begins a relist: from now on the store marks which objects arrive. Abandons a relist in progress.
    pub fn begin_replace(&mut self) {
        self.inner.write().begin_replace();
    }

    /// Ends a relist: removes and returns the objects that did not arrive since it began. Does nothing without a relist.
    pub fn end_replace(&mut self) -> Vec<Arc<Object>> {
        self.end_list(ReadConsistency::Watch)
    }

    /// Same as [`end_replace`](Self::end_replace), for a list that can be one of the newest state.
    pub(crate) fn end_list(&mut self, consistency: ReadConsistency) -> Vec<Arc<Object>> {
        self.inner.write().end_replace(consistency)
    }

    /// Abandons a relist. Objects that arrived with it stay, and so do all others.
    pub fn abandon_replace(&mut self) {
        self.inner.write().abandon_replace();
    }

    /// Sets the revision up to which all changes are stored. It never decreases.
    pub fn set_revision(&mut self, revision: &Revision) {
        self.advance_to(revision.as_str());
    }

    /// Same as [`set_revision`](Self::set_revision), for a revision in text form, such as an object's `resourceVersion`.
    pub fn advance_to(&mut self, resource_version: &str) {
        self.advance(resource_version, ReadConsistency::Watch);
    }

    /// Same as [`advance_to`](Self::advance_to), but a list of the newest state can move the revision backwards.
    pub(crate) fn advance(&mut self, resource_version: &str, consistency: ReadConsistency) {
        self.inner.write().advance(resource_version, consistency);
        self.inner.notify_progress();
    }

    /// Returns objects that were written and deleted and appeared in no list and no event, as far as known by now.
    pub(crate) fn take_lost(&mut self) -> Vec<Arc<Object>> {
        self.inner.read().take_lost()
    }

    /// Same as [`take_lost`](Self::take_lost) at the end of a list, when this is known of all earlier writes.
    pub(crate) fn take_all_lost(&mut self) -> Vec<Arc<Object>> {
        let state = self.inner.read();
        state.settle_layers();
        state.take_lost()
    }

    /// Returns true if an object was rejected as older than the stored one since the last call.
    pub(crate) fn take_refused_older(&mut self) -> bool {
        self.inner.write().take_refused_older()
    }

    /// Records that a namespace has its own list from now on, and whether the list of all namespaces contained it before.
    pub(crate) fn add_namespace(&mut self, namespace: &str, was_in_whole: bool) {
        self.inner
            .write()
            .reached()
            .add_namespace(namespace, was_in_whole);
    }

    /// Records that a namespace no longer has its own list.
    pub(crate) fn remove_namespace(&mut self, namespace: &str) {
        self.inner.write().reached().remove_namespace(namespace);
    }

    /// Records that a list of a namespace begins. The caller compares its contents.
    pub(crate) fn begin_part(&mut self, namespace: &str) {
        self.inner.write().reached().begin(namespace);
    }

    /// Records that the last list of a namespace that began is complete.
    pub(crate) fn end_part(&mut self, namespace: &str, consistency: ReadConsistency) {
        self.inner.write().reached().end(namespace, consistency);
    }

    /// Sets the revision of a namespace with its own list, and of the whole store if that is known.
    pub(crate) fn advance_part(
        &mut self,
        namespace: &str,
        revision: &str,
        whole: Option<&str>,
        consistency: ReadConsistency,
    ) {
        self.inner
            .write()
            .advance_part(namespace, revision, whole, consistency);
        self.inner.notify_progress();
    }

    /// Removes and returns all objects, and resets the revision. Indexes stay.
    pub fn clear(&mut self) -> Vec<Arc<Object>> {
        self.inner.write().clear()
    }
}

impl fmt::Debug for StoreWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreWriter")
            .field("representation", &self.inner.representation)
            .field("transform", &self.inner.transform)
            .finish_non_exhaustive()
    }
}
