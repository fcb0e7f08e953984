// SPDX-License-Identifier: Apache-2.0
//! Thread on which a cluster runs its cache.

use std::{fmt, io, sync::mpsc, thread};

use steersman_core::Spawner;
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

use super::ClusterName;

/// A thread with its own tokio runtime. It ends soon after this value is dropped, with all of its tasks.
///
/// Dropping only signals the thread to end and does not wait: the drop can happen within a task, even one on that
/// thread.
pub(super) struct CacheRuntime {
    runtime: Handle,
    _end: oneshot::Sender<()>,
}

impl CacheRuntime {
    pub(super) fn start(cluster: &ClusterName) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let (ready, is_ready) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name(format!("steersman-{cluster}"))
            .spawn(move || {
                // The receiver waits below.
                let _ = ready.send(());
                // The sender is only dropped, never used.
                let _ = runtime.block_on(ended);
            })?;
        // An error means that the thread started and already ended.
        let _ = is_ready.recv();
        Ok(Self {
            runtime: handle,
            _end: end,
        })
    }

    pub(super) fn spawner(&self) -> Spawner {
        Spawner::on(self.runtime.clone())
    }

    /// Runs `work` in the context of this runtime.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        work()
    }
}

impl fmt::Debug for CacheRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheRuntime").finish_non_exhaustive()
    }
}
