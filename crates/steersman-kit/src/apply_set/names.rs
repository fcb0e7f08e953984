// SPDX-License-Identifier: Apache-2.0
//! Labels and annotations of apply sets, as in KEP-3659, so that `kubectl` and similar tools understand a set.

use std::{fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;
use steersman_cache::Resource;
use steersman_core::ObjectKey;

/// Label of the object that has the inventory: id of the set.
pub(crate) const ID: &str = "applyset.kubernetes.io/id";
/// Label of each member: id of the set.
pub(crate) const PART_OF: &str = "applyset.kubernetes.io/part-of";
/// Annotation of the inventory: the tool that manages the set. Other tools must not change it.
pub(crate) const TOOLING: &str = "applyset.kubernetes.io/tooling";
/// Annotation of the inventory: kinds that the set has members of.
pub(crate) const GROUP_KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
/// Annotation of the inventory: namespaces that the set has members in, except that of the inventory.
pub(crate) const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";
/// Annotation of each member: uid of the parent, and kind and name of the member.
pub(crate) const MEMBER: &str = "applyset.steersman.dev/member";

/// A kind without its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupKind {
    pub(crate) kind: String,
    /// Empty for the core group.
    pub(crate) group: String,
}

impl GroupKind {
    pub(crate) fn of(resource: &Resource) -> Self {
        Self {
            kind: resource.kind().to_owned(),
            group: resource.group().to_owned(),
        }
    }

    /// Parses the form `Deployment.apps`.
    pub(crate) fn parse(text: &str) -> Self {
        let (kind, group) = text.split_once('.').unwrap_or((text, ""));
        Self {
            kind: kind.to_owned(),
            group: group.to_owned(),
        }
    }

    /// Returns true for kinds that other members need: they are applied first and deleted last.
    pub(crate) fn is_foundation(&self) -> bool {
        matches!(
            (&*self.group, &*self.kind),
            ("", "Namespace") | ("apiextensions.k8s.io", "CustomResourceDefinition")
        )
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => f.write_str(&self.kind),
            group => write!(f, "{}.{group}", self.kind),
        }
    }
}

/// Id of the set whose inventory an object has. `kubectl` computes the same one.
pub(crate) fn set_id(resource: &Resource, key: &ObjectKey) -> Arc<str> {
    let (name, namespace) = (key.name(), key.namespace());
    let text = format!("{name}.{namespace}.{}.{}", resource.kind(), resource.group());
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("applyset-{}-v1", URL_SAFE_NO_PAD.encode(digest)).into()
}

/// Returns true if an entry of `managedFields` owns the label of the set.
pub(crate) fn owns_part_of(entry: &Value) -> bool {
    let labels = entry.pointer("/fieldsV1/f:metadata/f:labels");
    labels
        .and_then(|labels| labels.get(format!("f:{PART_OF}")))
        .is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    // The value is from the documentation of Kubernetes: the Secret `my-set` in the namespace `test`.
    #[test]
    fn the_id_of_a_set_is_that_of_kubectl() {
        let secrets = Resource::new("", "v1", "Secret", "secrets");
        assert_eq!(
            &*set_id(&secrets, &ObjectKey::new("test", "my-set")),
            "applyset-0eFHV8ySqp7XoShsGvyWFQD3s96yqwHmzc4e0HR1dsY-v1"
        );
    }

    #[test]
    fn kinds_are_written_with_their_group() {
        for text in ["ConfigMap", "Deployment.apps", "Widget.example.com"] {
            assert_eq!(GroupKind::parse(text).to_string(), text);
        }
        assert_eq!(GroupKind::parse("Widget.example.com").group, "example.com");
        assert!(GroupKind::parse("Namespace").is_foundation());
        assert!(!GroupKind::parse("Namespace.example.com").is_foundation());
    }
}
