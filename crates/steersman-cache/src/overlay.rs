// SPDX-License-Identifier: Apache-2.0
//! What was written lies over the cache until the watch has caught up.
//!
//! Whoever writes hands the server's answer to the [`Overlay`], and reads through [`Overlay::store`], which never waits.
//!
//! # Guarantees
//! 1. After [`wrote`](Overlay::wrote), reads show what was written or something newer; get, list and index lookups
//!    agree on it.
//! 2. After [`deleted`](Overlay::deleted), reads show nothing of that uid, unless it was said when it went and something
//!    newer of it comes: then it has only left a selector, and is back.
//! 3. What was written goes as soon as the store has reached its revision, by an event, a bookmark or a relist, also if
//!    it never comes because a selector leaves it out. It also goes after a list of the newest state that began later. Where
//!    namespaces are listed one by one, its own namespace counts: one that is behind keeps nothing of another. Whoever hears
//!    that an object went does not see it any more.
//! 4. A tombstone goes when the store has seen that uid go, when another uid came in its place, or when the store or the
//!    object in it has passed the revision of the deletion. Where none of that ever happens, the object was not deleted
//!    after all: it is shown again after a list of the newest state, and after [`limit`](Overlay::limit) when another list
//!    has shown it or a newer event of it comes.
//! 5. Nothing stays for good: see below.
//! 6. An object that was created and deleted again between two lists is not in any list or event. Handlers of its informer
//!    get a `Deleted` event with the object as it was written, because readers have seen it.
//!
//! # Limits
//! Where revisions cannot be compared (aggregated servers), what was written goes when the store sees that very revision,
//! after a relist that began later, or after [`limit`](Overlay::limit); until then it may cover something newer. A
//! tombstone whose uid the store does not have goes after that time, too: there is nothing left that it could hide. Past
//! 10,000 entries the oldest goes.

mod layer;

use std::{fmt, sync::Arc, time::Duration};

use steersman_core::{Clock, ObjectKey};

pub(crate) use self::layer::Layer;
use crate::{Object, Revision, Store};

/// Shows to the readers of a store what was written and has not come back yet. Cloning it copies pointers.
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
    /// Without what is laid over it.
    store: Store,
    layer: Arc<Layer>,
}

impl Overlay {
    /// Nothing yet, over this store.
    #[must_use]
    pub fn new(store: &Store, clock: Arc<dyn Clock>) -> Self {
        Self::limited(store, clock, Self::LIMIT)
    }

    /// How long something stays whose end cannot be told. Default: 10 s.
    pub const LIMIT: Duration = Duration::from_secs(10);

    /// The same with another limit than [`LIMIT`](Self::LIMIT).
    #[must_use]
    pub fn limited(store: &Store, clock: Arc<dyn Clock>, limit: Duration) -> Self {
        Self::over(store, Layer::new(clock, limit, false))
    }

    /// The same over the store of an informer, which tells its handlers of writes that are lost.
    pub(crate) fn of_informer(store: &Store, clock: Arc<dyn Clock>) -> Self {
        Self::over(store, Layer::new(clock, Self::LIMIT, true))
    }

    fn over(store: &Store, layer: Layer) -> Self {
        let layer = Arc::new(layer);
        store.tell(&layer);
        Self {
            store: store.clone(),
            layer,
        }
    }

    /// How long something stays whose end cannot be told.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.layer.limit()
    }

    /// The store as those see it who wrote.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store.with_layer(&self.layer)
    }

    /// The server answered a create, update, patch, apply or status update with this object.
    pub fn wrote(&self, object: Object) {
        let object = self.store.shape(object);
        self.store.look(|state| self.layer.wrote(state, object));
    }

    /// The server said that this object is gone, at this revision if it said one.
    ///
    /// A deletion that only begins, because of finalizers or grace, is answered with the object: that is
    /// [`wrote`](Self::wrote). The revision is that of the deletion; the last one that the object had is none.
    pub fn deleted(&self, key: &ObjectKey, uid: &str, revision: Option<&Revision>) {
        self.store
            .look(|state| self.layer.deleted(state, key, uid, revision));
    }

    /// How many objects lie over the store, tombstones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.look(|state| self.layer.laid(state).len())
    }

    /// Whether there is nothing.
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
