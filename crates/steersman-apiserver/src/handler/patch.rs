// SPDX-License-Identifier: Apache-2.0
//! The patch verb: JSON patch, merge patch, server-side apply.

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

/// Maximum number of operations in a JSON patch.
const OPERATIONS: usize = 10_000;

/// Patch types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    /// Parses the media type of a patch and checks that the resource supports it.
    pub(crate) fn parse(call: &Call, target: &Target) -> Result<Self> {
        let media = call
            .header("content-type")
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        match media {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if target.resource.custom.is_none() => {
                Ok(Self::Strategic)
            }
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ if target.resource.custom.is_none() => {
                Err(Failure::unsupported_media_type("415: Unsupported Media Type").with_details())
            }
            _ => Err(Failure::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
        }
    }
}

/// Handles a PATCH.
pub(crate) fn patch(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    decode::check_size(call)?;
    let kind = PatchType::parse(call, target)?;
    let options = WriteOptions::parse(call, "PatchOptions")?;
    check_options(call, kind)?;
    if kind == PatchType::Apply {
        return apply(cx, call, target, &options);
    }
    let existing = cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())?;
    let live = current(cx, target, &existing)?;
    let mut patched = patched(call, target, kind, &whole(target, &live))?;
    if let (PatchType::Strategic, Value::Object(fields)) = (kind, &mut patched) {
        // Such a patch cannot change these fields: the object is always decoded as its own kind.
        fields.insert("apiVersion".to_owned(), Value::from(target.api_version()));
        fields.insert("kind".to_owned(), Value::from(target.resource.kind.clone()));
    }
    let shown = patched.to_string();
    let (mut object, warnings) = decode::object(target, patched, options.validation, &[])
        .map_err(|failure| undecodable(&failure, &shown))?;
    check_identity(target, &mut object)?;
    settle_uid(target, &live, &mut object)?;
    if metadata_of(&object).get("resourceVersion").is_none() {
        keep_version(&mut object, existing.revision);
    }
    managed::on_update(cx, target, Some(&live), &mut object, &options.manager);
    let written = replace(cx, target, &existing, object, options.dry_run)?;
    Ok(object_reply(call, target, StatusCode::OK, &written)?.warned(warnings))
}

/// Returns the failure for a patch result that cannot be decoded as its kind.
pub(super) fn undecodable(failure: &Failure, patched: &str) -> Failure {
    let Some((_, error)) = failure.message().split_once(": json: ") else {
        return failure.clone();
    };
    let error = FieldError::invalid("patch", &Value::from(patched), &format!("json: {error}"));
    Failure::invalid_of_nothing(&error)
}

/// Checks the uid of a patched object, or restores it where a write of the status keeps all metadata.
fn settle_uid(target: &Target, live: &Object, object: &mut Object) -> Result<()> {
    if target.subresource != "status" || !target.resource.strategy.status_keeps_metadata {
        return check_uid(target, live, object);
    }
    if let (Some(uid), Some(Value::Object(metadata))) =
        (metadata_of(live).get("uid").cloned(), object.get_mut("metadata"))
    {
        metadata.insert("uid".to_owned(), uid);
    }
    Ok(())
}

fn check_uid(target: &Target, live: &Object, object: &Object) -> Result<()> {
    let uid = |object: &Object| metadata_of(object).get("uid").cloned();
    match uid(object) {
        Some(sent) if Some(&sent) != uid(live).as_ref() => {
            // The real server validates the metadata of custom resources twice.
            let times = 1 + usize::from(target.resource.custom.is_some());
            let error = || FieldError::invalid("metadata.uid", &sent, "field is immutable");
            let errors: Vec<_> = std::iter::repeat_with(error).take(times).collect();
            let kind = target.resource.qualified_kind();
            Err(Failure::invalid(kind, &target.name, &errors))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_options(call: &Call, kind: PatchType) -> Result<()> {
    let mut errors = Vec::new();
    if kind == PatchType::Apply {
        if call.query.filled("fieldManager").is_none() {
            errors.push(FieldError::required(
                "fieldManager",
                "is required for apply patch",
            ));
        }
    } else if call.query.filled("force").is_some() {
        errors.push(FieldError::forbidden(
            "force",
            "may not be specified for non-apply patch",
        ));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid(
        Qualified {
            group: "meta.k8s.io",
            name: "PatchOptions",
        },
        "",
        &errors,
    ))
}

/// Returns the object as clients see it, with `apiVersion` and `kind`.
pub(crate) fn whole(target: &Target, object: &Object) -> Value {
    let mut object = full(target).converted(object.clone());
    object.insert("apiVersion".to_owned(), Value::from(target.api_version()));
    object.insert("kind".to_owned(), Value::from(target.resource.kind.clone()));
    Value::Object(object)
}

/// Sets the current `resourceVersion`; used if the patch names none, so that it applies to any version.
fn keep_version(object: &mut Object, revision: u64) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("resourceVersion".to_owned(), Value::from(revision.to_string()));
    }
}

/// Returns the result of a patch other than an apply.
pub(crate) fn patched(call: &Call, target: &Target, kind: PatchType, live: &Value) -> Result<Value> {
    let unreadable = |error: String| Failure::bad_request(format!("error decoding patch: {error}"));
    match kind {
        PatchType::Json => {
            let operations: Value = reader::parse(&call.body, &mut Vec::new()).map_err(unreadable)?;
            let count = operations.as_array().map_or(0, Vec::len);
            if count > OPERATIONS {
                let message =
                    format!("The allowed maximum operations in a JSON patch is {OPERATIONS}, got {count}");
                return Err(Failure::too_large(message));
            }
            if !operations.is_array() {
                let found = decode::go_kind(&operations);
                return Err(unreadable(format!(
                    "json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
                )));
            }
            let operations = operations.as_array().map_or(&[][..], Vec::as_slice);
            crate::jsonpatch::apply(live, operations).map_err(|_| Failure::unprocessable())
        }
        PatchType::Merge => {
            let patch = reader::parse(&call.body, &mut Vec::new())
                .map_err(|_| Failure::bad_request("invalid JSON patch"))?;
            if !patch.is_object() {
                let found = decode::go_kind(&patch);
                return Err(unreadable(format!(
                    "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
                )));
            }
            let mut value = live.clone();
            json_patch::merge(&mut value, &patch);
            Ok(value)
        }
        PatchType::Strategic => {
            let patch = reader::parse(&call.body, &mut Vec::new()).map_err(unreadable)?;
            let Value::Object(patch) = patch else {
                return Err(unreadable(
                    "json: cannot unmarshal into Go value of type map[string]interface {}".to_owned(),
                ));
            };
            crate::strategic::patch(&target.version().schema, live, &patch).map_err(Failure::unclassified)
        }
        PatchType::Apply => Ok(live.clone()),
    }
}

fn apply(cx: &mut Context<'_>, call: &Call, target: &Target, options: &WriteOptions) -> Result<Reply> {
    let mut config = configuration(call, target)?;
    let force = call.query.flag("force");
    let existing = cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .cloned();
    if existing.is_none() && !target.subresource.is_empty() {
        return Err(target.not_found());
    }
    check_config(target, &mut config, existing.is_some())?;
    let live = match &existing {
        Some(existing) => Some(current(cx, target, existing)?),
        None => None,
    };
    let mut applied = managed::on_apply(cx, target, live.as_ref(), &config, &options.manager, force)?;
    check_name(target, &config)?;
    if let Some(Value::Object(metadata)) = applied.get_mut("metadata") {
        metadata.insert("name".to_owned(), Value::from(target.name.clone()));
    }
    let (object, warnings) = settle(target, applied, options.validation)?;
    let (code, written) = match existing {
        Some(existing) => {
            let mut object = object;
            if let Some(live) = &live {
                settle_uid(target, live, &mut object)?;
            }
            if metadata_of(&config).get("resourceVersion").is_none() {
                keep_version(&mut object, existing.revision);
            }
            (
                StatusCode::OK,
                replace(cx, target, &existing, object, options.dry_run)?,
            )
        }
        None => (StatusCode::CREATED, create::insert(cx, target, object, options)?),
    };
    Ok(object_reply(call, target, code, &written)?.warned(warnings))
}

/// Parses an apply configuration.
pub(super) fn configuration(call: &Call, target: &Target) -> Result<Object> {
    let value = reader::parse(&call.body, &mut Vec::new()).or_else(|_| reader::parse_yaml(&call.body));
    let unreadable = |error: String| Failure::bad_request(format!("error decoding YAML: {error}"));
    let Value::Object(config) = value.map_err(unreadable)? else {
        return Err(unreadable("error unmarshaling JSON: while decoding JSON: json: cannot unmarshal into Go value of type map[string]interface {}".to_owned()));
    };
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if version != target.api_version() || kind != target.resource.kind {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        return Err(Failure::bad_request(format!(
            "invalid object type: {group}/{version}, Kind={kind}"
        )));
    }
    Ok(config)
}

/// Checks that the name in an apply configuration, if present, equals the name in the URL.
pub(super) fn check_name(target: &Target, config: &Object) -> Result<()> {
    let metadata = metadata_of(config);
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    if !name.is_empty() && name != target.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        );
        return Err(Failure::bad_request(message));
    }
    Ok(())
}

pub(super) fn check_config(target: &Target, config: &mut Object, exists: bool) -> Result<()> {
    config.remove("apiVersion");
    config.remove("kind");
    let metadata = config.entry("metadata").or_insert_with(|| json!({}));
    let Value::Object(metadata) = metadata else {
        return Err(Failure::bad_request("metadata must be an object"));
    };
    if metadata
        .get("managedFields")
        .is_some_and(|managed| !managed.is_null())
    {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    let uid = metadata.get("uid").and_then(Value::as_str).unwrap_or_default();
    if !uid.is_empty() && !exists {
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(Failure::conflict(target.resource.qualified(), &target.name, &why));
    }
    if target.resource.namespaced {
        let namespace = metadata
            .get("namespace")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !namespace.is_empty() && namespace != target.namespace {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    Ok(())
}

/// Decodes the result of an apply as any other object and keeps its managers.
pub(super) fn settle(
    target: &Target,
    mut applied: Object,
    validation: FieldValidation,
) -> Result<(Object, Vec<String>)> {
    applied.insert("apiVersion".to_owned(), Value::from(target.api_version()));
    applied.insert("kind".to_owned(), Value::from(target.resource.kind.clone()));
    decode::object(target, Value::Object(applied), validation, &[])
}
