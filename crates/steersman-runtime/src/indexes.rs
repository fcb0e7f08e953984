// SPDX-License-Identifier: Apache-2.0
//! The indexes that a controller keeps with the caches of the kinds that it watches.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use steersman_cache::{Index, IndexConflict, IndexValue, Store};

/// Finds objects by the uid of their controlling owner. `owns` keeps it, and [`Context::owned`](crate::Context::owned) reads by it.
pub(crate) static BY_CONTROLLER: LazyLock<Index<String>> = LazyLock::new(|| {
    Index::on_header("steersman/controller", |object| {
        let owners = object.owners().into_iter();
        owners
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid)
    })
});

/// Indexes of one kind.
#[derive(Clone, Default)]
pub(crate) struct Indexes(Vec<Arc<AddIndex>>);

type AddIndex = dyn Fn(&Store) -> Result<(), IndexConflict> + Send + Sync;

impl Indexes {
    pub(crate) fn add<V: IndexValue>(&mut self, index: &Index<V>) {
        let index = index.clone();
        self.0.push(Arc::new(move |store| store.add_index(&index)));
    }

    /// Adds all of them to the store of an informer, and returns the first that it does not take.
    pub(crate) fn add_to(&self, store: &Store) -> Result<(), IndexConflict> {
        let added: Vec<_> = self.0.iter().map(|add| add(store)).collect();
        added.into_iter().collect()
    }
}

impl fmt::Debug for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Indexes").field(&self.0.len()).finish()
    }
}
