// SPDX-License-Identifier: Apache-2.0
//! The log of a test process, line by line. All tests of a process share it, so each looks at lines of its own controllers only.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{io, sync::OnceLock};

use serde_json::Value;
use steersman_runtime::{LogFormat, LogHandle, Logging};
use steersman_testing::Fixture;
use tokio::sync::watch;

/// All lines so far.
pub static LINES: OnceLock<watch::Sender<Vec<Value>>> = OnceLock::new();

/// Takes lines in.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let (Some(lines), Ok(line)) = (LINES.get(), serde_json::from_slice(bytes)) {
            lines.send_modify(|lines| lines.push(line));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of this process, in which everything is.
pub fn logs() -> &'static LogHandle {
    static LOGS: OnceLock<LogHandle> = OnceLock::new();
    LOGS.get_or_init(|| {
        LINES.get_or_init(watch::Sender::default);
        let logging = Logging::new().format(LogFormat::Json).filter(FILTER);
        logging.writer(|| Lines).install().unwrap()
    })
}

const FILTER: &str = "debug,hyper=off,h2=off,rustls=off";

/// Waits for a line about this controller, and gives all of those.
pub async fn line(controller: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
    let mut lines = LINES.get().unwrap().subscribe();
    let is_meant = |line: &&Value| line["controller"] == controller && is_meant(line);
    let found = lines
        .wait_for(|lines| lines.iter().any(|line| is_meant(&line)))
        .await
        .unwrap();
    found.iter().find(is_meant).unwrap().clone()
}

pub fn lines(controller: &str) -> Vec<Value> {
    let lines = LINES.get().unwrap().borrow();
    lines
        .iter()
        .filter(|line| line["controller"] == controller)
        .cloned()
        .collect()
}

/// A name that no other test uses.
pub fn unique(fixture: &Fixture, name: &str) -> String {
    format!("{name}-{}", fixture.namespace())
}

/// Waits for a line about this runnable.
pub async fn said_of(name: &str, message: &str) -> Value {
    let mut lines = LINES.get().unwrap().subscribe();
    let is_meant = |line: &Value| line["name"] == name && line["msg"] == message;
    let found = lines.wait_for(|lines| lines.iter().any(is_meant)).await.unwrap();
    found.iter().find(|line| is_meant(line)).unwrap().clone()
}

/// Waits for a line that says this, and of which something holds.
pub async fn saying(message: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
    let mut lines = LINES.get().unwrap().subscribe();
    let is_meant = |line: &&Value| line["msg"] == message && is_meant(line);
    let found = lines
        .wait_for(|lines| lines.iter().any(|line| is_meant(&line)))
        .await
        .unwrap();
    found.iter().find(is_meant).unwrap().clone()
}
