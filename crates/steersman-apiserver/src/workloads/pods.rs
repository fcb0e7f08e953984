// SPDX-License-Identifier: Apache-2.0
//! What the scheduler and a kubelet do for a Pod.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::actor::{self, PODS, set_condition, text};
use crate::{
    resource::at,
    state::Context,
    store::{Object, metadata_of},
};

/// What becomes of a Pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Run,
    Succeed,
    Fail,
    Crash,
    Pending,
}

fn annotation<'a>(pod: &'a Object, name: &str) -> Option<&'a str> {
    metadata_of(pod)
        .get("annotations")?
        .get(format!("workloads.steersman.dev/{name}"))?
        .as_str()
}

fn outcome(pod: &Object) -> Outcome {
    let owners = metadata_of(pod).get("ownerReferences").and_then(Value::as_array);
    let of_job = owners.into_iter().flatten().any(|owner| owner["kind"] == "Job");
    match annotation(pod, "outcome") {
        Some("run") => Outcome::Run,
        Some("succeed") => Outcome::Succeed,
        Some("fail") => Outcome::Fail,
        Some("crash") => Outcome::Crash,
        Some("pending") => Outcome::Pending,
        _ if of_job => Outcome::Succeed,
        _ => Outcome::Run,
    }
}

/// True if a Pod takes traffic.
pub(super) fn is_ready(pod: &Object) -> bool {
    actor::has_condition(pod, "Ready") && !actor::is_deleting(pod)
}

/// True if a Pod is neither gone nor about to go.
pub(super) fn is_active(pod: &Object) -> bool {
    !actor::is_deleting(pod) && !matches!(text(pod, &["status", "phase"]).as_str(), "Succeeded" | "Failed")
}

/// Looks at a Pod.
pub(super) fn advance(cx: &mut Context<'_>, key: &str) {
    let Some(pod) = actor::get(cx, PODS, key) else {
        return;
    };
    if actor::is_deleting(&pod) {
        // Its containers stop at once.
        actor::delete(cx, PODS, key);
        return;
    }
    if !is_active(&pod) {
        return;
    }
    let outcome = outcome(&pod);
    if text(&pod, &["spec", "nodeName"]).is_empty() {
        match node(cx, &pod).filter(|_| outcome != Outcome::Pending) {
            Some(node) => bind(cx, key, &node),
            None => refuse(cx, key),
        }
        // Written, so that it is looked at again.
        return;
    }
    let wanted = match annotation(&pod, "startup").and_then(|seconds| seconds.parse().ok()) {
        Some(seconds) => Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        None => cx
            .state
            .world
            .options
            .as_ref()
            .map_or(Duration::ZERO, |options| options.startup),
    };
    let since: Option<jiff::Timestamp> = text(&pod, &["status", "startTime"]).parse().ok();
    let begun = since.map_or(cx.now, std::time::SystemTime::from);
    if !wanted.is_zero() && begun + wanted > cx.now {
        if let Some(pods) = actor::resource(cx, PODS) {
            let due = (begun + wanted, pods.storage, Arc::from(key));
            cx.state.world.due.insert(due);
        }
        report(cx, key, &pod, None);
        return;
    }
    report(cx, key, &pod, Some(outcome));
}

/// A node that takes the Pod: each in its turn.
fn node(cx: &mut Context<'_>, pod: &Object) -> Option<String> {
    let selector = at(pod, &["spec", "nodeSelector"]).cloned().unwrap_or_default();
    let fits: Vec<String> = cx
        .all("", "nodes")
        .map(|node| node.object())
        .filter(|node| takes(node, &selector))
        .map(|node| text(&node, &["metadata", "name"]))
        .collect();
    let turn = cx.state.world.next();
    (!fits.is_empty()).then(|| fits[turn % fits.len()].clone())
}

/// True if Pods with this selector may go to a node.
pub(super) fn takes(node: &Object, selector: &Value) -> bool {
    let labels = metadata_of(node).get("labels").cloned().unwrap_or_default();
    let mut wanted = selector.as_object().into_iter().flatten();
    at(node, &["spec", "unschedulable"]) != Some(&json!(true))
        && wanted.all(|(key, value)| labels.get(key) == Some(value))
}

fn bind(cx: &mut Context<'_>, key: &str, node: &str) {
    let now = cx.timestamp();
    actor::change(cx, PODS, key, "binding", |pod| {
        if let Some(Value::Object(spec)) = pod.get_mut("spec") {
            spec.insert("nodeName".to_owned(), json!(node));
        }
        if let Some(Value::Object(status)) = pod.get_mut("status") {
            let scheduled = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null});
            set_condition(status, scheduled, &now);
        }
    });
}

fn refuse(cx: &mut Context<'_>, key: &str) {
    let now = cx.timestamp();
    actor::set_status(cx, PODS, key, |status| {
        let message = "0/0 nodes are available";
        let refused = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastProbeTime": null,
        });
        set_condition(status, refused, &now);
    });
}

/// Writes what the kubelet would; without an outcome, the containers are still being made.
fn report(cx: &mut Context<'_>, key: &str, pod: &Object, outcome: Option<Outcome>) {
    let now = cx.timestamp();
    let number = cx.state.world.next();
    let (phase, ready) = match outcome {
        None => ("Pending", false),
        Some(Outcome::Succeed) => ("Succeeded", false),
        Some(Outcome::Fail) => ("Failed", false),
        Some(Outcome::Crash) => ("Running", false),
        Some(Outcome::Run | Outcome::Pending) => ("Running", true),
    };
    let address = format!("10.244.{}.{}", number / 250 % 250, number % 250 + 2);
    let statuses = containers(pod, outcome, &now);
    actor::set_status(cx, PODS, key, |status| {
        status.insert("phase".to_owned(), json!(phase));
        status.entry("startTime").or_insert_with(|| now.clone());
        status.entry("hostIP").or_insert_with(|| json!("10.1.0.1"));
        status
            .entry("hostIPs")
            .or_insert_with(|| json!([{"ip": "10.1.0.1"}]));
        if outcome.is_some() {
            let address = status.entry("podIP").or_insert_with(|| json!(address)).clone();
            status.entry("podIPs").or_insert_with(|| json!([{"ip": address}]));
        }
        status.insert("containerStatuses".to_owned(), json!(statuses));
        let reason = match outcome {
            Some(Outcome::Succeed | Outcome::Fail) => Some("PodCompleted"),
            _ if ready => None,
            _ => Some("ContainersNotReady"),
        };
        for (kind, holds) in [
            ("Initialized", true),
            ("Ready", ready),
            ("ContainersReady", ready),
        ] {
            let mut condition =
                json!({"type": kind, "status": if holds { "True" } else { "False" }, "lastProbeTime": null});
            if let Some(reason) = reason.filter(|_| !holds) {
                condition["reason"] = json!(reason);
            }
            set_condition(status, condition, &now);
        }
    });
}

fn containers(pod: &Object, outcome: Option<Outcome>, now: &Value) -> Vec<Value> {
    let specs = at(pod, &["spec", "containers"]).and_then(Value::as_array);
    let known = at(pod, &["status", "containerStatuses"]).and_then(Value::as_array);
    let status = |spec: &Value| {
        let known = known
            .into_iter()
            .flatten()
            .find(|known| known["name"] == spec["name"]);
        let started = known
            .and_then(|known| known.pointer("/state/running/startedAt"))
            .unwrap_or(now);
        let ended = |code: i64, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now}});
        let state = match outcome {
            None => json!({"waiting": {"reason": "ContainerCreating"}}),
            Some(Outcome::Crash) => json!({"waiting": {"reason": "CrashLoopBackOff"}}),
            Some(Outcome::Succeed) => ended(0, "Completed"),
            Some(Outcome::Fail) => ended(1, "Error"),
            Some(Outcome::Run | Outcome::Pending) => json!({"running": {"startedAt": started}}),
        };
        let running = state.get("running").is_some();
        json!({
            "name": spec["name"], "image": spec["image"], "imageID": "", "ready": running, "started": running,
            "restartCount": i64::from(outcome == Some(Outcome::Crash)), "state": state, "lastState": {},
        })
    };
    specs.into_iter().flatten().map(status).collect()
}
