// SPDX-License-Identifier: Apache-2.0
//! The queue does what a simple model of it does, whatever the sequence of operations.

mod harness;
mod model_queue;

use std::num::NonZeroU32;

use harness::{Task, queue_with, seconds};
use model_queue::{Model, PATIENCE, group_of};
use proptest::prelude::*;
use steersman_queue::{Add, Depth, Group, Item, Options, Outcome, Queue, Shutdown};

#[derive(Clone, Debug)]
enum Step {
    Add {
        key: u8,
        priority: i32,
        after: u64,
        retractable: bool,
    },
    Take,
    Finish {
        which: prop::sample::Index,
        how: How,
        priority: Option<i32>,
    },
    Advance(u64),
    Pause,
    Resume,
    Forget(u8),
    Retract(u8),
    Purge {
        remainder: u8,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Done,
    Retry,
    RequeueAfter(u64),
    Fail,
    Postpone(u64),
    Withdraw,
    Drop,
}

const KEYS: u8 = 12;

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![
        3 => Just(How::Done),
        2 => Just(How::Retry),
        1 => (0_u64..4).prop_map(How::RequeueAfter),
        1 => Just(How::Fail),
        1 => (0_u64..4).prop_map(How::Postpone),
        1 => Just(How::Withdraw),
        1 => Just(How::Drop),
    ];
    let finish = (
        any::<prop::sample::Index>(),
        how,
        prop::option::weighted(0.2, -1..2_i32),
    );
    prop_oneof![
        12 => (0..KEYS, -1..2_i32, prop_oneof![3 => Just(0_u64), 1 => 1_u64..5], any::<bool>())
            .prop_map(|(key, priority, after, retractable)| Step::Add { key, priority, after, retractable }),
        10 => Just(Step::Take),
        8 => finish.prop_map(|(which, how, priority)| Step::Finish { which, how, priority }),
        3 => (0_u64..4).prop_map(Step::Advance),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        1 => (0..KEYS).prop_map(Step::Forget),
        2 => (0..KEYS).prop_map(Step::Retract),
        1 => (0..5_u8).prop_map(|remainder| Step::Purge { remainder }),
    ]
}

fn finish(item: Item<u8>, how: How, priority: Option<i32>) {
    let outcome = match how {
        How::Done => Outcome::done(),
        How::Retry => Outcome::retry("broken"),
        How::RequeueAfter(delay) => Outcome::requeue_after(seconds(delay)),
        How::Fail => Outcome::fail("for good"),
        How::Postpone(delay) => Outcome::postpone(seconds(delay)),
        How::Withdraw => return drop(item.withdraw()),
        How::Drop => return drop(item),
    };
    item.finish(match priority {
        Some(priority) => outcome.priority(priority),
        None => outcome,
    });
}

fn compare(queue: &Queue<u8>, model: &mut Model) -> Result<(), TestCaseError> {
    let depth = queue.depth();
    let (eligible, dirty, delayed, in_flight) = model.depth();
    let (ready, warm) = if model.paused {
        (0, eligible)
    } else {
        (eligible, 0)
    };
    prop_assert_eq!((depth.ready(), depth.warm()), (ready, warm));
    prop_assert_eq!(
        (depth.dirty(), depth.delayed(), depth.in_flight()),
        (dirty, delayed, in_flight)
    );
    for key in 0..KEYS {
        let status = queue
            .status(&key)
            .map(|status| (status.stage(), status.priority(), status.failures()));
        prop_assert_eq!(status, model.status(key), "key {}", key);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn guarantees_hold_for_any_sequence(steps in prop::collection::vec(step(), 1..150)) {
        let grouping = |key: &u8| {
            let (outer, inner) = group_of(*key);
            Group::new(&outer).inner(&inner)
        };
        let starvation_limit = NonZeroU32::new(PATIENCE as u32).expect("not zero");
        let (queue, clock) = queue_with(Options::new().grouping(grouping).starvation_limit(starvation_limit));
        let mut model = Model::default();
        let mut items: Vec<Item<u8>> = Vec::new();
        for step in steps {
            match step {
                Step::Add { key, priority, after, retractable } => {
                    let add = Add::new().priority(priority).after(seconds(after));
                    queue.add_with(key, if retractable { add.retractable() } else { add });
                    model.add(key, priority, after, retractable);
                }
                Step::Take => {
                    let taken = queue.try_next();
                    let seen = taken.as_ref().map(|item| (*item.key(), item.priority(), item.failures()));
                    prop_assert_eq!(seen, model.take());
                    items.extend(taken);
                }
                Step::Finish { which, how, priority } if !items.is_empty() => {
                    let item = items.swap_remove(which.index(items.len()));
                    model.finish(*item.key(), how, priority.filter(|_| !matches!(how, How::Drop)), item.priority());
                    finish(item, how, priority);
                }
                Step::Finish { .. } => {}
                Step::Advance(by) => {
                    clock.advance(seconds(by));
                    model.advance(by);
                }
                Step::Pause => {
                    queue.pause();
                    model.paused = true;
                }
                Step::Resume => {
                    queue.resume();
                    model.paused = false;
                }
                Step::Retract(key) => prop_assert_eq!(queue.retract(&key), model.retract(key)),
                Step::Forget(key) => {
                    queue.forget(&key);
                    model.forget(key);
                }
                Step::Purge { remainder } => {
                    queue.purge(|key| key % 5 == remainder);
                    model.purge(|key| key % 5 == remainder);
                }
            }
            compare(&queue, &mut model)?;
        }

        // Whatever state it is in, its end reports every key that was not worked off, once.
        let expected = model.remains();
        queue.shut_down(Shutdown::Abandon);
        let remains = Task::new(queue.drain(seconds(0))).expect_ready();
        let mut reported: Vec<_> = remains.iter().map(|status| *status.key()).collect();
        reported.sort_unstable();
        prop_assert_eq!(reported, expected);
        drop(items);
        prop_assert_eq!(Task::new(queue.drain(seconds(0))).expect_ready(), vec![]);
        prop_assert_eq!(queue.depth(), Depth::default());
    }
}
