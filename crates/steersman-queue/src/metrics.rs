// SPDX-License-Identifier: Apache-2.0
//! Where the queue reports what happens, without knowing who counts.

use std::time::Duration;

/// Receives what happens in a queue; the counters and histograms of client-go's `workqueue_*` family.
///
/// Every method does nothing by default and is called outside the queue's lock. What client-go keeps as gauges is
/// not pushed but asked for when somebody scrapes, so that it costs nothing in between and cannot drift:
///
/// | metric | from |
/// |---|---|
/// | `workqueue_adds_total` | [`added`](Self::added) |
/// | `workqueue_queue_duration_seconds` | [`taken`](Self::taken) |
/// | `workqueue_work_duration_seconds` | [`finished`](Self::finished) |
/// | `workqueue_retries_total` | [`retried`](Self::retried) |
/// | `workqueue_depth` (by priority) | [`Queue::depth_by_priority`](crate::Queue::depth_by_priority) |
/// | `workqueue_unfinished_work_seconds` | [`Depth::unfinished_work`](crate::Depth::unfinished_work) |
/// | `workqueue_longest_running_processor_seconds` | [`Depth::longest_running`](crate::Depth::longest_running) |
/// | `controller_warm_pending` | [`Depth::warm`](crate::Depth::warm) |
pub trait Metrics: Send + Sync + 'static {
    /// That many keys became ready. An add that was merged into one that is already ready does not count; a
    /// delayed key counts when its delay is over.
    fn added(&self, keys: u64) {
        let _ = keys;
    }

    /// A key was handed out after it was ready for `queued`. While the queue was paused the time stood still.
    fn taken(&self, queued: Duration) {
        let _ = queued;
    }

    /// The work on a key ended after `worked`. A key that was postponed or withdrawn was not worked on and does not count.
    fn finished(&self, worked: Duration) {
        let _ = worked;
    }

    /// A key was added with a delay, or put back with one after work on it: client-go counts so, too.
    fn retried(&self) {}
}
