// SPDX-License-Identifier: Apache-2.0
//! Resource versions and their comparison.

use std::{cmp::Ordering, fmt, sync::Arc};

/// A resource version.
///
/// Since Kubernetes 1.35, resource versions are decimal numbers that can be compared within one resource. Aggregated servers can
/// use any text, which can only be compared for equality.
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
    /// Creates a revision from its text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if a server issued it: neither empty nor `0`, which have a special meaning in requests.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !matches!(&*self.0, "" | "0")
    }

    /// Compares two revisions by age; `None` if they are not comparable.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        compare(&self.0, &other.0)
    }

    /// Returns true if this is `other`, or known to be newer.
    #[must_use]
    pub fn reached(&self, other: &Self) -> bool {
        self.compare(other).is_some_and(Ordering::is_ge)
    }
}

/// Same as [`Revision::compare`], for borrowed text.
pub(crate) fn compare(a: &str, b: &str) -> Option<Ordering> {
    if a == b {
        return Some(Ordering::Equal);
    }
    let is_number = |text: &str| {
        !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    // Numbers without leading zeros compare by length first; they can be longer than any integer type.
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
    fn only_numeric_revisions_compare() {
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
