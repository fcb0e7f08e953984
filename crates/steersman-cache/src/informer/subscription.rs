// SPDX-License-Identifier: Apache-2.0
//! Events as a stream, for slow readers.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use steersman_core::{Mutex, ObjectKey};
use tokio::sync::Notify;

use super::{Event, EventHandler, Registration};

/// A stream of events that a reader consumes at its own speed.
#[derive(Debug)]
pub struct Subscription {
    registration: Registration,
    queue: Arc<Queue>,
}

/// An item of a subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Delivery {
    /// A change.
    Event(Event),
    /// The reader fell behind. This many events were merged into the newest state of each object, which follows.
    Skipped(u64),
}

#[derive(Debug)]
pub(super) struct Queue {
    lag: usize,
    pending: Mutex<Pending>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    events: VecDeque<Event>,
    merged: Merged,
    skipped: u64,
    /// True if no further event follows.
    ended: bool,
}

/// Merged events of a slow reader: one entry for each object with a pending event.
#[derive(Debug, Default)]
struct Merged {
    order: BTreeMap<u64, ObjectKey>,
    newest: HashMap<ObjectKey, Newest>,
    next_turn: u64,
}

/// The first deletion, if any, followed by the newest state.
#[derive(Debug)]
struct Newest {
    /// Position in the order.
    turn: u64,
    deleted: Option<Event>,
    present: Option<Event>,
}

pub(super) fn subscription(lag: usize) -> (impl EventHandler, Arc<Queue>) {
    let queue = Arc::new(Queue {
        lag: lag.max(1),
        pending: Mutex::default(),
        arrived: Notify::new(),
    });
    let subscriber = Arc::clone(&queue);
    (Subscriber(subscriber), queue)
}

impl Subscription {
    pub(super) fn new(registration: Registration, queue: Arc<Queue>) -> Self {
        Self { registration, queue }
    }

    /// Returns the next delivery, or `None` after the informer was ended and everything was delivered.
    ///
    /// # Cancel safety
    /// Dropping it loses no event.
    pub async fn next(&mut self) -> Option<Delivery> {
        loop {
            let arrived = self.queue.arrived.notified();
            {
                let mut pending = self.queue.pending.lock();
                let delivery = pending.pop();
                if delivery.is_some() || pending.ended {
                    return delivery;
                }
            }
            arrived.await;
        }
    }

    /// Waits until every object of the first list was delivered or is queued for delivery.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn synced(&self) {
        self.registration.synced().await;
    }
}

/// The side of a subscription that the informer calls.
struct Subscriber(Arc<Queue>);

impl EventHandler for Subscriber {
    fn on(&self, event: &Event) {
        self.0.push(event.clone());
    }

    fn ended(&self) {
        self.0.pending.lock().ended = true;
        self.0.arrived.notify_one();
    }
}

impl Queue {
    fn push(&self, event: Event) {
        self.pending.lock().push(event, self.lag);
        self.arrived.notify_one();
    }
}

impl Pending {
    fn push(&mut self, event: Event, lag: usize) {
        if self.skipped == 0 && self.merged.order.is_empty() && self.events.len() < lag {
            self.events.push_back(event);
            return;
        }
        // After the first merge, all events are merged until the reader has caught up. This keeps the order.
        let before = self.events.len() as u64 + 1;
        let many = std::mem::take(&mut self.events);
        many.into_iter()
            .chain([event])
            .for_each(|event| self.merged.add(event));
        self.skipped += before;
    }

    fn pop(&mut self) -> Option<Delivery> {
        if let Some(event) = self.events.pop_front() {
            return Some(Delivery::Event(event));
        }
        match std::mem::take(&mut self.skipped) {
            0 => self.merged.pop().map(Delivery::Event),
            skipped => Some(Delivery::Skipped(skipped)),
        }
    }
}

impl Merged {
    fn add(&mut self, event: Event) {
        let key = event.object().key();
        let (turn, deleted, present) = match self.newest.remove(&key) {
            Some(newest) => (newest.turn, newest.deleted, newest.present),
            None => (self.next_turn, None, None),
        };
        let (deleted, present) = match (present, event) {
            // The reader does not know the object, or knows only of a deletion: no event is left for this one.
            (Some(Event::Added { .. }), Event::Deleted { .. }) => (deleted, None),
            (_, deletion @ Event::Deleted { .. }) => (Some(deletion), None),
            (Some(Event::Added { initial, .. }), later) => {
                let object = Arc::clone(later.object());
                (deleted, Some(Event::Added { object, initial }))
            }
            (Some(Event::Updated { old, .. }), later) => {
                let new = Arc::clone(later.object());
                (deleted, Some(Event::Updated { old, new }))
            }
            (_, event) => (deleted, Some(event)),
        };
        self.put(
            key,
            Newest {
                turn,
                deleted,
                present,
            },
        );
    }

    /// Takes the next event. Later events of the same object queue at the end, so an object that changes all the time does not
    /// delay the others.
    fn pop(&mut self) -> Option<Event> {
        let (_, key) = self.order.pop_first()?;
        let mut newest = self.newest.remove(&key)?;
        let Some(deleted) = newest.deleted.take() else {
            return newest.present;
        };
        self.put(key, newest);
        Some(deleted)
    }

    /// Puts the object at its position, or removes it if no event is pending.
    fn put(&mut self, key: ObjectKey, newest: Newest) {
        if newest.deleted.is_none() && newest.present.is_none() {
            self.order.remove(&newest.turn);
            return;
        }
        self.next_turn = self.next_turn.max(newest.turn + 1);
        self.order.insert(newest.turn, key.clone());
        self.newest.insert(key, newest);
    }
}
