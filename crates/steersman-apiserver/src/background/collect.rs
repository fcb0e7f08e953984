// SPDX-License-Identifier: Apache-2.0
//! Garbage collection by owner references.
//!
//! # Guarantees
//! 1. An object is deleted if none of its owners exists. An object with an existing owner loses the references to the
//!    others.
//! 2. An owner with foreground deletion stays until no dependent blocks it.
//! 3. An owner with orphan deletion stays until its dependents are released.
//! 4. Removing a finalizer of the collector does not delete an object that something else keeps.
//! 5. An owner is identified by its uid: another object of the same name is not the owner.
//! 6. An owner whose deletion was observed counts as deleted, even if its kind is no longer served.
//! 7. An owner of an unserved kind whose deletion was not observed counts as existing. Its dependents are checked again
//!    as soon as the kind is served.
//! 8. Objects that own each other in a cycle and are deleted in the foreground are removed: the object that closes the
//!    cycle stops blocking its owners.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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

/// The graph of owners and dependents, by uid.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    dependents: HashMap<String, BTreeSet<Place>>,
    owners: HashMap<Place, Vec<String>>,
    /// Owners whose deletion was observed, by uid, kept while a dependent refers to them.
    departed: HashMap<String, Identity>,
    /// Dependents with owners whose kinds were not served at the last check.
    waiting: BTreeMap<Place, BTreeSet<Kind>>,
}

/// Group and kind.
type Kind = (String, String);

/// The identity of an owner besides its uid. As in the real collector's cache of absent owners, the uid alone is not
/// enough: a reference may contain the uid of an object of another kind or in another namespace.
#[derive(Debug)]
struct Identity {
    kind: Kind,
    /// Empty for a cluster-scoped owner, which can have dependents in any namespace.
    namespace: String,
    name: String,
}

impl Owners {
    /// Records the owners of a written object, or the removal of an object; returns true if it has owners.
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
        self.waiting.remove(&place);
        let before = self.owners.remove(&place).unwrap_or_default();
        for uid in &before {
            if let Some(places) = self.dependents.get_mut(uid) {
                places.remove(&place);
                if places.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
        let uids: Vec<String> = references
            .into_iter()
            .flatten()
            .filter_map(|owner| owner.get("uid")?.as_str())
            .map(str::to_owned)
            .collect();
        for uid in &uids {
            self.dependents
                .entry(uid.clone())
                .or_default()
                .insert(place.clone());
        }
        // This must happen last: an object that is written again and still refers to a deleted owner still needs the
        // record of the deletion.
        for uid in before.iter().filter(|uid| !self.dependents.contains_key(*uid)) {
            self.departed.remove(uid);
        }
        if uids.is_empty() {
            return false;
        }
        self.owners.insert(place, uids);
        true
    }

    /// Records the deletion of an owner; returns true if it has dependents.
    pub(crate) fn note_departure(&mut self, uid: &str, resource: &Resource, removed: &Stored) -> bool {
        if !self.has_dependents(uid) {
            return false;
        }
        let identity = Identity {
            kind: (resource.group.clone(), resource.kind.clone()),
            namespace: removed.text("namespace"),
            name: removed.text("name"),
        };
        self.departed.insert(uid.to_owned(), identity);
        true
    }

    /// Returns true if the deletion of the owner that an object in `namespace` refers to was observed.
    fn has_departed(&self, reference: &Value, namespace: &str) -> bool {
        let (group, kind) = kind_of(reference);
        self.departed.get(text_of(reference, "uid")).is_some_and(|owner| {
            owner.kind.0 == group
                && owner.kind.1 == kind
                && owner.name == text_of(reference, "name")
                && (owner.namespace.is_empty() || owner.namespace == namespace)
        })
    }

    /// Records the kinds that must be served before all owners of an object are known.
    fn wait(&mut self, place: Place, kinds: BTreeSet<Kind>) {
        if kinds.is_empty() {
            self.waiting.remove(&place);
        } else {
            self.waiting.insert(place, kinds);
        }
    }

    fn waiting_for(&self, kind: &Kind) -> Vec<Place> {
        let waiting = self.waiting.iter().filter(|(_, kinds)| kinds.contains(kind));
        waiting.map(|(place, _)| place.clone()).collect()
    }

    pub(crate) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    pub(crate) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }
}

fn text_of<'a>(reference: &'a Value, key: &str) -> &'a str {
    reference.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns group and kind of an owner.
fn kind_of(reference: &Value) -> (&str, &str) {
    let group = text_of(reference, "apiVersion")
        .split_once('/')
        .map_or("", |(group, _)| group);
    (group, text_of(reference, "kind"))
}

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The owner exists, or its existence is unknown.
    Solid,
    /// The owner does not exist.
    Dangling,
    /// The owner is being deleted in the foreground and waits for this dependent.
    Waiting,
}

/// Returns the resource of a storage.
pub(super) fn resource_of(cx: &Context<'_>, storage: StorageId) -> Option<Arc<Resource>> {
    cx.state
        .registry
        .all()
        .iter()
        .find(|resource| resource.storage == storage)
        .cloned()
}

fn classify(cx: &Context<'_>, dependent: &Stored, reference: &Value) -> Owner {
    let namespace = dependent.text("namespace");
    let (group, kind) = kind_of(reference);
    let Some(resource) = cx.state.registry.find_kind(group, kind) else {
        return if cx.state.owners.has_departed(reference, &namespace) {
            Owner::Dangling
        } else {
            Owner::Solid
        };
    };
    if resource.namespaced && namespace.is_empty() {
        // A cluster-scoped object cannot have a namespaced owner: the reference is ambiguous.
        return Owner::Solid;
    }
    match cx.state.store.get(
        resource.storage,
        &resource.key(&namespace, text_of(reference, "name")),
    ) {
        Some(owner) if owner.text("uid") == text_of(reference, "uid") => {
            if is_deleted_in_foreground(owner) && reference.get("blockOwnerDeletion") == Some(&json!(true)) {
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

/// Returns the kinds of owners that are not served.
fn unserved(cx: &Context<'_>, references: &[Value]) -> BTreeSet<Kind> {
    let kinds = references.iter().map(kind_of);
    kinds
        .filter(|(group, kind)| cx.state.registry.find_kind(group, kind).is_none())
        .map(|(group, kind)| (group.to_owned(), kind.to_owned()))
        .collect()
}

/// Processes an object that has owners.
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
    let unserved = unserved(cx, &references);
    cx.state.owners.wait((storage, Arc::from(key)), unserved);
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
    if kinds.contains(&Owner::Waiting) && closes_circle(cx, &uid) {
        unblock(cx, &resource, key, &stored);
    }
    let target = Target::of(&resource, &stored);
    let options = DeleteOptions {
        propagation: Some(propagation),
        uid: Some(uid),
        ..DeleteOptions::default()
    };
    // This cannot fail: no write happens between the check and the deletion.
    let _ = remove(cx, &target, &options);
}

/// Returns true if one of the object's dependents is itself being deleted in the foreground, and so waits for this
/// object.
///
/// As in the real collector, this can be true without a cycle; the object is then deleted without blocking its owners.
fn closes_circle(cx: &Context<'_>, uid: &str) -> bool {
    let dependents = cx.state.owners.dependents(uid).into_iter();
    dependents
        .filter_map(|(storage, key)| cx.state.store.get(storage, &key))
        .any(|stored| is_deleted_in_foreground(stored))
}

fn is_deleted_in_foreground(stored: &Stored) -> bool {
    stored.is_deleting() && finalizers(&stored.object()).contains(&"foregroundDeletion")
}

/// Clears `blockOwnerDeletion` in all owner references of an object.
fn unblock(cx: &mut Context<'_>, resource: &Arc<Resource>, key: &str, stored: &Stored) {
    let mut references = references(&stored.object());
    for reference in &mut references {
        if reference.get("blockOwnerDeletion") == Some(&json!(true)) {
            reference["blockOwnerDeletion"] = json!(false);
        }
    }
    put_references(cx, resource, key, stored, references);
    for owner in waiting_owners(cx, stored) {
        super::push(cx, owner);
    }
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

/// Writes an object as the controller manager does.
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

/// Processes a terminating owner that waits for its dependents.
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

/// Removes a finalizer; the object is deleted if nothing else keeps it.
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

/// Queues all dependents of a removed owner.
pub(crate) fn gone(cx: &mut Context<'_>, uid: &str) {
    for (storage, key) in cx.state.owners.dependents(uid) {
        super::push(cx, Work::Dependent(storage, key));
    }
}

/// Queues all dependents that waited for a kind to be served.
pub(crate) fn served(cx: &mut Context<'_>, group: &str, kind: &str) {
    let kind = (group.to_owned(), kind.to_owned());
    for (storage, key) in cx.state.owners.waiting_for(&kind) {
        super::push(cx, Work::Dependent(storage, key));
    }
}

/// Returns the owners of a removed object that may have waited for its removal.
pub(crate) fn waiting_owners(cx: &Context<'_>, removed: &Stored) -> Vec<Work> {
    let namespace = removed.text("namespace");
    let found = references(&removed.object()).into_iter().filter_map(|reference| {
        let (group, kind) = kind_of(&reference);
        let resource = cx.state.registry.find_kind(group, kind)?;
        let key = resource.key(&namespace, text_of(&reference, "name"));
        let owner = cx.state.store.get(resource.storage, &key)?;
        owner
            .is_deleting()
            .then(|| Work::Owner(resource.storage, Arc::from(key)))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        resource::builtin,
        store::{Retention, Store},
    };

    fn stored(metadata: &Value) -> Stored {
        let object = json!({"metadata": metadata});
        Stored::new(object.as_object().unwrap().clone(), 1, 0)
    }

    #[test]
    fn guarantee_6_an_owner_that_went_is_remembered_while_somebody_names_it() {
        let mut store = Store::new(Retention {
            entries: 1,
            bytes: usize::MAX,
        });
        let resources = builtin::resources(&mut store);
        let maps = resources.iter().find(|kind| kind.is("", "configmaps")).unwrap();
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"});
        let owner = stored(&json!({"name": "a", "namespace": "default"}));
        let child = stored(&json!({"name": "b", "namespace": "default", "ownerReferences": [reference]}));
        let key: Arc<str> = Arc::from("default/b");
        let mut owners = Owners::default();
        assert!(!owners.note_departure("1", maps, &owner), "nobody names it yet");
        owners.note(maps.storage, &key, Some(&child));
        assert!(!owners.has_departed(&reference, "default"));
        assert!(owners.note_departure("1", maps, &owner));
        owners.note(maps.storage, &key, Some(&child));
        assert!(owners.has_departed(&reference, "default"));
        assert!(!owners.has_departed(&reference, "elsewhere"));
        owners.note(maps.storage, &key, None);
        assert!(owners.departed.is_empty());
    }

    #[test]
    fn guarantee_7_a_wait_for_a_kind_ends_when_the_kind_is_removed() {
        let kind = ("example.com".to_owned(), "Widget".to_owned());
        let child = stored(&json!({"name": "b", "ownerReferences": [{"uid": "1"}]}));
        let place = (StorageId(0), Arc::from("default/b"));
        let mut owners = Owners::default();
        owners.note(place.0, &place.1, Some(&child));
        owners.wait(place.clone(), BTreeSet::from([kind.clone()]));
        assert_eq!(owners.waiting_for(&kind), std::slice::from_ref(&place));
        owners.note(place.0, &place.1, None);
        assert!(owners.waiting.is_empty());
    }
}
