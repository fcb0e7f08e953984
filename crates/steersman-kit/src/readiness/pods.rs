// SPDX-License-Identifier: Apache-2.0
//! Rules for Pods, and for Jobs, which run them to their end.

use serde_json::Value;

use super::{Readiness, fields::Fields};

pub(super) fn pod(fields: &Fields<'_>) -> Readiness {
    match fields.text("/status/phase").unwrap_or_default() {
        "Succeeded" => Readiness::Ready,
        "Failed" => {
            let reason = fields.text("/status/reason").unwrap_or("PodFailed");
            let message = fields.text("/status/message");
            Readiness::failed(reason, message.unwrap_or("the Pod has ended with an error"))
        }
        "Running" if fields.has_true("Ready") => Readiness::Ready,
        "Running" => match crash_looping(fields) {
            names if names.is_empty() => {
                Readiness::in_progress("PodRunningNotReady", "the Pod is running but not ready")
            }
            names => {
                let message = format!("containers crash repeatedly: {}", names.join(", "));
                Readiness::failed("ContainerCrashLooping", message)
            }
        },
        "Pending" => match fields.condition("PodScheduled") {
            Some(scheduled) if scheduled.status == "False" && scheduled.reason == "Unschedulable" => {
                Readiness::in_progress("PodNotScheduled", scheduled.message)
            }
            _ => Readiness::in_progress("PodPending", "the Pod is pending"),
        },
        "" => Readiness::in_progress("PodNotObserved", "the Pod has no phase yet"),
        phase => Readiness::in_progress("PodPhaseUnknown", format!("the phase of the Pod is {phase}")),
    }
}

/// Returns the names of containers that wait in `CrashLoopBackOff`.
fn crash_looping<'a>(fields: &Fields<'a>) -> Vec<&'a str> {
    let containers = fields.list("/status/containerStatuses").unwrap_or_default();
    let crashes = |container: &&Value| {
        container.pointer("/state/waiting/reason").and_then(Value::as_str) == Some("CrashLoopBackOff")
    };
    let name = |container: &'a Value| container.get("name").and_then(Value::as_str);
    containers.iter().filter(crashes).filter_map(name).collect()
}

/// A Job is in progress until it starts, ready while it runs and after it has completed, and failed if it has failed.
pub(super) fn job(fields: &Fields<'_>) -> Readiness {
    for condition in fields.conditions().filter(|found| found.status == "True") {
        match condition.type_ {
            "Complete" => return Readiness::Ready,
            "Failed" => {
                let failed = fields.count("/status/failed");
                let message = format!("{failed} Pods of the Job have failed: {}", condition.message);
                return Readiness::failed("JobFailed", message);
            }
            "Suspended" if fields.flag("/spec/suspend") => return Readiness::Ready,
            _ => {}
        }
    }
    match fields.text("/status/startTime") {
        Some(_) => Readiness::Ready,
        None => Readiness::in_progress("JobNotStarted", "the Job has not started"),
    }
}
