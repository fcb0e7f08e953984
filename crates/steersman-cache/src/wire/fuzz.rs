// SPDX-License-Identifier: Apache-2.0
//! Responses of a real server, randomly damaged and rewritten, and read by us and by a full parser.
//!
//! The same seed gives the same run. `STEERSMAN_FUZZ_ROUNDS` sets the number of rounds (default: about two seconds), and
//! `STEERSMAN_FUZZ_SEED` the seed. A failure names seed and round, and shows the input.

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;
use steersman_core::Random;

use super::{
    lines::{Lines, WatchEvent},
    list::ListSplitter,
    reference::{check, chunks, compare, has_usual_types, split, without_managed_fields, written},
};
use crate::Object;

/// Responses of kube-apiserver 1.37: lists and watches of built-in kinds, an initial bookmark, an error.
const LISTS: [&str; 3] = [
    include_str!("corpus/list-of-pods.json"),
    include_str!("corpus/list-pretty.json"),
    include_str!("corpus/list-of-metadata.json"),
];
const WATCH: &str = include_str!("corpus/watch.txt");

/// Tokens to insert at random: JSON marks, and keys that the scan reads.
const TOKENS: [&str; 32] = [
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "1e5",
    "{}",
    "[]",
    "\"\"",
    "\n",
    " ",
    "\t",
    "\\\"",
    "\\u006d",
    "\\\\",
    "ü",
    "\u{0}",
    "\"metadata\":{},",
    "\"metadata\":null,",
    "\"name\":\"b\",",
    "\"namespace\":null,",
    "\"managedFields\":[{}],",
    "\"labels\":{\"a\":\"b\"},",
    "\"kind\":\"X\",",
    "\"items\":[],",
    "\"deletionTimestamp\":\"t\",",
];

/// Takes about two seconds in a debug build.
const ROUNDS: u64 = 2_000;

struct Chance(Random);

impl Chance {
    fn below(&self, limit: usize) -> usize {
        (self.0.next_u64() % limit.max(1) as u64) as usize
    }

    fn one_of<'a>(&self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// Picks a short part of a text.
    fn part(&self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length);
        // Mostly a few bytes, sometimes many.
        let most = if self.below(8) == 0 { length - start } else { 12 };
        start..(start + self.below(most + 1)).min(length)
    }

    /// Picks positions at which to cut a text.
    fn cuts(&self) -> Vec<usize> {
        (0..self.below(6)).map(|_| self.below(1 << 20)).collect()
    }

    /// Damages a text in some places.
    fn damage(&self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let part = self.part(bytes.len());
            match self.below(6) {
                0 => drop(bytes.drain(part)),
                1 => {
                    let copy = bytes[part.clone()].to_vec();
                    let at = self.below(bytes.len());
                    bytes.splice(at..at, copy);
                }
                2 => bytes.truncate(part.start),
                3 => part.for_each(|at| bytes[at] ^= 1 << self.below(8)),
                _ => drop(bytes.splice(part.start..part.start, self.one_of(&TOKENS).bytes())),
            }
        }
    }

    /// Changes the content of a value, and keeps it valid JSON.
    fn change(&self, value: &mut Value) {
        match value {
            Value::Object(members) if !members.is_empty() && self.below(4) > 0 => {
                let key = members.keys().nth(self.below(members.len())).cloned();
                let key = &key.unwrap_or_default();
                match self.below(12) {
                    0 => drop(members.remove(key)),
                    1 => {
                        let renamed = format!("{key}{}", self.one_of(&["", "\"", "\\", "ü", "\n"]));
                        let moved = members.remove(key).unwrap_or_default();
                        members.insert(renamed, moved);
                    }
                    _ => self.change(&mut members[key.as_str()]),
                }
            }
            Value::Array(items) if !items.is_empty() && self.below(4) > 0 => {
                let at = self.below(items.len());
                self.change(&mut items[at]);
            }
            value => {
                *value = match self.below(7) {
                    0 => Value::Null,
                    1 => self.below(1000).into(),
                    2 => "".into(),
                    3 => "text with \"quotes\" and \\ ü".into(),
                    4 => serde_json::json!({"a": [{}, "}"]}),
                    5 => serde_json::json!([]),
                    _ => Value::String("plain".to_owned()),
                };
            }
        }
    }

    /// Returns the text damaged, or rewritten as unusual JSON, or both.
    fn variant(&self, text: &str) -> Vec<u8> {
        let mut bytes = match serde_json::from_str::<Value>(text) {
            Ok(mut value) if self.below(3) > 0 => {
                (0..self.below(4)).for_each(|_| self.change(&mut value));
                let odd = if self.below(2) == 0 { 0 } else { self.0.next_u64() };
                written(&value, odd).into_bytes()
            }
            _ => text.as_bytes().to_vec(),
        };
        if self.below(3) == 0 {
            self.damage(&mut bytes);
        }
        bytes
    }
}

/// The members of an object, including duplicates.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl Members {
    /// Returns the members, if none is duplicated.
    fn of(bytes: &[u8]) -> Option<Self> {
        let members: Self = serde_json::from_slice(bytes).ok()?;
        let mut keys: Vec<&str> = members.0.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        keys.windows(2).all(|two| two[0] != two[1]).then_some(members)
    }

    fn place(&self, key: &str) -> Option<usize> {
        self.0.iter().position(|(found, _)| found == key)
    }

    fn get(&self, key: &str) -> &Value {
        self.place(key).map_or(&Value::Null, |at| &self.0[at].1)
    }

    /// Returns the text of a member that precedes another.
    fn before(&self, key: &str, other: &str) -> Option<&str> {
        (self.place(key)? < self.place(other)?).then(|| self.get(key).as_str())?
    }
}

fn check_list(chance: &Chance, bytes: &[u8]) -> Result<(), String> {
    let whole = split(bytes, &[]);
    if whole != split(bytes, &chance.cuts()) {
        return Err("the items depend on how it is cut".to_owned());
    }
    let Some(list) = Members::of(bytes) else {
        return Ok(());
    };
    let metadata = list.get("metadata");
    let is_usual = |value: &Value| value.is_null() || value.is_string();
    let (Value::Array(items), true) = (
        list.get("items"),
        metadata.is_null()
            || metadata.is_object()
                && is_usual(&metadata["resourceVersion"])
                && is_usual(&metadata["continue"]),
    ) else {
        return Ok(());
    };
    if !items.iter().all(Value::is_object) {
        return Ok(());
    }
    if !whole.1 || whole.0.len() != items.len() {
        return Err(format!("{} items of {}, {}", whole.0.len(), items.len(), whole.1));
    }
    let kind = list
        .before("kind", "items")
        .and_then(|kind| kind.strip_suffix("List"));
    let types = [
        ("kind", kind.filter(|kind| !kind.is_empty())),
        ("apiVersion", list.before("apiVersion", "items")),
    ];
    let mut taken = Vec::new();
    let mut splitter = ListSplitter::new(1 << 20);
    let pushed = splitter.push(bytes, |item| taken.push(item));
    pushed.map_err(|error| error.to_string())?;
    for (item, taken) in items.iter().zip(taken) {
        let mut expected = item.clone();
        for (key, value) in types {
            let members = expected.as_object_mut();
            if let (Some(members), Some(value)) = (members, value) {
                members.entry(key).or_insert_with(|| value.into());
            }
        }
        compare_taken(taken.ok().as_deref(), expected)?;
    }
    Ok(())
}

fn check_event(line: &[u8]) -> Result<(), String> {
    let event = WatchEvent::parse(line);
    let Some(members) = Members::of(line) else {
        return Ok(());
    };
    let object = members.get("object").clone();
    match (members.get("type").as_str(), event) {
        (Some("ADDED"), WatchEvent::Added(taken))
        | (Some("MODIFIED"), WatchEvent::Modified(taken))
        | (Some("DELETED"), WatchEvent::Deleted(taken)) => compare_taken(Some(&taken), object),
        (Some("ADDED" | "MODIFIED" | "DELETED"), WatchEvent::Invalid(_)) => compare_taken(None, object),
        (Some("BOOKMARK"), WatchEvent::Bookmark { revision, .. }) => {
            let expected = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            let is_it = revision.as_str() == expected;
            is_it
                .then_some(())
                .ok_or(format!("revision {revision}, not {expected}"))
        }
        (Some("ERROR"), WatchEvent::Error(status)) => {
            let is_it = u64::from(status.code) == object["code"].as_u64().unwrap_or_default();
            is_it.then_some(()).ok_or(format!("code {}", status.code))
        }
        // The input is malformed; the result must not be an object.
        (_, WatchEvent::Invalid(_)) | (None | Some("ERROR"), WatchEvent::Malformed { .. }) => Ok(()),
        (kind, event) => Err(format!("{kind:?} is taken as {event:?}")),
    }
}

/// Checks that an object agrees with the result of a full parser.
fn compare_taken(taken: Option<&Object>, expected: Value) -> Result<(), String> {
    let expected = without_managed_fields(expected).filter(has_usual_types);
    match (taken, expected) {
        (Some(taken), Some(expected)) => compare(taken, &expected),
        (None, Some(expected)) => Err(format!("it was refused: {expected}")),
        // Nothing to compare with; it only must not panic.
        (_, None) => Ok(()),
    }
}

fn check_lines(chance: &Chance, bytes: &[u8]) -> Result<(), String> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut lines = Lines::new(1 << 20);
    for chunk in chunks(bytes, &chance.cuts()) {
        let pushed = lines.push(chunk, |line| found.push(line.to_vec()));
        pushed.map_err(|error| error.to_string())?;
    }
    let mut expected: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let rest = expected.pop().unwrap_or_default();
    if found != expected || lines.rest() != rest {
        return Err("the lines depend on how the stream is cut".to_owned());
    }
    found.iter().try_for_each(|line| check_event(line))
}

fn round(chance: &Chance, input: &mut Vec<u8>) -> Result<(), String> {
    match chance.below(4) {
        0 => {
            *input = chance.variant(chance.one_of(&LISTS));
            check_list(chance, input)
        }
        1 => {
            let list: Value =
                serde_json::from_str(chance.one_of(&LISTS)).map_err(|error| error.to_string())?;
            *input = chance.variant(&list["items"][0].to_string());
            check(input)
        }
        2 => {
            let lines: Vec<&str> = WATCH.lines().collect();
            *input = chance.variant(chance.one_of(&lines));
            check_event(input)
        }
        _ => {
            *input = WATCH.as_bytes().to_vec();
            chance.damage(input);
            check_lines(chance, input)
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

// R150 R167
#[test]
fn mutated_responses_parse_as_by_serde() {
    let seed = number("STEERSMAN_FUZZ_SEED", 1);
    for round_number in 0..number("STEERSMAN_FUZZ_ROUNDS", ROUNDS) {
        let chance = Chance(Random::from_seed(seed.wrapping_mul(1 << 32) ^ round_number));
        let mut input = Vec::new();
        if let Err(difference) = round(&chance, &mut input) {
            let input = input.escape_ascii();
            panic!("seed {seed}, round {round_number}: {difference}\n{input}");
        }
    }
}

#[test]
fn parses_the_corpus() {
    for list in LISTS {
        let (items, is_fine) = split(list.as_bytes(), &[]);
        assert!(is_fine && items.len() == 1 && !items[0].is_empty());
    }
    let events: Vec<WatchEvent> = WATCH
        .lines()
        .map(|line| WatchEvent::parse(line.as_bytes()))
        .collect();
    let is_error = |event: &&WatchEvent| matches!(event, WatchEvent::Error(status) if status.code == 504);
    let is_end = |event: &&WatchEvent| {
        matches!(
            event,
            WatchEvent::Bookmark {
                ends_initial_events: true,
                ..
            }
        )
    };
    assert_eq!(
        events
            .iter()
            .filter(|event| matches!(event, WatchEvent::Added(_)))
            .count(),
        3
    );
    assert_eq!(events.iter().filter(is_end).count(), 2);
    assert_eq!(events.iter().filter(is_error).count(), 1);
}
