// SPDX-License-Identifier: Apache-2.0
//! Lists: one long JSON object whose items are taken out as they arrive.

use std::{cmp::Ordering, sync::Arc};

use serde_json::{Map, Value};

use super::{
    item_types::ItemTypes,
    lines::TooLong,
    scan::spells,
    skip::{Stop, skip_space, skip_value},
};
use crate::{
    Revision, Trouble,
    object::{InvalidObject, Object},
};

/// Takes the items out of a list without ever holding more than the one that is under way.
#[derive(Debug)]
pub(crate) struct ListSplitter {
    buffer: Vec<u8>,
    /// How much of the buffer is done with.
    done: usize,
    /// No use to look again before the buffer is as long as this: what is under way was not complete. It doubles, so
    /// that even a very large object is walked over only a few times.
    retry_at: usize,
    place: Place,
    first: bool,
    metadata: ListMetadata,
    types: ItemTypes,
    limit: usize,
    /// An older list is refused before its first item, where it says how old it is before them.
    floor: Revision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the opening brace.
    Start,
    /// Between the members of the list object.
    Members,
    /// Between its items.
    Items,
    /// Behind the closing brace.
    End,
}

/// What a list says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListMetadata {
    pub(crate) resource_version: String,
    pub(crate) continue_token: String,
}

impl ListMetadata {
    /// Nothing if it is none. Not by a type for serde: that refuses a key which is there twice.
    fn parse(json: &[u8]) -> Option<Self> {
        let metadata: Option<Map<String, Value>> = serde_json::from_slice(json).ok()?;
        let mut metadata = metadata.unwrap_or_default();
        let mut text = |key: &str| match metadata.remove(key) {
            None | Some(Value::Null) => Some(String::new()),
            Some(Value::String(text)) => Some(text),
            Some(_) => None,
        };
        Some(Self {
            resource_version: text("resourceVersion")?,
            continue_token: text("continue")?,
        })
    }
}

impl From<NoList> for Trouble {
    fn from(error: NoList) -> Self {
        match error {
            NoList::Behind { told, seen } => Self::Behind { told, seen },
            other => Self::Undecodable {
                reason: other.to_string(),
            },
        }
    }
}

/// The response is no list.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoList {
    #[error("the list is no JSON: something else begins at byte {at}")]
    Malformed { at: usize },
    #[error("the list ends in the middle")]
    Incomplete,
    #[error(transparent)]
    TooLong(TooLong),
    #[error("the list is of revision {told}, older than {seen}")]
    Behind { told: Revision, seen: Revision },
}

impl ListSplitter {
    pub(crate) fn new(limit: usize, floor: Revision) -> Self {
        Self {
            buffer: Vec::new(),
            done: 0,
            retry_at: 0,
            place: Place::Start,
            first: true,
            metadata: ListMetadata::default(),
            types: ItemTypes::default(),
            limit,
            floor,
        }
    }

    /// Takes the items that are complete with `chunk`; a large one perhaps with a later one.
    pub(crate) fn push(
        &mut self,
        chunk: &[u8],
        item: impl FnMut(Result<Arc<Object>, InvalidObject>),
    ) -> Result<(), NoList> {
        self.buffer.extend_from_slice(chunk);
        if self.buffer.len() < self.retry_at {
            return Ok(());
        }
        self.take_all(item)?;
        if self.buffer.len() > self.limit {
            return Err(NoList::TooLong(TooLong { limit: self.limit }));
        }
        self.retry_at = self.buffer.len() * 2;
        Ok(())
    }

    /// Takes what is left, and says what the list said about itself.
    pub(crate) fn finish(
        mut self,
        item: impl FnMut(Result<Arc<Object>, InvalidObject>),
    ) -> Result<ListMetadata, NoList> {
        self.take_all(item)?;
        if self.place == Place::End {
            Ok(self.metadata)
        } else {
            Err(NoList::Incomplete)
        }
    }

    fn take_all(&mut self, mut item: impl FnMut(Result<Arc<Object>, InvalidObject>)) -> Result<(), NoList> {
        loop {
            match self.step(&mut item) {
                Ok(()) if self.place == Place::Items => {}
                Ok(()) => self.check_age()?,
                Err(Stop::Malformed { at }) => return Err(NoList::Malformed { at: self.done + at }),
                Err(Stop::Incomplete | Stop::Unusual) => break,
            }
        }
        self.buffer.drain(..self.done);
        self.done = 0;
        Ok(())
    }

    fn check_age(&self) -> Result<(), NoList> {
        let told = Revision::new(&self.metadata.resource_version);
        match told.compare(&self.floor) {
            Some(Ordering::Less) => Err(NoList::Behind {
                told,
                seen: self.floor.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Does one thing, and moves `done` behind it.
    fn step(&mut self, item: &mut impl FnMut(Result<Arc<Object>, InvalidObject>)) -> Result<(), Stop> {
        let rest = &self.buffer[self.done..];
        let mut at = skip_space(rest, 0);
        let next = *rest.get(at).ok_or(Stop::Incomplete)?;
        match (self.place, next) {
            (Place::Start, b'{') => {
                self.place = Place::Members;
                self.done += at + 1;
            }
            (Place::Members, b'}') => {
                self.place = Place::End;
                self.done += at + 1;
            }
            (Place::Items, b']') => {
                self.place = Place::Members;
                self.first = false;
                self.done += at + 1;
            }
            (Place::Members | Place::Items, _) => {
                if !self.first {
                    if next != b',' {
                        return Err(Stop::Malformed { at });
                    }
                    at = skip_space(rest, at + 1);
                }
                if self.place == Place::Items {
                    let item_bytes = rest.get(at..).unwrap_or_default();
                    let (object, length) =
                        Object::from_prefix(item_bytes, &self.types).map_err(|stop| behind(stop, at))?;
                    self.first = false;
                    self.done += at + length;
                    item(object);
                } else {
                    self.member(at)?;
                }
            }
            (Place::Start | Place::End, _) => return Err(Stop::Malformed { at }),
        }
        Ok(())
    }

    /// A member of the list object, from the quote of its key on.
    fn member(&mut self, at: usize) -> Result<(), Stop> {
        let rest = &self.buffer[self.done..];
        if *rest.get(at).ok_or(Stop::Incomplete)? != b'"' {
            return Err(Stop::Malformed { at });
        }
        let key_end = skip_value(rest, at)?;
        let colon = skip_space(rest, key_end);
        if *rest.get(colon).ok_or(Stop::Incomplete)? != b':' {
            return Err(Stop::Malformed { at: colon });
        }
        let value = skip_space(rest, colon + 1);
        let first = *rest.get(value).ok_or(Stop::Incomplete)?;
        let is_key = |name: &str| spells(&rest[at..key_end], name) == Some(true);
        if is_key("items") && first == b'[' {
            self.place = Place::Items;
            self.first = true;
            self.done += value + 1;
            return Ok(());
        }
        let end = skip_value(rest, value)?;
        if is_key("metadata") {
            let metadata = ListMetadata::parse(&rest[value..end]);
            self.metadata = metadata.ok_or(Stop::Malformed { at: value })?;
        } else if is_key("kind") {
            self.types.set_list_kind(&rest[value..end]);
        } else if is_key("apiVersion") {
            self.types.set_api_version(&rest[value..end]);
        }
        self.first = false;
        self.done += end;
        Ok(())
    }
}

fn behind(stop: Stop, offset: usize) -> Stop {
    match stop {
        Stop::Malformed { at } => Stop::Malformed { at: at + offset },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#" {"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42","continue":"next"},"items":[{"metadata":{"name":"a"}} , {"metadata":{"name":"b","managedFields":[]},"spec":{"x":"]"}},{"metadata":{}}],"more":[{"metadata":{}}]}
"#;

    fn split(chunks: impl Iterator<Item = Vec<u8>>) -> (Vec<String>, Result<ListMetadata, NoList>) {
        let mut names = Vec::new();
        let mut splitter = ListSplitter::new(1 << 20, Revision::new("41"));
        for chunk in chunks {
            let pushed = splitter.push(&chunk, |item| {
                names.push(item.map_or_else(|error| error.to_string(), |object| object.name().to_owned()));
            });
            if let Err(error) = pushed {
                return (names, Err(error));
            }
        }
        let metadata = splitter.finish(|item| {
            names.push(item.map_or_else(|error| error.to_string(), |object| object.name().to_owned()))
        });
        (names, metadata)
    }

    #[test]
    fn items_are_the_same_however_the_response_is_cut() {
        for size in 1..=LIST.len() {
            let (names, metadata) = split(LIST.as_bytes().chunks(size).map(<[u8]>::to_vec));
            assert_eq!(names, ["a", "b", "it has no metadata.name"], "{size}");
            let expected = ListMetadata {
                resource_version: "42".to_owned(),
                continue_token: "next".to_owned(),
            };
            assert_eq!(metadata, Ok(expected), "{size}");
        }
    }

    #[test]
    fn an_empty_list_has_no_items() {
        for text in [
            r#"{"items":[],"metadata":{"resourceVersion":"101"}}"#,
            r#"{"metadata":{"resourceVersion":"101","continue":null},"items":null}"#,
        ] {
            let (names, metadata) = split(std::iter::once(text.as_bytes().to_vec()));
            assert!(names.is_empty());
            assert_eq!(metadata.unwrap().resource_version, "101");
        }
    }

    #[test]
    fn a_list_that_is_too_old_is_refused_before_its_first_item() {
        let old = LIST.replace("42", "40");
        let (names, refused) = split(std::iter::once(old.into_bytes()));
        assert!(names.is_empty());
        let (told, seen) = (Revision::new("40"), Revision::new("41"));
        assert_eq!(refused, Err(NoList::Behind { told, seen }));
    }

    /// The bytes that are kept of the one item of a list.
    fn kept(list: &str) -> String {
        let mut kept = String::new();
        let mut splitter = ListSplitter::new(1 << 20, Revision::new(""));
        let item = |item: Result<Arc<Object>, _>| {
            kept = String::from_utf8(item.unwrap().bytes().to_vec()).unwrap();
        };
        splitter.push(list.as_bytes(), item).unwrap();
        kept
    }

    #[test]
    fn an_item_has_the_type_that_the_list_says_it_has() {
        let list = |item: &str| {
            kept(&format!(
                r#"{{"kind":"PodList","apiVersion":"v1","items":[{item}]}}"#
            ))
        };
        let whole = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{}}"#;
        assert_eq!(list(r#"{"metadata":{"name":"a"},"spec":{}}"#), whole);
        assert_eq!(
            list(r#"  {"metadata":{"managedFields":[],"name":"a"},"spec":{}}"#),
            whole
        );
        assert_eq!(list(whole), whole);
        let other = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}"#;
        assert_eq!(
            list(r#"{"kind":"Node","metadata":{"name":"a"}}"#),
            r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}"#
        );
        assert_eq!(list(other), other);
        let null = r#"{"kind":null,"apiVersion":null,"metadata":{"name":"a"}}"#;
        assert_eq!(list(null), null);
        let escaped = r#"{"metad\u0061ta":{"name":"a"},"spec":{}}"#;
        assert_eq!(list(escaped), whole);
    }

    #[test]
    fn an_item_stays_as_it_is_where_the_list_says_nothing_of_its_type() {
        let item = r#"{"metadata":{"name":"a"}}"#;
        for head in [
            "",
            r#""kind":"List","#,
            r#""kind":"Pods","#,
            r#""kind":null,"apiVersion":null,"#,
        ] {
            assert_eq!(kept(&format!(r#"{{{head}"items":[{item}]}}"#)), item);
        }
    }

    #[test]
    fn the_header_of_an_item_is_where_it_was_moved_to() {
        let mut splitter = ListSplitter::new(1 << 20, Revision::new(""));
        let list = r#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a","managedFields":[{}],"uid":"u","labels":{"x":"y"}}}]}"#;
        let check = |item: Result<Arc<Object>, _>| {
            let object = item.unwrap();
            assert_eq!((object.name(), object.uid()), ("a", "u"));
            assert_eq!(object.label("x").as_deref(), Some("y"));
        };
        splitter.push(list.as_bytes(), check).unwrap();
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        let no_list = |text: &str| split(std::iter::once(text.as_bytes().to_vec())).1.unwrap_err();
        assert_eq!(
            no_list(r#"{"items":[{"metadata":{"name":"a"}}"#),
            NoList::Incomplete
        );
        assert_eq!(no_list("404 page not found"), NoList::Malformed { at: 0 });
        assert!(matches!(no_list(r#"{"items":[1]}"#), NoList::Malformed { .. }));
    }
}
