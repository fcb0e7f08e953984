// SPDX-License-Identifier: Apache-2.0
//! `Warning` headers, with the limits of the real server.
//!
//! # Guarantees
//! 1. A repeated warning is sent once.
//! 2. If all warnings together exceed 4096 characters, each is cut to 256 characters. No more warnings are sent once
//!    the cut ones reach 4096 characters.

use std::collections::HashSet;

use http::HeaderValue;

/// Total number of characters above which warnings are cut.
const TOTAL: usize = 4 * 1024;
/// Number of characters of a cut warning.
const EACH: usize = 256;

/// Returns the values of the `Warning` headers.
pub(crate) fn headers(warnings: &[String]) -> Vec<HeaderValue> {
    let mut seen = HashSet::new();
    let texts: Vec<&str> = warnings
        .iter()
        .map(String::as_str)
        .filter(|text| !text.is_empty() && seen.insert(*text))
        .collect();
    let written: usize = texts.iter().map(|text| text.chars().count()).sum();
    if written <= TOTAL {
        return texts.into_iter().filter_map(header).collect();
    }
    let mut written = 0;
    let mut headers = Vec::new();
    for text in texts {
        if written >= TOTAL {
            break;
        }
        let end = text.char_indices().nth(EACH).map_or(text.len(), |(at, _)| at);
        if let Some(header) = header(&text[..end]) {
            written += text[..end].chars().count();
            headers.push(header);
        }
    }
    headers
}

fn header(text: &str) -> Option<HeaderValue> {
    if text.contains(char::is_control) {
        return None;
    }
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_bytes(format!("299 - \"{escaped}\"").as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(warnings: &[String]) -> Vec<String> {
        let text = |value: &HeaderValue| String::from_utf8(value.as_bytes().to_vec()).unwrap();
        headers(warnings).iter().map(text).collect()
    }

    #[test]
    fn guarantee_1_a_repeated_warning_is_sent_once_and_quotes_are_escaped() {
        let warnings = [
            "a \"b\"".to_owned(),
            "ü".to_owned(),
            "ü".to_owned(),
            "a\nb".to_owned(),
        ];
        assert_eq!(texts(&warnings), ["299 - \"a \\\"b\\\"\"", "299 - \"ü\""]);
    }

    #[test]
    fn guarantee_2_many_and_long_warnings_are_cut() {
        let few: Vec<String> = (0..4)
            .map(|number| format!("{number}{}", "x".repeat(1000)))
            .collect();
        assert!(texts(&few).iter().all(|text| text.len() > 1000));
        let many: Vec<String> = (0..1000)
            .map(|number| format!("{number:04}{}", "é".repeat(996)))
            .collect();
        let cut = texts(&many);
        assert_eq!(cut.len(), 16);
        assert!(
            cut.iter()
                .all(|text| text.chars().count() == 256 + "299 - \"\"".len())
        );
    }
}
