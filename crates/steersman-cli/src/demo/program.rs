// SPDX-License-Identifier: Apache-2.0
//! A replica as the demo sees it: a process that says how it stands.

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

/// How much of a log is shown when a replica ends that should not.
const LOG_LINES: usize = 5;

/// By which names the environment tells of a proxy.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"];

/// A replica. It is killed when this drops, and ends by itself if this process dies.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    state: watch::Receiver<State>,
    log: PathBuf,
    /// The replica ends when this closes.
    _tie: Option<ChildStdin>,
}

impl Program {
    /// Runs this binary again, as a replica of this name. Its log is in the directory.
    pub(crate) fn start(name: &str, kubeconfig: &Path, dir: &Path) -> io::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let mut command = Command::new(env::current_exe()?);
        // The way to this machine itself leads over no proxy.
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

    /// Waits until it has said that it stands so.
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

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus, StepError> {
        let waiting = async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    return Ok(status);
                }
                // The system tells of it by a signal to the whole process; asking is simpler, and nothing is measured here.
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
