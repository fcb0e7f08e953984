// SPDX-License-Identifier: Apache-2.0
//! Helpers for keys, finalizers and owner references of any object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use steersman_core::ObjectKey;

/// Helpers for every type that is a [`kube::Resource`].
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use steersman_cluster::ObjectExt;
/// # fn object<K: serde::de::DeserializeOwned>(uid: &str, name: &str) -> K {
/// #     serde_json::from_value(serde_json::json!({"metadata": {"namespace": "web", "name": name, "uid": uid}})).unwrap()
/// # }
/// # let web: ConfigMap = object("1", "front");
///
/// let mut secret = Secret { metadata: web.child_metadata("tls"), ..Secret::default() };
/// secret.set_controller_reference(&web)?;
/// assert_eq!(secret.key().to_string(), "web/front-tls");
/// # Ok::<(), steersman_cluster::OwnerError>(())
/// ```
pub trait ObjectExt: kube::Resource {
    /// Returns namespace and name. The name is empty for an object without one, such as an object to be created with
    /// `generateName`.
    fn key(&self) -> ObjectKey {
        key_of(self.meta())
    }

    /// Reports whether the object has a deletion timestamp.
    fn is_being_deleted(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// Reports whether the object has this finalizer.
    fn has_finalizer(&self, finalizer: &str) -> bool {
        let mut finalizers = self.meta().finalizers.iter().flatten();
        finalizers.any(|held| held == finalizer)
    }

    /// Returns metadata for a child of this object: this object's name, a dash and `suffix`, in the same namespace.
    fn child_metadata(&self, suffix: &str) -> ObjectMeta {
        ObjectMeta {
            namespace: self.meta().namespace.clone(),
            name: Some(format!("{}-{suffix}", self.key().name())),
            ..Default::default()
        }
    }

    /// Makes `owner` the controller of this object: changes of the object then trigger the owner's reconcile, and the garbage
    /// collector deletes it with the owner.
    ///
    /// # Errors
    /// When another object is already the controller, or the server would reject or ignore the reference.
    fn set_controller_reference<O>(&mut self, owner: &O) -> Result<(), OwnerError>
    where
        O: kube::Resource<DynamicType = ()>,
    {
        let reference = reference(self, owner)?;
        let owners = self.meta().owner_references.iter().flatten();
        let mut controllers = owners.filter(|known| known.controller == Some(true));
        if let Some(other) = controllers.find(|known| known.uid != reference.uid) {
            return Err(OwnerError::ControlledByAnother {
                object: self.key(),
                controller: format!("{} `{}`", other.kind, other.name),
            });
        }
        add(
            self.meta_mut(),
            OwnerReference {
                controller: Some(true),
                block_owner_deletion: Some(true),
                ..reference
            },
        );
        Ok(())
    }

    /// Makes `owner` one of the owners of this object: the garbage collector deletes the object when its last owner is
    /// deleted.
    ///
    /// # Errors
    /// When the server would reject or ignore the reference.
    fn set_owner_reference<O>(&mut self, owner: &O) -> Result<(), OwnerError>
    where
        O: kube::Resource<DynamicType = ()>,
    {
        let reference = reference(self, owner)?;
        let mut owners = self.meta().owner_references.iter().flatten();
        if !owners.any(|known| known.uid == reference.uid) {
            add(self.meta_mut(), reference);
        }
        Ok(())
    }
}

impl<K: kube::Resource> ObjectExt for K {}

/// An owner reference cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// Another object is the controller.
    #[error("cannot set the controller of `{object}`: it is controlled by {controller}")]
    ControlledByAnother {
        /// The object.
        object: ObjectKey,
        /// Kind and name of its controller.
        controller: String,
    },
    /// The owner has no uid because it was not read from a server.
    #[error(
        "cannot set an owner of `{object}`: `{owner}` has no uid; use an object that the server has returned"
    )]
    NoUid {
        /// The object.
        object: ObjectKey,
        /// The owner.
        owner: ObjectKey,
    },
    /// Garbage collection does not follow references to another namespace, and deletes objects that have them.
    #[error(
        "cannot set an owner of `{object}`: `{owner}` is in another namespace; an owner is in the same namespace or cluster-scoped"
    )]
    OtherNamespace {
        /// The object.
        object: ObjectKey,
        /// The owner.
        owner: ObjectKey,
    },
}

fn reference<O>(object: &(impl kube::Resource + ?Sized), owner: &O) -> Result<OwnerReference, OwnerError>
where
    O: kube::Resource<DynamicType = ()>,
{
    let (object, owner_key) = (key_of(object.meta()), owner.key());
    if !owner_key.namespace().is_empty() && owner_key.namespace() != object.namespace() {
        let owner = owner_key;
        return Err(OwnerError::OtherNamespace { object, owner });
    }
    let reference = owner.owner_ref(&());
    reference.ok_or(OwnerError::NoUid {
        object,
        owner: owner_key,
    })
}

fn key_of(metadata: &ObjectMeta) -> ObjectKey {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    ObjectKey::new(namespace, metadata.name.as_deref().unwrap_or_default())
}

/// Adds the reference, and replaces an existing reference to the same owner.
fn add(metadata: &mut ObjectMeta, reference: OwnerReference) {
    let owners = metadata.owner_references.get_or_insert_default();
    owners.retain(|known| known.uid != reference.uid);
    owners.push(reference);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
    use serde_json::json;

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(namespace: Option<&str>, name: &str, uid: Option<&str>) -> K {
        let metadata = json!({"namespace": namespace, "name": name, "uid": uid});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn sets_one_controller_once() {
        let owner: ConfigMap = object(Some("web"), "front", Some("1"));
        let mut child: Secret = object(Some("web"), "tls", None);
        child.set_owner_reference(&owner).unwrap();
        for _ in 0..2 {
            child.set_controller_reference(&owner).unwrap();
        }
        child.set_owner_reference(&owner).unwrap();
        let owners = child.metadata.owner_references.clone().unwrap();
        assert_eq!(owners.len(), 1);
        assert_eq!(
            (owners[0].kind.as_str(), owners[0].controller),
            ("ConfigMap", Some(true))
        );
        let other: ConfigMap = object(Some("web"), "back", Some("2"));
        let error = child.set_controller_reference(&other).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot set the controller of `web/tls`: it is controlled by ConfigMap `front`"
        );
        child.set_owner_reference(&other).unwrap();
        assert_eq!(child.metadata.owner_references.unwrap().len(), 2);
    }

    #[test]
    fn refuses_references_that_garbage_collection_does_not_follow() {
        let mut child: Secret = object(Some("web"), "tls", None);
        let elsewhere: ConfigMap = object(Some("other"), "front", Some("1"));
        let error = child.set_controller_reference(&elsewhere).unwrap_err();
        assert!(matches!(error, OwnerError::OtherNamespace { .. }), "{error}");
        let unread: ConfigMap = object(Some("web"), "front", None);
        let error = child.set_owner_reference(&unread).unwrap_err();
        assert!(matches!(error, OwnerError::NoUid { .. }), "{error}");
        let cluster_scoped: Namespace = object(None, "web", Some("3"));
        child.set_owner_reference(&cluster_scoped).unwrap();
        let mut cluster_scoped_child: Namespace = object(None, "child", None);
        let namespaced: ConfigMap = object(Some("web"), "front", Some("1"));
        let error = cluster_scoped_child.set_owner_reference(&namespaced).unwrap_err();
        assert!(matches!(error, OwnerError::OtherNamespace { .. }), "{error}");
    }
}
