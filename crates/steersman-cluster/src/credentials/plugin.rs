// SPDX-License-Identifier: Apache-2.0
//! Runs an exec plugin, such as `aws eks get-token`.
//!
//! It does not use kube's code, which has no timeout, keeps certificates to itself, and shows the output of a failed
//! plugin in its error.

use std::{
    io::{self, IsTerminal, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;

use super::token_file::bearer;

/// Maximum number of bytes that are read of the output.
const OUTPUT_MAX: u64 = 1 << 20;
/// Time for a person to answer the questions of an interactive plugin.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(10);

/// An exec plugin returned no usable credentials. The error does not show its output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The kubeconfig names no command.
    #[error("the exec plugin of the kubeconfig has no `command`")]
    NoCommand,
    /// The command cannot be started.
    #[error("cannot start exec plugin `{command}`: {source}{hint}")]
    Start {
        /// The command, without its arguments.
        command: String,
        /// Cause.
        source: io::Error,
        /// `installHint` of the kubeconfig.
        hint: String,
    },
    /// It asks questions, and the standard input of this program is not a terminal.
    #[error("exec plugin `{command}` needs a terminal (`interactiveMode: Always`)")]
    Interactive {
        /// The command, without its arguments.
        command: String,
    },
    /// It did not end in time, and was killed.
    #[error("exec plugin `{command}` did not end within {limit:?}")]
    TimedOut {
        /// The command, without its arguments.
        command: String,
        /// The timeout.
        limit: Duration,
    },
    /// It failed. It writes the reason to the standard error of this program.
    #[error("exec plugin `{command}` failed ({status}); its standard error has the reason")]
    Failed {
        /// The command, without its arguments.
        command: String,
        /// Status of the process.
        status: ExitStatus,
    },
    /// It returned something else than credentials.
    #[error("exec plugin `{command}` returned {problem}")]
    Output {
        /// The command, without its arguments.
        command: String,
        /// The problem, without parts of the output.
        problem: &'static str,
    },
}

impl PluginError {
    /// Status and exit code with which client-go counts the call. It counts a call without exit code as 1.
    pub(super) fn outcome(&self) -> (&'static str, i32) {
        match self {
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                ("plugin_not_found_error", 1)
            }
            Self::Failed { status, .. } => ("plugin_execution_error", status.code().unwrap_or(1)),
            Self::TimedOut { .. } => ("plugin_execution_error", 1),
            _ => ("client_internal_error", 1),
        }
    }
}

/// Credentials that a plugin returned.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Returned {
    pub(super) authorization: Option<HeaderValue>,
    /// Certificate and key, as PEM.
    pub(super) certificate: Option<(String, String)>,
    pub(super) obtained: SystemTime,
    pub(super) expires: Option<SystemTime>,
}

/// A plugin, as the kubeconfig describes it.
pub(super) struct Plugin {
    config: ExecConfig,
    command: String,
    timeout: Duration,
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Plugin {
    pub(super) fn new(config: ExecConfig, timeout: Duration) -> Result<Self, PluginError> {
        let command = config.command.clone().filter(|command| !command.is_empty());
        Ok(Self {
            command: command.ok_or(PluginError::NoCommand)?,
            config,
            timeout,
        })
    }

    /// Returns the command, without its arguments.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Runs the plugin, and blocks this thread until it ends or its time is over.
    pub(super) fn run(&self, now: SystemTime) -> Result<Returned, PluginError> {
        let is_interactive = match self.config.interactive_mode {
            Some(ExecInteractiveMode::Never) => false,
            Some(ExecInteractiveMode::Always) if !io::stdin().is_terminal() => {
                return Err(PluginError::Interactive {
                    command: self.command.clone(),
                });
            }
            _ => io::stdin().is_terminal(),
        };
        let limit = if is_interactive {
            PATIENCE.max(self.timeout)
        } else {
            self.timeout
        };
        let child = self.prepare(is_interactive).spawn();
        let child = child.map_err(|source| PluginError::Start {
            command: self.command.clone(),
            source,
            hint: self
                .config
                .install_hint
                .as_ref()
                .map_or_else(String::new, |hint| format!("; {hint}")),
        })?;
        let (output, status) = finish(
            Running {
                child,
                is_group: !is_interactive,
                has_ended: false,
            },
            limit,
        )
        .ok_or_else(|| PluginError::TimedOut {
            command: self.command.clone(),
            limit,
        })?;
        if !status.success() {
            return Err(PluginError::Failed {
                command: self.command.clone(),
                status,
            });
        }
        parse(&output, now).map_err(|problem| PluginError::Output {
            command: self.command.clone(),
            problem,
        })
    }

    fn prepare(&self, is_interactive: bool) -> Command {
        let mut spec = json!({"interactive": is_interactive});
        if self.config.provide_cluster_info {
            spec["cluster"] = json!(self.config.cluster);
        }
        let info = json!({"apiVersion": self.config.api_version, "kind": "ExecCredential", "spec": spec});
        let mut command = Command::new(&self.command);
        command.args(self.config.args.iter().flatten());
        let variables = self.config.env.iter().flatten();
        command.envs(variables.filter_map(|variable| Some((variable.get("name")?, variable.get("value")?))));
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        for name in self.config.drop_env.iter().flatten() {
            command.env_remove(name);
        }
        command.stdout(Stdio::piped());
        if !is_interactive {
            command.stdin(Stdio::null());
            // A group, so that the processes that the plugin starts can be killed with it.
            #[cfg(unix)]
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        command
    }
}

/// A process that is killed if it is dropped before its end.
struct Running {
    child: Child,
    is_group: bool,
    /// Its output and its status are complete.
    has_ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process whose child keeps the output open can have ended too. Its status is not read yet, so its number
        // still belongs to its group.
        if self.has_ended {
            return;
        }
        #[cfg(unix)]
        if self.is_group {
            let group = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the end of a process. `None` if it does not end in time; it is killed then.
fn finish(mut running: Running, limit: Duration) -> Option<(Vec<u8>, ExitStatus)> {
    let mut stdout = running.child.stdout.take()?;
    let (sender, receiver) = mpsc::sync_channel(1);
    let reader = thread::Builder::new().name("steersman-exec-output".to_owned());
    let started = reader.spawn(move || {
        let mut output = Vec::new();
        let _ = stdout.by_ref().take(OUTPUT_MAX).read_to_end(&mut output);
        let _ = sender.send(output);
    });
    started.ok()?;
    let output = receiver.recv_timeout(limit).ok()?;
    // A process that has closed its output ends soon.
    let mut waited = Duration::ZERO;
    while waited < limit {
        if let Some(status) = running.child.try_wait().ok()? {
            running.has_ended = true;
            return Some((output, status));
        }
        thread::sleep(POLL);
        waited += POLL;
    }
    None
}

/// Parses the output: JSON, or YAML as some plugins write.
fn parse(output: &[u8], now: SystemTime) -> Result<Returned, &'static str> {
    let parsed: ExecCredential =
        serde_saphyr::from_slice(output).map_err(|_| "no ExecCredential: its output is not valid JSON")?;
    let status = parsed.status.ok_or("an ExecCredential without a status")?;
    let expires = match status.expiration_timestamp {
        Some(text) => {
            let expires: Result<jiff::Timestamp, _> = text.parse();
            Some(SystemTime::from(
                expires.map_err(|_| "an invalid expirationTimestamp")?,
            ))
        }
        None => None,
    };
    let token = status.token.filter(|token| !token.is_empty());
    let authorization = match token {
        Some(token) => Some(bearer(&token).ok_or("a token with invalid characters")?),
        None => None,
    };
    let certificate = match (status.client_certificate_data, status.client_key_data) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => return Err("a certificate without its key (`clientKeyData`)"),
        (None, Some(_)) => return Err("a key without its certificate (`clientCertificateData`)"),
        (None, None) => None,
    };
    if authorization.is_none() && certificate.is_none() {
        return Err("no credentials: neither a token nor a certificate");
    }
    Ok(Returned {
        authorization,
        certificate,
        obtained: now,
        expires,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(output: &str) -> &'static str {
        parse(output.as_bytes(), SystemTime::UNIX_EPOCH).err().unwrap()
    }

    // C2
    #[test]
    fn describes_unusable_output_without_showing_it() {
        for (output, expected) in [
            ("", "an ExecCredential without a status"),
            ("hunter2: [", "no ExecCredential: its output is not valid JSON"),
            ("{}", "an ExecCredential without a status"),
            (
                r#"{"status":{}}"#,
                "no credentials: neither a token nor a certificate",
            ),
            (
                r#"{"status":{"token":""}}"#,
                "no credentials: neither a token nor a certificate",
            ),
            (
                r#"{"status":{"token":"hunter2\n"}}"#,
                "a token with invalid characters",
            ),
            (
                r#"{"status":{"clientCertificateData":"x"}}"#,
                "a certificate without its key (`clientKeyData`)",
            ),
            (
                r#"{"status":{"token":"a","expirationTimestamp":"soon"}}"#,
                "an invalid expirationTimestamp",
            ),
        ] {
            assert_eq!(problem(output), expected, "{output}");
        }
    }

    #[test]
    fn reads_json_and_yaml() {
        for output in [
            r#"{"status":{"token":"a","expirationTimestamp":"1970-01-01T00:01:00Z"}}"#,
            "status:\n  token: a\n  expirationTimestamp: \"1970-01-01T00:01:00Z\"\n",
        ] {
            let returned = parse(output.as_bytes(), SystemTime::UNIX_EPOCH).ok().unwrap();
            assert_eq!(returned.authorization.unwrap(), "Bearer a");
            assert_eq!(
                returned.expires,
                Some(SystemTime::UNIX_EPOCH + Duration::from_secs(60))
            );
        }
    }
}
