// SPDX-License-Identifier: Apache-2.0
//! Locks between a writer and its readers; replaced by loom's locks in loom tests.
//!
//! They ignore poison: the guarded data is consistent after each of our steps, and a panic in a user's function must not block
//! all others forever.
//!
//! `cfg(loom)` is set for this crate alone, since it also changes tokio, which the rest of the crate needs.
//! `cargo xtask test` runs the tests called `interleavings`, after
//! `cargo rustc -p steersman-cache --lib --profile test -- --cfg loom`.

#[cfg(all(test, loom))]
use loom::sync as imp;
#[cfg(not(all(test, loom)))]
use std::sync as imp;

use std::sync::PoisonError;

pub(crate) use imp::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct RwLock<T>(imp::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(imp::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a test in all interleavings with at most three preemptions.
#[cfg(all(test, loom))]
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}
