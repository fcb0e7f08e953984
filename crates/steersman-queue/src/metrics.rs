// SPDX-License-Identifier: Apache-2.0
//! Metrics interface of the queue.

use std::time::Duration;

/// Receives the events of a queue; the counters and histograms of client-go's `workqueue_*` family.
///
/// Every method does nothing by default and is called outside the queue's lock. client-go's gauges are not pushed: read
/// them at each scrape, so that they cost nothing in between and cannot drift:
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
    /// Counts keys that became ready. An add that was merged into a ready key does not count; a delayed key counts when
    /// its delay is over.
    fn added(&self, keys: u64) {
        let _ = keys;
    }

    /// Records that a key was handed out after it was ready for `queued`. Time while the queue was paused does not
    /// count.
    fn taken(&self, queued: Duration) {
        let _ = queued;
    }

    /// Records that the work on a key ended after `worked`. A key that was postponed or withdrawn was not worked on and
    /// does not count.
    fn finished(&self, worked: Duration) {
        let _ = worked;
    }

    /// Counts a key that was added with a delay, or requeued with one after its work, like client-go.
    fn retried(&self) {}
}
