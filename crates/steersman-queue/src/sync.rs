// SPDX-License-Identifier: Apache-2.0
//! The mutex, or loom's mutex in its place.

#[cfg(loom)]
use loom::sync as imp;
#[cfg(not(loom))]
use std::sync as imp;

use imp::{Mutex, MutexGuard};

/// A mutex without poisoning.
///
/// The queue's code does not panic in the middle of a change, and a panic in a key's `Eq` or `Hash` must not stop every
/// other worker permanently.
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
