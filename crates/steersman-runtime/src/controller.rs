// SPDX-License-Identifier: Apache-2.0
//! A controller: a plan that can be run.
//!
//! # Guarantees
//! 1. The plan never changes and holds no informer. A later run behaves like the first one.
//! 2. Two runs at the same time are an error.
//! 3. No key is reconciled before every source has enqueued the objects that exist.
//! 4. The next run works on keys that were enqueued before it, or were left over from an earlier run.
//! 5. When a run is stopped, reconciles in flight have until the shutdown timeout to finish. Then they are cancelled, and
//!    their keys are kept.
//! 6. A failing source delays only its own controller.
//! 7. The deletion of an object of the primary kind clears the failures of its key: the deletion is reconciled at once, and
//!    a new object of the same name begins without failures.
//! 8. A reconcile gets a stop request when the term in which it began ends. It does not outlive that term, also while the
//!    run ends.
//! 9. A source runs as long as the run, over all terms. When a term ends, the keys of every object that its informers hold
//!    are enqueued for the next one.

mod late_series;
mod plan;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use steersman_cluster::{Cluster, ClusterName};
use steersman_core::Task;
use steersman_queue::{Add, Depth, Status};

pub(crate) use self::{
    late_series::LateSeries,
    plan::{MakeSpan, Plan},
};
use crate::{
    BoxError, CacheRequirement, Request, RequestKey, RunCondition, RunContext, RunPolicy, Runnable,
    StopHandle,
    builder::{Builder, NoPrimary},
    kind::{KnownKind, WhenAbsent, kind},
    run,
};

/// A controller. Clones refer to the same controller.
#[derive(Clone)]
pub struct Controller<R: RequestKey = Request>(pub(crate) Arc<Plan<R>>);

/// Error of a run of a controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// The controller is already running.
    #[error("controller `{controller}` is already running: stop that run first")]
    AlreadyRunning {
        /// The controller.
        controller: String,
    },
    /// The server does not have a kind that the controller watches.
    #[error(
        "controller `{controller}` watches {kind}, which the server does not have: install it, or call `.when_installed()` \
         to run the controller only while it is there"
    )]
    Absent {
        /// The controller.
        controller: String,
        /// The kind, with the reason if there is one.
        kind: String,
    },
    /// A source failed, and the controller is strict.
    #[error("controller `{controller}` cannot start: {reason}")]
    Source {
        /// The controller.
        controller: String,
        /// The source and its error.
        reason: String,
    },
    /// A reconcile panicked, and [`recover_panics`](crate::Options::recover_panics) is off.
    #[error("controller `{controller}` panicked on {key}: {message}")]
    Panicked {
        /// The controller.
        controller: String,
        /// The key.
        key: String,
        /// Message of the panic.
        message: String,
    },
}

impl Controller<Request> {
    /// Begins a controller of a type: each change of an object enqueues its key.
    pub fn of<K: KnownKind + 'static>(name: impl Into<String>) -> Builder<Request, K> {
        Builder::of_kind(name, kind::<K>())
    }

    /// Begins a controller of selected objects of a kind, or of a kind that is known only at run time.
    pub fn of_kind<T: 'static>(name: impl Into<String>, kind: crate::Kind<T>) -> Builder<Request, T> {
        Builder::of_kind(name, kind)
    }
}

impl<R: RequestKey> Controller<R> {
    /// Begins a controller without a primary kind. Its handlers make the keys.
    pub fn named(name: impl Into<String>) -> Builder<R, NoPrimary> {
        Builder::named(name)
    }

    /// Name of the controller.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Default cluster of the controller.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.0.home
    }

    /// Enqueues a key. The queue keeps it while the controller does not run.
    pub fn enqueue(&self, key: R) {
        self.enqueue_with(key, Add::new());
    }

    /// Enqueues a key with a priority or a delay.
    pub fn enqueue_with(&self, key: R, how: Add) {
        self.0.queue.add_with(key, how);
    }

    /// Number of keys in the queue, by state.
    #[must_use]
    pub fn depth(&self) -> Depth {
        self.0.queue.depth()
    }

    /// Status of a key in the queue: since when it waits, why, how often it failed, and when it is tried next.
    #[must_use]
    pub fn status(&self, key: &R) -> Option<Status<R>> {
        self.0.queue.status(key)
    }

    /// Status of all keys for which `matches` returns true.
    #[must_use]
    pub fn statuses(&self, matches: impl FnMut(&R) -> bool) -> Vec<Status<R>> {
        self.0.queue.statuses(matches)
    }

    /// Removes all waiting keys from the queue, for example because their objects were deleted. Returns how many.
    pub fn purge(&self) -> usize {
        self.0.queue.purge(|_| true)
    }

    /// Condition on which the controller runs: every kind with `when_installed` is installed. `None` if no kind has
    /// `when_installed`.
    #[must_use]
    pub fn condition(&self) -> Option<RunCondition> {
        let kinds = self.0.sources.iter().filter_map(|source| source.kind());
        let conditions = kinds
            .filter(|kind| kind.when_absent == WhenAbsent::Wait)
            .filter_map(|kind| {
                let cluster = kind.cluster(&self.0.home)?;
                Some(RunCondition::present(
                    cluster,
                    kind.resource.clone(),
                    self.0.options.polled_every(),
                ))
            });
        conditions.reduce(RunCondition::and)
    }

    /// Enqueues the keys of every object that the controller watches, of the primary and of all other kinds, at low
    /// priority. Call it when something changes that reconciles depend on and that no source reports, such as settings.
    /// Sources that are not kinds (streams, channels, timers, your own) do not enqueue again. A controller that does not
    /// run enqueues everything when it starts.
    pub fn replay(&self) {
        self.0.replay();
    }

    /// Starts a run in the background, without a manager.
    ///
    /// ```no_run
    /// # async fn example(web: steersman_runtime::Controller, cx: steersman_runtime::RunContext)
    /// # -> Result<(), steersman_runtime::BoxError> {
    /// let running = web.spawn(&cx);
    /// // …
    /// let web = running.stop(std::time::Duration::from_secs(30)).await?;
    /// let again = web.spawn(&cx);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A running controller cannot be started again:
    ///
    /// ```compile_fail,E0382
    /// # fn example(web: steersman_runtime::Controller, cx: steersman_runtime::RunContext) {
    /// let running = web.spawn(&cx);
    /// let again = web.spawn(&cx);
    /// # }
    /// ```
    #[must_use = "the run ends when this drops"]
    pub fn spawn(self, cx: &RunContext) -> RunningController<R> {
        let (handle, child) = cx.child();
        let (ended, result) = tokio::sync::oneshot::channel();
        let controller = self.clone();
        let task = cx.spawner().spawn("controller", async move {
            // Fails only if no caller awaits the end.
            let _ = ended.send(controller.run(child).await);
        });
        RunningController {
            controller: self,
            handle,
            cx: cx.clone(),
            result,
            _task: task,
        }
    }
}

/// A run of a controller; from [`Controller::spawn`]. Dropping it cancels the run at once.
#[must_use = "the run ends when this drops"]
pub struct RunningController<R: RequestKey = Request> {
    controller: Controller<R>,
    handle: StopHandle,
    cx: RunContext,
    result: tokio::sync::oneshot::Receiver<Result<(), BoxError>>,
    _task: Task,
}

impl<R: RequestKey> RunningController<R> {
    /// Waits until the run ends by itself.
    ///
    /// # Errors
    /// When the run failed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the run at once.
    pub async fn ended(self) -> Result<Controller<R>, BoxError> {
        match self.result.await {
            Ok(Err(error)) => Err(error),
            _ => Ok(self.controller),
        }
    }

    /// Stops the run and returns the controller, which can run again. Reconciles in flight have `grace` to finish.
    ///
    /// # Errors
    /// When the run failed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the run at once.
    pub async fn stop(self, grace: Duration) -> Result<Controller<R>, BoxError> {
        self.handle.stop_by(self.cx.clock().now() + grace);
        self.ended().await
    }
}

impl<R: RequestKey> fmt::Debug for RunningController<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RunningController")
            .field(&self.controller.name())
            .finish()
    }
}

impl<R: RequestKey> Runnable for Controller<R> {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn run_policy(&self) -> RunPolicy {
        self.0.options.needed()
    }

    fn caches(&self) -> Vec<CacheRequirement> {
        let kinds = self.0.sources.iter().filter_map(|source| source.kind());
        let poll_every = self.0.options.polled_every();
        kinds.map(|kind| kind.wanted(&self.0.home, poll_every)).collect()
    }

    fn clusters(&self) -> Vec<ClusterName> {
        vec![self.0.home.name().clone()]
    }

    /// Removes all keys, and ends informers that have no other user.
    fn forget(&self) {
        self.0.queue.purge(|_| true);
        if let Some((_, namespaced)) = &self.0.unknown_scope {
            namespaced.forget();
        }
        for kind in self.0.sources.iter().filter_map(|source| source.kind()) {
            if let (WhenAbsent::Wait, Some(cluster)) = (kind.when_absent, kind.cluster(&self.0.home)) {
                cluster.cache().end_idle(&kind.resource);
            }
        }
    }

    fn run(&self, cx: RunContext) -> impl Future<Output = Result<(), BoxError>> + Send {
        let plan = Arc::clone(&self.0);
        async move { run::run(&plan, cx).await.map_err(Into::into) }
    }
}

impl<R: RequestKey> fmt::Debug for Controller<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.name())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
