// SPDX-License-Identifier: Apache-2.0
//! Permissions that a program needs.

use std::{collections::BTreeMap, fmt};

/// A permission that a program needs: verbs on a resource of the API, and who needs it. RBAC rules are computed from it, and
/// tests compare it with the requests that the program sends.
///
/// ```
/// use steersman_core::Permission;
///
/// let permission = Permission::new("", "pods/eviction", "controller `drain`").verbs(["create"]);
/// assert_eq!(permission.to_string(), "create pods/eviction, for controller `drain`");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "a permission is granted once it is declared"]
pub struct Permission {
    group: String,
    resource: String,
    name: Option<String>,
    place: PermissionPlace,
    /// True for verbs that every complete test of the program uses.
    verbs: BTreeMap<String, bool>,
    needed_by: String,
}

/// Namespaces in which a permission is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PermissionPlace {
    /// The namespaces that the program watches; all of them unless it is limited to some.
    #[default]
    Watched,
    /// The namespace in which the program runs.
    Own,
    /// The whole cluster: cluster-scoped resources.
    Cluster,
}

impl Permission {
    /// Begins a permission on a resource of an API group, such as `deployments` of `apps`, or on a subresource, such as
    /// `pods/eviction` of the core group, which is empty. `needed_by` is shown when the permission is missing or not used.
    pub fn new(group: &str, resource: &str, needed_by: &str) -> Self {
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: None,
            place: PermissionPlace::default(),
            verbs: BTreeMap::new(),
            needed_by: needed_by.to_owned(),
        }
    }

    /// Adds verbs that the program uses in its normal operation. A test that does not see them used fails.
    pub fn verbs<'v>(mut self, verbs: impl IntoIterator<Item = &'v str>) -> Self {
        let verbs = verbs.into_iter().map(|verb| (verb.to_owned(), true));
        self.verbs.extend(verbs);
        self
    }

    /// Adds verbs that the program uses only at times, such as after a conflict.
    pub fn at_times<'v>(mut self, verbs: impl IntoIterator<Item = &'v str>) -> Self {
        for verb in verbs {
            self.verbs.entry(verb.to_owned()).or_insert(false);
        }
        self
    }

    /// Limits the permission to the object of this name. RBAC cannot limit `create` by name. Default: all objects.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets where the permission is needed. Default: in the namespaces that the program watches.
    pub fn place(mut self, place: PermissionPlace) -> Self {
        self.place = place;
        self
    }

    /// Returns the API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Returns the resource, with its subresource if there is one.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Returns the name of the only object, if it is limited to one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns where it is needed.
    #[must_use]
    pub fn needed_in(&self) -> PermissionPlace {
        self.place
    }

    /// Returns the verbs in alphabetical order; true for those of normal operation.
    pub fn each_verb(&self) -> impl Iterator<Item = (&str, bool)> {
        self.verbs.iter().map(|(verb, is_usual)| (&**verb, *is_usual))
    }

    /// Returns the part of the program that needs it, such as "controller `web`".
    #[must_use]
    pub fn needed_by(&self) -> &str {
        &self.needed_by
    }

    /// Returns true if it permits this verb on this resource or subresource.
    #[must_use]
    pub fn covers(&self, verb: &str, group: &str, resource: &str) -> bool {
        self.group == group && self.resource == resource && self.verbs.contains_key(verb)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs: Vec<&str> = self.verbs.keys().map(String::as_str).collect();
        write!(f, "{} {}", verbs.join(", "), self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(name) = &self.name {
            write!(f, " named `{name}`")?;
        }
        write!(f, ", for {}", self.needed_by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_of_normal_operation_stays_one() {
        let permission = Permission::new("apps", "deployments", "controller `web`")
            .verbs(["get"])
            .at_times(["get", "delete"]);
        let verbs: Vec<_> = permission.each_verb().collect();
        assert_eq!(verbs, [("delete", false), ("get", true)]);
        assert!(permission.covers("get", "apps", "deployments"));
        assert!(!permission.covers("get", "apps", "deployments/status"));
    }
}
