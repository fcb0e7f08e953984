// SPDX-License-Identifier: Apache-2.0
//! Rules that select the requests of an admission webhook.

use std::fmt;

use serde_json::{Value, json};
use steersman_cluster::Kind;

use crate::admission::{AdmissionOperation, AdmissionRequest};

/// Selects requests for a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "add it to an `AdmissionWebhook`"]
pub struct Rule {
    group: String,
    version: String,
    resource: String,
    operations: Vec<AdmissionOperation>,
}

impl Rule {
    /// Selects creations and updates of the objects of a kind, at its version and at equivalent ones.
    pub fn of<K: Kind>() -> Self {
        Self::new(K::group(&()), K::version(&()), K::plural(&()))
    }

    /// Selects creations and updates of a resource, by its plural name; `pods/status` names a subresource, `*` any resource.
    pub fn new(group: impl Into<String>, version: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
            operations: vec![AdmissionOperation::Create, AdmissionOperation::Update],
        }
    }

    /// Operations. Default: create and update.
    pub fn operations(mut self, operations: impl IntoIterator<Item = AdmissionOperation>) -> Self {
        self.operations = operations.into_iter().collect();
        self
    }

    /// Selects requests for a subresource, such as `status`.
    pub fn subresource(mut self, name: &str) -> Self {
        self.resource = format!("{}/{name}", self.resource);
        self
    }

    /// Returns whether a request is about a resource of the rule. The API server has compared the rest.
    pub(crate) fn is_about(&self, request: &AdmissionRequest) -> bool {
        let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        let (resource, subresource) = match self.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource)),
            None => (&*self.resource, None),
        };
        let wanted = &request.resource;
        fits(&self.group, &wanted.group)
            && fits(&self.version, &wanted.version)
            && fits(resource, &wanted.resource)
            && subresource.is_none_or(|one| fits(one, request.sub_resource.as_deref().unwrap_or_default()))
    }

    /// Returns whether the rule is about Pods.
    pub(crate) fn is_about_pods(&self) -> bool {
        let is_core = matches!(&*self.group, "" | "*");
        is_core && matches!(&*self.resource, "pods" | "*" | "*/*")
    }

    pub(crate) fn to_json(&self) -> Value {
        let operations: Vec<&str> = self.operations.iter().map(|one| one.as_str()).collect();
        json!({
            "apiGroups": [self.group],
            "apiVersions": [self.version],
            "resources": [self.resource],
            "operations": operations,
        })
    }
}

/// Shows the resource, as `webs.example.com/v1`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{}{dot}{}/{}", self.resource, self.group, self.version)
    }
}
