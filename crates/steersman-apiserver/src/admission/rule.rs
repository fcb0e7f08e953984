// SPDX-License-Identifier: Apache-2.0
//! The rules of a hook: the operations and resources that it is called for.

use serde_json::Value;

use super::Operation;

/// One rule.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource.
    resources: Vec<(String, String)>,
    scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Cluster,
    Namespaced,
}

/// The resource that a rule is compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requested<'a> {
    pub(crate) operation: Operation,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) is_namespaced: bool,
}

impl Rule {
    pub(crate) fn of(rule: &Value) -> Self {
        let list = |key: &str| -> Vec<String> {
            let items = rule.get(key).and_then(Value::as_array);
            let items = items.into_iter().flatten().filter_map(Value::as_str);
            items.map(str::to_owned).collect()
        };
        let resources = list("resources");
        let resources = resources.iter().map(|resource| {
            let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
            (resource.to_owned(), sub.to_owned())
        });
        Self {
            operations: list("operations"),
            groups: list("apiGroups"),
            versions: list("apiVersions"),
            resources: resources.collect(),
            scope: match rule.get("scope").and_then(Value::as_str) {
                Some("Cluster") => Scope::Cluster,
                Some("Namespaced") => Scope::Namespaced,
                _ => Scope::All,
            },
        }
    }

    /// Returns the rule that selects every write.
    pub(crate) fn everything() -> Self {
        let any = || vec!["*".to_owned()];
        Self {
            operations: any(),
            groups: any(),
            versions: any(),
            resources: vec![("*".to_owned(), "*".to_owned())],
            scope: Scope::All,
        }
    }

    pub(crate) fn selects(&self, requested: Requested<'_>) -> bool {
        let listed = |items: &[String], item: &str| items.iter().any(|known| known == "*" || known == item);
        let resource = |(resource, sub): &(String, String)| {
            (resource == "*" || resource == requested.resource)
                && (sub == "*" || sub == requested.subresource)
        };
        let scope = match self.scope {
            Scope::All => true,
            Scope::Cluster => !requested.is_namespaced,
            Scope::Namespaced => requested.is_namespaced,
        };
        scope
            && listed(&self.operations, requested.operation.name())
            && listed(&self.groups, requested.group)
            && listed(&self.versions, requested.version)
            && self.resources.iter().any(resource)
    }
}
