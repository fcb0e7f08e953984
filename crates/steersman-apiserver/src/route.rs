// SPDX-License-Identifier: Apache-2.0
//! Routing: parses the method and path of a request.

use http::Method;

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// The path of a resource request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

/// The kind of endpoint that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Resource(ResourcePath),
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/{group}`
    Group(String),
    /// `/api/v1` or `/apis/{group}/{version}`
    GroupVersion(String, String),
    /// Every other path.
    Other,
}

impl Route {
    /// Parses a path.
    pub(crate) fn parse(path: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match parts[..] {
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group(decoded(group)),
            ["api", version] => Self::GroupVersion(String::new(), decoded(version)),
            ["apis", group, version] => Self::GroupVersion(decoded(group), decoded(version)),
            ["api", version, ref rest @ ..] => Self::resource("", version, rest),
            ["apis", group, version, ref rest @ ..] => Self::resource(group, version, rest),
            _ => Self::Other,
        }
    }

    fn resource(group: &str, version: &str, rest: &[&str]) -> Self {
        let path = |namespace: &str, resource: &str, name: &str, subresource: &str| {
            Self::Resource(ResourcePath {
                group: decoded(group),
                version: decoded(version),
                resource: decoded(resource),
                namespace: decoded(namespace),
                name: decoded(name),
                subresource: decoded(subresource),
            })
        };
        match *rest {
            ["namespaces", name, sub @ ("status" | "finalize")] if group.is_empty() => {
                path(name, "namespaces", name, sub)
            }
            ["namespaces", name] => path(name, "namespaces", name, ""),
            ["namespaces", namespace, resource] => path(namespace, resource, "", ""),
            ["namespaces", namespace, resource, name] => path(namespace, resource, name, ""),
            ["namespaces", namespace, resource, name, sub] => path(namespace, resource, name, sub),
            [resource] => path("", resource, "", ""),
            [resource, name] => path("", resource, name, ""),
            [resource, name, sub] => path("", resource, name, sub),
            _ => path("", "", "", ""),
        }
    }
}

/// Returns the verb of a resource request.
pub(crate) fn verb(method: &Method, named: bool, watch: bool) -> Option<Verb> {
    Some(match (method, named) {
        (&Method::GET | &Method::HEAD, false) if watch => Verb::Watch,
        (&Method::GET | &Method::HEAD, true) => Verb::Get,
        (&Method::GET | &Method::HEAD, false) => Verb::List,
        (&Method::POST, _) => Verb::Create,
        (&Method::PUT, _) => Verb::Update,
        (&Method::PATCH, _) => Verb::Patch,
        (&Method::DELETE, true) => Verb::Delete,
        (&Method::DELETE, false) => Verb::DeleteCollection,
        _ => return None,
    })
}

/// Decodes percent encoding; invalid sequences stay unchanged.
fn decoded(text: &str) -> String {
    percent_decoded(text, false)
}

/// Decodes percent encoding and, with `plus`, the `+` of query strings.
pub(crate) fn percent_decoded(text: &str, plus: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let hex = |at: usize| {
            bytes
                .get(at)
                .and_then(|b| char::from(*b).to_digit(16))
                .and_then(|d| u8::try_from(d).ok())
        };
        match bytes[index] {
            b'%' => match (hex(index + 1), hex(index + 2)) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    index += 2;
                }
                _ => out.push(b'%'),
            },
            b'+' if plus => out.push(b' '),
            byte => out.push(byte),
        }
        index += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The parameters of a query string.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: &str) -> Self {
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decoded(key, true), percent_decoded(value, true))
        };
        Self(
            query
                .split('&')
                .filter(|part| !part.is_empty())
                .map(pair)
                .collect(),
        )
    }

    /// Returns the first value with that name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the first non-empty value with that name.
    pub(crate) fn filled(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Parses a flag as Go does: every value except a word for false is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| !matches!(value, "0" | "false" | "False" | "FALSE" | "f" | "F"))
    }
}
