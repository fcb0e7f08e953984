// SPDX-License-Identifier: Apache-2.0
//! The row of a Pod, which summarizes its containers.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::{cells::Fields, human};
use crate::store::Object;

/// Returns the row condition of a Pod that has ended.
pub(super) fn row_condition(object: &Object) -> Option<Value> {
    let phase = Fields::new(object).text(&["status", "phase"]);
    let message = match phase.as_str() {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    Some(json!({"type": "Completed", "status": "True", "reason": phase, "message": message}))
}

/// Summary of the containers of a Pod.
struct Sum {
    ready: usize,
    restarts: i64,
    last_restart: Option<SystemTime>,
    reason: String,
}

impl Sum {
    fn restarted(&mut self, container: &Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or_default();
        let finished = container
            .pointer("/lastState/terminated/finishedAt")
            .and_then(Value::as_str)
            .and_then(|text| text.parse::<jiff::Timestamp>().ok())
            .map(SystemTime::from);
        self.last_restart = self.last_restart.max(finished);
    }
}

/// Returns the cells of a Pod.
pub(super) fn cells(object: &Object, now: SystemTime) -> Vec<Value> {
    let fields = Fields::new(object);
    let conditions = fields.list(&["status", "conditions"]);
    let condition = |kind: &str| conditions.iter().find(|condition| condition["type"] == kind);
    let is_true = |kind: &str| condition(kind).is_some_and(|condition| condition["status"] == "True");
    let mut reason = fields.text(&["status", "reason"]);
    if reason.is_empty() {
        reason = fields.text(&["status", "phase"]);
    }
    if condition("PodScheduled").is_some_and(|condition| condition["reason"] == "SchedulingGated") {
        reason = "SchedulingGated".to_owned();
    }
    let mut sum = Sum {
        ready: 0,
        restarts: 0,
        last_restart: None,
        reason,
    };
    let initializing = initialize(&fields, &mut sum);
    if !initializing || is_true("Initialized") {
        run(&fields, &mut sum, is_true("Ready"));
    }
    let deleting = fields.at(&["metadata", "deletionTimestamp"]).is_some();
    let ended = matches!(fields.text(&["status", "phase"]).as_str(), "Succeeded" | "Failed");
    if deleting && fields.text(&["status", "reason"]) == "NodeLost" {
        sum.reason = "Unknown".to_owned();
    } else if deleting && !ended {
        sum.reason = "Terminating".to_owned();
    }
    let restarts = match sum.last_restart {
        Some(last) if sum.restarts > 0 => format!("{} ({} ago)", sum.restarts, human::since(last, now)),
        _ => sum.restarts.to_string(),
    };
    let sidecars = fields
        .list(&["spec", "initContainers"])
        .iter()
        .filter(|container| is_sidecar(container))
        .count();
    let total = fields.list(&["spec", "containers"]).len() + sidecars;
    let gates = fields.list(&["spec", "readinessGates"]);
    let open = gates
        .iter()
        .filter(|gate| is_true(gate["conditionType"].as_str().unwrap_or_default()));
    let gates = if gates.is_empty() {
        "<none>".to_owned()
    } else {
        format!("{}/{}", open.count(), gates.len())
    };
    let address = fields
        .list(&["status", "podIPs"])
        .first()
        .and_then(|address| address["ip"].as_str());
    vec![
        fields.name(),
        json!(format!("{}/{total}", sum.ready)),
        json!(sum.reason),
        json!(restarts),
        fields.age(now),
        json!(address.unwrap_or("<none>")),
        json!(fields.text_or(&["spec", "nodeName"], "<none>")),
        json!(fields.text_or(&["status", "nominatedNodeName"], "<none>")),
        json!(gates),
    ]
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// Summarizes the init containers; returns true if one of them is not finished.
fn initialize(fields: &Fields<'_>, sum: &mut Sum) -> bool {
    let specs = fields.list(&["spec", "initContainers"]);
    for (index, container) in fields
        .list(&["status", "initContainerStatuses"])
        .iter()
        .enumerate()
    {
        sum.restarted(container);
        let sidecar = specs
            .iter()
            .any(|spec| spec["name"] == container["name"] && is_sidecar(spec));
        let terminated = container.pointer("/state/terminated");
        let waiting = container.pointer("/state/waiting/reason").and_then(Value::as_str);
        match (terminated, waiting) {
            (Some(end), _) if end["exitCode"] == 0 => continue,
            _ if sidecar && container["started"] == true => {
                sum.ready += usize::from(container["ready"] == true);
                continue;
            }
            (Some(end), _) => sum.reason = format!("Init:{}", end_of(end)),
            (None, Some(reason)) if !reason.is_empty() && reason != "PodInitializing" => {
                sum.reason = format!("Init:{reason}");
            }
            _ => sum.reason = format!("Init:{index}/{}", specs.len()),
        }
        return true;
    }
    false
}

/// Formats how a container ended.
fn end_of(end: &Value) -> String {
    let number = |key: &str| end[key].as_i64().unwrap_or_default();
    match end["reason"].as_str().unwrap_or_default() {
        "" if number("signal") != 0 => format!("Signal:{}", number("signal")),
        "" => format!("ExitCode:{}", number("exitCode")),
        reason => reason.to_owned(),
    }
}

/// Summarizes the containers.
fn run(fields: &Fields<'_>, sum: &mut Sum, is_ready: bool) {
    let (mut running, mut error) = (false, String::new());
    for container in fields.list(&["status", "containerStatuses"]).iter().rev() {
        sum.restarted(container);
        let waiting = container.pointer("/state/waiting/reason").and_then(Value::as_str);
        if let Some(reason) = waiting.filter(|reason| !reason.is_empty()) {
            sum.reason = reason.to_owned();
        } else if let Some(end) = container.pointer("/state/terminated") {
            sum.reason = end_of(end);
            if end["exitCode"] != 0 {
                error.clone_from(&sum.reason);
            }
        } else if container["ready"] == true && container.pointer("/state/running").is_some() {
            running = true;
            sum.ready += 1;
        }
    }
    if sum.reason == "Completed" {
        // One container can be completed while another still runs.
        if running && is_ready {
            sum.reason = "Running".to_owned();
        } else if !error.is_empty() {
            sum.reason = error;
        } else if running {
            sum.reason = "NotReady".to_owned();
        }
    }
}
