// SPDX-License-Identifier: Apache-2.0
//! What a manager runs.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use steersman_cluster::{Cluster, ClusterName};

use crate::{BoxError, CacheRequirement, RunContext};

/// Something that runs until it is told to stop, and can run again after that.
///
/// A manager starts it in a phase that follows from [`needs`](Self::run_policy). An error that it returns ends the whole run,
/// with its name; what is told to stop returns `Ok`.
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
    /// What it is called in logs, metrics and readiness. Two of one name are refused.
    fn name(&self) -> &str;

    /// When it runs. Default: while this replica leads.
    fn run_policy(&self) -> RunPolicy {
        RunPolicy::Leadership
    }

    /// The caches that are to be filled before it begins, whenever that is, and kept while it runs. A manager waits for
    /// those of all that it knows when it starts. Default: none.
    fn caches(&self) -> Vec<CacheRequirement> {
        Vec::new()
    }

    /// The clusters without which it cannot run: when one of them is removed, it is stopped, and the cluster is not closed
    /// before it has ended or the grace period is over. Default: none.
    fn clusters(&self) -> Vec<ClusterName> {
        Vec::new()
    }

    /// The cluster that it is. A host takes it among its clusters, so that others can work on it. Default: it is none.
    fn as_cluster(&self) -> Option<&Cluster> {
        None
    }

    /// What it was about is gone: a run that follows is to begin as if it were the first. Default: there is nothing to
    /// forget.
    fn forget(&self) {}

    /// Runs until `cx` says to stop.
    fn run(&self, cx: RunContext) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// When a runnable runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunPolicy {
    /// In every replica, from before caches are filled until after they end: what a cluster itself may ask before it
    /// answers, such as a webhook that converts objects. Caches wait for its first step, which is up to the first `await`
    /// that has to wait: by then it should listen.
    NoCaches,
    /// In every replica, all the time, once caches are filled.
    Nothing,
    /// While this replica leads. It is stopped when that ends, and run again when it begins again. What it writes should
    /// pass the fence; see [`RunContext::fenced`].
    Leadership,
    /// In every replica: it fills caches and queues, says that it is [ready](RunContext::ready), and acts only while
    /// it holds a [term](RunContext::leadership).
    WarmUp,
}

/// A runnable whose type is not known any more. Clones are the same one.
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
    /// Forgets the type of a runnable.
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

/// A cluster connects by itself when somebody asks it for something. Its run ends, when it is told to, with what nobody
/// holds any more of its cache.
impl Runnable for Cluster {
    fn name(&self) -> &str {
        self.name().as_str()
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::Nothing
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

/// A runnable from an async function; from [`run_fn`].
pub struct RunFn<F> {
    name: String,
    needs: RunPolicy,
    function: F,
}

/// A runnable from an async function, which runs while this replica leads unless something else is said. It counts as ready
/// from its start, unless it [warms up](RunPolicy::WarmUp).
///
/// ```
/// use steersman_runtime::{BoxError, RunPolicy, RunContext, run_fn};
///
/// let sweeper = run_fn("sweeper", async |cx: RunContext| -> Result<(), BoxError> {
///     cx.stop().requested().await;
///     Ok(())
/// });
/// # let _ = sweeper.needing(RunPolicy::Nothing);
/// ```
pub fn run_fn<F, Fut>(name: impl Into<String>, function: F) -> RunFn<F>
where
    F: Fn(RunContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send,
{
    RunFn {
        name: name.into(),
        needs: RunPolicy::Leadership,
        function,
    }
}

impl<F> RunFn<F> {
    /// When it runs.
    #[must_use]
    pub fn needing(mut self, needs: RunPolicy) -> Self {
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
        // What runs without saying more about itself is ready. What warms up says itself when it is.
        if self.needs != RunPolicy::WarmUp {
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
