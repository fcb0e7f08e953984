// SPDX-License-Identifier: Apache-2.0
//! The request of an admission review.

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::core::{GroupVersionKind, GroupVersionResource};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// A request to the API server that a webhook reviews, with its object decoded as `K`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AdmissionRequest<K = Value> {
    /// Identifier of this review.
    pub uid: String,
    /// Kind of the object, at the version of the rule that matched.
    pub kind: GroupVersionKind,
    /// Resource of the request, at the version of the rule that matched.
    pub resource: GroupVersionResource,
    /// Subresource, such as `status`.
    #[serde(default)]
    pub sub_resource: Option<String>,
    /// Kind that the client used.
    #[serde(default)]
    pub request_kind: Option<GroupVersionKind>,
    /// Name of the object; empty if the server generates it, and when a collection is deleted.
    #[serde(default)]
    pub name: String,
    /// Namespace of the object; empty for cluster-scoped objects.
    #[serde(default)]
    pub namespace: String,
    /// Operation of the request.
    pub operation: AdmissionOperation,
    /// User who sent the request.
    #[serde(default)]
    pub user_info: UserInfo,
    /// New object. None for a deletion.
    #[serde(default = "none")]
    pub object: Option<K>,
    /// Stored object. None for a creation.
    #[serde(default = "none")]
    pub old_object: Option<K>,
    /// The request is a dry run: nothing is stored, and the webhook must have no side effects.
    #[serde(default)]
    pub dry_run: bool,
    /// Options of the request, such as `CreateOptions`.
    #[serde(default)]
    pub options: Value,
}

/// Operation of a request that a webhook reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[non_exhaustive]
pub enum AdmissionOperation {
    /// An object is created.
    Create,
    /// An object is updated, patched or applied.
    Update,
    /// An object is deleted.
    Delete,
    /// A subresource such as `exec` is connected to.
    Connect,
}

impl AdmissionOperation {
    /// Returns the name in rules, such as `CREATE`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

fn none<K>() -> Option<K> {
    None
}

impl AdmissionRequest {
    /// Decodes the objects.
    pub(crate) fn decode<K: DeserializeOwned>(&self) -> Result<AdmissionRequest<K>, DecodeError> {
        Ok(AdmissionRequest {
            object: decode(self.object.as_ref(), "object")?,
            old_object: decode(self.old_object.as_ref(), "oldObject")?,
            uid: self.uid.clone(),
            kind: self.kind.clone(),
            resource: self.resource.clone(),
            sub_resource: self.sub_resource.clone(),
            request_kind: self.request_kind.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            operation: self.operation,
            user_info: self.user_info.clone(),
            dry_run: self.dry_run,
            options: self.options.clone(),
        })
    }
}

/// An object does not have the structure of its type.
#[derive(Debug, thiserror::Error)]
#[error("cannot decode `{which}`: {path}: {source}")]
pub(crate) struct DecodeError {
    which: &'static str,
    path: String,
    // Part of the message, because the message is for the client of the API server, who sees nothing else.
    source: serde_json::Error,
}

fn decode<K: DeserializeOwned>(
    object: Option<&Value>,
    which: &'static str,
) -> Result<Option<K>, DecodeError> {
    let Some(object) = object else { return Ok(None) };
    let decoded = serde_path_to_error::deserialize(object);
    decoded.map(Some).map_err(|error| DecodeError {
        which,
        path: error.path().to_string(),
        source: error.into_inner(),
    })
}
