// SPDX-License-Identifier: Apache-2.0
//! The first signal asks for an end, the second does not ask.
//!
//! # Guarantees
//! 1. The first SIGTERM or SIGINT (Ctrl-C alone on Windows) after [`Signals::install`] resolves [`Signals::stop`],
//!    also if nobody was waiting yet, and does nothing else.
//! 2. The next one ends the process with code 1. On Unix that happens in the signal handler, so that a runtime that hangs
//!    cannot keep it from happening.
//! 3. Signals are installed once in a process; a second time is an error.
//! 4. After [`Signals`] is dropped the very next signal ends the process: nobody is left who would hear it.

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

/// A process has one set of signal handlers, so that this is global.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Waits for the signals that end a process.
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

/// A signal that asks a process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// SIGTERM, as the kubelet sends it.
    Terminate,
    /// SIGINT, as a terminal sends it for Ctrl-C.
    Interrupt,
}

/// Signals could not be installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// It was done before in this process.
    #[error("signals are installed already in this process: hand the first `Signals` on instead")]
    Twice,
    /// There is no runtime here.
    #[error("signals are waited for with tokio: call this within its runtime")]
    NoRuntime,
    /// The system refused.
    #[error("the system does not let this process handle {0}")]
    Refused(Signal, #[source] io::Error),
}

impl Signals {
    /// Installs the handlers. Must be called within a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// If it was done before, there is no runtime, or the system refuses.
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

    /// Resolves with the first signal; at once if it has come already.
    ///
    /// # Cancel safety
    /// It may be dropped and called again.
    pub async fn stop(&mut self) -> Signal {
        match self.first {
            Some(signal) => signal,
            None => *self.first.insert(self.handlers.first().await),
        }
    }
}

impl Signal {
    /// Its name, such as `SIGTERM`.
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
