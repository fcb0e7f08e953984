// SPDX-License-Identifier: Apache-2.0
//! Signals: the first requests a shutdown, the second ends the process.
//!
//! # Guarantees
//! 1. The first SIGTERM or SIGINT (only Ctrl-C on Windows) after [`Signals::install`] resolves [`Signals::stop`], also if
//!    no task waits for it yet, and does nothing else.
//! 2. The next signal ends the process with code 1. On Unix the signal handler does this, so a runtime that hangs cannot
//!    prevent it.
//! 3. Signals can be installed once in a process; a second call is an error.
//! 4. After [`Signals`] is dropped, the next signal ends the process, because no task handles it.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::{
    fmt, io,
    sync::atomic::{AtomicBool, Ordering},
};

#[cfg(unix)]
use unix::Handlers;
#[cfg(windows)]
use windows::Handlers;

/// A process has one set of signal handlers, so this is global.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Handles the signals that end a process.
///
/// ```no_run
/// use steersman_runtime::Signals;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let mut signals = Signals::install()?;
/// let signal = signals.stop().await;
/// println!("{signal}: closing up");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the next signal ends the process once this is dropped"]
pub struct Signals {
    handlers: Handlers,
    first: Option<Signal>,
}

/// A signal that requests the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// SIGTERM; the kubelet sends it.
    Terminate,
    /// SIGINT; a terminal sends it for Ctrl-C.
    Interrupt,
}

/// Error of [`Signals::install`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// Signals were already installed in this process.
    #[error("signal handlers are already installed in this process; pass on the first `Signals` instead")]
    Twice,
    /// The caller is not in a tokio runtime.
    #[error("cannot install signal handlers outside of a tokio runtime; call this within one")]
    NoRuntime,
    /// The operating system returned an error.
    #[error("cannot install the handler of {0}")]
    Refused(Signal, #[source] io::Error),
}

impl Signals {
    /// Installs the signal handlers. Call it within a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// If signals were already installed, there is no runtime, or the operating system returns an error.
    pub fn install() -> Result<Self, InstallError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(InstallError::NoRuntime);
        }
        if INSTALLED.swap(true, Ordering::SeqCst) {
            return Err(InstallError::Twice);
        }
        Ok(Self {
            handlers: Handlers::install()?,
            first: None,
        })
    }

    /// Waits for the first signal; returns at once if it was already received.
    ///
    /// # Cancel safety
    /// The future can be dropped, and the method called again.
    pub async fn stop(&mut self) -> Signal {
        match self.first {
            Some(signal) => signal,
            None => *self.first.insert(self.handlers.first().await),
        }
    }
}

impl Signal {
    /// Name of the signal, such as `SIGTERM`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
