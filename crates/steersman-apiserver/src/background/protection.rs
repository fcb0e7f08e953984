// SPDX-License-Identifier: Apache-2.0
//! Protection of claims and volumes that are in use.
//!
//! # Guarantees
//! 1. A terminating claim is released once no Pod on a node uses it.
//! 2. A terminating volume is released unless it is bound.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Work, collect};
use crate::{
    handler::update::finalizers,
    resource::{Resource, at},
    state::Context,
    store::{Object, StorageId, Stored, metadata_of},
};

/// Returns the finalizer of new objects of a protected kind.
pub(crate) fn finalizer(resource: &Resource) -> Option<&'static str> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "persistentvolumeclaims") => Some("kubernetes.io/pvc-protection"),
        ("", "persistentvolumes") => Some("kubernetes.io/pv-protection"),
        _ => None,
    }
}

/// Queues a check of the claims and volumes that a write or removal may release.
pub(crate) fn note(cx: &mut Context<'_>, resource: &Arc<Resource>, key: &str, stored: &Stored) {
    if finalizer(resource).is_some() && stored.is_deleting() {
        super::push(cx, Work::Protected(resource.storage, Arc::from(key)));
    }
    if !resource.is("", "pods") {
        return;
    }
    let Some(claims) = cx.state.registry.find("", "persistentvolumeclaims").cloned() else {
        return;
    };
    let object = stored.object();
    let namespace = stored.text("namespace");
    for (name, _) in claims_of(&object) {
        let key = claims.key(&namespace, &name);
        let claim = cx.state.store.get(claims.storage, &key);
        if claim.is_some_and(|claim| claim.is_deleting()) {
            super::push(cx, Work::Protected(claims.storage, Arc::from(key)));
        }
    }
}

/// Releases a terminating object that is not in use.
pub(crate) fn advance(cx: &mut Context<'_>, storage: StorageId, key: &str) {
    let (Some(resource), Some(stored)) = (
        collect::resource_of(cx, storage),
        cx.state.store.get(storage, key).cloned(),
    ) else {
        return;
    };
    let Some(finalizer) = finalizer(&resource) else {
        return;
    };
    let object = stored.object();
    if !stored.is_deleting() || !finalizers(&object).contains(&finalizer) {
        return;
    }
    let is_used = if resource.namespaced {
        let (namespace, name) = (stored.text("namespace"), stored.text("name"));
        cx.all("", "pods")
            .filter(|pod| pod.text("namespace") == namespace)
            .any(|pod| uses(&pod.object(), &name, &object))
    } else {
        at(&object, &["status", "phase"]) == Some(&json!("Bound"))
    };
    if !is_used {
        collect::release(cx, &resource, key, &stored, finalizer);
    }
}

/// Returns the names of a Pod's claims, and true for a claim of an ephemeral volume.
fn claims_of(pod: &Object) -> Vec<(String, bool)> {
    let name = metadata_of(pod).get("name").and_then(Value::as_str);
    let volumes = at(pod, &["spec", "volumes"]).and_then(Value::as_array);
    let claim = |volume: &Value| {
        if volume.get("ephemeral").is_some() {
            let volume = volume.get("name").and_then(Value::as_str)?;
            return Some((format!("{}-{volume}", name?), true));
        }
        let claim = volume.pointer("/persistentVolumeClaim/claimName")?;
        Some((claim.as_str()?.to_owned(), false))
    };
    volumes.into_iter().flatten().filter_map(claim).collect()
}

/// Returns true if a Pod uses a claim. As in the real controller, use starts when the Pod has a node. A claim of an
/// ephemeral volume is in use until its Pod is shut down.
fn uses(pod: &Object, name: &str, claim: &Object) -> bool {
    let node = at(pod, &["spec", "nodeName"]).and_then(Value::as_str);
    if node.unwrap_or_default().is_empty() {
        return false;
    }
    let metadata = metadata_of(pod);
    let is_shut_down = metadata.contains_key("deletionTimestamp")
        && metadata.get("deletionGracePeriodSeconds") == Some(&json!(0));
    let owners = metadata_of(claim)
        .get("ownerReferences")
        .and_then(Value::as_array);
    let is_owner = owners
        .into_iter()
        .flatten()
        .any(|owner| owner.get("uid") == metadata.get("uid"));
    claims_of(pod)
        .into_iter()
        .any(|(known, is_made_for_it)| known == name && (!is_made_for_it || is_owner && !is_shut_down))
}
