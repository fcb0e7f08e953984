// SPDX-License-Identifier: Apache-2.0
//! A session with the real kubectl, on both servers, with the same output.
//!
//! `kubectl/session.txt` holds what is typed, `kubectl/session.out` what kubectl says on the real server. With
//! `STEERSMAN_BLESS=1` the real half writes it down. Uids, times, ages and addresses are masked.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::{path::PathBuf, process::Stdio, sync::LazyLock, time::Duration};

use regex::Regex;
use serde_json::{Value, json};
use steersman_testing::{Fixture, ServerKind, skip_without_tool};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

/// A command and what it reads.
#[derive(Debug)]
struct Typed {
    title: String,
    /// Repeated until it succeeds: the real server learns of new kinds in its own time.
    retries: bool,
    /// It does not end by itself: this many lines are read.
    watches: Option<usize>,
    arguments: Vec<String>,
    input: String,
}

fn file(extension: &str) -> PathBuf {
    PathBuf::from(format!(
        "{}/tests/kubectl/session.{extension}",
        env!("CARGO_MANIFEST_DIR")
    ))
}

fn session(fixture: &Fixture) -> Vec<Typed> {
    let text = std::fs::read_to_string(file("txt")).unwrap();
    let text = text
        .replace("{{namespace}}", fixture.namespace())
        .replace("{{group}}", fixture.group());
    let blocks = text.split("\n== ").skip(1);
    blocks
        .map(|block| {
            let mut lines = block.lines();
            let title = lines.next().unwrap_or_default().to_owned();
            let mut command = lines.next().unwrap_or_default();
            let retries = command == "@retry";
            let watches = command
                .strip_prefix("@lines ")
                .map(|count| count.parse().unwrap());
            if command.starts_with('@') {
                command = lines.next().unwrap_or_default();
            }
            // A schedule has spaces, which part words here.
            let arguments = command
                .split(' ')
                .map(|word| {
                    if word.contains("schedule") {
                        word.replace('_', " ")
                    } else {
                        word.to_owned()
                    }
                })
                .collect();
            let input = lines.skip(1).collect::<Vec<_>>().join("\n");
            Typed {
                title,
                retries,
                watches,
                arguments,
                input,
            }
        })
        .collect()
}

struct Shell<'a> {
    kubectl: PathBuf,
    home: tempfile::TempDir,
    fixture: &'a Fixture,
}

impl Shell<'_> {
    async fn run(&self, typed: &Typed) -> Value {
        for _ in 0..20 {
            let said = self.once(typed).await;
            if !typed.retries || said["code"] == 0 {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{} does not succeed", typed.title);
    }

    async fn once(&self, typed: &Typed) -> Value {
        let home = self.home.path();
        let mut child = Command::new(&self.kubectl)
            .args(["--namespace", self.fixture.namespace(), "--kubeconfig"])
            .arg(home.join("kubeconfig"))
            .args(&typed.arguments)
            .env("HOME", home)
            .env("KUBECTL_EXTERNAL_DIFF", "diff -N -u0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(typed.input.as_bytes()).await.unwrap();
        drop(stdin);
        if let Some(count) = typed.watches {
            let out = BufReader::new(child.stdout.take().unwrap());
            let mut lines = out.lines();
            let mut text = String::new();
            for _ in 0..count {
                text += &lines.next_line().await.unwrap().unwrap_or_default();
                text.push('\n');
            }
            return json!({"title": typed.title, "code": 0, "out": self.masked(&text), "err": []});
        }
        let output = child.wait_with_output().await.unwrap();
        let text = |bytes: &[u8]| self.masked(&String::from_utf8_lossy(bytes));
        let mut out = text(&output.stdout);
        if typed.arguments.iter().any(|word| word == "--show-managed-fields") {
            // Managers are in the order of the seconds in which they wrote.
            out.sort();
        }
        json!({"title": typed.title, "code": output.status.code(), "out": out, "err": text(&output.stderr)})
    }

    /// Without what differs between two servers and two moments.
    fn masked(&self, text: &str) -> Vec<String> {
        static MASKS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
            [
                (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uid>"),
                (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
                (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "<time>"),
                (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [+-]\d{4}", "<time>"),
                (r"/tmp/(LIVE|MERGED)-\d+", "/tmp/$1"),
                (r#"(resourceVersion"?: "?)\d+"#, "$1<revision>"),
                (r"\b10\.0\.0\.\d+", "<address>"),
                (r"https://127\.0\.0\.1:\d+", "<server>"),
                (r"\b([0-9]+[smh])+\b", "<age>"),
                (r"Resource Version: +\d+", "Resource Version: <revision>"),
                (r"[ \t]+", " "),
                // The repair loop of the real server can run between the creation of a Service and its look at the Services.
                (
                    r"(?m)^Events:\n Type [^\n]*\n ---- [^\n]*\n(?: [^\n]*ipallocator-repair-controller[^\n]*\n?)+",
                    "Events: <none>\n",
                ),
            ]
            .map(|(pattern, with)| (Regex::new(pattern).unwrap(), with))
            .to_vec()
        });
        let text = text
            .replace(self.fixture.namespace(), "<namespace>")
            .replace(self.fixture.group(), "<group>");
        let text = MASKS.iter().fold(text, |text, (pattern, with)| {
            pattern.replace_all(&text, *with).into_owned()
        });
        text.lines().map(str::to_owned).collect()
    }
}

#[steersman_testing::test]
async fn kubectl_prints_the_same_for_both_servers(fixture: Fixture) {
    let Some(kubectl) = steersman_assets::find().ok().and_then(|assets| assets.kubectl()) else {
        skip_without_tool(
            "the kubectl session",
            "kubectl is not built; run `cargo xtask kube`",
        );
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let kubeconfig = fixture.endpoint().kubeconfig(fixture.admin());
    std::fs::write(home.path().join("kubeconfig"), kubeconfig).unwrap();
    let shell = Shell {
        kubectl,
        home,
        fixture: &fixture,
    };
    let mut said = Vec::new();
    for typed in session(&fixture) {
        said.push(shell.run(&typed).await);
    }
    if fixture.server_kind() == ServerKind::Real && std::env::var_os("STEERSMAN_BLESS").is_some() {
        let lines: String = said.iter().map(|said| format!("{said}\n")).collect();
        std::fs::write(file("out"), lines).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(file("out")).unwrap_or_default();
    let expected: Vec<Value> = expected
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        said.len(),
        expected.len(),
        "the session has changed; record it again"
    );
    let wrong: Vec<String> = said
        .iter()
        .zip(&expected)
        .filter(|(said, expected)| said != expected)
        .map(|(said, expected)| difference(said, expected))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} differ\n\n{}",
        wrong.len(),
        said.len(),
        wrong.join("\n\n")
    );
}

fn difference(said: &Value, expected: &Value) -> String {
    let mut out = format!("== {}", expected["title"].as_str().unwrap_or_default());
    if said["code"] != expected["code"] {
        out += &format!("\n   ends with {} instead of {}", said["code"], expected["code"]);
    }
    for stream in ["out", "err"] {
        let lines = |value: &Value| -> Vec<String> {
            let lines = value[stream].as_array().into_iter().flatten();
            lines.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let (ours, real) = (lines(said), lines(expected));
        for line in real.iter().filter(|line| !ours.contains(line)) {
            out += &format!("\n   real: {line}");
        }
        for line in ours.iter().filter(|line| !real.contains(line)) {
            out += &format!("\n   ours: {line}");
        }
        if ours != real && ours.len() == real.len() && ours.iter().all(|line| real.contains(line)) {
            out += "\n   the same lines in another order";
        }
    }
    out
}
