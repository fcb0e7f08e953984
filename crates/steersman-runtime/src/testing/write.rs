// SPDX-License-Identifier: Apache-2.0
//! Writes as seen on the wire.

use std::{fmt, sync::Arc};

use steersman_core::Mutex;

use http::{Method, header::CONTENT_TYPE, request::Parts};
use serde_json::Value;

/// A write, shown for example as `patch configmaps web/front`, `apply deployments.apps web/front` or `update
/// webs.example.com web/front status`.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Write {
    /// `create`, `update`, `patch`, `apply`, `delete` or `delete-collection`.
    pub verb: &'static str,
    /// Resource, with its group unless it is the core group.
    pub resource: String,
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Name, also of an object that is created.
    pub name: String,
    /// Subresource, such as `status`, or empty.
    pub subresource: String,
    /// Request body; null if it was not JSON.
    pub body: Value,
}

/// The writes so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Writes(Arc<Mutex<Vec<Write>>>);

impl Writes {
    pub(super) fn note(&self, request: &Parts, body: &[u8]) {
        if let Some(write) = Write::of(request, body).filter(|write| !write.is_event()) {
            self.0.lock().push(write);
        }
    }

    pub(super) fn take(&self) -> Vec<Write> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Write {
    /// Returns true for a write of a recorder, whose time is not predictable.
    fn is_event(&self) -> bool {
        self.resource == "events.events.k8s.io"
    }

    /// Parses a request; `None` if it is not a write.
    fn of(request: &Parts, body: &[u8]) -> Option<Self> {
        let mut segments = request
            .uri
            .path()
            .split('/')
            .filter(|segment| !segment.is_empty());
        let group = match segments.next()? {
            "api" => "",
            "apis" => segments.next()?,
            _ => return None,
        };
        let _version = segments.next()?;
        let rest: Vec<&str> = segments.collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !is_part(rest[0]) => {
                (*namespace, rest)
            }
            rest => ("", rest),
        };
        let (plural, name) = (rest.first()?, rest.get(1).copied().unwrap_or_default());
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let is_apply = request
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply-patch"));
        let verb = match request.method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH if is_apply => "apply",
            Method::PATCH => "patch",
            Method::DELETE if name.is_empty() => "delete-collection",
            Method::DELETE => "delete",
            _ => return None,
        };
        let in_body = body["metadata"]["name"].as_str().unwrap_or_default();
        Some(Self {
            verb,
            resource: match group {
                "" => (*plural).to_owned(),
                group => format!("{plural}.{group}"),
            },
            namespace: namespace.to_owned(),
            name: if name.is_empty() { in_body } else { name }.to_owned(),
            subresource: rest.get(2).copied().unwrap_or_default().to_owned(),
            body,
        })
    }
}

/// Returns true for the subresources of a namespace.
fn is_part(segment: &str) -> bool {
    matches!(segment, "status" | "finalize")
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.verb, self.resource)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)?;
        if !self.subresource.is_empty() {
            write!(f, " {}", self.subresource)?;
        }
        Ok(())
    }
}

/// Omits the body, which can contain a secret.
impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Write").field(&format_args!("{self}")).finish()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn shown(method: &str, path: &str, kind: &str, body: &str) -> Option<String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, kind)
            .body(())
            .unwrap();
        let (parts, ()) = request.into_parts();
        Some(Write::of(&parts, body.as_bytes())?.to_string())
    }

    #[test]
    fn a_write_is_shown_by_verb_resource_and_key() {
        let json = "application/json";
        let named = r#"{"metadata":{"name":"front"}}"#;
        let maps = "/api/v1/namespaces/web/configmaps";
        let webs = "/apis/example.com/v1/namespaces/web/webs/front/status";
        for (method, path, kind, expected) in [
            ("POST", maps, json, "create configmaps web/front"),
            ("DELETE", maps, json, "delete-collection configmaps web/front"),
            (
                "PATCH",
                webs,
                "application/apply-patch+yaml",
                "apply webs.example.com web/front status",
            ),
            ("PUT", "/api/v1/namespaces/web", json, "update namespaces web"),
            (
                "PUT",
                "/api/v1/namespaces/web/finalize",
                json,
                "update namespaces web finalize",
            ),
            ("DELETE", "/api/v1/nodes/one", json, "delete nodes one"),
        ] {
            assert_eq!(shown(method, path, kind, named).as_deref(), Some(expected));
        }
        assert_eq!(shown("GET", maps, json, ""), None);
        assert_eq!(shown("POST", "/version", json, ""), None);
    }
}
