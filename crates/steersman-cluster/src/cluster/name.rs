// SPDX-License-Identifier: Apache-2.0
//! Names of clusters.

use std::{borrow::Borrow, fmt, sync::Arc};

/// Name by which a program distinguishes clusters. Cloning copies a pointer.
///
/// ```
/// use steersman_cluster::ClusterName;
///
/// assert_eq!(ClusterName::default().as_str(), "default");
/// assert!(ClusterName::from("a") < ClusterName::from("b"));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(Arc<str>);

impl ClusterName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ClusterName {
    /// Returns `default`, the name for a single cluster.
    fn default() -> Self {
        Self("default".into())
    }
}

impl From<&str> for ClusterName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for ClusterName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl Borrow<str> for ClusterName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
