// SPDX-License-Identifier: Apache-2.0
//! Shows writes to readers until the watch has delivered them.
//!
//! A writer passes the server's response to the [`Overlay`], and reads through [`Overlay::store`], which never waits.
//!
//! # Guarantees
//! 1. After [`wrote`](Overlay::wrote), reads return the written object or a newer state. Get, list and index lookups agree.
//! 2. After [`deleted`](Overlay::deleted), reads return no object of that uid. One exception: if the revision of the deletion
//!    is known and a newer state arrives, the object had only left a selector, and is shown again.
//! 3. A written entry ends as soon as the store has reached its revision, by an event, a bookmark or a relist, even if the
//!    object never arrives because a selector leaves it out. It also ends after a list of the newest state that began later.
//!    If namespaces are listed separately, the object's own namespace counts: a slow namespace delays no entry of another. A
//!    handler that receives the deletion of an object no longer reads the object.
//! 4. A tombstone ends when the store has removed that uid, when another uid has replaced it, or when the store or the stored
//!    object has passed the revision of the deletion. If none of this ever happens, the object was not deleted after all. It
//!    is shown again after a list of the newest state. It is also shown again after [`limit`](Overlay::limit), if another
//!    list contained it or a newer event of it arrives.
//! 5. No entry stays forever: see below.
//! 6. An object that was created and deleted between two lists is in no list and no event. Handlers of its informer receive a
//!    `Deleted` event with the object as written, because readers have seen it.
//!
//! # Limits
//! If revisions cannot be compared (aggregated servers), a written entry ends when the store receives that very revision, after
//! a relist that began later, or after [`limit`](Overlay::limit). Until then it can hide a newer state. A tombstone whose uid
//! the store does not have also ends after that time: it hides nothing. Above 10,000 entries the oldest is dropped.

mod entries;

use std::{fmt, sync::Arc, time::Duration};

use steersman_core::{Clock, ObjectKey};

pub(crate) use self::entries::OverlayEntries;
use crate::{Object, Revision, Store};

/// Shows writes that the watch has not delivered yet to the readers of a store. Cloning it copies pointers.
///
/// ```
/// use std::sync::Arc;
/// use steersman_cache::{Object, Overlay, StoreOptions, store};
/// use steersman_core::TestClock;
///
/// let (_writer, store) = store(StoreOptions::new());
/// let overlay = Overlay::new(&store, Arc::new(TestClock::new()));
/// let response = br#"{"metadata":{"name":"front","namespace":"web","uid":"1","resourceVersion":"8"}}"#;
/// overlay.wrote(Object::from_slice(response)?);
/// assert!(overlay.store().get("web", "front").is_some());
/// assert!(store.get("web", "front").is_none());
/// # Ok::<(), steersman_cache::InvalidObject>(())
/// ```
#[derive(Clone)]
pub struct Overlay {
    /// The store without the overlay.
    store: Store,
    layer: Arc<OverlayEntries>,
}

impl Overlay {
    /// Creates an empty overlay of a store.
    #[must_use]
    pub fn new(store: &Store, clock: Arc<dyn Clock>) -> Self {
        Self::limited(store, clock, Self::LIMIT)
    }

    /// Default of [`limit`](Self::limit): 10 s.
    pub const LIMIT: Duration = Duration::from_secs(10);

    /// Same as [`new`](Self::new), with another limit than [`LIMIT`](Self::LIMIT).
    #[must_use]
    pub fn limited(store: &Store, clock: Arc<dyn Clock>, limit: Duration) -> Self {
        let layer = Arc::new(OverlayEntries::new(clock, limit, false));
        store.tell(&layer);
        Self {
            store: store.clone(),
            layer,
        }
    }

    /// Returns the overlay of an informer's store. The informer reports lost writes to its handlers.
    pub(crate) fn of_informer(store: &Store, clock: &Arc<dyn Clock>) -> Self {
        let layer = store.written(|| OverlayEntries::new(Arc::clone(clock), Self::LIMIT, true));
        Self {
            layer: Arc::clone(layer),
            store: store.clone(),
        }
    }

    /// How long an own write stays visible if resourceVersions cannot show whether the watch has delivered it. Default:
    /// [`LIMIT`](Self::LIMIT).
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.layer.limit()
    }

    /// Returns the store including the written objects.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store.with_layer(&self.layer)
    }

    /// Records the object with which the server answered a create, update, patch, apply or status update.
    pub fn wrote(&self, object: Object) {
        let object = self.store.shape(object);
        self.store.look(|state| self.layer.wrote(state, object));
    }

    /// Records that the server deleted an object, at this revision if the response had one.
    ///
    /// If the deletion only begins, because of finalizers or a grace period, the server answers with the object: use
    /// [`wrote`](Self::wrote). Pass the revision of the deletion, not the last revision of the object.
    pub fn deleted(&self, key: &ObjectKey, uid: &str, revision: Option<&Revision>) {
        self.store
            .look(|state| self.layer.deleted(state, key, uid, revision));
    }

    /// Returns the number of entries, including tombstones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.look(|state| self.layer.snapshot(state).len())
    }

    /// Returns true if there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("entries", &self.len())
            .field("limit", &self.limit())
            .finish_non_exhaustive()
    }
}
