// SPDX-License-Identifier: Apache-2.0
//! The locks between a writer and its readers, or loom's in their place.
//!
//! They do not know poison: what they guard is whole after every step of ours, and a panic in a function of a user must
//! not stop everybody else for good.
//!
//! `cfg(loom)` is for this crate alone: tokio, which the rest of it needs, is another one then.
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
