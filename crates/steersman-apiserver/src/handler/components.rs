// SPDX-License-Identifier: Apache-2.0
//! ComponentStatuses, which are computed and not stored.
//!
//! A real API server probes the scheduler and the controller manager on its own host. This server has neither, so both
//! report as unhealthy.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Reply, Target};
use crate::{
    route::Verb,
    status::{Failure, Qualified, Result},
};

/// The components and the ports of their health endpoints.
const COMPONENTS: [(&str, Option<u16>); 3] = [
    ("scheduler", Some(10259)),
    ("controller-manager", Some(10257)),
    ("etcd-0", None),
];

pub(super) fn answer(target: &Target, verb: Verb) -> Result<Reply> {
    match verb {
        Verb::List => {
            let items: Vec<Value> = COMPONENTS.iter().map(component).collect();
            let list =
                json!({"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": items});
            Ok(Reply::json(StatusCode::OK, &list))
        }
        Verb::Get => {
            let mut found = COMPONENTS.iter().filter(|(name, _)| *name == target.name);
            let mut object = found.next().map(component).ok_or_else(|| {
                let of = Qualified {
                    group: "",
                    name: "componentstatus",
                };
                Failure::not_found(of, &target.name)
            })?;
            object["kind"] = json!("ComponentStatus");
            object["apiVersion"] = json!("v1");
            Ok(Reply::json(StatusCode::OK, &object))
        }
        _ => Err(Failure::method_not_allowed()),
    }
}

fn component((name, port): &(&str, Option<u16>)) -> Value {
    let (status, message) = match port {
        None => ("True", "ok".to_owned()),
        Some(port) => (
            "False",
            format!(
                "Get \"https://127.0.0.1:{port}/healthz\": dial tcp 127.0.0.1:{port}: connect: connection refused"
            ),
        ),
    };
    json!({"metadata": {"name": name}, "conditions": [{"type": "Healthy", "status": status, "message": message}]})
}
