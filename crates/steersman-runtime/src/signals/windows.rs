// SPDX-License-Identifier: Apache-2.0
//! Ctrl-C.

use std::{mem, process};

use steersman_core::{Spawner, Task};
use tokio::{signal::windows, sync::oneshot};

use super::{InstallError, Signal};

/// The handler of the process, and its end here.
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
        // The sender goes with the process only.
        let _ = (&mut self.first).await;
        Signal::Interrupt
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        // The task outlives its owner here, since it is what ends the process: nobody is left who would hear it.
        mem::forget(self.counting.take());
    }
}
