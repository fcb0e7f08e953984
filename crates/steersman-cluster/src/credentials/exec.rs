// SPDX-License-Identifier: Apache-2.0
//! Keeps the credentials of an exec plugin valid.

use std::{
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use kube::config::ExecConfig;
use steersman_core::{Clock, MonotonicTime, Mutex};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::{
    plugin::{Plugin, PluginError, Returned},
    plugin_calls::PluginCalls,
};

/// Time before the expiry at which the plugin runs again, or a fifth of the whole time if that is shorter.
const AHEAD: Duration = Duration::from_secs(60);
/// Shortest time between two runs, except for one run because of a rejection.
const PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Exec {
    plugin: Plugin,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    calls: PluginCalls,
    /// Held while the plugin runs.
    running: Arc<tokio::sync::Mutex<()>>,
}

struct State {
    returned: Arc<Returned>,
    /// Number of successful runs, and the time of the last one.
    runs: u64,
    ran: MonotonicTime,
    /// Number of different certificates.
    certificates: u64,
    failed: Option<(MonotonicTime, Arc<PluginError>)>,
    /// Time of the last run because of a rejection.
    rejected: Option<MonotonicTime>,
}

/// Credentials and the numbers of the run and of the certificate that they are from.
#[derive(Clone)]
pub(super) struct Numbered {
    pub(super) returned: Arc<Returned>,
    pub(super) run: u64,
    pub(super) certificate: u64,
}

impl Exec {
    /// Runs the plugin for the first time, and blocks until it ends.
    pub(super) fn start(
        config: ExecConfig,
        timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, PluginError> {
        let plugin = Plugin::new(config, timeout)?;
        let returned = Arc::new(plugin.run(clock.wall())?);
        let (ran, calls) = (clock.now(), PluginCalls::default());
        calls.add("no_error", 0);
        Ok(Arc::new(Self {
            plugin,
            clock,
            state: Mutex::new(State {
                returned,
                runs: 1,
                ran,
                certificates: 1,
                failed: None,
                rejected: None,
            }),
            calls,
            running: Arc::default(),
        }))
    }

    pub(super) fn command(&self) -> &str {
        self.plugin.command()
    }

    pub(super) fn calls(&self) -> &PluginCalls {
        &self.calls
    }

    /// Returns the credentials without renewing them.
    pub(super) fn known(&self) -> Numbered {
        let state = self.state.lock();
        Numbered {
            returned: Arc::clone(&state.returned),
            run: state.runs,
            certificate: state.certificates,
        }
    }

    /// Returns valid credentials; runs the plugin if they expire soon. While it runs, and if it fails, requests use the
    /// old credentials until these expire.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Numbered, Arc<PluginError>> {
        let known = self.known();
        let now = self.clock.wall();
        // A plugin whose credentials are short-lived, or expired from the start, does not run for each request.
        let has_just_run = self.clock.now().saturating_since(self.state.lock().ran) < PAUSE;
        if has_just_run || !known.returned.expires_soon(now) {
            return Ok(known);
        }
        let is_valid = known.returned.expires.is_none_or(|expires| now < expires);
        if is_valid && self.running.try_lock().is_err() {
            return Ok(known);
        }
        match self.renew(known.run).await {
            Ok(()) => Ok(self.known()),
            Err(_) if is_valid => Ok(known),
            Err(error) => Err(error),
        }
    }

    /// Runs the plugin because the server rejected the credentials of this run, unless that happened just now. Waits for
    /// a run that is under way.
    pub(super) async fn rejected(self: &Arc<Self>, run: u64) {
        let running = Arc::clone(&self.running).lock_owned().await;
        let now = self.clock.now();
        {
            let mut state = self.state.lock();
            let is_recent = |at: MonotonicTime| now.saturating_since(at) < PAUSE;
            if state.runs != run || state.rejected.is_some_and(is_recent) {
                return;
            }
            state.rejected = Some(now);
        }
        // The error is logged; the server's answer is reported.
        let _ = self.renew_locked(running, run).await;
    }

    /// Runs the plugin, unless it has run since the given run, or failed just now.
    async fn renew(self: &Arc<Self>, run: u64) -> Result<(), Arc<PluginError>> {
        let running = Arc::clone(&self.running).lock_owned().await;
        self.renew_locked(running, run).await
    }

    async fn renew_locked(
        self: &Arc<Self>,
        running: OwnedMutexGuard<()>,
        run: u64,
    ) -> Result<(), Arc<PluginError>> {
        {
            let state = self.state.lock();
            if state.runs != run {
                return Ok(());
            }
            if let Some((at, error)) = &state.failed
                && self.clock.now().saturating_since(*at) < PAUSE
            {
                return Err(Arc::clone(error));
            }
        }
        let (sender, receiver) = oneshot::channel();
        let exec = Arc::clone(self);
        // A thread, and not a blocking task: a runtime that ends does not wait for it. It stores the result even if
        // nothing waits for it any more.
        let started = thread::Builder::new()
            .name("steersman-exec".to_owned())
            .spawn(move || {
                let result = exec.store(exec.plugin.run(exec.clock.wall()));
                drop(running);
                let _ = sender.send(result);
            });
        if let Err(source) = started {
            let error = PluginError::Start {
                command: self.command().to_owned(),
                source,
                hint: String::new(),
            };
            return self.store(Err(error));
        }
        receiver.await.unwrap_or_else(|_| {
            let command = self.command().to_owned();
            Err(Arc::new(PluginError::Output {
                command,
                problem: "no credentials: the thread that runs it panicked",
            }))
        })
    }

    fn store(&self, result: Result<Returned, PluginError>) -> Result<(), Arc<PluginError>> {
        let (call_status, code) = result
            .as_ref()
            .err()
            .map_or(("no_error", 0), PluginError::outcome);
        self.calls.add(call_status, code);
        let mut state = self.state.lock();
        match result {
            Ok(returned) => {
                if returned.certificate != state.returned.certificate {
                    state.certificates += 1;
                }
                state.returned = Arc::new(returned);
                state.runs += 1;
                state.ran = self.clock.now();
                state.failed = None;
                Ok(())
            }
            Err(error) => {
                let error = Arc::new(error);
                tracing::warn!(%error, "cannot renew credentials");
                state.failed = Some((self.clock.now(), Arc::clone(&error)));
                Err(error)
            }
        }
    }
}

impl Returned {
    fn expires_soon(&self, now: SystemTime) -> bool {
        let Some(expires) = self.expires else { return false };
        let whole = expires.duration_since(self.obtained).unwrap_or_default();
        now + AHEAD.min(whole / 5) >= expires
    }
}
