// SPDX-License-Identifier: Apache-2.0
//! Nothing that is sent makes the server panic, and the same is answered to the same.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use harness::{Raw, builder};
use proptest::prelude::*;
use serde_json::{Value, json};
use steersman_apiserver::{ApiServer, clock::ManualClock};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

async fn furnished() -> ApiServer {
    let server = builder().clock(ManualClock::default()).build();
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer", "default": 1, "minimum": 0},
                    "name": {"type": "string", "pattern": "^[a-z]+$"},
                    "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "labels": {"type": "string"}}}},
                    "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                },
                "x-kubernetes-validations": [{"rule": "self.replicas < 100"}],
            },
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    });
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
    });
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version]},
    });
    for (path, body) in [
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            definition,
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            json!({"metadata": {"name": "a"}, "data": {"name": "x"}}),
        ),
        (
            "/apis/example.com/v1/namespaces/default/widgets",
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"list": [{"name": "x"}]}}),
        ),
        (
            "/api/v1/namespaces/default/pods",
            json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        ),
    ] {
        Raw::new("POST", path).json(&body).send(&server).await.ok();
    }
    server
}

const WORDS: [&str; 40] = [
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "uid",
    "spec",
    "status",
    "replicas",
    "list",
    "set",
    "free",
    "data",
    "containers",
    "template",
    "selector",
    "matchLabels",
    "managedFields",
    "fieldsV1",
    "f:spec",
    "v1",
    "example.com/v1",
    "Widget",
    "ConfigMap",
    "a",
    "default",
    "generateName",
    "resourceVersion",
    "$patch",
    "replace",
    "delete",
    "$retainKeys",
    "versions",
    "schema",
    "openAPIV3Schema",
    "creationTimestamp",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![8 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned), 1 => "[ -~]{0,8}", 1 => "\\PC{0,6}"]
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// An object that gets past the first checks.
fn object() -> impl Strategy<Value = Value> {
    (
        json_value(),
        json_value(),
        json_value(),
        prop::sample::select(vec![
            ("v1", "ConfigMap"),
            ("example.com/v1", "Widget"),
            ("v1", "Pod"),
        ]),
    )
        .prop_map(|(spec, data, metadata, (version, kind))| {
            let mut metadata = if metadata.is_object() { metadata } else { json!({}) };
            metadata["name"] = json!("a");
            json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "data": data})
        })
}

fn body() -> impl Strategy<Value = String> {
    prop_oneof![4 => object().prop_map(|value| value.to_string()), 3 => json_value().prop_map(|value| value.to_string()), 1 => "\\PC{0,40}"]
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("/api/v1/namespaces/default/configmaps".to_owned()),
        Just("/api/v1/namespaces/default/configmaps/a".to_owned()),
        Just("/apis/example.com/v1/namespaces/default/widgets".to_owned()),
        Just("/apis/example.com/v1/namespaces/default/widgets/a".to_owned()),
        Just("/apis/example.com/v1/namespaces/default/widgets/a/status".to_owned()),
        Just("/apis/example.com/v1/namespaces/default/widgets/a/scale".to_owned()),
        Just("/api/v1/namespaces/default/pods/a".to_owned()),
        Just("/api/v1/namespaces/default/pods/a/binding".to_owned()),
        Just("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com".to_owned()),
        Just("/apis/apps/v1/namespaces/default/deployments".to_owned()),
        Just("/apis/authorization.k8s.io/v1/subjectaccessreviews".to_owned()),
        Just("/api/v1/namespaces".to_owned()),
        "/[a-z0-9/.%]{0,30}",
    ]
}

fn query() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "labelSelector",
        "fieldSelector",
        "limit",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "watch",
        "timeoutSeconds",
        "sendInitialEvents",
        "allowWatchBookmarks",
        "dryRun",
        "fieldManager",
        "force",
        "fieldValidation",
        "propagationPolicy",
    ]);
    let value = prop_oneof![
        "[a-z0-9=!,()<> ]{0,12}",
        Just("1".to_owned()),
        Just("0".to_owned()),
        Just("All".to_owned()),
        Just("me".to_owned()),
        Just("true".to_owned()),
        Just("Exact".to_owned()),
        Just("NotOlderThan".to_owned()),
        "[A-Za-z0-9_-]{0,40}",
    ];
    prop::collection::vec((key, value), 0..4).prop_map(|pairs| {
        let encode = |text: &str| {
            text.bytes()
                .map(|byte| {
                    if byte.is_ascii_alphanumeric() {
                        char::from(byte).to_string()
                    } else {
                        format!("%{byte:02X}")
                    }
                })
                .collect::<String>()
        };
        pairs
            .iter()
            .map(|(key, value)| format!("{key}={}", encode(value)))
            .collect::<Vec<_>>()
            .join("&")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn guarantee_4_no_request_makes_the_server_panic(
        method in prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE"]),
        path in path(),
        query in query(),
        media in prop::sample::select(vec![
            "application/json", "application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json",
            "application/apply-patch+yaml", "application/yaml",
        ]),
        bodies in prop::collection::vec(body(), 1..3),
    ) {
        block_on(async {
            let server = furnished().await;
            for body in bodies {
                let watch = query.contains("watch=") && method == "GET";
                let raw = Raw::new(method, &format!("{path}?{query}")).header("content-type", media).body(&body);
                let code = if watch { raw.open(&server).await.status().as_u16() } else {
                    let answer = tokio::time::timeout(std::time::Duration::from_secs(60), raw.send(&server)).await;
                    // A list that waits for a revision waits on the manual clock.
                    let Ok(answer) = answer else { return };
                    if answer.code >= 400 && answer.headers("content-type") == ["application/json"] {
                        assert_eq!(answer.json()["kind"], "Status");
                    }
                    answer.code
                };
                assert!((200..600).contains(&code));
            }
        });
    }

    #[test]
    fn json_patches_and_selectors_of_any_kind_are_survived(operations in json_value(), selector in "\\PC{0,30}") {
        block_on(async {
            let server = furnished().await;
            let path = "/api/v1/namespaces/default/configmaps/a";
            let patch = Raw::new("PATCH", path).header("content-type", "application/json-patch+json");
            let answer = patch.body(&operations.to_string()).send(&server).await;
            assert!(matches!(answer.code, 200 | 400 | 413 | 422), "{}", answer.body);
            let encoded: String = selector.bytes().map(|byte| format!("%{byte:02X}")).collect();
            for parameter in ["labelSelector", "fieldSelector", "continue"] {
                let answer = Raw::get(&format!("/api/v1/configmaps?{parameter}={encoded}")).send(&server).await;
                assert!(matches!(answer.code, 200 | 400), "{}", answer.body);
            }
        });
    }
}

#[test]
fn guarantee_2_the_same_requests_get_the_same_bytes() {
    let transcript = || {
        block_on(async {
            let server = furnished().await;
            let mut answers = Vec::new();
            for (method, path) in [
                ("GET", "/api/v1/namespaces/default/configmaps/a"),
                ("POST", "/api/v1/namespaces/default/configmaps"),
                ("GET", "/apis/example.com/v1/widgets"),
                ("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
                ("POST", "/api/v1/namespaces/default/serviceaccounts"),
                ("POST", "/api/v1/namespaces/default/serviceaccounts/g/token"),
            ] {
                let raw = Raw::new(method, path)
                    .json(&json!({"metadata": {"name": "g", "generateName": "g-"}, "spec": {}}));
                answers.push(raw.send(&server).await.body);
            }
            answers
        })
    };
    assert_eq!(transcript(), transcript());
}
