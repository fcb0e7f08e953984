// SPDX-License-Identifier: Apache-2.0
//! What a reconciler wants next.

use std::time::Duration;

/// What is to happen with a key after it was reconciled without an error.
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
#[must_use = "an action says something only when it is returned"]
pub struct Action {
    next: Next,
    priority: Option<i32>,
}

/// When a key is reconciled again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// When something changes.
    #[default]
    Change,
    /// After its back-off, as if it had failed.
    BackOff,
    /// After that time, or when something changes before. Zero means at once.
    After(Duration),
}

impl Action {
    /// Nothing is left to do until something changes.
    pub const fn await_change() -> Self {
        Self::of(Next::Change)
    }

    /// Reconcile the key again after `delay`, even if nothing changes. Zero reconciles it again at once, after the keys
    /// that are ready already.
    pub const fn requeue_after(delay: Duration) -> Self {
        Self::of(Next::After(delay))
    }

    /// Do it again soon, with the growing delays of a failure, but without being one.
    pub const fn requeue() -> Self {
        Self::of(Next::BackOff)
    }

    /// With which priority the key is queued again. Default: the one that it had.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// When the key is reconciled again.
    #[must_use]
    pub const fn next(&self) -> Next {
        self.next
    }

    /// The priority that was asked for.
    #[must_use]
    pub const fn wanted_priority(&self) -> Option<i32> {
        self.priority
    }

    const fn of(next: Next) -> Self {
        Self { next, priority: None }
    }
}
