// SPDX-License-Identifier: Apache-2.0
//! Locks without poisoning.
//!
//! Their users keep the guarded data consistent at each step that can panic, and a panic in a user's function must not
//! block every other thread for good.

use std::sync::{self, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// A [`std::sync::Mutex`] that stays usable after a panic of a thread that held it.
///
/// ```
/// use steersman_core::Mutex;
///
/// let count = Mutex::new(1);
/// *count.lock() += 1;
/// assert_eq!(*count.lock(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a mutex.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex. Blocks this thread until the lock is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`std::sync::RwLock`] that stays usable after a panic of a thread that held it.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates a lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading. Blocks this thread while another one writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks for writing. Blocks this thread until the lock is free.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{panic, thread};

    use super::*;

    #[test]
    fn a_lock_is_usable_after_a_panic() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(2));
        thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _held = (mutex.lock(), lock.write());
                panic::resume_unwind(Box::new("on purpose"));
            });
            assert!(panics.join().is_err());
        });
        assert_eq!((*mutex.lock(), *lock.read()), (1, 2));
    }
}
