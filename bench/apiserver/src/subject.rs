// SPDX-License-Identifier: Apache-2.0
//! The servers that are measured, seen from outside: an address and processes.

use std::{fs, time::Duration};

use bench_protocol::participant::{Start, Taken};
use bench_stage::Server;

/// A server under test.
pub(crate) struct Subject {
    pub(crate) who: &'static str,
    pub(crate) server: Server,
    /// Time until the first response.
    pub(crate) started: Taken,
}

impl Subject {
    /// The embedded server in a separate process.
    pub(crate) async fn ours() -> Result<Self, String> {
        let start = Start::now();
        let server = Server::embedded().await?;
        let client = server.endpoint().client(server.admin());
        let client = client.map_err(|error| error.to_string())?;
        client
            .apiserver_version()
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self {
            who: "steersman",
            server,
            started: start.taken(),
        })
    }

    /// `kube-apiserver` with `etcd`.
    pub(crate) async fn real() -> Result<Self, String> {
        let start = Start::now();
        let server = Server::real().await?;
        Ok(Self {
            who: server.who(),
            server,
            started: start.taken(),
        })
    }

    /// CPU time of all its processes, user and system.
    pub(crate) fn cpu(&self) -> Duration {
        self.server.processes().iter().map(|id| cpu_of(*id)).sum()
    }

    /// A field of `/proc/PID/status` in MB, over all processes.
    pub(crate) fn memory_mb(&self, field: &str) -> f64 {
        self.server
            .processes()
            .iter()
            .map(|id| memory_of(*id, field))
            .sum()
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
