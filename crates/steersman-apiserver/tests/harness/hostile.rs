// SPDX-License-Identifier: Apache-2.0
//! Requests that look right and are not meant well: what proptest makes of the words, numbers and forms that the server
//! knows.

use base64::Engine as _;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Raw;

const WORDS: [&str; 52] = [
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
    "b",
    "default",
    "generateName",
    "resourceVersion",
    "$patch",
    "replace",
    "delete",
    "merge",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "versions",
    "schema",
    "openAPIV3Schema",
    "creationTimestamp",
    "op",
    "path",
    "from",
    "value",
    "gracePeriodSeconds",
    "propagationPolicy",
    "preconditions",
    "orphanDependents",
];

/// Pointers into the objects that the server is furnished with.
const POINTERS: [&str; 20] = [
    "",
    "/",
    "/data",
    "/data/name",
    "/metadata",
    "/metadata/name",
    "/metadata/labels",
    "/metadata/labels/a",
    "/metadata/annotations",
    "/metadata/finalizers/-",
    "/metadata/managedFields",
    "/metadata/managedFields/0/fieldsV1",
    "/metadata/generation",
    "/spec",
    "/spec/free",
    "/spec/free/a",
    "/spec/list/0",
    "/spec/list/-",
    "/spec/containers/0",
    "/status",
];

fn word() -> BoxedStrategy<String> {
    prop_oneof![8 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned), 1 => "[ -~]{0,8}", 1 => "\\PC{0,6}"].boxed()
}

fn number() -> BoxedStrategy<Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            json!(0),
            json!(1),
            json!(-1),
            json!(i32::MAX),
            json!(i32::MIN),
            json!(i64::from(i32::MAX) + 1),
            json!(i64::MAX),
            json!(i64::MIN),
            json!(u64::MAX),
            json!(1e19),
            json!(1e308),
        ]),
    ]
    .boxed()
}

/// Sizes, shares and times.
fn measure() -> BoxedStrategy<String> {
    let digits = "[0-9]{0,25}(\\.[0-9]{0,12})?";
    let suffix = prop_oneof![
        prop::sample::select(vec!["", "n", "m", "k", "E", "Ki", "Ei", "%", "s"]).prop_map(str::to_owned),
        "[eE][-+]?[0-9]{1,10}",
        Just("e-2147483648".to_owned()),
        Just("e9223372036854775807".to_owned()),
    ];
    ("[-+]?", digits, suffix)
        .prop_map(|(sign, digits, suffix)| format!("{sign}{digits}{suffix}"))
        .boxed()
}

fn leaf() -> BoxedStrategy<Value> {
    prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        2 => number(),
        1 => measure().prop_map(Value::from),
        3 => word().prop_map(Value::from),
    ]
    .boxed()
}

/// Any value, sometimes a very deep one.
pub(crate) fn value() -> BoxedStrategy<Value> {
    let shallow = leaf().prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    });
    let deep = (1..135_usize, any::<bool>(), leaf()).prop_map(|(depth, lists, leaf)| {
        (0..depth).fold(leaf, |inner, _| {
            if lists {
                json!([inner])
            } else {
                json!({"a": inner})
            }
        })
    });
    prop_oneof![6 => shallow, 1 => deep].boxed()
}

/// Operations of a JSON patch, most of them well formed.
fn operations() -> BoxedStrategy<Value> {
    let pointer = prop_oneof![
        5 => prop::sample::select(&POINTERS[..]).prop_map(str::to_owned),
        1 => ("(/a){1,110}", Just(())).prop_map(|(path, ())| format!("/spec/free{path}")),
    ];
    let op = prop::sample::select(vec![
        "add", "remove", "replace", "test", "copy", "copy", "move", "other",
    ]);
    let operation = (op, pointer.clone(), pointer, value())
        .prop_map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}));
    // The same again and again is how a copy grows.
    let repeated = (operation.clone(), 1..60_usize).prop_map(|(operation, count)| vec![operation; count]);
    prop_oneof![
        4 => prop::collection::vec(operation, 1..6),
        2 => repeated,
    ]
    .prop_map(Value::from)
    .boxed()
}

/// An object that gets past the first checks.
fn object() -> BoxedStrategy<Value> {
    let kind = prop::sample::select(vec![
        ("v1", "ConfigMap"),
        ("example.com/v1", "Widget"),
        ("v1", "Pod"),
        ("apps/v1", "Deployment"),
        ("autoscaling/v1", "Scale"),
    ]);
    (value(), value(), value(), kind)
        .prop_map(|(spec, data, metadata, (version, kind))| {
            let mut metadata = if metadata.is_object() { metadata } else { json!({}) };
            metadata["name"] = json!("a");
            json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "data": data})
        })
        .boxed()
}

/// A Pod whose sizes and times are whatever they are.
fn pod() -> BoxedStrategy<Value> {
    (measure(), measure(), number()).prop_map(|(cpu, memory, grace)| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"},
            "spec": {
                "nodeName": "node-1", "terminationGracePeriodSeconds": grace,
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": cpu, "memory": memory}}}],
            },
        })
    }).boxed()
}

fn delete_options() -> BoxedStrategy<Value> {
    let policy = prop::sample::select(vec!["Orphan", "Foreground", "Background", "other"]);
    (number(), policy, word(), 0..64_u8)
        .prop_map(|(grace, policy, uid, parts)| {
            let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
            let fields = [
                ("gracePeriodSeconds", grace),
                ("propagationPolicy", json!(policy)),
                ("orphanDependents", json!(true)),
                ("preconditions", json!({"uid": uid})),
                ("dryRun", json!(["All"])),
            ];
            for (bit, (name, value)) in fields.into_iter().enumerate() {
                if parts & (1 << bit) == 0 || bit == 0 {
                    options[name] = value;
                }
            }
            options
        })
        .boxed()
}

/// A message of protobuf: fields of numbers that are used, in the forms that there are.
fn message() -> BoxedStrategy<Vec<u8>> {
    let scalar = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..8),
        word().prop_map(String::into_bytes),
        measure().prop_map(String::into_bytes),
        value().prop_map(|value| value.to_string().into_bytes()),
    ];
    let field = |content: Vec<u8>, number: u8| {
        let mut out = vec![number << 3 | 2];
        let mut length = content.len();
        while length >= 0x80 {
            out.push(u8::try_from(length & 0x7f).unwrap_or_default() | 0x80);
            length >>= 7;
        }
        out.push(u8::try_from(length).unwrap_or_default());
        out.extend(content);
        out
    };
    scalar
        .prop_recursive(4, 24, 4, move |inner| {
            let bytes = (inner, 1..8_u8).prop_map(move |(content, number)| field(content, number));
            let varint =
                (1..8_u8, prop::collection::vec(any::<u8>(), 1..10)).prop_map(|(number, mut digits)| {
                    let last = digits.len() - 1;
                    digits[..last].iter_mut().for_each(|digit| *digit |= 0x80);
                    digits[last] &= 0x7f;
                    [vec![number << 3], digits].concat()
                });
            let part = prop_oneof![5 => bytes, 1 => varint];
            prop::collection::vec(part, 1..4).prop_map(|parts| parts.concat())
        })
        .boxed()
}

fn protobuf() -> BoxedStrategy<Vec<u8>> {
    let kind = prop::sample::select(vec![
        ("v1", "ConfigMap"),
        ("v1", "Pod"),
        ("v1", "DeleteOptions"),
        ("apps/v1", "Deployment"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ]);
    (kind, message())
        .prop_map(|((version, kind), message)| {
            let part = |number: u8, content: &[u8]| {
                let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
                let high = u8::try_from(length >> 7).unwrap_or(0x7f) & 0x7f;
                let low = u8::try_from(length & 0x7f).unwrap_or_default();
                [&[number << 3 | 2, low | 0x80, high], content].concat()
            };
            let meta = [part(1, version.as_bytes()), part(2, kind.as_bytes())].concat();
            [b"k8s\0".to_vec(), part(1, &meta), part(2, &message)].concat()
        })
        .boxed()
}

/// A media type, and a body that fits it more or less.
fn content() -> BoxedStrategy<(&'static str, Vec<u8>)> {
    let json = prop_oneof![
        4 => object(), 2 => pod(), 2 => delete_options(), 1 => operations(), 2 => value(),
    ]
    .prop_map(|value| value.to_string().into_bytes());
    let of_json = prop::sample::select(vec![
        "application/json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "application/yaml",
    ]);
    prop_oneof![
        6 => (of_json.clone(), json),
        3 => operations().prop_map(|value| ("application/json-patch+json", value.to_string().into_bytes())),
        2 => protobuf().prop_map(|bytes| ("application/vnd.kubernetes.protobuf", bytes)),
        1 => (of_json, "\\PC{0,40}".prop_map(String::into_bytes)),
    ]
    .boxed()
}

fn path() -> BoxedStrategy<String> {
    prop_oneof![
        9 => prop::sample::select(vec![
            "/api/v1/namespaces/default/configmaps",
            "/api/v1/namespaces/default/configmaps/a",
            "/apis/example.com/v1/namespaces/default/widgets",
            "/apis/example.com/v1/namespaces/default/widgets/a",
            "/apis/example.com/v1/namespaces/default/widgets/a/status",
            "/apis/example.com/v1/namespaces/default/widgets/a/scale",
            "/api/v1/namespaces/default/pods",
            "/api/v1/namespaces/default/pods/a",
            "/api/v1/namespaces/default/pods/b",
            "/api/v1/namespaces/default/pods/a/binding",
            "/api/v1/namespaces/default/pods/b/eviction",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com",
            "/apis/apps/v1/namespaces/default/deployments",
            "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            "/api/v1/namespaces",
        ]).prop_map(str::to_owned),
        1 => "/[a-z0-9/.%]{0,30}",
    ]
    .boxed()
}

/// A token for the rest of a list, as this server makes them but for what is in it.
fn token() -> BoxedStrategy<String> {
    let version = prop::sample::select(vec!["meta.k8s.io/v1", "meta.k8s.io/v2"]);
    (version, number(), word())
        .prop_map(|(version, revision, start)| {
            let token = json!({"v": version, "rv": revision, "start": start}).to_string();
            base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token)
        })
        .boxed()
}

fn query() -> BoxedStrategy<String> {
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
        "gracePeriodSeconds",
    ]);
    let value = prop_oneof![
        2 => "[a-z0-9=!,()<> ]{0,12}",
        5 => prop::sample::select(vec!["1", "0", "All", "me", "true", "Exact", "NotOlderThan", "Strict", "Warn"]).prop_map(str::to_owned),
        2 => number().prop_map(|number| number.to_string()),
        1 => "[A-Za-z0-9_-]{0,40}",
    ];
    let pair = prop_oneof![6 => (key, value), 1 => token().prop_map(|token| ("continue", token))];
    prop::collection::vec(pair, 0..4)
        .prop_map(|pairs| {
            let pairs = pairs
                .iter()
                .map(|(key, value)| format!("{key}={}", encoded(value)));
            pairs.collect::<Vec<_>>().join("&")
        })
        .boxed()
}

pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A request as it is sent, and whether it is a watch.
#[derive(Clone)]
pub(crate) struct Asked {
    method: &'static str,
    uri: String,
    media: &'static str,
    body: Vec<u8>,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        write!(f, "{} {} {} {body:?}", self.method, self.uri, self.media)
    }
}

impl Asked {
    pub(crate) fn raw(&self) -> Raw {
        Raw::new(self.method, &self.uri)
            .header("content-type", self.media)
            .bytes(&self.body)
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.method == "GET" && self.uri.contains("watch=")
    }
}

pub(crate) fn asked() -> BoxedStrategy<Asked> {
    let method = prop::sample::select(vec![
        "GET", "POST", "POST", "PUT", "PATCH", "PATCH", "PATCH", "DELETE",
    ]);
    (method, path(), query(), content())
        .prop_map(|(method, path, query, (media, body))| Asked {
            method,
            uri: format!("{path}?{query}"),
            media,
            body,
        })
        .boxed()
}

/// A workload whose numbers are whatever they are.
pub(crate) fn workload() -> BoxedStrategy<(&'static str, Value)> {
    let path = prop::sample::select(vec![
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/apps/v1/namespaces/default/replicasets",
        "/apis/apps/v1/namespaces/default/statefulsets",
        "/apis/apps/v1/namespaces/default/daemonsets",
        "/apis/batch/v1/namespaces/default/jobs",
    ]);
    let fields = prop::sample::select(vec![
        "minReadySeconds",
        "progressDeadlineSeconds",
        "revisionHistoryLimit",
        "backoffLimit",
        "completions",
        "ordinals",
    ]);
    let some = prop_oneof![3 => (0..4_i64).prop_map(Value::from), 1 => Just(json!(i32::MAX)), 1 => number()];
    let fields = prop::collection::vec((fields, some), 0..4);
    let outcome = prop::sample::select(vec!["run", "succeed", "fail", "crash", "pending"]);
    let share = prop_oneof![
        1 => measure().prop_map(Value::from),
        4 => prop::sample::select(vec![json!("25%"), json!("100%"), json!("9223372036854775807%"), json!(0), json!(i32::MAX)]),
    ];
    let rolling = (share.clone(), share);
    (path, fields, 0..4_u8, outcome, measure(), rolling).prop_map(
        |(path, fields, replicas, outcome, startup, (surge, missing))| {
            let annotations = json!({"workloads.steersman.dev/outcome": outcome, "workloads.steersman.dev/startup": startup});
            let is_job = path.ends_with("jobs");
            let restart = if is_job { "Never" } else { "Always" };
            let mut spec = json!({"template": {
                "metadata": {"labels": {"app": "web"}, "annotations": annotations},
                "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": "i"}]},
            }});
            if !is_job {
                spec["selector"] = json!({"matchLabels": {"app": "web"}});
                spec["replicas"] = json!(replicas);
            }
            if path.ends_with("deployments") {
                spec["strategy"] = json!({"rollingUpdate": {"maxSurge": surge, "maxUnavailable": missing}});
            }
            for (field, value) in fields {
                spec[field] = if field == "ordinals" { json!({"start": value}) } else { value };
            }
            (path, json!({"metadata": {"generateName": "w-"}, "spec": spec}))
        },
    ).boxed()
}
