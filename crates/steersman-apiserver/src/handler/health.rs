// SPDX-License-Identifier: Apache-2.0
//! Health checks. A server that answers is healthy; its checks have the names of the real server's checks.

use bytes::Bytes;
use http::StatusCode;

use super::{Call, Reply};
use crate::status::{Failure, Result};

/// The checks that all endpoints share.
const CHECKS: [&str; 33] = [
    "ping",
    "log",
    "etcd",
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/peer-endpoint-reconciler-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
    "poststarthook/storage-readiness",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

/// Returns the checks of an endpoint in the order of the real server.
fn checks(endpoint: &str) -> Vec<&'static str> {
    let mut names = CHECKS.to_vec();
    let after = |names: &[&str], name: &str| {
        names
            .iter()
            .position(|known| *known == name)
            .map_or(0, |at| at + 1)
    };
    if endpoint == "readyz" {
        let at = after(&names, "etcd");
        names.splice(at..at, ["etcd-readiness", "informer-sync"]);
        names.push("shutdown");
    } else {
        let at = after(&names, "log");
        names.insert(at, "loopback-serving-certificate");
    }
    names
}

/// Handles `/healthz`, `/livez`, `/readyz` and their single checks; `None` for any other path.
pub(super) fn answer(path: &str, call: &Call) -> Option<Result<Reply>> {
    let path = path.strip_prefix('/')?;
    let (endpoint, check) = path.split_once('/').unwrap_or((path, ""));
    if !matches!(endpoint, "healthz" | "livez" | "readyz") {
        return None;
    }
    if !check.is_empty() {
        let is_known = checks(endpoint).contains(&check);
        return Some(if is_known {
            Ok(Reply::text("ok"))
        } else {
            Err(Failure::unknown_path())
        });
    }
    if call.query.get("verbose").is_none() {
        return Some(Ok(Reply::text("ok")));
    }
    Some(Ok(verbose(endpoint, call)))
}

fn verbose(endpoint: &str, call: &Call) -> Reply {
    let names = checks(endpoint);
    let excluded: Vec<&str> = call.query.all("exclude").collect();
    let mut text = String::new();
    for name in &names {
        let state = if excluded.contains(name) {
            "excluded: ok"
        } else {
            "ok"
        };
        text += &format!("[+]{name} {state}\n");
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !names.contains(name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        let list = unknown.join(",");
        text += &format!("warn: some health checks cannot be excluded: no matches for {list}\n");
    }
    text += &format!("{endpoint} check passed\n");
    let mut reply = Reply::bytes(StatusCode::OK, Bytes::from(text));
    reply
        .headers
        .push(("content-type", "text/plain; charset=utf-8".to_owned()));
    reply
}
