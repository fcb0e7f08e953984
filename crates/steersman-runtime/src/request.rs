// SPDX-License-Identifier: Apache-2.0
//! What a reconciler is asked to look at.

use std::{fmt, hash::Hash};

use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;

/// What a controller needs of the keys in its queue.
///
/// [`Request`] is the usual one. Another is of use where one reconcile is about several objects: a pair, a tenant, or an
/// object that is mirrored in two clusters and has one key for both.
///
/// ```
/// use std::fmt;
/// use steersman_runtime::RequestKey;
///
/// #[derive(Clone, Debug, PartialEq, Eq, Hash)]
/// struct Tenant(String);
///
/// impl fmt::Display for Tenant {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         f.write_str(&self.0)
///     }
/// }
///
/// impl RequestKey for Tenant {}
/// ```
pub trait RequestKey: Clone + Eq + Hash + fmt::Display + fmt::Debug + Send + Sync + 'static {
    /// The cluster that the reconcile is about. Its client is the one in the context, and the key goes when the
    /// cluster goes. Default: none, which is the controller's own cluster.
    fn cluster(&self) -> Option<&ClusterName> {
        None
    }

    /// Keys of one namespace share a turn in the queue, so that a noisy one delays only itself. Default: all share one.
    fn namespace(&self) -> &str {
        ""
    }
}

/// An object in a cluster.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    cluster: ClusterName,
    key: ObjectKey,
}

impl Request {
    /// The object of this key in this cluster.
    #[must_use]
    pub fn new(cluster: ClusterName, key: ObjectKey) -> Self {
        Self { cluster, key }
    }

    /// Which cluster it is in.
    #[must_use]
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// Namespace and name.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The namespace, empty for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.key.namespace()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.name()
    }
}

impl RequestKey for Request {
    fn cluster(&self) -> Option<&ClusterName> {
        Some(&self.cluster)
    }

    fn namespace(&self) -> &str {
        self.key.namespace()
    }
}

impl RequestKey for ObjectKey {
    fn namespace(&self) -> &str {
        self.namespace()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.key, f)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.cluster, self.key)
    }
}
