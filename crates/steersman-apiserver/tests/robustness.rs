// SPDX-License-Identifier: Apache-2.0
//! Nothing that is sent makes the server panic, and the same is answered to the same.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::time::Duration;

use harness::{Raw, Watch, builder, hostile};
use proptest::prelude::*;
use serde_json::{Value, json};
use steersman_apiserver::{ApiServer, Workloads, clock::ManualClock};

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
        (
            "/api/v1/namespaces/default/pods",
            json!({"metadata": {"name": "b"}, "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}]}}),
        ),
    ] {
        Raw::new("POST", path).json(&body).send(&server).await.ok();
    }
    server
}

/// Everything that the server is furnished with, or may have been given by the requests.
const COLLECTIONS: [&str; 4] = [
    "/api/v1/namespaces/default/configmaps",
    "/apis/example.com/v1/namespaces/default/widgets",
    "/api/v1/namespaces/default/pods",
    "/apis/apps/v1/namespaces/default/deployments",
];

/// What is there can be read, watched and deleted, also when nothing of it is at hand any more.
async fn check_usable(server: &ApiServer) {
    server.faults().compact();
    for path in COLLECTIONS {
        // A definition may have been taken away.
        let list = Raw::get(path).send(server).await;
        assert!(matches!(list.code, 200 | 404), "{}", list.body);
        let table = Raw::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        assert!(table.send(server).await.code < 500);
        if list.code == 404 {
            continue;
        }
        let begin = format!(
            "{path}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        );
        Watch::open(server, &begin).await.next().await.unwrap();
        let finalizers = json!({"metadata": {"finalizers": null}});
        for item in list.json()["items"].as_array().into_iter().flatten() {
            let path = format!("{path}/{}", item["metadata"]["name"].as_str().unwrap());
            Raw::new("PATCH", &path)
                .header("content-type", "application/merge-patch+json")
                .json(&finalizers)
                .send(server)
                .await;
            let gone = Raw::new("DELETE", &format!("{path}?gracePeriodSeconds=0"))
                .send(server)
                .await;
            assert!(matches!(gone.code, 200 | 202), "{}", gone.body);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn guarantee_4_no_request_makes_the_server_panic(requests in prop::collection::vec(hostile::asked(), 1..24)) {
        block_on(async {
            let server = furnished().await;
            for request in requests {
                // A list or watch that waits for a revision waits on the manual clock.
                let limit = Duration::from_secs(60);
                let code = if request.is_watch() {
                    let opened = tokio::time::timeout(limit, request.raw().open(&server)).await;
                    let Ok(opened) = opened else { continue };
                    opened.status().as_u16()
                } else {
                    let answer = tokio::time::timeout(limit, request.raw().send(&server)).await;
                    let Ok(answer) = answer else { continue };
                    if answer.code >= 400 && answer.headers("content-type") == ["application/json"] {
                        assert_eq!(answer.json()["kind"], "Status");
                    }
                    answer.code
                };
                assert!((200..600).contains(&code));
            }
            let usable = tokio::time::timeout(Duration::from_secs(60), check_usable(&server)).await;
            usable.expect("the server answers");
        });
    }

    #[test]
    fn selectors_and_tokens_of_any_kind_are_survived(texts in prop::collection::vec("\\PC{0,30}", 1..20)) {
        block_on(async {
            let server = furnished().await;
            for text in texts {
                for parameter in ["labelSelector", "fieldSelector", "continue"] {
                    let path = format!("/api/v1/configmaps?{parameter}={}", hostile::encoded(&text));
                    let answer = Raw::get(&path).send(&server).await;
                    assert!(matches!(answer.code, 200 | 400), "{}", answer.body);
                }
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn workloads_of_any_size_reach_a_stable_state(workloads in prop::collection::vec(hostile::workload(), 1..4)) {
        block_on(async {
            let clock = ManualClock::default();
            let server = builder().clock(clock.clone()).workloads(Workloads::default().nodes(2)).build();
            for (path, workload) in &workloads {
                let answer = Raw::new("POST", path).json(workload).send(&server).await;
                assert!(matches!(answer.code, 201 | 400 | 422), "{}", answer.body);
            }
            // Two seconds, and whatever is due in a day.
            for seconds in [1, 1, 24 * 60 * 60] {
                clock.advance(Duration::from_secs(seconds));
                Raw::get("/api/v1/pods").send(&server).await.ok();
            }
        });
    }
}

/// Nested objects.
fn nested(depth: usize) -> Value {
    (0..depth).fold(json!("x"), |inner, _| json!({"a": inner}))
}

#[tokio::test]
async fn an_object_that_is_taken_can_be_read_and_deleted_however_deep_it_is() {
    let server = furnished().await;
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    let mut taken = 0;
    for depth in 80..130 {
        let name = format!("deep-{depth}");
        let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"free": nested(depth)}});
        let media = ["application/json", "application/apply-patch+yaml"][depth % 2];
        let raw = match media {
            "application/json" => Raw::new("POST", path),
            _ => Raw::new("PATCH", &format!("{path}/{name}?fieldManager=me")),
        };
        let answer = raw
            .header("content-type", media)
            .json(&widget)
            .send(&server)
            .await;
        assert!(matches!(answer.code, 201 | 400), "{}", answer.body);
        taken += usize::from(answer.code == 201);
    }
    assert!(taken > 10, "{taken}");
    check_usable(&server).await;
    let left = Raw::get(path).send(&server).await.ok();
    assert_eq!(left["items"], json!([]));
}

#[tokio::test]
async fn a_patch_that_doubles_an_object_again_and_again_is_refused() {
    let server = furnished().await;
    let path = "/apis/example.com/v1/namespaces/default/widgets/a";
    let fill = json!({"spec": {"free": {"a": ["0123456789"], "o": {}}}});
    let merge = Raw::new("PATCH", path).header("content-type", "application/merge-patch+json");
    merge.json(&fill).send(&server).await.ok();
    let patch = async |operation: Value, count: usize| {
        let raw = Raw::new("PATCH", path).header("content-type", "application/json-patch+json");
        raw.json(&json!(vec![operation; count])).send(&server).await
    };
    let wide = json!({"op": "copy", "from": "/spec/free/a", "path": "/spec/free/a/-"});
    let deep = json!({"op": "copy", "from": "/spec/free/o", "path": "/spec/free/o/o"});
    for operation in [wide, deep] {
        assert_eq!(patch(operation.clone(), 2).await.code, 200);
        let answer = patch(operation, 110).await;
        assert_eq!(
            (answer.code, answer.json()["reason"].as_str()),
            (422, Some("Invalid")),
            "{}",
            answer.body
        );
    }
    check_usable(&server).await;
}

#[tokio::test]
async fn times_without_end_are_survived() {
    let server = furnished().await;
    let path = "/api/v1/namespaces/default/pods/b";
    let delete = Raw::new("DELETE", path).json(&json!({"gracePeriodSeconds": i64::MAX}));
    let deleted = delete.send(&server).await.ok();
    assert_eq!(deleted["metadata"]["deletionTimestamp"], "9999-12-30T22:00:00Z");
    let begin = format!(
        "{}?watch=1&timeoutSeconds={}&allowWatchBookmarks=true",
        COLLECTIONS[0],
        i64::MAX
    );
    Watch::open(&server, &begin).await.next().await.unwrap();
    check_usable(&server).await;
}

#[tokio::test]
async fn quantities_of_any_size_are_answered_at_once() {
    let server = furnished().await;
    for (given, stored) in [
        ("1e-2000000000", "1e-3"),
        ("1.5e-2147483648", "150e2147483646"),
        ("1000m", "1"),
    ] {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": given}}});
        let pod = json!({"metadata": {"generateName": "p-"}, "spec": {"containers": [container]}});
        let made = Raw::new("POST", COLLECTIONS[2]).json(&pod).send(&server).await;
        assert_eq!(
            made.ok()["spec"]["containers"][0]["resources"]["requests"]["cpu"],
            stored
        );
    }
}

#[tokio::test]
async fn of_many_unknown_fields_some_are_named() {
    let server = furnished().await;
    let mut map = json!({"metadata": {"generateName": "m-"}});
    for number in 0..5000 {
        map[format!("unknown-{number:04}-{}", "x".repeat(100))] = json!(1);
    }
    let path = format!("{}?fieldValidation=Warn", COLLECTIONS[0]);
    let answer = Raw::new("POST", &path).json(&map).send(&server).await;
    answer.ok();
    let warnings = answer.headers("warning");
    let total: usize = warnings.iter().map(String::len).sum();
    assert!(
        (1..100).contains(&warnings.len()) && total < 8 * 1024,
        "{} {total}",
        warnings.len()
    );
    let path = format!("{}?fieldValidation=Strict", COLLECTIONS[0]);
    let refused = Raw::new("POST", &path).json(&map).send(&server).await;
    assert_eq!(refused.code, 400);
    assert_eq!(refused.body.matches("unknown field").count(), 100);
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

#[tokio::test]
async fn expressions_of_any_depth_are_survived() {
    let server = furnished().await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    let patch = async |pointer: &str, value: Value| {
        let raw = Raw::new("PATCH", path).header("content-type", "application/json-patch+json");
        let operations = json!([{"op": "add", "path": format!("/spec/versions/0{pointer}"), "value": value}]);
        raw.json(&operations).send(&server).await
    };
    let around = |open: &str, inner: &str, close: &str| {
        format!("{}{inner}{}", open.repeat(20_000), close.repeat(20_000))
    };
    let rules = [
        around("(", "true", ")"),
        around("!", "true", ""),
        around("[", "", "]"),
        around("-", "1", ""),
        around("", "1", "+1"),
        around("", "self", ".a"),
        around("has(", "self.a", ")"),
        around("true ? ", "true", " : true"),
        "lists . range(99999999999).size() > 0".to_owned(),
    ];
    for rule in rules {
        let rules = json!([{"rule": rule}]);
        let answer = patch(
            "/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations",
            rules,
        )
        .await;
        assert!(matches!(answer.code, 200 | 422), "{}", answer.body);
        let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"generateName": "w-"}, "spec": {}});
        let made = Raw::new("POST", COLLECTIONS[1]).json(&widget).send(&server).await;
        assert!(matches!(made.code, 201 | 422), "{}", made.body);
    }
    patch(
        "/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations",
        json!([]),
    )
    .await;
    for text in [around("(", "a", ")"), around("a{1,9}", "", "")] {
        patch(
            "/schema/openAPIV3Schema/properties/spec/properties/name/pattern",
            json!(text),
        )
        .await;
    }
    for text in [
        around(".a", "", ""),
        around("[?(@.a", "", ")]"),
        around(".a[*]", "", ""),
    ] {
        let column = json!([{"name": "A", "type": "string", "jsonPath": text}]);
        patch("/additionalPrinterColumns", column).await;
        patch(
            "/subresources/scale/specReplicasPath",
            json!(format!(".spec{text}")),
        )
        .await;
        let scale = json!({"spec": {"replicas": 2}});
        let raw = Raw::new("PATCH", &format!("{}/a/scale", COLLECTIONS[1]))
            .header("content-type", "application/merge-patch+json");
        assert!(raw.json(&scale).send(&server).await.code < 600);
    }
    for (parameter, text) in [
        ("labelSelector", around("(", "a", ")")),
        ("labelSelector", around("a in (b),", "", "")),
        ("fieldSelector", around("\\", "a=b", "")),
    ] {
        let path = format!(
            "{}?{parameter}={}",
            COLLECTIONS[0],
            hostile::encoded(&text[..text.len().min(20_000)])
        );
        assert!(matches!(Raw::get(&path).send(&server).await.code, 200 | 400));
    }
    let yaml = format!(
        "a: &a [x]\n{}",
        (0..40)
            .map(|n| format!("b{n}: &b{n} [*a, *a]\n"))
            .collect::<String>()
    );
    let raw = Raw::new("POST", COLLECTIONS[0]).header("content-type", "application/yaml");
    assert!(raw.body(&yaml).send(&server).await.code < 500);
    check_usable(&server).await;
}

#[tokio::test]
async fn rules_that_cannot_be_evaluated_are_refused_or_fail_the_object() {
    let server = builder().build();
    let rules = [
        "Object{spec: Object.spec{a: 1}} == self",
        "Widget{a: 1}.a == 1",
        "authorizer.group('').resource('pods').check('get').allowed()",
        "cel.bind(x, self.a, x == 1)",
        "[3, 1].sortBy(e, e)[0] == 1",
        "self.all(k, v, v == 1)",
        "google.protobuf.Timestamp{seconds: 1} == timestamp('1970-01-01T00:00:01Z')",
        "[1].transformList(i, v, i)[0] == 0",
    ];
    for (index, rule) in rules.iter().enumerate() {
        let (group, path) = (
            format!("g{index}.example.com"),
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        );
        let schema = json!({
            "type": "object",
            "properties": {"spec": {
                "type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": rule}],
            }},
        });
        let definition = json!({
            "metadata": {"name": format!("widgets.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        });
        let defined = Raw::new("POST", path).json(&definition).send(&server).await;
        assert!(matches!(defined.code, 201 | 422), "{rule}: {}", defined.body);
        if defined.code == 422 {
            continue;
        }
        let object = json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "w"}, "spec": {"a": 1}});
        let widgets = format!("/apis/{group}/v1/namespaces/default/widgets");
        let created = Raw::new("POST", &widgets).json(&object).send(&server).await;
        assert_eq!(created.code, 422, "{rule}: {}", created.body);
    }
}

#[tokio::test]
async fn mutating_admission_policies_are_refused() {
    let server = builder().build();
    for plural in ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
        let policy = json!({"metadata": {"name": "p"}, "spec": {}});
        let answer = Raw::new("POST", &path).json(&policy).send(&server).await;
        assert_eq!(answer.code, 501, "{}", answer.body);
    }
}
