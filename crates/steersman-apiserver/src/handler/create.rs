// SPDX-License-Identifier: Apache-2.0
//! The create verb.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Call, Reply, Target, WriteOptions, Written, decode, object_reply, update::store};
use crate::{
    admission::{self as hooks, Write},
    managed,
    state::Context,
    status::{Failure, FieldError, Result},
    store::{Object, metadata_of},
    write::{admission, kinds, validation},
};

/// Number of attempts to generate an unused name.
const NAME_ATTEMPTS: usize = 8;

/// Handles a POST.
pub(crate) fn create(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let options = WriteOptions::parse(call, "CreateOptions")?;
    let (mut object, warnings) = decode::body(call, target, options.validation)?;
    managed::on_update(cx, target, None, &mut object, &options.manager);
    let written = insert(cx, target, object, &options)?;
    Ok(object_reply(call, target, StatusCode::CREATED, &written)?.warned(warnings))
}

/// Completes, validates and stores a new object.
pub(crate) fn insert(
    cx: &mut Context<'_>,
    target: &Target,
    mut object: Object,
    options: &WriteOptions,
) -> Result<Written> {
    let resource = &target.resource;
    let is_named = !name_of(&object).is_empty();
    let name = settle_identity(cx, target, &mut object)?;
    let mut named = Target {
        name,
        ..target.clone()
    };
    admission::check_create(cx, &named)?;
    admission::change_new(cx, &named, &mut object)?;
    let name = mutate(cx, &mut named, is_named, &mut object, options.dry_run)?;
    prepare(cx, &named, &mut object);
    kinds::prepare_create(cx, &named, &mut object)?;
    let generated = !name.is_empty() && metadata_of(&object).get("generateName").is_some();
    let mut errors = Vec::new();
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    }
    validation::check_create(cx, &named, &object, &mut errors);
    if !errors.is_empty() {
        return Err(Failure::invalid(resource.qualified_kind(), &name, &errors));
    }
    admission::check_write(cx, &named, None, &object)?;
    hooks::validate(cx, Write::create(&named, &object, options.dry_run))?;
    let charges = admission::quota::check(cx, &named, None, &object)?;
    if !options.dry_run {
        let revision = take_revision(&mut object);
        let is_post = target.name.is_empty();
        if is_post && revision != 0 {
            return Err(Failure::unclassified(
                "resourceVersion should not be set on objects to be created",
            ));
        }
    }
    if let Some(existing) = cx.state.store.get(resource.storage, &named.key()) {
        if generated && target.name.is_empty() && metadata_of(&object).get("generateName").is_some() {
            return Err(Failure::name_exhausted(resource.qualified(), &name));
        }
        let being_deleted = existing.is_deleting();
        return Err(Failure::already_exists(
            resource.qualified(),
            &name,
            being_deleted,
        ));
    }
    if options.dry_run {
        return Ok(Written::Transient(Box::new(object)));
    }
    let written = store(cx, &named, object)?;
    admission::quota::charge(cx, charges);
    Ok(written)
}

/// Runs the mutating hooks on a new object, which they see without uid, time of creation and generated name. Returns the
/// name of the object.
fn mutate(
    cx: &mut Context<'_>,
    target: &mut Target,
    is_named: bool,
    object: &mut Object,
    dry_run: bool,
) -> Result<String> {
    if cx.state.hooks.mutating.is_empty() {
        return Ok(target.name.clone());
    }
    let mut shown = object.clone();
    let mut unnamed = target.clone();
    if let Some(Value::Object(metadata)) = shown.get_mut("metadata") {
        for key in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
        ] {
            metadata.remove(key);
        }
        if !is_named {
            metadata.remove("name");
            unnamed.name.clear();
        }
    }
    let plugins = |cx: &mut Context<'_>, object: &mut Object| admission::change_new(cx, target, object);
    let changed = hooks::mutate(cx, Write::create(&unnamed, &shown, dry_run), plugins)?;
    if let Some(changed) = changed {
        *object = changed;
    }
    let name = name_of(object);
    if !name.is_empty() {
        target.name = name;
    } else if let Some(Value::Object(metadata)) = object.get_mut("metadata")
        && !target.name.is_empty()
    {
        metadata.insert("name".to_owned(), Value::from(target.name.clone()));
    }
    Ok(target.name.clone())
}

fn name_of(object: &Object) -> String {
    let name = metadata_of(object).get("name").and_then(Value::as_str);
    name.unwrap_or_default().to_owned()
}

/// Removes `resourceVersion` from a new object and returns it; zero if it is absent or not a number.
///
/// The real server checks it when it stores the object. An invalid object or a dry run is never stored, and an object
/// that an update or apply creates takes another path, so neither reaches the check.
fn take_revision(object: &mut Object) -> u64 {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let given = metadata.and_then(|metadata| metadata.remove("resourceVersion"));
    given
        .and_then(|given| given.as_str()?.parse().ok())
        .unwrap_or_default()
}

/// Sets name and namespace; the returned name is empty if the object has none.
fn settle_identity(cx: &mut Context<'_>, target: &Target, object: &mut Object) -> Result<String> {
    let resource = &target.resource;
    let metadata = object
        .entry("metadata")
        .or_insert_with(|| json!({}))
        .as_object_mut()
        .expect("decoded metadata is an object");
    let namespace = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if resource.namespaced {
        if !namespace.is_empty() && namespace != target.namespace {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata.insert("namespace".to_owned(), Value::from(target.namespace.clone()));
    } else {
        metadata.remove("namespace");
    }
    let name = metadata
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if !target.name.is_empty() && !name.is_empty() && name != target.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        );
        return Err(Failure::bad_request(message));
    }
    let prefix = metadata
        .get("generateName")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if !name.is_empty() || prefix.is_empty() {
        return Ok(name);
    }
    let mut name = cx.state.random.name(&prefix);
    for _ in 1..NAME_ATTEMPTS {
        if cx
            .state
            .store
            .get(resource.storage, &resource.key(&target.namespace, &name))
            .is_none()
        {
            break;
        }
        name = cx.state.random.name(&prefix);
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("name".to_owned(), Value::from(name.clone()));
    }
    Ok(name)
}

/// Sets the server-assigned fields of a new object.
fn prepare(cx: &mut Context<'_>, target: &Target, object: &mut Object) {
    let uid = cx.state.random.uid();
    let now = cx.timestamp();
    let has_status = target.version().has_status();
    let custom = target.resource.custom.is_some();
    if has_status {
        if custom {
            object.remove("status");
        } else {
            kinds::reset_status(target, object, &now);
        }
    }
    let generation = target.resource.strategy.generation;
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else {
        return;
    };
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(key);
    }
    metadata.insert("uid".to_owned(), Value::from(uid));
    metadata.insert("creationTimestamp".to_owned(), now);
    if generation {
        metadata.insert("generation".to_owned(), Value::from(1));
    }
}
