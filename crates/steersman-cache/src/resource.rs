// SPDX-License-Identifier: Apache-2.0
//! The objects that an informer watches: a resource and a scope.

mod namespaces;
mod scope;
mod selector;
#[cfg(test)]
mod tests;

use std::{
    any::TypeId,
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use kube::{
    Resource as KubeResource,
    core::{ApiResource, ClusterResourceScope, NamespaceResourceScope},
};

pub(crate) use self::namespaces::Namespaces;
pub use self::scope::Scope;

/// A resource type of the API: group, version, kind and plural.
///
/// ```
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
/// use steersman_cache::Resource;
///
/// assert_eq!(Resource::of::<Deployment>().to_string(), "deployments.apps/v1");
/// assert_eq!(Resource::of::<Node>().to_string(), "nodes/v1");
/// ```
///
/// Two resources are equal if they have the same names, even if only one of them [knows](Self::is_namespaced) whether it is
/// namespaced. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Resource {
    names: Arc<Names>,
    namespaced: Option<bool>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Names {
    group: Name,
    version: Name,
    kind: Name,
    plural: Name,
}

/// Static for a Rust type, so that a typed call names its resource without a copy.
type Name = Cow<'static, str>;

impl Resource {
    /// Returns the resource of a type whose names are known at compile time.
    #[must_use]
    pub fn of<K: KubeResource<DynamicType = (), Scope: 'static>>() -> Self {
        let scope = TypeId::of::<K::Scope>();
        let namespaced = if scope == TypeId::of::<NamespaceResourceScope>() {
            Some(true)
        } else if scope == TypeId::of::<ClusterResourceScope>() {
            Some(false)
        } else {
            None
        };
        Self {
            namespaced,
            names: Arc::new(Names {
                group: K::group(&()),
                version: K::version(&()),
                kind: K::kind(&()),
                plural: K::plural(&()),
            }),
        }
    }

    /// Returns true if this is the resource of a type, so that its objects can be decoded as that type.
    ///
    /// ```
    /// use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
    /// use steersman_cache::Resource;
    ///
    /// let resource = Resource::new("apps", "v1", "Deployment", "deployments");
    /// assert!(resource.is_of::<Deployment>() && !resource.is_of::<Node>());
    /// ```
    #[must_use]
    pub fn is_of<K: KubeResource<DynamicType = (), Scope: 'static>>(&self) -> bool {
        *self == Self::of::<K>()
    }

    /// Creates a resource from its names. These do not show whether it is namespaced; see [`namespaced`](Self::namespaced).
    #[must_use]
    pub fn new(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        let names = Names {
            group: Cow::Owned(group.to_owned()),
            version: Cow::Owned(version.to_owned()),
            kind: Cow::Owned(kind.to_owned()),
            plural: Cow::Owned(plural.to_owned()),
        };
        Self {
            names: Arc::new(names),
            namespaced: None,
        }
    }

    /// Sets whether the resource is namespaced.
    #[must_use]
    pub fn namespaced(self, namespaced: bool) -> Self {
        Self {
            namespaced: Some(namespaced),
            ..self
        }
    }

    /// Returns whether the resource is namespaced, if known: a type or discovery provides it.
    #[must_use]
    pub fn is_namespaced(&self) -> Option<bool> {
        self.namespaced
    }

    /// Returns the API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.names.group
    }

    /// Returns the version, such as `v1`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.names.version
    }

    /// Returns the kind, such as `Deployment`.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.names.kind
    }

    /// Returns the plural in paths, such as `deployments`.
    #[must_use]
    pub fn plural(&self) -> &str {
        &self.names.plural
    }

    /// Returns group and version as in an object's `apiVersion`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.names.group.is_empty() {
            self.names.version.to_string()
        } else {
            format!("{}/{}", self.names.group, self.names.version)
        }
    }

    /// Returns true if a list of this resource can have this `apiVersion` and `kind`. Either can be empty, if the list lacks it.
    ///
    /// ```
    /// use steersman_cache::Resource;
    ///
    /// let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
    /// assert!(maps.may_list_as("v1", "ConfigMapList") && maps.may_list_as("", ""));
    /// assert!(!maps.may_list_as("v1", "PodList") && !maps.may_list_as("v1", "Status"));
    /// ```
    #[must_use]
    pub fn may_list_as(&self, api_version: &str, kind: &str) -> bool {
        let is_usual = kind
            .strip_suffix("List")
            .is_some_and(|of| of.is_empty() || of == self.kind() || of == "PartialObjectMetadata");
        // A CRD can give its lists any kind. The group of a CRD contains a dot.
        let is_custom = || self.group().contains('.') && api_version == self.api_version();
        kind.is_empty() || is_usual || is_custom()
    }

    /// Returns the path of the collection in a namespace; an empty name means all namespaces.
    pub(crate) fn path(&self, namespace: &str) -> String {
        let root = if self.names.group.is_empty() {
            "/api"
        } else {
            "/apis"
        };
        let namespace = if namespace.is_empty() {
            String::new()
        } else {
            format!("/namespaces/{namespace}")
        };
        format!("{root}/{}{namespace}/{}", self.api_version(), self.names.plural)
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

impl Eq for Resource {}

impl PartialOrd for Resource {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Resource {
    fn cmp(&self, other: &Self) -> Ordering {
        self.names.cmp(&other.names)
    }
}

impl Hash for Resource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.names.hash(state);
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({self})")
    }
}

impl From<&ApiResource> for Resource {
    fn from(resource: &ApiResource) -> Self {
        Self::new(
            &resource.group,
            &resource.version,
            &resource.kind,
            &resource.plural,
        )
    }
}

impl From<&Resource> for ApiResource {
    fn from(resource: &Resource) -> Self {
        Self {
            group: resource.group().to_owned(),
            version: resource.version().to_owned(),
            api_version: resource.api_version(),
            kind: resource.kind().to_owned(),
            plural: resource.plural().to_owned(),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.names.group {
            "" => write!(f, "{}/{}", self.names.plural, self.names.version),
            group => write!(f, "{}.{group}/{}", self.names.plural, self.names.version),
        }
    }
}
