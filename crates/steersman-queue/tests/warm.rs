// SPDX-License-Identifier: Apache-2.0
//! A queue that is paused, as on a standby replica.

mod harness;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::{Task, queue_with, seconds, take, take_all};
use steersman_queue::{Add, Metrics, Options, Outcome};

#[derive(Default)]
struct QueueTimes(Mutex<Vec<Duration>>);

impl Metrics for QueueTimes {
    fn taken(&self, queued: Duration) {
        self.0.lock().expect("no test panics with it").push(queued);
    }
}

// R92
#[test]
fn guarantee_10_keys_of_a_paused_queue_do_not_count_as_depth() {
    let (queue, _) = queue_with(Options::new().paused());
    for key in 0..1000 {
        queue.add(key);
    }
    assert_eq!((queue.depth().ready(), queue.depth().warm()), (0, 1000));
    assert_eq!(queue.depth_by_priority(), [(0, 0)]);
    queue.resume();
    assert_eq!((queue.depth().ready(), queue.depth().warm()), (1000, 0));
    assert_eq!(queue.depth_by_priority(), [(0, 1000)]);
    assert_eq!(take_all(&queue).len(), 1000);
    assert_eq!((queue.depth().ready(), queue.depth().warm()), (0, 0));
}

// D3
#[test]
fn guarantee_14_a_key_is_retracted_only_if_paused_and_if_all_adds_allow_it() {
    let (queue, clock) = queue_with(Options::new().paused());
    let retractable = Add::new().retractable();
    for (key, adds) in [
        ("once", vec![retractable]),
        ("twice", vec![retractable, retractable]),
        ("first other", vec![Add::new(), retractable]),
        ("last other", vec![retractable, Add::new()]),
    ] {
        adds.into_iter().for_each(|add| _ = queue.add_with(key, add));
    }
    assert!(queue.is_paused());
    let retracted = |key| queue.retract(&key);
    assert_eq!(["once", "twice"].map(retracted), [true, true]);
    assert_eq!(["first other", "last other", "absent"].map(retracted), [false; 3]);
    queue.resume();
    assert!(!queue.is_paused());
    assert_eq!(take_all(&queue), ["first other", "last other"]);

    // A running queue keeps the key, and so does one that put it back because it failed.
    queue.add_with("key", retractable);
    assert!(!queue.retract(&"key"));
    take(&queue).finish(Outcome::retry("broken"));
    queue.pause();
    queue.add_with("key", retractable);
    assert!(!queue.retract(&"key"));
    queue.resume();
    clock.advance(seconds(1));
    assert_eq!(take_all(&queue), ["key"]);
}

// R92
#[test]
fn guarantee_10_time_in_the_queue_starts_with_activation() {
    let times = Arc::new(QueueTimes::default());
    let (queue, clock) = queue_with(Options::new().paused().metrics(times.clone()));
    queue.add("before");
    clock.advance(seconds(3600));
    queue.resume();
    clock.advance(seconds(1));
    queue.add("after");
    clock.advance(seconds(2));
    take_all(&queue);
    assert_eq!(*times.0.lock().unwrap(), [seconds(3), seconds(2)]);
}

// R151
#[test]
fn guarantee_10_keys_added_before_the_start_are_handed_out_after_it() {
    let (queue, clock) = queue_with(Options::new().paused());
    queue.add("external");
    queue.add_with("delayed", Add::new().after(seconds(10)));
    let mut next = Task::new(queue.next());
    assert!(next.poll().is_pending());
    clock.advance(seconds(60));
    assert!(next.poll().is_pending());
    assert_eq!(queue.depth().warm(), 2, "delays run on");
    next.was_woken();
    queue.resume();
    assert!(next.was_woken());
    let item = next.expect_ready().expect("a key is ready");
    assert_eq!(item.key(), &"external");
    assert_eq!(take(&queue).key(), &"delayed");
}

#[test]
fn guarantee_10_pausing_again_keeps_keys_in_flight_and_their_outcomes() {
    let (queue, clock) = queue_with(Options::new());
    queue.add("key");
    queue.add("other");
    let item = take(&queue);
    queue.pause();
    item.finish(Outcome::retry("lost the lease"));
    clock.advance(seconds(1));
    assert!(queue.try_next().is_none());
    assert_eq!(queue.depth().warm(), 2);
    queue.resume();
    assert_eq!(take_all(&queue), ["other", "key"]);
}
