// SPDX-License-Identifier: Apache-2.0
//! The same conversations with the embedded server and with a real kube-apiserver, and the same answers.
//!
//! `conversations/NAME.http` holds requests, `NAME.answers` what the real server said to them. Each run sends them to
//! both servers and compares with the recording, so that it can neither be wrong nor grow old. With
//! `STEERSMAN_BLESS=1` the real half writes the answers down instead. Before they are compared, what must differ
//! between two servers (uids, times, generated names, tokens) is replaced by its place, and a revision by its rank among
//! those of the conversation: what is equal, older and newer on one server is so on the other.
//!
//! The real half has a server of its own for this binary: some conversations look at the whole cluster.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::path::PathBuf;

use harness::{
    Answer, Raw,
    conversation::{Ranks, comparable, steps, substitute},
    server_without_controllers,
    webhooks::Webhooks,
};
use serde_json::{Value, json};
use steersman_apiserver::ApiServer;
use steersman_testing::{Identity, RealServer, skip_without_tool};
use tokio::sync::{Mutex, OnceCell};

/// One of the two servers.
enum Server {
    Embedded(Box<ApiServer>),
    Real(&'static RealServer),
}

impl Server {
    /// The real server; nothing, and one line that says why, where there is none.
    async fn real() -> Option<Self> {
        // Never dropped: the watchdog ends the server with the process.
        static SERVER: OnceCell<Option<RealServer>> = OnceCell::const_new();
        let start = || async {
            if let Err(error) = steersman_assets::find() {
                skip_without_tool("conversations with the real server", &error.to_string());
                return None;
            }
            let users = ["alice", "bob"].map(|name| Identity::new(name, format!("{name}-token")));
            let builder = users
                .into_iter()
                .fold(RealServer::builder(), |builder, user| builder.user(user));
            Some(builder.start().await.expect("the real server starts"))
        };
        SERVER.get_or_init(start).await.as_ref().map(Server::Real)
    }

    async fn send(&self, user: &str, token: &str, raw: Raw) -> Answer {
        let known = format!("{user}-token");
        let sent = if token.is_empty() { &known } else { token };
        match self {
            Self::Embedded(server) => raw.token(sent).send(server).await,
            Self::Real(server) => {
                let identity = match (user, token) {
                    ("admin", "") => server.admin().clone(),
                    _ => Identity::new(user, sent),
                };
                let client = server.endpoint().client(&identity).unwrap();
                raw.send_by(&client).await
            }
        }
    }

    fn is_real(&self) -> bool {
        matches!(self, Self::Real(_))
    }
}

fn file(name: &str, extension: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conversations");
    PathBuf::from(format!("{folder}/{name}.{extension}"))
}

fn read(name: &str, extension: &str) -> String {
    std::fs::read_to_string(file(name, extension)).unwrap_or_default()
}

fn is_recording() -> bool {
    std::env::var_os("STEERSMAN_BLESS").is_some()
}

async fn hold(name: &str, server: &Server) {
    let answers = answers(name, server).await;
    if server.is_real() && is_recording() {
        let lines: String = answers.iter().map(|answer| format!("{answer}\n")).collect();
        std::fs::write(file(name, "answers"), lines).unwrap();
        return;
    }
    let expected: Vec<Value> = read(name, "answers")
        .lines()
        .map(|line| serde_json::from_str(line).expect("answers are JSON"))
        .collect();
    assert_eq!(
        answers.len(),
        expected.len(),
        "the conversation has changed; record it again"
    );
    let steps = steps(&read(name, "http"));
    let (ranks, expected_ranks) = (Ranks::of(&answers, &steps), Ranks::of(&expected, &steps));
    let none = Ranks::default();
    let compared = answers.iter().zip(&expected).zip(&steps);
    let wrong: Vec<String> = compared
        .filter_map(|((actual, expected), step)| {
            let (ranks, expected_ranks) = if step.is_loose {
                (&none, &none)
            } else {
                (&ranks, &expected_ranks)
            };
            let wanted = masked(expected, expected_ranks, step.is_ordered);
            let actual = masked(actual, ranks, step.is_ordered);
            (actual != wanted).then(|| difference(&step.title, &wanted, &actual))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} answers differ\n\n{}",
        wrong.len(),
        answers.len(),
        wrong.join("\n\n")
    );
}

/// Sends all requests of a conversation, one after the other.
async fn answers(name: &str, server: &Server) -> Vec<Value> {
    let mut bodies: Vec<(String, String)> = Vec::new();
    let mut answers = Vec::new();
    let mut calls_webhooks = false;
    for step in steps(&read(name, "http")) {
        if server.is_real() {
            tokio::time::sleep(step.wait).await;
            if step.begins_second {
                harness::next_second().await;
            }
        }
        let webhooks = step.body.contains("{{webhooks}}").then(Webhooks::get);
        let body = webhooks.map_or_else(|| step.body.clone(), |webhooks| webhooks.fill(&step.body));
        calls_webhooks |= webhooks.is_some();
        let mut raw = Raw::new(&step.method, &substitute(&step.path, &bodies));
        for (name, value) in &step.headers {
            raw = raw.header(name, value);
        }
        let raw = raw.body(&substitute(&body, &bodies));
        let token = substitute(&step.token, &bodies);
        let answer = server.send(&step.user, &token, raw).await;
        let mut headers: Vec<Value> = ["content-type", "retry-after", "warning"]
            .into_iter()
            .flat_map(|name| {
                answer
                    .headers(name)
                    .into_iter()
                    .map(move |value| json!([name, value]))
            })
            .collect();
        headers.sort_by_key(ToString::to_string);
        // The address of the machine is nobody's business.
        let mut body = harness::without_address(&answer.body);
        if calls_webhooks {
            body = Webhooks::get().mask(&body);
        }
        answers.push(json!({"title": step.title, "code": answer.code, "headers": headers, "body": body}));
        bodies.push((step.title, answer.body));
    }
    answers
}

/// An answer without what differs between two servers.
fn masked(answer: &Value, ranks: &Ranks, is_ordered: bool) -> Value {
    let mut headers = answer["headers"].as_array().cloned().unwrap_or_default();
    headers.sort_by_key(ToString::to_string);
    let body = comparable(answer["body"].as_str().unwrap_or_default(), ranks, is_ordered);
    json!({"code": answer["code"], "headers": headers, "body": body})
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
    ($($name:ident)*; with webhooks: $($slow:ident)*) => {
        $(
            mod $name {
                use super::*;

                // Time that is waited for passes at once.
                #[tokio::test(start_paused = true)]
                async fn on_embedded() {
                    hold(stringify!($name), &Server::Embedded(Box::new(server_without_controllers()))).await;
                }

                #[tokio::test]
                async fn on_real() {
                    // One at a time: some look at all that there is.
                    let _turn = TURN.lock().await;
                    if let Some(server) = Server::real().await {
                        hold(stringify!($name), &server).await;
                    }
                }
            }
        )*

        $(
            mod $slow {
                use super::*;

                // Calls of webhooks take time, so the clock is not paused.
                #[tokio::test]
                async fn on_embedded() {
                    hold(stringify!($slow), &Server::Embedded(Box::new(server_without_controllers()))).await;
                }

                #[tokio::test]
                async fn on_real() {
                    let _turn = TURN.lock().await;
                    if let Some(server) = Server::real().await {
                        hold(stringify!($slow), &server).await;
                    }
                }
            }
        )*

        const NAMES: &[&str] = &[$(stringify!($name)),* $(, stringify!($slow))*];
    };
}

/// Whose conversation with the real server it is now.
static TURN: Mutex<()> = Mutex::const_new(());

conversations! {
    apply builtins creation custom_objects custom_rules custom_watches default_classes definition_errors definitions deletion events impersonation last_applied limit_ranges limits lists networks objects
    ownership patches plugins pod_changes pod_security pods policies priorities quotas reviews routes scales server services settings subresources suspended_jobs tables tokens uids watches workloads;
    with webhooks: admission_selection admission_webhooks conversion_webhooks hostile_webhooks request_limits webhook_configurations
}

#[test]
fn every_conversation_is_held() {
    let folder = file("", "").parent().unwrap().to_path_buf();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = name.strip_suffix(".http") {
            assert!(NAMES.contains(&name), "{name} is not among the tests");
        }
    }
}

/// The published table: what each conversation shows, and what none does.
fn fidelity() -> String {
    let mut names = NAMES.to_vec();
    names.sort_unstable();
    let mut out = String::from(
        "# Fidelity of the embedded API server\n\n\
         Generated by `STEERSMAN_BLESS=1 cargo test -p steersman-apiserver --test conversations`; do not edit.\n\n\
         Each conformant row is a request that the tests send to kube-apiserver v1.37.1 and to the embedded server. Status code, headers and\n\
         body are equal, after uids, times, addresses and generated names are masked and resource versions are replaced by their order.\n\
         The requests are in `crates/steersman-apiserver/tests/conversations`.\n\n\
         | behaviour | request | status code | state |\n|---|---|---|---|\n",
    );
    for name in names {
        let answers = read(name, "answers");
        for (step, answer) in steps(&read(name, "http")).iter().zip(answers.lines()) {
            let answer: Value = serde_json::from_str(answer).unwrap();
            let path = step.path.split('?').next().unwrap_or_default();
            out += &format!(
                "| {name}: {} | `{} {path}` | {} | conformant |\n",
                step.title, step.method, answer["code"]
            );
        }
    }
    out += "\nDifferences, missing behaviour, and the admission plugins that kube-apiserver enables by default:\n\n| behaviour | state | reason |\n|---|---|---|\n";
    let deviations = read("deviations", "txt");
    for line in deviations.lines().filter(|line| !line.starts_with('#')) {
        out += &format!("| {} |\n", line.replace('|', "\\|").replace('\t', " | "));
    }
    out
}

#[test]
fn the_fidelity_table_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fidelity.md");
    let table = fidelity();
    if is_recording() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap();
        std::fs::write(path, &table).unwrap();
    }
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        published == table,
        "docs/fidelity.md is out of date; run the test with STEERSMAN_BLESS=1"
    );
}
