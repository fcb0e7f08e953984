// SPDX-License-Identifier: Apache-2.0
//! Tasks with an owner and a name.

use std::{fmt, future::Future};

use tokio::{runtime::Handle, task::AbortHandle};

/// Starts tasks on a given runtime. It is passed as a dependency; no code starts tasks by other means.
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

/// A running task. Dropping this aborts the task at its next await point.
#[must_use = "the task ends when this drops"]
pub struct Task {
    name: &'static str,
    abort: AbortHandle,
}

impl Spawner {
    /// Creates a spawner for the runtime of the caller.
    ///
    /// # Panics
    /// When called outside of a tokio runtime.
    #[must_use]
    pub fn current() -> Self {
        Self(Handle::current())
    }

    /// Creates a spawner for the given runtime.
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
    /// Reports whether the task has ended.
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
