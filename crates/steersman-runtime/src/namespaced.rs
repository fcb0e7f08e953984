// SPDX-License-Identifier: Apache-2.0
//! Scope of a kind that is learnt at run time.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Scope of a kind (namespaced or cluster-scoped), once known. Clones share it.
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

    /// Resets the scope: a removed kind can be installed again with another scope.
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
