// SPDX-License-Identifier: Apache-2.0
//! Runnables that run only while a condition holds.
//!
//! # Guarantees
//! 1. The inner runnable runs while the condition holds, is stopped when it no longer holds, and runs again when it holds
//!    again, any number of times. Nothing else is affected. If the inner runnable ends by itself, it runs again when the
//!    condition changes to true again.
//! 2. An unknown condition starts nothing and stops nothing, and the status is kept.
//! 3. If the condition holds for another incarnation than before (for example a replaced CRD), the inner runnable is
//!    stopped and run again, also if no false state was observed in between. This includes the first state of a later run.
//! 4. After each stop because of the condition, [`forget`](Runnable::forget) of the inner runnable is called.
//! 5. Leadership, warm-up and shutdown reach the inner runnable as if there were no condition.
//! 6. While the condition does not hold, the status is dormant, which counts as ready.
//! 7. A condition that is unknown from the start keeps the runnable waiting. If it depends only on non-default clusters, the
//!    status is partially degraded after the limit of the wait for caches, which counts as ready.
//! 8. An error of the inner runnable after its condition stopped it is logged, and everything else continues.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures::StreamExt;
use steersman_cluster::ClusterName;
use steersman_core::{Mutex, Presence, PresenceStatus, error_chain};

use crate::{
    BoxError, BoxRunnable, CacheRequirement, RunCondition, RunContext, RunPolicy, Runnable, RunnableStatus,
    StopHandle, run_synced,
};

/// Default shutdown timeout of a runnable that its condition stops.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Wraps a runnable and runs it only while a [`RunCondition`] is true. Can wrap another `Conditional`.
///
/// ```no_run
/// use k8s_openapi::api::networking::v1::Ingress;
/// use steersman_cluster::Cluster;
/// use steersman_runtime::{BoxError, RunCondition, Conditional, RunContext, run_fn};
///
/// # fn example(cluster: &Cluster) {
/// let sweeper = run_fn("ingress-sweeper", async |cx: RunContext| -> Result<(), BoxError> {
///     cx.stop().requested().await;
///     Ok(())
/// });
/// let only_with_ingress = Conditional::new(sweeper, RunCondition::installed::<Ingress>(cluster));
/// # let _ = only_with_ingress;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Conditional {
    inner: BoxRunnable,
    condition: RunCondition,
    shutdown_timeout: Duration,
    /// Incarnation that the inner runnable still has state of.
    last: Arc<Mutex<Option<Incarnation>>>,
}

/// Identity of the subject of a condition, such as the UID of a CRD; differs for a new one of the same name.
type Incarnation = Option<Arc<str>>;

/// Phase of the inner runnable.
enum Phase<'r> {
    Resting,
    Running(Running<'r>),
    /// The inner runnable has ended by itself.
    Done {
        incarnation: Option<Arc<str>>,
    },
}

/// The current run.
struct Running<'r> {
    future: Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'r>>,
    stop: StopHandle,
    incarnation: Option<Arc<str>>,
}

impl Conditional {
    /// Runs `runnable` while `condition` holds.
    pub fn new(runnable: impl Runnable, condition: RunCondition) -> Self {
        Self {
            inner: BoxRunnable::new(runnable),
            condition,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
            last: Arc::default(),
        }
    }

    /// Shutdown timeout of the inner runnable when the condition no longer holds. Default: 10 s.
    #[must_use]
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.shutdown_timeout = limit;
        self
    }

    fn start(&self, cx: &RunContext, presence_status: &PresenceStatus) -> Running<'_> {
        let (stop, child) = cx.child();
        cx.begins_because(&presence_status.reason);
        *self.last.lock() = Some(presence_status.incarnation.clone());
        Running {
            future: Box::pin(run_synced(&self.inner, child, cx.clock().now() + cx.fill_limit())),
            stop,
            incarnation: presence_status.incarnation.clone(),
        }
    }

    /// Returns the status while the condition is unknown.
    fn undetermined(&self, cx: &RunContext, reason: &str, is_late: bool) -> RunnableStatus {
        let clusters = self.condition.clusters();
        let is_elsewhere = !clusters.is_empty()
            && clusters
                .iter()
                .all(|name| cx.cluster_roles().is_other_cluster(name));
        if !(is_late && is_elsewhere) {
            return RunnableStatus::Waiting {
                on: vec![reason.to_owned()],
            };
        }
        let names: Vec<&str> = clusters.iter().map(ClusterName::as_str).collect();
        RunnableStatus::PartiallyDegraded {
            reason: format!("{reason} (cluster {})", names.join(", ")),
        }
    }

    /// Stops the inner runnable if it runs, and drops its state.
    async fn halt(&self, phase: Phase<'_>, cx: &RunContext, presence_status: &PresenceStatus) {
        let Phase::Running(running) = phase else {
            return;
        };
        let name = self.inner.name();
        tracing::debug!(name, reason = %presence_status.reason, "stopping runnable: its condition changed");
        let deadline = cx.clock().now() + self.shutdown_timeout;
        running.stop.stop_by(deadline);
        tokio::select! {
            biased;
            result = running.future => if let Err(error) = result {
                tracing::warn!(name, error = %error_chain(&*error), "runnable failed while stopping");
            },
            () = cx.clock().sleep_until(deadline) => {
                tracing::warn!(name, shutdown_timeout = ?self.shutdown_timeout, "runnable did not end within its shutdown timeout; cancelling it");
            }
        }
        self.forget_last();
    }

    fn forget_last(&self) {
        *self.last.lock() = None;
        self.inner.forget();
    }
}

impl Runnable for Conditional {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn run_policy(&self) -> RunPolicy {
        self.inner.run_policy()
    }

    /// Returns the caches of the inner runnable if the condition depends only on installed kinds. With other conditions,
    /// caches sync when the condition holds.
    fn caches(&self) -> Vec<CacheRequirement> {
        let Some(kinds) = self.condition.kinds() else {
            return Vec::new();
        };
        let caches = self.inner.caches().into_iter();
        caches.map(|wanted| wanted.given(kinds)).collect()
    }

    fn clusters(&self) -> Vec<ClusterName> {
        let mut clusters = self.inner.clusters();
        clusters.extend(self.condition.clusters().iter().cloned());
        clusters
    }

    fn forget(&self) {
        self.inner.forget();
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        let mut presence_statuses = self.condition.watch(cx.clock());
        let (mut phase, mut is_known) = (Phase::Resting, false);
        // State left from an earlier run belongs to the incarnation of that run.
        let mut before = self.last.lock().clone();
        // Limit of the wait for a condition that is unknown.
        let mut late = cx.clock().sleep_until(cx.clock().now() + cx.fill_limit());
        let mut is_late = false;
        let mut reason: Arc<str> = self.condition.name().into();
        cx.set_status(self.undetermined(&cx, &reason, is_late));
        loop {
            tokio::select! {
                biased;
                _ = cx.stop().requested() => {
                    // The inner runnable has the same stop request and deadline.
                    return match phase {
                        Phase::Running(running) => running.future.await,
                        Phase::Resting | Phase::Done { .. } => Ok(()),
                    };
                }
                (result, incarnation) = phase.ended() => {
                    phase = Phase::Done { incarnation };
                    result?;
                    tracing::info!(name = self.inner.name(), "runnable ended by itself; it runs again when its condition changes to true");
                    cx.ready();
                }
                () = &mut late, if !is_known && !is_late => {
                    is_late = true;
                    cx.set_status(self.undetermined(&cx, &reason, is_late));
                    cx.settle();
                }
                Some(presence_status) = presence_statuses.next() => {
                    is_known |= presence_status.presence != Presence::Unknown;
                    match presence_status.presence {
                        Presence::Present if phase.is_of(&presence_status) => {}
                        Presence::Present => {
                            let former = std::mem::replace(&mut phase, Phase::Resting);
                            self.halt(former, &cx, &presence_status).await;
                            if before.take().is_some_and(|before| before != presence_status.incarnation) {
                                self.forget_last();
                            }
                            phase = Phase::Running(self.start(&cx, &presence_status));
                        }
                        Presence::Absent => {
                            if before.take().is_some() {
                                self.forget_last();
                            }
                            let former = std::mem::replace(&mut phase, Phase::Resting);
                            self.halt(former, &cx, &presence_status).await;
                            cx.set_status(RunnableStatus::Dormant { reason: presence_status.reason.to_string() });
                        }
                        Presence::Unknown if is_known => {}
                        Presence::Unknown => {
                            reason = presence_status.reason;
                            cx.set_status(self.undetermined(&cx, &reason, is_late));
                        }
                    }
                }
            }
        }
    }
}

impl Phase<'_> {
    /// Returns true if the phase began because of this state.
    fn is_of(&self, presence_status: &PresenceStatus) -> bool {
        match self {
            Self::Resting => false,
            Self::Running(Running { incarnation, .. }) | Self::Done { incarnation } => {
                *incarnation == presence_status.incarnation
            }
        }
    }

    /// Waits until the current run ends by itself, and returns its incarnation.
    async fn ended(&mut self) -> (Result<(), BoxError>, Option<Arc<str>>) {
        match self {
            Self::Running(running) => (running.future.as_mut().await, running.incarnation.take()),
            Self::Resting | Self::Done { .. } => std::future::pending().await,
        }
    }
}
