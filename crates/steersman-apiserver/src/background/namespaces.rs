// SPDX-License-Identifier: Apache-2.0
//! The namespace controller.
//!
//! # Guarantees
//! 1. All objects in a terminating namespace are deleted; the namespace is removed when none is left.
//! 2. While objects are left, the conditions of the namespace name them and the reason.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use crate::{
    handler::{
        Target,
        delete::{DeleteOptions, Propagation, remove},
        update::finalizers,
    },
    managed,
    resource::Resource,
    state::Context,
    store::{Object, Stored},
};

/// Empties a terminating namespace, and removes it once it is empty.
pub(crate) fn advance(cx: &mut Context<'_>, name: &str) {
    let Some(stored) = cx.find("", "namespaces", name).cloned() else {
        return;
    };
    if !stored.is_deleting() {
        return;
    }
    empty(cx, name);
    let left = remaining(cx, name);
    let old = stored.object();
    let mut object = Object::clone(&old);
    set_conditions(cx, &mut object, &left);
    let Some(resource) = cx.state.registry.find("", "namespaces").cloned() else {
        return;
    };
    if object != *old {
        let target = Target {
            resource: Arc::clone(&resource),
            version: 0,
            namespace: String::new(),
            name: name.to_owned(),
            subresource: "status".to_owned(),
        };
        managed::on_update(cx, &target, Some(&old), &mut object, "kube-controller-manager");
        // This writes only the status that clients see, and queues no further work.
        cx.state.store.put(resource.storage, name, object.clone(), 0);
    }
    if !left.is_empty() {
        return;
    }
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    let is_news = spec.is_some_and(|spec| spec.remove("finalizers").is_some());
    if finalizers(&object).is_empty() {
        cx.remove(&resource, name);
    } else if is_news {
        cx.state.store.put(resource.storage, name, object, 0);
    }
}

/// Returns the objects in a namespace, each once.
fn contents(cx: &Context<'_>, name: &str) -> Vec<(Arc<Resource>, Arc<Stored>)> {
    let prefix = format!("{name}/");
    let mut seen = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    for resource in cx
        .state
        .registry
        .all()
        .iter()
        .filter(|resource| resource.namespaced)
    {
        if seen.insert(resource.storage) {
            let objects = cx
                .state
                .store
                .scan(resource.storage, &prefix, None, cx.state.store.revision());
            found.extend(
                objects
                    .into_iter()
                    .map(|(_, stored)| (Arc::clone(resource), stored)),
            );
        }
    }
    found
}

fn empty(cx: &mut Context<'_>, name: &str) {
    let options = DeleteOptions {
        propagation: Some(Propagation::Background),
        ..DeleteOptions::default()
    };
    for (resource, stored) in contents(cx, name) {
        if stored.is_deleting() {
            continue;
        }
        let target = Target::of(&resource, &stored);
        // An object that no longer exists needs no deletion.
        let _ = remove(cx, &target, &options);
    }
}

fn remaining(cx: &Context<'_>, name: &str) -> Vec<(Arc<Resource>, Arc<Stored>)> {
    contents(cx, name)
}

fn set_conditions(cx: &Context<'_>, object: &mut Object, left: &[(Arc<Resource>, Arc<Stored>)]) {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut held: BTreeMap<String, usize> = BTreeMap::new();
    for (resource, stored) in left {
        *kinds
            .entry(format!("{}.{}", resource.plural, resource.group))
            .or_default() += 1;
        for finalizer in finalizers(&stored.object()) {
            *held.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
    let list = |counts: &BTreeMap<String, usize>, with: &str| {
        counts
            .iter()
            .map(|(name, count)| format!("{name} {with} {count} resource instances"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (remain, finalizing) = (!kinds.is_empty(), !held.is_empty());
    let conditions = [
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".to_owned(),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".to_owned(),
        ),
        (
            "NamespaceDeletionContentFailure",
            false,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization".to_owned(),
        ),
        if remain {
            (
                "NamespaceContentRemaining",
                true,
                "SomeResourcesRemain",
                format!("Some resources are remaining: {}", list(&kinds, "has")),
            )
        } else {
            (
                "NamespaceContentRemaining",
                false,
                "ContentRemoved",
                "All content successfully removed".to_owned(),
            )
        },
        if finalizing {
            (
                "NamespaceFinalizersRemaining",
                true,
                "SomeFinalizersRemain",
                format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    list(&held, "in")
                ),
            )
        } else {
            (
                "NamespaceFinalizersRemaining",
                false,
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished".to_owned(),
            )
        },
    ];
    let now = cx.timestamp();
    let Some(Value::Object(status)) = object.get_mut("status") else {
        return;
    };
    let known = status
        .get("conditions")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let new = conditions.map(|(kind, value, reason, message)| {
        let value = if value { "True" } else { "False" };
        let before = known.iter().find(|condition| condition["type"] == kind && condition["status"] == value);
        let since = before.map_or_else(|| now.clone(), |condition| condition["lastTransitionTime"].clone());
        json!({"type": kind, "status": value, "lastTransitionTime": since, "reason": reason, "message": message})
    });
    status.insert("conditions".to_owned(), json!(new));
}
