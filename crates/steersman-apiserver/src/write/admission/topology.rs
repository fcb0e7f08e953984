// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `PodTopologyLabels`: Pods get the zone and region of their node as labels.

use serde_json::{Value, json};

use crate::{resource::at, state::Context, store::Object};

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// Sets the labels of a new Pod that names its node.
pub(super) fn admit(cx: &Context<'_>, pod: &mut Object) {
    let node = at(pod, &["spec", "nodeName"])
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    label(cx, pod, &node);
}

/// Copies the labels of a node to an object.
pub(crate) fn label(cx: &Context<'_>, object: &mut Object, node: &str) {
    let Some(node) = cx.find("", "nodes", node) else {
        return;
    };
    let node = node.object();
    for key in LABELS {
        let value = at(&node, &["metadata", "labels"]).and_then(|labels| labels.get(key));
        if let Some(value) = value {
            let metadata = object.entry("metadata").or_insert_with(|| json!({}));
            metadata["labels"][key] = value.clone();
        }
    }
}
