// SPDX-License-Identifier: Apache-2.0
//! Runnables that run only while a condition holds.
//!
//! # Guarantees
//! 1. What is wrapped runs while the condition holds, is stopped when it does not any more, and is run again when it
//!    does, any number of times. Nothing else is touched.
//!    One that ends by itself is run again when the condition holds anew.
//! 2. A condition that cannot be told starts nothing and stops nothing, and how things stand stays as it was.
//! 3. If the condition holds of another incarnation than before, what is wrapped is stopped and run again, also if nobody
//!    saw the condition fail in between.
//!    That is so from one run to the next as well.
//! 4. After each stop because of the condition, what is wrapped is told to [forget](Runnable::forget) what it knew.
//! 5. Leadership, warm-up and the end of the whole reach what is wrapped as if there were no condition.
//! 6. While the condition does not hold it stands as dormant, which is ready.
//! 7. What fails after its condition stopped it is logged, and the rest goes on.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use steersman_cluster::ClusterName;
use steersman_core::{Presence, Sighting, error_chain};

use crate::{
    BoxError, BoxRunnable, CacheRequirement, RunCondition, RunContext, RunPolicy, Runnable, RunnableStatus,
    StopHandle, run_synced,
};

/// How long what is stopped by its condition has to end.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// A runnable that runs only while a condition holds. It is a runnable, so conditions nest.
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
    grace: Duration,
    /// Of which incarnation what is wrapped still knows something.
    last: Arc<Mutex<Option<Incarnation>>>,
}

/// What tells a kind from one that has its name later, where a condition is about one.
type Incarnation = Option<Arc<str>>;

/// How far what is wrapped has got.
enum Phase<'r> {
    Resting,
    Running(Running<'r>),
    /// It has ended by itself.
    Done {
        incarnation: Option<Arc<str>>,
    },
}

/// What runs at the moment.
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
            grace: GRACE,
            last: Arc::default(),
        }
    }

    /// How long what is wrapped has to end when the condition does not hold any more. Default: 10 s.
    #[must_use]
    pub fn shutdown_timeout(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    fn start(&self, cx: &RunContext, sighting: &Sighting) -> Running<'_> {
        let (stop, child) = cx.child();
        cx.begins_because(&sighting.reason);
        *self.last() = Some(sighting.incarnation.clone());
        Running {
            future: Box::pin(run_synced(&self.inner, child, cx.clock().now() + cx.fill_limit())),
            stop,
            incarnation: sighting.incarnation.clone(),
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Incarnation>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops what runs, if something does, and lets it forget.
    async fn halt(&self, phase: Phase<'_>, cx: &RunContext, sighting: &Sighting) {
        let Phase::Running(running) = phase else {
            return;
        };
        let name = self.inner.name();
        tracing::debug!(name, reason = %sighting.reason, "stopping, because its condition has changed");
        let deadline = cx.clock().now() + self.grace;
        running.stop.stop_by(deadline);
        tokio::select! {
            biased;
            result = running.future => if let Err(error) = result {
                tracing::warn!(name, error = %error_chain(&*error), "failed while its condition stopped it");
            },
            () = cx.clock().sleep_until(deadline) => {
                tracing::warn!(name, grace = ?self.grace, "did not end in time, and is cancelled");
            }
        }
        self.forget_last();
    }

    fn forget_last(&self) {
        *self.last() = None;
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

    /// Those of what is wrapped, where all that the condition asks for is that kinds are installed. On other conditions
    /// they are filled when the condition holds.
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
        let mut sightings = self.condition.watch(cx.clock());
        let (mut phase, mut is_known) = (Phase::Resting, false);
        // What is left of the run before this one is about the incarnation of then.
        let mut before = self.last().clone();
        // So long a condition is waited for that nobody can tell.
        let mut late = cx.clock().sleep_until(cx.clock().now() + cx.fill_limit());
        let mut is_late = false;
        cx.set_status(RunnableStatus::Waiting {
            on: vec![self.condition.name().to_owned()],
        });
        loop {
            tokio::select! {
                biased;
                _ = cx.stop().requested() => {
                    // What runs was told, too, and has as long as the whole.
                    return match phase {
                        Phase::Running(running) => running.future.await,
                        Phase::Resting | Phase::Done { .. } => Ok(()),
                    };
                }
                (result, incarnation) = phase.ended() => {
                    phase = Phase::Done { incarnation };
                    result?;
                    tracing::info!(name = self.inner.name(), "has ended by itself; it runs again when its condition holds anew");
                    cx.ready();
                }
                () = &mut late, if !is_known && !is_late => {
                    is_late = true;
                    cx.settle();
                }
                Some(sighting) = sightings.next() => {
                    is_known |= sighting.presence != Presence::Unknown;
                    match sighting.presence {
                        Presence::Present if phase.is_of(&sighting) => {}
                        Presence::Present => {
                            let former = std::mem::replace(&mut phase, Phase::Resting);
                            self.halt(former, &cx, &sighting).await;
                            if before.take().is_some_and(|before| before != sighting.incarnation) {
                                self.forget_last();
                            }
                            phase = Phase::Running(self.start(&cx, &sighting));
                        }
                        Presence::Absent => {
                            if before.take().is_some() {
                                self.forget_last();
                            }
                            let former = std::mem::replace(&mut phase, Phase::Resting);
                            self.halt(former, &cx, &sighting).await;
                            cx.set_status(RunnableStatus::Dormant { reason: sighting.reason.to_string() });
                        }
                        Presence::Unknown if is_known => {}
                        Presence::Unknown => cx.set_status(RunnableStatus::Waiting { on: vec![sighting.reason.to_string()] }),
                    }
                }
            }
        }
    }
}

impl Phase<'_> {
    /// Whether it has begun because of this.
    fn is_of(&self, sighting: &Sighting) -> bool {
        match self {
            Self::Resting => false,
            Self::Running(Running { incarnation, .. }) | Self::Done { incarnation } => {
                *incarnation == sighting.incarnation
            }
        }
    }

    /// Waits until what runs ends by itself, and says of which incarnation it was.
    async fn ended(&mut self) -> (Result<(), BoxError>, Option<Arc<str>>) {
        match self {
            Self::Running(running) => (running.future.as_mut().await, running.incarnation.take()),
            Self::Resting | Self::Done { .. } => std::future::pending().await,
        }
    }
}
