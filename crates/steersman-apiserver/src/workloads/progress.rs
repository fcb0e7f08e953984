// SPDX-License-Identifier: Apache-2.0
//! The condition `Progressing` of a Deployment: its progress and its deadline.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::actor::{number, time_of};
use crate::{resource::at, store::Object};

const KIND: &str = "Progressing";
const COMPLETE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// Numbers of Pods of a Deployment.
#[derive(Clone, Copy)]
pub(super) struct Counts {
    pub(super) wanted: usize,
    pub(super) total: usize,
    pub(super) updated: usize,
    pub(super) ready: usize,
    pub(super) available: usize,
}

impl Counts {
    /// Returns the numbers in the status of a Deployment.
    fn told(deployment: &Object) -> Self {
        let count =
            |field: &str| usize::try_from(number(deployment, &["status", field], 0)).unwrap_or_default();
        Self {
            wanted: 0,
            total: count("replicas"),
            updated: count("updatedReplicas"),
            ready: count("readyReplicas"),
            available: count("availableReplicas"),
        }
    }

    fn is_complete(&self) -> bool {
        [self.total, self.updated, self.available] == [self.wanted; 3]
    }

    fn is_further_than(&self, before: &Self) -> bool {
        let old = |counts: &Self| counts.total.saturating_sub(counts.updated);
        self.updated > before.updated
            || old(self) < old(before)
            || self.ready > before.ready
            || self.available > before.available
    }
}

/// Returns the progress deadline; `None` for no deadline.
fn deadline(deployment: &Object) -> Option<Duration> {
    let seconds = number(deployment, &["spec", "progressDeadlineSeconds"], 600);
    let seconds = u64::try_from(seconds).ok()?;
    (seconds != u64::from(i32::MAX.unsigned_abs())).then(|| Duration::from_secs(seconds))
}

/// The observed state of a Deployment.
pub(super) struct Found<'a> {
    pub(super) counts: Counts,
    /// The name of the current ReplicaSet, if it exists.
    pub(super) set: Option<&'a str>,
    /// True if this pass created the ReplicaSet.
    pub(super) is_new: bool,
}

/// Updates the condition in the status of a Deployment; returns when to check again if there is no progress.
pub(super) fn note(
    deployment: &Object,
    status: &mut Object,
    found: &Found<'_>,
    now: SystemTime,
) -> Option<Duration> {
    let Some(deadline) = deadline(deployment) else {
        if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
            conditions.retain(|condition| condition["type"] != KIND);
        }
        return None;
    };
    let is_paused = at(deployment, &["spec", "paused"]) == Some(&json!(true));
    match (is_paused, reason(status).as_str()) {
        // A Deployment that timed out before it was paused stays timed out.
        (true, TIMED_OUT) => return None,
        (true, _) => {
            set(status, "Unknown", PAUSED, "Deployment is paused", now);
            return None;
        }
        (false, PAUSED) => set(
            status,
            "Unknown",
            "DeploymentResumed",
            "Deployment is resumed",
            now,
        ),
        (false, _) => {}
    }
    let name = found.set?;
    if found.is_new {
        let message = format!("Created new replica set {name:?}");
        set(status, "True", "NewReplicaSetCreated", &message, now);
        return None;
    }
    if reason(status).is_empty() {
        let message = format!("Found new replica set {name:?}");
        set(status, "True", "FoundNewReplicaSet", &message, now);
    }
    let counts = &found.counts;
    if counts.total == counts.updated && reason(status) == COMPLETE {
        return None;
    }
    if counts.is_complete() {
        let message = format!("ReplicaSet {name:?} has successfully progressed.");
        set(status, "True", COMPLETE, &message, now);
        return None;
    }
    if counts.is_further_than(&Counts::told(deployment)) {
        let message = format!("ReplicaSet {name:?} is progressing.");
        // Each step restarts the deadline, even with an unchanged reason.
        put(status, "True", "ReplicaSetUpdated", &message, now);
        return None;
    }
    if matches!(reason(status).as_str(), COMPLETE | TIMED_OUT) {
        return None;
    }
    let since = condition(status).and_then(|condition| time_of(&condition["lastUpdateTime"]))?;
    let waited = now.duration_since(since).unwrap_or_default();
    if waited > deadline {
        let message = format!("ReplicaSet {name:?} has timed out progressing.");
        set(status, "False", TIMED_OUT, &message, now);
        return None;
    }
    // Timestamps are in whole seconds, so one more second is surely past the deadline.
    Some(
        deadline
            .saturating_sub(waited)
            .saturating_add(Duration::from_secs(1)),
    )
}

fn condition(status: &Object) -> Option<&Value> {
    let conditions = status.get("conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == KIND)
}

fn reason(status: &Object) -> String {
    let reason = condition(status).and_then(|condition| condition["reason"].as_str());
    reason.unwrap_or_default().to_owned()
}

/// Sets the condition, unless it has the same status and reason already.
fn set(status: &mut Object, holds: &str, reason: &str, message: &str, now: SystemTime) {
    let same = |condition: &Value| condition["status"] == holds && condition["reason"] == reason;
    if !condition(status).is_some_and(same) {
        put(status, holds, reason, message, now);
    }
}

fn put(status: &mut Object, holds: &str, reason: &str, message: &str, now: SystemTime) {
    let now = json!(crate::clock::rfc3339(now));
    let condition =
        json!({"type": KIND, "status": holds, "lastUpdateTime": now, "reason": reason, "message": message});
    super::actor::set_condition(status, condition, &now);
}
