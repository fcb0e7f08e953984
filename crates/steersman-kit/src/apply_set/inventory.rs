// SPDX-License-Identifier: Apache-2.0
//! The inventory of a set: which kinds and namespaces it has members in. It survives the process, so that a later one finds the
//! members of kinds that its code does not mention any more.
//!
//! Every write names the version of the object that it was computed from. A stale read can therefore not remove an entry.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{api::Patch, core::DynamicObject};
use serde_json::{Value, json};
use steersman_cache::{Object, Resource};
use steersman_core::ObjectKey;

use super::{ApplySetError, names, names::GroupKind};
use crate::children::Children;

/// Object that stores the inventory of an apply set. Default: the parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InventoryIn(Place);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Parent,
    ConfigMap {
        suffix: &'static str,
        namespace: Option<&'static str>,
    },
}

impl InventoryIn {
    /// Stores the inventory in labels and annotations of the parent.
    #[must_use]
    pub const fn parent() -> Self {
        Self(Place::Parent)
    }

    /// Stores the inventory in a ConfigMap whose name is that of the parent with this suffix, in the namespace of the parent. Use
    /// it if the controller must not write the parent, or if another tool uses the parent for a set.
    #[must_use]
    pub const fn config_map(suffix: &'static str) -> Self {
        Self(Place::ConfigMap {
            suffix,
            namespace: None,
        })
    }

    /// As [`config_map`](Self::config_map), for cluster-scoped parents: in this namespace.
    #[must_use]
    pub const fn config_map_in(namespace: &'static str, suffix: &'static str) -> Self {
        Self(Place::ConfigMap {
            suffix,
            namespace: Some(namespace),
        })
    }
}

/// Kinds and namespaces of the members of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    pub(crate) kinds: BTreeSet<GroupKind>,
    /// Includes the namespace of the parent.
    pub(crate) namespaces: BTreeSet<String>,
}

impl Inventory {
    pub(crate) fn add(&mut self, kind: GroupKind, namespace: &str) {
        self.kinds.insert(kind);
        if !namespace.is_empty() {
            self.namespaces.insert(namespace.to_owned());
        }
    }

    pub(crate) fn merged(&self, other: &Self) -> Self {
        Self {
            kinds: &self.kinds | &other.kinds,
            namespaces: &self.namespaces | &other.namespaces,
        }
    }

    fn read(object: &Object) -> Self {
        let list = |name: &str| -> Vec<String> {
            let value = object.annotation(name).unwrap_or_default();
            let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(ToOwned::to_owned).collect()
        };
        let kinds = list(names::GROUP_KINDS);
        Self {
            kinds: kinds.iter().map(|text| GroupKind::parse(text)).collect(),
            namespaces: list(names::NAMESPACES).into_iter().collect(),
        }
    }

    /// Labels and annotations of the object at `key` that has this inventory.
    fn metadata(&self, id: &str, tooling: &str, key: &ObjectKey) -> Value {
        let kinds: Vec<String> = self.kinds.iter().map(ToString::to_string).collect();
        let others = self.namespaces.iter().filter(|name| *name != key.namespace());
        let namespaces: Vec<&str> = others.map(String::as_str).collect();
        json!({
            "labels": {names::ID: id},
            "annotations": {
                names::TOOLING: tooling,
                names::GROUP_KINDS: kinds.join(","),
                names::NAMESPACES: namespaces.join(","),
            },
        })
    }
}

/// The stored inventory of a set.
pub(crate) struct Stored {
    pub(crate) inventory: Inventory,
    /// Version of the object; `None` if it does not exist.
    version: Option<String>,
    /// False if the object does not have the id of the set yet.
    is_marked: bool,
}

/// The object that has the inventory of a set.
pub(crate) struct InventoryObject {
    resource: Resource,
    key: ObjectKey,
    is_parent: bool,
    pub(crate) id: Arc<str>,
}

impl InventoryObject {
    pub(crate) fn new(parent: &Resource, key: &ObjectKey, place: InventoryIn) -> Self {
        let (resource, key, is_parent) = match place.0 {
            Place::Parent => (parent.clone(), key.clone(), true),
            Place::ConfigMap { suffix, namespace } => {
                // The garbage collector deletes objects whose owner is in another namespace.
                let namespace = match key.namespace() {
                    "" => namespace.unwrap_or_default(),
                    own => own,
                };
                let name = format!("{}-{suffix}", key.name());
                (
                    Resource::of::<ConfigMap>(),
                    ObjectKey::new(namespace, &name),
                    false,
                )
            }
        };
        let id = names::set_id(&resource, &key);
        Self {
            resource,
            key,
            is_parent,
            id,
        }
    }

    /// Adds the namespace of the object, which every inventory with members implies.
    pub(crate) fn completed(&self, mut inventory: Inventory) -> Inventory {
        if !self.key.namespace().is_empty() && !inventory.kinds.is_empty() {
            inventory.namespaces.insert(self.key.namespace().to_owned());
        }
        inventory
    }

    /// Reads the inventory: that of a parent from the cache, unless `is_live`.
    pub(crate) async fn read(&self, members: &Children, is_live: bool) -> Result<Stored, ApplySetError> {
        let client = match is_live {
            true => members.client().live(),
            false => members.client().clone(),
        };
        let found = client.of(&self.resource).get_object(&self.key).await?;
        let Some(object) = found else {
            return Ok(Stored {
                inventory: Inventory::default(),
                version: None,
                is_marked: false,
            });
        };
        if self.is_copied(members, &object) {
            return Ok(Stored {
                inventory: Inventory::default(),
                version: Some(object.resource_version().to_owned()),
                is_marked: false,
            });
        }
        self.check(members, &object)?;
        Ok(Stored {
            inventory: self.completed(Inventory::read(&object)),
            version: Some(object.resource_version().to_owned()),
            is_marked: object.label(names::ID).is_some(),
        })
    }

    /// Returns true if a person copied the parent with the labels and annotations of its set.
    fn is_copied(&self, members: &Children, object: &Object) -> bool {
        let tooling = object.annotation(names::TOOLING);
        let tool = tooling.as_deref().and_then(|tooling| tooling.split('/').next());
        self.is_parent
            && object.uid() == members.ownership().owner.uid
            && object.label(names::ID).is_some_and(|id| id != *self.id)
            && tool == Some(&*tool_of(members))
    }

    /// Checks that the object exists for this parent, and that no other tool uses it for a set.
    fn check(&self, members: &Children, object: &Object) -> Result<(), ApplySetError> {
        let uid = &members.ownership().owner.uid;
        let is_ours = match self.is_parent {
            true => object.uid() == uid,
            false => object.owners().iter().any(|owner| owner.uid == *uid),
        };
        if !is_ours {
            return Err(ApplySetError::InventoryReplaced {
                object: self.to_string(),
            });
        }
        let tooling = object.annotation(names::TOOLING);
        let tool = tooling.as_deref().and_then(|tooling| tooling.split('/').next());
        let id = object.label(names::ID);
        let is_taken =
            id.is_some_and(|id| id != *self.id) || tool.is_some_and(|tool| tool != tool_of(members));
        match is_taken {
            true => Err(ApplySetError::OtherTool {
                object: self.to_string(),
                tool: tooling.unwrap_or_default().into_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Writes the inventory that `change` makes of the stored one, unless it is the same. Returns the written one.
    pub(crate) async fn write(
        &self,
        members: &Children,
        mut stored: Stored,
        change: impl Fn(&Inventory) -> Inventory,
    ) -> Result<Stored, ApplySetError> {
        for _ in 0..TRIES {
            let inventory = self.completed(change(&stored.inventory));
            if stored.is_marked && inventory == stored.inventory {
                return Ok(stored);
            }
            match self.send(members, &stored, &inventory).await {
                Ok(version) => {
                    return Ok(Stored {
                        inventory,
                        version: Some(version),
                        is_marked: true,
                    });
                }
                Err(ApplySetError::Request(error)) if error.is_conflict() || error.is_already_exists() => {}
                Err(error) => return Err(error),
            }
            stored = self.read(members, true).await?;
            if self.is_parent && stored.version.is_none() {
                return Err(ApplySetError::InventoryReplaced {
                    object: self.to_string(),
                });
            }
        }
        Err(ApplySetError::Contended {
            object: self.to_string(),
        })
    }

    /// Sends the inventory and returns the new version of the object.
    async fn send(
        &self,
        members: &Children,
        stored: &Stored,
        inventory: &Inventory,
    ) -> Result<String, ApplySetError> {
        let tooling = format!("{}/v{}", tool_of(members), env!("CARGO_PKG_VERSION"));
        let mut metadata = inventory.metadata(&self.id, &tooling, &self.key);
        let client = members.client().of(&self.resource);
        let written = if let Some(version) = &stored.version {
            metadata["resourceVersion"] = json!(version);
            let patch = Patch::Merge(json!({"metadata": metadata}));
            client.patch(&self.key, &patch).await?
        } else {
            metadata["name"] = json!(self.key.name());
            metadata["namespace"] = json!(self.key.namespace());
            metadata["ownerReferences"] = json!([members.ownership().owner]);
            let metadata =
                serde_json::from_value(metadata).map_err(ApplySetError::encode(&self.to_string()))?;
            let object = DynamicObject {
                types: None,
                metadata,
                data: json!({}),
            };
            client.create(&object).await?
        };
        Ok(written.metadata.resource_version.unwrap_or_default())
    }
}

impl std::fmt::Display for InventoryObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} `{}`", self.resource.kind(), self.key)
    }
}

/// A write is repeated this often after conflicts.
const TRIES: u32 = 5;

/// Name of the tool that manages the set: the field manager of its members.
fn tool_of(members: &Children) -> String {
    members.field_manager().replace('/', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inventory_is_read_as_it_was_written() {
        let mut inventory = Inventory::default();
        inventory.add(GroupKind::parse("ConfigMap"), "here");
        inventory.add(GroupKind::parse("Deployment.apps"), "there");
        inventory.add(GroupKind::parse("Namespace"), "");
        let mut metadata = inventory.metadata("id", "tool/v1", &ObjectKey::new("here", "parent"));
        assert_eq!(
            metadata["annotations"],
            json!({
                names::TOOLING: "tool/v1",
                names::GROUP_KINDS: "ConfigMap,Deployment.apps,Namespace",
                names::NAMESPACES: "there",
            })
        );
        metadata["namespace"] = json!("here");
        metadata["name"] = json!("parent");
        let bytes = serde_json::to_vec(&json!({"metadata": metadata})).unwrap();
        let read = Inventory::read(&Object::from_slice(&bytes).unwrap());
        let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
        let parent = InventoryObject::new(&maps, &ObjectKey::new("here", "parent"), InventoryIn::parent());
        assert_eq!(parent.completed(read), inventory);
    }
}
