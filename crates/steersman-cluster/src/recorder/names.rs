// SPDX-License-Identifier: Apache-2.0
//! Valid names for events and components.

use super::cut;

/// Maximum length of an object name.
const NAME_MAX: usize = 253;
const PART_MAX: usize = 63;
/// Replaces a name that is not valid.
const INSTEAD: &str = "steersman";

/// Returns the name of an event: the name of its object, if valid, with a unique suffix. The server requires a DNS
/// subdomain, and objects of some kinds have other names, such as `system:node`.
pub(super) fn of_event(about: &str, unique: u64) -> String {
    let unique = format!("{unique:016x}");
    let base = cut(about, NAME_MAX - unique.len() - 1).trim_end_matches(['-', '.']);
    let base = if is_subdomain(base) { base } else { INSTEAD };
    format!("{base}.{unique}")
}

/// Returns a valid component, which is a qualified name such as `example.com/web`: characters that are not allowed are
/// replaced, and a name that is too long is cut.
pub(super) fn of_component(name: &str) -> String {
    match name.split_once('/') {
        Some((prefix, part)) if is_subdomain(prefix) => format!("{prefix}/{}", of_part(part)),
        _ => of_part(name),
    }
}

fn of_part(name: &str) -> String {
    let is_taken = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.chars().map(|c| if is_taken(c) { c } else { '-' }).collect();
    let is_edge = |c: char| !c.is_ascii_alphanumeric();
    match cut(name.trim_start_matches(is_edge), PART_MAX).trim_end_matches(is_edge) {
        "" => INSTEAD.to_owned(),
        part => part.to_owned(),
    }
}

fn is_subdomain(name: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= NAME_MAX
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.first().is_some_and(|b| is_inner(*b))
                && bytes.last().is_some_and(|b| is_inner(*b))
                && bytes.iter().all(|b| is_inner(*b) || *b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantee_7_event_names_start_with_a_valid_object_name() {
        let long = "a".repeat(300);
        let cut_at_a_hyphen = format!("{}-{}", "a".repeat(235), "b".repeat(17));
        let cut_at_dots = format!("{}..b", "a".repeat(234));
        for (about, expected) in [
            ("web", "web"),
            ("web.example.com", "web.example.com"),
            ("system:node", "steersman"),
            ("Upper", "steersman"),
            ("", "steersman"),
            ("é", "steersman"),
            (&long, &long[..236]),
            (&cut_at_a_hyphen, &long[..235]),
            (&cut_at_dots, &long[..234]),
        ] {
            let name = of_event(about, 7);
            assert_eq!(name, format!("{expected}.0000000000000007"), "{about}");
            assert!(is_subdomain(&name), "{name}");
        }
    }

    #[test]
    fn guarantee_7_converts_a_component_to_a_qualified_name() {
        let long = "x".repeat(100);
        for (name, expected) in [
            ("web", "web"),
            ("Web_2.x", "Web_2.x"),
            ("example.com/web", "example.com/web"),
            ("my controller", "my-controller"),
            ("Example/web", "Example-web"),
            ("example.com/", "example.com/steersman"),
            ("a/b/c", "a/b-c"),
            ("-web-", "web"),
            ("", "steersman"),
            ("é", "steersman"),
            (&long, &long[..63]),
        ] {
            assert_eq!(of_component(name), expected, "{name}");
        }
    }
}
