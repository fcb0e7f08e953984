// SPDX-License-Identifier: Apache-2.0
//! The command as a user runs it, in a separate directory in which it must leave no file.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(120);

/// Polling interval.
const AGAIN: Duration = Duration::from_millis(20);

/// A directory in which the command has its temporary files.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steersman"));
        command.args(arguments).env("TMPDIR", self.path());
        command
    }

    /// Runs the command to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs the command, and hears what it says.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Running {
            child,
            stdout,
            stderr,
        }
    }

    /// Remaining temporary files.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_ours = |path: &PathBuf| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("steersman-")
        };
        paths.filter(is_ours).collect()
    }

    /// The processes that run here, by their ids and command lines.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let mark = format!("TMPDIR={}", self.path().display());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(id) = entry.file_name().to_string_lossy().parse() else {
                continue;
            };
            // One that ends meanwhile is none.
            let text = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
            let (environment, line) = (text("environ"), text("cmdline"));
            if environment
                .split(|byte| *byte == 0)
                .any(|one| one == mark.as_bytes())
            {
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                found.push((id, line));
            }
        }
        found
    }

    /// Waits until there is neither a process nor a file.
    pub fn is_left_clean(&self) {
        eventually(
            || self.processes().is_empty() && self.leftovers().is_empty(),
            || format!("{:?} {:?}", self.processes(), self.leftovers()),
        );
    }
}

/// Waits until something holds; says what is otherwise.
pub fn eventually(holds: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    for _ in 0..LIMIT.as_millis() / AGAIN.as_millis() {
        if holds() {
            return;
        }
        thread::sleep(AGAIN);
    }
    panic!("{}", otherwise());
}

/// The command while it runs. A failed test leaves none behind.
pub struct Running {
    child: Child,
    stdout: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
}

impl Running {
    /// Waits for a line on standard output that has this in it.
    pub fn says(&self, what: &str) -> String {
        let otherwise = || self.stderr.try_iter().collect::<Vec<_>>().join("\n");
        line_with(&self.stdout, what).unwrap_or_else(|heard| panic!("{heard}\n{}", otherwise()))
    }

    /// Waits for a line on standard error that has this in it.
    pub fn complains(&self, what: &str) -> String {
        line_with(&self.stderr, what).unwrap_or_else(|heard| panic!("{heard}"))
    }

    pub fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a line that has this in it; says what was heard instead.
fn line_with(lines: &mpsc::Receiver<String>, what: &str) -> Result<String, String> {
    let mut heard = Vec::new();
    loop {
        match lines.recv_timeout(LIMIT) {
            Ok(line) if line.contains(what) => return Ok(line),
            Ok(line) => heard.push(line),
            Err(_) => return Err(format!("no line has `{what}`:\n{}", heard.join("\n"))),
        }
    }
}

fn lines(stream: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Standard error as text.
pub fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
