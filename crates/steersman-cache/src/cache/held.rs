// SPDX-License-Identifier: Apache-2.0
//! What those have who hold an informer of a cache, or only look at one.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock, Weak},
};

use super::{Inner, Key};
use crate::{Informer, Overlay, Store};

/// A share in an informer of a cache. It is kept running by this.
#[derive(Clone, Debug)]
pub struct InformerHandle {
    pub(super) access: Access,
    pub(super) lease: Arc<Lease>,
}

/// An informer and what was written through its cache. It is no share: the cache ends the informer without asking.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) informer: Informer,
    /// Made by the first write, so that those who only read pay nothing for it.
    pub(super) overlay: Arc<OnceLock<Overlay>>,
}

/// Says to the cache that nobody holds the informer any more, when it drops.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) key: Key,
    pub(super) cache: Weak<Inner>,
}

impl InformerHandle {
    /// The objects as those see them who write through the same cache.
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

impl Drop for Lease {
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
