// SPDX-License-Identifier: Apache-2.0
//! Workers that wait for a key.

mod harness;

use harness::{Task, queue, seconds, take};
use steersman_queue::{Add, Drain, Item, Next, Outcome, Queue};

#[test]
fn guarantee_12_an_add_wakes_exactly_one_waiter() {
    let (queue, _) = queue();
    let mut waiters: Vec<_> = (0..3).map(|_| Task::new(queue.next())).collect();
    for waiter in &mut waiters {
        assert!(waiter.poll().is_pending());
    }
    queue.add("key");
    assert_eq!(waiters.iter().filter(|waiter| waiter.was_woken()).count(), 1);
    queue.add("other");
    assert_eq!(waiters.iter().filter(|waiter| waiter.was_woken()).count(), 1);
}

#[test]
fn guarantee_12_an_add_in_flight_wakes_no_worker_until_the_item_is_dropped() {
    let (queue, _) = queue();
    queue.add("key");
    let item = take(&queue);
    let mut next = Task::new(queue.next());
    assert!(next.poll().is_pending());
    queue.add("key");
    assert!(!next.was_woken());
    item.done();
    assert!(next.was_woken());
}

#[test]
fn guarantee_12_a_dropped_waiter_hands_its_wake_up_on() {
    let (queue, _) = queue();
    let (mut first, mut second) = (Task::new(queue.next()), Task::new(queue.next()));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    queue.add("key");
    assert!(first.was_woken());
    drop(first);
    assert!(second.was_woken());
    assert_eq!(second.expect_ready().expect("a key is ready").key(), &"key");
}

#[test]
fn guarantee_12_taking_a_key_wakes_the_next_worker_while_keys_are_ready() {
    let (queue, _) = queue();
    queue.pause();
    queue.add(1);
    queue.add(2);
    let (mut first, mut second) = (Task::new(queue.next()), Task::new(queue.next()));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    queue.resume();
    assert!(first.was_woken());
    let item = first.expect_ready();
    assert!(second.was_woken());
    assert!(item.is_some() && second.expect_ready().is_some());
}

#[test]
fn guarantee_12_the_end_of_a_delay_wakes_a_waiter() {
    let (queue, clock) = queue();
    let mut next = Task::new(queue.next());
    assert!(next.poll().is_pending());
    queue.add_with("key", Add::new().after(seconds(10)));
    assert!(next.was_woken(), "somebody has to keep the time");
    assert!(next.poll().is_pending());
    clock.advance(seconds(10));
    assert!(next.was_woken());
    assert_eq!(next.expect_ready().expect("its time has come").key(), &"key");
}

#[test]
fn guarantee_12_an_earlier_deadline_is_kept_too() {
    let (queue, clock) = queue();
    queue.add_with("late", Add::new().after(seconds(10)));
    let mut next = Task::new(queue.next());
    assert!(next.poll().is_pending());
    queue.add_with("later", Add::new().after(seconds(20)));
    assert!(!next.was_woken(), "a later deadline changes nothing");
    queue.add_with("early", Add::new().after(seconds(1)));
    assert!(next.was_woken());
    assert!(next.poll().is_pending());
    clock.advance(seconds(1));
    assert!(next.was_woken());
    assert_eq!(next.expect_ready().expect("its time has come").key(), &"early");
}

#[test]
fn guarantee_12_another_waiter_takes_over_a_dropped_timer() {
    let (queue, clock) = queue();
    queue.add_with("key", Add::new().after(seconds(10)));
    let (mut timer_waiter, mut other) = (Task::new(queue.next()), Task::new(queue.next()));
    assert!(timer_waiter.poll().is_pending() && other.poll().is_pending());
    drop(timer_waiter);
    assert!(other.was_woken());
    assert!(other.poll().is_pending());
    clock.advance(seconds(10));
    assert!(other.was_woken());
    assert!(other.expect_ready().is_some());
}

#[test]
fn one_waiter_sleeps_and_other_keys_do_not_wake_it() {
    let (queue, clock) = queue();
    queue.add_with("delayed", Add::new().after(seconds(10)));
    let (mut timer_waiter, mut other) = (Task::new(queue.next()), Task::new(queue.next()));
    assert!(timer_waiter.poll().is_pending() && other.poll().is_pending());
    queue.add("ready");
    assert!(other.was_woken());
    assert!(!timer_waiter.was_woken());
    other
        .expect_ready()
        .expect("a key is ready")
        .finish(Outcome::done());
    clock.advance(seconds(10));
    assert!(timer_waiter.was_woken());
    assert_eq!(clock.next_deadline(), None);
}

#[test]
fn handles_and_futures_cross_threads() {
    fn assert_send<T: Send>() {}
    fn assert_sync<T: Sync>() {}
    assert_send::<Queue<String>>();
    assert_sync::<Queue<String>>();
    assert_send::<Item<String>>();
    assert_sync::<Item<String>>();
    assert_send::<Next<'_, String>>();
    assert_send::<Drain<'_, String>>();
}
