// SPDX-License-Identifier: Apache-2.0
//! Ctrl-C.

use std::{mem, process};

use steersman_core::{Spawner, Task};
use tokio::{signal::windows, sync::oneshot};

use super::{InstallError, Signal};

/// Handler of the process, and its receiver.
#[derive(Debug)]
pub(super) struct Handlers {
    first: oneshot::Receiver<()>,
    counting: Option<Task>,
}

impl Handlers {
    pub(super) fn install() -> Result<Self, InstallError> {
        let mut pressed =
            windows::ctrl_c().map_err(|error| InstallError::Refused(Signal::Interrupt, error))?;
        let (heard, first) = oneshot::channel();
        let counting = Spawner::current().spawn("counting signals", async move {
            pressed.recv().await;
            if heard.send(()).is_ok() {
                pressed.recv().await;
            }
            process::exit(1);
        });
        Ok(Self {
            first,
            counting: Some(counting),
        })
    }

    pub(super) async fn first(&mut self) -> Signal {
        // The sender lives as long as the process.
        let _ = (&mut self.first).await;
        Signal::Interrupt
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        // The task must outlive `self`, because it ends the process on the next signal.
        mem::forget(self.counting.take());
    }
}
