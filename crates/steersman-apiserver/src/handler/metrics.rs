// SPDX-License-Identifier: Apache-2.0
//! `/metrics` in the Prometheus text format: the requests that were answered, the stored objects, and the build.
//!
//! Names and labels are those of kube-apiserver. It has some hundred more, which this server does not measure.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use bytes::Bytes;
use http::StatusCode;

use super::{Call, Content, Reply, discovery};
use crate::{
    route::{self, ResourcePath, Verb},
    state::Context,
    status::Result,
};

/// Maximum number of label sets; requests with further ones are not counted.
const SERIES_MAX: usize = 10_000;

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Number of requests by the hash of their labels, with the labels.
    requests: HashMap<u64, (String, u64)>,
}

impl Metrics {
    /// Counts a request for a resource, unless the reply has to wait.
    pub(crate) fn count(&mut self, call: &Call, path: &ResourcePath, result: &Result<Reply>) {
        let code = match result {
            Ok(reply) if matches!(reply.content, Content::Wait(_)) => return,
            Ok(reply) => reply.code,
            Err(failure) => failure.code,
        };
        let verb = verb(call, path);
        let scope = scope(path, verb);
        let dry_run = call.query.get("dryRun").unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        (&path.group, &path.version, &path.resource, &path.subresource).hash(&mut hasher);
        (verb, scope, dry_run, code.as_u16()).hash(&mut hasher);
        let is_full = self.requests.len() >= SERIES_MAX;
        match self.requests.entry(hasher.finish()) {
            Entry::Occupied(mut known) => known.get_mut().1 += 1,
            Entry::Vacant(_) if is_full => {}
            Entry::Vacant(place) => {
                let labels = format!(
                    "code={:?},component=\"apiserver\",dry_run={dry_run:?},group={:?},resource={:?},scope={scope:?},subresource={:?},verb={verb:?},version={:?}",
                    code.as_str(),
                    path.group,
                    path.resource,
                    path.subresource,
                    path.version
                );
                place.insert((labels, 1));
            }
        }
    }
}

/// Returns the label `verb` of a request.
fn verb(call: &Call, path: &ResourcePath) -> &'static str {
    match route::verb(&call.method, !path.name.is_empty(), call.query.flag("watch")) {
        Some(Verb::Get) => "GET",
        Some(Verb::List) => "LIST",
        Some(Verb::Watch) => "WATCH",
        Some(Verb::Create) => "POST",
        Some(Verb::Update) => "PUT",
        Some(Verb::Patch) if call.header("content-type").starts_with("application/apply-patch") => "APPLY",
        Some(Verb::Patch) => "PATCH",
        Some(Verb::Delete) => "DELETE",
        Some(Verb::DeleteCollection) => "DELETECOLLECTION",
        None => "other",
    }
}

/// Returns the label `scope` of a request.
fn scope(path: &ResourcePath, verb: &str) -> &'static str {
    if !path.name.is_empty() || verb == "POST" {
        "resource"
    } else if !path.namespace.is_empty() {
        "namespace"
    } else {
        "cluster"
    }
}

/// Handles a request for the metrics.
pub(super) fn answer(cx: &Context<'_>) -> Reply {
    let mut text = String::new();
    let head = |text: &mut String, name: &str, kind: &str, help: &str| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    };
    head(
        &mut text,
        "apiserver_request_total",
        "counter",
        "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
    );
    let requests: BTreeMap<&String, &u64> = cx
        .state
        .metrics
        .requests
        .values()
        .map(|(labels, count)| (labels, count))
        .collect();
    for (labels, count) in requests {
        let _ = writeln!(text, "apiserver_request_total{{{labels}}} {count}");
    }
    head(
        &mut text,
        "apiserver_resource_objects",
        "gauge",
        "[STABLE] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.",
    );
    for resource in cx.state.registry.all() {
        if resource.verbs.iter().any(|verb| verb == "list") {
            let count = cx.state.store.all(resource.storage).count();
            let _ = writeln!(
                text,
                "apiserver_resource_objects{{group={:?},resource={:?}}} {count}",
                resource.group, resource.plural
            );
        }
    }
    head(
        &mut text,
        "kubernetes_build_info",
        "gauge",
        "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
    );
    let version = discovery::version();
    let fields = [
        ("build_date", "buildDate"),
        ("compiler", "compiler"),
        ("git_commit", "gitCommit"),
        ("git_tree_state", "gitTreeState"),
        ("git_version", "gitVersion"),
        ("go_version", "goVersion"),
        ("major", "major"),
        ("minor", "minor"),
        ("platform", "platform"),
    ];
    let labels: Vec<String> = fields
        .iter()
        .map(|(label, field)| format!("{label}={:?}", version[*field].as_str().unwrap_or_default()))
        .collect();
    let _ = writeln!(text, "kubernetes_build_info{{{}}} 1", labels.join(","));
    let mut reply = Reply::bytes(StatusCode::OK, Bytes::from(text));
    let form = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    reply.headers.push(("content-type", form.to_owned()));
    reply
}
