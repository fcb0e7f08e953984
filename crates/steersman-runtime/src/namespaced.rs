// SPDX-License-Identifier: Apache-2.0
//! Whether the objects of a kind are in namespaces, where that is learnt while a program runs.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Whether the objects of a kind are in namespaces, once that is known. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespaced(Arc<AtomicU8>);

impl Namespaced {
    pub(crate) fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Acquire) {
            UNKNOWN => None,
            answer => Some(answer == YES),
        }
    }

    pub(crate) fn set(&self, namespaced: bool) {
        self.0.store(if namespaced { YES } else { NO }, Ordering::Release);
    }

    /// A kind that was uninstalled may come back with another scope.
    pub(crate) fn forget(&self) {
        self.0.store(UNKNOWN, Ordering::Release);
    }
}

impl From<Option<bool>> for Namespaced {
    fn from(known: Option<bool>) -> Self {
        let namespaced = Self::default();
        if let Some(known) = known {
            namespaced.set(known);
        }
        namespaced
    }
}
