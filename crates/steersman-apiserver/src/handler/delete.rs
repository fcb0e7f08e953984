// SPDX-License-Identifier: Apache-2.0
//! The delete and deletecollection verbs.
//!
//! # Guarantees
//! 1. An object with finalizers is marked for deletion and kept; an object without finalizers is removed at once.
//! 2. Preconditions are checked before anything changes.
//! 3. Deleting an object that is already terminating changes nothing, unless the propagation policy changes.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Call, Content, ListContent, Reply, Target, Written, check_dry_run, decode, object_reply,
    options::ListOptions,
    representation,
    update::{bump_generation, current, finalizers, is_done_for, stamp, store},
};
use crate::{
    admission::{self as hooks, Write},
    crd::conversion,
    state::Context,
    status::{Failure, FieldError, Qualified, Result},
    store::{Object, Stored, metadata_of},
    write::{admission, kinds},
};

/// Propagation policy: the treatment of an object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// Options of a delete request.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) grace_period: Option<i64>,
    pub(crate) dry_run: bool,
    /// Set by the deprecated `orphanDependents: false`. Then the response is 202 if finalizers keep the object.
    pub(crate) cascades_of_old: bool,
    /// True for an object of a collection; hooks get no name then.
    pub(crate) is_of_collection: bool,
}

impl DeleteOptions {
    /// Parses the options from the body, or from the query if the body is empty.
    pub(crate) fn parse(call: &Call) -> Result<Self> {
        let body = if call.body.is_empty() {
            from_query(call)
        } else {
            from_body(call)?
        };
        let text = |pointer: &str| {
            body.pointer(pointer)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let mut errors = Vec::new();
        let policy = text("/propagationPolicy");
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        let propagation = match (policy.as_deref(), orphan) {
            (Some(policy), Some(_)) => {
                let detail = "orphanDependents and deletionPropagation cannot be both set";
                errors.push(FieldError::invalid(
                    "propagationPolicy",
                    &Value::from(policy),
                    detail,
                ));
                None
            }
            (Some("Background"), None) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), None) => Some(Propagation::Foreground),
            (Some("Orphan"), None) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some(other), None) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"].map(str::to_owned);
                errors.push(FieldError::unsupported(
                    "propagationPolicy",
                    &Value::from(other),
                    &supported,
                ));
                None
            }
            (None, None) => None,
        };
        let dry_run: Vec<&str> = body
            .get("dryRun")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        errors.extend(check_dry_run(&dry_run));
        if !errors.is_empty() {
            return Err(Failure::invalid(
                Qualified {
                    group: "meta.k8s.io",
                    name: "DeleteOptions",
                },
                "",
                &errors,
            ));
        }
        Ok(Self {
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
            propagation,
            grace_period: body.get("gracePeriodSeconds").and_then(Value::as_i64),
            dry_run: !dry_run.is_empty(),
            cascades_of_old: orphan == Some(false),
            is_of_collection: false,
        })
    }
}

/// Returns the options as admission hooks see them.
pub(crate) fn shown_options(call: &Call) -> Value {
    let sent = if call.body.is_empty() {
        from_query(call)
    } else {
        from_body(call).unwrap_or_default()
    };
    let mut shown = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
    for (key, value) in sent.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "kind" | "apiVersion") && !value.is_null() {
            shown[key] = value.clone();
        }
    }
    shown
}

fn from_body(call: &Call) -> Result<Value> {
    decode::value(call, "DeleteOptions", &mut Vec::new())
}

fn from_query(call: &Call) -> Value {
    let mut body = json!({});
    if let Some(policy) = call.query.filled("propagationPolicy") {
        body["propagationPolicy"] = json!(policy);
    }
    if call.query.filled("orphanDependents").is_some() {
        body["orphanDependents"] = json!(call.query.flag("orphanDependents"));
    }
    if let Some(seconds) = call
        .query
        .filled("gracePeriodSeconds")
        .and_then(|text| text.parse::<i64>().ok())
    {
        body["gracePeriodSeconds"] = json!(seconds);
    }
    let dry_run: Vec<&str> = call.query.all("dryRun").collect();
    if !dry_run.is_empty() {
        body["dryRun"] = json!(dry_run);
    }
    body
}

/// Handles a DELETE of one object.
pub(crate) fn delete(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let options = DeleteOptions::parse(call)?;
    match remove(cx, target, &options)? {
        Deleted::Marked(written) => {
            let code = if options.cascades_of_old {
                StatusCode::ACCEPTED
            } else {
                StatusCode::OK
            };
            object_reply(call, target, code, &written)
        }
        Deleted::Gone(object) if target.resource.strategy.returns_deleted => {
            object_reply(call, target, StatusCode::OK, &Written::Transient(object))
        }
        Deleted::Gone(object) => {
            let mut details = json!({"name": target.name, "kind": target.resource.plural});
            if !target.resource.group.is_empty() {
                details["group"] = json!(target.resource.group);
            }
            details["uid"] = metadata_of(&object).get("uid").cloned().unwrap_or_default();
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            Ok(Reply::json(StatusCode::OK, &status))
        }
    }
}

/// Result of a deletion.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object stays until its finalizers are removed.
    Marked(Written),
    Gone(Box<Object>),
}

/// Deletes one object.
pub(crate) fn remove(cx: &mut Context<'_>, target: &Target, options: &DeleteOptions) -> Result<Deleted> {
    let resource = &target.resource;
    admission::check_delete(target)?;
    let existing = cx
        .state
        .store
        .get(resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())?;
    check_preconditions(target, &existing, options)?;
    let old = current(cx, target, &existing)?;
    admit(cx, target, &old, options)?;
    let mut object = old.clone();
    let deleting = metadata_of(&old).contains_key("deletionTimestamp");
    propagate(target, &mut object, options);
    let grace = kinds::grace_period(target, &old, options);
    let kept = !finalizers(&object).is_empty() || grace > 0 || kinds::stays_when_deleted(target, &object);
    if !kept {
        if kinds::is_graceful(target) {
            return Ok(Deleted::Gone(Box::new(take_gracefully(
                cx, target, object, deleting, options,
            ))));
        }
        let mut gone = take(cx, target, old, options);
        if let (true, Some(Value::Object(metadata))) = (deleting, gone.get_mut("metadata")) {
            metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
        }
        return Ok(Deleted::Gone(Box::new(gone)));
    }
    if !deleting {
        mark(cx, target, &mut object, grace);
    } else if grace == 0
        && let Some(Value::Object(metadata)) = object.get_mut("metadata")
        && metadata
            .get("deletionGracePeriodSeconds")
            .and_then(Value::as_i64)
            .unwrap_or_default()
            > 0
    {
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
    }
    if is_done_for(target, &object) {
        return Ok(Deleted::Gone(Box::new(take(cx, target, old, options))));
    }
    if conversion::has_webhook(resource) && object == old {
        return Ok(Deleted::Marked(Written::Transient(Box::new(object))));
    }
    if object == *existing.object() {
        return Ok(Deleted::Marked(Written::Stored(existing)));
    }
    if options.dry_run {
        return Ok(Deleted::Marked(Written::Transient(Box::new(object))));
    }
    Ok(Deleted::Marked(store(cx, target, object)?))
}

/// Runs the admission hooks of a deletion.
fn admit(cx: &mut Context<'_>, target: &Target, old: &Object, options: &DeleteOptions) -> Result<()> {
    let mut target = target.clone();
    if options.is_of_collection {
        target.name.clear();
    }
    let write = Write::delete(&target, old, options.dry_run);
    hooks::mutate(cx, write, |_, _| Ok(()))?;
    hooks::validate(cx, write)
}

/// Removes an object of a kind with graceful deletion. As the real server does, it first marks the object, which
/// watches see as MODIFIED, and then removes it.
fn take_gracefully(
    cx: &mut Context<'_>,
    target: &Target,
    mut object: Object,
    deleting: bool,
    options: &DeleteOptions,
) -> Object {
    if !deleting {
        mark(cx, target, &mut object, 0);
    } else if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
    }
    if options.dry_run {
        return object;
    }
    let marked = cx.put(&target.resource, &target.key(), object);
    take(cx, target, Object::clone(&marked.object()), options)
}

/// Removes an object, except in a dry run; returns it under the revision of the deletion.
fn take(cx: &mut Context<'_>, target: &Target, mut gone: Object, options: &DeleteOptions) -> Object {
    if !options.dry_run {
        cx.remove(&target.resource, &target.key());
        stamp(&mut gone, cx.state.store.revision());
    }
    gone
}

fn mark(cx: &Context<'_>, target: &Target, object: &mut Object, grace: i64) {
    let at = crate::clock::rfc3339_after(cx.now, grace.unsigned_abs());
    let graceful = kinds::is_graceful(target);
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else {
        return;
    };
    metadata.insert("deletionTimestamp".to_owned(), Value::from(at));
    if target
        .resource
        .is("apiextensions.k8s.io", "customresourcedefinitions")
    {
        crate::crd::lifecycle::on_deletion(&cx.timestamp(), object);
        return;
    }
    if !target.resource.is("", "namespaces") {
        metadata.insert(
            "deletionGracePeriodSeconds".to_owned(),
            json!(if graceful { grace } else { 0 }),
        );
    }
    if metadata
        .get("generation")
        .and_then(Value::as_i64)
        .unwrap_or_default()
        > 0
    {
        bump_generation(object);
    }
    kinds::on_deletion(target, object);
}

fn check_preconditions(target: &Target, existing: &Stored, options: &DeleteOptions) -> Result<()> {
    // The real server names the kind here instead of the resource.
    let of = target.resource.qualified_kind();
    let of = Qualified {
        group: of.group,
        name: of.name,
    };
    if let Some(uid) = &options.uid {
        let actual = existing.text("uid");
        if *uid != actual {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({actual}). The object might have been deleted and then recreated"
            );
            return Err(Failure::conflict(of, &target.name, &why));
        }
    }
    if let Some(version) = &options.resource_version {
        let actual = existing.revision.to_string();
        if *version != actual {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({actual}). The object might have been modified"
            );
            return Err(Failure::conflict(of, &target.name, &why));
        }
    }
    Ok(())
}

/// Adds and removes the finalizers that select the garbage collector's propagation policy.
fn propagate(target: &Target, object: &mut Object, options: &DeleteOptions) {
    let before = finalizers(object);
    let has = |name: &str| before.contains(&name);
    let policy = options.propagation.or_else(|| {
        // A policy from an earlier delete request stays in effect.
        let default = target
            .resource
            .strategy
            .orphans_by_default
            .then_some(Propagation::Orphan);
        if has("orphan") {
            Some(Propagation::Orphan)
        } else if has("foregroundDeletion") {
            Some(Propagation::Foreground)
        } else {
            default
        }
    });
    let wanted = match policy {
        Some(Propagation::Orphan) => Some("orphan"),
        Some(Propagation::Foreground) => Some("foregroundDeletion"),
        Some(Propagation::Background) | None => None,
    };
    let mut after: Vec<String> = before
        .iter()
        .filter(|name| !matches!(**name, "orphan" | "foregroundDeletion") || Some(**name) == wanted)
        .map(|name| (*name).to_owned())
        .collect();
    if let Some(wanted) = wanted
        && !after.iter().any(|name| name == wanted)
    {
        after.push(wanted.to_owned());
    }
    set_finalizers(object, &after);
}

pub(crate) fn set_finalizers(object: &mut Object, finalizers: &[String]) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        if finalizers.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".to_owned(), json!(finalizers));
        }
    }
}

/// Handles a DELETE of all objects that match.
pub(crate) fn delete_collection(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let representation = representation(call, target)?;
    let list = ListOptions::parse(&call.query, &target.resource, target.version(), "", false)?;
    let options = DeleteOptions {
        is_of_collection: true,
        ..DeleteOptions::parse(call)?
    };
    let revision = cx.state.store.revision();
    let known = cx
        .admission
        .as_mut()
        .and_then(|admission| admission.progress.take_collection());
    let (items, deleted) = known.unwrap_or_else(|| {
        let prefix = target.resource.prefix(&target.namespace);
        let storage = target.resource.storage;
        let found = cx.state.store.scan(storage, &prefix, None, revision);
        let found = found.into_iter().map(|(_, stored)| stored);
        (found.filter(|stored| list.selector.sees(stored)).collect(), 0)
    });
    for (index, stored) in items.iter().enumerate().skip(deleted) {
        let one = Target {
            name: stored.text("name"),
            namespace: stored.text("namespace"),
            ..target.clone()
        };
        match remove(cx, &one, &options) {
            Ok(_) => {}
            // Another request deleted the object first.
            Err(failure) if failure.code == StatusCode::NOT_FOUND => {}
            Err(failure) => {
                if let Some(admission) = &mut cx.admission {
                    admission.progress.keep_collection(items, index);
                }
                return Err(failure);
            }
        }
    }
    let metadata = json!({"resourceVersion": revision.to_string()})
        .as_object()
        .cloned()
        .unwrap_or_default();
    Ok(Reply::content(Content::List(Box::new(ListContent {
        representation,
        metadata,
        items,
    }))))
}
