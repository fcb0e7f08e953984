// SPDX-License-Identifier: Apache-2.0
//! Logs each warning of the server once, such as deprecated API versions.

use std::collections::HashSet;

use steersman_core::Mutex;

use http::{HeaderMap, header};

/// Maximum number of remembered warnings. More different ones indicate that they contain object names; the rest is not
/// logged.
const REMEMBERED: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<HashSet<Box<str>>>);

impl Warnings {
    /// Logs the new warnings of an answer.
    pub(super) fn note(&self, headers: &HeaderMap) {
        for value in headers.get_all(header::WARNING) {
            let Ok(value) = value.to_str() else { continue };
            for text in texts(value) {
                if self.is_new(&text) {
                    tracing::warn!(warning = %text, "API server warning");
                }
            }
        }
    }

    fn is_new(&self, text: &str) -> bool {
        let mut known = self.0.lock();
        known.len() < REMEMBERED && !known.contains(text) && known.insert(text.into())
    }
}

/// Extracts the texts of a header of the form `299 agent "text"`, of which several can be separated by commas.
fn texts(header: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut rest = header;
    while let Some(start) = rest.find('"') {
        let code = rest[..start].trim_start_matches([',', ' ']);
        let is_warning = code.starts_with("299 ");
        let (mut text, mut end) = (String::new(), None);
        let mut characters = rest[start + 1..].char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    end = Some(start + 1 + at + 1);
                    break;
                }
                '\\' => text.extend(characters.next().map(|(_, escaped)| escaped)),
                other => text.push(other),
            }
        }
        // Ignores a text without a closing quote.
        let Some(end) = end else { break };
        if is_warning && !text.is_empty() {
            texts.push(text);
        }
        rest = &rest[end..];
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_a_header_are_found() {
        assert_eq!(
            texts(r#"299 - "v1beta1 is going away""#),
            ["v1beta1 is going away"]
        );
        assert_eq!(texts(r#"299 - "a \"b\", c", 299 - "d""#), [r#"a "b", c"#, "d"]);
        for odd in [
            "",
            "299 - ",
            r#"299 - "open"#,
            r#"199 - "other code""#,
            r#"299 - """#,
        ] {
            assert!(texts(odd).is_empty(), "{odd}");
        }
    }

    #[test]
    fn a_warning_is_new_once_and_only_so_many_are_remembered() {
        let warnings = Warnings::default();
        assert!(warnings.is_new("a"));
        assert!(!warnings.is_new("a"));
        let new = (0..2 * REMEMBERED).filter(|number| warnings.is_new(&number.to_string()));
        assert_eq!(new.count(), REMEMBERED - 1);
    }
}
