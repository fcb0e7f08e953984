// SPDX-License-Identifier: Apache-2.0
//! Background work that follows from writes: CRDs, namespaces, garbage collection, protection, quotas, workloads; and
//! the expiry of Events.
//!
//! In a real cluster three processes do this asynchronously. Here it is a queue: writes add work to it. The server runs
//! the work right after the request that caused it, or step by step when a test asks for it.
//!
//! # Guarantees
//! 1. Work runs in the order in which it was queued.
//! 2. A step is one item of work; it sees all earlier writes, and no other write happens during it.
//! 3. When the queue is empty, nothing is left to do until the next write.

pub(crate) mod collect;
pub(crate) mod expiry;
pub(crate) mod namespaces;
pub(crate) mod protection;

use std::sync::Arc;

use crate::{
    admission, apiservice, crd,
    handler::update::finalizers,
    policy,
    resource::Resource,
    state::Context,
    store::{StorageId, Stored},
    workloads,
    write::admission::quota,
};

/// One item of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A CRD was written, or an object of a terminating CRD was removed.
    Definition(String),
    /// A namespace is terminating.
    Namespace(String),
    /// An APIService was registered.
    ApiService(String),
    /// An object has owner references, and an owner may no longer exist.
    Dependent(StorageId, Arc<str>),
    /// A terminating owner waits for its dependents.
    Owner(StorageId, Arc<str>),
    /// An owner was removed.
    Gone(String),
    /// The usage of the quotas of a namespace may have changed.
    Quota(String),
    /// A terminating claim or volume may no longer be in use.
    Protected(StorageId, Arc<str>),
    /// An admission policy was written.
    Policy(String),
    /// A workload or one of its parts was written, or its timer expired.
    Workload(StorageId, Arc<str>),
}

/// Runs one item of work; returns false if the queue is empty.
pub(crate) fn step(cx: &mut Context<'_>) -> bool {
    let Some(work) = cx.state.pending.pop_front() else {
        return false;
    };
    match work {
        Work::Definition(name) => crd::lifecycle::advance(cx, &name),
        Work::Namespace(name) => namespaces::advance(cx, &name),
        Work::ApiService(name) => apiservice::advance(cx, &name),
        Work::Dependent(storage, key) => collect::dependent(cx, storage, &key),
        Work::Owner(storage, key) => collect::owner(cx, storage, &key),
        Work::Gone(uid) => collect::gone(cx, &uid),
        Work::Protected(storage, key) => protection::advance(cx, storage, &key),
        Work::Quota(namespace) => quota::recount(cx, &namespace),
        Work::Policy(name) => policy::type_check::advance(cx, &name),
        Work::Workload(storage, key) => workloads::advance(cx, storage, &key),
    }
    true
}

pub(crate) fn push(cx: &mut Context<'_>, work: Work) {
    if !cx.state.pending.contains(&work) {
        cx.state.pending.push_back(work);
    }
}

/// Queues the work that follows from a write.
pub(crate) fn after_write(cx: &mut Context<'_>, resource: &Arc<Resource>, key: &str) {
    let Some(stored) = cx.state.store.get(resource.storage, key).cloned() else {
        return;
    };
    if admission::is_configuration(resource) {
        admission::refresh(cx.state);
    }
    cx.state.expiry.note(resource, key, stored.revision, cx.now);
    cx.state.policies.note(&resource.group, &resource.plural);
    let deleting = stored.is_deleting();
    if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        push(cx, Work::Definition(key.to_owned()));
    } else if resource.is("apiregistration.k8s.io", "apiservices") {
        push(cx, Work::ApiService(key.to_owned()));
    } else if resource.is("admissionregistration.k8s.io", "validatingadmissionpolicies")
        && cx.state.settings.policy_status
    {
        push(cx, Work::Policy(key.to_owned()));
    } else if resource.is("", "namespaces") && deleting && cx.state.settings.namespace_deletion {
        push(cx, Work::Namespace(key.to_owned()));
    }
    workloads::note(cx, resource, key, &stored);
    // A create charges the quota at once; a Pod releases its usage when it ends.
    if resource.is("", "resourcequotas") || resource.is("", "pods") {
        note_usage(cx, resource, key);
    }
    let key: Arc<str> = Arc::from(key);
    let owned = cx.state.owners.note(resource.storage, &key, Some(&stored));
    if !cx.state.settings.garbage_collection {
        return;
    }
    protection::note(cx, resource, &key, &stored);
    if owned {
        push(cx, Work::Dependent(resource.storage, Arc::clone(&key)));
    }
    if deleting
        && finalizers(&stored.object())
            .iter()
            .any(|name| matches!(*name, "orphan" | "foregroundDeletion"))
    {
        push(cx, Work::Owner(resource.storage, key));
    }
}

/// Queues a recount of the quotas of an object's namespace, if there are any.
fn note_usage(cx: &mut Context<'_>, resource: &Resource, key: &str) {
    if !cx.state.settings.quota_usage || !resource.namespaced {
        return;
    }
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    if cx.in_namespace("", "resourcequotas", namespace).next().is_some() {
        push(cx, Work::Quota(namespace.to_owned()));
    }
}

/// Queues the work that follows from a removal.
pub(crate) fn after_removal(cx: &mut Context<'_>, resource: &Arc<Resource>, key: &str, removed: &Stored) {
    if admission::is_configuration(resource) {
        admission::refresh(cx.state);
    }
    if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        push(cx, Work::Definition(key.to_owned()));
    }
    if let Some(custom) = &resource.custom
        && custom.terminating
    {
        push(cx, Work::Definition(custom.definition.clone()));
    }
    let namespace = match key.split_once('/') {
        Some((namespace, _)) => namespace.to_owned(),
        None => String::new(),
    };
    if cx.state.settings.namespace_deletion
        && cx
            .find("", "namespaces", &namespace)
            .is_some_and(|stored| stored.is_deleting())
    {
        push(cx, Work::Namespace(namespace));
    }
    workloads::note(cx, resource, key, removed);
    cx.state.policies.note(&resource.group, &resource.plural);
    note_usage(cx, resource, key);
    let key: Arc<str> = Arc::from(key);
    cx.state.owners.note(resource.storage, &key, None);
    if cx.state.settings.garbage_collection {
        protection::note(cx, resource, &key, removed);
        let uid = removed.text("uid");
        if cx.state.owners.note_departure(&uid, resource, removed) {
            push(cx, Work::Gone(uid));
        }
        for owner in collect::waiting_owners(cx, removed) {
            push(cx, owner);
        }
    }
}
