// SPDX-License-Identifier: Apache-2.0
//! What the replay server answers when it is not asked for a watch: enough discovery for everybody, an empty list.

use serde_json::{Value, json};

/// The path of the Widgets, below which a namespace may be named.
const WIDGETS: &str = "/apis/bench.example/v1";

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// An answer: status, content type and body.
pub(crate) type Answer = (u16, &'static str, String);

/// Whether this is the path of Widgets, in one namespace or all.
pub(crate) fn is_widgets(path: &str) -> bool {
    path.strip_prefix(WIDGETS).is_some_and(|rest| {
        rest == "/widgets" || rest.starts_with("/namespaces/") && rest.ends_with("/widgets")
    })
}

/// Answers a request that is no watch.
pub(crate) fn answer(path: &str, accept: &str) -> Answer {
    let aggregated = accept.contains("as=APIGroupDiscoveryList");
    let (kind, body) = match path {
        "/api" if aggregated => (AGGREGATED, discovery_list(&json!([]))),
        "/apis" if aggregated => (AGGREGATED, discovery_list(&json!([discovered_group()]))),
        _ => ("application/json", plain(path).unwrap_or(Value::Null)),
    };
    if body.is_null() {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
            "message": "the replay server has nothing but widgets.bench.example", "code": 404,
        });
        return (404, kind, status.to_string());
    }
    (200, kind, body.to_string())
}

fn plain(path: &str) -> Option<Value> {
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
        WIDGETS => json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "bench.example/v1",
            "resources": [{
                "name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget",
                "verbs": ["get", "list", "watch"],
            }],
        }),
        path if is_widgets(path) => json!({
            "kind": "WidgetList", "apiVersion": "bench.example/v1", "metadata": {"resourceVersion": "1"}, "items": [],
        }),
        _ => return None,
    })
}

fn discovery_list(items: &Value) -> Value {
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

fn discovered_group() -> Value {
    json!({
        "metadata": {"name": "bench.example"},
        "versions": [{
            "version": "v1", "freshness": "Current",
            "resources": [{
                "resource": "widgets", "singularResource": "widget", "scope": "Namespaced",
                "responseKind": {"group": "bench.example", "version": "v1", "kind": "Widget"},
                "verbs": ["get", "list", "watch"],
            }],
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widgets_are_found_in_all_namespaces_and_in_one() {
        assert!(is_widgets("/apis/bench.example/v1/widgets"));
        assert!(is_widgets("/apis/bench.example/v1/namespaces/a/widgets"));
        assert!(!is_widgets("/apis/bench.example/v1/gadgets"));
    }

    #[test]
    fn discovery_comes_in_the_form_that_is_asked_for() {
        assert!(answer("/apis", "application/json").2.contains("APIGroupList"));
        assert_eq!(answer("/apis", AGGREGATED).1, AGGREGATED);
        assert_eq!(answer("/apis/other", "").0, 404);
    }
}
