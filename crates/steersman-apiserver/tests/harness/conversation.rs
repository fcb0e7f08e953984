// SPDX-License-Identifier: Apache-2.0
//! Conversations with API servers: their text form, and what makes two of them the same.
//!
//! A conversation is a list of steps that begin with `== title`. A step has directives (`@as USER`; `@token TOKEN`, to
//! send that token in the place of a user's; `@loose`, if revisions say nothing; `@ordered`, if errors have an order; for a real server only, `@wait SECONDS` and `@second` before the request), a request line, headers, an empty line and a body. `{{title:/pointer}}`
//! stands for a value in the answer to an earlier step.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) title: String,
    pub(crate) user: String,
    /// The bearer token that is sent in the place of the user's; empty for the user's.
    pub(crate) token: String,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    /// How long the real server needs before the request makes sense.
    pub(crate) wait: Duration,
    /// The real server is asked at the beginning of a second: what follows must carry one time.
    pub(crate) begins_second: bool,
    /// Errors are compared in their order, which is not random here.
    pub(crate) is_ordered: bool,
    /// What is answered was written by the server in its own time: its revision has no place among the others.
    pub(crate) is_loose: bool,
    pub(crate) body: String,
}

pub(crate) fn steps(text: &str) -> Vec<Step> {
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
        } else if let Some(token) = line.strip_prefix("@token ") {
            step.token = token.trim().to_owned();
        } else if line.trim() == "@loose" {
            step.is_loose = true;
        } else if line.trim() == "@ordered" {
            step.is_ordered = true;
        } else if line.trim() == "@second" {
            step.begins_second = true;
        } else if let Some(seconds) = line.strip_prefix("@wait ") {
            step.wait = Duration::from_secs_f64(seconds.trim().parse().expect("a number of seconds"));
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

pub(crate) fn substitute(text: &str, answers: &[(String, String)]) -> String {
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

/// The revisions of the objects that a conversation shows, and so what is left of a revision when its number is
/// taken away: its place among them.
///
/// Others write between the requests to a real server, and what a list or bookmark carries moves with them. Its place
/// is that of the newest object that is not newer, so it stays. Revisions from before the conversation have no place.
#[derive(Debug, Default)]
pub(crate) struct Ranks(Vec<u64>);

impl Ranks {
    /// Of the answers of a whole conversation, but for those to loose steps.
    pub(crate) fn of(answers: &[Value], steps: &[Step]) -> Self {
        let answers = answers.iter().zip(steps).filter(|(_, step)| !step.is_loose);
        let answers: Vec<&Value> = answers.map(|(answer, _)| answer).collect();
        let shown = |answer: &&Value| {
            let mut found = BTreeSet::new();
            revisions(&parsed(answer["body"].as_str().unwrap_or_default()), &mut found);
            found
        };
        let created = answers.iter().filter(|answer| answer["code"] == 201);
        let Some(first) = created.flat_map(shown).min() else {
            return Self::default();
        };
        let all: BTreeSet<u64> = answers.iter().flat_map(shown).filter(|of| *of >= first).collect();
        Self(all.into_iter().collect())
    }

    fn mask(&self, revision: &str) -> String {
        let revision = revision.parse::<u64>().unwrap_or_default();
        match self.0.partition_point(|known| *known <= revision) {
            0 => "<revision>".to_owned(),
            rank => format!("<revision {rank}>"),
        }
    }
}

/// The revisions of objects, not of lists and bookmarks.
fn revisions(value: &Value, found: &mut BTreeSet<u64>) {
    match value {
        Value::Object(fields) if fields.get("type") != Some(&json!("BOOKMARK")) => {
            let is_list = ["items", "rows"].iter().any(|key| fields.contains_key(*key));
            for (key, value) in fields {
                match value {
                    Value::String(revision) if key == "resourceVersion" => {
                        found.extend(revision.parse::<u64>())
                    }
                    _ if key == "metadata" && is_list => {}
                    _ => revisions(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| revisions(item, found)),
        _ => {}
    }
}

/// Replaces what differs between two servers.
fn normalize(value: &mut Value, key: &str, ranks: &Ranks) {
    match value {
        Value::Object(fields) => fields
            .iter_mut()
            .for_each(|(key, value)| normalize(value, key, ranks)),
        Value::Array(items) => {
            items.iter_mut().for_each(|item| normalize(item, key, ranks));
            if key == "managedFields" {
                // Their order depends on the second in which each manager wrote.
                items.sort_by_key(|entry| {
                    ["operation", "manager", "apiVersion", "subresource"]
                        .map(|field| entry[field].to_string())
                });
            }
        }
        Value::String(text) => *text = normalize_text(text, key, ranks),
        _ => {}
    }
}

fn normalize_text(text: &str, key: &str, ranks: &Ranks) -> String {
    match key {
        _ if text.len() == 36 && text.matches('-').count() == 4 => return "<uid>".to_owned(),
        "clusterIP" | "clusterIPs" if text.starts_with("10.") => return "<address>".to_owned(),
        "resourceVersion" if !text.is_empty() && text != "0" => return ranks.mask(text),
        "continue" if !text.is_empty() => return "<continue>".to_owned(),
        "cells" if text.contains('=') => return text.split('=').map(words).collect::<Vec<_>>().join("="),
        "cells" if is_age(text) => return "<age>".to_owned(),
        "cells" if text.starts_with("10.") => return "<address>".to_owned(),
        "storageVersionHash" => return text.to_owned(),
        _ if text.starts_with("JTI=") => return "JTI=<uid>".to_owned(),
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

/// The part before a uid, and the uid.
fn uid_in(word: &str) -> Option<(&str, &str)> {
    let start = word.find("controller-uid\":\"")? + "controller-uid\":\"".len();
    let uid = word.get(start..start + 36)?;
    (uid.matches('-').count() == 4).then_some((&word[..start], uid))
}

fn is_age(text: &str) -> bool {
    let digits = text.trim_end_matches(['s', 'm', 'h']);
    digits.len() < text.len() && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Masks uids, times and revisions in a text.
fn words(text: &str) -> String {
    let mask = |word: &str| {
        if let Some(start) = word.find("uid=\"").map(|at| at + 5)
            && let Some(uid) = word.get(start..start + 36)
        {
            return word.replace(uid, "<uid>");
        }
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        if let Some((before, uid)) = uid_in(word) {
            return format!("{before}<uid>{}", words(&word[before.len() + uid.len()..]));
        }
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
    // Differences between Go structs, and Go structs themselves, are not for comparison.
    let text = text.split("\n@@").next().unwrap_or_default();
    let template = [
        "spec.template: Invalid value: {",
        "spec.template.spec: Invalid value: {",
    ];
    let template = template.iter().find_map(|start| text.split_once(start));
    if let (Some((before, rest)), true) = (template, text.contains("field is immutable")) {
        let after = rest.rsplit_once("}: ").map_or("", |(_, after)| after);
        return format!("{before}<object>{after}");
    }
    if text.starts_with("Invalid value: {\"labels\":") && text.ends_with("field is immutable")
        || text.starts_with("Invalid value: {\"metadata\":") && text.ends_with("field is immutable")
        || text.starts_with("Invalid value: {\"Volumes\":") && text.ends_with("field is immutable")
        || text.starts_with("Invalid value: {\"containers\":") && text.ends_with("field is immutable")
    {
        return "<object>: field is immutable".to_owned();
    }
    // Versions of a definition, too.
    if let Some((before, rest)) = text
        .split_once("Invalid value: [{\"Name\":")
        .or_else(|| text.split_once("Invalid value: [{\"name\":"))
        && let Some((_, after)) = rest.split_once("}]: must ")
    {
        return words(&format!("{before}<versions>: must {after}"));
    }
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

/// A body as JSON: one value, a list of lines, or the text.
fn parsed(body: &str) -> Value {
    let lines: Option<Vec<Value>> = body
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).ok())
        .collect();
    match serde_json::from_str(body) {
        Ok(value) => value,
        Err(_) => lines
            .filter(|lines| !lines.is_empty())
            .map_or_else(|| json!(body), Value::Array),
    }
}

/// A body without what differs between two servers.
pub(crate) fn comparable(body: &str, ranks: &Ranks, is_ordered: bool) -> Value {
    let mut value = parsed(body);
    normalize(&mut value, "", ranks);
    generated(&mut value);
    if !is_ordered {
        unordered(&mut value);
    }
    value
}

/// Sorts what the real server takes from Go's maps, whose order is random, and leaves out what other conversations
/// left behind.
fn unordered(value: &mut Value) {
    if let Some(Value::Array(causes)) = value.pointer_mut("/details/causes")
        && causes.len() > 1
    {
        causes.sort_by_key(ToString::to_string);
        let message = value["message"].as_str().unwrap_or_default().to_owned();
        let mut parts: Vec<&str> = message.split([',', '[', ']']).map(str::trim).collect();
        parts.sort_unstable();
        value["message"] = json!(parts.join(","));
    }
    if let Some(Value::String(message)) = value.get_mut("message")
        && message.contains("errors:\n")
    {
        let mut lines: Vec<&str> = message.lines().collect();
        lines.sort_unstable();
        *message = lines.join("\n");
    }
    if let Some(Value::String(reason)) = value.pointer_mut("/status/reason")
        && reason.starts_with("RBAC: allowed by ")
    {
        "RBAC: allowed".clone_into(reason);
    }
    let is_ours = |group: &Value| {
        let name = group.get("name").or_else(|| group.pointer("/metadata/name"));
        name.and_then(Value::as_str)
            .is_some_and(|name| name.ends_with(".example.com"))
    };
    for (kind, list) in [("APIGroupList", "groups"), ("APIGroupDiscoveryList", "items")] {
        if value["kind"] == kind
            && let Some(Value::Array(groups)) = value.get_mut(list)
        {
            groups.retain(|group| !is_ours(group));
        }
    }
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
