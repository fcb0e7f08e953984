// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::Object;

fn object(name: &str, revision: u32) -> Arc<Object> {
    let text = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{revision}"}}}}"#);
    Arc::new(Object::from_slice(text.as_bytes()).unwrap())
}

fn added(name: &str, revision: u32) -> Event {
    Event::Added {
        object: object(name, revision),
        initial: false,
    }
}

fn updated(name: &str, old: u32, new: u32) -> Event {
    Event::Updated {
        old: object(name, old),
        new: object(name, new),
    }
}

fn deleted(name: &str, revision: u32) -> Event {
    Event::Deleted {
        object: object(name, revision),
        final_state_known: true,
    }
}

fn say(delivery: &Delivery) -> String {
    match delivery {
        Delivery::Skipped(count) => format!("skipped {count}"),
        Delivery::Event(event) => {
            let object = event.object();
            let word = match event {
                Event::Added { .. } => "added",
                Event::Updated { .. } => "updated",
                Event::Deleted { .. } => "deleted",
                Event::Resynced { .. } => "resynced",
            };
            format!("{word} {}@{}", object.name(), object.resource_version())
        }
    }
}

/// Returns the deliveries of a reader with a lag of two that reads after all events.
fn read(events: impl IntoIterator<Item = Event>) -> Vec<String> {
    let mut pending = Pending::default();
    events.into_iter().for_each(|event| pending.push(event, 2));
    std::iter::from_fn(|| pending.pop())
        .map(|delivery| say(&delivery))
        .collect()
}

#[test]
fn guarantee_5_a_fast_subscriber_receives_every_change() {
    assert_eq!(
        read([added("a", 1), updated("a", 1, 2)]),
        ["added a@1", "updated a@2"]
    );
}

// R130, R131
#[test]
fn guarantee_5_a_slow_subscriber_receives_the_newest_state_and_the_number_of_skipped_events() {
    let events = [
        added("a", 1),
        updated("b", 1, 2),
        updated("b", 2, 3),
        updated("a", 1, 4),
        updated("b", 3, 5),
    ];
    assert_eq!(read(events), ["skipped 5", "added a@4", "updated b@5"]);
}

// R130
#[test]
fn guarantee_5_a_deletion_before_a_creation_is_kept() {
    let events = [
        updated("a", 1, 2),
        deleted("a", 3),
        added("a", 4),
        updated("a", 4, 5),
    ];
    assert_eq!(read(events), ["skipped 4", "deleted a@3", "added a@5"]);
    let events = [deleted("a", 3), added("a", 4), deleted("a", 5), added("a", 6)];
    assert_eq!(read(events), ["skipped 4", "deleted a@3", "added a@6"]);
}

#[test]
fn guarantee_5_skips_objects_created_and_deleted_unseen() {
    assert_eq!(
        read([added("a", 1), deleted("a", 2), added("b", 3)]),
        ["skipped 3", "added b@3"]
    );
}

// R131
#[test]
fn guarantee_5_objects_created_and_deleted_unseen_use_no_memory() {
    let mut pending = Pending::default();
    for number in 0..1000 {
        let name = format!("run-{number}");
        pending.push(added(&name, 2 * number + 1), 2);
        pending.push(deleted(&name, 2 * number + 2), 2);
    }
    let merged = &pending.merged;
    let kept = (pending.events.len(), merged.order.len(), merged.newest.len());
    assert_eq!(kept, (0, 0, 0));
    assert_eq!(say(&pending.pop().unwrap()), "skipped 2000");
    assert!(pending.pop().is_none());
    pending.push(added("a", 3000), 2);
    assert_eq!(say(&pending.pop().unwrap()), "added a@3000");
}

#[test]
fn guarantee_5_keeps_the_order_while_catching_up() {
    let mut pending = Pending::default();
    for event in [updated("a", 1, 2), updated("b", 1, 2), updated("c", 1, 2)] {
        pending.push(event, 2);
    }
    assert_eq!(say(&pending.pop().unwrap()), "skipped 3");
    assert_eq!(say(&pending.pop().unwrap()), "updated a@2");
    pending.push(updated("a", 2, 9), 2);
    let rest: Vec<String> = std::iter::from_fn(|| pending.pop())
        .map(|delivery| say(&delivery))
        .collect();
    assert_eq!(rest, ["skipped 1", "updated b@2", "updated c@2", "updated a@9"]);
}

#[test]
fn guarantee_5_a_subscriber_that_has_caught_up_skips_nothing() {
    let mut pending = Pending::default();
    for event in [updated("a", 1, 2), updated("a", 2, 3), updated("a", 3, 4)] {
        pending.push(event, 2);
    }
    assert_eq!(say(&pending.pop().unwrap()), "skipped 3");
    assert_eq!(say(&pending.pop().unwrap()), "updated a@4");
    pending.push(updated("a", 4, 5), 2);
    assert_eq!(say(&pending.pop().unwrap()), "updated a@5");
}
