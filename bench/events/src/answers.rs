// SPDX-License-Identifier: Apache-2.0
//! Responses of the replay server besides watches: discovery and an empty list.

use serde_json::{Value, json};

use crate::{server::Kinds, stream::Stream};

/// The path of all kinds, below which a namespace may be named.
const VERSION: &str = "/apis/bench.example/v1";

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// An answer: status, content type and body.
pub(crate) type Answer = (u16, &'static str, String);

/// The kind at a path, in one namespace or all.
pub(crate) fn kind_at<'k>(path: &str, kinds: &'k Kinds) -> Option<(&'k str, &'k Stream)> {
    let rest = path.strip_prefix(VERSION)?;
    let (place, plural) = rest.rsplit_once('/')?;
    let (kind, stream) = kinds.iter().find(|(kind, _)| plural_of(kind) == plural)?;
    (place.is_empty() || place.starts_with("/namespaces/")).then_some((kind, stream))
}

fn plural_of(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}

/// Answers a request that is no watch.
pub(crate) fn answer(path: &str, accept: &str, kinds: &Kinds) -> Answer {
    let aggregated = accept.contains("as=APIGroupDiscoveryList");
    let (kind, body) = match path {
        "/api" if aggregated => (AGGREGATED, discovery_list(&json!([]))),
        "/apis" if aggregated => (AGGREGATED, discovery_list(&json!([discovered_group(kinds)]))),
        _ => ("application/json", plain(path, kinds).unwrap_or(Value::Null)),
    };
    if body.is_null() {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
            "message": "the replay server does not have this", "code": 404,
        });
        return (404, kind, status.to_string());
    }
    (200, kind, body.to_string())
}

fn plain(path: &str, kinds: &Kinds) -> Option<Value> {
    let resource = |kind: &String| {
        json!({
            "name": plural_of(kind), "singularName": kind.to_lowercase(), "namespaced": true, "kind": kind,
            "verbs": ["get", "list", "watch"],
        })
    };
    let version = json!({"groupVersion": "bench.example/v1", "version": "v1"});
    let mut group = json!({"name": "bench.example", "versions": [version], "preferredVersion": version});
    Some(match path {
        "/version" => {
            json!({"major": "1", "minor": "37", "gitVersion": "v1.37.0", "platform": "linux/amd64"})
        }
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        "/api/v1" => json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": []}),
        "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}),
        "/apis/bench.example" => {
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        VERSION => json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "bench.example/v1",
            "resources": kinds.keys().map(resource).collect::<Value>(),
        }),
        path => {
            let (kind, _) = kind_at(path, kinds)?;
            json!({
                "kind": format!("{kind}List"), "apiVersion": "bench.example/v1",
                "metadata": {"resourceVersion": "1"}, "items": [],
            })
        }
    })
}

fn discovery_list(items: &Value) -> Value {
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

fn discovered_group(kinds: &Kinds) -> Value {
    let resource = |kind: &String| {
        json!({
            "resource": plural_of(kind), "singularResource": kind.to_lowercase(), "scope": "Namespaced",
            "responseKind": {"group": "bench.example", "version": "v1", "kind": kind},
            "verbs": ["get", "list", "watch"],
        })
    };
    json!({
        "metadata": {"name": "bench.example"},
        "versions": [{
            "version": "v1", "freshness": "Current",
            "resources": kinds.keys().map(resource).collect::<Value>(),
        }],
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn kinds() -> Kinds {
        let nothing = Arc::new(Stream::AtOnce(Vec::new()));
        [("Widget".to_owned(), nothing)].into()
    }

    #[test]
    fn finds_a_kind_in_all_namespaces_and_in_one() {
        let found = |path| kind_at(path, &kinds()).is_some();
        assert!(found("/apis/bench.example/v1/widgets"));
        assert!(found("/apis/bench.example/v1/namespaces/a/widgets"));
        assert!(!found("/apis/bench.example/v1/gadgets"));
    }

    #[test]
    fn discovery_has_the_requested_format() {
        let kinds = kinds();
        assert!(
            answer("/apis", "application/json", &kinds)
                .2
                .contains("APIGroupList")
        );
        assert_eq!(answer("/apis", AGGREGATED, &kinds).1, AGGREGATED);
        assert_eq!(answer("/apis/other", "", &kinds).0, 404);
    }
}
