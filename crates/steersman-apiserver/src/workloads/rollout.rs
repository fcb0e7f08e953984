// SPDX-License-Identifier: Apache-2.0
//! The Deployment controller: rolls from one ReplicaSet to the next.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    actor::{self, Kind, REPLICA_SETS, number, part_of, set_condition, text},
    progress::{self, Counts, Found},
    replicas::put_count,
};
use crate::{resource::at, state::Context, store::Object};

const DEPLOYMENTS: Kind = ("apps", "deployments");
const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

/// Processes a Deployment.
pub(super) fn advance(cx: &mut Context<'_>, key: &str) {
    let Some(deployment) = actor::get(cx, DEPLOYMENTS, key) else {
        return;
    };
    if actor::is_deleting(&deployment) {
        return;
    }
    let sets = actor::owned(cx, REPLICA_SETS, &deployment);
    let template = at(&deployment, &["spec", "template"])
        .cloned()
        .unwrap_or_default();
    let current = sets.iter().find(|set| own_template(set) == template).cloned();
    let paused = at(&deployment, &["spec", "paused"]) == Some(&json!(true));
    let Some(current) = current else {
        // The write of a new ReplicaSet queues the Deployment again.
        let made = if paused {
            None
        } else {
            make(cx, &deployment, &template, &sets)
        };
        report(cx, key, &sets, made.as_deref(), true);
        return;
    };
    let old: Vec<Arc<Object>> = sets
        .iter()
        .filter(|set| actor::key(set) != actor::key(&current))
        .cloned()
        .collect();
    note_revision(cx, key, &current);
    pass_on(cx, &deployment, &current);
    scale(cx, &deployment, &current, &old, paused);
    forget(cx, &deployment, &old);
    let sets = actor::owned(cx, REPLICA_SETS, &deployment);
    let name = text(&current, &["metadata", "name"]);
    report(cx, key, &sets, Some(&name), false);
}

/// Returns the template of a ReplicaSet without its hash label.
fn own_template(set: &Object) -> Value {
    let mut template = at(set, &["spec", "template"]).cloned().unwrap_or_default();
    if let Some(Value::Object(labels)) = template.pointer_mut("/metadata/labels") {
        labels.remove(HASH);
    }
    template
}

fn revision(set: &Object) -> i64 {
    let annotations = at(set, &["metadata", "annotations"]);
    let revision = annotations.and_then(|annotations| annotations.get(REVISION)?.as_str());
    revision.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Creates a ReplicaSet and returns its name.
fn make(cx: &mut Context<'_>, deployment: &Object, template: &Value, sets: &[Arc<Object>]) -> Option<String> {
    let hash = actor::hash(template);
    let owner = actor::controller(&*actor::resource(cx, DEPLOYMENTS)?, deployment);
    let mut template = template.clone();
    let mut selector = at(deployment, &["spec", "selector"]).cloned()?;
    let mut labels = template
        .pointer("/metadata/labels")
        .cloned()
        .unwrap_or_else(|| json!({}));
    labels[HASH] = json!(hash);
    template["metadata"]["labels"] = labels.clone();
    let matched = selector.get("matchLabels").cloned().unwrap_or_else(|| json!({}));
    selector["matchLabels"] = matched;
    selector["matchLabels"][HASH] = json!(hash);
    let newest = sets.iter().map(|set| revision(set)).max().unwrap_or_default();
    let next = newest.saturating_add(1);
    let name = format!("{}-{hash}", text(deployment, &["metadata", "name"]));
    let set = json!({
        "metadata": {
            "name": name, "labels": labels, "annotations": {REVISION: next.to_string()}, "ownerReferences": [owner],
        },
        "spec": {
            "replicas": 0, "selector": selector, "template": template,
            "minReadySeconds": number(deployment, &["spec", "minReadySeconds"], 0),
        },
    });
    actor::create(
        cx,
        REPLICA_SETS,
        &text(deployment, &["metadata", "namespace"]),
        set,
    )
    .map(|()| name)
}

/// Writes the current revision to the Deployment.
fn note_revision(cx: &mut Context<'_>, key: &str, current: &Object) {
    let revision = revision(current).to_string();
    actor::change(cx, DEPLOYMENTS, key, "", |deployment| {
        if let Some(Value::Object(metadata)) = deployment.get_mut("metadata") {
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            annotations[REVISION] = json!(revision);
        }
    });
}

/// Copies `minReadySeconds` from the Deployment to the ReplicaSet.
fn pass_on(cx: &mut Context<'_>, deployment: &Object, current: &Object) {
    let seconds = number(deployment, &["spec", "minReadySeconds"], 0);
    actor::change(cx, REPLICA_SETS, &actor::key(current), "", |set| {
        if let Some(Value::Object(spec)) = set.get_mut("spec") {
            if seconds == 0 {
                spec.remove("minReadySeconds");
            } else {
                spec.insert("minReadySeconds".to_owned(), json!(seconds));
            }
        }
    });
}

/// Moves Pods from the old ReplicaSets to the new one, as far as the strategy allows now.
fn scale(cx: &mut Context<'_>, deployment: &Object, current: &Object, old: &[Arc<Object>], paused: bool) {
    let wanted = number(deployment, &["spec", "replicas"], 1);
    let replicas = |set: &Object| number(set, &["spec", "replicas"], 0);
    let pods = |set: &Object| number(set, &["status", "replicas"], 0);
    // A ReplicaSet that was just scaled down still has its Pods.
    let available = |set: &Object| number(set, &["status", "availableReplicas"], 0).min(replicas(set));
    let sum = |of: &dyn Fn(&Object) -> i64| old.iter().map(|set| of(set)).sum::<i64>();
    if text(deployment, &["spec", "strategy", "type"]) == "Recreate" {
        for set in old.iter().filter(|set| replicas(set) > 0) {
            set_replicas(cx, set, 0);
        }
        if sum(&replicas) == 0 && sum(&pods) == 0 {
            set_replicas(cx, current, wanted);
        }
        return;
    }
    let rolling = |field: &str| at(deployment, &["spec", "strategy", "rollingUpdate", field]);
    let surge = part_of(rolling("maxSurge"), wanted, true, 0);
    let mut missing = part_of(rolling("maxUnavailable"), wanted, false, 0);
    if surge == 0 && missing == 0 {
        missing = 1;
    }
    let room = wanted
        .saturating_add(surge)
        .saturating_sub(sum(&replicas))
        .clamp(0, wanted);
    let goal = if paused {
        replicas(current).min(wanted)
    } else {
        room.max(replicas(current).min(wanted))
    };
    set_replicas(cx, current, if old.is_empty() { wanted } else { goal });
    if paused {
        return;
    }
    // Old Pods that are not available can be removed; the others only while enough are left.
    let mut removable = available(current) + sum(&available) - (wanted - missing).max(0);
    for set in old {
        let broken = (replicas(set) - available(set)).max(0);
        let healthy = (replicas(set) - broken).min(removable.max(0));
        removable -= healthy;
        set_replicas(cx, set, replicas(set) - broken - healthy);
    }
}

fn set_replicas(cx: &mut Context<'_>, set: &Object, count: i64) {
    actor::change(cx, REPLICA_SETS, &actor::key(set), "", |set| {
        if let Some(Value::Object(spec)) = set.get_mut("spec") {
            spec.insert("replicas".to_owned(), json!(count));
        }
    });
}

/// Deletes old ReplicaSets beyond `revisionHistoryLimit`.
fn forget(cx: &mut Context<'_>, deployment: &Object, old: &[Arc<Object>]) {
    let limit =
        usize::try_from(number(deployment, &["spec", "revisionHistoryLimit"], 10)).unwrap_or_default();
    let is_empty = |set: &Object| {
        number(set, &["spec", "replicas"], 0) == 0 && number(set, &["status", "replicas"], 0) == 0
    };
    let mut empty: Vec<&Arc<Object>> = old.iter().filter(|set| is_empty(set)).collect();
    empty.sort_by_key(|set| revision(set));
    for set in empty.iter().take(empty.len().saturating_sub(limit)) {
        actor::delete(cx, REPLICA_SETS, &actor::key(set));
    }
}

/// Writes the status. `name` is that of the current ReplicaSet, which this pass may have created.
fn report(cx: &mut Context<'_>, key: &str, sets: &[Arc<Object>], name: Option<&str>, is_new: bool) {
    let Some(deployment) = actor::get(cx, DEPLOYMENTS, key) else {
        return;
    };
    let count =
        |set: &Object, field: &str| usize::try_from(number(set, &["status", field], 0)).unwrap_or_default();
    let sum = |field: &str| sets.iter().map(|set| count(set, field)).sum::<usize>();
    let new = sets
        .iter()
        .find(|set| Some(text(set, &["metadata", "name"]).as_str()) == name);
    let counts = Counts {
        wanted: usize::try_from(number(&deployment, &["spec", "replicas"], 1)).unwrap_or_default(),
        total: sum("replicas"),
        updated: new.map_or(0, |set| count(set, "replicas")),
        ready: sum("readyReplicas"),
        available: sum("availableReplicas"),
    };
    let rolling = at(
        &deployment,
        &["spec", "strategy", "rollingUpdate", "maxUnavailable"],
    );
    let total_wanted = i64::try_from(counts.wanted).unwrap_or(i64::MAX);
    let missing = usize::try_from(part_of(rolling, total_wanted, false, 0)).unwrap_or_default();
    let enough = counts.available >= counts.wanted.saturating_sub(missing);
    let generation = number(&deployment, &["metadata", "generation"], 0);
    let (now, at_hand) = (cx.now, cx.timestamp());
    let found = Found {
        counts,
        set: name,
        is_new,
    };
    let mut again = None;
    actor::set_status(cx, DEPLOYMENTS, key, |status| {
        again = progress::note(&deployment, status, &found, now);
        status.insert("observedGeneration".to_owned(), json!(generation));
        let unavailable = counts.wanted.max(counts.total).saturating_sub(counts.available);
        let counts = [
            ("replicas", counts.total),
            ("updatedReplicas", counts.updated),
            ("readyReplicas", counts.ready),
            ("availableReplicas", counts.available),
            ("unavailableReplicas", unavailable),
        ];
        for (field, count) in counts {
            put_count(status, field, count);
        }
        let (holds, reason, message) = if enough {
            (
                "True",
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.",
            )
        } else {
            (
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            )
        };
        let condition = json!({"type": "Available", "status": holds, "lastUpdateTime": at_hand, "reason": reason, "message": message});
        put_condition(status, condition, &at_hand);
    });
    if let Some(after) = again {
        actor::look_again(cx, DEPLOYMENTS, key, after);
    }
}

/// Sets a condition; an unchanged condition keeps its update time.
fn put_condition(status: &mut Object, mut condition: Value, now: &Value) {
    let known = status
        .get("conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let same = |known: &&Value| {
        ["type", "status", "reason", "message"]
            .iter()
            .all(|key| known[key] == condition[key])
    };
    if let Some(same) = known.into_iter().find(same) {
        condition["lastUpdateTime"] = same["lastUpdateTime"].clone();
    }
    set_condition(status, condition, now);
}
