// SPDX-License-Identifier: Apache-2.0
//! Local evaluation of label and field selectors.
//!
//! kube has no parser for them. If we cannot parse a selector that a server accepts, we must not contradict the server: then
//! the result is `None`.

use crate::Object;

/// Returns whether the labels of an object match a selector such as `tier in (front,back),!old`.
pub(super) fn labels_match(selector: &str, object: &Object) -> Option<bool> {
    all(split(selector), |term| label_matches(term, object))
}

/// Returns whether an object matches a field selector such as `metadata.name=front`.
pub(super) fn fields_match(selector: &str, object: &Object) -> Option<bool> {
    all(split(selector), |term| {
        let (field, is_equal, value) = equality(term)?;
        let found = match field {
            "metadata.name" => object.name(),
            "metadata.namespace" => object.namespace(),
            _ => return None,
        };
        Some((found == value) == is_equal)
    })
}

fn label_matches(term: &str, object: &Object) -> Option<bool> {
    if let Some((key, is_equal, value)) = equality(term) {
        return Some((object.label(key).as_deref() == Some(value)) == is_equal);
    }
    let mut words = term.split_whitespace();
    let (first, operator) = (words.next()?, words.next());
    let is_key = |key: &str| !key.is_empty() && !key.contains(['(', ')', '<', '>', '!']);
    let Some(operator) = operator else {
        return match first.strip_prefix('!') {
            Some(key) if is_key(key) => Some(object.label(key).is_none()),
            None if is_key(first) => Some(object.label(first).is_some()),
            _ => None,
        };
    };
    let operator = operator.split('(').next()?;
    let values = term.split_once('(')?.1.strip_suffix(')')?;
    let label = object.label(first);
    let is_in = label
        .as_deref()
        .is_some_and(|label| values.split(',').any(|value| value.trim() == label));
    match operator {
        "in" => Some(is_in),
        "notin" => Some(!is_in),
        _ => None,
    }
}

/// Parses a term of the form `key=value`, `key==value` or `key!=value`.
fn equality(term: &str) -> Option<(&str, bool, &str)> {
    let (key, value) = term.split_once('=')?;
    let (key, is_equal) = match key.strip_suffix('!') {
        Some(key) => (key, false),
        None => (key, true),
    };
    let value = value.strip_prefix('=').unwrap_or(value);
    Some((key.trim(), is_equal, value.trim()))
}

/// Splits a selector at commas outside parentheses.
fn split(selector: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    selector
        .split(move |character| {
            match character {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            character == ',' && depth == 0
        })
        .map(str::trim)
        .filter(|term| !term.is_empty())
}

/// Returns whether all terms hold. One false term decides, even if others are unknown.
fn all<'a>(terms: impl Iterator<Item = &'a str>, holds: impl Fn(&'a str) -> Option<bool>) -> Option<bool> {
    let mut is_known = true;
    for term in terms {
        match holds(term) {
            Some(false) => return Some(false),
            Some(true) => {}
            None => is_known = false,
        }
    }
    is_known.then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        let json = br#"{"metadata":{"name":"a","namespace":"n","labels":{"tier":"front","empty":""}}}"#;
        Object::from_slice(json).unwrap()
    }

    #[test]
    fn label_selectors_match_as_the_server_does() {
        let object = object();
        for selector in [
            "",
            "tier=front",
            "tier == front , !old",
            "tier!=back,old!=x",
            "tier in (back, front),tier",
            "tier notin (back,side),old notin (x)",
            "empty=",
            "empty",
        ] {
            assert_eq!(labels_match(selector, &object), Some(true), "{selector}");
        }
        for selector in [
            "tier=back",
            "tier!=front",
            "!tier",
            "old",
            "tier in(back)",
            "tier notin (front)",
            "a=b,x>1",
        ] {
            assert_eq!(labels_match(selector, &object), Some(false), "{selector}");
        }
        for selector in ["x>1", "tier within (front)", "tier in front"] {
            assert_eq!(labels_match(selector, &object), None, "{selector}");
        }
    }

    #[test]
    fn supports_field_selectors_for_name_and_namespace() {
        let object = object();
        assert_eq!(
            fields_match("metadata.name=a,metadata.namespace==n", &object),
            Some(true)
        );
        assert_eq!(fields_match("metadata.name!=a,spec.x=1", &object), Some(false));
        assert_eq!(fields_match("spec.nodeName=x", &object), None);
    }
}
