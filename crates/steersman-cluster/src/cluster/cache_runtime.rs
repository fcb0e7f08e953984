// SPDX-License-Identifier: Apache-2.0
//! The thread on which a cluster reads for its cache.

use std::{fmt, io, sync::mpsc, thread};

use steersman_core::Spawner;
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

use super::ClusterName;

/// A thread with a runtime of its own. It ends soon after this drops, with all tasks on it.
///
/// Dropping only tells the thread to end, and does not wait: it may happen within a task, even one on that thread.
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
                // Whoever waits for it is there.
                let _ = ready.send(());
                // The other side is dropped, never used.
                let _ = runtime.block_on(ended);
            })?;
        // A thread that was started and does not run is gone.
        let _ = is_ready.recv();
        Ok(Self {
            runtime: handle,
            _end: end,
        })
    }

    pub(super) fn spawner(&self) -> Spawner {
        Spawner::on(self.runtime.clone())
    }

    /// Does something with this runtime around.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        work()
    }
}

impl fmt::Debug for CacheRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").finish_non_exhaustive()
    }
}
