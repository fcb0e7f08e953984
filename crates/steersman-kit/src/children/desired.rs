// SPDX-License-Identifier: Apache-2.0
//! The desired fields of a child, as JSON.

use std::hash::{DefaultHasher, Hash, Hasher};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Patch;
use serde_json::{Map, Value, json};
use steersman_cache::Resource;
use steersman_core::ObjectKey;

use super::{ChildId, Ownership};
use crate::projection;

/// The desired fields of a child.
pub(crate) struct Desired {
    pub(crate) id: ChildId,
    /// All fields, for the creation.
    pub(super) whole: Value,
    /// The fields that are restored, for applies.
    pub(crate) kept: Value,
    pub(super) hash: DesiredHash,
    /// Fields that others change after the creation, as JSON pointers.
    pub(super) ignored: Vec<String>,
    pub(super) adopts_orphans: bool,
}

/// Hashes of the desired fields of a child.
#[derive(Clone, Copy, Debug)]
pub(super) struct DesiredHash {
    /// Of the child as user code returned it, with the rules that change its fields.
    pub(super) encoded: u64,
    /// Of the fields that are restored, whatever the order in which user code names them.
    pub(super) fields: u64,
}

/// Hashes an encoded child, and everything that determines its desired fields besides.
pub(super) fn hash_encoded(encoded: &[u8], ownership: &Ownership, ignored: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (encoded, ownership, ignored).hash(&mut hasher);
    hasher.finish()
}

/// Returns the key of a child: a namespaced one without a namespace is in that of its parent.
pub(crate) fn child_key(resource: &Resource, child: &ObjectMeta, parent_namespace: &str) -> ObjectKey {
    let own = child.namespace.as_deref().filter(|own| !own.is_empty());
    let namespace = match resource.is_namespaced() {
        Some(false) => "",
        _ => own.unwrap_or(parent_namespace),
    };
    ObjectKey::new(namespace, child.name.as_deref().unwrap_or_default())
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
    /// Returns the apply of the fields that are restored, to the object with this uid.
    pub(super) fn apply_patch(&self, uid: &str) -> Patch<Value> {
        let mut body = self.kept.clone();
        body["metadata"]["uid"] = json!(uid);
        Patch::Apply(body)
    }

    /// Completes the JSON of a child: type, namespace and marks of the parent. `encoded` is its [`hash_encoded`].
    pub(super) fn new(
        id: &ChildId,
        encoded: u64,
        mut object: Value,
        ownership: &Ownership,
        ignored: &[String],
        adopts_orphans: bool,
    ) -> Self {
        if !object.is_object() {
            object = json!({});
        }
        if let Value::Object(members) = &mut object {
            complete(id, members, ownership);
        }
        let mut kept = object.clone();
        for pointer in ignored {
            projection::remove_field(&mut kept, pointer);
        }
        let fields = projection::hash(&kept);
        Self {
            id: id.clone(),
            hash: DesiredHash { encoded, fields },
            whole: object,
            kept,
            ignored: ignored.to_vec(),
            adopts_orphans,
        }
    }

    pub(super) fn resource(&self) -> &Resource {
        &self.id.0
    }

    pub(super) fn key(&self) -> &ObjectKey {
        &self.id.1
    }
}

fn complete(id: &ChildId, members: &mut Map<String, Value>, ownership: &Ownership) {
    let (resource, key) = id;
    members.insert("apiVersion".to_owned(), json!(resource.api_version()));
    members.insert("kind".to_owned(), json!(resource.kind()));
    members.remove("status");
    if (resource.group(), resource.kind()) == ("", "Secret") {
        encode_string_data(members);
    }
    let Value::Object(metadata) = members.entry("metadata").or_insert_with(|| json!({})) else {
        return;
    };
    for name in SET_BY_SERVER {
        metadata.remove(name);
    }
    match key.namespace() {
        "" => _ = metadata.remove("namespace"),
        namespace => _ = metadata.insert("namespace".to_owned(), json!(namespace)),
    }
    ownership.mark(id, metadata);
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
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::{super::ChildError, *};

    fn owner() -> OwnerReference {
        OwnerReference {
            uid: "1".to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }

    fn desired(resource: &Resource, parent_namespace: &str, object: Value) -> Result<Desired, ChildError> {
        let metadata: ObjectMeta = serde_json::from_value(object["metadata"].clone()).unwrap();
        let id = (resource.clone(), child_key(resource, &metadata, parent_namespace));
        let ownership = Ownership {
            owner: owner(),
            parent_namespace: parent_namespace.to_owned(),
            set: None,
        };
        ownership.check(&id)?;
        Ok(Desired::new(&id, 0, object, &ownership, &[], false))
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
            "cannot own ConfigMap `other/a`: owner references do not cross namespaces, and its parent is in `web`; use \
             `Work::apply_set` or `ApplySets` instead of a child"
        );
        assert_eq!(
            says(&nodes, "web", json!({"metadata": {"name": "a"}})),
            "cannot own Node `a`: it is cluster-scoped, and a namespaced object cannot own it; use `Work::apply_set` or \
             `ApplySets` instead of a child"
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
