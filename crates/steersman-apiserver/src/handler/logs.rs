// SPDX-License-Identifier: Apache-2.0
//! Pod logs: the checks of the API server before it calls a kubelet.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{Call, Reply, Target, special};
use crate::{
    resource::at,
    state::Context,
    status::{Failure, FieldError, Qualified, Result},
    store::Object,
};

/// Handles a request for logs: empty logs if the Pod is not bound to a node, otherwise a not-implemented error.
pub(super) fn read(cx: &Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    check_options(call, target)?;
    let stored = cx.state.store.get(target.resource.storage, &target.key());
    let pod = stored.ok_or_else(|| target.not_found())?.object();
    check_container(&pod, &target.name, call.query.filled("container"))?;
    let node = at(&pod, &["spec", "nodeName"]).and_then(Value::as_str);
    if node.unwrap_or_default().is_empty() {
        return Ok(Reply::bytes(StatusCode::NO_CONTENT, Bytes::new()));
    }
    Err(special::not_implemented(cx, target))
}

fn check_options(call: &Call, target: &Target) -> Result<()> {
    let mut errors = Vec::new();
    let bounds = [("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)];
    for (option, least) in bounds {
        let number = call
            .query
            .filled(option)
            .and_then(|text| text.parse::<i64>().ok());
        if let Some(number) = number.filter(|number| *number < least) {
            let detail = if least == 0 {
                "must be greater than or equal to 0"
            } else {
                "must be greater than 0"
            };
            errors.push(FieldError::invalid(option, &json!(number), detail));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let kind = Qualified {
        group: "",
        name: "PodLogOptions",
    };
    Err(Failure::invalid(kind, &target.name, &errors))
}

/// Checks that the named container exists, or that the Pod has only one container if none is named.
fn check_container(pod: &Object, name: &str, container: Option<&str>) -> Result<()> {
    let names = |list: &str| -> Vec<String> {
        let containers = at(pod, &["spec", list]).and_then(Value::as_array);
        let containers = containers.into_iter().flatten();
        containers
            .filter_map(|container| container["name"].as_str().map(str::to_owned))
            .collect()
    };
    let [own, init, ephemeral] = ["containers", "initContainers", "ephemeralContainers"].map(names);
    let Some(container) = container else {
        if own.len() == 1 {
            return Ok(());
        }
        let all: Vec<String> = [init, own, ephemeral].concat();
        let message = format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        );
        return Err(Failure::bad_request(message));
    };
    let is_known = [own, init, ephemeral]
        .iter()
        .flatten()
        .any(|known| known == container);
    if is_known {
        return Ok(());
    }
    Err(Failure::bad_request(format!(
        "container {container} is not valid for pod {name}"
    )))
}
