// SPDX-License-Identifier: Apache-2.0
//! The Job controller: runs Pods until enough of them succeed.

use serde_json::{Value, json};

use super::{
    actor::{self, Kind, PODS, has_condition, number, set_condition, text},
    pods,
    replicas::put_count,
};
use crate::{resource::at, state::Context, store::Object};

const JOBS: Kind = ("batch", "jobs");

/// Processes a Job.
pub(super) fn advance(cx: &mut Context<'_>, key: &str) {
    let Some(job) = actor::get(cx, JOBS, key) else {
        return;
    };
    if actor::is_deleting(&job) || has_condition(&job, "Complete") || has_condition(&job, "Failed") {
        return;
    }
    let all = actor::owned(cx, PODS, &job);
    let ended = |phase: &str| {
        all.iter()
            .filter(|pod| text(pod, &["status", "phase"]) == phase)
            .count()
    };
    let (succeeded, failed) = (ended("Succeeded"), ended("Failed"));
    let active = all.iter().filter(|pod| pods::is_active(pod)).count();
    let count =
        |path: &[&str], default: i64| usize::try_from(number(&job, path, default)).unwrap_or_default();
    let suspended = at(&job, &["spec", "suspend"]) == Some(&json!(true));
    // Without `completions`, one success is enough.
    let wanted = count(&["spec", "completions"], 1);
    let has_failed = failed > count(&["spec", "backoffLimit"], 6);
    let is_complete = succeeded >= wanted;
    if suspended || has_failed || is_complete {
        for pod in all.iter().filter(|pod| pods::is_active(pod)) {
            actor::delete(cx, PODS, &actor::key(pod));
        }
    } else {
        let goal = count(&["spec", "parallelism"], 1).min(wanted - succeeded);
        for _ in active..goal {
            if make(cx, &job).is_none() {
                break;
            }
        }
    }
    report(cx, key, suspended, is_complete, has_failed);
}

fn make(cx: &mut Context<'_>, job: &Object) -> Option<()> {
    let owner = actor::controller(&*actor::resource(cx, JOBS)?, job);
    let mut pod = actor::pod_of(at(job, &["spec", "template"])?, &owner);
    let name = text(job, &["metadata", "name"]);
    if text(job, &["spec", "completionMode"]) == "Indexed" {
        let index = next_index(cx, job).to_string();
        let label = "batch.kubernetes.io/job-completion-index";
        for part in ["labels", "annotations"] {
            pod["metadata"][part][label] = json!(index);
        }
        pod["metadata"]["generateName"] = json!(format!("{name}-{index}-"));
    } else {
        pod["metadata"]["generateName"] = json!(format!("{name}-"));
    }
    // The outcome annotation of the Job applies to its Pods.
    let told = at(job, &["metadata", "annotations"])
        .and_then(|annotations| annotations.get("workloads.steersman.dev/outcome"))
        .cloned();
    if let Some(told) = told {
        pod["metadata"]["annotations"]["workloads.steersman.dev/outcome"] = told;
    }
    actor::create(cx, PODS, &text(job, &["metadata", "namespace"]), pod)
}

/// Returns the lowest index without an active or successful Pod.
fn next_index(cx: &Context<'_>, job: &Object) -> usize {
    let label = "batch.kubernetes.io/job-completion-index";
    let taken: Vec<usize> = actor::owned(cx, PODS, job)
        .iter()
        .filter(|pod| text(pod, &["status", "phase"]) != "Failed")
        .filter_map(|pod| {
            at(pod, &["metadata", "labels"])?
                .get(label)?
                .as_str()?
                .parse()
                .ok()
        })
        .collect();
    (0..).find(|index| !taken.contains(index)).unwrap_or_default()
}

fn report(cx: &mut Context<'_>, key: &str, suspended: bool, is_complete: bool, has_failed: bool) {
    let Some(job) = actor::get(cx, JOBS, key) else {
        return;
    };
    let all = actor::owned(cx, PODS, &job);
    let ended = |phase: &str| {
        all.iter()
            .filter(|pod| text(pod, &["status", "phase"]) == phase)
            .count()
    };
    let active = all.iter().filter(|pod| pods::is_active(pod)).count();
    let ready = all.iter().filter(|pod| pods::is_ready(pod)).count();
    let now = cx.timestamp();
    actor::set_status(cx, JOBS, key, |status| {
        let counts = [
            ("active", active),
            ("succeeded", ended("Succeeded")),
            ("failed", ended("Failed")),
        ];
        for (field, count) in counts {
            put_count(status, field, count);
        }
        status.insert("ready".to_owned(), json!(ready));
        status.insert("terminating".to_owned(), json!(0));
        status.insert("uncountedTerminatedPods".to_owned(), json!({}));
        if !suspended {
            status.entry("startTime").or_insert_with(|| now.clone());
        }
        let condition = |kind: &str, reason: &str, message: &str| -> Value {
            json!({"type": kind, "status": "True", "lastProbeTime": now, "reason": reason, "message": message})
        };
        if is_complete {
            let (reason, message) = ("CompletionsReached", "Reached expected number of succeeded pods");
            set_condition(status, condition("SuccessCriteriaMet", reason, message), &now);
            set_condition(status, condition("Complete", reason, message), &now);
            status.insert("completionTime".to_owned(), now.clone());
        } else if has_failed {
            let (reason, message) = (
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            );
            set_condition(status, condition("FailureTarget", reason, message), &now);
            set_condition(status, condition("Failed", reason, message), &now);
        } else if suspended && !has_suspended(status) {
            set_condition(
                status,
                condition("Suspended", "JobSuspended", "Job suspended"),
                &now,
            );
            status.remove("startTime");
        } else if !suspended && has_suspended(status) {
            let mut resumed = condition("Suspended", "JobResumed", "Job resumed");
            resumed["status"] = json!("False");
            set_condition(status, resumed, &now);
        }
    });
}

fn has_suspended(status: &Object) -> bool {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Suspended" && condition["status"] == "True")
}
