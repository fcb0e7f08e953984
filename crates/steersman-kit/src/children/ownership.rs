// SPDX-License-Identifier: Apache-2.0
//! Which objects belong to a parent, and how they are marked.
//!
//! A child has a controller reference to its parent. A member of an apply set has the label of the set and an annotation that
//! binds it to the uid of the parent and to its own name, and a controller reference where Kubernetes permits one.

use std::{hash::Hash, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};
use steersman_cache::{Object, Resource};

use super::{ChildError, ChildId, desired::describe};
use crate::{apply_set::names, projection};

/// Which objects belong to a parent.
#[derive(Clone)]
pub(crate) struct Ownership {
    pub(crate) owner: OwnerReference,
    pub(crate) parent_namespace: String,
    /// Id of the apply set. `None` for children.
    pub(crate) set: Option<Arc<str>>,
}

/// Relation of an object to the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Controlled,
    /// A former parent of the same name controls it: the garbage collector deletes it.
    Former,
    Orphan,
    Foreign,
}

impl Ownership {
    /// Relation of an object to the parent.
    pub(super) fn relation_of(&self, (resource, key): &ChildId, object: &Object) -> Relation {
        let mut owners = object.owners().into_iter();
        let controller = owners.find(|owner| owner.controller == Some(true));
        let by_reference = controller.map(|controller| self.relation_by_reference(&controller));
        let Some(set) = &self.set else {
            return by_reference.unwrap_or(Relation::Orphan);
        };
        let label = object.label(names::PART_OF);
        let is_of_set = label.as_deref() == Some(&**set);
        match by_reference {
            // It belongs to another set of the same parent.
            Some(Relation::Controlled) if label.is_some() && !is_of_set => Relation::Foreign,
            Some(relation) => relation,
            None if label.is_none() => Relation::Orphan,
            None => {
                let bound = object.annotation(names::MEMBER);
                let is_bound = bound.is_some_and(|bound| bound == self.member_of(resource, key));
                match is_of_set && is_bound {
                    true => Relation::Controlled,
                    false => Relation::Foreign,
                }
            }
        }
    }

    fn relation_by_reference(&self, controller: &OwnerReference) -> Relation {
        let group = |owner: &OwnerReference| {
            owner
                .api_version
                .rsplit_once('/')
                .map(|(group, _)| group.to_owned())
        };
        if controller.uid == self.owner.uid {
            Relation::Controlled
        } else if controller.kind == self.owner.kind
            && controller.name == self.owner.name
            && group(controller) == group(&self.owner)
        {
            Relation::Former
        } else {
            Relation::Foreign
        }
    }

    /// Checks that the object has a name, and that it can be marked as one of the parent.
    pub(super) fn check(&self, (resource, child): &ChildId) -> Result<(), ChildError> {
        if child.name().is_empty() {
            return Err(ChildError::NoName {
                kind: resource.kind().to_owned(),
            });
        }
        let lacks_namespace = child.namespace().is_empty() && resource.is_namespaced() == Some(true);
        if self.set.is_some() {
            return match lacks_namespace {
                true => Err(ChildError::NoNamespace {
                    child: describe(resource, child),
                }),
                false => Ok(()),
            };
        }
        let reason = if lacks_namespace {
            "it is namespaced and has no namespace; name one with `child_in`".to_owned()
        } else if self.can_reference(child.namespace()) {
            return Ok(());
        } else if child.namespace().is_empty() {
            "it is cluster-scoped, and a namespaced object cannot own it".to_owned()
        } else {
            let parent = &self.parent_namespace;
            format!("owner references do not cross namespaces, and its parent is in `{parent}`")
        };
        Err(ChildError::CannotOwn {
            child: describe(resource, child),
            reason,
        })
    }

    /// Returns true if the garbage collector follows a reference from an object in this namespace to the parent.
    fn can_reference(&self, namespace: &str) -> bool {
        self.parent_namespace.is_empty() || self.parent_namespace == namespace
    }

    /// Marks the metadata of an object as one of the parent.
    pub(super) fn mark(&self, (resource, key): &ChildId, metadata: &mut Map<String, Value>) {
        if self.can_reference(key.namespace()) {
            let owners = metadata.entry("ownerReferences").or_insert_with(|| json!([]));
            if let Value::Array(owners) = owners {
                owners.retain(|known| known.get("uid") != Some(&json!(self.owner.uid)));
                owners.push(json!(self.owner));
            }
        }
        if let Some(set) = &self.set {
            let member = self.member_of(resource, key);
            for (field, name, value) in [
                ("labels", names::PART_OF, &**set),
                ("annotations", names::MEMBER, &member),
            ] {
                let pairs = metadata.entry(field).or_insert_with(|| json!({}));
                if !pairs.is_object() {
                    *pairs = json!({});
                }
                pairs[name] = json!(value);
            }
        }
    }

    /// Value of the annotation that binds a member to the uid of the parent and to its own name. A copy of the annotation on
    /// another object does not match.
    pub(crate) fn member_of(&self, resource: &Resource, key: &steersman_core::ObjectKey) -> String {
        let kind = names::GroupKind::of(resource);
        format!("{}/{kind}/{}/{}", self.owner.uid, key.namespace(), key.name())
    }

    /// Returns true for an entry of `managedFields` of a create by this manager that was not taken over. Other writes by the
    /// same field manager do not set the marks.
    pub(super) fn is_created_entry(&self, entry: &Value, manager: &str) -> bool {
        let marked = match &self.set {
            None => entry.pointer("/fieldsV1/f:metadata/f:ownerReferences").is_some(),
            Some(_) => names::owns_part_of(entry),
        };
        marked && projection::is_entry(entry, manager, "Update")
    }
}

/// Everything that determines the marks of an object.
impl Hash for Ownership {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.owner.uid, &self.set).hash(state);
    }
}
