// SPDX-License-Identifier: Apache-2.0
//! Authorization of requests.

use serde_json::Value;

use super::{Identity, rbac};
use crate::{
    handler::Call,
    route::Verb,
    selector,
    state::Context,
    status::{Failure, Qualified, Result},
};

/// The attributes of a request that authorization checks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Set for non-resource requests, which have no other attribute but the verb.
    pub(crate) path: Option<String>,
}

impl Attributes {
    /// Returns the attributes of a request.
    pub(crate) fn of(call: &Call) -> Self {
        let Some((verb, path)) = call.resource_request() else {
            let verb = call.method.as_str().to_lowercase();
            return Self {
                verb,
                path: Some(call.path.clone()),
                ..Self::default()
            };
        };
        // A list or watch that selects one name is authorized as a request for that object. Deletecollection is not.
        let name = match verb {
            Verb::List | Verb::Watch => {
                selector::exact_name(call.query.get("fieldSelector").unwrap_or_default())
            }
            _ => None,
        };
        Self {
            verb: verb.name().to_owned(),
            group: path.group,
            resource: path.resource,
            subresource: path.subresource,
            namespace: path.namespace,
            name: name.unwrap_or(path.name),
            path: None,
        }
    }

    /// Returns the attributes from the spec of an access review.
    pub(crate) fn of_review(spec: &Value) -> Self {
        let text = |pointer: &str| {
            spec.pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        if spec
            .get("nonResourceAttributes")
            .is_some_and(|attributes| !attributes.is_null())
        {
            return Self {
                verb: text("/nonResourceAttributes/verb"),
                path: Some(text("/nonResourceAttributes/path")),
                ..Self::default()
            };
        }
        let resource = |key: &str| text(&format!("/resourceAttributes/{key}"));
        Self {
            verb: resource("verb"),
            group: resource("group"),
            resource: resource("resource"),
            subresource: resource("subresource"),
            namespace: resource("namespace"),
            name: resource("name"),
            path: None,
        }
    }

    /// Returns the resource with its subresource.
    pub(crate) fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// Rejects a request that the user is not allowed to send.
///
/// # Errors
/// Returns 403 with the message of the real server.
pub(crate) fn check(cx: &Context<'_>, call: &Call) -> Result<()> {
    if !cx.state.settings.rbac {
        return Ok(());
    }
    let attributes = Attributes::of(call);
    if rbac::allows(cx, &call.identity, &attributes).is_some() {
        return Ok(());
    }
    let of = Qualified {
        group: &attributes.group,
        name: &attributes.resource,
    };
    Err(Failure::forbidden(
        of,
        &attributes.name,
        &complaint(&call.identity, &attributes),
    ))
}

/// Returns the message of a rejection.
pub(crate) fn complaint(identity: &Identity, attributes: &Attributes) -> String {
    let (user, verb) = (identity.name(), &attributes.verb);
    if let Some(path) = &attributes.path {
        return format!("User {user:?} cannot {verb} path {path:?}");
    }
    let scope = if attributes.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", attributes.namespace)
    };
    format!(
        "User {user:?} cannot {verb} resource {:?} in API group {:?} {scope}",
        attributes.full_resource(),
        attributes.group
    )
}
