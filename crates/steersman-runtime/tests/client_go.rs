// SPDX-License-Identifier: Apache-2.0
//! A replica in Go, by client-go's own election, and one in Rust contend for one lease.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "manager/elected/mod.rs"]
mod elected;
#[path = "manager/managed/mod.rs"]
mod managed;
#[path = "manager/processes/mod.rs"]
mod processes;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use elected::{LEASE, create_map, user};
use processes::{Chronicle, DURATION, Program, RENEW, RETRY, be_a_replica};
use rustix::process::Signal;
use steersman_testing::{Fixture, Identity, ServerKind};

/// Work of the child processes; does nothing in the test itself.
#[test]
fn replica() {
    be_a_replica();
}

/// Builds the program in Go, if there is one that could.
fn contender() -> Option<PathBuf> {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client_go"));
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("client-go-contender");
    steersman_testing::go_program(source, &output)
}

struct Stage {
    fixture: Fixture,
    proxy: steersman_testing::FaultProxy,
    dir: tempfile::TempDir,
    contender: PathBuf,
    identity: Identity,
}

impl Stage {
    fn go(&self, name: &str) -> Program {
        let kubeconfig = self.dir.path().join("kubeconfig");
        let text = self.fixture.endpoint().kubeconfig(&self.identity);
        std::fs::write(&kubeconfig, text).unwrap();
        let mut command = Command::new(&self.contender);
        let mut flag = |flag: &str, value: String| _ = command.arg(format!("-{flag}={value}"));
        flag("kubeconfig", kubeconfig.display().to_string());
        flag("namespace", self.fixture.namespace().to_owned());
        flag("lease", LEASE.to_owned());
        flag("name", name.to_owned());
        flag("duration", format!("{}ms", DURATION.as_millis()));
        flag("renew", format!("{}ms", RENEW.as_millis()));
        flag("retry", format!("{}ms", RETRY.as_millis()));
        Program::start(command, &self.identity, name)
    }

    async fn rust(&self, name: &str) -> Program {
        let mut replica = Program::replica(&self.fixture, &self.proxy, &self.identity, name);
        replica.says("warm", 1).await;
        replica
    }
}

async fn contend(fixture: Fixture, contender: PathBuf) {
    create_map(&fixture, "a").await;
    let chronicle = Chronicle::begin(&fixture);
    let stage = Stage {
        identity: user(&fixture, "replica").await,
        proxy: fixture.proxy().await,
        dir: tempfile::tempdir().unwrap(),
        contender,
        fixture,
    };
    let mut leader = stage.go("go-1");
    leader.says("leading", 1).await;
    // Each follows the one before, after it was killed or has given up the lease, in turn by the other program.
    let (began, mut names) = (tokio::time::Instant::now(), vec!["go-1".to_owned()]);
    for round in 0.. {
        let is_enough = names.len() > 4 && began.elapsed() >= how_long();
        if is_enough && round % 2 == 0 {
            break;
        }
        let (mut next, name) = match round % 2 {
            0 => {
                let name = format!("rust-{}", round / 2 + 1);
                (stage.rust(&name).await, name)
            }
            _ => {
                let name = format!("go-{}", round / 2 + 2);
                (stage.go(&name), name)
            }
        };
        leader.send(if round % 4 < 2 { Signal::KILL } else { Signal::TERM });
        next.says("leading", 1).await;
        leader = next;
        names.push(name);
    }
    elected::signed(&stage.fixture, "a", names.last().unwrap()).await;
    assert_eq!(chronicle.judge().await, names);
}

/// How long they contend at least: four changes take a quarter of a minute, and `STEERSMAN_CONTEND_SECONDS` asks for more.
fn how_long() -> Duration {
    let asked = std::env::var("STEERSMAN_CONTEND_SECONDS").ok();
    Duration::from_secs(asked.map_or(0, |asked| asked.parse().unwrap()))
}

mod guarantee_9_replicas_in_go_and_rust_follow_each_other_and_never_hold_the_lease_together {
    use super::*;

    fn on(kind: ServerKind) {
        // The build may take longer than a test.
        if let Some(contender) = contender() {
            steersman_testing::run(kind, module_path!(), |fixture| contend(fixture, contender));
        }
    }

    #[test]
    fn on_embedded() {
        on(ServerKind::Embedded);
    }

    #[test]
    fn on_real() {
        on(ServerKind::Real);
    }
}
