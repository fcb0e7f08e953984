// SPDX-License-Identifier: Apache-2.0
//! The one who writes a store.

use std::{fmt, sync::Arc};

use super::{
    Inner,
    indexes::{self, Functions},
    state::{Came, Stored},
};
use crate::{Object, Revision};

/// Writes a store. There is one, so that changes have an order.
///
/// Readers may go on when it is dropped; the store stays as it is.
pub struct StoreWriter {
    inner: Arc<Inner>,
}

/// What a write changed.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an object comes, changes or goes, there is nothing else"
)]
pub enum Change {
    /// It was not there before.
    Added(Arc<Object>),
    /// It was there. With another uid it was deleted and created again meanwhile.
    Updated {
        /// As it was.
        old: Arc<Object>,
        /// As it is.
        new: Arc<Object>,
    },
    /// It is there no more, because the transform [leaves it out](crate::Transform::only) now.
    Removed(Arc<Object>),
}

impl Change {
    /// The object as it was, if it was there.
    #[must_use]
    pub fn before(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Added(_) => None,
            Self::Updated { old, .. } | Self::Removed(old) => Some(old),
        }
    }

    /// The object as it is, if it is there.
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

    /// Enters an object that came. Nothing changes if the store has the same, or a newer revision of the same uid.
    ///
    /// The [revision](Self::set_revision) of the store is another matter: the items of a list do not say how far it has
    /// got.
    pub fn apply(&mut self, object: impl Into<Arc<Object>>) -> Option<Change> {
        self.enter(object.into(), Came::InOrder)
    }

    /// As [`apply`](Self::apply). An object of a list of the newest state replaces what is there, whatever its revision.
    pub(crate) fn enter(&mut self, object: Arc<Object>, came: Came) -> Option<Change> {
        let (object, functions, values) =
            if self.inner.is_plain() && !self.inner.read().indexes.has_functions() {
                (self.inner.shape(object), Functions::default(), None)
            } else {
                // Before anything is spent on an object that changes nothing, as most of a relist do not.
                let functions = {
                    let mut state = self.inner.write();
                    if state.refuses(&object, came) {
                        return None;
                    }
                    Arc::clone(state.indexes.functions())
                };
                if !self.inner.admits(&object) {
                    return self.inner.write().remove(&object, came).map(Change::Removed);
                }
                let object = self.inner.shape(object);
                let values = indexes::compute(&functions, &object);
                (object, functions, Some(values))
            };
        let mut state = self.inner.write();
        match state.enter(&object, came, &functions, values) {
            Stored::Refused => None,
            Stored::Now { old: Some(old), .. } => Some(Change::Updated { old, new: object }),
            Stored::Now { old: None, .. } => Some(Change::Added(object)),
        }
    }

    /// Takes an object out that was deleted, and gives what the store had; nothing if it had none or a newer one.
    pub fn remove(&mut self, object: &Object) -> Option<Arc<Object>> {
        self.inner.write().remove(object, Came::InOrder)
    }

    /// Begins a relist: from now on it is noted which objects come. One that is under way is given up.
    pub fn begin_replace(&mut self) {
        self.inner.write().begin_replace();
    }

    /// Ends a relist: what has not come since it began is taken out and given back. Nothing happens if none was begun.
    pub fn end_replace(&mut self) -> Vec<Arc<Object>> {
        self.end_list(Came::InOrder)
    }

    /// As [`end_replace`](Self::end_replace), where the list may have been one of the newest state.
    pub(crate) fn end_list(&mut self, came: Came) -> Vec<Arc<Object>> {
        self.inner.write().end_replace(came)
    }

    /// Gives a relist up. What came with it stays, as does what did not.
    pub fn abandon_replace(&mut self) {
        self.inner.write().abandon_replace();
    }

    /// Notes how far the store has got: all changes up to this revision are in it. It never goes back.
    pub fn set_revision(&mut self, revision: &Revision) {
        self.advance_to(revision.as_str());
    }

    /// [`set_revision`](Self::set_revision) for a revision as it is written, such as that of an event's object.
    pub fn advance_to(&mut self, resource_version: &str) {
        self.advance(resource_version, Came::InOrder);
    }

    /// The same, which goes back with a list of the newest state.
    pub(crate) fn advance(&mut self, resource_version: &str, came: Came) {
        self.inner.write().advance(resource_version, came);
    }

    /// What was written, has been deleted, and was in no list and no event, as far as that is known by now.
    pub(crate) fn take_lost(&mut self) -> Vec<Arc<Object>> {
        self.inner.read().take_lost()
    }

    /// The same at the end of a list, when it is known of everything that was written before.
    pub(crate) fn take_all_lost(&mut self) -> Vec<Arc<Object>> {
        let state = self.inner.read();
        state.settle_layers();
        state.take_lost()
    }

    /// Whether something was refused since this was asked last because it is older than what is stored.
    pub(crate) fn take_refused_older(&mut self) -> bool {
        self.inner.write().take_refused_older()
    }

    /// Notes that a namespace is listed by itself from now on, and whether the whole had it before.
    pub(crate) fn part(&mut self, namespace: &str, was_in_whole: bool) {
        self.inner.write().reached().part(namespace, was_in_whole);
    }

    /// Notes that a namespace is not listed by itself any more.
    pub(crate) fn unite(&mut self, namespace: &str) {
        self.inner.write().reached().unite(namespace);
    }

    /// Notes that a list of a namespace begins. What is in it is compared by the one who lists.
    pub(crate) fn begin_part(&mut self, namespace: &str) {
        self.inner.write().reached().begin(namespace);
    }

    /// Notes that the list of a namespace that was begun last has been carried through.
    pub(crate) fn end_part(&mut self, namespace: &str, came: Came) {
        self.inner.write().reached().end(namespace, came);
    }

    /// Notes how far a namespace has got that is listed by itself, and the whole store, if that is known.
    pub(crate) fn advance_part(&mut self, namespace: &str, revision: &str, whole: Option<&str>, came: Came) {
        self.inner.write().advance_part(namespace, revision, whole, came);
    }

    /// Takes everything out, the revision included, and gives it back. Indexes stay.
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
