// SPDX-License-Identifier: Apache-2.0
//! Rules for the kinds of the group `apps`.

use super::{Readiness, fields::Fields};

/// `progressDeadlineSeconds` that means that there is no deadline; the Deployment controller treats it so.
const NO_DEADLINE: i64 = i32::MAX as i64;

/// A number that has to reach another one.
struct Count {
    reason: &'static str,
    word: &'static str,
    actual: i64,
    wanted: i64,
}

/// Returns the first count that is too small.
fn first_short(counts: impl IntoIterator<Item = Count>) -> Option<Readiness> {
    let short = counts.into_iter().find(|count| count.actual < count.wanted)?;
    let Count {
        reason,
        word,
        actual,
        wanted,
    } = short;
    Some(Readiness::in_progress(
        reason,
        format!("{actual} of {wanted} replicas are {word}"),
    ))
}

fn surplus(actual: i64, wanted: i64) -> Option<Readiness> {
    (actual > wanted).then(|| {
        let message = format!("{} replicas are still to be deleted", actual - wanted);
        Readiness::in_progress("ExtraPods", message)
    })
}

fn count(reason: &'static str, word: &'static str, actual: i64, wanted: i64) -> Count {
    Count {
        reason,
        word,
        actual,
        wanted,
    }
}

pub(super) fn deployment(fields: &Fields<'_>) -> Readiness {
    let progressing = fields.condition("Progressing");
    if let Some(exceeded) = progressing
        .as_ref()
        .filter(|found| found.reason == "ProgressDeadlineExceeded")
    {
        return Readiness::failed(exceeded.reason, exceeded.message);
    }
    let wanted = fields.number("/spec/replicas").unwrap_or(1);
    let existing = fields.count("/status/replicas");
    let updated = fields.count("/status/updatedReplicas");
    let available = fields.count("/status/availableReplicas");
    let ready = fields.count("/status/readyReplicas");
    let found = first_short([
        count("LessReplicas", "created", existing, wanted),
        count("LessUpdated", "updated", updated, wanted),
    ])
    .or_else(|| surplus(existing, wanted))
    .or_else(|| {
        first_short([
            count("LessAvailable", "available", available, updated),
            count("LessReady", "ready", ready, wanted),
        ])
    });
    if let Some(found) = found {
        return found;
    }
    // Without a deadline the controller never sets the condition `Progressing`.
    let deadline = fields
        .number("/spec/progressDeadlineSeconds")
        .unwrap_or(NO_DEADLINE);
    let is_rolled_out = deadline == NO_DEADLINE
        || progressing
            .is_some_and(|found| found.status == "True" && found.reason == "NewReplicaSetAvailable");
    if !is_rolled_out {
        return Readiness::in_progress("ReplicaSetNotAvailable", "the new ReplicaSet is not available");
    }
    if !fields.has_true("Available") {
        return Readiness::in_progress("DeploymentNotAvailable", "the Deployment is not available");
    }
    Readiness::Ready
}

pub(super) fn stateful_set(fields: &Fields<'_>) -> Readiness {
    if fields.text("/spec/updateStrategy/type") == Some("OnDelete") {
        return Readiness::Ready;
    }
    let wanted = fields.number("/spec/replicas").unwrap_or(1);
    let existing = fields.count("/status/replicas");
    let updated = fields.count("/status/updatedReplicas");
    let found = first_short([
        count("LessReplicas", "created", existing, wanted),
        count(
            "LessReady",
            "ready",
            fields.count("/status/readyReplicas"),
            wanted,
        ),
    ])
    .or_else(|| surplus(existing, wanted));
    if let Some(found) = found {
        return found;
    }
    // The server sets the partition 0 by default, and then all replicas have to be updated. kstatus compares the revisions only
    // if there is no partition.
    if let Some(partition) = fields.number("/spec/updateStrategy/rollingUpdate/partition") {
        let rollout = count("PartitionRollout", "updated", updated, wanted - partition);
        return first_short([rollout]).unwrap_or(Readiness::Ready);
    }
    let current = fields.count("/status/currentReplicas");
    if let Some(found) = first_short([count("LessCurrent", "current", current, wanted)]) {
        return found;
    }
    if fields.text("/status/currentRevision") != fields.text("/status/updateRevision") {
        return Readiness::in_progress(
            "RevisionMismatch",
            "the update revision is not the current one yet",
        );
    }
    Readiness::Ready
}

pub(super) fn replica_set(fields: &Fields<'_>) -> Readiness {
    if fields.has_true("ReplicaFailure") {
        return Readiness::in_progress("ReplicaFailure", "pods cannot be created or deleted");
    }
    let wanted = fields.number("/spec/replicas").unwrap_or(1);
    let labelled = fields.count("/status/fullyLabeledReplicas");
    let available = fields.count("/status/availableReplicas");
    first_short([
        count("LessLabelled", "fully labelled", labelled, wanted),
        count("LessAvailable", "available", available, wanted),
        count(
            "LessReady",
            "ready",
            fields.count("/status/readyReplicas"),
            wanted,
        ),
    ])
    .or_else(|| surplus(fields.count("/status/replicas"), wanted))
    .unwrap_or(Readiness::Ready)
}

pub(super) fn daemon_set(fields: &Fields<'_>) -> Readiness {
    // Without these its controller has not seen it; zero nodes would look like ready.
    if fields.number("/metadata/generation").is_none()
        || fields.number("/status/observedGeneration").is_none()
    {
        let message = "the DaemonSet controller has not observed the object yet";
        return Readiness::in_progress("NoObservedGeneration", message);
    }
    let Some(wanted) = fields.number("/status/desiredNumberScheduled") else {
        let message = "the number of nodes is not known yet";
        return Readiness::in_progress("NoDesiredNumber", message);
    };
    let scheduled = fields.count("/status/currentNumberScheduled");
    let updated = fields.count("/status/updatedNumberScheduled");
    let available = fields.count("/status/numberAvailable");
    first_short([
        count("LessCurrent", "scheduled", scheduled, wanted),
        count("LessUpdated", "updated", updated, wanted),
        count("LessAvailable", "available", available, wanted),
        count("LessReady", "ready", fields.count("/status/numberReady"), wanted),
    ])
    .unwrap_or(Readiness::Ready)
}
