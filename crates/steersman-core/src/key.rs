// SPDX-License-Identifier: Apache-2.0
//! Namespace and name of an object.

use std::{
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::Arc,
};

/// Namespace and name of an object. A cluster-scoped object has an empty namespace.
///
/// Queues and stores use it instead of the object, which would be stale by the time it is used. Cloning copies a
/// pointer.
///
/// ```
/// use steersman_core::ObjectKey;
///
/// let key: ObjectKey = "web/front".parse()?;
/// assert_eq!((key.namespace(), key.name()), ("web", "front"));
/// assert_eq!(ObjectKey::new("", "node-1").to_string(), "node-1");
/// # Ok::<(), steersman_core::InvalidKey>(())
/// ```
#[derive(Clone)]
pub struct ObjectKey {
    /// `namespace/name`, or only the name.
    text: Arc<str>,
    /// Start of the name.
    name: u32,
}

/// The text is not a valid key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKey(String);

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid key `{}`; write `name` or `namespace/name`", self.0)
    }
}

impl std::error::Error for InvalidKey {}

impl ObjectKey {
    /// Creates a key; the namespace is empty for a cluster-scoped object.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        if namespace.is_empty() {
            return Self {
                text: name.into(),
                name: 0,
            };
        }
        let mut text = String::with_capacity(namespace.len() + 1 + name.len());
        text.push_str(namespace);
        text.push('/');
        text.push_str(name);
        // No part of a key is close to 4 GiB. If one were, the whole text would count as the name.
        Self {
            name: u32::try_from(namespace.len() + 1).unwrap_or_default(),
            text: text.into(),
        }
    }

    /// Returns the namespace, empty for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.text[..(self.name as usize).saturating_sub(1)]
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.text[self.name as usize..]
    }
}

impl PartialEq for ObjectKey {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.text == other.text
    }
}

impl Eq for ObjectKey {}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.namespace(), self.name()).cmp(&(other.namespace(), other.name()))
    }
}

impl Hash for ObjectKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

impl FromStr for ObjectKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let (namespace, name) = text.split_once('/').unwrap_or(("", text));
        let is_bad = name.is_empty() || name.contains('/') || (namespace.is_empty() && text.contains('/'));
        if is_bad {
            Err(InvalidKey(text.to_owned()))
        } else {
            Ok(Self::new(namespace, name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // R163
    #[test]
    fn rejects_text_that_is_not_a_key() {
        for text in ["", "/", "/a", "a/", "a/b/c"] {
            assert!(text.parse::<ObjectKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_keeps_namespace_and_name() {
        let key = ObjectKey::new("ns", "name");
        assert_eq!(key, "ns/name".parse().unwrap());
        assert_ne!(key, ObjectKey::new("", "ns"));
        assert!(ObjectKey::new("a", "z") < ObjectKey::new("b", "a"));
    }
}
