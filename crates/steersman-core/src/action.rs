// SPDX-License-Identifier: Apache-2.0
//! Result of a successful reconcile.

use std::time::Duration;

/// Result of a successful reconcile: when to reconcile the key again.
///
/// ```
/// use std::time::Duration;
/// use steersman_core::Action;
///
/// let look_again = Action::requeue_after(Duration::from_secs(30));
/// assert_eq!(look_again.next(), steersman_core::Next::After(Duration::from_secs(30)));
/// assert_eq!(Action::default(), Action::await_change());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "an action has an effect only when it is returned"]
pub struct Action {
    next: Next,
    priority: Option<i32>,
}

/// Time of the next reconcile of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// When an object changes.
    #[default]
    Change,
    /// After its back-off, as if it had failed.
    BackOff,
    /// After this time, or earlier when an object changes. Zero means at once.
    After(Duration),
}

impl Action {
    /// Waits until an object changes.
    pub const fn await_change() -> Self {
        Self::of(Next::Change)
    }

    /// Reconciles the key again after `delay`, even if nothing changes. Zero reconciles it again at once, after the
    /// keys that are already ready.
    pub const fn requeue_after(delay: Duration) -> Self {
        Self::of(Next::After(delay))
    }

    /// Reconciles the key again with back-off, without counting as an error.
    pub const fn requeue() -> Self {
        Self::of(Next::BackOff)
    }

    /// Sets the priority of the requeue. Default: the previous priority of the key.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Returns when the key is reconciled again.
    #[must_use]
    pub const fn next(&self) -> Next {
        self.next
    }

    /// Returns the requested priority.
    #[must_use]
    pub const fn wanted_priority(&self) -> Option<i32> {
        self.priority
    }

    const fn of(next: Next) -> Self {
        Self { next, priority: None }
    }
}
