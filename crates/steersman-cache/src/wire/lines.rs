// SPDX-License-Identifier: Apache-2.0
//! Watches: one event per line.

use std::sync::Arc;

use kube::core::Status;

use super::{
    item_types::ItemTypes,
    scan::{Members, scan, spells},
    skip::{Stop, skip_space, skip_value},
};
use crate::{
    Revision,
    object::{InvalidObject, Object, without_content},
};

/// The annotation of the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Splits a stream into lines.
#[derive(Debug)]
pub(crate) struct Lines {
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    limit: usize,
}

/// A line is longer than any line of an API server.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an object is longer than {limit} bytes")]
pub(crate) struct TooLong {
    pub(crate) limit: usize,
}

impl Lines {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            rest: Vec::new(),
            limit,
        }
    }

    /// Passes on every line that ends in `chunk`. Lines within it are not copied.
    pub(crate) fn push(&mut self, mut chunk: &[u8], mut line: impl FnMut(&[u8])) -> Result<(), TooLong> {
        while let Some(end) = memchr::memchr(b'\n', chunk) {
            if self.rest.is_empty() {
                line(&chunk[..end]);
            } else {
                self.rest.extend_from_slice(&chunk[..end]);
                line(&self.rest);
                self.rest.clear();
            }
            chunk = &chunk[end + 1..];
        }
        if self.rest.len() + chunk.len() > self.limit {
            return Err(TooLong { limit: self.limit });
        }
        self.rest.extend_from_slice(chunk);
        // Frees the buffer of a large object, instead of keeping it for the lifetime of the watch.
        if self.rest.is_empty() && self.rest.capacity() > (1 << 16) {
            self.rest = Vec::new();
        }
        Ok(())
    }
}

#[cfg(test)]
impl Lines {
    /// Returns the beginning of an incomplete line.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.rest
    }
}

/// A line of a watch.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
    Bookmark {
        revision: Revision,
        ends_initial_events: bool,
    },
    Error(Box<Status>),
    /// An event with an invalid object.
    Invalid(InvalidObject),
    /// A line that is no watch event, such as a line of a web page, or an error without a status.
    Malformed {
        reason: String,
    },
    /// An empty line.
    Nothing,
}

impl WatchEvent {
    pub(crate) fn parse(line: &[u8]) -> Self {
        let mut kind = None;
        Self::walk(line, &mut kind).unwrap_or_else(|stop| {
            let error = InvalidObject::stopped(stop, line.len());
            match kind {
                Some(Kind::Error) => no_status(&error),
                Some(_) => Self::Invalid(error),
                None if line.trim_ascii().is_empty() => Self::Nothing,
                None => Self::Malformed {
                    reason: format!("a line is no event of a watch: {error}"),
                },
            }
        })
    }

    /// Parses a line. Kubernetes writes the type before the object, so one scan is enough.
    fn walk(line: &[u8], kind: &mut Option<Kind>) -> Result<Self, Stop> {
        let mut members = Members::enter(line, skip_space(line, 0))?;
        let mut object: Option<&[u8]> = None;
        while let Some(member) = members.next()? {
            let value = member.value;
            if member.spells(line, "type") {
                members.at = skip_value(line, value)?;
                *kind = Kind::of(&line[value..members.at]);
            } else if !member.spells(line, "object") {
                members.at = skip_value(line, value)?;
            } else if let Some(kind) = kind.filter(Kind::is_about_an_object) {
                let (parsed, _) = Object::from_prefix(&line[value..], &ItemTypes::default())?;
                return Ok(kind.event(parsed));
            } else {
                members.at = skip_value(line, value)?;
                object = Some(&line[value..members.at]);
            }
        }
        match (*kind, object) {
            (Some(Kind::Bookmark), Some(object)) => bookmark(object),
            (Some(Kind::Error), Some(object)) => Ok(error(object)),
            (Some(kind), Some(object)) if kind.is_about_an_object() => {
                Ok(kind.event(Object::shared_from_slice(object)))
            }
            _ => Err(Stop::Malformed { at: 0 }),
        }
    }
}

/// The type of an event.
#[derive(Clone, Copy)]
enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    /// An unknown type.
    Other,
}

impl Kind {
    /// Returns the type; `None` if it is no text.
    fn of(quoted: &[u8]) -> Option<Self> {
        let kinds = [
            ("ADDED", Self::Added),
            ("MODIFIED", Self::Modified),
            ("DELETED", Self::Deleted),
            ("BOOKMARK", Self::Bookmark),
            ("ERROR", Self::Error),
        ];
        let found = kinds.iter().find(|(name, _)| spells(quoted, name) == Some(true));
        let other = quoted.starts_with(b"\"").then_some(Self::Other);
        found.map(|(_, kind)| *kind).or(other)
    }

    fn is_about_an_object(&self) -> bool {
        matches!(self, Self::Added | Self::Modified | Self::Deleted)
    }

    fn event(self, object: Result<Arc<Object>, InvalidObject>) -> WatchEvent {
        match (object, self) {
            (Err(error), _) => WatchEvent::Invalid(error),
            (Ok(object), Self::Added) => WatchEvent::Added(object),
            (Ok(object), Self::Deleted) => WatchEvent::Deleted(object),
            (Ok(object), _) => WatchEvent::Modified(object),
        }
    }
}

fn error(object: &[u8]) -> WatchEvent {
    let status = serde_json::from_slice(object);
    status.map_or_else(|error| no_status(&without_content(&error)), WatchEvent::Error)
}

fn no_status(error: &dyn std::fmt::Display) -> WatchEvent {
    WatchEvent::Malformed {
        reason: format!("cannot decode the error event of the watch: {error}"),
    }
}

fn bookmark(object: &[u8]) -> Result<WatchEvent, Stop> {
    let found = scan(object)?;
    if found.escaped {
        return Err(Stop::Unusual);
    }
    let text = |range: Option<std::ops::Range<usize>>| range.map(|range| &object[range]).unwrap_or_default();
    let revision = std::str::from_utf8(text(found.resource_version)).unwrap_or_default();
    let mut annotations = super::pairs::Pairs::new(text(found.annotations));
    Ok(WatchEvent::Bookmark {
        revision: Revision::new(revision),
        ends_initial_events: annotations.any(|(key, value)| key == INITIAL_EVENTS_END && value == "true"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        let mut lines = Lines::new(64);
        for chunk in chunks {
            lines
                .push(chunk.as_bytes(), |line| {
                    found.push(String::from_utf8_lossy(line).into_owned())
                })
                .unwrap();
        }
        found
    }

    #[test]
    fn lines_are_the_same_in_any_chunks() {
        assert_eq!(
            lines(&["a\nbc", "d\n", "\n", "e", "f\ng"]),
            ["a", "bcd", "", "ef"]
        );
    }

    #[test]
    fn rejects_a_line_that_is_too_long() {
        let mut lines = Lines::new(4);
        lines.push(b"abcd", |_| {}).unwrap();
        assert_eq!(lines.push(b"e", |_| {}), Err(TooLong { limit: 4 }));
    }

    #[test]
    fn parses_each_type_of_event() {
        let object = r#"{"metadata":{"name":"a"}}"#;
        let event = |text: &str| WatchEvent::parse(text.as_bytes());
        assert!(matches!(
            event(&format!(r#"{{"type":"ADDED","object":{object}}}"#)),
            WatchEvent::Added(_)
        ));
        assert!(matches!(
            event(&format!(r#"{{"object":{object},"type":"MODIFIED"}}"#)),
            WatchEvent::Modified(_)
        ));
        assert!(matches!(
            event(&format!(r#"{{ "type" : "DELETED" , "object" : {object} }}"#)),
            WatchEvent::Deleted(_)
        ));
        let end = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        assert!(
            matches!(event(end), WatchEvent::Bookmark { ends_initial_events: true, revision } if revision.as_str() == "7")
        );
        let error =
            r#"{"type":"ERROR","object":{"status":"Failure","code":410,"reason":"Expired","message":"m"}}"#;
        assert!(matches!(event(error), WatchEvent::Error(status) if status.code == 410));
    }

    #[test]
    fn an_event_without_a_valid_object_is_invalid() {
        for text in [
            r#"{"type":"ADDED"}"#,
            r#"{"type":"NEW","object":{}}"#,
            r#"{"type":"ADDED","object":{"metadata":{}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"}"#,
        ] {
            let event = WatchEvent::parse(text.as_bytes());
            assert!(matches!(event, WatchEvent::Invalid(_)), "{text}: {event:?}");
        }
    }

    #[test]
    fn rejects_lines_that_are_not_events() {
        for text in [
            "<html>",
            "{",
            "[]",
            "{}",
            r#"{"type":7,"object":{}}"#,
            r#"{"message":"bad gateway"}"#,
            r#"{"type":"ERROR"}"#,
            r#"{"type":"ERROR","object":{"co"#,
            r#"{"type":"ERROR","object":"gone"}"#,
        ] {
            let event = WatchEvent::parse(text.as_bytes());
            assert!(matches!(event, WatchEvent::Malformed { .. }), "{text}: {event:?}");
        }
    }

    #[test]
    fn ignores_an_empty_line() {
        for text in ["", "\r", " \t"] {
            assert!(matches!(WatchEvent::parse(text.as_bytes()), WatchEvent::Nothing));
        }
    }
}
