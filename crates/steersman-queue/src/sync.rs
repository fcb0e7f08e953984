// SPDX-License-Identifier: Apache-2.0
//! The lock, or loom's in its place.

#[cfg(loom)]
use loom::sync as imp;
#[cfg(not(loom))]
use std::sync as imp;

use imp::{Mutex, MutexGuard};

/// A mutex that does not know poison.
///
/// No code of ours panics half way through a change, and a panic in a key's `Eq` or `Hash` must not stop every
/// other worker for good.
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
