// SPDX-License-Identifier: Apache-2.0
//! Keys that a controller reconciles.

use std::{fmt, hash::Hash};

use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;

/// Requirements on the keys in the queue of a controller.
///
/// [`Request`] is the usual key. Use another one if a reconcile is about several objects: a pair, a tenant, or an object
/// that is mirrored in two clusters and has one key for both.
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
    /// Cluster of the reconcile. The context has its client, and removal of the cluster removes the key. Default: none,
    /// which means the controller's default cluster.
    fn cluster(&self) -> Option<&ClusterName> {
        None
    }

    /// Namespace for fairness: keys of one namespace share a turn in the queue, so that a noisy one delays only itself.
    /// Default: all keys share one.
    fn namespace(&self) -> &str {
        ""
    }
}

/// Key of an object in a cluster.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    cluster: ClusterName,
    key: ObjectKey,
}

impl Request {
    /// Creates the key of an object in a cluster.
    #[must_use]
    pub fn new(cluster: ClusterName, key: ObjectKey) -> Self {
        Self { cluster, key }
    }

    /// Cluster of the object.
    #[must_use]
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// Namespace and name of the object.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Namespace of the object; empty if it is cluster-scoped.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.key.namespace()
    }

    /// Name of the object.
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
