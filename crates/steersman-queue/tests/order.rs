// SPDX-License-Identifier: Apache-2.0
//! In which order keys are handed out.

mod harness;

use std::num::NonZeroU32;

use harness::{queue, queue_with, seconds, take, take_all};
use steersman_queue::{Add, Added, Group, Options};

fn starvation_limit(takes: u32) -> NonZeroU32 {
    NonZeroU32::new(takes).expect("not zero")
}

// R154
#[test]
fn guarantee_4_keys_are_handed_out_in_order_of_addition() {
    let (queue, _) = queue();
    for key in 0..100 {
        queue.add(key);
    }
    assert_eq!(take_all(&queue), (0..100).collect::<Vec<_>>());
}

// R154
#[test]
fn guarantee_4_a_hot_key_does_not_starve_others() {
    let (queue, _) = queue();
    for key in 0..10 {
        queue.add(key);
    }
    let mut order = Vec::new();
    for _ in 0..11 {
        let item = take(&queue);
        queue.add(0);
        order.push(*item.key());
        item.done();
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
}

#[test]
fn guarantee_3_adding_a_waiting_key_keeps_its_place() {
    let (queue, _) = queue();
    assert_eq!(queue.add("first"), Added::Queued);
    assert_eq!(queue.add("second"), Added::Queued);
    assert_eq!(queue.add("first"), Added::Merged);
    assert_eq!(take_all(&queue), ["first", "second"]);
}

#[test]
fn guarantee_3_the_higher_priority_wins_and_is_never_lowered() {
    let (queue, _) = queue();
    queue.add_with("key", Add::new().priority(1));
    queue.add_with("key", Add::new().priority(3));
    queue.add_with("key", Add::new().priority(2));
    assert_eq!(take(&queue).priority(), 3);
}

#[test]
fn guarantee_3_a_raised_key_moves_to_the_end_of_its_new_priority() {
    let (queue, _) = queue();
    queue.add("raised");
    queue.add("stays");
    queue.add_with("high", Add::new().priority(1));
    queue.add_with("raised", Add::new().priority(1));
    assert_eq!(take_all(&queue), ["high", "raised", "stays"]);
}

#[test]
fn guarantee_5_higher_priorities_are_taken_first() {
    let (queue, _) = queue();
    queue.add_with("low", Add::new().priority(-100));
    queue.add("normal");
    queue.add_with("high", Add::new().priority(i32::MAX));
    queue.add_with("lowest", Add::new().priority(i32::MIN));
    assert_eq!(take_all(&queue), ["high", "normal", "low", "lowest"]);
}

#[test]
fn guarantee_5_a_key_whose_delay_ends_precedes_lower_priorities() {
    let (queue, clock) = queue();
    queue.add_with("delayed", Add::new().priority(1).after(seconds(1)));
    queue.add("low");
    clock.advance(seconds(1));
    assert_eq!(take_all(&queue), ["delayed", "low"]);
}

// R154
#[test]
fn guarantee_5_low_priority_gets_its_share_while_high_priority_never_ends() {
    let (queue, _) = queue_with(Options::new().starvation_limit(starvation_limit(4)));
    for key in 0..3 {
        queue.add_with(key, Add::new().priority(-100));
    }
    for key in 100..110 {
        queue.add(key);
    }
    let mut lows = Vec::new();
    for take_number in 0..20 {
        let item = take(&queue);
        let key = *item.key();
        item.done();
        match key {
            0..3 => lows.push((take_number, key)),
            high => assert_eq!(queue.add(high), Added::Queued),
        }
    }
    assert_eq!(lows, [(4, 0), (9, 1), (14, 2)]);
}

#[test]
fn guarantee_5_limits_how_long_a_priority_is_passed_over() {
    let (queue, _) = queue_with(Options::new().starvation_limit(starvation_limit(3)));
    let priorities = 7;
    for priority in 0..priorities {
        queue.add_with((priority, 0), Add::new().priority(priority));
    }
    let mut last_take = vec![0; priorities as usize];
    for take_number in 1..500 {
        let item = take(&queue);
        let (priority, n) = *item.key();
        item.done();
        last_take[priority as usize] = take_number;
        // The level stays in use without a break: its next key is there before the next take.
        queue.add_with((priority, n + 1), Add::new().priority(priority));
        let longest = last_take.iter().map(|last| take_number - last).max();
        assert!(
            longest <= Some(3 + priorities),
            "after take {take_number}: {last_take:?}"
        );
    }
}

#[test]
fn guarantee_6_a_noisy_namespace_does_not_delay_others() {
    let grouping = |&(cluster, namespace, _): &(&str, &str, u32)| Group::new(cluster).inner(namespace);
    let (queue, _) = queue_with(Options::new().grouping(grouping));
    for n in 0..1000 {
        queue.add(("a", "noisy", n));
    }
    queue.add(("a", "quiet", 0));
    queue.add(("b", "quiet", 0));
    queue.add(("b", "quiet", 1));
    let order: Vec<_> = take_all(&queue).into_iter().take(6).collect();
    let expected = [
        ("a", "noisy", 0),
        ("b", "quiet", 0),
        ("a", "quiet", 0),
        ("b", "quiet", 1),
        ("a", "noisy", 1),
        ("a", "noisy", 2),
    ];
    assert_eq!(order, expected);
}

#[test]
fn guarantee_6_clusters_take_turns_with_any_number_of_namespaces() {
    let grouping = |&(cluster, namespace): &(&str, u32)| Group::new(cluster).inner(&namespace);
    let (queue, _) = queue_with(Options::new().grouping(grouping));
    for namespace in 0..100 {
        queue.add(("large", namespace));
    }
    for namespace in 0..3 {
        queue.add(("small", namespace));
    }
    let first: Vec<_> = take_all(&queue)
        .into_iter()
        .take(6)
        .map(|(cluster, _)| cluster)
        .collect();
    assert_eq!(first, ["large", "small", "large", "small", "large", "small"]);
}

#[test]
fn forgets_empty_groups() {
    let (queue, _) = queue_with(Options::new().grouping(|key: &u32| Group::new(&(key / 10)).inner(key)));
    for round in 0..1000 {
        queue.add_with(round, Add::new().priority((round % 200) as i32));
        assert_eq!(take_all(&queue), [round]);
    }
    // Priorities are listed as long as a lane of theirs is kept, and lanes are swept.
    assert!(queue.depth_by_priority().len() <= 64);
}
