// SPDX-License-Identifier: Apache-2.0
//! Queries for resources, and their answers.

use std::{fmt, sync::Arc};

use steersman_cache::Resource;

use crate::Kind;

/// Query for a kind or a resource of a group, in a given version or in the version that the server prefers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct ResourceQuery {
    pub(super) group: String,
    pub(super) version: Option<String>,
    pub(super) name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Name {
    Kind(String),
    Plural(String),
}

/// A resource that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub(super) resource: Resource,
    pub(super) namespaced: bool,
    pub(super) verbs: Vec<String>,
    pub(super) subresources: Vec<String>,
}

/// The mapper has no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The server does not have the resource.
    #[error("the server does not have {ask}")]
    NoMatch {
        /// The query.
        ask: ResourceQuery,
    },
    /// Discovery currently has no information about this group.
    #[error("cannot determine whether the server has {ask}: discovery has no information about that group")]
    Undecided {
        /// The query.
        ask: ResourceQuery,
    },
    /// The discovery request failed.
    #[error("cannot determine whether the server has {ask}")]
    Discovery {
        /// The query.
        ask: ResourceQuery,
        /// Cause.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl ResourceQuery {
    /// Queries a kind such as `Deployment` of a group such as `apps`. The core group is empty.
    pub fn kind(group: &str, kind: &str) -> Self {
        Self::new(group, Name::Kind(kind.to_owned()))
    }

    /// Queries a resource by its plural name, such as `deployments`.
    pub fn plural(group: &str, plural: &str) -> Self {
        Self::new(group, Name::Plural(plural.to_owned()))
    }

    /// Queries the kind of a Rust type, in its version.
    pub fn of<K: Kind>() -> Self {
        Self::kind(&K::group(&()), &K::kind(&())).version(&K::version(&()))
    }

    /// Sets the version. Default: the version that the server prefers.
    pub fn version(mut self, version: &str) -> Self {
        self.version = Some(version.to_owned());
        self
    }

    fn new(group: &str, name: Name) -> Self {
        Self {
            group: group.to_owned(),
            version: None,
            name,
        }
    }
}

impl ResourceQuery {
    pub(super) fn missing(&self, is_stale: bool) -> MapError {
        let ask = self.clone();
        if is_stale {
            MapError::Undecided { ask }
        } else {
            MapError::NoMatch { ask }
        }
    }
}

impl Mapping {
    /// Returns the names of the resource.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Reports whether the resource is namespaced.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.namespaced
    }

    /// Returns the verbs of the resource, such as `watch`.
    #[must_use]
    pub fn verbs(&self) -> &[String] {
        &self.verbs
    }

    /// Returns the subresources, such as `status`.
    #[must_use]
    pub fn subresources(&self) -> &[String] {
        &self.subresources
    }

    /// Reports whether the resource has this subresource.
    #[must_use]
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|subresource| subresource == name)
    }
}

impl fmt::Display for ResourceQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Name::Kind(name) | Name::Plural(name)) = &self.name;
        f.write_str(name)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        match &self.version {
            Some(version) => write!(f, "/{version}"),
            None => Ok(()),
        }
    }
}
