// SPDX-License-Identifier: Apache-2.0
//! Handles to the informers of a cache.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock, Weak},
};

use super::{Inner, Key};
use crate::{Informer, Overlay, Store};

/// A handle to an informer of a cache. The informer runs as long as a handle exists.
#[derive(Clone, Debug)]
pub struct InformerHandle {
    pub(super) access: Access,
    pub(super) ref_count: Arc<RefCount>,
}

/// An informer and the overlay of its cache. It is no handle: the cache can end the informer at any time.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) informer: Informer,
    /// Created by the first write, so that reads without writes cost nothing extra.
    pub(super) overlay: Arc<OnceLock<Overlay>>,
}

/// Notifies the cache on drop that the informer has no handle left.
#[derive(Debug)]
pub(super) struct RefCount {
    pub(super) key: Key,
    pub(super) cache: Weak<Inner>,
}

impl InformerHandle {
    /// Returns the objects including writes made through the same cache.
    #[must_use]
    pub fn view(&self) -> Store {
        self.access.view()
    }
}

impl Access {
    pub(super) fn view(&self) -> Store {
        match self.overlay.get() {
            Some(overlay) => overlay.store(),
            None => self.informer.store().clone(),
        }
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
        &self.access.informer
    }
}
