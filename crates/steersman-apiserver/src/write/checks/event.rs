// SPDX-License-Identifier: Apache-2.0
//! Validation of Events. Both groups are checked; `events.k8s.io` is stricter than the core group.

use serde_json::{Value, json};

use super::{Errors, text};
use crate::{
    handler::Target,
    names::{self, NameRule},
};

const WORD_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

pub(super) fn check(target: &Target, old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let is_old_group = target.resource.group.is_empty();
    place(target, object, errors);
    if !object["eventTime"].is_null() {
        origin(is_old_group, object, errors);
    }
    if is_old_group {
        return;
    }
    if old.is_none_or(|old| old["series"] != object["series"]) {
        series(&object["series"], errors);
    }
    if old.is_some() {
        return;
    }
    name(&object["metadata"], errors);
    if object["eventTime"].is_null() {
        errors.required("eventTime");
    }
    let kind = text(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid("type", &json!(""), &format!("has invalid value: {kind}"));
    }
}

/// Checks the namespace of an Event: it must be that of the involved object, or `default` for a cluster-scoped object.
/// An Event with `eventTime` can also use `kube-system` for a cluster-scoped object, and any namespace for a namespaced
/// object.
fn place(target: &Target, object: &Value, errors: &mut Errors<'_>) {
    let namespace = text(&object["involvedObject"], "namespace");
    let is_new = !object["eventTime"].is_null();
    let agrees = match namespace {
        "" if target.namespace == "kube-system" => is_new,
        "" => target.namespace == "default",
        namespace => is_new || namespace == target.namespace,
    };
    if !agrees {
        let detail = "does not match event.namespace";
        errors.invalid("involvedObject.namespace", &json!(namespace), detail);
    }
}

/// Checks the reporting controller, instance, action, reason and message.
fn origin(is_old_group: bool, object: &Value, errors: &mut Errors<'_>) {
    let controller = text(object, "reportingComponent");
    let path = if is_old_group {
        "reportingComponent"
    } else {
        "reportingController"
    };
    if controller.is_empty() {
        errors.required(path);
    }
    for error in names::qualified(controller) {
        errors.invalid(path, &json!(controller), &error);
    }
    for field in ["reportingInstance", "action", "reason"] {
        let word = text(object, field);
        if word.is_empty() {
            errors.required(field);
        }
        at_most(field, word, WORD_MAX, errors);
    }
    at_most("message", text(object, "message"), NOTE_MAX, errors);
}

fn at_most(path: &str, value: &str, max: usize, errors: &mut Errors<'_>) {
    if value.len() > max {
        let detail = format!("can have at most {max} characters");
        errors.invalid(path, &json!(""), &detail);
    }
}

fn series(series: &Value, errors: &mut Errors<'_>) {
    if series.is_null() {
        return;
    }
    if series["count"].as_i64().unwrap_or_default() < 2 {
        errors.invalid("series.count", &json!(""), "should be at least 2");
    }
    if series["lastObservedTime"].is_null() {
        errors.required("series.lastObservedTime");
    }
}

/// Checks that the name is a DNS subdomain. The core group does not require this.
fn name(metadata: &Value, errors: &mut Errors<'_>) {
    for (field, is_prefix) in [("generateName", true), ("name", false)] {
        let name = text(metadata, field);
        if name.is_empty() {
            continue;
        }
        for error in NameRule::Subdomain.check(name, is_prefix) {
            errors.invalid(&format!("metadata.{field}"), &json!(name), &error);
        }
    }
}
