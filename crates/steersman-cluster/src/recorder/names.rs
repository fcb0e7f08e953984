// SPDX-License-Identifier: Apache-2.0
//! Names that a server takes for events and for those who record them.

use super::cut;

/// The longest name that an object may have.
const NAME_MAX: usize = 253;
const PART_MAX: usize = 63;
/// What takes the place of a name that cannot be used.
const INSTEAD: &str = "steersman";

/// The name of an event: after what it is about, if that can be, with what makes it unique behind it. A server wants a DNS
/// subdomain, and there are kinds whose objects may have other names, such as `system:node`.
pub(super) fn of_event(about: &str, unique: u64) -> String {
    let unique = format!("{unique:016x}");
    let base = cut(about, NAME_MAX - unique.len() - 1).trim_end_matches(['-', '.']);
    let base = if is_subdomain(base) { base } else { INSTEAD };
    format!("{base}.{unique}")
}

/// A component as a server takes it, which is as a qualified name such as `example.com/web`: what may not be in it is
/// replaced, and what is too long is cut.
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
    fn guarantee_7_an_event_has_the_name_of_its_object_where_that_is_a_domain() {
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
    fn guarantee_7_a_component_is_made_a_qualified_name() {
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
