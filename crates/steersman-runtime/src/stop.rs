// SPDX-License-Identifier: Apache-2.0
//! Stop requests, with a deadline.

use futures::future::select_all;
use steersman_core::MonotonicTime;
use tokio::sync::watch;

/// Requests a stop from all holders of the [`Stop`]. Drop requests it with no time left.
#[derive(Debug)]
pub struct StopHandle(watch::Sender<Option<MonotonicTime>>);

/// A stop request and its deadline. Clones share the request.
#[derive(Clone, Debug)]
pub struct Stop(Vec<watch::Receiver<Option<MonotonicTime>>>);

impl StopHandle {
    /// Creates a handle and its stop request.
    ///
    /// ```
    /// # futures::executor::block_on(async {
    /// use steersman_runtime::StopHandle;
    /// use steersman_core::MonotonicTime;
    ///
    /// let (handle, stop) = StopHandle::new();
    /// assert!(stop.deadline().is_none());
    /// handle.stop_by(MonotonicTime::from_nanos(7));
    /// assert_eq!(stop.requested().await, MonotonicTime::from_nanos(7));
    /// # });
    /// ```
    #[must_use]
    pub fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), Stop(vec![receiver]))
    }

    /// Requests a stop; nothing waits longer than until `deadline`. Only the first call counts.
    pub fn stop_by(&self, deadline: MonotonicTime) {
        self.0.send_if_modified(|requested| {
            let is_first = requested.is_none();
            *requested = requested.or(Some(deadline));
            is_first
        });
    }
}

impl Stop {
    /// Waits for the stop request, and returns its deadline.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn requested(&self) -> MonotonicTime {
        let mut receivers = self.0.clone();
        let each = receivers.iter_mut().map(|receiver| {
            Box::pin(async {
                // A dropped handle leaves no time.
                let requested = receiver.wait_for(Option::is_some).await;
                requested
                    .ok()
                    .and_then(|requested| *requested)
                    .unwrap_or(MonotonicTime::ORIGIN)
            })
        });
        select_all(each).await.0
    }

    /// Returns the deadline, if a stop is requested.
    #[must_use]
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.0
            .iter()
            .filter_map(|receiver| match (*receiver.borrow(), receiver.has_changed()) {
                (None, Err(_)) => Some(MonotonicTime::ORIGIN),
                (requested, _) => requested,
            })
            .min()
    }

    /// Returns true if a stop is requested.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.deadline().is_some()
    }

    /// Returns a stop request that this one or a new handle triggers.
    #[must_use]
    pub fn child(&self) -> (StopHandle, Self) {
        let (handle, own) = StopHandle::new();
        (handle, own.joined(self))
    }

    /// Returns a stop request that either triggers.
    pub(crate) fn joined(&self, other: &Self) -> Self {
        Self(self.0.iter().chain(&other.0).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_child_ends_with_its_parent_and_by_itself() {
        let (parent, stop) = StopHandle::new();
        let (own, child) = stop.child();
        let (_other, second) = stop.child();
        own.stop_by(MonotonicTime::from_nanos(1));
        assert!(child.is_requested() && !second.is_requested() && !stop.is_requested());
        parent.stop_by(MonotonicTime::from_nanos(2));
        assert_eq!(
            second.requested().now_or_never(),
            Some(MonotonicTime::from_nanos(2))
        );
    }

    #[test]
    fn a_dropped_handle_stops_the_run() {
        let (handle, stop) = StopHandle::new();
        drop(handle);
        assert!(stop.is_requested());
        assert!(stop.requested().now_or_never().is_some());
    }
}
