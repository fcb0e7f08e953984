// SPDX-License-Identifier: Apache-2.0
//! The `scale` subresource.

use std::sync::{Arc, LazyLock};

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{
    Call, Reply, Target, WriteOptions, decode, patch,
    patch::PatchType,
    update::{check_identity, check_uid, current, replace},
};
use crate::{
    admission::{self, GroupVersionKind, Write},
    managed,
    resource::{Resource, ScalePaths, Strategy, Version, at},
    schema::Schema,
    state::Context,
    status::{Failure, FieldError, Result},
    store::{Object, StorageId, Stored, metadata_of},
};

/// Placeholder for the replicas of a custom resource without replicas while its scale is written.
const NONE: i64 = i32::MIN as i64;

/// The kind of scales. They are decoded, patched and applied as other objects but never stored.
static KIND: LazyLock<Arc<Resource>> = LazyLock::new(|| {
    let version = Version {
        name: "v1".to_owned(),
        columns: Vec::new(),
        served: true,
        schema: Arc::new(Schema {
            reference: Some("io.k8s.api.autoscaling.v1.Scale".to_owned()),
            ..Schema::default()
        }),
        cel: None,
        subresources: Vec::new(),
        scale: None,
        selectable: Vec::new(),
        deprecation: None,
    };
    Arc::new(Resource {
        group: "autoscaling".to_owned(),
        plural: "scales".to_owned(),
        singular: "scale".to_owned(),
        kind: "Scale".to_owned(),
        list_kind: String::new(),
        namespaced: true,
        short_names: Vec::new(),
        categories: Vec::new(),
        verbs: Vec::new(),
        versions: vec![version],
        storage: StorageId(usize::MAX),
        strategy: Strategy::default(),
        custom: None,
        epoch: 0,
        floor: 0,
    })
});

/// Returns the scale target of an object's target.
fn of(target: &Target) -> Target {
    Target {
        resource: Arc::clone(&KIND),
        version: 0,
        ..target.clone()
    }
}

/// Handles a GET of a scale.
pub(crate) fn get(cx: &mut Context<'_>, target: &Target) -> Result<Reply> {
    let stored = find(cx, target)?;
    let object = current(cx, target, &stored)?;
    if target.resource.custom.is_some() && at(&object, &paths(target)?.spec).is_none() {
        let path = paths(target)?.spec.join(".");
        return Err(Failure::internal(format!(
            "the spec replicas field \".{path}\" does not exist"
        )));
    }
    Ok(Reply::json(StatusCode::OK, &scale(target, &object)?))
}

/// Handles a PUT of a scale.
pub(crate) fn update(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let options = WriteOptions::parse(call, "UpdateOptions")?;
    let (mut new, warnings) = decode::body(call, &of(target), options.validation)?;
    check_identity(&of(target), &mut new)?;
    let stored = find(cx, target)?;
    let live = to_write(target, &current(cx, target, &stored)?)?;
    managed::on_update(cx, &of(target), Some(&live), &mut new, &options.manager);
    Ok(set(cx, target, &stored, &new, &options)?.warned(warnings))
}

/// Handles a PATCH of a scale.
pub(crate) fn patch(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    decode::check_size(call)?;
    let kind = PatchType::parse(call, target)?;
    let options = WriteOptions::parse(call, "PatchOptions")?;
    patch::check_options(call, kind)?;
    let scale = of(target);
    let stored = find(cx, target)?;
    let live = to_write(target, &current(cx, target, &stored)?)?;
    let (mut new, warnings) = if kind == PatchType::Apply {
        let applied = apply(cx, call, target, &live, &options)?;
        patch::settle(&scale, applied, options.validation)?
    } else {
        let patched = patch::patched(call, &scale, kind, &patch::whole(&scale, &live))?;
        let shown = patched.to_string();
        let (mut new, warnings) = decode::object(&scale, patched, options.validation, &[])
            .map_err(|failure| patch::undecodable(&failure, &shown))?;
        managed::on_update(cx, &scale, Some(&live), &mut new, &options.manager);
        (new, warnings)
    };
    check_identity(&scale, &mut new)?;
    Ok(set(cx, target, &stored, &new, &options)?.warned(warnings))
}

/// Applies a configuration to a scale.
fn apply(
    cx: &Context<'_>,
    call: &Call,
    target: &Target,
    live: &Object,
    options: &WriteOptions,
) -> Result<Object> {
    let (scale, custom) = (of(target), target.resource.custom.is_some());
    let mut config = patch::configuration(call, &scale)?;
    patch::check_config(&scale, &mut config, true)?;
    // The real server cannot convert the scale of a custom resource and therefore rejects every apply to it.
    let inconvertible = |what: &str, name: &str| {
        Failure::unclassified(format!(
            "{what} (/{name}; autoscaling/v1, Kind=Scale) to proper version: request to convert CR to an invalid group/version: autoscaling/v1"
        ))
    };
    if custom && !metadata_of(live).contains_key("managedFields") {
        let what = "failed to create manager for existing fields: failed to convert live object";
        return Err(inconvertible(what, ""));
    }
    let force = call.query.flag("force");
    let mut applied = managed::on_apply(cx, &scale, Some(live), &config, &options.manager, force)?;
    if custom {
        return Err(inconvertible("failed to convert new object", &target.name));
    }
    patch::check_name(&scale, &config)?;
    // An applied configuration is not decoded: a number that is too large for the Go type is truncated.
    if let Some(replicas) = applied.get_mut("spec").and_then(|spec| spec.get_mut("replicas"))
        && let Some(count) = replicas.as_i64()
    {
        let [a, b, c, d, ..] = count.to_le_bytes();
        *replicas = json!(i32::from_le_bytes([a, b, c, d]));
    }
    Ok(applied)
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

/// Builds the scale of an object.
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

/// Returns a selector as text; the object stores it as text or as a structure.
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

/// Returns the scale that a write starts from: the visible scale with its managed fields.
fn to_write(target: &Target, object: &Object) -> Result<Object> {
    let mut shown = scale(target, object)?;
    if target.resource.custom.is_some() && at(object, &paths(target)?.spec).is_none() {
        shown["spec"]["replicas"] = json!(NONE);
    }
    let managed = metadata_of(object).get("managedFields");
    if let Some(managed) = managed::scale::to_scale(target, managed) {
        shown["metadata"]["managedFields"] = managed;
    }
    let Value::Object(mut shown) = shown else {
        return Ok(Object::new());
    };
    shown.remove("apiVersion");
    shown.remove("kind");
    Ok(shown)
}

/// Writes a scale to its object.
fn set(
    cx: &mut Context<'_>,
    target: &Target,
    stored: &Arc<Stored>,
    new: &Object,
    options: &WriteOptions,
) -> Result<Reply> {
    let custom = target.resource.custom.is_some();
    let path = &paths(target)?.spec;
    let changed = admit(cx, target, stored, new, options.dry_run)?;
    let new = changed.as_ref().unwrap_or(new);
    let replicas = at(new, &["spec", "replicas"]).cloned().unwrap_or(json!(0));
    let count = replicas.as_i64().unwrap_or_default();
    if custom && count == NONE {
        let message = format!("the spec replicas field \".{}\" cannot be empty", path.join("."));
        return Err(Failure::bad_request(message));
    }
    if count < 0 && !custom {
        let error = FieldError::invalid("spec.replicas", &replicas, "must be greater than or equal to 0");
        return Err(Failure::invalid(KIND.qualified_kind(), &target.name, &[error]));
    }
    check_uid(target, &stored.text("uid"), new)?;
    let version = metadata_of(new).get("resourceVersion").and_then(Value::as_str);
    let version = version.unwrap_or_default();
    let mut object = current(cx, target, stored)?;
    let managed = managed::scale::from_scale(
        target,
        metadata_of(&object).get("managedFields"),
        metadata_of(new).get("managedFields"),
    );
    if path.len() > crate::json::DEPTH {
        return Err(Failure::internal("exceeded max depth"));
    }
    insert(&mut object, path, replicas);
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        if !custom || !version.is_empty() {
            metadata.insert("resourceVersion".to_owned(), json!(version));
        }
        match managed {
            Some(managed) => metadata.insert("managedFields".to_owned(), managed),
            None => metadata.remove("managedFields"),
        };
    }
    let main = Target {
        subresource: String::new(),
        ..target.clone()
    };
    let written = cx.admitted(|cx| replace(cx, &main, stored, object, options.dry_run))?;
    Ok(Reply::json(StatusCode::OK, &scale(target, &written.object())?))
}

/// Runs the admission hooks of the scale.
fn admit(
    cx: &mut Context<'_>,
    target: &Target,
    stored: &Stored,
    new: &Object,
    dry_run: bool,
) -> Result<Option<Object>> {
    let old = to_write(target, &current(cx, target, stored)?)?;
    let kind = GroupVersionKind::of(&of(target));
    let write = Write {
        kind: Some(&kind),
        ..Write::update(target, &old, new, dry_run)
    };
    admission::admit(cx, write)
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
