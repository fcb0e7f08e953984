// SPDX-License-Identifier: Apache-2.0
//! A replica as a child process that reports its state.

use std::{
    env,
    fs::{self, File},
    io::{self, BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{sync::watch, time};

use super::{sight::LIMIT, step::StepError};
use crate::replica::State;

/// Number of log lines to print if a replica ends unexpectedly.
const LOG_LINES: usize = 5;

/// Environment variables that set a proxy.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"];

/// A replica. It is killed when this is dropped, and ends if this process dies.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    state: watch::Receiver<State>,
    log: PathBuf,
    /// The replica ends when this is closed.
    _tie: Option<ChildStdin>,
}

impl Program {
    /// Runs this binary again as a replica with this name. Its log is in `dir`.
    pub(crate) fn start(name: &str, kubeconfig: &Path, dir: &Path) -> io::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let mut command = Command::new(env::current_exe()?);
        // Loopback connections must not use a proxy.
        PROXIES.iter().for_each(|name| _ = command.env_remove(name));
        let mut child = command
            .args(["replica", "--name", name])
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // Ctrl-C in a terminal reaches the foreground group; replicas end when the demo does.
            .process_group(0)
            .spawn()?;
        let (said, state) = watch::channel(State::default());
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                for state in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
                    said.send_replace(state);
                }
            });
        }
        Ok(Self {
            name: name.to_owned(),
            _tie: child.stdin.take(),
            child,
            state,
            log,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Waits until `holds` returns true for the reported state.
    pub(crate) async fn when(
        &self,
        what: &str,
        mut holds: impl FnMut(&State) -> bool,
    ) -> Result<(), StepError> {
        let mut state = self.state.clone();
        match time::timeout(LIMIT, state.wait_for(|state| holds(state))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(StepError::ReplicaEnded {
                name: self.name.clone(),
                log: self.end_of_log(),
            }),
            Err(_) => Err(StepError::NotInTime {
                what: format!("replica {} {what}", self.name),
                limit: LIMIT,
            }),
        }
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits until the process has ended.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus, StepError> {
        let waiting = async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    return Ok(status);
                }
                // SIGCHLD is sent to the whole process; polling is simpler, and nothing is measured here.
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        match time::timeout(LIMIT, waiting).await {
            Ok(ended) => ended,
            Err(_) => Err(StepError::NotInTime {
                what: format!("replica {} ends", self.name),
                limit: LIMIT,
            }),
        }
    }

    fn end_of_log(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
