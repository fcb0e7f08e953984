// SPDX-License-Identifier: Apache-2.0
//! Selectors, tokens, patches and configurations that make no sense, made from a seed: both servers refuse them with
//! the same code and the same `Status`, and take the same ones for good.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use harness::{
    Answer, Raw,
    conversation::{Ranks, comparable},
    server_without_controllers,
};
use serde_json::{Value, json};
use steersman_testing::{Fixture, ServerKind};

/// A small generator of numbers; the same seed gives the same.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    fn joined(&mut self, pieces: &[&str], most: usize) -> String {
        let count = self.below(most) + 1;
        (0..count).map(|_| *self.pick(pieces)).collect()
    }
}

const LABELS: [&str; 22] = [
    "a",
    "b/c",
    "=",
    "==",
    "!=",
    "!",
    " in ",
    " notin ",
    "(",
    ")",
    ",",
    ">",
    "<",
    "1",
    " ",
    "x.y",
    "-",
    "é",
    "A",
    "_",
    "/",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];
const FIELDS: [&str; 10] = [
    "metadata.name",
    "metadata.namespace",
    "spec.x",
    "=",
    "==",
    "!=",
    ",",
    "a",
    "metadata.labels",
    "x",
];

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A request: method, path below the namespace, media type, body.
type Asked = (&'static str, String, &'static str, String);

fn asked(chance: &mut Chance) -> Vec<Asked> {
    let mut all: Vec<Asked> = Vec::new();
    let mut get = |query: String| all.push(("GET", format!("configmaps?{query}"), "", String::new()));
    for _ in 0..120 {
        get(format!("labelSelector={}", encoded(&chance.joined(&LABELS, 6))));
    }
    for _ in 0..60 {
        get(format!("fieldSelector={}", encoded(&chance.joined(&FIELDS, 5))));
    }
    for _ in 0..30 {
        get(format!("continue={}", token(chance)));
    }
    for _ in 0..40 {
        let operations = json!([operation(chance), operation(chance)]);
        let path = "configmaps/a?fieldManager=m&dryRun=All".to_owned();
        all.push((
            "PATCH",
            path,
            "application/json-patch+json",
            operations.to_string(),
        ));
    }
    for _ in 0..60 {
        let media = *chance.pick(&[
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ]);
        let path = "configmaps/a?fieldManager=m&dryRun=All".to_owned();
        all.push(("PATCH", path, media, configuration(chance).to_string()));
    }
    all
}

fn token(chance: &mut Chance) -> String {
    use base64::Engine as _;
    let token = match chance.below(6) {
        0 => json!({"v": "meta.k8s.io/v1", "rv": 1}).to_string(),
        1 => json!({"v": "meta.k8s.io/v1", "rv": -2, "start": "a"}).to_string(),
        2 => json!({"v": "meta.k8s.io/v2", "rv": 1, "start": "a"}).to_string(),
        3 => json!({"v": "meta.k8s.io/v1", "rv": 0, "start": "a"}).to_string(),
        4 => json!({"v": "meta.k8s.io/v1", "rv": 1, "start": "../x"}).to_string(),
        _ => chance.joined(&LABELS, 4),
    };
    if chance.below(5) == 0 {
        return encoded(&token);
    }
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token)
}

fn operation(chance: &mut Chance) -> Value {
    let op = *chance.pick(&["add", "remove", "replace", "test", "copy", "move", "nonsense"]);
    let path = *chance.pick(&[
        "/data/a",
        "/data/none",
        "/metadata/labels",
        "/data",
        "",
        "/data/a/b",
        "data",
    ]);
    let mut operation = json!({"op": op, "path": path});
    if chance.below(4) > 0 {
        operation["value"] = chance
            .pick(&[json!("x"), json!({"a": "b"}), json!(1), Value::Null])
            .clone();
    }
    if matches!(op, "copy" | "move") {
        operation["from"] = json!(chance.pick(&["/data/a", "/data/none"]));
    }
    operation
}

fn configuration(chance: &mut Chance) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    for _ in 0..chance.below(3) + 1 {
        let (field, value) = match chance.below(8) {
            0 => ("data", json!({"a": 1})),
            1 => ("data", json!({"a": null, "b": "c"})),
            2 => ("data", json!("text")),
            3 => ("metadata", json!({"labels": {"a b": "c"}})),
            4 => ("metadata", json!({"name": "other"})),
            5 => ("immutable", json!("yes")),
            6 => ("binaryData", json!({"x": "eA=="})),
            _ => ("metadata", json!({"resourceVersion": "1"})),
        };
        object[field] = value;
    }
    object
}

/// An answer without what differs between two servers, and without the Go values that the real one prints.
fn shown(answer: &Answer) -> Value {
    let mut body = comparable(&answer.body, &Ranks::default(), false);
    let message = body["message"].as_str().unwrap_or_default();
    if message.contains("patch: Invalid value") || message.contains("<object>") {
        body = json!("a patch that does not fit");
    }
    json!({"code": answer.code, "body": body})
}

// Guarantee 4 of the crate, and the answers of the real server.
#[steersman_testing::test]
async fn nonsense_is_refused_as_the_real_server_does(fixture: Fixture) {
    let server = server_without_controllers();
    let namespace = fixture.namespace();
    let send = |method: &str, path: &str, media: &str, body: &str| {
        Raw::new(method, path).header("content-type", media).body(body)
    };
    let map = json!({"metadata": {"name": "a"}, "data": {"a": "b"}}).to_string();
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let made = json!({"metadata": {"name": namespace}}).to_string();
    let admin = |raw: Raw| raw.token("admin-token");
    admin(send("POST", "/api/v1/namespaces", "application/json", &made))
        .send(&server)
        .await
        .ok();
    let create = send("POST", &maps, "application/json", &map);
    let client = fixture.client();
    create.send_by(&client).await.ok();
    admin(create).send(&server).await.ok();
    let mut wrong = Vec::new();
    for (method, path, media, body) in asked(&mut Chance(0x5eed)) {
        let raw = send(
            method,
            &format!("/api/v1/namespaces/{namespace}/{path}"),
            media,
            &body,
        );
        let ours = match fixture.server_kind() {
            // Over the wire as well, where this is the embedded server.
            ServerKind::Embedded => raw.send_by(&client).await,
            _ => {
                let real = raw.try_send_by(&client).await;
                let ours = admin(raw).send(&server).await;
                // The real server breaks the connection over what makes its handler panic.
                let Some(real) = real else { continue };
                if shown(&ours) != shown(&real) {
                    wrong.push(format!(
                        "{method} {path} {body}\n   real: {} {}\n   ours: {} {}",
                        real.code, real.body, ours.code, ours.body
                    ));
                }
                ours
            }
        };
        assert!((200..501).contains(&ours.code), "{method} {path}: {}", ours.body);
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}
