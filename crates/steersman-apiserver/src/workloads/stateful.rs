// SPDX-License-Identifier: Apache-2.0
//! The StatefulSet controller: keeps numbered Pods, one after the other.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{
    actor::{self, Kind, PODS, number, text},
    pods::{self, Availability},
    replicas::put_count,
};
use crate::{resource::at, state::Context, store::Object};

const SETS: Kind = ("apps", "statefulsets");
const CLAIMS: Kind = ("", "persistentvolumeclaims");
const REVISION: &str = "controller-revision-hash";

/// Processes a StatefulSet.
pub(super) fn advance(cx: &mut Context<'_>, key: &str) {
    let Some(set) = actor::get(cx, SETS, key) else {
        return;
    };
    if actor::is_deleting(&set) {
        return;
    }
    let template = at(&set, &["spec", "template"]).cloned().unwrap_or_default();
    let revision = format!("{}-{}", text(&set, &["metadata", "name"]), actor::hash(&template));
    step(cx, &set, &template, &revision);
    report(cx, key, &set, &revision);
}

/// Returns the Pods of a set by ordinal.
fn numbered(cx: &Context<'_>, set: &Object) -> BTreeMap<i64, Arc<Object>> {
    let number = |pod: &Object| text(pod, &["metadata", "name"]).rsplit('-').next()?.parse().ok();
    let pods = actor::owned(cx, PODS, set).into_iter();
    pods.filter_map(|pod| Some((number(&pod)?, pod))).collect()
}

/// Runs the actions that are allowed now; each write queues the set again.
fn step(cx: &mut Context<'_>, set: &Object, template: &Value, revision: &str) {
    let pods = numbered(cx, set);
    let first = number(set, &["spec", "ordinals", "start"], 0);
    let wanted = first + number(set, &["spec", "replicas"], 1);
    let parallel = text(set, &["spec", "podManagementPolicy"]) == "Parallel";
    for number in first..wanted {
        match pods.get(&number) {
            None => {
                // A rejected Pod stops the Pods after it.
                if make(cx, set, template, revision, number).is_none() || !parallel {
                    return;
                }
            }
            Some(pod) if !pods::is_active(pod) => actor::delete(cx, PODS, &actor::key(pod)),
            Some(pod) if !parallel && !pods::is_available(cx, pod, set) => return,
            Some(_) => {}
        }
    }
    let mut surplus = pods
        .iter()
        .rev()
        .filter(|(number, _)| !(first..wanted).contains(*number));
    if let Some((_, last)) = surplus.next() {
        actor::delete(cx, PODS, &actor::key(last));
        return;
    }
    if text(set, &["spec", "updateStrategy", "type"]) == "OnDelete" {
        return;
    }
    let partition = number(set, &["spec", "updateStrategy", "rollingUpdate", "partition"], 0);
    let stale = |pod: &Object| label(pod) != revision;
    let mut stale = pods
        .iter()
        .rev()
        .filter(|(number, pod)| **number >= first + partition && stale(pod));
    if pods.values().all(|pod| pods::is_available(cx, pod, set))
        && let Some((_, last)) = stale.next()
    {
        actor::delete(cx, PODS, &actor::key(last));
    }
}

fn label(pod: &Object) -> String {
    let labels = at(pod, &["metadata", "labels"]);
    let label = labels.and_then(|labels| labels.get(REVISION)?.as_str());
    label.unwrap_or_default().to_owned()
}

fn make(cx: &mut Context<'_>, set: &Object, template: &Value, revision: &str, number: i64) -> Option<()> {
    let namespace = text(set, &["metadata", "namespace"]);
    let name = format!("{}-{number}", text(set, &["metadata", "name"]));
    let owner = actor::controller(&*actor::resource(cx, SETS)?, set);
    let mut pod = actor::pod_of(template, &owner);
    pod["metadata"]["name"] = json!(name);
    let own = [
        (REVISION, revision.to_owned()),
        ("statefulset.kubernetes.io/pod-name", name.clone()),
        ("apps.kubernetes.io/pod-index", number.to_string()),
    ];
    for (label, value) in own {
        pod["metadata"]["labels"][label] = json!(value);
    }
    pod["spec"]["hostname"] = json!(name);
    pod["spec"]["subdomain"] = json!(text(set, &["spec", "serviceName"]));
    let claims = at(set, &["spec", "volumeClaimTemplates"])
        .and_then(Value::as_array)
        .cloned();
    for claim in claims.into_iter().flatten() {
        let volume = claim["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let claimed = format!("{volume}-{name}");
        if actor::get(cx, CLAIMS, &format!("{namespace}/{claimed}")).is_none() {
            let labels = at(set, &["spec", "selector", "matchLabels"])
                .cloned()
                .unwrap_or_else(|| json!({}));
            let object = json!({"metadata": {"name": claimed, "labels": labels}, "spec": claim["spec"]});
            actor::create(cx, CLAIMS, &namespace, object)?;
        }
        let source = json!({"name": volume, "persistentVolumeClaim": {"claimName": claimed}});
        match &mut pod["spec"]["volumes"] {
            Value::Array(volumes) => volumes.push(source),
            none => *none = json!([source]),
        }
    }
    actor::create(cx, PODS, &namespace, pod)
}

fn report(cx: &mut Context<'_>, key: &str, set: &Object, revision: &str) {
    let pods = numbered(cx, set);
    let Availability { ready, available } = pods::availability(cx, SETS, set, pods.values());
    let updated = pods.values().filter(|pod| label(pod) == revision).count();
    let generation = number(set, &["metadata", "generation"], 0);
    let wanted = usize::try_from(number(set, &["spec", "replicas"], 1)).unwrap_or_default();
    let done = updated == wanted && available == wanted && pods.len() == wanted;
    actor::set_status(cx, SETS, key, |status| {
        status.insert("observedGeneration".to_owned(), json!(generation));
        status.insert("replicas".to_owned(), json!(pods.len()));
        status.insert("availableReplicas".to_owned(), json!(available));
        status.insert("collisionCount".to_owned(), json!(0));
        status.insert("updateRevision".to_owned(), json!(revision));
        if done || !status.contains_key("currentRevision") {
            status.insert("currentRevision".to_owned(), json!(revision));
        }
        let of_current = status.get("currentRevision").and_then(Value::as_str) == Some(revision);
        let current = if of_current { updated } else { pods.len() - updated };
        put_count(status, "readyReplicas", ready);
        put_count(status, "updatedReplicas", updated);
        put_count(status, "currentReplicas", current);
    });
}
