// SPDX-License-Identifier: Apache-2.0
//! The objects of one kind in one scope: one writer, any number of readers.
//!
//! The reflector of an informer holds the [`StoreWriter`]; everybody else holds a [`Store`], which is cheap to clone.
//!
//! # Guarantees
//! 1. Of two revisions of one uid the newer stays, in whichever order they come. Revisions that cannot be compared replace
//!    each other. Another uid replaces what is there, and so does other content of the same revision. What an informer lists
//!    without asking for a revision is the newest state, and replaces what is there in any case.
//! 2. A relist happens in place: readers see each object as it was or as it is, never a store that is half empty, and
//!    no second copy is made. A relist that is given up loses nothing.
//! 3. A change is in every index before a reader sees it in the store, and readers see it in all of them at once.
//! 4. Readers wait only for the moment in which a change is entered: objects are decoded and index functions run
//!    without the lock.
//! 5. An object that cannot be decoded disturbs nobody else: it is counted, kept as bytes, and reading it gives an error
//!    with its key and the field. A function of a user that panics over an object is counted, too, and has said nothing.
//! 6. A list is in the order of slots: the same history gives the same order, however the objects are found.
//!
//! # Not promised
//! That a slot is not used again: the order of a list is not that of creation.
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
mod reached;
mod reader;
mod representation;
mod select;
mod state;
mod values;
mod writer;

use std::{fmt, sync::Arc};

pub(crate) use self::state::{Came, State};
pub use self::{
    query::Query,
    representation::Representation,
    writer::{Change, StoreWriter},
};
use crate::{
    Object,
    object::Sharing,
    overlay::Layer,
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    transform::Transform,
};

/// How a store keeps its objects.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    representation: Representation,
    transform: Option<Transform>,
    seed: u64,
}

impl StoreOptions {
    /// Everything, as bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// In which form objects are kept. Default: as bytes.
    #[must_use]
    pub fn representation(mut self, representation: Representation) -> Self {
        self.representation = representation;
        self
    }

    /// What of them is kept. Default: everything but `managedFields`.
    #[must_use]
    pub fn transform(mut self, transform: Transform) -> Self {
        self.transform = Some(transform);
        self
    }

    /// What the hashes of keys are made with. Default: 0. Whoever lets strangers choose names gives a number that they
    /// do not know, so that they cannot choose names whose hashes are alike.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// An empty store, as the one who writes it and those who read it see it.
#[must_use]
pub fn store(options: StoreOptions) -> (StoreWriter, Store) {
    let inner = Arc::new(Inner {
        sharing: options.representation.sharing(),
        state: RwLock::new(State::new(options.seed, options.representation.keeps_values())),
        representation: options.representation,
        transform: options.transform,
    });
    let store = Store {
        inner: Arc::clone(&inner),
        layer: None,
    };
    (StoreWriter::new(inner), store)
}

/// Reads a store. Cloning it copies a pointer.
///
/// A store that comes from an [`Overlay`](crate::Overlay) shows what was written through it, too.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    layer: Option<Arc<Layer>>,
}

struct Inner {
    state: RwLock<State>,
    sharing: Arc<Sharing>,
    representation: Representation,
    transform: Option<Transform>,
}

impl Inner {
    /// The object as it is kept.
    fn shape(&self, object: Arc<Object>) -> Arc<Object> {
        let cut = self
            .transform
            .as_ref()
            .and_then(|transform| transform.cut(&object));
        let object = cut.map_or(object, Arc::new);
        self.representation.shape(object, &self.sharing)
    }

    /// Whether an object is kept at all.
    fn admits(&self, object: &Object) -> bool {
        self.transform.as_ref().is_none_or(|transform| {
            transform.judge(object).unwrap_or_else(|| {
                self.sharing.failed();
                true
            })
        })
    }

    /// Whether an object is kept as it comes.
    fn is_plain(&self) -> bool {
        self.transform.is_none() && !self.representation.keeps_values()
    }

    // A panic under the lock can only be one of ours, and leaves at worst one object out of an index.
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
