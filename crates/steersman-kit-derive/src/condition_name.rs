// SPDX-License-Identifier: Apache-2.0
//! The names that metav1 allows for the type of a condition.

/// Limit of metav1 for the length of a condition type.
const LENGTH_MAX: usize = 316;

/// Returns why `name` cannot be the type of a condition; `None` if it can.
pub(crate) fn rejection(name: &str) -> Option<&'static str> {
    let (prefix, word) = match name.split_once('/') {
        Some((prefix, word)) => (Some(prefix), word),
        None => (None, name),
    };
    if name.len() > LENGTH_MAX {
        Some("a condition type has at most 316 characters")
    } else if !is_bounded_by_alphanumerics(word) || !word.chars().all(is_word_character) {
        Some(
            "a condition type begins and ends with a letter or digit, with letters, digits, `-`, `_` and `.` between: \
             write a name such as `Available` or `example.com/Available`",
        )
    } else if prefix.is_some_and(|prefix| !prefix.split('.').all(is_dns_label)) {
        Some("the prefix of a condition type is a DNS name in lower case, as in `example.com/Available`")
    } else {
        None
    }
}

fn is_word_character(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

fn is_bounded_by_alphanumerics(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric())
}

fn is_dns_label(label: &str) -> bool {
    let is_allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    is_bounded_by_alphanumerics(label) && label.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_metav1_allows_are_accepted() {
        for name in ["Ready", "A", "9", "TLS-1.3_ok", "example.com/Ready", "a-b.c/X"] {
            assert_eq!(rejection(name), None, "{name}");
        }
    }

    #[test]
    fn names_that_the_server_would_reject_are_rejected() {
        let long = "a".repeat(LENGTH_MAX + 1);
        for name in [
            "",
            "-Ready",
            "Ready-",
            "a b",
            "Größe",
            "/Ready",
            "Example.com/Ready",
            "a/b/c",
            "a..b/X",
            &long,
        ] {
            assert!(rejection(name).is_some(), "{name}");
        }
    }
}
