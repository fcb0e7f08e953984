// SPDX-License-Identifier: Apache-2.0
//! Resource versions, and when one may be compared with another.

use std::{cmp::Ordering, fmt, sync::Arc};

/// A resource version.
///
/// Since Kubernetes 1.35 they are decimal numbers that may be compared within one resource; those of aggregated servers
/// may be anything, and can then only be equal or not.
///
/// ```
/// use steersman_cache::Revision;
///
/// assert!(Revision::new("10").reached(&Revision::new("9")));
/// assert!(!Revision::new("blue").reached(&Revision::new("9")));
/// assert!(Revision::new("blue").reached(&Revision::new("blue")));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Revision(Arc<str>);

impl Revision {
    /// The revision that is written like this.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a server gave it: neither empty nor `0`, which ask for something instead.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !matches!(&*self.0, "" | "0")
    }

    /// Which is newer, where that can be told.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        compare(&self.0, &other.0)
    }

    /// Whether this is `other`, or known to be newer.
    #[must_use]
    pub fn reached(&self, other: &Self) -> bool {
        self.compare(other).is_some_and(Ordering::is_ge)
    }
}

/// [`Revision::compare`] for revisions that are only looked at.
pub(crate) fn compare(a: &str, b: &str) -> Option<Ordering> {
    if a == b {
        return Some(Ordering::Equal);
    }
    let is_number = |text: &str| {
        !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    // Numbers without leading zeros compare by length first; they may be longer than any integer type.
    (is_number(a) && is_number(b)).then(|| a.len().cmp(&b.len()).then_with(|| a.cmp(b)))
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_by_value_and_nothing_else_does() {
        let compare = |a: &str, b: &str| Revision::new(a).compare(&Revision::new(b));
        assert_eq!(compare("9", "10"), Some(Ordering::Less));
        assert_eq!(compare("99999999999999999999999", "9"), Some(Ordering::Greater));
        assert_eq!(compare("7", "7"), Some(Ordering::Equal));
        assert_eq!(compare("a", "a"), Some(Ordering::Equal));
        for (a, b) in [("a", "b"), ("", "1"), ("0", "1"), ("01", "1"), ("1a", "1")] {
            assert_eq!(compare(a, b), None, "{a} {b}");
        }
    }
}
