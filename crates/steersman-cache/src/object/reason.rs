// SPDX-License-Identifier: Apache-2.0
//! Decode errors without the content of the object.

use serde_json::error::Category;

/// Returns serde's message without the offending value, which can be a secret.
#[must_use]
pub fn without_content(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let of_serde = [
        "invalid type: ",
        "invalid value: ",
        "invalid length ",
        "unknown variant ",
        "unknown field ",
    ];
    let is_plain =
        matches!(error.classify(), Category::Syntax | Category::Eof) || text.starts_with("missing field ");
    match text.rfind(", expected ") {
        _ if is_plain => text,
        Some(at) if of_serde.iter().any(|start| text.starts_with(start)) => text[at + 2..].to_owned(),
        _ => format!(
            "no valid content at line {} column {}",
            error.line(),
            error.column()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    enum Size {
        #[serde(rename = "small")]
        _Small,
    }

    #[test]
    fn omits_the_value_that_was_found() {
        let error = serde_json::from_str::<Size>(r#""hunter2""#).unwrap_err();
        assert_eq!(without_content(&error), "expected `small` at line 1 column 9");
        let error = serde_json::from_str::<u8>(r#""hunter2, expected""#).unwrap_err();
        assert_eq!(without_content(&error), "expected u8 at line 1 column 19");
    }
}
