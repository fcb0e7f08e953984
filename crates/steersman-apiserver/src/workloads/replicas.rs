// SPDX-License-Identifier: Apache-2.0
//! The ReplicaSet controller: keeps a number of Pods.

use std::sync::Arc;

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
        // Pods that are not ready are deleted first, then the youngest.
        active.sort_by_key(|pod| (pods::is_ready(pod), created(pod)));
        let ready_last = active.partition_point(|pod| !pods::is_ready(pod));
        active[ready_last..].reverse();
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
