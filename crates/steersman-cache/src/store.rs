// SPDX-License-Identifier: Apache-2.0
//! The objects of one kind in one scope: one writer, any number of readers.
//!
//! The reflector of an informer owns the [`StoreWriter`]. Readers use a [`Store`], which is cheap to clone.
//!
//! # Guarantees
//! 1. Of two revisions of one uid the store keeps the newer, in whichever order they arrive. If revisions cannot be compared,
//!    the later arrival replaces the earlier. An object with another uid replaces the stored one, and so does different
//!    content of the same revision. A list without a requested revision is the newest state and always replaces the stored
//!    objects.
//! 2. A relist updates the store in place: readers see each object in its old or new state, never a half-empty store, and no
//!    second copy is made. An abandoned relist loses nothing.
//! 3. A change is in every index before a reader sees it in the store, and becomes visible in all indexes at once.
//! 4. Readers wait only while a change is entered: decoding and index functions run without the lock.
//! 5. An object that cannot be decoded does not affect others: it is counted and kept as bytes, and reading it returns an
//!    error with its key and the field. A panic of a user's function over an object is counted too, and the function's result
//!    for that object is ignored.
//! 6. A list is in slot order: the same history gives the same order, whichever lookup finds the objects.
//!
//! # Not promised
//! Slots are reused, so the order of a list is not the order of creation.
//!
//! # Example
//! ```
//! use steersman_cache::{Change, Object, Query, StoreOptions, store};
//!
//! let (mut writer, store) = store(StoreOptions::new());
//! let object = Object::from_slice(br#"{"metadata":{"name":"front","namespace":"web","resourceVersion":"7"}}"#)?;
//! assert!(matches!(writer.apply(object), Some(Change::Added(_))));
//! assert_eq!(store.get("web", "front").map(|object| object.revision().to_string()), Some("7".to_owned()));
//! assert_eq!(store.list(&Query::new().namespace("other")).len(), 0);
//! # Ok::<(), steersman_cache::InvalidObject>(())
//! ```

mod indexes;
#[cfg(all(test, loom))]
mod interleavings;
pub(crate) mod postings;
mod query;
mod reader;
mod representation;
mod revision_tracker;
mod select;
mod state;
mod values;
mod writer;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use tokio::sync::watch;

pub(crate) use self::state::{ReadConsistency, State};
pub use self::{
    query::Query,
    representation::Representation,
    writer::{Change, StoreWriter},
};
use crate::{
    Object,
    object::Sharing,
    overlay::OverlayEntries,
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    transform::Transform,
};

/// Options of a store.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    representation: Representation,
    transform: Option<Transform>,
    seed: u64,
}

impl StoreOptions {
    /// Default options: keeps whole objects as bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the form in which objects are kept. Default: as bytes.
    #[must_use]
    pub fn representation(mut self, representation: Representation) -> Self {
        self.representation = representation;
        self
    }

    /// Sets a transform that reduces objects before they are kept. Default: none; `managedFields` are always dropped.
    #[must_use]
    pub fn transform(mut self, transform: Transform) -> Self {
        self.transform = Some(transform);
        self
    }

    /// Sets the seed of the hashes of keys. Default: 0. If untrusted users choose object names, set a secret number, so that they
    /// cannot choose names with colliding hashes.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// Creates an empty store, and returns its writer and a reader.
#[must_use]
pub fn store(options: StoreOptions) -> (StoreWriter, Store) {
    let inner = Arc::new(Inner {
        sharing: options.representation.sharing(),
        state: RwLock::new(State::new(options.seed, options.representation.keeps_values())),
        representation: options.representation,
        transform: options.transform,
        written: OnceLock::new(),
        progress: watch::Sender::default(),
    });
    let store = Store {
        inner: Arc::clone(&inner),
        writes: ShownWrites::None,
    };
    (StoreWriter::new(inner), store)
}

/// A reader of a store. Cloning it copies a pointer.
///
/// A store from an [`Overlay`](crate::Overlay) also shows objects written through the overlay.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    writes: ShownWrites,
}

/// The overlay that a reader sees.
#[derive(Clone)]
enum ShownWrites {
    None,
    /// The overlay of the cache, which the first write creates. A reader from before that sees it too.
    OfCache,
    Of(Arc<OverlayEntries>),
}

struct Inner {
    state: RwLock<State>,
    sharing: Arc<Sharing>,
    representation: Representation,
    transform: Option<Transform>,
    /// The overlay of the cache. Created by the first write, so that reads without writes cost nothing extra.
    written: OnceLock<Arc<OverlayEntries>>,
    /// Notifies callers that wait for a revision. Without such callers, progress costs one load.
    progress: watch::Sender<()>,
}

impl Inner {
    /// Applies transform and representation to an object.
    fn shape(&self, object: Arc<Object>) -> Arc<Object> {
        let cut = self
            .transform
            .as_ref()
            .and_then(|transform| transform.cut(&object));
        let object = cut.map_or(object, Arc::new);
        self.representation.shape(object, &self.sharing)
    }

    /// Returns true if the transform keeps the object.
    fn admits(&self, object: &Object) -> bool {
        self.transform.as_ref().is_none_or(|transform| {
            transform.judge(object).unwrap_or_else(|| {
                self.sharing.failed();
                true
            })
        })
    }

    /// Notifies callers that wait for a revision.
    fn notify_progress(&self) {
        // The lock orders this load after the subscription of a caller that has not seen the progress.
        if self.progress.receiver_count() > 0 {
            self.progress.send_replace(());
        }
    }

    /// Returns true if objects are kept as received.
    fn is_plain(&self) -> bool {
        self.transform.is_none() && !self.representation.keeps_values()
    }

    // Only our own code can panic under the lock. At worst one object is then missing from an index.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.read();
        f.debug_struct("Store")
            .field("objects", &state.len())
            .field("bytes", &state.bytes())
            .field("revision", &state.revision())
            .field("indexes", &state.indexes)
            .finish()
    }
}
