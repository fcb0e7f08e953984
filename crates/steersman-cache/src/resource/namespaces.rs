// SPDX-License-Identifier: Apache-2.0
//! The namespaces of a scope.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    hash::{Hash, Hasher},
};

/// A set of namespaces, or all of them. Default: all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespaces {
    /// Empty for all namespaces.
    named: BTreeSet<String>,
    /// True if all namespaces were requested explicitly, so that a further name does not restrict them.
    all: bool,
}

impl Namespaces {
    /// Adds a namespace; an empty name adds all. White space around the name is ignored.
    pub(super) fn add(&mut self, name: &str) {
        let name = name.trim();
        self.all |= name.is_empty();
        if self.all {
            self.named.clear();
        } else {
            self.named.insert(name.to_owned());
        }
    }

    /// Returns the names; empty for all namespaces.
    pub(super) fn named(&self) -> &BTreeSet<String> {
        &self.named
    }

    /// Returns true if it contains this namespace. An empty name means all of its namespaces.
    pub(super) fn cover(&self, namespace: &str) -> bool {
        namespace.is_empty() || self.named.is_empty() || self.named.contains(namespace)
    }

    /// Returns true if the name is a DNS label, as namespaces require, or empty, which means all.
    pub(crate) fn is_valid(name: &str) -> bool {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        name.len() <= 63 && name.bytes().all(is_inner) && !name.starts_with('-') && !name.ends_with('-')
    }
}

impl<'a> FromIterator<&'a str> for Namespaces {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        let mut namespaces = Self::default();
        names.into_iter().for_each(|name| namespaces.add(name));
        namespaces
    }
}

// All namespaces are equal, whether or not they were requested explicitly.
impl PartialEq for Namespaces {
    fn eq(&self, other: &Self) -> bool {
        self.named == other.named
    }
}

impl Eq for Namespaces {}

impl PartialOrd for Namespaces {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Namespaces {
    fn cmp(&self, other: &Self) -> Ordering {
        self.named.cmp(&other.named)
    }
}

impl Hash for Namespaces {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.named.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &str) -> Vec<String> {
        let namespaces: Namespaces = names.split(',').collect();
        namespaces.named().iter().cloned().collect()
    }

    // D6
    #[test]
    fn names_are_trimmed_and_the_empty_one_means_all() {
        assert_eq!(named("a, b ,a"), ["a", "b"]);
        for all in ["", " ", "a,", ",a", "a,,b"] {
            assert!(named(all).is_empty(), "{all}");
        }
        assert_eq!(Namespaces::default(), [""].into_iter().collect());
    }

    // D6
    #[test]
    fn recognises_an_invalid_namespace() {
        for valid in ["a", "kube-system", "0", "", &"a".repeat(63)] {
            assert!(Namespaces::is_valid(valid), "{valid}");
        }
        for invalid in ["a b", "A", "a/b", "a_b", "-a", "a-", "ü", "a.b", &"a".repeat(64)] {
            assert!(!Namespaces::is_valid(invalid), "{invalid}");
        }
    }
}
