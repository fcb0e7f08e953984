// SPDX-License-Identifier: Apache-2.0
//! How long a cluster is worked on that may lose the kind which the work is about.
//!
//! A controller of one cluster is stopped as a whole when its kind goes. One that runs on every cluster goes on, and only
//! the work on the cluster that lost the kind ends: it is told to, and cancelled after the same grace period.

use std::sync::Arc;

use steersman_cluster::PresenceWatch;
use steersman_core::{Clock, Sighting, Task};
use tokio::sync::Notify;

use crate::{RunContext, Stop, StopHandle, conditional::GRACE};

/// The time in which a cluster has a kind, in one incarnation.
pub(crate) struct KindGuard {
    end: Stop,
    clock: Arc<dyn Clock>,
    _following: Task,
}

impl KindGuard {
    /// Follows the kind. `told` hears of the end.
    pub(crate) fn follow(mut presence: PresenceWatch, cx: &RunContext, told: &Arc<Notify>) -> Self {
        let (handle, end) = StopHandle::new();
        let (clock, told) = (Arc::clone(cx.clock()), Arc::clone(told));
        // Not when the task is first run: the kind may be another one by then.
        let now = presence.now();
        let following = cx.spawner().spawn("stay", async move {
            let begun = match now.is_present() {
                true => now,
                // Keys may come of other sources before it is there.
                false => presence.when(Sighting::is_present).await,
            };
            presence.when(|now| is_over(&begun, now)).await;
            handle.stop_by(clock.now() + GRACE);
            told.notify_one();
        });
        Self {
            end,
            clock: Arc::clone(cx.clock()),
            _following: following,
        }
    }

    /// Tells those who work of the end.
    pub(super) fn end(&self) -> &Stop {
        &self.end
    }

    /// Waits until the time is over that those who work have to end.
    pub(super) async fn outstayed(&self) {
        let deadline = self.end.requested().await;
        self.clock.sleep_until(deadline).await;
    }
}

/// Whether a kind that was there has gone, or another one has its name.
pub(crate) fn is_over(begun: &Sighting, now: &Sighting) -> bool {
    now.is_absent() || (now.is_present() && now.incarnation != begun.incarnation)
}
