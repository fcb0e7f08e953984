// SPDX-License-Identifier: Apache-2.0
//! Compares the requests of a program with the permissions that it declares.

use std::collections::BTreeSet;

use steersman_core::Permission;

use crate::proxy::Exchange;

/// Compares recorded requests with declared permissions. Returns a sentence for each difference:
///
/// * a request that no declaration permits, among them those of an informer that a read opens without a declaration;
/// * a verb of normal operation that is declared, and that no request uses.
///
/// Pass the exchanges of the program alone: give it an identity that only it uses, and
/// [announce](crate::FaultProxy::announce) that to the proxy. Requests outside of resources, such as discovery, and reviews of
/// the program's own permissions need no permission.
///
/// ```no_run
/// # use steersman_core::Permission;
/// # fn example(proxy: &steersman_testing::FaultProxy, declared: &[Permission]) {
/// let differences = steersman_testing::compare_permissions(&proxy.exchanges(), declared);
/// assert!(differences.is_empty(), "{differences:#?}");
/// # }
/// ```
#[must_use]
pub fn compare_permissions(exchanges: &[Exchange], declared: &[Permission]) -> Vec<String> {
    let used: BTreeSet<Access> = exchanges.iter().filter_map(Access::of).collect();
    let missing = used.iter().filter(|access| !access.is_free());
    let missing = missing.filter(|access| {
        !declared
            .iter()
            .any(|permission| access.is_permitted_by(permission))
    });
    let missing = missing.map(|access| {
        let hint = match access.verb {
            "list" | "watch" => {
                "; a read opened an informer: declare the kind with `.reads(…)`, or read it live"
            }
            _ => "; declare it with `.permits(…)`",
        };
        format!("no declaration permits the request {}{hint}", access.request)
    });
    let mut differences: BTreeSet<String> = missing.collect();
    for permission in declared {
        let usual = permission.each_verb().filter(|(_, is_usual)| *is_usual);
        for (verb, _) in usual {
            let is_used = |access: &Access| {
                access.verb == verb
                    && access.group == permission.group()
                    && access.resource == permission.resource()
            };
            if !used.iter().any(is_used) {
                differences.insert(format!(
                    "no request uses `{verb}` of the declaration: {permission}"
                ));
            }
        }
    }
    differences.into_iter().collect()
}

/// A request, as RBAC sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Access {
    group: String,
    resource: String,
    verb: &'static str,
    name: Option<String>,
    /// Method and path, for people.
    request: String,
}

impl Access {
    /// Reads the request; `None` if it is not about a resource.
    fn of(exchange: &Exchange) -> Option<Self> {
        let mut parts = exchange
            .path
            .split('/')
            .filter(|part| !part.is_empty())
            .peekable();
        let group = match parts.next()? {
            "api" => String::new(),
            "apis" => parts.next()?.to_owned(),
            _ => return None,
        };
        let _version = parts.next()?;
        let mut rest: Vec<&str> = parts.collect();
        // A namespace is itself a resource if nothing of it is named.
        if rest.len() > 2 && rest[0] == "namespaces" {
            rest.drain(..2);
        }
        let (plural, name, subresource) = match *rest.as_slice() {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(name), None),
            [plural, name, subresource, ..] => (plural, Some(name), Some(subresource)),
            [] => return None,
        };
        let verb = match (&*exchange.method, name) {
            ("GET", None) if exchange.is_watch() => "watch",
            ("GET", None) => "list",
            ("GET", Some(_)) => "get",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", None) => "deletecollection",
            ("DELETE", Some(_)) => "delete",
            _ => return None,
        };
        Some(Self {
            group,
            resource: subresource.map_or_else(|| plural.to_owned(), |sub| format!("{plural}/{sub}")),
            verb,
            name: name.map(str::to_owned).or_else(|| selected_name(&exchange.query)),
            request: format!("{} {}", exchange.method, exchange.path),
        })
    }

    /// Every authenticated user is allowed to review its own permissions.
    fn is_free(&self) -> bool {
        self.resource.starts_with("selfsubject")
    }

    fn is_permitted_by(&self, permission: &Permission) -> bool {
        let is_named = self.verb == "create"
            || permission
                .name()
                .is_none_or(|name| self.name.as_deref() == Some(name));
        is_named && permission.covers(self.verb, &self.group, &self.resource)
    }
}

/// Returns the name that a field selector selects: RBAC compares it with `resourceNames`.
fn selected_name(query: &str) -> Option<String> {
    let selectors = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("fieldSelector="));
    let mut names = selectors.filter_map(|selector| {
        let selector = selector.replace("%3D", "=").replace("%3d", "=");
        selector.strip_prefix("metadata.name=").map(str::to_owned)
    });
    names.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(method: &str, path: &str, query: &str) -> Exchange {
        Exchange::for_tests(method, path, query)
    }

    #[test]
    fn reads_verbs_and_resources_of_requests() {
        let cases = [
            ("GET", "/api/v1/pods", "", "list pods"),
            ("GET", "/api/v1/pods", "watch=true", "watch pods"),
            ("GET", "/api/v1/namespaces/a", "", "get namespaces"),
            ("GET", "/api/v1/namespaces/a/pods/b", "", "get pods"),
            (
                "POST",
                "/apis/apps/v1/namespaces/a/deployments",
                "",
                "create deployments.apps",
            ),
            (
                "PATCH",
                "/apis/example.com/v1/namespaces/a/webs/b/status",
                "",
                "patch webs/status.example.com",
            ),
            ("DELETE", "/api/v1/namespaces/a/pods", "", "deletecollection pods"),
        ];
        for (method, path, query, expected) in cases {
            let access = Access::of(&exchange(method, path, query)).map(|access| {
                let group = match &*access.group {
                    "" => String::new(),
                    group => format!(".{group}"),
                };
                format!("{} {}{group}", access.verb, access.resource)
            });
            assert_eq!(access.as_deref(), Some(expected), "{path}");
        }
        for path in ["/version", "/api", "/apis", "/apis/apps/v1", "/openapi/v3"] {
            assert_eq!(Access::of(&exchange("GET", path, "")), None, "{path}");
        }
    }

    #[test]
    fn names_missing_and_unused_permissions() {
        let used = [
            exchange("GET", "/api/v1/secrets", "watch=true"),
            exchange("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/web", ""),
            exchange(
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                "",
            ),
        ];
        let declared = [
            Permission::new("coordination.k8s.io", "leases", "the election")
                .named("web")
                .verbs(["update"])
                .at_times(["get"]),
            Permission::new("", "pods", "controller `web`").verbs(["delete"]),
        ];
        assert_eq!(
            compare_permissions(&used, &declared),
            [
                "no declaration permits the request GET /api/v1/secrets; a read opened an informer: declare the kind with \
                 `.reads(…)`, or read it live",
                "no request uses `delete` of the declaration: delete pods, for controller `web`",
            ]
        );
        let other = [exchange(
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/other",
            "",
        )];
        assert_eq!(
            compare_permissions(&other, &declared[..1]).len(),
            1,
            "another name"
        );
    }
}
