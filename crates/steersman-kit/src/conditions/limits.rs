// SPDX-License-Identifier: Apache-2.0
//! Makes reasons and messages valid for metav1. An operator must not lose its status because a message was too long.

/// Length of a reason, in characters.
pub(super) const REASON_LENGTH_MAX: usize = 1024;
/// Length of a message, in characters.
pub(super) const MESSAGE_LENGTH_MAX: usize = 32768;
/// Pattern of metav1 for a reason.
pub(super) const REASON_PATTERN: &str = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";
/// Reason if nothing is left of the given one.
const UNSPECIFIED: &str = "Unspecified";

/// Returns `text` without the characters that a reason must not have. A letter after one of these becomes upper case: `not found`
/// is `notFound`.
pub(super) fn reason(text: &str) -> String {
    let mut reason = String::with_capacity(text.len().min(REASON_LENGTH_MAX));
    let mut starts_word = false;
    for letter in text.chars() {
        let is_allowed = letter.is_ascii_alphanumeric() || matches!(letter, '_' | ',' | ':');
        if !is_allowed || reason.is_empty() && !letter.is_ascii_alphabetic() {
            starts_word = !reason.is_empty();
            continue;
        }
        if reason.len() == REASON_LENGTH_MAX {
            break;
        }
        reason.push(if starts_word {
            letter.to_ascii_uppercase()
        } else {
            letter
        });
        starts_word = false;
    }
    reason.truncate(reason.trim_end_matches([',', ':']).len());
    if reason.is_empty() {
        UNSPECIFIED.to_owned()
    } else {
        reason
    }
}

/// Returns `text`, cut to the length of a message; `…` shows that it was cut.
pub(super) fn message(text: &str) -> String {
    match text.char_indices().nth(MESSAGE_LENGTH_MAX) {
        None => text.to_owned(),
        Some(_) => {
            let kept = text.chars().take(MESSAGE_LENGTH_MAX - 1);
            kept.chain(['…']).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn guarantee_6_valid_reasons_and_messages_stay_as_they_are() {
        for text in ["NotOwned", "a", "HTTP_503", "Http:NotFound,Retry"] {
            assert_eq!(reason(text), text);
        }
        assert_eq!(message("3 of 5 are ready"), "3 of 5 are ready");
        let longest = "ü".repeat(MESSAGE_LENGTH_MAX);
        assert_eq!(message(&longest), longest);
    }

    #[test]
    fn guarantee_6_invalid_characters_of_a_reason_are_left_out() {
        for (text, valid) in [
            ("not found", "notFound"),
            ("404 Not Found", "NotFound"),
            ("Failed:", "Failed"),
            ("a/b.c", "aBC"),
            ("", UNSPECIFIED),
            ("503", UNSPECIFIED),
            ("::", UNSPECIFIED),
        ] {
            assert_eq!(reason(text), valid, "{text}");
        }
    }

    #[test]
    fn guarantee_6_a_message_that_is_too_long_is_cut_and_shows_it() {
        let cut = message(&"ü".repeat(MESSAGE_LENGTH_MAX + 1));
        assert_eq!(cut.chars().count(), MESSAGE_LENGTH_MAX);
        assert!(cut.ends_with("ü…"));
    }

    proptest! {
        #[test]
        fn guarantee_6_every_reason_matches_the_pattern_of_metav1(text in "\\PC{0,40}", repeat in 1_usize..200) {
            let pattern = regex::Regex::new(REASON_PATTERN).unwrap();
            let valid = reason(&text.repeat(repeat));
            prop_assert!(pattern.is_match(&valid), "{valid}");
            prop_assert!(valid.len() <= REASON_LENGTH_MAX);
            prop_assert_eq!(&reason(&valid), &valid, "a valid reason stays as it is");
        }
    }
}
