// SPDX-License-Identifier: Apache-2.0
//! The same conversations as were held with a real kube-apiserver, with the same answers.
//!
//! `conversations/record.py` writes the answers down. Before they are compared, what must differ between two servers
//! (uids, times, revisions, generated names, tokens) is replaced by its place.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use harness::{Raw, server_without_controllers};
use serde_json::{Value, json};

#[derive(Debug, Default)]
struct Step {
    title: String,
    user: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

fn steps(text: &str) -> Vec<Step> {
    let blocks = text
        .split("\n== ")
        .map(|block| block.strip_prefix("== ").unwrap_or(block));
    blocks
        .filter(|block| !block.trim_start().starts_with('#') && !block.trim().is_empty())
        .map(step)
        .collect()
}

fn step(block: &str) -> Step {
    let mut lines = block.lines().peekable();
    let mut step = Step {
        title: lines.next().unwrap_or_default().trim().to_owned(),
        user: "admin".to_owned(),
        ..Step::default()
    };
    while let Some(line) = lines.next_if(|line| line.starts_with(['@', '#'])) {
        if let Some(user) = line.strip_prefix("@as ") {
            step.user = user.trim().to_owned();
        }
    }
    let (method, path) = lines
        .next()
        .unwrap_or_default()
        .split_once(' ')
        .expect("a request line has a method and a path");
    (step.method, step.path) = (method.to_owned(), path.to_owned());
    while let Some(line) = lines.next_if(|line| !line.trim().is_empty()) {
        let (name, value) = line.split_once(':').expect("a header has a name and a value");
        step.headers
            .push((name.trim().to_owned(), value.trim().to_owned()));
    }
    step.body = lines.collect::<Vec<_>>().join("\n").trim().to_owned();
    step
}

fn substitute(text: &str, answers: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (reference, after) = after.split_once("}}").expect("a reference is closed");
        let (title, pointer) = reference
            .split_once(':')
            .expect("a reference has a title and a pointer");
        let answer = answers
            .iter()
            .rev()
            .find(|(known, _)| known == title)
            .unwrap_or_else(|| panic!("no step {title:?}"));
        let body: Value = serde_json::from_str(&answer.1).expect("the answer that is referred to is JSON");
        let value = body
            .pointer(pointer)
            .unwrap_or_else(|| panic!("no {pointer} in {body}"));
        out.push_str(before);
        out.push_str(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        rest = after;
    }
    out + rest
}

/// Replaces what differs between two servers.
fn normalize(value: &mut Value, key: &str) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(key, value)| normalize(value, key)),
        Value::Array(items) => {
            items.iter_mut().for_each(|item| normalize(item, key));
            if key == "managedFields" {
                // Their order depends on the second in which each manager wrote.
                items.sort_by_key(|entry| {
                    ["operation", "manager", "apiVersion", "subresource"]
                        .map(|field| entry[field].to_string())
                });
            }
        }
        Value::String(text) => *text = normalize_text(text, key),
        _ => {}
    }
}

fn normalize_text(text: &str, key: &str) -> String {
    match key {
        _ if text.len() == 36 && text.matches('-').count() == 4 => return "<uid>".to_owned(),
        "clusterIP" | "clusterIPs" if text.starts_with("10.") => return "<address>".to_owned(),
        "resourceVersion" if !text.is_empty() && text != "0" => return "<revision>".to_owned(),
        "continue" if !text.is_empty() => return "<continue>".to_owned(),
        "storageVersionHash" => return text.to_owned(),
        "token" if text.len() > 100 => return "<token>".to_owned(),
        _ => {}
    }
    if text.len() == 20 && text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok() {
        return "<time>".to_owned();
    }
    if key == "message" {
        return words(text);
    }
    text.to_owned()
}

/// Masks uids, times and revisions in a text.
fn words(text: &str) -> String {
    let mask = |word: &str| {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let uid = bare.len() == 36 && bare.matches('-').count() == 4;
        let time = bare.len() == 20 && bare.parse::<jiff::Timestamp>().is_ok();
        if uid {
            word.replace(bare, "<uid>")
        } else if time {
            word.replace(bare, "<time>")
        } else {
            word.to_owned()
        }
    };
    // An object that a patch made is shown with its fields in the order of Go structs.
    if let (Some(start), Some(end)) = (
        text.find("patch: Invalid value: \"{")
            .or_else(|| text.find("Invalid value: \"{")),
        text.rfind("}\": "),
    ) {
        return format!("{}<object>{}", &text[..start], &text[end..]);
    }
    let text = text.split(' ').map(mask).collect::<Vec<_>>().join(" ");
    match text.find("current: ") {
        Some(at) if text[at + 9..].bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{}current: <revision>", &text[..at])
        }
        _ => text,
    }
}

fn comparable(body: &str) -> Value {
    let lines: Option<Vec<Value>> = body
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).ok())
        .collect();
    let mut value = match serde_json::from_str(body) {
        Ok(value) => value,
        Err(_) => lines
            .filter(|lines| !lines.is_empty())
            .map_or_else(|| json!(body), Value::Array),
    };
    normalize(&mut value, "");
    generated(&mut value);
    if let Some(Value::Array(causes)) = value.pointer_mut("/details/causes")
        && causes
            .iter()
            .any(|cause| cause["reason"] == "FieldManagerConflict")
    {
        // The real server names conflicts in the random order of a Go map.
        causes.sort_by_key(ToString::to_string);
    }
    value
}

/// Generated names keep their prefix.
fn generated(value: &mut Value) {
    if let Some(prefix) = value
        .pointer("/metadata/generateName")
        .and_then(Value::as_str)
        .map(str::to_owned)
        && let Some(name) = value.pointer_mut("/metadata/name")
        && name
            .as_str()
            .is_some_and(|name| name.starts_with(&prefix) && name.len() == prefix.len() + 5)
    {
        *name = json!(format!("{prefix}<suffix>"));
    }
}

async fn hold(name: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conversations");
    let read = |extension: &str| {
        std::fs::read_to_string(format!("{folder}/{name}.{extension}")).expect("the conversation is there")
    };
    let expected: Vec<Value> = read("answers")
        .lines()
        .map(|line| serde_json::from_str(line).expect("answers are JSON"))
        .collect();
    let steps = steps(&read("http"));
    assert_eq!(
        steps.len(),
        expected.len(),
        "the conversation has changed; record it again"
    );
    let server = server_without_controllers();
    let mut answers: Vec<(String, String)> = Vec::new();
    let mut wrong = Vec::new();
    for (step, expected) in steps.iter().zip(&expected) {
        let mut raw =
            Raw::new(&step.method, &substitute(&step.path, &answers)).token(&format!("{}-token", step.user));
        for (name, value) in &step.headers {
            raw = raw.header(name, value);
        }
        let answer = raw.body(&substitute(&step.body, &answers)).send(&server).await;
        let headers = ["content-type", "retry-after", "warning"].map(|name| (name, answer.headers(name)));
        let headers: Vec<Value> = headers
            .into_iter()
            .flat_map(|(name, values)| values.into_iter().map(move |value| json!([name, value])))
            .collect();
        let actual = json!({"code": answer.code, "headers": headers, "body": comparable(&answer.body)});
        let mut expected_headers = expected["headers"].as_array().cloned().unwrap_or_default();
        expected_headers.sort_by_key(ToString::to_string);
        let mut headers = headers;
        headers.sort_by_key(ToString::to_string);
        let wanted = json!({"code": expected["code"], "headers": expected_headers, "body": comparable(expected["body"].as_str().unwrap_or_default())});
        let actual = json!({"code": actual["code"], "headers": headers, "body": actual["body"]});
        if actual != wanted {
            wrong.push(difference(&step.title, &wanted, &actual));
        }
        answers.push((step.title.clone(), answer.body));
    }
    assert!(
        wrong.is_empty(),
        "{} of {} answers differ\n\n{}",
        wrong.len(),
        steps.len(),
        wrong.join("\n\n")
    );
}

fn difference(title: &str, wanted: &Value, actual: &Value) -> String {
    let patch = json_patch::diff(actual, wanted);
    let lines: Vec<String> = patch
        .0
        .iter()
        .map(|operation| {
            let operation = serde_json::to_value(operation).expect("a patch is JSON");
            let ours = actual.pointer(operation["path"].as_str().unwrap_or_default());
            let ours = ours.map_or_else(String::new, |ours| format!("   ours: {ours}"));
            format!("   real: {operation}\n{ours}")
        })
        .collect();
    format!("== {title}\n{}", lines.join("\n"))
}

macro_rules! conversations {
    ($($name:ident)*) => {
        $(
            // Time that is waited for passes at once.
            #[tokio::test(start_paused = true)]
            async fn $name() {
                hold(stringify!($name)).await;
            }
        )*
    };
}

conversations! {
    apply builtins custom_objects custom_watches definitions deletion lists objects ownership patches reviews routes services subresources watches
}

/// The published table: what each conversation shows, and what none does.
fn fidelity() -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conversations");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| {
            entry
                .unwrap()
                .file_name()
                .to_str()?
                .strip_suffix(".http")
                .map(str::to_owned)
        })
        .collect();
    names.sort();
    let mut out = String::from(
        "# How near the embedded API server is to the real one\n\n\
         Written by `STEERSMAN_BLESS=1 cargo test -p steersman-apiserver --test conversations`; do not edit.\n\n\
         Each conformant row is a request that was sent to kube-apiserver v1.37.1 and is sent to the embedded server by the\n\
         tests; code, headers and body must be the same after uids, times, revisions, addresses and generated names are\n\
         masked. The requests are in `crates/steersman-apiserver/tests/conversations`.\n\n\
         | behaviour | request | real answer | state |\n|---|---|---|---|\n",
    );
    for name in names {
        let read = |extension: &str| std::fs::read_to_string(format!("{folder}/{name}.{extension}")).unwrap();
        let answers = read("answers");
        for (step, answer) in steps(&read("http")).iter().zip(answers.lines()) {
            let answer: Value = serde_json::from_str(answer).unwrap();
            let path = step.path.split('?').next().unwrap_or_default();
            out += &format!(
                "| {name}: {} | `{} {path}` | {} | conformant |\n",
                step.title, step.method, answer["code"]
            );
        }
    }
    out += "\nWhat no conversation shows, or shows otherwise:\n\n| behaviour | state | reason |\n|---|---|---|\n";
    let deviations = std::fs::read_to_string(format!("{folder}/deviations.txt")).unwrap();
    for line in deviations.lines().filter(|line| !line.starts_with('#')) {
        out += &format!("| {} |\n", line.replace('|', "\\|").replace('\t', " | "));
    }
    out
}

#[test]
fn the_fidelity_table_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fidelity.md");
    let table = fidelity();
    if std::env::var_os("STEERSMAN_BLESS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap();
        std::fs::write(path, &table).unwrap();
    }
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        published == table,
        "docs/fidelity.md is out of date; run the test with STEERSMAN_BLESS=1"
    );
}
