// SPDX-License-Identifier: Apache-2.0
//! The update verb, and the code that patches share with it.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use super::{Call, Reply, Target, WriteOptions, Written, create, decode, object_reply};
use crate::{
    admission::{self as hooks, Write},
    crd::conversion,
    managed,
    resource::Resource,
    state::Context,
    status::{Failure, FieldError, Result},
    store::{Object, Stored, metadata_of},
    write::{admission, kinds, validation},
};

/// Handles a PUT.
pub(crate) fn update(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let options = WriteOptions::parse(call, "UpdateOptions")?;
    let (mut object, warnings) = decode::body(call, target, options.validation)?;
    check_identity(target, &mut object)?;
    let Some(existing) = cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .cloned()
    else {
        if !target.resource.strategy.create_on_update || !target.subresource.is_empty() {
            return Err(target.not_found());
        }
        check_uid(target, "", &object)?;
        managed::on_update(cx, target, None, &mut object, &options.manager);
        let written = create::insert(cx, target, object, &options)?;
        return Ok(object_reply(call, target, StatusCode::CREATED, &written)?.warned(warnings));
    };
    let live = current(cx, target, &existing)?;
    managed::on_update(cx, target, Some(&live), &mut object, &options.manager);
    let written = replace(cx, target, &existing, object, options.dry_run)?;
    Ok(object_reply(call, target, StatusCode::OK, &written)?.warned(warnings))
}

/// Checks that name and namespace equal those of the URL.
pub(crate) fn check_identity(target: &Target, object: &mut Object) -> Result<()> {
    let metadata = metadata_of(object);
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        let message = format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            target.name
        );
        return Err(Failure::bad_request(message));
    }
    if name != target.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        );
        return Err(Failure::bad_request(message));
    }
    let namespace = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if target.resource.namespaced && !namespace.is_empty() && namespace != target.namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let (namespaced, namespace) = (target.resource.namespaced, target.namespace.clone());
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        if namespaced {
            metadata.insert("namespace".to_owned(), Value::from(namespace));
        } else {
            metadata.remove("namespace");
        }
    }
    Ok(())
}

/// Returns the stored object in the form of the current schema; in the requested version if a webhook converts it.
pub(crate) fn current(cx: &mut Context<'_>, target: &Target, existing: &Stored) -> Result<Object> {
    let resource = &target.resource;
    if conversion::has_webhook(resource) {
        return conversion::read_as(cx, target, existing);
    }
    Ok(match &resource.custom {
        Some(custom) if existing.edition != custom.edition => crate::representation::convert_from_storage(
            resource,
            conversion::version_of(resource, existing),
            resource.strategy.storage_version,
            Object::clone(&existing.object()),
        ),
        _ => Object::clone(&existing.object()),
    })
}

/// Stores an object of the requested version.
pub(super) fn store(cx: &mut Context<'_>, target: &Target, object: Object) -> Result<Written> {
    if !conversion::has_webhook(&target.resource) {
        return Ok(Written::Stored(cx.put(&target.resource, &target.key(), object)));
    }
    let (object, mut shown) = conversion::write_as(cx, target, &object)?;
    let stored = cx.put(&target.resource, &target.key(), object);
    stamp(&mut shown, stored.revision);
    Ok(Written::Transient(Box::new(shown)))
}

/// Completes, validates and stores a replacement. If it removes the last finalizer of a terminating object, the object
/// is deleted.
pub(crate) fn replace(
    cx: &mut Context<'_>,
    target: &Target,
    existing: &Arc<Stored>,
    mut object: Object,
    dry_run: bool,
) -> Result<Written> {
    let resource = &target.resource;
    let old = current(cx, target, existing)?;
    check_uid(target, &existing.text("uid"), &object)?;
    if let Some(changed) = hooks::mutate(cx, Write::update(target, &old, &object, dry_run), |_, _| Ok(()))? {
        object = changed;
    }
    check_revision(target, existing, &object)?;
    restore(target, &old, &mut object);
    kinds::prepare_update(cx, target, &old, &mut object)?;
    count_generation(target, &old, &mut object);
    let mut errors = Vec::new();
    check_finalizers(&old, &object, &mut errors);
    validation::check_update(cx, target, &old, &object, &mut errors);
    if !errors.is_empty() {
        return Err(Failure::invalid(resource.qualified_kind(), &target.name, &errors));
    }
    admission::check_write(cx, target, Some(&old), &object)?;
    stamp(&mut object, existing.revision);
    hooks::validate(cx, Write::update(target, &old, &object, dry_run))?;
    let charges = admission::quota::check(cx, target, Some(&old), &object)?;
    managed::ignore_timestamps(&old, &mut object);
    if is_done_for(target, &object) {
        if !dry_run {
            cx.remove(resource, &target.key());
        }
        return Ok(Written::Transient(Box::new(object)));
    }
    // An object of another storage version is written even if it does not change.
    let is_current = conversion::version_of(resource, existing) == resource.strategy.storage_version;
    if conversion::has_webhook(resource) && is_current && object == old {
        return Ok(Written::Transient(Box::new(object)));
    }
    if is_current && object == *existing.object() {
        return Ok(Written::Stored(Arc::clone(existing)));
    }
    if dry_run {
        return Ok(Written::Transient(Box::new(object)));
    }
    let written = store(cx, target, object)?;
    admission::quota::charge(cx, charges);
    Ok(written)
}

/// Sets `resourceVersion` to `revision`.
pub(super) fn stamp(object: &mut Object, revision: u64) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("resourceVersion".to_owned(), Value::from(revision.to_string()));
    }
}

/// Checks that the `resourceVersion` of the request equals that of the stored object.
fn check_revision(target: &Target, existing: &Stored, object: &Object) -> Result<()> {
    let resource = &target.resource;
    let version = metadata_of(object).get("resourceVersion").and_then(Value::as_str);
    let version = version.unwrap_or_default();
    if version.is_empty() || version == "0" {
        if !resource.strategy.unconditional_update {
            let error = FieldError::invalid(
                "metadata.resourceVersion",
                &Value::from(0),
                "must be specified for an update",
            );
            return Err(Failure::invalid(resource.qualified(), &target.name, &[error]));
        }
        return Ok(());
    }
    let revision: u64 = version.parse().map_err(|_| {
        Failure::unclassified(format!("strconv.ParseUint: parsing {version:?}: invalid syntax"))
    })?;
    if revision != existing.revision {
        return Err(Failure::modified(resource.qualified(), &target.name));
    }
    Ok(())
}

/// Checks a uid in the request: it must be that of the stored object, not of a new object or of one recreated under the
/// same name.
pub(super) fn check_uid(target: &Target, stored_uid: &str, object: &Object) -> Result<()> {
    let resource = &target.resource;
    let uid = metadata_of(object).get("uid").and_then(Value::as_str);
    let uid = uid.unwrap_or_default();
    if uid.is_empty() || uid == stored_uid {
        return Ok(());
    }
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {stored_uid}",
        registry(resource),
        target.key()
    );
    Err(Failure::conflict(resource.qualified(), &target.name, &why))
}

/// Returns the registry path of a kind in the real server's storage.
fn registry(resource: &Resource) -> String {
    let plural = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "replicationcontrollers") => "controllers",
        ("", "endpoints") => "services/endpoints",
        ("", "services") => "services/specs",
        ("", "nodes") => "minions",
        ("networking.k8s.io", "ingresses") => "ingress",
        (_, plural) => plural,
    };
    let group = &resource.group;
    let has_own_server = matches!(group.as_str(), "apiextensions.k8s.io" | "apiregistration.k8s.io");
    if resource.custom.is_some() || has_own_server {
        format!("{group}/{plural}")
    } else {
        plural.to_owned()
    }
}

/// Restores the fields that this request is not allowed to change.
fn restore(target: &Target, old: &Object, object: &mut Object) {
    let strategy = &target.resource.strategy;
    let custom = target.resource.custom.is_some();
    match target.subresource.as_str() {
        "status" => {
            let status = object.remove("status");
            let mut new = old.clone();
            if strategy.status_keeps_metadata {
                let managed = metadata_of(object).get("managedFields").cloned();
                set_managed(&mut new, managed);
            } else if let Some(metadata) = object.remove("metadata") {
                new.insert("metadata".to_owned(), metadata);
            }
            match status {
                Some(status) => new.insert("status".to_owned(), status),
                None => new.remove("status"),
            };
            *object = new;
        }
        "finalize" | "" if target.version().has_status() => match old.get("status") {
            Some(status) => {
                object.insert("status".to_owned(), status.clone());
            }
            None if custom => {
                object.remove("status");
            }
            None => {}
        },
        _ => {}
    }
    let old = metadata_of(old).clone();
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else {
        return;
    };
    for key in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ] {
        match old.get(key) {
            Some(value) => metadata.insert(key.to_owned(), value.clone()),
            None => metadata.remove(key),
        };
    }
}

fn set_managed(object: &mut Object, managed: Option<Value>) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        match managed {
            Some(managed) => metadata.insert("managedFields".to_owned(), managed),
            None => metadata.remove("managedFields"),
        };
    }
}

/// Increments the generation for each change outside metadata, and outside status if status is a subresource.
fn count_generation(target: &Target, old: &Object, object: &mut Object) {
    if !target.resource.strategy.generation || target.subresource == "binding" {
        return;
    }
    // A PriorityClass keeps its first generation.
    if target.resource.is("scheduling.k8s.io", "priorityclasses") {
        return;
    }
    let skip_status = target.version().has_status();
    let counted = |object: &Object| -> Vec<(String, Value)> {
        let counts = |name: &String| name != "metadata" && !(skip_status && name == "status");
        object
            .iter()
            .filter(|(name, _)| counts(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    if counted(old) != counted(object) {
        bump_generation(object);
    }
}

pub(crate) fn bump_generation(object: &mut Object) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let generation = metadata
            .get("generation")
            .and_then(Value::as_i64)
            .unwrap_or_default();
        metadata.insert("generation".to_owned(), Value::from(generation + 1));
    }
}

pub(crate) fn finalizers(object: &Object) -> Vec<&str> {
    metadata_of(object)
        .get("finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn check_finalizers(old: &Object, object: &Object, errors: &mut Vec<FieldError>) {
    if !metadata_of(old).contains_key("deletionTimestamp") {
        return;
    }
    let before = finalizers(old);
    let added: Vec<_> = finalizers(object)
        .into_iter()
        .filter(|finalizer| !before.contains(finalizer))
        .collect();
    if !added.is_empty() {
        let list = added
            .iter()
            .map(|finalizer| format!("{finalizer:?}"))
            .collect::<Vec<_>>()
            .join(", ");
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
        );
        errors.push(FieldError::forbidden("metadata.finalizers", &detail));
    }
}

/// Returns true if nothing keeps a terminating object.
pub(crate) fn is_done_for(target: &Target, object: &Object) -> bool {
    let metadata = metadata_of(object);
    let graceful = metadata
        .get("deletionGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or_default()
        > 0;
    metadata.contains_key("deletionTimestamp")
        && finalizers(object).is_empty()
        && !graceful
        && kinds::may_vanish(target, object)
}
