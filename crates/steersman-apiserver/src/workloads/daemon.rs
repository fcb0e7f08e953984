// SPDX-License-Identifier: Apache-2.0
//! The DaemonSet controller: keeps one Pod on each node.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{
    actor::{self, Kind, PODS, number, text},
    pods::{self, Availability},
};
use crate::{resource::at, state::Context, store::Object};

const SETS: Kind = ("apps", "daemonsets");
const REVISION: &str = "controller-revision-hash";

/// Processes a DaemonSet.
pub(super) fn advance(cx: &mut Context<'_>, key: &str) {
    let Some(set) = actor::get(cx, SETS, key) else {
        return;
    };
    if actor::is_deleting(&set) {
        return;
    }
    let template = at(&set, &["spec", "template"]).cloned().unwrap_or_default();
    let selector = template
        .pointer("/spec/nodeSelector")
        .cloned()
        .unwrap_or_default();
    let nodes: Vec<String> = cx
        .all("", "nodes")
        .map(|node| node.object())
        .filter(|node| pods::takes(node, &selector))
        .map(|node| text(&node, &["metadata", "name"]))
        .collect();
    let revision = actor::hash(&template);
    let mut there: BTreeMap<String, Arc<Object>> = BTreeMap::new();
    for pod in actor::owned(cx, PODS, &set) {
        let node = text(&pod, &["spec", "nodeName"]);
        let surplus = !nodes.contains(&node) || !pods::is_active(&pod);
        match there.insert(node, Arc::clone(&pod)) {
            None if !surplus => {}
            _ => actor::delete(cx, PODS, &actor::key(&pod)),
        }
    }
    for node in nodes.iter().filter(|node| !there.contains_key(*node)) {
        // A rejected Pod is retried when something changes.
        let _ = make(cx, &set, &template, &revision, node);
    }
    let stale = there.values().find(|pod| label(pod) != revision);
    let rolls = text(&set, &["spec", "updateStrategy", "type"]) == "RollingUpdate";
    if let Some(stale) = stale
        && rolls
        && there.len() == nodes.len()
        && there.values().all(|pod| pods::is_available(cx, pod, &set))
    {
        actor::delete(cx, PODS, &actor::key(stale));
    }
    report(cx, key, &set, nodes.len(), &revision);
}

fn label(pod: &Object) -> String {
    let labels = at(pod, &["metadata", "labels"]);
    let label = labels.and_then(|labels| labels.get(REVISION)?.as_str());
    label.unwrap_or_default().to_owned()
}

fn make(cx: &mut Context<'_>, set: &Object, template: &Value, revision: &str, node: &str) -> Option<()> {
    let owner = actor::controller(&*actor::resource(cx, SETS)?, set);
    let mut pod = actor::pod_of(template, &owner);
    pod["metadata"]["generateName"] = json!(format!("{}-", text(set, &["metadata", "name"])));
    pod["metadata"]["labels"][REVISION] = json!(revision);
    pod["spec"]["nodeName"] = json!(node);
    actor::create(cx, PODS, &text(set, &["metadata", "namespace"]), pod)
}

fn report(cx: &mut Context<'_>, key: &str, set: &Object, desired: usize, revision: &str) {
    let pods = actor::owned(cx, PODS, set);
    let active = pods.iter().filter(|pod| pods::is_active(pod));
    let current = active.clone().count();
    let Availability { ready, available } = pods::availability(cx, SETS, set, active.clone());
    let updated = active.filter(|pod| label(pod) == revision).count();
    let generation = number(set, &["metadata", "generation"], 0);
    actor::set_status(cx, SETS, key, |status| {
        status.insert("observedGeneration".to_owned(), json!(generation));
        let counts = [
            ("desiredNumberScheduled", desired),
            ("currentNumberScheduled", current),
            ("numberReady", ready),
            ("numberMisscheduled", 0),
        ];
        for (field, count) in counts {
            status.insert(field.to_owned(), json!(count));
        }
        let counts = [
            ("numberAvailable", available),
            ("updatedNumberScheduled", updated),
            ("numberUnavailable", desired.saturating_sub(available)),
        ];
        for (field, count) in counts {
            super::replicas::put_count(status, field, count);
        }
    });
}
