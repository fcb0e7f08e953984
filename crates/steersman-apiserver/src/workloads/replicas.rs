// SPDX-License-Identifier: Apache-2.0
//! The ReplicaSet controller: keeps a number of Pods.

use std::{cmp::Reverse, sync::Arc};

use serde_json::{Value, json};

use super::{
    actor::{self, PODS, REPLICA_SETS, number, text},
    pods,
};
use crate::{resource::at, state::Context, store::Object};

/// Processes a ReplicaSet.
pub(super) fn advance(cx: &mut Context<'_>, key: &str) {
    let Some(set) = actor::get(cx, REPLICA_SETS, key) else {
        return;
    };
    if actor::is_deleting(&set) {
        return;
    }
    let wanted = usize::try_from(number(&set, &["spec", "replicas"], 1)).unwrap_or_default();
    let mut active = active(cx, &set);
    if active.len() > wanted {
        rank(&mut active);
        for pod in &active[..active.len() - wanted] {
            actor::delete(cx, PODS, &actor::key(pod));
        }
    }
    for _ in active.len()..wanted {
        if make(cx, &set).is_none() {
            break;
        }
    }
    report(cx, key, &set);
}

/// Sorts Pods in the order in which they are deleted, as kube-controller-manager does: Pods without a node, pending,
/// unready, of a lower deletion cost, that share a node with more others, with more restarts, and the youngest.
fn rank(pods: &mut [Arc<Object>]) {
    let node = |pod: &Object| text(pod, &["spec", "nodeName"]);
    let nodes: Vec<String> = pods.iter().map(|pod| node(pod)).collect();
    pods.sort_by_cached_key(|pod| {
        let node = node(pod);
        let phase = match text(pod, &["status", "phase"]).as_str() {
            "" | "Pending" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        let is_ready = pods::is_ready(pod);
        let neighbours = nodes.iter().filter(|other| **other == node).count();
        let neighbours = if is_ready { neighbours } else { 0 };
        (
            !node.is_empty(),
            phase,
            is_ready,
            deletion_cost(pod),
            Reverse(neighbours),
            Reverse(restarts(pod)),
            Reverse(created(pod)),
        )
    });
}

fn deletion_cost(pod: &Object) -> i32 {
    let cost = text(
        pod,
        &[
            "metadata",
            "annotations",
            "controller.kubernetes.io/pod-deletion-cost",
        ],
    );
    cost.parse().unwrap_or_default()
}

fn restarts(pod: &Object) -> i64 {
    let statuses = at(pod, &["status", "containerStatuses"]).and_then(Value::as_array);
    let counts = statuses
        .into_iter()
        .flatten()
        .filter_map(|status| status["restartCount"].as_i64());
    counts.max().unwrap_or_default()
}

/// Returns the time of creation, and the revision for Pods of the same second.
fn created(pod: &Object) -> (String, u64) {
    let revision = text(pod, &["metadata", "resourceVersion"])
        .parse()
        .unwrap_or_default();
    (text(pod, &["metadata", "creationTimestamp"]), revision)
}

fn active(cx: &Context<'_>, set: &Object) -> Vec<Arc<Object>> {
    let mut pods = actor::owned(cx, PODS, set);
    pods.retain(|pod| pods::is_active(pod));
    pods
}

fn make(cx: &mut Context<'_>, set: &Object) -> Option<()> {
    let owner = actor::controller(&*actor::resource(cx, REPLICA_SETS)?, set);
    let mut pod = actor::pod_of(at(set, &["spec", "template"])?, &owner);
    pod["metadata"]["generateName"] = json!(format!("{}-", text(set, &["metadata", "name"])));
    actor::create(cx, PODS, &text(set, &["metadata", "namespace"]), pod)
}

fn report(cx: &mut Context<'_>, key: &str, set: &Object) {
    let pods = active(cx, set);
    let counts = pods::availability(cx, REPLICA_SETS, set, pods.iter());
    let generation = number(set, &["metadata", "generation"], 0);
    actor::set_status(cx, REPLICA_SETS, key, |status| {
        status.insert("replicas".to_owned(), json!(pods.len()));
        status.insert("observedGeneration".to_owned(), json!(generation));
        let counts = [
            ("fullyLabeledReplicas", pods.len()),
            ("readyReplicas", counts.ready),
            ("availableReplicas", counts.available),
        ];
        for (field, count) in counts {
            put_count(status, field, count);
        }
    });
}

/// Sets a count; omits zero, as Go does.
pub(super) fn put_count(status: &mut Object, field: &str, count: usize) {
    if count == 0 {
        status.remove(field);
    } else {
        status.insert(field.to_owned(), Value::from(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, fields: &Value) -> Arc<Object> {
        let mut pod = json!({
            "metadata": {"name": name, "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:05Z"},
            "spec": {"nodeName": "n"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        json_patch::merge(&mut pod, fields);
        match pod {
            Value::Object(pod) => Arc::new(pod),
            _ => unreachable!("the patch is an object"),
        }
    }

    #[test]
    fn deletes_unplaced_pending_unready_cheap_crowded_restarted_and_young_pods_first() {
        let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let mut young_unready = unready.clone();
        young_unready["metadata"] = json!({"creationTimestamp": "2026-01-01T00:00:09Z"});
        let cost = json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}});
        let wanted = [
            pod("unplaced", &json!({"spec": {"nodeName": ""}})),
            pod("pending", &json!({"status": {"phase": "Pending"}})),
            pod("young unready", &young_unready),
            pod("old unready", &unready),
            pod("cheap", &cost),
            pod(
                "restarted",
                &json!({"status": {"containerStatuses": [{"restartCount": 3}]}}),
            ),
            pod(
                "young",
                &json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:07Z"}}),
            ),
            pod(
                "second of its second",
                &json!({"metadata": {"resourceVersion": "6"}}),
            ),
            pod("old", &json!({})),
            pod("alone", &json!({"spec": {"nodeName": "other"}})),
        ];
        let names = |pods: &[Arc<Object>]| -> Vec<String> {
            pods.iter().map(|pod| text(pod, &["metadata", "name"])).collect()
        };
        let mut pods = wanted.to_vec();
        pods.reverse();
        rank(&mut pods);
        assert_eq!(names(&pods), names(&wanted));
    }
}
