// SPDX-License-Identifier: Apache-2.0
//! Handles to the informers of a cache.

use std::{
    ops::Deref,
    sync::{Arc, Weak},
};

use super::{Inner, Key};
use crate::{Informer, Store};

/// A handle to an informer of a cache. The informer runs as long as a handle exists.
#[derive(Clone, Debug)]
pub struct InformerHandle {
    pub(super) informer: Informer,
    pub(super) ref_count: Arc<RefCount>,
}

/// Notifies the cache on drop that the informer has no handle left.
#[derive(Debug)]
pub(super) struct RefCount {
    pub(super) key: Key,
    pub(super) cache: Weak<Inner>,
}

impl InformerHandle {
    /// Returns the objects including writes made through the same cache, before or after this call.
    #[must_use]
    pub fn view(&self) -> Store {
        self.informer.store().with_writes()
    }
}

impl Drop for RefCount {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.upgrade() {
            cache.released(&self.key);
        }
    }
}

impl Deref for InformerHandle {
    type Target = Informer;

    fn deref(&self) -> &Informer {
        &self.informer
    }
}
