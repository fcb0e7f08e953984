// SPDX-License-Identifier: Apache-2.0
//! Garbage collection by owner references.
//!
//! # Guarantees
//! 1. An object all of whose owners are gone is deleted; one that has an owner left loses the references to the others.
//! 2. An owner that is deleted in the foreground stays until no dependent blocks it.
//! 3. An owner that is deleted as an orphaner lets its dependents go first.
//! 4. A finalizer of the collector's that is done does not take an object away that something else keeps.
//! 5. An owner is known by its uid: another object of the same name is not it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::{Value, json};

use super::Work;
use crate::{
    handler::{
        Target,
        delete::{DeleteOptions, Propagation, remove, set_finalizers},
        update::{finalizers, is_done_for},
    },
    managed,
    resource::Resource,
    state::Context,
    store::{Object, StorageId, Stored, metadata_of},
};

type Place = (StorageId, Arc<str>);

/// Who depends on whom, by uid.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    dependents: HashMap<String, BTreeSet<Place>>,
    owners: HashMap<Place, Vec<String>>,
}

impl Owners {
    /// Takes note of an object's owners, or of its end; true if it has any.
    pub(crate) fn note(&mut self, storage: StorageId, key: &Arc<str>, stored: Option<&Stored>) -> bool {
        let object = stored.map(Stored::object);
        let references = object
            .as_ref()
            .and_then(|object| metadata_of(object).get("ownerReferences"))
            .and_then(Value::as_array);
        if references.is_none() && self.owners.is_empty() {
            return false;
        }
        let place = (storage, Arc::clone(key));
        for uid in self.owners.remove(&place).unwrap_or_default() {
            if let Some(places) = self.dependents.get_mut(&uid) {
                places.remove(&place);
                if places.is_empty() {
                    self.dependents.remove(&uid);
                }
            }
        }
        let uids: Vec<String> = references
            .into_iter()
            .flatten()
            .filter_map(|owner| owner.get("uid")?.as_str())
            .map(str::to_owned)
            .collect();
        if uids.is_empty() {
            return false;
        }
        for uid in &uids {
            self.dependents
                .entry(uid.clone())
                .or_default()
                .insert(place.clone());
        }
        self.owners.insert(place, uids);
        true
    }

    pub(crate) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    pub(crate) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }
}

/// What an owner reference points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It is there, or nobody can tell.
    Solid,
    /// It is gone.
    Dangling,
    /// It is being deleted in the foreground and waits for this dependent.
    Waiting,
}

/// The resource that a storage belongs to.
pub(super) fn resource_of(cx: &Context<'_>, storage: StorageId) -> Option<Arc<Resource>> {
    cx.state
        .registry
        .all()
        .iter()
        .find(|resource| resource.storage == storage)
        .cloned()
}

fn classify(cx: &Context<'_>, dependent: &Stored, reference: &Value) -> Owner {
    let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    let Some(resource) = cx.state.registry.find_kind(group, text("kind")) else {
        return Owner::Solid;
    };
    let namespace = dependent.text("namespace");
    if resource.namespaced && namespace.is_empty() {
        // A cluster-scoped object cannot be owned by a namespaced one; nobody can tell which is meant.
        return Owner::Solid;
    }
    match cx
        .state
        .store
        .get(resource.storage, &resource.key(&namespace, text("name")))
    {
        Some(owner) if owner.text("uid") == text("uid") => {
            let foreground =
                owner.is_deleting() && finalizers(&owner.object()).contains(&"foregroundDeletion");
            if foreground && reference.get("blockOwnerDeletion") == Some(&json!(true)) {
                Owner::Waiting
            } else {
                Owner::Solid
            }
        }
        _ => Owner::Dangling,
    }
}

fn references(object: &Object) -> Vec<Value> {
    metadata_of(object)
        .get("ownerReferences")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default()
}

/// Looks at an object that has owners.
pub(crate) fn dependent(cx: &mut Context<'_>, storage: StorageId, key: &str) {
    let (Some(resource), Some(stored)) = (
        resource_of(cx, storage),
        cx.state.store.get(storage, key).cloned(),
    ) else {
        return;
    };
    let object = stored.object();
    let references = references(&object);
    if references.is_empty() {
        return;
    }
    let kinds: Vec<Owner> = references
        .iter()
        .map(|reference| classify(cx, &stored, reference))
        .collect();
    if kinds.contains(&Owner::Solid) {
        if kinds.iter().any(|kind| *kind != Owner::Solid) {
            let kept = references
                .into_iter()
                .zip(kinds)
                .filter(|(_, kind)| *kind == Owner::Solid)
                .map(|(reference, _)| reference)
                .collect();
            put_references(cx, &resource, key, &stored, kept);
        }
        return;
    }
    if stored.is_deleting() {
        return;
    }
    let uid = stored.text("uid");
    let names = finalizers(&object);
    let propagation = if names.contains(&"orphan") {
        Propagation::Orphan
    } else if names.contains(&"foregroundDeletion")
        || kinds.contains(&Owner::Waiting) && cx.state.owners.has_dependents(&uid)
    {
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    let target = Target::of(&resource, &stored);
    let options = DeleteOptions {
        propagation: Some(propagation),
        uid: Some(uid),
        ..DeleteOptions::default()
    };
    // It cannot fail: nothing happens between looking and deleting.
    let _ = remove(cx, &target, &options);
}

fn put_references(
    cx: &mut Context<'_>,
    resource: &Arc<Resource>,
    key: &str,
    stored: &Stored,
    kept: Vec<Value>,
) {
    let mut object = Object::clone(&stored.object());
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        if kept.is_empty() {
            metadata.remove("ownerReferences");
        } else {
            metadata.insert("ownerReferences".to_owned(), Value::Array(kept));
        }
    }
    write(cx, resource, key, stored, object);
}

/// Writes as the controller manager does.
fn write(cx: &mut Context<'_>, resource: &Arc<Resource>, key: &str, stored: &Stored, mut object: Object) {
    let target = Target::of(resource, stored);
    managed::on_update(
        cx,
        &target,
        Some(&stored.object()),
        &mut object,
        "kube-controller-manager",
    );
    cx.put(resource, key, object);
}

/// Looks at an owner that is being deleted and waits.
pub(crate) fn owner(cx: &mut Context<'_>, storage: StorageId, key: &str) {
    let (Some(resource), Some(stored)) = (
        resource_of(cx, storage),
        cx.state.store.get(storage, key).cloned(),
    ) else {
        return;
    };
    let uid = stored.text("uid");
    let object = stored.object();
    let names = finalizers(&object);
    if !stored.is_deleting() {
        return;
    }
    if names.contains(&"orphan") {
        for (storage, key) in cx.state.owners.dependents(&uid) {
            let (Some(resource), Some(dependent)) = (
                resource_of(cx, storage),
                cx.state.store.get(storage, &key).cloned(),
            ) else {
                continue;
            };
            let kept = references(&dependent.object())
                .into_iter()
                .filter(|reference| reference.get("uid") != Some(&json!(uid)))
                .collect();
            put_references(cx, &resource, &key, &dependent, kept);
        }
        release(cx, &resource, key, &stored, "orphan");
    } else if names.contains(&"foregroundDeletion") {
        let blocking: Vec<Place> = cx
            .state
            .owners
            .dependents(&uid)
            .into_iter()
            .filter(|(storage, key)| blocks(cx, *storage, key, &uid))
            .collect();
        if blocking.is_empty() {
            release(cx, &resource, key, &stored, "foregroundDeletion");
            return;
        }
        for (storage, key) in blocking {
            super::push(cx, Work::Dependent(storage, key));
        }
    }
}

fn blocks(cx: &Context<'_>, storage: StorageId, key: &str, uid: &str) -> bool {
    cx.state.store.get(storage, key).is_some_and(|stored| {
        references(&stored.object()).iter().any(|reference| {
            reference.get("uid") == Some(&json!(uid))
                && reference.get("blockOwnerDeletion") == Some(&json!(true))
        })
    })
}

/// Takes a finalizer away; the object goes if nothing else keeps it.
pub(super) fn release(
    cx: &mut Context<'_>,
    resource: &Arc<Resource>,
    key: &str,
    stored: &Stored,
    finalizer: &str,
) {
    let mut object = Object::clone(&stored.object());
    let left: Vec<String> = finalizers(&object)
        .into_iter()
        .filter(|name| *name != finalizer)
        .map(str::to_owned)
        .collect();
    set_finalizers(&mut object, &left);
    if is_done_for(&Target::of(resource, stored), &object) {
        cx.remove(resource, key);
        return;
    }
    write(cx, resource, key, stored, object);
}

/// Looks at all that an owner leaves behind.
pub(crate) fn gone(cx: &mut Context<'_>, uid: &str) {
    for (storage, key) in cx.state.owners.dependents(uid) {
        super::push(cx, Work::Dependent(storage, key));
    }
}

/// The owners of a removed object that may have waited for its end.
pub(crate) fn waiting_owners(cx: &Context<'_>, removed: &Stored) -> Vec<Work> {
    let namespace = removed.text("namespace");
    let found = references(&removed.object()).into_iter().filter_map(|reference| {
        let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let resource = cx.state.registry.find_kind(group, text("kind"))?;
        let key = resource.key(&namespace, text("name"));
        let owner = cx.state.store.get(resource.storage, &key)?;
        owner
            .is_deleting()
            .then(|| Work::Owner(resource.storage, Arc::from(key)))
    });
    found.collect()
}
