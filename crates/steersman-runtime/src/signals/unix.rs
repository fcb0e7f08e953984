// SPDX-License-Identifier: Apache-2.0
//! SIGTERM and SIGINT.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use signal_hook::{consts::signal, flag};
use tokio::signal::unix::{self, SignalKind};

use super::{InstallError, Signal};

/// Signal handlers of the process, and their receivers.
#[derive(Debug)]
pub(super) struct Handlers {
    /// True if the next signal ends the process.
    armed: Arc<AtomicBool>,
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Handlers {
    pub(super) fn install() -> Result<Self, InstallError> {
        let armed = Arc::new(AtomicBool::new(false));
        let stream = |signal, number, kind| {
            let refused = |error| InstallError::Refused(signal, error);
            // Register the receiver first, so that a signal from now on is received.
            let heard = unix::signal(kind).map_err(refused)?;
            // Then the handler that exits if armed, and after it the one that arms: the first signal does not exit.
            flag::register_conditional_shutdown(number, 1, Arc::clone(&armed)).map_err(refused)?;
            flag::register(number, Arc::clone(&armed)).map_err(refused)?;
            Ok(heard)
        };
        let terminate = stream(Signal::Terminate, signal::SIGTERM, SignalKind::terminate())?;
        let interrupt = stream(Signal::Interrupt, signal::SIGINT, SignalKind::interrupt())?;
        Ok(Self {
            armed,
            terminate,
            interrupt,
        })
    }

    pub(super) async fn first(&mut self) -> Signal {
        tokio::select! {
            biased;
            Some(()) = self.terminate.recv() => Signal::Terminate,
            Some(()) = self.interrupt.recv() => Signal::Interrupt,
            // Neither stream ends while the runtime lives.
            else => std::future::pending().await,
        }
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        self.armed.store(true, Ordering::SeqCst);
    }
}
