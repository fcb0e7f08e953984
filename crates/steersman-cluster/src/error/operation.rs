// SPDX-License-Identifier: Apache-2.0
//! An operation on a cluster, as errors name it.

use std::fmt;

use steersman_cache::Resource;
use steersman_core::ObjectKey;

/// An operation: a verb, a kind, and the objects that it acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    verb: &'static str,
    resource: Resource,
    namespace: Box<str>,
    name: Box<str>,
    subresource: Box<str>,
}

impl Operation {
    /// Describes an operation on one object.
    pub(crate) fn on(verb: &'static str, resource: &Resource, key: &ObjectKey) -> Self {
        Self {
            name: key.name().into(),
            ..Self::within(verb, resource, key.namespace())
        }
    }

    /// Describes an operation on the objects of a namespace, or of all namespaces if the name is empty.
    pub(crate) fn within(verb: &'static str, resource: &Resource, namespace: &str) -> Self {
        Self {
            verb,
            resource: resource.clone(),
            namespace: namespace.into(),
            name: "".into(),
            subresource: "".into(),
        }
    }

    pub(crate) fn subresource_of(mut self, subresource: &str) -> Self {
        self.subresource = subresource.into();
        self
    }

    pub(super) fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "wait for" | "watch")
    }

    /// Returns the verb, such as `update`.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        self.verb
    }

    /// Returns the resource.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Returns the namespace, empty for all namespaces and for a cluster-scoped kind.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name, empty for an operation on several objects or on one whose name the server generates.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the subresource, such as `status`, or an empty string.
    #[must_use]
    pub fn subresource(&self) -> &str {
        &self.subresource
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match (&*self.namespace, &*self.name) {
            ("", "") => {}
            ("", name) => write!(f, " {name}")?,
            (namespace, "") => write!(f, " in {namespace}")?,
            (namespace, name) => write!(f, " {namespace}/{name}")?,
        }
        if !self.subresource.is_empty() {
            write!(f, " ({})", self.subresource)?;
        }
        Ok(())
    }
}
