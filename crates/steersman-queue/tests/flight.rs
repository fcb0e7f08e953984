// SPDX-License-Identifier: Apache-2.0
//! Keys that are with a worker.

mod harness;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use harness::{queue, seconds, take, take_all};
use steersman_core::TestClock;
use steersman_queue::{Add, Added, Cause, Options, Outcome, Queue, Shutdown};

// R155
#[test]
fn guarantee_1_a_key_in_flight_is_not_handed_out() {
    let (queue, _) = queue();
    queue.add("key");
    let item = take(&queue);
    queue.add("key");
    assert!(queue.try_next().is_none());
    item.done();
    take(&queue).done();
}

// R155
#[test]
fn guarantee_2_a_hundred_adds_in_flight_give_one_more_run() {
    let (queue, _) = queue();
    queue.add("key");
    let item = take(&queue);
    for n in 0..100 {
        let expected = if n == 0 { Added::Queued } else { Added::Merged };
        assert_eq!(queue.add("key"), expected);
    }
    item.done();
    assert_eq!(take_all(&queue), ["key"]);
    assert_eq!(queue.depth().ready(), 0);
}

// R156
#[test]
fn guarantee_2_a_key_added_in_flight_precedes_keys_added_later() {
    let (queue, _) = queue();
    queue.add("key");
    let item = take(&queue);
    queue.add("before");
    queue.add("key");
    queue.add("after");
    queue.add("last");
    assert_eq!(take(&queue).key(), &"before");
    // The key is due while it is in flight, and is passed over.
    let after = take(&queue);
    assert_eq!(after.key(), &"after");
    item.done();
    after.done();
    assert_eq!(take_all(&queue), ["key", "last"]);
}

#[test]
fn guarantee_2_keys_that_were_passed_keep_their_order() {
    let (queue, _) = queue();
    let flights = ["a", "b", "c"].map(|key| {
        queue.add(key);
        take(&queue)
    });
    for key in ["c", "a", "b", "later"] {
        queue.add(key);
    }
    take(&queue).done();
    queue.add("last");
    flights.into_iter().for_each(steersman_queue::Item::done);
    assert_eq!(take_all(&queue), ["c", "a", "b", "last"]);
}

#[test]
fn guarantee_2_an_add_in_flight_survives_any_outcome() {
    for outcome in [
        Outcome::done(),
        Outcome::fail("broken"),
        Outcome::retry("broken"),
        Outcome::requeue(),
        Outcome::requeue_after(seconds(60)),
    ] {
        let (queue, _) = queue();
        queue.add("key");
        let item = take(&queue);
        queue.add("key");
        item.finish(outcome);
        assert_eq!(take_all(&queue), ["key"]);
    }
}

// D11
#[test]
fn a_withdrawn_key_takes_its_failures_and_priority_to_another_queue() {
    let (queue, clock) = queue();
    queue.add_with("key", Add::new().priority(7));
    take(&queue).finish(Outcome::retry("broken"));
    clock.advance(seconds(1));
    let status = take(&queue).withdraw();
    assert!(queue.status(&"key").is_none());
    let (other, _) = harness::queue();
    assert_eq!(other.restore(status), 1);
    let item = take(&other);
    assert_eq!(
        (item.failures(), item.priority(), item.was_added()),
        (1, 7, false)
    );
}

// D11
#[test]
fn a_withdrawn_key_is_kept_if_it_was_added_in_flight_and_not_purged() {
    let (queue, clock) = queue();
    queue.add("key");
    take(&queue).finish(Outcome::retry("broken"));
    clock.advance(seconds(1));
    let item = take(&queue);
    queue.add("key");
    assert!(item.withdraw().is_some_and(|status| status.failures() == 1));
    let item = take(&queue);
    assert_eq!(item.failures(), 1);
    queue.purge(|_| true);
    assert!(item.withdraw().is_none());
    assert!(queue.status(&"key").is_none());
}

// D18
#[test]
fn guarantee_8_a_postponed_key_keeps_its_failures_cause_and_add() {
    let (queue, clock) = queue();
    queue.add("key");
    take(&queue).finish(Outcome::retry("broken"));
    queue.add("key");
    let item = take(&queue);
    assert_eq!(item.finish(Outcome::postpone(seconds(3))).failures(), 1);
    clock.advance(seconds(2));
    assert!(queue.try_next().is_none());
    clock.advance(seconds(1));
    let item = take(&queue);
    assert_eq!((item.failures(), item.was_added()), (1, true));

    // It was put back with a delay, and added with a longer one.
    item.finish(Outcome::requeue_after(seconds(1)));
    queue.add_with("key", Add::new().after(seconds(2)));
    clock.advance(seconds(1));
    take(&queue).finish(Outcome::postpone(seconds(1)));
    let status = queue.status(&"key").expect("it waits");
    assert_eq!(status.cause(), Cause::RequeueAfter);
    clock.advance(seconds(1));
    assert!(take(&queue).was_added());
}

// D33
#[test]
fn recognises_a_repeated_error_by_its_stored_text() {
    let (queue, _) = queue();
    queue.add("key");
    let page = |end: &str| format!("{}{end}", "<p>bad gateway</p>".repeat(200));
    let texts = [page("a"), page("b"), "short".to_owned(), "short".to_owned()];
    let repeats = texts.map(|text| {
        queue.add("key");
        take(&queue).finish(Outcome::retry(text)).repeats_error()
    });
    assert_eq!(repeats, [false, true, false, true]);
    queue.add("key");
    assert!(!take(&queue).finish(Outcome::requeue()).repeats_error());
    queue.add("key");
    assert!(!take(&queue).finish(Outcome::retry("short")).repeats_error());
}

// D23
#[test]
fn lists_keys_in_flight_by_duration() {
    let (queue, clock) = queue();
    let items = ["a", "b", "c"].map(|key| {
        queue.add(key);
        clock.advance(seconds(1));
        take(&queue)
    });
    queue.add("waiting");
    let [a, b, c] = items;
    b.done();
    let keys: Vec<_> = queue
        .in_flight()
        .into_iter()
        .map(|status| status.into_key())
        .collect();
    assert_eq!(keys, ["a", "c"]);
    drop((a, c));
}

#[test]
fn guarantee_7_a_delayed_add_in_flight_waits_for_both_delay_and_worker() {
    let (queue, clock) = queue();
    queue.add("key");
    let item = take(&queue);
    queue.add_with("key", Add::new().after(seconds(5)));
    clock.advance(seconds(5));
    assert!(queue.try_next().is_none());
    assert_eq!(queue.depth().dirty(), 1);
    item.done();
    assert_eq!(take_all(&queue), ["key"]);
}

#[test]
fn a_retry_keeps_its_priority_unless_the_outcome_sets_another() {
    let (queue, _) = queue();
    queue.add_with("key", Add::new().priority(-100));
    take(&queue).finish(Outcome::requeue_after(seconds(0)));
    let item = take(&queue);
    assert_eq!(item.priority(), -100);
    item.finish(Outcome::requeue_after(seconds(0)).priority(7));
    assert_eq!(take(&queue).priority(), 7);
}

// R156
#[test]
fn guarantee_1_many_producers_and_workers_never_share_a_key() {
    const KEYS: u32 = 20;
    let queue = Queue::new(Arc::new(TestClock::new()), Options::new());
    let busy = Mutex::new(HashSet::new());
    let taken = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut taken = 0_u32;
                    while let Some(item) = futures::executor::block_on(queue.next()) {
                        assert!(
                            busy.lock().unwrap().insert(*item.key()),
                            "two workers have {}",
                            item.key()
                        );
                        std::thread::yield_now();
                        busy.lock().unwrap().remove(item.key());
                        item.done();
                        taken += 1;
                    }
                    taken
                })
            })
            .collect();
        let producers: Vec<_> = (0..4)
            .map(|producer| {
                let queue = &queue;
                scope.spawn(move || {
                    for n in 0..5000 {
                        queue.add((n * 7 + producer) % KEYS);
                    }
                })
            })
            .collect();
        producers
            .into_iter()
            .for_each(|producer| producer.join().expect("no producer panics"));
        queue.shut_down(Shutdown::Finish);
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no worker panics"))
            .sum::<u32>()
    });
    assert!((KEYS..=20_000).contains(&taken));
    assert_eq!(queue.depth(), steersman_queue::Depth::default());
}

#[test]
fn an_item_reports_whether_its_key_was_added_again() {
    let (queue, clock) = queue();
    queue.add("key");
    let item = take(&queue);
    assert!(item.was_added());
    item.finish(Outcome::requeue_after(seconds(5)));
    clock.advance(seconds(5));
    let item = take(&queue);
    assert!(!item.was_added(), "only its own outcome put it back");
    // While it is in flight, while it waits, and while it is ready.
    queue.add("key");
    item.finish(Outcome::requeue_after(seconds(5)));
    let item = take(&queue);
    assert!(item.was_added());
    item.finish(Outcome::requeue_after(seconds(5)));
    queue.add_with("key", Add::new().after(seconds(60)));
    clock.advance(seconds(5));
    let item = take(&queue);
    assert!(item.was_added());
    item.finish(Outcome::retry("broken"));
    clock.advance(seconds(5));
    assert_eq!(queue.depth().ready(), 1);
    queue.add("key");
    assert!(take(&queue).was_added());
}
