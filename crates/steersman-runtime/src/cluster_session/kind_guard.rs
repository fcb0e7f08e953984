// SPDX-License-Identifier: Apache-2.0
//! Ends the work on a cluster when the kind of the work is removed there.
//!
//! A controller of one cluster is stopped as a whole when its kind is removed. A controller of every cluster continues, and
//! only the work on the cluster without the kind ends: it gets a stop request, and is cancelled after the same shutdown
//! timeout.

use std::sync::Arc;

use steersman_cluster::PresenceWatch;
use steersman_core::{Clock, PresenceStatus, Task};
use tokio::sync::Notify;

use crate::{RunContext, Stop, StopHandle, conditional::SHUTDOWN_TIMEOUT};

/// The period in which a kind is installed in a cluster, in one incarnation.
pub(crate) struct KindGuard {
    end: Stop,
    clock: Arc<dyn Clock>,
    _following: Task,
}

impl KindGuard {
    /// Follows the kind. `ended` is notified of the end.
    pub(crate) fn follow(mut presence: PresenceWatch, cx: &RunContext, ended: &Arc<Notify>) -> Self {
        let (handle, end) = StopHandle::new();
        let (clock, ended) = (Arc::clone(cx.clock()), Arc::clone(ended));
        // Read now, not in the task: the kind can be replaced before the task runs.
        let now = presence.now();
        let following = cx.spawner().spawn("kind guard", async move {
            let begun = match now.is_present() {
                true => now,
                // Other sources can enqueue keys before the kind is installed.
                false => presence.when(PresenceStatus::is_present).await,
            };
            presence.when(|now| is_over(&begun, now)).await;
            handle.stop_by(clock.now() + SHUTDOWN_TIMEOUT);
            ended.notify_one();
        });
        Self {
            end,
            clock: Arc::clone(cx.clock()),
            _following: following,
        }
    }

    /// Stop request for work on the cluster.
    pub(super) fn end(&self) -> &Stop {
        &self.end
    }

    /// Waits until the deadline of the stop request has passed.
    pub(super) async fn overdue(&self) {
        let deadline = self.end.requested().await;
        self.clock.sleep_until(deadline).await;
    }
}

/// Returns true if an installed kind was removed or replaced.
pub(crate) fn is_over(begun: &PresenceStatus, now: &PresenceStatus) -> bool {
    now.is_absent() || (now.is_present() && now.incarnation != begun.incarnation)
}
