// SPDX-License-Identifier: Apache-2.0
//! Tasks with an owner, a name and an end.

use std::{fmt, future::Future};

use tokio::{runtime::Handle, task::AbortHandle};

/// Starts tasks on the runtime that it was made for. It is handed down; nobody starts a task by other means.
///
/// ```
/// use steersman_core::Spawner;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let spawner = Spawner::current();
/// let task = spawner.spawn("answering", async { /* … */ });
/// drop(task); // Ends it.
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Spawner(Handle);

/// A task that was started. Dropping this ends it at the next point where it waits.
#[must_use = "the task ends when this drops"]
pub struct Task {
    name: &'static str,
    abort: AbortHandle,
}

impl Spawner {
    /// A spawner for the runtime of the caller.
    ///
    /// # Panics
    /// When there is no runtime here.
    #[must_use]
    pub fn current() -> Self {
        Self(Handle::current())
    }

    /// A spawner for the given runtime.
    #[must_use]
    pub fn on(runtime: Handle) -> Self {
        Self(runtime)
    }

    /// Starts a task.
    pub fn spawn<F>(&self, name: &'static str, task: F) -> Task
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Task {
            name,
            abort: self.0.spawn(task).abort_handle(),
        }
    }
}

impl Task {
    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.abort.is_finished()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("name", &self.name)
            .field("finished", &self.is_finished())
            .finish()
    }
}
