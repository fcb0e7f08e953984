// SPDX-License-Identifier: Apache-2.0
//! Status of a queue, and purging.

mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use harness::{at, queue, queue_with, seconds, take, take_all};
use steersman_queue::{Add, Cause, Depth, Metrics, Options, Outcome, Stage};

#[test]
fn inspect_reports_time_cause_failures_and_deadline_of_a_key() {
    let (queue, clock) = queue();
    clock.advance(seconds(1));
    queue.add_with("key", Add::new().priority(3));
    let status = queue.status(&"key").expect("it waits");
    assert_eq!(
        (status.stage(), status.since(), status.cause()),
        (Stage::Ready, at(1), Cause::Added)
    );

    let item = take(&queue);
    let stage = |again| Stage::InFlight { since: at(1), again };
    assert_eq!(
        queue.status(&"key").map(|status| status.stage()),
        Some(stage(false))
    );
    queue.add("key");
    assert_eq!(
        queue.status(&"key").map(|status| status.stage()),
        Some(stage(true))
    );
    item.done();

    clock.advance(seconds(1));
    take(&queue).finish(Outcome::retry("quota exceeded").priority(3));
    let status = queue.status(&"key").expect("it waits");
    assert_eq!(status.stage(), Stage::Delayed { until: at(3) });
    assert_eq!((status.since(), status.cause()), (at(2), Cause::Retry));
    assert_eq!(
        (status.failures(), status.last_error()),
        (1, Some("quota exceeded"))
    );
    assert_eq!((status.priority(), status.into_key()), (3, "key"));

    clock.advance(seconds(1));
    drop(take(&queue));
    let status = queue.status(&"key").expect("it waits");
    assert_eq!(
        (status.cause(), status.last_error()),
        (Cause::Dropped, Some("dropped without an outcome"))
    );

    clock.advance(seconds(2));
    take(&queue).finish(Outcome::fail("for good"));
    let status = queue.status(&"key").expect("it is remembered");
    assert_eq!(
        (status.stage(), status.last_error()),
        (Stage::Failed, Some("for good"))
    );

    queue.add("key");
    take(&queue).finish(Outcome::requeue_after(seconds(9)));
    let status = queue.status(&"key").expect("it waits");
    assert_eq!((status.cause(), status.last_error()), (Cause::RequeueAfter, None));
    queue.add("key");
    take(&queue).done();
    assert!(queue.status(&"key").is_none());
}

#[test]
fn all_keys_are_listed_the_longest_waiting_first() {
    let (queue, clock) = queue();
    for key in 0..3000 {
        queue.add(key);
    }
    drop(take_all(&queue));
    for key in (0..3000).rev() {
        clock.advance(seconds(1));
        queue.add(key);
    }
    let even: Vec<_> = queue
        .statuses(|key| key % 2 == 0)
        .into_iter()
        .map(|status| *status.key())
        .collect();
    assert_eq!(
        even,
        (0..3000).rev().filter(|key| key % 2 == 0).collect::<Vec<_>>()
    );
}

#[test]
fn a_queue_works_after_a_burst() {
    let (queue, clock) = queue();
    for round in 0..3 {
        for key in 0..20_000 {
            queue.add_with(key, Add::new().after(seconds(key % 2)));
        }
        clock.advance(seconds(1));
        assert_eq!(take_all(&queue).len(), 20_000, "round {round}");
    }
    assert_eq!(queue.depth(), Depth::default());
}

#[test]
fn depth_is_counted_by_state() {
    let (queue, clock) = queue();
    for key in ["a", "b", "c"] {
        queue.add(key);
    }
    let first = take(&queue);
    clock.advance(seconds(2));
    let second = take(&queue);
    queue.add("a");
    queue.add_with("d", Add::new().after(seconds(60)));
    clock.advance(seconds(1));
    let depth = queue.depth();
    assert_eq!(
        (depth.ready(), depth.in_flight(), depth.dirty(), depth.delayed()),
        (1, 2, 1, 1)
    );
    assert_eq!(
        (depth.unfinished_work(), depth.longest_running()),
        (seconds(4), seconds(3))
    );
    first.done();
    second.done();
    let depth = queue.depth();
    assert_eq!((depth.ready(), depth.in_flight(), depth.dirty()), (2, 0, 0));
    assert_eq!(
        (depth.unfinished_work(), depth.longest_running()),
        (seconds(0), seconds(0))
    );
}

#[derive(Default)]
struct Counts {
    added: AtomicU64,
    retried: AtomicU64,
    queued_ns: AtomicU64,
    worked_ns: AtomicU64,
}

impl Metrics for Counts {
    fn added(&self, keys: u64) {
        self.added.fetch_add(keys, Ordering::Relaxed);
    }
    fn taken(&self, queued: Duration) {
        self.queued_ns
            .fetch_add(queued.as_nanos() as u64, Ordering::Relaxed);
    }
    fn finished(&self, worked: Duration) {
        self.worked_ns
            .fetch_add(worked.as_nanos() as u64, Ordering::Relaxed);
    }
    fn retried(&self) {
        self.retried.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn metrics_count_like_client_go() {
    let counts = Arc::new(Counts::default());
    let (queue, clock) = queue_with(Options::new().named("web").metrics(counts.clone()));
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    queue.add("key");
    queue.add("key");
    queue.add_with("delayed", Add::new().after(seconds(10)));
    assert_eq!(read(&counts.added), 1, "neither merged nor delayed adds count");
    clock.advance(seconds(3));
    let item = take(&queue);
    assert_eq!(read(&counts.queued_ns), 3_000_000_000);
    clock.advance(seconds(2));
    item.finish(Outcome::retry("broken"));
    assert_eq!(
        (read(&counts.worked_ns), read(&counts.retried)),
        (2_000_000_000, 2),
        "a delayed add counts as a retry"
    );
    clock.advance(seconds(10));
    assert_eq!(take_all(&queue), ["key", "delayed"]);
    assert_eq!(read(&counts.added), 3);
    assert_eq!(read(&counts.retried), 2);

    // Keys that are not worked on.
    queue.add("postponed");
    queue.add("withdrawn");
    let (postponed, withdrawn) = (take(&queue), take(&queue));
    clock.advance(seconds(1));
    postponed.finish(Outcome::postpone(seconds(1)));
    drop(withdrawn.withdraw());
    assert_eq!(
        (read(&counts.worked_ns), read(&counts.retried)),
        (2_000_000_000, 2)
    );
    drop(queue);
    assert_eq!(
        Arc::strong_count(&counts),
        1,
        "a queue that is gone holds nothing"
    );
}

#[test]
fn guarantee_13_purge_removes_a_key_in_any_state() {
    let (queue, clock) = queue();
    for key in [("a", 1), ("b", 1), ("a", 2), ("a", 3)] {
        queue.add(key);
    }
    let in_flight = take(&queue);
    queue.add(("a", 1));
    queue.add_with(("a", 4), Add::new().after(seconds(1)));
    assert_eq!(queue.purge(|&(cluster, _)| cluster == "a"), 4);
    in_flight.finish(Outcome::retry("its cluster is gone"));
    clock.advance(seconds(3600));
    assert_eq!(take_all(&queue), [("b", 1)]);
    assert_eq!(queue.depth(), Depth::default());
    assert!(queue.statuses(|_| true).is_empty());
}

#[test]
fn guarantee_13_a_purged_key_that_is_added_again_is_queued() {
    let (queue, _) = queue();
    queue.add("key");
    let item = take(&queue);
    queue.purge(|_| true);
    queue.add("key");
    assert!(queue.try_next().is_none(), "it is still in flight");
    item.finish(Outcome::retry("old"));
    let item = take(&queue);
    assert_eq!((*item.key(), item.failures()), ("key", 0));
}
