// SPDX-License-Identifier: Apache-2.0
//! Keys that wait for their time, and keys that back off.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use harness::{queue, seconds, take, take_all};
use steersman_core::{MonotonicTime, TestClock};
use steersman_queue::{Add, Backoff, Options, Outcome, Queue, RateLimiter};

// R153
#[test]
fn guarantee_7_a_delayed_key_is_handed_out_at_its_time_and_not_before() {
    let (queue, clock) = queue();
    queue.add_with("key", Add::new().after(seconds(10)));
    clock.advance(seconds(10) - Duration::from_nanos(1));
    assert!(queue.try_next().is_none());
    assert_eq!((queue.depth().ready(), queue.depth().delayed()), (0, 1));
    clock.advance(Duration::from_nanos(1));
    assert_eq!((queue.depth().ready(), queue.depth().delayed()), (1, 0));
    assert_eq!(take_all(&queue), ["key"]);
}

// R153
#[test]
fn guarantee_3_the_earlier_deadline_wins() {
    for delays in [[10, 1], [1, 10]] {
        let (queue, clock) = queue();
        for delay in delays {
            queue.add_with("key", Add::new().after(seconds(delay)));
        }
        clock.advance(seconds(1));
        assert_eq!(take_all(&queue), ["key"]);
        clock.advance(seconds(60));
        assert!(queue.try_next().is_none(), "the later deadline is gone");
    }
}

#[test]
fn guarantee_3_an_add_without_delay_makes_a_delayed_key_ready() {
    let (queue, clock) = queue();
    queue.add_with("key", Add::new().after(seconds(10)));
    queue.add("key");
    assert_eq!(take_all(&queue), ["key"]);
    clock.advance(seconds(60));
    assert!(queue.try_next().is_none());
}

#[test]
fn guarantee_4_hands_out_delayed_keys_by_deadline() {
    let (queue, clock) = queue();
    for delay in [3, 1, 2] {
        queue.add_with(delay, Add::new().after(seconds(delay)));
    }
    clock.advance(seconds(5));
    queue.add(9);
    assert_eq!(take_all(&queue), [1, 2, 3, 9]);
}

#[test]
fn guarantee_4_thousands_of_delays_that_end_at_once_keep_their_order() {
    let (queue, clock) = queue();
    for key in 0..5000 {
        queue.add_with(key, Add::new().after(seconds(1 + key)));
    }
    clock.advance(seconds(10_000));
    assert_eq!(queue.depth().ready(), 5000);
    assert_eq!(take_all(&queue), (0..5000).collect::<Vec<_>>());
}

#[test]
fn guarantee_7_finds_due_keys_behind_many_in_flight() {
    let (queue, clock) = queue();
    for key in 0..1000 {
        queue.add(key);
    }
    let flights: Vec<_> = std::iter::from_fn(|| queue.try_next()).collect();
    for key in 0..=1000 {
        queue.add_with(key, Add::new().after(seconds(1 + key)));
    }
    clock.advance(seconds(10_000));
    assert_eq!(*take(&queue).key(), 1000);
    assert_eq!(flights.len(), 1000);
}

#[test]
fn a_huge_delay_does_not_overflow() {
    let (queue, clock) = queue();
    clock.advance(seconds(1));
    queue.add_with("key", Add::new().after(Duration::MAX));
    assert_eq!(queue.depth().delayed(), 1);
}

// R162
#[test]
fn guarantee_8_back_off_doubles_to_the_limit_and_success_resets_it() {
    let clock = TestClock::new();
    let queue = Queue::new(
        Arc::new(clock.clone()),
        Options::new().rate_limiter(Backoff::new().jitter(0.0)),
    );
    queue.add("key");
    for n in 0..30 {
        let finished = take(&queue).finish(Outcome::retry("broken"));
        let expected = Duration::from_millis(5)
            .saturating_mul(1 << n.min(25))
            .min(seconds(1000));
        assert_eq!(finished.delay(), Some(expected));
        assert_eq!(finished.failures(), n + 1);
        clock.advance(expected - Duration::from_nanos(1));
        assert!(queue.try_next().is_none());
        clock.advance(Duration::from_nanos(1));
    }
    take(&queue).done();
    queue.add("key");
    assert_eq!(
        take(&queue).finish(Outcome::retry("broken")).delay(),
        Some(Duration::from_millis(5))
    );
}

// R162
#[test]
fn guarantee_8_back_off_is_per_key() {
    let (queue, clock) = queue();
    queue.add("old");
    for _ in 0..7 {
        take(&queue).finish(Outcome::requeue());
        clock.advance(seconds(10));
    }
    queue.add("new");
    let failures: Vec<_> = (0..2)
        .map(|_| take(&queue).finish(Outcome::requeue()).failures())
        .collect();
    assert_eq!(failures, [8, 1]);
}

#[test]
fn guarantee_8_an_add_neither_consumes_nor_resets_back_off() {
    let (queue, _) = queue();
    queue.add("key");
    assert_eq!(take(&queue).finish(Outcome::retry("broken")).failures(), 1);
    for _ in 0..10 {
        queue.add("key");
    }
    let item = take(&queue);
    assert_eq!(item.failures(), 1);
    assert_eq!(item.finish(Outcome::retry("broken")).failures(), 2);
}

#[test]
fn guarantee_8_requeue_after_and_forget_reset_it() {
    let (queue, clock) = queue();
    queue.add("key");
    take(&queue).finish(Outcome::retry("broken"));
    clock.advance(seconds(1));
    take(&queue).finish(Outcome::requeue_after(seconds(30)));
    assert_eq!(queue.status(&"key").map(|status| status.failures()), Some(0));
    clock.advance(seconds(30));
    take(&queue).finish(Outcome::retry("broken"));
    queue.forget(&"key");
    assert_eq!(queue.depth().delayed(), 1, "it goes on waiting");
    clock.advance(seconds(1));
    assert_eq!(take(&queue).failures(), 0);
}

#[test]
fn guarantee_8_a_terminal_failure_is_not_retried_and_keeps_its_back_off() {
    let (queue, clock) = queue();
    queue.add("key");
    take(&queue).finish(Outcome::retry("first"));
    queue.add("key");
    let finished = take(&queue).finish(Outcome::fail("for good"));
    assert_eq!((finished.failures(), finished.delay()), (1, None));
    clock.advance(seconds(10_000));
    assert!(queue.try_next().is_none());
    queue.add("key");
    assert_eq!(take(&queue).failures(), 1);
}

// R160
#[test]
fn guarantee_9_a_panic_puts_the_key_back_with_back_off() {
    let (queue, clock) = queue();
    queue.add("bad");
    queue.add("good");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _item = take(&queue);
        std::panic::resume_unwind(Box::new("the reconciler panicked"));
    }));
    assert!(panicked.is_err());
    assert_eq!(take_all(&queue), ["good"], "others go on");
    clock.advance(seconds(1));
    let item = take(&queue);
    assert_eq!((*item.key(), item.failures()), ("bad", 1));
}

#[test]
fn guarantee_8_a_failure_can_set_its_delay() {
    let (queue, clock) = queue();
    queue.add("key");
    let finished = take(&queue).finish(Outcome::retry_after("busy", seconds(30)));
    assert_eq!((finished.failures(), finished.delay()), (1, Some(seconds(30))));
    assert_eq!(
        queue
            .status(&"key")
            .and_then(|status| status.last_error().map(str::to_owned)),
        Some("busy".to_owned())
    );
    clock.advance(seconds(30));
    assert_eq!(take(&queue).failures(), 1);
}

/// A limiter that does not work.
struct Broken;

impl RateLimiter<&'static str> for Broken {
    fn delay(&self, _: &&'static str, _: u32, _: MonotonicTime) -> Duration {
        std::panic::resume_unwind(Box::new("out of order"))
    }
}

#[test]
fn guarantee_9_a_limiter_that_panics_loses_no_key() {
    let clock = TestClock::new();
    let queue = Queue::new(Arc::new(clock.clone()), Options::new().rate_limiter(Broken));
    queue.add("key");
    take(&queue).finish(Outcome::retry("broken"));
    clock.advance(seconds(1));
    drop(take(&queue));
    clock.advance(seconds(1));
    assert_eq!(take(&queue).failures(), 2);
}
