// SPDX-License-Identifier: Apache-2.0
//! Parses JSON and YAML bodies and reports duplicate fields.
//!
//! # Guarantees
//! 1. A parsed value is nested at most [`DEPTH`] levels, so that recursive code does not overflow the stack.
//! 2. At most [`COMPLAINTS`] duplicate fields are reported.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum nesting of bodies. The real server accepts a hundred times that. Here a stored object also contains its
/// managed fields, lists and events wrap it, and clients that parse with serde_json stop at 128.
pub(crate) const DEPTH: usize = 100;

/// Maximum number of reported unknown and duplicate fields, as on the real server.
pub(crate) const COMPLAINTS: usize = 100;

const TOO_DEEP: &str = "exceeded max depth";

/// Returns true if a value is nested deeper than `than`.
pub(crate) fn is_deeper(value: &Value, than: usize) -> bool {
    let inner = |value: &Value| than == 0 || is_deeper(value, than - 1);
    match value {
        Value::Array(items) => than == 0 || items.iter().any(inner),
        Value::Object(fields) => than == 0 || fields.values().any(inner),
        _ => false,
    }
}

/// Returns the value, or an error if it is nested too deep.
pub(crate) fn not_too_deep(value: Value) -> Result<Value, String> {
    if is_deeper(&value, DEPTH) {
        return Err(TOO_DEEP.to_owned());
    }
    Ok(value)
}

/// Parses JSON; appends the paths of duplicate fields to `duplicates`.
///
/// # Errors
/// Returns the message of Go's decoder, as closely as possible.
pub(crate) fn parse(bytes: &[u8], duplicates: &mut Vec<String>) -> Result<Value, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let seed = Seed {
        path: String::new(),
        duplicates,
        depth: DEPTH,
    };
    let parsed = seed
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| explain(bytes, &error))
}

fn explain(bytes: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    if error.is_data() {
        return TOO_DEEP.to_owned();
    }
    if let Some(text) = wrong_literal(bytes) {
        return text;
    }
    let before: usize = bytes
        .split(|b| *b == b'\n')
        .take(error.line().saturating_sub(1))
        .map(|line| line.len() + 1)
        .sum();
    match bytes.get(before + error.column().saturating_sub(1)) {
        Some(byte) => format!(
            "invalid character '{}' looking for beginning of value",
            char::from(*byte).escape_default()
        ),
        None => error.to_string(),
    }
}

/// Returns Go's error for a misspelt `true`, `false` or `null`.
fn wrong_literal(bytes: &[u8]) -> Option<String> {
    let text = bytes.trim_ascii_start();
    let literal = ["true", "false", "null"]
        .into_iter()
        .find(|literal| text.first() == literal.as_bytes().first())?;
    let (found, expected) = text
        .iter()
        .zip(literal.bytes())
        .find(|(found, expected)| *found != expected)?;
    let (found, expected) = (char::from(*found).escape_default(), char::from(expected));
    Some(format!(
        "invalid character '{found}' in literal {literal} (expecting '{expected}')"
    ))
}

/// Parses YAML, a superset of JSON.
///
/// # Errors
/// Returns the message of the parser.
pub(crate) fn parse_yaml(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    not_too_deep(value)
}

struct Seed<'a> {
    path: String,
    duplicates: &'a mut Vec<String>,
    /// Remaining depth.
    depth: usize,
}

impl Seed<'_> {
    /// Returns the remaining depth of a nested value.
    fn inside<E: Error>(&self) -> Result<usize, E> {
        self.depth.checked_sub(1).ok_or_else(|| E::custom(TOO_DEEP))
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        let depth = self.inside()?;
        while let Some(item) = items.next_element_seed(Seed {
            path: format!("{}[{}]", self.path, out.len()),
            duplicates: self.duplicates,
            depth,
        })? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        let depth = self.inside()?;
        while let Some(name) = fields.next_key::<String>()? {
            let path = if self.path.is_empty() {
                name.clone()
            } else {
                format!("{}.{name}", self.path)
            };
            if out.contains_key(&name)
                && self.duplicates.len() < COMPLAINTS
                && !self.duplicates.contains(&path)
            {
                self.duplicates.push(path.clone());
            }
            let value = fields.next_value_seed(Seed {
                path,
                duplicates: self.duplicates,
                depth,
            })?;
            out.insert(name, value);
        }
        Ok(Value::Object(out))
    }
}

/// Escapes JSON text as Go does, so that it can stand in HTML.
pub(crate) fn escape_html(json: &str) -> String {
    json.replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_fields_are_named_and_the_last_one_counts() {
        let mut duplicates = Vec::new();
        let value = parse(
            br#"{"data":{"a":"1","a":"2"},"list":[{"x":1,"x":1}]}"#,
            &mut duplicates,
        )
        .unwrap();
        assert_eq!(value["data"]["a"], "2");
        assert_eq!(duplicates, ["data.a", "list[0].x"]);
    }

    #[test]
    fn guarantee_1_deep_nesting_is_an_error_and_not_a_crash() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let read = |text: &str| parse(text.as_bytes(), &mut Vec::new());
        assert!(read(&nested(DEPTH)).is_ok());
        for deep in [nested(DEPTH + 1), nested(100_000), "[".repeat(100_000)] {
            assert_eq!(read(&deep), Err("exceeded max depth".to_owned()));
            assert!(parse_yaml(deep.as_bytes()).is_err());
        }
    }

    #[test]
    fn guarantee_2_not_all_of_many_duplicates_are_named() {
        let fields: Vec<String> = (0..1000).map(|number| format!("\"{number}\":0")).collect();
        let body = format!("{{{0},{0}}}", fields.join(","));
        let mut duplicates = Vec::new();
        parse(body.as_bytes(), &mut duplicates).unwrap();
        assert_eq!(duplicates.len(), COMPLAINTS);
    }
}
