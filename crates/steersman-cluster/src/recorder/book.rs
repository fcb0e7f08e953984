// SPDX-License-Identifier: Apache-2.0
//! Which events are the same, and what is written of them when.

use std::{collections::HashMap, hash::Hash, time::Duration};

use steersman_core::MonotonicTime;

/// After so much silence a series has ended.
const SILENCE: Duration = Duration::from_secs(6 * 60);
/// So often a series is written at most.
const REFRESH: Duration = Duration::from_secs(60);
/// How many different events about one object there may be at once.
const BURST: u32 = 25;
/// After this time there may be one more.
const REFILL: Duration = Duration::from_secs(5 * 60);
/// How many series and objects are remembered.
const REMEMBERED: usize = 4096;

/// The events of the last minutes, by what makes them the same.
pub(super) struct Book<K, O> {
    series: HashMap<K, Series>,
    /// What is left to each object.
    rooms: HashMap<O, Room>,
    /// How many of them there may be before it is looked which have all of it.
    sweep_at: usize,
}

/// The same event several times.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// The name of the object on the server.
    pub(super) name: String,
    pub(super) count: u64,
    /// Up to which count it is written.
    written: u64,
    seen: MonotonicTime,
    wrote: MonotonicTime,
}

struct Room {
    left: u32,
    since: MonotonicTime,
}

/// What to do about an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is new.
    Create,
    /// It is one of a series, which is to be written.
    Update,
    /// It is one of a series, which is written later.
    Later,
    /// There are too many about that object.
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

    /// An event came.
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

    /// A new event is on the server by this name.
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

    /// A series is on the server up to this count. One that did not get there is not tried before the next time, either.
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

    /// When there is something to do next.
    pub(super) fn next(&self) -> Option<MonotonicTime> {
        self.series.values().map(Series::due).min()
    }

    /// The series that are to be written now. Those that have ended are forgotten.
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

    /// When it is written, or forgotten if there is nothing to write.
    fn due(&self) -> MonotonicTime {
        if self.is_behind() {
            self.wrote + REFRESH
        } else {
            self.seen + SILENCE
        }
    }
}

impl Room {
    /// How much is left, and since when that counts.
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
    fn guarantee_2_a_series_is_written_the_second_time_then_once_a_minute_and_at_its_end() {
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

        // It is forgotten after a while, and begins anew.
        let end = START + REFRESH / 2 + SILENCE;
        assert_eq!(book.next(), Some(end));
        assert!(book.due(end).is_empty() && book.next().is_none());
        assert_eq!(book.observe(&"a", &"o", end), Step::Create);
    }

    #[test]
    fn a_series_that_is_still_remembered_after_its_end_begins_anew() {
        let mut book = book();
        book.created("a", "name".to_owned(), START);
        assert_eq!(book.observe(&"a", &"o", START + SILENCE), Step::Create);
    }

    #[test]
    fn guarantee_3_there_is_only_so_much_room_for_different_events() {
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
    fn only_so_many_are_remembered() {
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
