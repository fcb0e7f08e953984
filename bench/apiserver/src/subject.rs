// SPDX-License-Identifier: Apache-2.0
//! The servers that are measured, seen from outside: an address and processes.

use std::{fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use bench_protocol::participant::{Start, Taken};
use serde_json::json;
use steersman_apiserver::ApiServer;
use steersman_testing::{Endpoint, Identity, RealServer};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
};

/// A server under test.
pub(crate) struct Subject {
    pub(crate) who: &'static str,
    pub(crate) endpoint: Endpoint,
    pub(crate) admin: Identity,
    /// How long it took until a request was answered.
    pub(crate) started: Taken,
    processes: Vec<u32>,
    _keeps: Keeps,
}

/// What lives as long as the server; its drop ends the processes.
#[expect(dead_code, reason = "held for its drop")]
enum Keeps {
    Child(Box<Child>),
    Real(Box<RealServer>),
}

impl Subject {
    /// The embedded server in a process of its own.
    pub(crate) async fn ours(program: &Path) -> Result<Self, String> {
        let start = Start::now();
        let mut child = Command::new(program)
            .arg("--serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let read = BufReader::new(out).read_line(&mut line).await;
            read.map_err(|error| error.to_string())?;
        }
        let told: serde_json::Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        let endpoint = Endpoint::new(text("url"), text("ca"));
        let admin = Identity::new("admin", text("token"));
        let client = endpoint.client(&admin).map_err(|error| error.to_string())?;
        client
            .apiserver_version()
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self {
            who: "steersman",
            endpoint,
            admin,
            started: start.taken(),
            processes: child.id().into_iter().collect(),
            _keeps: Keeps::Child(Box::new(child)),
        })
    }

    /// `kube-apiserver` with `etcd`.
    pub(crate) async fn real() -> Result<Self, String> {
        let start = Start::now();
        let server = RealServer::builder()
            .start()
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self {
            who: "kube-apiserver",
            endpoint: server.endpoint().clone(),
            admin: server.admin().clone(),
            started: start.taken(),
            processes: server.process_ids(),
            _keeps: Keeps::Real(Box::new(server)),
        })
    }

    /// CPU time of all its processes, user and system.
    pub(crate) fn cpu(&self) -> Duration {
        self.processes.iter().map(|id| cpu_of(*id)).sum()
    }

    /// A field of `/proc/PID/status` in MB, over all processes.
    pub(crate) fn memory_mb(&self, field: &str) -> f64 {
        self.processes.iter().map(|id| memory_of(*id, field)).sum()
    }
}

fn cpu_of(id: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything; user and system ticks are the 12th and 13th word after it.
    let words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = words
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

fn memory_of(id: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| {
        line.strip_prefix(field)?
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse::<f64>()
            .ok()
    });
    kib.map_or(f64::NAN, |kib| kib * 1024.0 / 1e6)
}

/// Serves until stdin ends.
pub(crate) async fn serve() -> Result<(), String> {
    let token = "bench";
    let server = ApiServer::builder()
        .rbac(true)
        .token(token, steersman_apiserver::Identity::admin())
        .build();
    let listener = server
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .map_err(|error| error.to_string())?;
    let told = json!({"url": listener.url(), "ca": listener.ca_pem(), "token": token});
    bench_protocol::participant::say(&told.to_string());
    let mut rest = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    Ok(())
}
