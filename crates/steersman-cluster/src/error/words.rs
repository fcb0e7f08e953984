// SPDX-License-Identifier: Apache-2.0
//! Removes values of objects from the messages of a server.
//!
//! A server's validation message has the field, its value and the problem: `spec.key: Invalid value: "hunter2": should
//! match '^[a-z]+$'`. Errors are logged, and the value can be a secret.

use serde_json::Value;

/// Texts that precede a value. The last one is Go's message for an invalid time.
const MARKS: [&str; 5] = [
    "invalid value: ",
    "unsupported value: ",
    "duplicate value: ",
    "not found: ",
    "parsing time ",
];
const HIDDEN: &str = "(not shown)";
/// A shorter value is replaced only in quotes, because it can be a part of any word.
const SHORT: usize = 3;

/// Longer messages are cut: a proxy can return a whole HTML page.
const BYTES_MAX: usize = 1024;

/// Returns the message without values, at most 1 KiB. If the end of a value is unclear, the rest of the message is left
/// out.
pub(super) fn without_values(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    let mut values = Vec::new();
    let mut rest = message;
    while let Some(at) = behind_mark(rest) {
        shown += &scrubbed(&rest[..at], &values);
        shown += HIDDEN;
        rest = match value_length(&rest[at..]) {
            Some(length) => {
                let (value, behind) = rest[at..].split_at(length);
                collect(value, &mut values);
                behind
            }
            None => "",
        };
    }
    shown += &scrubbed(rest, &values);
    if shown.len() > BYTES_MAX {
        shown.truncate(shown.floor_char_boundary(BYTES_MAX));
        shown.push('…');
    }
    shown
}

/// Returns the position after the first mark.
fn behind_mark(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let found = MARKS
        .iter()
        .filter_map(|mark| Some(lower.find(mark)? + mark.len()));
    found.min()
}

/// Returns the length of the value at the start of a text, or `None` if its end is unclear.
fn value_length(text: &str) -> Option<usize> {
    let length = match text.chars().next()? {
        '"' => quoted_length(text)?,
        '{' | '[' => {
            let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
            values.next()?.ok()?;
            values.byte_offset()
        }
        _ => {
            let length = text.find([':', ',', ']']).unwrap_or(text.len());
            let word = &text[..length];
            let is_plain = matches!(word, "true" | "false" | "null") || word.parse::<f64>().is_ok();
            is_plain.then_some(length)?
        }
    };
    let behind = &text[length..];
    let is_end = behind.is_empty() || [": ", ", ", "]"].iter().any(|next| behind.starts_with(next));
    is_end.then_some(length)
}

fn quoted_length(text: &str) -> Option<usize> {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some(at + 1),
            '\\' => _ = characters.next(),
            _ => {}
        }
    }
    None
}

/// Collects the texts in a value, because the reason can repeat them.
fn collect(value: &str, values: &mut Vec<String>) {
    if let Some(raw) = value.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        values.push(raw.to_owned());
    }
    if let Ok(value) = serde_json::from_str(value) {
        collect_texts(value, values);
    }
}

fn collect_texts(value: Value, values: &mut Vec<String>) {
    match value {
        Value::String(text) => values.push(text),
        Value::Array(items) => items.into_iter().for_each(|item| collect_texts(item, values)),
        Value::Object(fields) => fields
            .into_iter()
            .for_each(|(_, value)| collect_texts(value, values)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn scrubbed(text: &str, values: &[String]) -> String {
    let mut text = text.to_owned();
    for value in values.iter().filter(|value| !value.is_empty()) {
        text = if value.len() < SHORT {
            text.replace(&format!("\"{value}\""), HIDDEN)
        } else {
            text.replace(value.as_str(), HIDDEN)
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omits_values_and_keeps_fields_and_reasons() {
        for (message, expected) in [
            (
                r#"Web "a" is invalid: spec.key: Invalid value: "hunter2": should match '^[a-z]+$'"#,
                r#"Web "a" is invalid: spec.key: Invalid value: (not shown): should match '^[a-z]+$'"#,
            ),
            (
                r#"[a: Unsupported value: "x": supported values: "y", "z", b[1]: Duplicate value: {"k":"a: b]"}]"#,
                r#"[a: Unsupported value: (not shown): supported values: "y", "z", b[1]: Duplicate value: (not shown)]"#,
            ),
            (
                "[a: Invalid value: -7: must be positive, b: Invalid value: null: is needed, c: Required value]",
                "[a: Invalid value: (not shown): must be positive, b: Invalid value: (not shown): is needed, c: Required value]",
            ),
            (
                r#"a: Invalid value: "say \"hunter2\": ok": b must be a date: "say \"hunter2\": ok""#,
                r#"a: Invalid value: (not shown): b must be a date: "(not shown)""#,
            ),
            (
                r#"a: Invalid value: {"password":"hunter2"}: hunter2 is too short"#,
                "a: Invalid value: (not shown): (not shown) is too short",
            ),
            ("a: Required value", "a: Required value"),
            (r#"configmaps "a" not found"#, r#"configmaps "a" not found"#),
        ] {
            assert_eq!(without_values(message), expected);
        }
    }

    // D33
    #[test]
    fn truncates_a_long_message() {
        let page = "<p>bad gateway</p>".repeat(500);
        let shown = without_values(&format!("a: Invalid value: \"hunter2\": {page}"));
        assert!(shown.starts_with("a: Invalid value: (not shown): <p>"));
        assert!(shown.len() < 1100, "{}", shown.len());
    }

    #[test]
    fn omits_the_rest_after_a_value_without_an_end() {
        for (message, expected) in [
            (
                r#"a: Invalid value: core.Pod{Name:"hunter2"}: is odd"#,
                "a: Invalid value: (not shown)",
            ),
            (
                r#"a: Invalid value: "hunter2: is odd"#,
                "a: Invalid value: (not shown)",
            ),
            (
                r#"a: Invalid value: "x"hunter2: is odd"#,
                "a: Invalid value: (not shown)",
            ),
            (
                r#"a: has invalid value: hunter2"#,
                "a: has invalid value: (not shown)",
            ),
            (
                r#"parsing time "\"hunter2\"" as "2006": cannot parse "hunter2" as "2006""#,
                "parsing time (not shown)",
            ),
            ("a: Invalid value: ", "a: Invalid value: (not shown)"),
        ] {
            assert_eq!(without_values(message), expected);
        }
    }
}
