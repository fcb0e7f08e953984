// SPDX-License-Identifier: Apache-2.0
//! What was registered lasts as long as its guard.

use std::fmt;

/// Something that was registered: a health check, or metrics. It is removed when this drops.
#[must_use = "what was registered is removed when this drops; say `.forever()` to keep it"]
pub struct Registered(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Registered {
    pub(crate) fn new(remove: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(remove)))
    }

    /// Never removes it: it lasts as long as what it was registered with.
    pub fn forever(mut self) {
        self.0 = None;
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(remove) = self.0.take() {
            remove();
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").finish_non_exhaustive()
    }
}
