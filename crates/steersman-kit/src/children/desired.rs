// SPDX-License-Identifier: Apache-2.0
//! The desired fields of a child, as JSON.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};
use steersman_cache::Resource;
use steersman_core::ObjectKey;

use super::{ChildError, ChildId};
use crate::projection;

/// The desired fields of a child.
pub(super) struct Desired {
    pub(super) id: ChildId,
    /// All fields, for the creation.
    pub(super) whole: Value,
    /// The fields that are restored, for applies.
    pub(super) kept: Value,
    /// Hash of the fields that are restored.
    pub(super) hash: u64,
    /// Fields that others change after the creation, as JSON pointers.
    pub(super) ignored: Vec<String>,
    pub(super) adopts_orphans: bool,
}

/// Fields of the metadata that only the server sets.
const SET_BY_SERVER: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

impl Desired {
    /// Completes the JSON of a child: type, namespace and owner.
    pub(super) fn new(
        resource: &Resource,
        mut object: Value,
        (owner, namespace): (&OwnerReference, &str),
        ignored: &[String],
        adopts_orphans: bool,
    ) -> Result<Self, ChildError> {
        let members = object.as_object_mut();
        let Some(members) = members else {
            return Err(ChildError::NoName {
                kind: resource.kind().to_owned(),
            });
        };
        members.insert("apiVersion".to_owned(), json!(resource.api_version()));
        members.insert("kind".to_owned(), json!(resource.kind()));
        members.remove("status");
        if (resource.group(), resource.kind()) == ("", "Secret") {
            encode_string_data(members);
        }
        let metadata = members.entry("metadata").or_insert_with(|| json!({}));
        let key = complete_metadata(resource, metadata, owner, namespace)?;
        let mut kept = object.clone();
        for pointer in ignored {
            projection::remove_field(&mut kept, pointer);
        }
        Ok(Self {
            id: (resource.clone(), key),
            hash: projection::hash(&kept),
            whole: object,
            kept,
            ignored: ignored.to_vec(),
            adopts_orphans,
        })
    }

    pub(super) fn resource(&self) -> &Resource {
        &self.id.0
    }

    pub(super) fn key(&self) -> &ObjectKey {
        &self.id.1
    }
}

fn complete_metadata(
    resource: &Resource,
    metadata: &mut Value,
    owner: &OwnerReference,
    parent_namespace: &str,
) -> Result<ObjectKey, ChildError> {
    let no_name = || ChildError::NoName {
        kind: resource.kind().to_owned(),
    };
    let metadata = metadata.as_object_mut().ok_or_else(no_name)?;
    for name in SET_BY_SERVER {
        metadata.remove(name);
    }
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default();
    let name = text("name").to_owned();
    if name.is_empty() {
        return Err(no_name());
    }
    let own = text("namespace").to_owned();
    let is_namespaced = resource.is_namespaced().unwrap_or(true);
    let namespace = match (is_namespaced, own.is_empty()) {
        (false, _) => String::new(),
        (true, true) => parent_namespace.to_owned(),
        (true, false) => own,
    };
    let key = ObjectKey::new(&namespace, &name);
    check_owner(resource, &key, parent_namespace)?;
    if is_namespaced {
        metadata.insert("namespace".to_owned(), json!(namespace));
    } else {
        metadata.remove("namespace");
    }
    let owners = metadata.entry("ownerReferences").or_insert_with(|| json!([]));
    if let Value::Array(owners) = owners {
        owners.retain(|known| known.get("uid") != Some(&json!(owner.uid)));
        owners.push(json!(owner));
    }
    Ok(key)
}

/// Checks that the garbage collector follows a reference from the child to its parent.
fn check_owner(resource: &Resource, child: &ObjectKey, parent_namespace: &str) -> Result<(), ChildError> {
    let reason = if child.namespace().is_empty() && resource.is_namespaced() == Some(true) {
        "it is namespaced and has no namespace; name one with `child_in`".to_owned()
    } else if parent_namespace.is_empty() || parent_namespace == child.namespace() {
        return Ok(());
    } else if child.namespace().is_empty() {
        "it is cluster-scoped, and a namespaced object cannot own it".to_owned()
    } else {
        format!("owner references do not cross namespaces, and its parent is in `{parent_namespace}`")
    };
    Err(ChildError::CannotOwn {
        child: describe(resource, child),
        reason,
    })
}

/// Kind and key of a child, for messages.
pub(super) fn describe(resource: &Resource, key: &ObjectKey) -> String {
    format!("{} `{key}`", resource.kind())
}

/// Moves `stringData` into `data`. The server does that too, so that a change of `data` by another client would not be seen in
/// `stringData`.
fn encode_string_data(secret: &mut Map<String, Value>) {
    let Some(Value::Object(texts)) = secret.remove("stringData") else {
        return;
    };
    let data = secret.entry("data").or_insert_with(|| json!({}));
    if data.is_null() {
        *data = json!({});
    }
    if let Value::Object(data) = data {
        for (name, text) in texts {
            let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
            data.insert(name, json!(encoded));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerReference {
        OwnerReference {
            uid: "1".to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }

    fn desired(resource: &Resource, parent_namespace: &str, object: Value) -> Result<Desired, ChildError> {
        Desired::new(resource, object, (&owner(), parent_namespace), &[], false)
    }

    // R111
    #[test]
    fn a_child_gets_type_namespace_and_owner() {
        let maps = Resource::new("", "v1", "ConfigMap", "configmaps").namespaced(true);
        let object = json!({"metadata": {"name": "a", "uid": "7", "managedFields": []}, "status": {}});
        let found = desired(&maps, "web", object).unwrap();
        assert_eq!(found.key().to_string(), "web/a");
        let expected = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "web", "ownerReferences": [owner()]},
        });
        assert_eq!(found.whole, expected);
    }

    // R175
    #[test]
    fn a_child_that_cannot_be_owned_is_an_error_that_names_the_alternative() {
        let maps = Resource::new("", "v1", "ConfigMap", "configmaps").namespaced(true);
        let nodes = Resource::new("", "v1", "Node", "nodes").namespaced(false);
        let says = |resource: &Resource, namespace: &str, object: Value| {
            desired(resource, namespace, object).err().unwrap().to_string()
        };
        assert_eq!(
            says(
                &maps,
                "web",
                json!({"metadata": {"name": "a", "namespace": "other"}})
            ),
            "cannot own ConfigMap `other/a`: owner references do not cross namespaces, and its parent is in `web`; use an apply \
             set instead of a child"
        );
        assert_eq!(
            says(&nodes, "web", json!({"metadata": {"name": "a"}})),
            "cannot own Node `a`: it is cluster-scoped, and a namespaced object cannot own it; use an apply set instead of a child"
        );
        assert!(says(&maps, "", json!({"metadata": {"name": "a"}})).contains("child_in"));
        assert!(says(&maps, "web", json!({"metadata": {}})).contains("it has no name"));
        assert!(desired(&nodes, "", json!({"metadata": {"name": "a"}})).is_ok());
        assert!(desired(&maps, "", json!({"metadata": {"name": "a", "namespace": "web"}})).is_ok());
    }

    #[test]
    fn string_data_of_a_secret_becomes_data() {
        let secrets = Resource::new("", "v1", "Secret", "secrets").namespaced(true);
        let object = json!({"metadata": {"name": "a"}, "data": {"b": "eA=="}, "stringData": {"a": "x"}});
        let found = desired(&secrets, "web", object).unwrap();
        assert_eq!(found.whole["data"], json!({"a": "eA==", "b": "eA=="}));
        assert!(found.whole.get("stringData").is_none());
    }
}
