// SPDX-License-Identifier: Apache-2.0
//! Lists: one long JSON object whose items are extracted as they arrive.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    item_types::ItemTypes,
    lines::TooLong,
    scan::{scan, spells},
    skip::{Stop, skip_space, skip_value},
};
use crate::{
    Resource, WatchError,
    object::{InvalidObject, Object},
};

/// Extracts the items of a list. Buffers at most the current item.
#[derive(Debug)]
pub(crate) struct ListSplitter {
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that are processed.
    done: usize,
    /// Minimum length of the buffer before the next attempt, since the current item was incomplete. It doubles, so even a very
    /// large object is scanned only a few times.
    retry_at: usize,
    place: Place,
    first: bool,
    /// True if `items` was found, as an array or as null.
    has_items: bool,
    metadata: ListMetadata,
    types: ItemTypes,
    /// The list's own `kind` and `apiVersion`; empty if missing.
    kind: String,
    api_version: String,
    /// If set, lists of other resources are rejected.
    resource: Option<Resource>,
    limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the opening brace.
    Start,
    /// Between the members of the list object.
    Members,
    /// Between its items.
    Items,
    /// After the closing brace.
    End,
}

/// The metadata of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListMetadata {
    pub(crate) resource_version: String,
    pub(crate) continue_token: String,
}

impl ListMetadata {
    /// Parses the metadata; `None` if it is invalid. Does not use a serde type, since serde rejects duplicate keys.
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

impl From<NoList> for WatchError {
    fn from(error: NoList) -> Self {
        Self::InvalidResponse {
            reason: error.to_string(),
        }
    }
}

/// The response is no list.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoList {
    #[error("the list is not valid JSON: unexpected data at byte {at}")]
    Malformed { at: usize },
    #[error("the list is incomplete")]
    Incomplete,
    #[error(transparent)]
    TooLong(TooLong),
    #[error("the response has no `items`")]
    NoItems,
    #[error("the response is of kind `{kind}`, which is not a list of {resource}")]
    OtherKind { kind: String, resource: Resource },
}

/// Reason why a step failed.
enum Halt {
    Stop(Stop),
    NoList(NoList),
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl ListSplitter {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            done: 0,
            retry_at: 0,
            place: Place::Start,
            first: true,
            has_items: false,
            metadata: ListMetadata::default(),
            types: ItemTypes::default(),
            kind: String::new(),
            api_version: String::new(),
            resource: None,
            limit,
        }
    }

    /// Sets the resource. Anything but a list of it is rejected: a `Status`, or objects of another kind.
    pub(crate) fn of(mut self, resource: &Resource) -> Self {
        self.resource = Some(resource.clone());
        self
    }

    /// Extracts the items that `chunk` completes; a large one perhaps with a later chunk.
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

    /// Extracts the rest, and returns the metadata of the list.
    pub(crate) fn finish(
        mut self,
        item: impl FnMut(Result<Arc<Object>, InvalidObject>),
    ) -> Result<ListMetadata, NoList> {
        self.take_all(item)?;
        if self.place != Place::End {
            return Err(NoList::Incomplete);
        }
        self.check_type()?;
        if !self.has_items {
            return Err(NoList::NoItems);
        }
        Ok(self.metadata)
    }

    /// Checks that the list is of the resource, if it has a type.
    fn check_type(&self) -> Result<(), NoList> {
        let is_ours = |resource: &&Resource| resource.may_list_as(&self.api_version, &self.kind);
        match self.resource.as_ref().filter(|resource| !is_ours(resource)) {
            Some(resource) => Err(NoList::OtherKind {
                kind: self.kind.clone(),
                resource: resource.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Checks that an item is of the resource's kind, if it has a kind.
    fn check_item(&self, item: &[u8]) -> Result<(), NoList> {
        let Some(resource) = &self.resource else {
            return Ok(());
        };
        let kind = scan(item).ok().and_then(|found| found.kind);
        let kind = String::from_utf8_lossy(kind.map_or(&[], |kind| &item[kind]));
        if kind.is_empty() || kind == resource.kind() || kind == "PartialObjectMetadata" {
            return Ok(());
        }
        Err(NoList::OtherKind {
            kind: kind.into_owned(),
            resource: resource.clone(),
        })
    }

    fn take_all(&mut self, mut item: impl FnMut(Result<Arc<Object>, InvalidObject>)) -> Result<(), NoList> {
        loop {
            match self.step(&mut item) {
                Ok(()) => {}
                Err(Halt::NoList(error)) => return Err(error),
                Err(Halt::Stop(Stop::Malformed { at })) => {
                    return Err(NoList::Malformed { at: self.done + at });
                }
                Err(Halt::Stop(Stop::Incomplete | Stop::Unusual)) => break,
            }
        }
        self.buffer.drain(..self.done);
        self.done = 0;
        Ok(())
    }

    /// Processes one token, and moves `done` after it.
    fn step(&mut self, item: &mut impl FnMut(Result<Arc<Object>, InvalidObject>)) -> Result<(), Halt> {
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
                        return Err(Stop::Malformed { at }.into());
                    }
                    at = skip_space(rest, at + 1);
                }
                if self.place == Place::Items {
                    let item_bytes = rest.get(at..).unwrap_or_default();
                    let (object, length) =
                        Object::from_prefix(item_bytes, &self.types).map_err(|stop| behind(stop, at))?;
                    if self.first {
                        self.check_item(item_bytes).map_err(Halt::NoList)?;
                    }
                    self.first = false;
                    self.done += at + length;
                    item(object);
                } else {
                    self.member(at)?;
                }
            }
            (Place::Start | Place::End, _) => return Err(Stop::Malformed { at }.into()),
        }
        Ok(())
    }

    /// Processes a member of the list object, starting at the quote of its key.
    fn member(&mut self, at: usize) -> Result<(), Halt> {
        let rest = &self.buffer[self.done..];
        if *rest.get(at).ok_or(Stop::Incomplete)? != b'"' {
            return Err(Stop::Malformed { at }.into());
        }
        let key_end = skip_value(rest, at)?;
        let colon = skip_space(rest, key_end);
        if *rest.get(colon).ok_or(Stop::Incomplete)? != b':' {
            return Err(Stop::Malformed { at: colon }.into());
        }
        let value = skip_space(rest, colon + 1);
        let first = *rest.get(value).ok_or(Stop::Incomplete)?;
        let is_key = |name: &str| spells(&rest[at..key_end], name) == Some(true);
        if is_key("items") {
            if !matches!(first, b'[' | b'n') {
                return Err(Stop::Malformed { at: value }.into());
            }
            self.has_items = true;
        }
        if is_key("items") && first == b'[' {
            // If the type precedes the items, check it before an item of another kind is passed on.
            if !self.kind.is_empty() && !self.api_version.is_empty() {
                self.check_type().map_err(Halt::NoList)?;
            }
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
            self.kind = text(&rest[value..end]);
        } else if is_key("apiVersion") {
            self.types.set_api_version(&rest[value..end]);
            self.api_version = text(&rest[value..end]);
        }
        self.first = false;
        self.done += end;
        Ok(())
    }
}

/// Returns the content of a JSON string, or any other value as written; empty for `null`.
fn text(json: &[u8]) -> String {
    let text: Result<Option<String>, _> = serde_json::from_slice(json);
    text.map_or_else(
        |_| String::from_utf8_lossy(json).into_owned(),
        Option::unwrap_or_default,
    )
}

fn behind(stop: Stop, offset: usize) -> Stop {
    match stop {
        Stop::Malformed { at } => Stop::Malformed { at: at + offset },
        other => other,
    }
}
