// SPDX-License-Identifier: Apache-2.0
//! Groups equal events into series, and decides when to write them.

use std::{collections::HashMap, hash::Hash, time::Duration};

use steersman_core::MonotonicTime;

/// Time without a repetition after which a series ends.
const SILENCE: Duration = Duration::from_secs(6 * 60);
/// Minimum time between two writes of a series.
const REFRESH: Duration = Duration::from_secs(60);
/// Number of different events about one object that are accepted at once.
const BURST: u32 = 25;
/// Time after which one more event is accepted.
const REFILL: Duration = Duration::from_secs(5 * 60);
/// Number of series and objects that are remembered.
const REMEMBERED: usize = 4096;

/// Series of the last minutes, by the key of their event.
pub(super) struct Book<K, O> {
    series: HashMap<K, Series>,
    /// Remaining budget of each object.
    rooms: HashMap<O, Room>,
    /// Number of budgets at which full ones are removed.
    sweep_at: usize,
}

/// A repeated event.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// Name of the event object on the server.
    pub(super) name: String,
    pub(super) count: u64,
    /// Count that is written on the server.
    written: u64,
    seen: MonotonicTime,
    wrote: MonotonicTime,
}

struct Room {
    left: u32,
    since: MonotonicTime,
}

/// Next step for an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create a new event object.
    Create,
    /// Update the series now.
    Update,
    /// Update the series later.
    Later,
    /// Drop it: too many events about that object.
    Drop,
}

impl<K: Clone + Eq + Hash, O: Clone + Eq + Hash> Book<K, O> {
    pub(super) fn new() -> Self {
        Self {
            series: HashMap::new(),
            rooms: HashMap::new(),
            sweep_at: REMEMBERED,
        }
    }

    /// Adds an event and returns the next step for it.
    pub(super) fn observe(&mut self, key: &K, object: &O, now: MonotonicTime) -> Step {
        if let Some(series) = self.series.get_mut(key)
            && now.saturating_since(series.seen) < SILENCE
        {
            series.count += 1;
            series.seen = now;
            let is_first = series.written == 1;
            return if is_first || now.saturating_since(series.wrote) >= REFRESH {
                Step::Update
            } else {
                Step::Later
            };
        }
        if self.has_room(object, now) {
            Step::Create
        } else {
            Step::Drop
        }
    }

    /// Notes that the server has a new event object with this name.
    pub(super) fn created(&mut self, key: K, name: String, now: MonotonicTime) {
        if self.series.len() >= REMEMBERED {
            let oldest = self.series.iter().min_by_key(|(_, series)| series.seen);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.series.remove(&oldest);
            }
        }
        let series = Series {
            name,
            count: 1,
            written: 1,
            seen: now,
            wrote: now,
        };
        self.series.insert(key, series);
    }

    /// Notes that the server has a series up to this count. A failed write is also not repeated before the next regular
    /// one.
    pub(super) fn updated(&mut self, key: &K, count: u64, now: MonotonicTime) {
        if let Some(series) = self.series.get_mut(key) {
            series.written = series.written.max(count);
            series.wrote = now;
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&Series> {
        self.series.get(key)
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.series.remove(key);
    }

    /// Returns the time of the next write or expiry.
    pub(super) fn next(&self) -> Option<MonotonicTime> {
        self.series.values().map(Series::due).min()
    }

    /// Returns the series to write now, and forgets series that have ended.
    pub(super) fn due(&mut self, now: MonotonicTime) -> Vec<(K, Series)> {
        let due = self
            .series
            .iter()
            .filter(|(_, series)| series.is_behind() && series.due() <= now);
        let due = due.map(|(key, series)| (key.clone(), series.clone())).collect();
        self.series
            .retain(|_, series| series.is_behind() || now.saturating_since(series.seen) < SILENCE);
        due
    }

    fn has_room(&mut self, object: &O, now: MonotonicTime) -> bool {
        if self.rooms.len() >= self.sweep_at {
            self.rooms.retain(|_, room| room.left_at(now).0 < BURST);
            self.sweep_at = REMEMBERED.max(self.rooms.len() * 2);
        }
        let room = self.rooms.entry(object.clone()).or_insert(Room {
            left: BURST,
            since: now,
        });
        (room.left, room.since) = room.left_at(now);
        match room.left.checked_sub(1) {
            Some(left) => {
                room.left = left;
                true
            }
            None => false,
        }
    }
}

impl Series {
    fn is_behind(&self) -> bool {
        self.written < self.count
    }

    /// Returns the time of the next write, or of the expiry if there is nothing to write.
    fn due(&self) -> MonotonicTime {
        if self.is_behind() {
            self.wrote + REFRESH
        } else {
            self.seen + SILENCE
        }
    }
}

impl Room {
    /// Returns the remaining budget, and the time from which it counts.
    fn left_at(&self, now: MonotonicTime) -> (u32, MonotonicTime) {
        let passed = now.saturating_since(self.since).as_nanos() / REFILL.as_nanos();
        let more = u32::try_from(passed).unwrap_or(u32::MAX);
        let left = self.left.saturating_add(more);
        if left >= BURST {
            (BURST, now)
        } else {
            (left, self.since + REFILL * more)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: MonotonicTime = MonotonicTime::ORIGIN;

    fn book() -> Book<&'static str, &'static str> {
        Book::new()
    }

    #[test]
    fn guarantee_2_writes_a_series_at_the_second_event_then_once_a_minute_and_at_its_end() {
        let mut book = book();
        assert_eq!(book.observe(&"a", &"o", START), Step::Create);
        book.created("a", "name".to_owned(), START);
        assert_eq!(book.observe(&"a", &"o", START), Step::Update);
        book.updated(&"a", 2, START);
        for _ in 0..10 {
            assert_eq!(book.observe(&"a", &"o", START + REFRESH / 2), Step::Later);
        }
        assert!(book.due(START + REFRESH / 2).is_empty());
        let due = book.next().unwrap();
        assert_eq!(due, START + REFRESH);
        let [(key, series)] = book.due(due).try_into().unwrap();
        assert_eq!((key, series.count), ("a", 12));
        book.updated(&"a", 12, due);
        assert!(book.due(due).is_empty());

        // The series expires and starts anew.
        let end = START + REFRESH / 2 + SILENCE;
        assert_eq!(book.next(), Some(end));
        assert!(book.due(end).is_empty() && book.next().is_none());
        assert_eq!(book.observe(&"a", &"o", end), Step::Create);
    }

    #[test]
    fn restarts_an_ended_series() {
        let mut book = book();
        book.created("a", "name".to_owned(), START);
        assert_eq!(book.observe(&"a", &"o", START + SILENCE), Step::Create);
    }

    #[test]
    fn guarantee_3_limits_the_number_of_different_events() {
        let mut book = book();
        let mut came = |object, now| book.observe(&"new", &object, now);
        for _ in 0..BURST {
            assert_eq!(came("o", START), Step::Create);
        }
        assert_eq!(came("o", START), Step::Drop);
        assert_eq!(came("other", START), Step::Create);
        assert_eq!(came("o", START + REFILL * 3 / 2), Step::Create);
        assert_eq!(came("o", START + REFILL * 3 / 2), Step::Drop);
        assert_eq!(came("o", START + REFILL * 2), Step::Create);
    }

    #[test]
    fn limits_the_number_of_series() {
        let mut book = Book::new();
        for number in 0..2 * REMEMBERED {
            let now = START + REFILL * number as u32;
            book.observe(&number, &number, now);
            book.created(number, String::new(), now);
        }
        assert_eq!(book.series.len(), REMEMBERED);
        assert!(book.rooms.len() <= REMEMBERED);
        assert!(book.get(&(2 * REMEMBERED - 1)).is_some() && book.get(&0).is_none());
    }
}
