// SPDX-License-Identifier: Apache-2.0
//! Scans the bytes of an object once: finds its end, its header fields, and the parts to drop.
//!
//! It reads only keys on the first two levels and skips the rest by counting braces, so it validates no more than it needs;
//! decoding validates all bytes later. It never allocates and never recurses; only [`Member::name`] allocates, for a name with
//! escapes.

use std::{borrow::Cow, ops::Range};

use super::skip::{Stop, Walk, byte, skip_space, skip_string, skip_value};

/// The result of a scan. All positions are offsets into the input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// Position after the closing brace.
    pub(crate) end: usize,
    /// Empty for `null`.
    pub(crate) kind: Option<Range<usize>>,
    /// Empty for `null`.
    pub(crate) api_version: Option<Range<usize>>,
    pub(crate) name: Option<Range<usize>>,
    pub(crate) namespace: Option<Range<usize>>,
    pub(crate) uid: Option<Range<usize>>,
    pub(crate) resource_version: Option<Range<usize>>,
    pub(crate) generation: Option<Range<usize>>,
    /// The objects and the list themselves, including braces.
    pub(crate) labels: Option<Range<usize>>,
    pub(crate) annotations: Option<Range<usize>>,
    pub(crate) owners: Option<Range<usize>>,
    pub(crate) deleting: bool,
    /// True if name, namespace, uid or resource version has escapes.
    pub(crate) escaped: bool,
    /// The member `managedFields` with one adjacent comma.
    pub(crate) managed_fields: Option<Range<usize>>,
}

/// The keys that the scan reads.
const KEYS: [&str; 3] = ["metadata", "kind", "apiVersion"];
const METADATA_KEYS: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "annotations",
    "ownerReferences",
    "deletionTimestamp",
    "managedFields",
];

/// Scans the object at the beginning of `input`, after white space.
pub(crate) fn scan(input: &[u8]) -> Walk<Scanned> {
    let mut found = Scanned::default();
    let mut members = Members::enter(input, skip_space(input, 0))?;
    let mut has_metadata = false;
    while let Some(member) = members.next()? {
        let value = member.value;
        members.at = match member.known_key(input, &KEYS)? {
            b"metadata" => {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(Stop::Unusual);
                }
                metadata(input, value, &mut found)?
            }
            b"kind" => text_or_null(input, value, &mut found.kind)?,
            b"apiVersion" => text_or_null(input, value, &mut found.api_version)?,
            _ => skip_value(input, value)?,
        };
    }
    found.end = members.at;
    Ok(found)
}

fn metadata(input: &[u8], at: usize, found: &mut Scanned) -> Walk<usize> {
    if *byte(input, at)? != b'{' {
        return Err(Stop::Unusual);
    }
    let mut members = Members::enter(input, at)?;
    while let Some(member) = members.next()? {
        let value = member.value;
        members.at = match member.known_key(input, &METADATA_KEYS)? {
            b"name" => text(input, value, &mut found.name, &mut found.escaped)?,
            b"namespace" => text(input, value, &mut found.namespace, &mut found.escaped)?,
            b"uid" => text(input, value, &mut found.uid, &mut found.escaped)?,
            b"resourceVersion" => text(input, value, &mut found.resource_version, &mut found.escaped)?,
            b"generation" => {
                let end = skip_value(input, value)?;
                note(&mut found.generation, value..end)?;
                end
            }
            b"labels" => composite(input, value, b'{', &mut found.labels)?,
            b"annotations" => composite(input, value, b'{', &mut found.annotations)?,
            b"ownerReferences" => composite(input, value, b'[', &mut found.owners)?,
            b"deletionTimestamp" => {
                found.deleting = *byte(input, value)? == b'"';
                skip_value(input, value)?
            }
            b"managedFields" => {
                let end = skip_value(input, value)?;
                let behind = skip_space(input, end);
                let comma_behind = member.comma.is_none() && *byte(input, behind)? == b',';
                let from = member.comma.unwrap_or(member.start);
                let to = if comma_behind { behind + 1 } else { end };
                note(&mut found.managed_fields, from..to)?;
                end
            }
            _ => skip_value(input, value)?,
        };
    }
    Ok(members.at)
}

/// Records the content of a string as written, and whether it has escapes.
fn text(input: &[u8], at: usize, slot: &mut Option<Range<usize>>, escaped: &mut bool) -> Walk<usize> {
    match *byte(input, at)? {
        b'"' => {
            let (end, is_escaped) = skip_string(input, at)?;
            let content = at + 1..end - 1;
            if std::str::from_utf8(&input[content.clone()]).is_err() {
                return Err(Stop::Unusual);
            }
            *escaped |= is_escaped;
            note(slot, content)?;
            Ok(end)
        }
        // A null after a text revokes it.
        b'n' if slot.is_none() => skip_value(input, at),
        _ => Err(Stop::Unusual),
    }
}

/// Records the content of a string without escapes; empty for `null`, since the key exists.
fn text_or_null(input: &[u8], at: usize, slot: &mut Option<Range<usize>>) -> Walk<usize> {
    let mut escaped = false;
    let end = text(input, at, slot, &mut escaped)?;
    slot.get_or_insert(at..at);
    if escaped { Err(Stop::Unusual) } else { Ok(end) }
}

/// Records an object or a list; nothing for `null`.
fn composite(input: &[u8], at: usize, open: u8, slot: &mut Option<Range<usize>>) -> Walk<usize> {
    let end = skip_value(input, at)?;
    match input[at] {
        first if first == open => note(slot, at..end)?,
        b'n' if slot.is_none() => {}
        _ => return Err(Stop::Unusual),
    }
    Ok(end)
}

/// Records a range. A duplicate field is unusual.
fn note(slot: &mut Option<Range<usize>>, range: Range<usize>) -> Walk<()> {
    slot.replace(range).map_or(Ok(()), |_| Err(Stop::Unusual))
}

/// Iterates over the members of an object. The caller moves `at` after each value.
pub(crate) struct Members<'a> {
    input: &'a [u8],
    pub(crate) at: usize,
    first: bool,
}

pub(crate) struct Member {
    /// The opening quote of the key.
    pub(crate) start: usize,
    /// The comma before it, if there is one.
    comma: Option<usize>,
    key: Range<usize>,
    /// True if the key has escapes.
    escaped: bool,
    pub(crate) value: usize,
}

impl Member {
    /// Returns the key as written. Fails if it spells one of `known` with escapes.
    fn known_key<'a>(&self, input: &'a [u8], known: &[&str]) -> Walk<&'a [u8]> {
        if self.escaped {
            let quoted = &input[self.key.start - 1..self.key.end + 1];
            if known.iter().any(|name| spells(quoted, name) != Some(false)) {
                return Err(Stop::Unusual);
            }
        }
        Ok(self.key(input))
    }

    /// Returns true if the unescaped key is `name`.
    pub(crate) fn spells(&self, input: &[u8], name: &str) -> bool {
        let quoted = &input[self.key.start - 1..self.key.end + 1];
        spells(quoted, name) == Some(true)
    }

    /// Returns the unescaped key.
    pub(crate) fn name<'a>(&self, input: &'a [u8]) -> Walk<Cow<'a, [u8]>> {
        if !self.escaped {
            return Ok(Cow::Borrowed(self.key(input)));
        }
        let quoted = &input[self.key.start - 1..self.key.end + 1];
        let name: Option<String> = serde_json::from_slice(quoted).ok();
        name.map(|name| Cow::Owned(name.into_bytes()))
            .ok_or(Stop::Malformed { at: self.start })
    }

    /// Returns the key as written.
    fn key<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        &input[self.key.clone()]
    }
}

impl<'a> Members<'a> {
    pub(crate) fn enter(input: &'a [u8], at: usize) -> Walk<Self> {
        match *byte(input, at)? {
            b'{' => Ok(Self {
                input,
                at: at + 1,
                first: true,
            }),
            _ => Err(Stop::Malformed { at }),
        }
    }

    /// Returns the next member, or `None` with `at` after the closing brace.
    pub(crate) fn next(&mut self) -> Walk<Option<Member>> {
        let input = self.input;
        let mut at = skip_space(input, self.at);
        let mut comma = None;
        match (*byte(input, at)?, self.first) {
            (b'}', _) => {
                self.at = at + 1;
                return Ok(None);
            }
            (b',', false) => {
                comma = Some(at);
                at = skip_space(input, at + 1);
            }
            (_, true) => self.first = false,
            _ => return Err(Stop::Malformed { at }),
        }
        let start = at;
        if *byte(input, at)? != b'"' {
            return Err(Stop::Malformed { at });
        }
        let (end, escaped) = skip_string(input, at)?;
        let colon = skip_space(input, end);
        if *byte(input, colon)? != b':' {
            return Err(Stop::Malformed { at: colon });
        }
        let value = skip_space(input, colon + 1);
        Ok(Some(Member {
            start,
            comma,
            key: start + 1..end - 1,
            escaped,
            value,
        }))
    }
}

/// Returns true if a JSON string, quotes included, means `name`; `None` if it is no JSON string.
pub(crate) fn spells(quoted: &[u8], name: &str) -> Option<bool> {
    let content = quoted.get(1..quoted.len() - 1).unwrap_or_default();
    if content == name.as_bytes() || memchr::memchr(b'\\', content).is_none() {
        return Some(content == name.as_bytes() && quoted.starts_with(b"\""));
    }
    let text: String = serde_json::from_slice(quoted).ok()?;
    Some(text == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(input: &str, range: Option<Range<usize>>) -> &str {
        range.map_or("", |range| &input[range])
    }

    #[test]
    fn finds_metadata_fields_at_any_position() {
        let input = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","generation":3,"labels":{"x":"{\"y\"}"},"managedFields":[{"a":[{}]}],"ownerReferences":[{"uid":"o"}],"deletionTimestamp":"t"},"spec":{"deep":[{"a":"]}"}]}}  tail"#;
        let found = scan(input.as_bytes()).unwrap();
        assert_eq!(&input[found.end..], "  tail");
        assert_eq!(at(input, found.name), "a");
        assert_eq!(at(input, found.namespace), "n");
        assert_eq!(at(input, found.uid), "u");
        assert_eq!(at(input, found.resource_version), "7");
        assert_eq!(at(input, found.generation), "3");
        assert_eq!(at(input, found.labels), r#"{"x":"{\"y\"}"}"#);
        assert_eq!(at(input, found.owners), r#"[{"uid":"o"}]"#);
        assert_eq!(
            at(input, found.managed_fields),
            r#","managedFields":[{"a":[{}]}]"#
        );
        assert_eq!(
            (at(input, found.kind), at(input, found.api_version)),
            ("Pod", "v1")
        );
        assert!(found.deleting);
    }

    #[test]
    fn removes_managed_fields_with_one_comma() {
        let input = r#"{"metadata":{"managedFields":[],"name":"a"}}"#;
        let found = scan(input.as_bytes()).unwrap();
        assert_eq!(at(input, found.managed_fields), r#""managedFields":[],"#);
        let input = r#"{"metadata":{"managedFields":[]}}"#;
        assert_eq!(
            at(input, scan(input.as_bytes()).unwrap().managed_fields),
            r#""managedFields":[]"#
        );
    }

    #[test]
    fn every_prefix_of_an_object_is_incomplete() {
        let input = br#"{"metadata":{"name":"a\\","generation":12},"spec":["\"",1,{"x":null}]}"#;
        assert!(scan(input).unwrap().escaped, "the name has an escape");
        let input = br#"{"metadata":{"name":"a","generation":12},"spec":["\"",1,{"x":null}]}"#;
        assert_eq!(scan(input).unwrap().end, input.len());
        for end in 0..input.len() {
            assert_eq!(scan(&input[..end]), Err(Stop::Incomplete), "{end}");
        }
    }

    #[test]
    fn reports_input_that_needs_a_full_parser() {
        for input in [
            r#"{"metadata":{"name":"a","name":"b"}}"#,
            r#"{"metadata":{"name":7}}"#,
            r#"{"metadata":{"na\u006de":"a"}}"#,
            r#"{"metadata":[]}"#,
            r#"{"metadata":{},"metadata":{}}"#,
            r#"{"metadata":{"labels":"x"}}"#,
        ] {
            assert_eq!(scan(input.as_bytes()), Err(Stop::Unusual), "{input}");
        }
    }

    #[test]
    fn reports_the_position_of_invalid_input() {
        for (input, at) in [
            ("[]", 0),
            ("{]", 1),
            (r#"{"a" 1}"#, 5),
            (r#"{"a":1 "b":2}"#, 7),
            (r#"{"a":}"#, 5),
        ] {
            assert_eq!(scan(input.as_bytes()), Err(Stop::Malformed { at }), "{input}");
        }
    }
}
