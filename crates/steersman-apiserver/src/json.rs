// SPDX-License-Identifier: Apache-2.0
//! Reading JSON and YAML bodies, with the names of fields that are there twice.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads JSON; the paths of duplicate fields are added to `duplicates`.
///
/// # Errors
/// The text of Go's decoder, as near as can be.
pub(crate) fn parse(bytes: &[u8], duplicates: &mut Vec<String>) -> Result<Value, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let seed = Seed {
        path: String::new(),
        duplicates,
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

/// What Go says of a text that begins as `true`, `false` or `null` does and goes on otherwise.
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

/// Reads YAML, of which JSON is a part.
///
/// # Errors
/// What the parser says.
pub(crate) fn parse_yaml(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

struct Seed<'a> {
    path: String,
    duplicates: &'a mut Vec<String>,
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
        while let Some(item) = items.next_element_seed(Seed {
            path: format!("{}[{}]", self.path, out.len()),
            duplicates: self.duplicates,
        })? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = if self.path.is_empty() {
                name.clone()
            } else {
                format!("{}.{name}", self.path)
            };
            if out.contains_key(&name) && !self.duplicates.contains(&path) {
                self.duplicates.push(path.clone());
            }
            let value = fields.next_value_seed(Seed {
                path,
                duplicates: self.duplicates,
            })?;
            out.insert(name, value);
        }
        Ok(Value::Object(out))
    }
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
    fn deep_nesting_is_an_error_and_not_a_crash() {
        let deep = "[".repeat(100_000);
        assert!(parse(deep.as_bytes(), &mut Vec::new()).is_err());
    }
}
