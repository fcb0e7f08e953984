// SPDX-License-Identifier: Apache-2.0
//! Patches: JSON patch, merge patch, server-side apply.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Call, FieldValidation, Reply, Target, WriteOptions, create, decode, full, object_reply,
    update::{check_identity, current, replace},
};
use crate::{
    json as reader, managed,
    state::Context,
    status::{Failure, FieldError, Qualified, Result},
    store::{Object, metadata_of},
};

/// More operations than this are too many.
const OPERATIONS: usize = 10_000;

/// The kinds of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    /// Reads the media type of a patch for a resource.
    pub(crate) fn parse(call: &Call, target: &Target) -> Result<Self> {
        let media = call.header("content-type").split(';').next().unwrap_or_default().trim();
        match media {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if target.resource.custom.is_none() => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ => {
                let strategic = if target.resource.custom.is_none() { "application/strategic-merge-patch+json, " } else { "" };
                let accepted = format!("application/json-patch+json, application/merge-patch+json, {strategic}application/apply-patch+yaml");
                Err(Failure::unsupported_media_type(format!(
                    "the body of the request was in an unknown format - accepted media types include: {accepted}"
                )))
            }
        }
    }
}

/// Answers a PATCH.
pub(crate) fn patch(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    decode::check_size(call)?;
    let kind = PatchType::parse(call, target)?;
    let options = WriteOptions::parse(call, "PatchOptions")?;
    check_options(call, kind)?;
    if kind == PatchType::Apply {
        return apply(cx, call, target, &options);
    }
    let existing = cx.state.store.get(target.resource.storage, &target.key()).cloned().ok_or_else(|| target.not_found())?;
    let live = current(target, &existing);
    let patched = patched(call, target, kind, &whole(target, &live))?;
    let (mut object, warnings) = decode::object(target, patched, options.validation, Vec::new())?;
    check_identity(target, &mut object)?;
    if metadata_of(&object).get("resourceVersion").is_none() {
        keep_version(&mut object, existing.revision);
    }
    managed::on_update(cx, target, Some(&live), &mut object, &options.manager);
    let written = replace(cx, target, &existing, object, options.dry_run)?;
    Ok(object_reply(call, target, StatusCode::OK, &written)?.warned(warnings))
}

fn check_options(call: &Call, kind: PatchType) -> Result<()> {
    let mut errors = Vec::new();
    if kind == PatchType::Apply {
        if call.query.filled("fieldManager").is_none() {
            errors.push(FieldError::required("fieldManager", "is required for apply patch"));
        }
    } else if call.query.filled("force").is_some() {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid(Qualified { group: "meta.k8s.io", name: "PatchOptions" }, "", &errors))
}

/// The object as clients see it.
pub(crate) fn whole(target: &Target, object: &Object) -> Value {
    let mut object = full(target).converted(object.clone());
    object.insert("apiVersion".to_owned(), Value::from(target.api_version()));
    object.insert("kind".to_owned(), Value::from(target.resource.kind.clone()));
    Value::Object(object)
}

/// A patch that names no version is for whatever version there is.
fn keep_version(object: &mut Object, revision: u64) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("resourceVersion".to_owned(), Value::from(revision.to_string()));
    }
}

/// The result of a patch that is not an apply.
pub(crate) fn patched(call: &Call, target: &Target, kind: PatchType, live: &Value) -> Result<Value> {
    let of = target.resource.qualified();
    let unreadable = |error: String| Failure::bad_request(format!("error decoding patch: {error}"));
    match kind {
        PatchType::Json => {
            let operations: Value = reader::parse(&call.body, &mut Vec::new()).map_err(unreadable)?;
            let count = operations.as_array().map_or(0, Vec::len);
            if count > OPERATIONS {
                let message = format!("The allowed maximum operations in a JSON patch is {OPERATIONS}, got {count}");
                return Err(Failure::too_large(message));
            }
            let patch: json_patch::Patch = serde_json::from_value(operations).map_err(|error| unreadable(error.to_string()))?;
            let mut value = live.clone();
            json_patch::patch(&mut value, &patch).map_err(|error| Failure::unprocessable(of, &target.name, &error.to_string()))?;
            Ok(value)
        }
        PatchType::Merge => {
            let patch = reader::parse(&call.body, &mut Vec::new()).map_err(unreadable)?;
            if !patch.is_object() {
                return Err(unreadable("json: cannot unmarshal into Go value of type map[string]interface {}".to_owned()));
            }
            let mut value = live.clone();
            json_patch::merge(&mut value, &patch);
            Ok(value)
        }
        PatchType::Strategic => {
            let patch = reader::parse(&call.body, &mut Vec::new()).map_err(unreadable)?;
            let Value::Object(patch) = patch else {
                return Err(unreadable("json: cannot unmarshal into Go value of type map[string]interface {}".to_owned()));
            };
            crate::strategic::patch(&target.version().schema, live, &patch).map_err(|error| Failure::unprocessable(of, &target.name, &error))
        }
        PatchType::Apply => Ok(live.clone()),
    }
}

fn apply(cx: &mut Context<'_>, call: &Call, target: &Target, options: &WriteOptions) -> Result<Reply> {
    let mut config = configuration(call, target)?;
    let force = call.query.flag("force");
    let existing = cx.state.store.get(target.resource.storage, &target.key()).cloned();
    if existing.is_none() && !target.subresource.is_empty() {
        return Err(target.not_found());
    }
    check_config(target, &mut config, existing.is_some())?;
    let live = existing.as_ref().map(|existing| current(target, existing));
    let applied = managed::on_apply(cx, target, live.as_ref(), &config, &options.manager, force)?;
    let (object, warnings) = settle(target, applied, options.validation)?;
    let (code, written) = match existing {
        Some(existing) => {
            let mut object = object;
            if metadata_of(&config).get("resourceVersion").is_none() {
                keep_version(&mut object, existing.revision);
            }
            (StatusCode::OK, replace(cx, target, &existing, object, options.dry_run)?)
        }
        None => (StatusCode::CREATED, create::insert(cx, target, object, options)?),
    };
    Ok(object_reply(call, target, code, &written)?.warned(warnings))
}

/// Reads the configuration that is applied.
fn configuration(call: &Call, target: &Target) -> Result<Object> {
    let value = reader::parse(&call.body, &mut Vec::new()).or_else(|_| reader::parse_yaml(&call.body));
    let unreadable = |error: String| Failure::bad_request(format!("error decoding YAML: {error}"));
    let Value::Object(config) = value.map_err(unreadable)? else {
        return Err(unreadable("error unmarshaling JSON: while decoding JSON: json: cannot unmarshal into Go value of type map[string]interface {}".to_owned()));
    };
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind.is_empty() || version.is_empty() {
        let what = if kind.is_empty() { "Kind" } else { "apiVersion" };
        let shown = Value::Object(config.clone());
        return Err(Failure::bad_request(format!("Object '{what}' is missing in '{shown}'")));
    }
    if version != target.api_version() {
        let message = format!("Incorrect version specified in apply patch. Specified patch version: {version}, expected: {}", target.api_version());
        return Err(Failure::bad_request(message));
    }
    Ok(config)
}

fn check_config(target: &Target, config: &mut Object, exists: bool) -> Result<()> {
    config.remove("apiVersion");
    let kind = config.remove("kind").unwrap_or_default();
    if kind != Value::from(target.resource.kind.clone()) {
        let message = format!("the kind in the data ({}) does not match the expected kind ({})", kind.as_str().unwrap_or_default(), target.resource.kind);
        return Err(Failure::bad_request(message));
    }
    let metadata = config.entry("metadata").or_insert_with(|| json!({}));
    let Value::Object(metadata) = metadata else { return Err(Failure::bad_request("metadata must be an object")) };
    if metadata.get("managedFields").is_some_and(|managed| !managed.is_null()) {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    if !name.is_empty() && name != target.name {
        let message = format!("the name of the object ({name}) does not match the name on the URL ({})", target.name);
        return Err(Failure::bad_request(message));
    }
    let uid = metadata.get("uid").and_then(Value::as_str).unwrap_or_default();
    if !uid.is_empty() && !exists {
        let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
        return Err(Failure::conflict(target.resource.qualified(), &target.name, &why));
    }
    metadata.insert("name".to_owned(), Value::from(target.name.clone()));
    if target.resource.namespaced {
        let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
        if !namespace.is_empty() && namespace != target.namespace {
            return Err(Failure::bad_request("the namespace of the provided object does not match the namespace sent on the request"));
        }
        metadata.insert("namespace".to_owned(), Value::from(target.namespace.clone()));
    }
    Ok(())
}

/// Decodes the result of an apply as any other object, and keeps its managers.
fn settle(target: &Target, mut applied: Object, validation: FieldValidation) -> Result<(Object, Vec<String>)> {
    applied.insert("apiVersion".to_owned(), Value::from(target.api_version()));
    applied.insert("kind".to_owned(), Value::from(target.resource.kind.clone()));
    decode::object(target, Value::Object(applied), validation, Vec::new())
}
