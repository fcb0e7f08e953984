// SPDX-License-Identifier: Apache-2.0
//! Validation of kinds that create Pods.

use serde_json::{Value, json};

use super::{Errors, is_empty, items, pod, text};
use crate::{names, status::FieldError};

/// Checks a selector, and that it selects the Pods of the template.
fn selector(of: &str, spec: &Value, errors: &mut Errors<'_>) {
    let selector = &spec["selector"];
    if selector.is_null() {
        errors.required("spec.selector");
    } else {
        label_selector("spec.selector", selector, errors);
        if !is_valid(selector) {
            errors.invalid("spec.selector", selector, "invalid label selector");
        }
        if is_empty(&selector["matchLabels"]) && is_empty(&selector["matchExpressions"]) {
            let detail = format!("empty selector is invalid for {of}");
            errors.invalid("spec.selector", selector, &detail);
        }
    }
    let labels = spec
        .pointer("/template/metadata/labels")
        .cloned()
        .unwrap_or_default();
    if selector.is_null() || is_valid(selector) && !is_empty(selector) && !selects(selector, &labels) {
        let detail = "`selector` does not match template `labels`";
        errors.invalid("spec.template.metadata.labels", &labels, detail);
    }
}

const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

fn is_valid(selector: &Value) -> bool {
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    expressions.all(|expression| OPERATORS.contains(&text(expression, "operator")))
}

/// Checks a label selector at a path.
pub(super) fn label_selector(path: &str, selector: &Value, errors: &mut Errors<'_>) {
    errors.labels(&format!("{path}.matchLabels"), &selector["matchLabels"]);
    let path = format!("{path}.matchExpressions");
    for (path, expression) in items(selector, "matchExpressions", &path) {
        let operator = text(expression, "operator");
        let count = expression["values"].as_array().map_or(0, Vec::len);
        match operator {
            "In" | "NotIn" if count == 0 => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{path}.values"), detail));
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{path}.values"), detail));
            }
            _ if OPERATORS.contains(&operator) => {}
            other => {
                let detail = "not a valid selector operator";
                errors.invalid(&format!("{path}.operator"), &json!(other), detail);
            }
        }
        for error in names::qualified(text(expression, "key")) {
            errors.invalid(&format!("{path}.key"), &expression["key"], &error);
        }
    }
}

/// Returns true if a selector selects these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let own = |key: &str| labels.get(key);
    let mut wanted = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    wanted.all(|(key, value)| own(key) == Some(value))
        && expressions.all(|expression| {
            let value = own(text(expression, "key"));
            let listed = expression["values"]
                .as_array()
                .is_some_and(|values| value.is_some_and(|value| values.contains(value)));
            match text(expression, "operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

/// Checks a Pod template that requires `restartPolicy: Always`.
fn template(of: &str, spec: &Value, errors: &mut Errors<'_>) {
    let inner = &spec["template"]["spec"];
    errors.labels("spec.template.labels", &spec["template"]["metadata"]["labels"]);
    pod::spec("spec.template.spec", inner, errors);
    let policy = text(inner, "restartPolicy");
    if matches!(policy, "OnFailure" | "Never") {
        errors.one_of("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
    if !inner["activeDeadlineSeconds"].is_null() {
        let detail = format!("activeDeadlineSeconds in {of} is not Supported");
        errors.push(FieldError::forbidden(
            "spec.template.spec.activeDeadlineSeconds",
            &detail,
        ));
    }
}

fn numbers(spec: &Value, fields: &[&str], errors: &mut Errors<'_>) {
    for field in fields {
        errors.not_negative(&format!("spec.{field}"), &spec[field]);
    }
}

/// Formats an unknown strategy as Go prints it.
fn unknown_strategy(spec: &Value, field: &str) -> String {
    format!(
        "{{\"Type\":{},\"RollingUpdate\":null}}",
        json!(text(&spec[field], "type"))
    )
}

pub(super) fn deployment(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    numbers(
        spec,
        &[
            "replicas",
            "minReadySeconds",
            "revisionHistoryLimit",
            "progressDeadlineSeconds",
        ],
        errors,
    );
    selector("deployment", spec, errors);
    template("ReplicaSet", spec, errors);
    let rolling = &spec["strategy"]["rollingUpdate"];
    match text(&spec["strategy"], "type") {
        "Recreate" if !rolling.is_null() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", detail));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let (missing, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            errors.share("spec.strategy.rollingUpdate.maxUnavailable", missing);
            errors.share("spec.strategy.rollingUpdate.maxSurge", surge);
            if is_none(missing) && is_none(surge) {
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.invalid("spec.strategy.rollingUpdate.maxUnavailable", missing, detail);
            }
            errors.at_most_all("spec.strategy.rollingUpdate.maxUnavailable", missing);
        }
        _ => {
            let supported = ["Recreate", "RollingUpdate"].map(str::to_owned);
            let error = FieldError::unsupported_text(
                "spec.strategy",
                &unknown_strategy(spec, "strategy"),
                &supported,
            );
            errors.push(error);
        }
    }
    let (deadline, ready) = (&spec["progressDeadlineSeconds"], &spec["minReadySeconds"]);
    if deadline
        .as_i64()
        .is_some_and(|deadline| deadline <= ready.as_i64().unwrap_or_default())
    {
        let detail = "must be greater than minReadySeconds";
        errors.invalid("spec.progressDeadlineSeconds", deadline, detail);
    }
    if let Some(old) = old {
        errors.immutable("spec.selector", &old["spec"]["selector"], &spec["selector"]);
    }
}

fn is_none(share: &Value) -> bool {
    *share == json!(0) || *share == json!("0%")
}

pub(super) fn replica_set(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    numbers(spec, &["replicas", "minReadySeconds"], errors);
    selector("deployment", spec, errors);
    template("ReplicaSet", spec, errors);
    if let Some(old) = old {
        errors.immutable("spec.selector", &old["spec"]["selector"], &spec["selector"]);
    }
}

/// Error for a change of an immutable field of a StatefulSet's spec.
const STATEFUL: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

pub(super) fn stateful_set(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    let policy = text(spec, "podManagementPolicy");
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.invalid("spec.podManagementPolicy", &json!(policy), detail);
    }
    match text(&spec["updateStrategy"], "type") {
        "RollingUpdate" => {
            let partition = &spec["updateStrategy"]["rollingUpdate"]["partition"];
            errors.not_negative("spec.updateStrategy.rollingUpdate.partition", partition);
        }
        "OnDelete" => {}
        _ => {
            let value = unknown_strategy(spec, "updateStrategy");
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(FieldError::invalid_text("spec.updateStrategy", &value, detail));
        }
    }
    numbers(spec, &["replicas", "minReadySeconds"], errors);
    selector("statefulset", spec, errors);
    template("StatefulSet", spec, errors);
    let Some(old) = old else { return };
    let old = &old["spec"];
    for field in ["serviceName", "selector", "podManagementPolicy"] {
        errors.immutable(&format!("spec.{field}"), &old[field], &spec[field]);
    }
    if old["volumeClaimTemplates"] != spec["volumeClaimTemplates"] {
        errors.push(FieldError::forbidden("spec", STATEFUL));
    }
}

pub(super) fn daemon_set(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    numbers(spec, &["minReadySeconds", "revisionHistoryLimit"], errors);
    selector("daemonset", spec, errors);
    template("DaemonSet", spec, errors);
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    match text(&spec["updateStrategy"], "type") {
        "RollingUpdate" if is_none(&rolling["maxUnavailable"]) && is_none(&rolling["maxSurge"]) => {
            let detail = "cannot be 0 when maxSurge is 0";
            errors.push(FieldError::required(
                "spec.updateStrategy.rollingUpdate.maxUnavailable",
                detail,
            ));
        }
        "RollingUpdate" | "OnDelete" => {}
        _ => {
            let supported = ["RollingUpdate", "OnDelete"].map(str::to_owned);
            let value = unknown_strategy(spec, "updateStrategy");
            errors.push(FieldError::unsupported_text(
                "spec.updateStrategy",
                &value,
                &supported,
            ));
        }
    }
    if let Some(old) = old {
        errors.immutable("spec.selector", &old["spec"]["selector"], &spec["selector"]);
    }
}

pub(super) fn job(old: Option<&Value>, object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    job_spec("spec", spec, errors);
    if let Some(whole_old) = old {
        let old = &whole_old["spec"];
        let (was, is) = (&old["completions"], &spec["completions"]);
        let indexed = text(spec, "completionMode") == "Indexed" && *is == spec["parallelism"];
        if !indexed {
            errors.immutable("spec.completions", was, is);
        }
        errors.immutable("spec.selector", &old["selector"], &spec["selector"]);
        job_template(whole_old, spec, errors);
        for field in [
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
            "managedBy",
            "successPolicy",
        ] {
            errors.immutable(&format!("spec.{field}"), &old[field], &spec[field]);
        }
        return;
    }
    let uid = text(&object["metadata"], "uid");
    let own = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
    if spec["manualSelector"] != json!(true) && spec["selector"] != own {
        errors.invalid(
            "spec.selector",
            &spec["selector"],
            "`selector` not auto-generated",
        );
    }
    let labels = &spec["template"]["metadata"]["labels"];
    if !selects(&spec["selector"], labels) {
        let detail = "`selector` does not match template `labels`";
        errors.invalid("spec.template.metadata.labels", labels, detail);
    }
}

/// Checks a change of the Pod template of a Job.
///
/// Where a suspended Job without Pods will run, and the resources of its containers, can change, so that a queue
/// controller can place it.
fn job_template(old: &Value, spec: &Value, errors: &mut Errors<'_>) {
    let status = &old["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let is_suspended = conditions
        .any(|condition| text(condition, "type") == "Suspended" && text(condition, "status") == "True");
    let has_pods = status["active"].as_i64().unwrap_or_default() > 0;
    let can_move =
        old["spec"]["suspend"] == json!(true) && (status["startTime"].is_null() || is_suspended) && !has_pods;
    let (mut old, new) = (old["spec"]["template"].clone(), &spec["template"]);
    if !can_move {
        errors.immutable("spec.template", &old, new);
        return;
    }
    let (old, new) = (&mut old["spec"], &new["spec"]);
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        copy(old, new, field);
    }
    if new["affinity"].is_null() && old["affinity"].is_object() {
        copy(&mut old["affinity"], &Value::Null, "nodeAffinity");
        if is_empty(&old["affinity"]) {
            copy(old, &Value::Null, "affinity");
        }
    } else if new["affinity"].is_object() {
        copy(&mut old["affinity"], &new["affinity"], "nodeAffinity");
    }
    for list in ["containers", "initContainers"] {
        let count = |spec: &Value| spec[list].as_array().map_or(0, Vec::len);
        if count(old) != count(new) {
            continue;
        }
        for index in 0..count(new) {
            let (old, new) = (&mut old[list][index], &new[list][index]);
            if old["name"] == new["name"] {
                copy(old, new, "resources");
            }
        }
    }
    errors.immutable("spec.template.spec", old, new);
}

/// Gives a field the value that it has elsewhere.
fn copy(to: &mut Value, from: &Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => {
            if let Value::Object(fields) = to {
                fields.remove(field);
            }
        }
    }
}

fn job_spec(path: &str, spec: &Value, errors: &mut Errors<'_>) {
    let fields = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ];
    for field in fields {
        errors.not_negative(&format!("{path}.{field}"), &spec[field]);
    }
    if text(spec, "completionMode") == "Indexed" && spec["completions"].is_null() {
        let detail = "when completion mode is Indexed";
        errors.push(FieldError::required(format!("{path}.completions"), detail));
    }
    let inner = &spec["template"]["spec"];
    pod::spec(&format!("{path}.template.spec"), inner, errors);
    if text(inner, "restartPolicy") == "Always" {
        let detail = "valid values: \"OnFailure\", \"Never\"";
        errors.push(FieldError::required(
            format!("{path}.template.spec.restartPolicy"),
            detail,
        ));
    }
}

pub(super) fn cron_job(object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    let name = text(&object["metadata"], "name");
    if name.len() > 52 {
        errors.invalid(
            "metadata.name",
            &json!(name),
            "must be no more than 52 characters",
        );
    }
    match text(spec, "schedule") {
        "" => errors.required("spec.schedule"),
        schedule => {
            let words: Vec<&str> = schedule.split_whitespace().collect();
            if !schedule.starts_with('@') && words.len() != 5 {
                let found = words.join(" ");
                let detail = format!("expected exactly 5 fields, found {}: [{found}]", words.len());
                errors.invalid("spec.schedule", &json!(schedule), &detail);
            }
        }
    }
    if let Some(zone) = spec["timeZone"].as_str()
        && !is_zone(zone)
    {
        errors.invalid(
            "spec.timeZone",
            &json!(zone),
            &format!("unknown time zone {zone}"),
        );
    }
    errors.one_of(
        "spec.concurrencyPolicy",
        text(spec, "concurrencyPolicy"),
        &["Allow", "Forbid", "Replace"],
    );
    numbers(
        spec,
        &[
            "successfulJobsHistoryLimit",
            "failedJobsHistoryLimit",
            "startingDeadlineSeconds",
        ],
        errors,
    );
    job_spec("spec.jobTemplate.spec", &spec["jobTemplate"]["spec"], errors);
}

/// Returns true if the text looks like a time zone; this server has no time zone database.
fn is_zone(zone: &str) -> bool {
    const AREAS: [&str; 10] = [
        "Africa",
        "America",
        "Antarctica",
        "Asia",
        "Atlantic",
        "Australia",
        "Etc",
        "Europe",
        "Indian",
        "Pacific",
    ];
    match zone.split_once('/') {
        Some((area, place)) => AREAS.contains(&area) && !place.is_empty(),
        None => {
            zone.chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '+'))
                && !zone.is_empty()
        }
    }
}
