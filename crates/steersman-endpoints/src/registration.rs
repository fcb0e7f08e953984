// SPDX-License-Identifier: Apache-2.0
//! A guard that undoes a registration.

use std::fmt;

/// Keeps a health check or metrics registered. Dropping it removes them.
#[must_use = "dropping the guard removes what was registered; call `.detach()` to keep it"]
pub struct RegistrationGuard(Option<Box<dyn FnOnce() + Send + Sync>>);

impl RegistrationGuard {
    /// Creates a guard that calls `remove` when it is dropped.
    pub fn new(remove: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(remove)))
    }

    /// Keeps the registration for the lifetime of the registry.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for RegistrationGuard {
    fn drop(&mut self) {
        if let Some(remove) = self.0.take() {
            remove();
        }
    }
}

impl fmt::Debug for RegistrationGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationGuard").finish_non_exhaustive()
    }
}
