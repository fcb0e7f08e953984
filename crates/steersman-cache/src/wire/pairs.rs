// SPDX-License-Identifier: Apache-2.0
//! The pairs of a JSON object whose values are strings: labels and annotations.

use std::borrow::Cow;

use super::skip::{skip_space, skip_value};

/// Iterates over labels or annotations in the order in which they are written. Skips values that are no strings.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    rest: &'a [u8],
}

impl<'a> Pairs<'a> {
    /// Iterates over the object `json`, braces included. Empty input has no pairs.
    pub(crate) fn new(json: &'a [u8]) -> Self {
        Self {
            rest: json.get(1..).unwrap_or_default(),
        }
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        let start = skip_space(self.rest, 0);
        let end = skip_value(self.rest, start).ok()?;
        let value = &self.rest[start..end];
        // A colon, a comma or the closing brace follows.
        let next = skip_space(self.rest, end);
        self.rest = self.rest.get(next + 1..).unwrap_or_default();
        Some(value)
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (Cow<'a, str>, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (key, value) = (self.value()?, self.value()?);
            if let (Some(key), Some(value)) = (text(key), text(value)) {
                return Some((key, value));
            }
        }
    }
}

/// Returns the content of a JSON string; borrowed if it has no escapes.
fn text(json: &[u8]) -> Option<Cow<'_, str>> {
    let content = json.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', content).is_none() {
        return std::str::from_utf8(content).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice::<String>(json).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(json: &str) -> Vec<(String, String)> {
        Pairs::new(json.as_bytes())
            .map(|(key, value)| (key.into_owned(), value.into_owned()))
            .collect()
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn pairs_keep_their_order() {
        assert_eq!(
            pairs(r#"{ "b" : "1" , "a":"2\"\n" }"#),
            owned(&[("b", "1"), ("a", "2\"\n")])
        );
        assert_eq!(pairs("{}"), owned(&[]));
        assert_eq!(pairs(""), owned(&[]));
    }

    #[test]
    fn skips_values_that_are_not_text() {
        assert_eq!(pairs(r#"{"a":1,"b":{"c":"d"},"e":"f"}"#), owned(&[("e", "f")]));
        assert_eq!(pairs(r#"{"a":"b""#), owned(&[("a", "b")]));
        assert_eq!(pairs(r#"{"a":"#), owned(&[]));
    }
}
