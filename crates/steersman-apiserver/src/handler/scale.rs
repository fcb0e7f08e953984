// SPDX-License-Identifier: Apache-2.0
//! The `scale` subresource.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{
    Call, Reply, Target, WriteOptions, decode,
    patch::{PatchType, patched},
    update::{current, replace},
};
use crate::{
    managed,
    resource::{ScalePaths, at},
    state::Context,
    status::{Failure, FieldError, Qualified, Result},
    store::{Object, Stored, metadata_of},
};

const OF: Qualified<'_> = Qualified {
    group: "autoscaling",
    name: "Scale",
};

/// Answers the scale of an object.
pub(crate) fn get(cx: &mut Context<'_>, target: &Target) -> Result<Reply> {
    let stored = find(cx, target)?;
    Ok(Reply::json(
        StatusCode::OK,
        &scale(target, &current(target, &stored))?,
    ))
}

/// Answers a PUT of a scale.
pub(crate) fn update(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let options = WriteOptions::parse(call, "UpdateOptions")?;
    let value = decode::value(call, "Scale", &mut Vec::new())?;
    set(cx, target, &value, &options)
}

/// Answers a PATCH of a scale.
pub(crate) fn patch(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let options = WriteOptions::parse(call, "PatchOptions")?;
    let kind = PatchType::parse(call, target)?;
    let stored = find(cx, target)?;
    let live = scale(target, &current(target, &stored))?;
    let value = match kind {
        // A scale has two fields that can be set; applying one is merging it.
        PatchType::Apply | PatchType::Strategic | PatchType::Merge => {
            patched(call, target, PatchType::Merge, &live)?
        }
        PatchType::Json => patched(call, target, PatchType::Json, &live)?,
    };
    set(cx, target, &value, &options)
}

fn find(cx: &Context<'_>, target: &Target) -> Result<Arc<Stored>> {
    cx.state
        .store
        .get(target.resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())
}

fn paths(target: &Target) -> Result<&ScalePaths> {
    target.version().scale.as_ref().ok_or_else(|| target.not_found())
}

/// The scale that an object shows.
fn scale(target: &Target, object: &Object) -> Result<Value> {
    let paths = paths(target)?;
    let number = |path: &[String]| at(object, path).and_then(Value::as_i64).unwrap_or_default();
    let metadata = metadata_of(object);
    let kept = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let metadata: Map<String, Value> = kept
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), metadata.get(*key)?.clone())))
        .collect();
    let mut status = json!({"replicas": number(&paths.status)});
    if let Some(selector) = paths
        .selector
        .as_ref()
        .and_then(|path| at(object, path))
        .and_then(selector_text)
    {
        status["selector"] = json!(selector);
    }
    let mut spec = json!({});
    let replicas = number(&paths.spec);
    // Go omits a zero here.
    if replicas != 0 {
        spec["replicas"] = json!(replicas);
    }
    Ok(
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status}),
    )
}

/// A selector as text, whether it is kept as one or as a structure.
fn selector_text(selector: &Value) -> Option<String> {
    if let Value::String(text) = selector {
        return Some(text.clone());
    }
    let labels = selector.get("matchLabels").or(Some(selector))?.as_object()?;
    let mut parts: Vec<String> = labels
        .iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect();
    for expression in selector
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
        let values: Vec<&str> = expression
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        parts.push(
            match expression
                .get("operator")
                .and_then(Value::as_str)
                .unwrap_or_default()
            {
                "In" => format!("{key} in ({})", values.join(",")),
                "NotIn" => format!("{key} notin ({})", values.join(",")),
                "DoesNotExist" => format!("!{key}"),
                _ => key.to_owned(),
            },
        );
    }
    (!parts.is_empty()).then(|| parts.join(","))
}

fn set(cx: &mut Context<'_>, target: &Target, value: &Value, options: &WriteOptions) -> Result<Reply> {
    let stored = find(cx, target)?;
    let live = current(target, &stored);
    let spec = value.get("spec").cloned().unwrap_or_else(|| json!({}));
    let replicas = spec.get("replicas").cloned().unwrap_or(json!(0));
    let Some(count) = replicas.as_i64().filter(|count| i32::try_from(*count).is_ok()) else {
        let message = "json: cannot unmarshal into Go struct field ScaleSpec.spec.replicas of type int32";
        return Err(Failure::bad_request(format!(
            "Scale in version \"v1\" cannot be handled as a Scale: {message}"
        )));
    };
    let name = value
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !name.is_empty() && name != target.name {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        );
        return Err(Failure::bad_request(message));
    }
    if count < 0 && target.resource.custom.is_none() {
        let error = FieldError::invalid("spec.replicas", &replicas, "must be greater than or equal to 0");
        return Err(Failure::invalid(OF, &target.name, &[error]));
    }
    let mut object = live.clone();
    if paths(target)?.spec.len() > crate::json::DEPTH {
        return Err(Failure::internal("exceeded max depth"));
    }
    insert(&mut object, &paths(target)?.spec, replicas);
    let version = value
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !version.is_empty() && version != stored.revision.to_string() {
        return Err(Failure::modified(target.resource.qualified(), &target.name));
    }
    // A scale of zero is an absent field of the scale, and so owned by nobody.
    let mut tracked = object.clone();
    if count == 0 {
        insert(&mut tracked, &paths(target)?.spec, Value::Null);
        prune_null(&mut tracked, &paths(target)?.spec);
    }
    managed::on_update(cx, target, Some(&live), &mut tracked, &options.manager);
    match metadata_of(&tracked).get("managedFields").cloned() {
        Some(managed) => insert(
            &mut object,
            &["metadata".to_owned(), "managedFields".to_owned()],
            managed,
        ),
        None => prune_null(&mut object, &["metadata".to_owned(), "managedFields".to_owned()]),
    }
    let main = Target {
        subresource: String::new(),
        ..target.clone()
    };
    let written = replace(cx, &main, &stored, object, options.dry_run)?;
    Ok(Reply::json(StatusCode::OK, &scale(target, &written.object())?))
}

fn prune_null(object: &mut Object, path: &[String]) {
    match path {
        [] => {}
        [last] => {
            object.remove(last);
        }
        [first, rest @ ..] => {
            if let Some(Value::Object(inner)) = object.get_mut(first) {
                prune_null(inner, rest);
            }
        }
    }
}

fn insert(object: &mut Object, path: &[String], value: Value) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        object.insert(first.clone(), value);
        return;
    }
    let inner = object.entry(first.clone()).or_insert_with(|| json!({}));
    if let Value::Object(inner) = inner {
        insert(inner, rest, value);
    }
}
