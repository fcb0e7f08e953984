// SPDX-License-Identifier: Apache-2.0
//! Runnables: everything that a manager runs.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use steersman_cluster::{Cluster, ClusterName};

use crate::{BoxError, CacheRequirement, RunContext};

/// A task that runs until it is stopped, and can run again afterwards.
///
/// A manager starts it in the phase of its [`run_policy`](Self::run_policy). If it returns an error, the manager shuts down with
/// that error and the name of the runnable. A stopped runnable returns `Ok`.
///
/// ```
/// use steersman_runtime::{BoxError, RunContext, Runnable};
///
/// struct Heartbeat;
///
/// impl Runnable for Heartbeat {
///     fn name(&self) -> &str {
///         "heartbeat"
///     }
///
///     async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
///         cx.ready();
///         cx.stop().requested().await;
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(note = "implement `Runnable`, or wrap an async function with `run_fn`")]
pub trait Runnable: Send + Sync + 'static {
    /// Name in logs, metrics and readiness. Must be unique within a manager.
    fn name(&self) -> &str;

    /// Selects when it runs. Default: while this replica leads.
    fn run_policy(&self) -> RunPolicy {
        RunPolicy::LeaderElected
    }

    /// Caches that have to be in sync before it starts and are kept while it runs. A manager waits for the caches of all
    /// its runnables at startup. Default: none.
    fn caches(&self) -> Vec<CacheRequirement> {
        Vec::new()
    }

    /// Clusters that it cannot run without. Removal of such a cluster stops the runnable, and closes the cluster once the
    /// runnable has ended or the shutdown timeout has passed. Default: none.
    fn clusters(&self) -> Vec<ClusterName> {
        Vec::new()
    }

    /// Returns the cluster if the runnable is one; the manager adds it to its clusters. Default: `None`.
    fn as_cluster(&self) -> Option<&Cluster> {
        None
    }

    /// Drops all state, because its subject was removed: the next run begins like the first one. Default: does nothing.
    fn forget(&self) {}

    /// Runs until `cx` requests a stop.
    fn run(&self, cx: RunContext) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Selects when a runnable runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunPolicy {
    /// In every replica, from before caches sync until after they end. For servers that the API server needs in order to
    /// answer, such as a conversion webhook. Caches wait until its first `await` that is pending: by then it should listen.
    BeforeCaches,
    /// In every replica, all the time, once caches are in sync.
    AllReplicas,
    /// While this replica leads. It is stopped when leadership ends, and run again when leadership begins again. Its writes
    /// should be fenced; see [`RunContext::fenced`].
    LeaderElected,
    /// In every replica: it fills caches and queues, reports that it is [ready](RunContext::ready), and acts only while it
    /// holds a [term](RunContext::leadership).
    Warm,
}

/// A runnable with its type erased. Clones refer to the same runnable.
#[derive(Clone)]
pub(crate) struct BoxRunnable(Arc<dyn Erased>);

type Running<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;

trait Erased: Send + Sync {
    fn name(&self) -> &str;
    fn run_policy(&self) -> RunPolicy;
    fn caches(&self) -> Vec<CacheRequirement>;
    fn clusters(&self) -> Vec<ClusterName>;
    fn as_cluster(&self) -> Option<&Cluster>;
    fn forget(&self);
    fn run(&self, cx: RunContext) -> Running<'_>;
}

impl<T: Runnable> Erased for T {
    fn name(&self) -> &str {
        Runnable::name(self)
    }

    fn run_policy(&self) -> RunPolicy {
        Runnable::run_policy(self)
    }

    fn caches(&self) -> Vec<CacheRequirement> {
        Runnable::caches(self)
    }

    fn clusters(&self) -> Vec<ClusterName> {
        Runnable::clusters(self)
    }

    fn as_cluster(&self) -> Option<&Cluster> {
        Runnable::as_cluster(self)
    }

    fn forget(&self) {
        Runnable::forget(self);
    }

    fn run(&self, cx: RunContext) -> Running<'_> {
        Box::pin(Runnable::run(self, cx))
    }
}

impl BoxRunnable {
    /// Erases the type of a runnable.
    pub(crate) fn new(runnable: impl Runnable) -> Self {
        Self(Arc::new(runnable))
    }
}

impl Runnable for BoxRunnable {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn run_policy(&self) -> RunPolicy {
        self.0.run_policy()
    }

    fn caches(&self) -> Vec<CacheRequirement> {
        self.0.caches()
    }

    fn clusters(&self) -> Vec<ClusterName> {
        self.0.clusters()
    }

    fn as_cluster(&self) -> Option<&Cluster> {
        self.0.as_cluster()
    }

    fn forget(&self) {
        self.0.forget();
    }

    fn run(&self, cx: RunContext) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.0.run(cx)
    }
}

impl fmt::Debug for BoxRunnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoxRunnable").field(&self.0.name()).finish()
    }
}

/// A cluster connects on its first request. When its run is stopped, informers of its cache that have no user end.
impl Runnable for Cluster {
    fn name(&self) -> &str {
        self.name().as_str()
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::AllReplicas
    }

    fn as_cluster(&self) -> Option<&Cluster> {
        Some(self)
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        cx.ready();
        cx.stop().requested().await;
        self.end_idle();
        Ok(())
    }
}

/// Runnable made of an async function; from [`run_fn`].
pub struct RunFn<F> {
    name: String,
    needs: RunPolicy,
    function: F,
}

/// Makes a runnable of an async function. It runs while this replica leads unless set otherwise. It is ready from its
/// start, unless it [warms up](RunPolicy::Warm).
///
/// ```
/// use steersman_runtime::{BoxError, RunPolicy, RunContext, run_fn};
///
/// let sweeper = run_fn("sweeper", async |cx: RunContext| -> Result<(), BoxError> {
///     cx.stop().requested().await;
///     Ok(())
/// });
/// # let _ = sweeper.with_policy(RunPolicy::AllReplicas);
/// ```
pub fn run_fn<F, Fut>(name: impl Into<String>, function: F) -> RunFn<F>
where
    F: Fn(RunContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send,
{
    RunFn {
        name: name.into(),
        needs: RunPolicy::LeaderElected,
        function,
    }
}

impl<F> RunFn<F> {
    /// Selects when it runs.
    #[must_use]
    pub fn with_policy(mut self, needs: RunPolicy) -> Self {
        self.needs = needs;
        self
    }
}

impl<F, Fut> Runnable for RunFn<F>
where
    F: Fn(RunContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn run_policy(&self) -> RunPolicy {
        self.needs
    }

    fn run(&self, cx: RunContext) -> impl Future<Output = Result<(), BoxError>> + Send {
        // A function is ready when it runs. With warm-up, it reports readiness itself.
        if self.needs != RunPolicy::Warm {
            cx.ready();
        }
        (self.function)(cx)
    }
}

impl<F> fmt::Debug for RunFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RunFn").field(&self.name).finish()
    }
}
