// SPDX-License-Identifier: Apache-2.0
//! Shutdown of a queue, and its remaining keys.

mod harness;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use harness::{Task, at, queue, queue_with, seconds, take, take_all};
use steersman_core::{Clock, MonotonicTime, Sleep, TestClock};
use steersman_queue::{Add, Added, Options, Outcome, Queue, Shutdown, Stage, Status};

fn keys(remains: &[Status<&'static str>]) -> Vec<&'static str> {
    remains.iter().map(|status| *status.key()).collect()
}

// R153
#[test]
fn guarantee_11_rejects_an_add_after_shutdown() {
    let (queue, _) = queue();
    assert!(!queue.is_shutting_down());
    queue.shut_down(Shutdown::Finish);
    assert!(queue.is_shutting_down());
    assert_eq!(queue.add("key"), Added::Refused);
    assert_eq!(
        queue.add_with("key", Add::new().after(seconds(1))),
        Added::Refused
    );
    assert!(queue.status(&"key").is_none());
}

// R157
#[test]
fn guarantee_11_finish_hands_out_ready_keys_and_then_ends() {
    let (queue, _) = queue();
    queue.add("one");
    queue.add("two");
    queue.shut_down(Shutdown::Finish);
    let first = Task::new(queue.next())
        .expect_ready()
        .expect("ready keys are handed out");
    let second = Task::new(queue.next())
        .expect_ready()
        .expect("ready keys are handed out");
    assert!(Task::new(queue.next()).expect_ready().is_none());
    first.done();
    second.done();
}

#[test]
fn guarantee_11_finish_waits_for_a_key_that_was_added_in_flight() {
    let (queue, _) = queue();
    queue.add("key");
    let item = take(&queue);
    queue.add("key");
    queue.shut_down(Shutdown::Finish);
    let mut next = Task::new(queue.next());
    assert!(next.poll().is_pending());
    item.done();
    assert!(next.was_woken());
    next.expect_ready().expect("it is handed out once more").done();
    assert!(Task::new(queue.next()).expect_ready().is_none());
}

#[test]
fn guarantee_11_abandon_ends_at_once_and_wakes_all() {
    let (queue, _) = queue::<&str>();
    let mut waiting: Vec<_> = (0..3).map(|_| Task::new(queue.next())).collect();
    for next in &mut waiting {
        assert!(next.poll().is_pending());
    }
    queue.shut_down(Shutdown::Abandon);
    queue.shut_down(Shutdown::Finish);
    for next in &mut waiting {
        assert!(next.was_woken());
        assert!(next.expect_ready().is_none());
    }
}

// R157
#[test]
fn guarantee_11_drain_waits_for_keys_in_flight() {
    let (queue, _) = queue();
    queue.add("key");
    let item = take(&queue);
    let mut drain = Task::new(queue.drain(seconds(30)));
    assert!(drain.poll().is_pending());
    item.done();
    assert!(drain.was_woken());
    assert!(drain.expect_ready().is_empty());
}

// R157
#[test]
fn guarantee_11_drain_ends_at_its_deadline_and_reports_the_remaining_keys() {
    let (queue, clock) = queue();
    queue.add("in flight");
    let item = take(&queue);
    clock.advance(seconds(1));
    queue.add("ready");
    queue.add_with("delayed", Add::new().after(seconds(100)));
    let mut drain = Task::new(queue.drain(seconds(30)));
    assert!(drain.poll().is_pending());
    clock.advance(seconds(30));
    assert!(drain.was_woken());
    let remains = drain.expect_ready();
    assert_eq!(keys(&remains), ["in flight", "ready", "delayed"]);
    assert_eq!(remains[2].stage(), Stage::Delayed { until: at(101) });
    assert!(queue.try_next().is_none(), "nothing is handed out any more");

    // It was reported, so its outcome does not put it back to be reported again.
    item.finish(Outcome::retry("cancelled"));
    assert!(Task::new(queue.drain(seconds(30))).expect_ready().is_empty());
}

// R157
#[test]
fn guarantee_11_an_outcome_during_shutdown_is_reported() {
    let (queue, _) = queue();
    queue.add("fails");
    queue.add("again");
    let (fails, again) = (take(&queue), take(&queue));
    queue.shut_down(Shutdown::Finish);
    let mut drain = Task::new(queue.drain(seconds(30)));
    assert!(drain.poll().is_pending());
    fails.finish(Outcome::retry("broken"));
    again.finish(Outcome::requeue_after(seconds(0)));
    let remains = drain.expect_ready();
    assert_eq!(keys(&remains), ["again", "fails"]);
    assert_eq!(
        (remains[1].failures(), remains[1].last_error()),
        (1, Some("broken"))
    );
}

// R151
#[test]
fn guarantee_11_remaining_keys_are_carried_into_a_later_run() {
    let (first, clock) = queue();
    first.add_with("failing", Add::new().priority(5));
    take(&first).finish(Outcome::retry("broken"));
    first.add("b");
    first.add("a");
    first.shut_down(Shutdown::Abandon);
    let remains = Task::new(first.drain(seconds(30))).expect_ready();
    assert_eq!(remains.len(), 3);

    let second = Queue::new(
        Arc::new(clock.clone()),
        Options::new().rate_limiter(harness::Steps),
    );
    assert_eq!(second.restore(remains), 3);
    assert_eq!(
        second.status(&"failing").map(|status| status.stage()),
        Some(Stage::Delayed { until: at(1) })
    );
    assert_eq!(take_all(&second), ["b", "a"], "the order is kept");
    clock.advance(seconds(1));
    let item = take(&second);
    assert_eq!((*item.key(), item.priority(), item.failures()), ("failing", 5, 1));
}

#[test]
fn guarantee_11_a_paused_queue_keeps_its_keys_for_the_report() {
    let (queue, _) = queue_with(Options::new().paused());
    queue.add("key");
    queue.shut_down(Shutdown::Finish);
    assert!(Task::new(queue.next()).expect_ready().is_none());
    assert_eq!(keys(&Task::new(queue.drain(seconds(30))).expect_ready()), ["key"]);
}

#[test]
fn guarantee_11_a_dropped_drain_loses_no_key() {
    let (queue, _) = queue();
    queue.add("key");
    let item = take(&queue);
    let mut drain = Task::new(queue.drain(seconds(30)));
    assert!(drain.poll().is_pending());
    drop(drain);
    item.finish(Outcome::retry("broken"));
    assert_eq!(keys(&Task::new(queue.drain(seconds(30))).expect_ready()), ["key"]);
}

#[test]
fn guarantee_11_a_delay_that_ends_during_shutdown_is_reported_and_not_handed_out() {
    let (queue, clock) = queue();
    queue.add_with("delayed", Add::new().after(seconds(1)));
    queue.add("ready");
    queue.shut_down(Shutdown::Finish);
    clock.advance(seconds(5));
    assert_eq!(take_all(&queue), ["ready"]);
    let remains = Task::new(queue.drain(seconds(30))).expect_ready();
    assert_eq!(keys(&remains), ["delayed"]);
}

/// A clock that panics after a hundred reads, so that an endless loop ends.
#[derive(Debug)]
struct Patient {
    clock: TestClock,
    asked: AtomicUsize,
}

impl Clock for Patient {
    fn now(&self) -> MonotonicTime {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        assert!(asked < 100, "somebody asks for the time again and again");
        self.clock.now()
    }
    fn wall(&self) -> SystemTime {
        self.clock.wall()
    }
    fn sleep_until(&self, deadline: MonotonicTime) -> Sleep {
        self.clock.sleep_until(deadline)
    }
}

// R157
#[test]
fn guarantee_11_a_delay_that_ends_during_finish_wakes_no_worker() {
    let clock = TestClock::new();
    let patient = Patient {
        clock: clock.clone(),
        asked: AtomicUsize::new(0),
    };
    let queue = Queue::new(Arc::new(patient), Options::new());
    queue.add("key");
    let item = take(&queue);
    queue.add("key");
    queue.add_with("delayed", Add::new().after(seconds(1)));
    let (mut timer_waiter, mut late) = (Task::new(queue.next()), Task::new(queue.next()));
    assert!(timer_waiter.poll().is_pending());
    queue.shut_down(Shutdown::Finish);
    clock.advance(seconds(5));
    assert!(timer_waiter.poll().is_pending() && late.poll().is_pending());
    item.done();
    timer_waiter
        .expect_ready()
        .expect("it is handed out once more")
        .done();
    assert!(late.expect_ready().is_none());
    let remains = Task::new(queue.drain(seconds(30))).expect_ready();
    assert_eq!(keys(&remains), ["delayed"]);
}
