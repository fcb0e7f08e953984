// SPDX-License-Identifier: Apache-2.0
//! Reads objects that Go clients send as protobuf.
//!
//! Typed clients of client-go send built-in kinds in this form and do not fall back to JSON, so it must be understood;
//! all of them accept JSON in return, so it is never written. A message is walked over with the rows of
//! `data/messages.txt`, which are parsed one by one when first used: 100 KB instead of the megabyte and the start-up
//! time of a descriptor set for prost-reflect.
//!
//! # Guarantees
//! 1. What is read is the JSON that Go would have sent instead, but for zero values that decoding drops anyway.
//! 2. Any bytes are either read or refused; nesting is bounded.

use std::{
    collections::HashMap,
    sync::{LazyLock, OnceLock},
};

use base64::Engine as _;
use serde_json::{Map, Value};

/// Written by `data/generate.py`.
static TEXT: &str = include_str!("../data/messages.txt");

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// As deep as messages may be nested; definitions of custom resources are the deepest.
const DEPTH: usize = 100;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

struct Message {
    row: &'static str,
    fields: OnceLock<HashMap<u64, Field>>,
}

/// A field of a message.
struct Field {
    /// The name in JSON; empty if Go embeds the message.
    name: &'static str,
    holds: Holds,
    kind: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    One,
    List,
    Map,
}

static TABLE: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
    let rows = TEXT.lines().filter_map(|line| line.split_once('\t'));
    rows.map(|(name, row)| {
        let fields = OnceLock::new();
        (name, Message { row, fields })
    })
    .collect()
});

impl Message {
    fn fields(&self) -> &HashMap<u64, Field> {
        self.fields
            .get_or_init(|| self.row.split(';').filter_map(field).collect())
    }
}

fn field(row: &'static str) -> Option<(u64, Field)> {
    let mut parts = row.splitn(3, ':');
    let (number, name, kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let (holds, kind) = match (kind.strip_prefix("[]"), kind.strip_prefix("{}")) {
        (Some(kind), _) => (Holds::List, kind),
        (_, Some(kind)) => (Holds::Map, kind),
        _ => (Holds::One, kind),
    };
    Some((number, Field { name, holds, kind }))
}

/// Reads a body.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or_else(|| {
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]".to_owned()
    })?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    each(envelope, |number, part| {
        match (number, part) {
            (1, Part::Bytes(meta)) => each(meta, |number, part| {
                match (number, part) {
                    (1, Part::Bytes(text)) => api_version = utf8(text)?,
                    (2, Part::Bytes(text)) => kind = utf8(text)?,
                    _ => {}
                }
                Ok(())
            })?,
            (2, Part::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
        Ok(())
    })?;
    let name = definition(&api_version, &kind);
    if !TABLE.contains_key(name.as_str()) {
        return Err(format!(
            "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\""
        ));
    }
    let Value::Object(mut object) = message(&name, raw, DEPTH)? else {
        return Err(format!("a {kind} is not an object"));
    };
    object.insert("apiVersion".to_owned(), Value::from(api_version));
    object.insert("kind".to_owned(), Value::from(kind));
    // Maps and JSON within messages are nested more deeply than the messages.
    crate::json::not_too_deep(Value::Object(object))
}

/// The definition of a kind.
fn definition(api_version: &str, kind: &str) -> String {
    if kind == "DeleteOptions" {
        return format!("{META}{kind}");
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    match group {
        "apiextensions.k8s.io" => {
            format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}")
        }
        "apiregistration.k8s.io" => {
            format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{version}.{kind}")
        }
        _ => {
            let short = group.split('.').next().unwrap_or_default();
            format!("io.k8s.api.{short}.{version}.{kind}")
        }
    }
}

/// A value on the wire.
#[derive(Clone, Copy)]
enum Part<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

/// Calls `see` for each field of a message.
fn each<'a>(
    mut bytes: &'a [u8],
    mut see: impl FnMut(u64, Part<'a>) -> Result<(), String>,
) -> Result<(), String> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let part = match tag & 7 {
            0 => Part::Varint(varint(&mut bytes)?),
            1 => Part::Fixed(u64::from_le_bytes(fixed(&mut bytes)?)),
            5 => Part::Fixed(u64::from(u32::from_le_bytes(fixed(&mut bytes)?))),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).unwrap_or(usize::MAX);
                Part::Bytes(take(&mut bytes, length)?)
            }
            other => return Err(format!("proto: illegal wireType {other}")),
        };
        see(tag >> 3, part)?;
    }
    Ok(())
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], String> {
    let (taken, rest) = bytes
        .split_at_checked(length)
        .ok_or_else(|| "unexpected EOF".to_owned())?;
    *bytes = rest;
    Ok(taken)
}

fn fixed<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], String> {
    take(bytes, N)?
        .try_into()
        .map_err(|_| "unexpected EOF".to_owned())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = fixed::<1>(bytes)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("proto: integer overflow".to_owned())
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "string field contains invalid UTF-8".to_owned())
}

/// Reads a message of a definition.
fn message(name: &str, bytes: &[u8], depth: usize) -> Result<Value, String> {
    if depth == 0 {
        return Err("exceeded max depth".to_owned());
    }
    let short = name.rsplit('.').next().unwrap_or_default();
    match short {
        "Time" | "MicroTime" if name.starts_with(META) => return time(bytes, short == "MicroTime"),
        "Quantity" => return text_of(bytes, 1),
        "IntOrString" => return int_or_string(bytes),
        "RawExtension" | "FieldsV1" | "JSON" => return raw(bytes),
        _ => {}
    }
    let Some(known) = TABLE.get(name) else {
        return Err(format!("{name} has no protobuf form"));
    };
    let mut object = Map::new();
    each(bytes, |number, part| {
        let Some(field) = known.fields().get(&number) else {
            return Ok(());
        };
        put(&mut object, field, part, depth - 1)
    })?;
    Ok(unwrapped(short, object))
}

/// Fields of schemas that Go writes even if they are empty, because they are no pointers.
///
/// Decoding drops the zero values of all other kinds by their schema. A schema within `items`, `additionalProperties`
/// and the like is of any type there, so it has to be dropped here.
const WRITTEN_IF_EMPTY: [&str; 17] = [
    "$schema",
    "description",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "fieldPath",
    "format",
    "id",
    "message",
    "messageExpression",
    "nullable",
    "pattern",
    "rule",
    "title",
    "type",
    "uniqueItems",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];

/// Go types that are no structs have a message around them.
fn unwrapped(short: &str, mut object: Map<String, Value>) -> Value {
    if matches!(short, "JSONSchemaProps" | "ValidationRule") {
        let is_zero = |value: &Value| *value == "" || *value == false;
        object.retain(|name, value| !(WRITTEN_IF_EMPTY.contains(&name.as_str()) && is_zero(value)));
    }
    let alternatives: &[&str] = match short {
        "ExtraValue" | "Verbs" => &["items"],
        "JSONSchemaPropsOrArray" => &["schema", "jSONSchemas"],
        "JSONSchemaPropsOrStringArray" => &["schema", "property"],
        "JSONSchemaPropsOrBool" => &["schema", "allows"],
        _ => return Value::Object(object),
    };
    alternatives
        .iter()
        .find_map(|name| object.remove(*name))
        .unwrap_or_default()
}

fn put(object: &mut Map<String, Value>, field: &Field, part: Part<'_>, depth: usize) -> Result<(), String> {
    match (field.holds, part) {
        (Holds::One, part) => {
            let value = value(field.kind, part, depth)?;
            match value {
                Value::Object(inner) if field.name.is_empty() => object.extend(inner),
                value => {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
        (Holds::List, part) => {
            let value = value(field.kind, part, depth)?;
            if let Value::Array(items) = object
                .entry(field.name)
                .or_insert_with(|| Value::Array(Vec::new()))
            {
                items.push(value);
            }
        }
        (Holds::Map, Part::Bytes(entry)) => {
            let (mut key, mut found) = (String::new(), None);
            each(entry, |number, part| {
                match (number, part) {
                    (1, Part::Bytes(text)) => key = utf8(text)?,
                    (2, part) => found = Some(value(field.kind, part, depth)?),
                    _ => {}
                }
                Ok(())
            })?;
            let empty = || value(field.kind, Part::Bytes(&[]), depth);
            let found = found.map_or_else(empty, Ok)?;
            if let Value::Object(entries) = object
                .entry(field.name)
                .or_insert_with(|| Value::Object(Map::new()))
            {
                entries.insert(key, found);
            }
        }
        (Holds::Map, _) => return Err(format!("proto: wrong wireType for field {}", field.name)),
    }
    Ok(())
}

fn value(kind: &str, part: Part<'_>, depth: usize) -> Result<Value, String> {
    Ok(match (kind, part) {
        ("string", Part::Bytes(text)) => Value::from(utf8(text)?),
        ("bytes", Part::Bytes(bytes)) => Value::from(base64::engine::general_purpose::STANDARD.encode(bytes)),
        ("bool", Part::Varint(number)) => Value::from(number != 0),
        ("int32" | "int64" | "uint32", Part::Varint(number)) => Value::from(number.cast_signed()),
        ("uint64", Part::Varint(number)) => Value::from(number),
        ("double", Part::Fixed(bits)) => Value::from(f64::from_bits(bits)),
        (name, Part::Bytes(bytes)) if name.contains('.') => message(name, bytes, depth)?,
        _ => return Err(format!("proto: wrong wireType for a {kind}")),
    })
}

fn time(bytes: &[u8], micro: bool) -> Result<Value, String> {
    let (mut seconds, mut nanos) = (0_i64, 0_i32);
    each(bytes, |number, part| {
        if let Part::Varint(value) = part {
            match number {
                1 => seconds = value.cast_signed(),
                2 => nanos = i32::try_from(value.cast_signed()).unwrap_or_default(),
                _ => {}
            }
        }
        Ok(())
    })?;
    if seconds == 0 && nanos == 0 {
        return Ok(Value::Null);
    }
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|error| error.to_string())?;
    let format = if micro {
        "%Y-%m-%dT%H:%M:%S.%6fZ"
    } else {
        "%Y-%m-%dT%H:%M:%SZ"
    };
    Ok(Value::from(time.strftime(format).to_string()))
}

fn text_of(bytes: &[u8], wanted: u64) -> Result<Value, String> {
    let mut text = Value::from("");
    each(bytes, |number, part| {
        if let (true, Part::Bytes(bytes)) = (number == wanted, part) {
            text = Value::from(utf8(bytes)?);
        }
        Ok(())
    })?;
    Ok(text)
}

fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    each(bytes, |field, part| {
        match (field, part) {
            (1, Part::Varint(kind)) => is_text = kind == 1,
            (2, Part::Varint(value)) => number = value.cast_signed(),
            (3, Part::Bytes(bytes)) => text = utf8(bytes)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(if is_text {
        Value::from(text)
    } else {
        Value::from(number)
    })
}

/// JSON within protobuf.
fn raw(bytes: &[u8]) -> Result<Value, String> {
    let mut json = &[][..];
    each(bytes, |number, part| {
        if let (1, Part::Bytes(bytes)) = (number, part) {
            json = bytes;
        }
        Ok(())
    })?;
    if json.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, length], content].concat()
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &meta), bytes(2, raw)].concat()
    }

    #[test]
    fn guarantee_1_a_message_is_read_as_its_json() {
        let metadata = bytes(1, &bytes(1, b"a"));
        let entry = bytes(2, &[bytes(1, b"k"), bytes(2, b"v")].concat());
        let read = parse(&body("v1", "ConfigMap", &[metadata, entry].concat())).unwrap();
        let expected =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
        assert_eq!(read, expected);
    }

    #[test]
    fn embedded_messages_and_special_types_are_read() {
        let port = [&[8, 0][..], &[16, 80]].concat();
        let get = bytes(2, &[bytes(1, b"/"), bytes(2, &port)].concat());
        let probe = bytes(1, &get);
        assert_eq!(
            message("io.k8s.api.core.v1.Probe", &probe, DEPTH).unwrap(),
            json!({"httpGet": {"path": "/", "port": 80}})
        );
    }

    #[test]
    fn guarantee_2_every_row_is_understood_and_garbage_is_refused() {
        for (name, message) in TABLE.iter() {
            for field in message.fields().values() {
                let scalar = !field.kind.contains('.');
                assert!(scalar || TABLE.contains_key(field.kind), "{name}: {}", field.kind);
            }
        }
        assert!(parse(b"{}").is_err());
        assert!(parse(&body("v1", "Nothing", b"")).is_err());
        assert!(parse(&body("v1", "ConfigMap", &[0x0a, 0xff])).is_err());
        assert!(parse(&body("v1", "ConfigMap", &[0xff; 20])).is_err());
    }
}
