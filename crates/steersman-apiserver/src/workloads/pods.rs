// SPDX-License-Identifier: Apache-2.0
//! The simulated scheduler and kubelet of a Pod.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::actor::{self, Kind, PODS, set_condition, text};
use crate::{
    resource::at,
    state::Context,
    store::{Object, metadata_of},
};

/// The outcome of a Pod.
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
    let restarted = text(pod, &["spec", "restartPolicy"]) == "Always";
    match annotation(pod, "outcome") {
        // The kubelet restarts ended containers, so that the Pod itself never ends.
        Some("succeed" | "fail") if restarted => Outcome::Crash,
        Some("run") => Outcome::Run,
        Some("succeed") => Outcome::Succeed,
        Some("fail") => Outcome::Fail,
        Some("crash") => Outcome::Crash,
        Some("pending") => Outcome::Pending,
        _ if of_job => Outcome::Succeed,
        _ => Outcome::Run,
    }
}

/// Returns true if a Pod is ready.
pub(super) fn is_ready(pod: &Object) -> bool {
    actor::has_condition(pod, "Ready") && !actor::is_deleting(pod)
}

/// Numbers of ready and available Pods of a set.
pub(super) struct Availability {
    pub(super) ready: usize,
    /// Pods that have been ready for `minReadySeconds`.
    pub(super) available: usize,
}

/// Returns the time until a Pod is available; `None` if it is not ready.
pub(super) fn available_in(cx: &Context<'_>, pod: &Object, owner: &Object) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    let conditions = at(pod, &["status", "conditions"])?.as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    let seconds = actor::number(owner, &["spec", "minReadySeconds"], 0);
    let wanted = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    let since = actor::time_of(&ready["lastTransitionTime"]).unwrap_or(cx.now);
    Some(wanted.saturating_sub(cx.now.duration_since(since).unwrap_or_default()))
}

/// Returns true if a Pod has been ready for the `minReadySeconds` of its owner.
pub(super) fn is_available(cx: &Context<'_>, pod: &Object, owner: &Object) -> bool {
    available_in(cx, pod, owner).is_some_and(|wait| wait.is_zero())
}

/// Counts the Pods of an owner, and schedules the owner for when the next Pod becomes available.
pub(super) fn availability<'a>(
    cx: &mut Context<'_>,
    kind: Kind,
    owner: &Object,
    pods: impl Iterator<Item = &'a Arc<Object>>,
) -> Availability {
    let waits: Vec<Duration> = pods.filter_map(|pod| available_in(cx, pod, owner)).collect();
    let (there, to_come): (Vec<Duration>, Vec<Duration>) = waits.iter().partition(|wait| wait.is_zero());
    if let Some(next) = to_come.iter().min() {
        actor::look_again(cx, kind, &actor::key(owner), *next);
    }
    Availability {
        ready: waits.len(),
        available: there.len(),
    }
}

/// Returns true if a Pod is neither ended nor terminating.
pub(super) fn is_active(pod: &Object) -> bool {
    !actor::is_deleting(pod) && !matches!(text(pod, &["status", "phase"]).as_str(), "Succeeded" | "Failed")
}

/// Processes a Pod.
pub(super) fn advance(cx: &mut Context<'_>, key: &str) {
    let Some(pod) = actor::get(cx, PODS, key) else {
        return;
    };
    if actor::is_deleting(&pod) {
        // Simulated containers stop at once.
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
        // The write queues the Pod again.
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
    let since = at(&pod, &["status", "startTime"]).and_then(actor::time_of);
    let begun = since.unwrap_or(cx.now);
    let left = wanted.saturating_sub(cx.now.duration_since(begun).unwrap_or_default());
    if left.is_zero() {
        report(cx, key, &pod, Some(outcome));
    } else {
        actor::look_again(cx, PODS, key, left);
        report(cx, key, &pod, None);
    }
}

/// Selects a node for the Pod, round-robin.
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

/// Returns true if Pods with this selector fit a node.
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

/// Writes the status as the kubelet would; without an outcome, the containers are still being created.
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
