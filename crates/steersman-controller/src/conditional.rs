// SPDX-License-Identifier: Apache-2.0
//! Runnables that run only while a condition holds.
//!
//! # Guarantees
//! 1. What is wrapped runs while the condition holds, is stopped when it does not any more, and is run again when it
//!    does, any number of times. Nothing else is touched.
//! 2. A condition that cannot be told starts nothing and stops nothing.
//! 3. If the condition holds of another incarnation than before, what is wrapped is stopped and run again, also if nobody
//!    saw the condition fail in between.
//! 4. After each stop because of the condition, what is wrapped is told to [forget](Runnable::forget) what it knew.
//! 5. Leadership, warm-up and the end of the whole reach what is wrapped as if there were no condition.
//! 6. While the condition does not hold it stands as dormant, which is ready.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures::StreamExt;
use steersman_cluster::ClusterName;
use steersman_core::{Presence, Sighting};

use crate::{
    BoxError, BoxRunnable, Condition, Needs, RunContext, Runnable, Standing, StopHandle, Wanted, run_filled,
};

/// How long what is stopped by its condition has to end.
const GRACE: Duration = Duration::from_secs(10);

/// A runnable that runs only while a condition holds. It is a runnable, so conditions nest.
///
/// ```no_run
/// use k8s_openapi::api::networking::v1::Ingress;
/// use steersman_cluster::Cluster;
/// use steersman_controller::{BoxError, Condition, Conditional, RunContext, run_fn};
///
/// # fn example(cluster: &Cluster) {
/// let sweeper = run_fn("ingress-sweeper", async |cx: RunContext| -> Result<(), BoxError> {
///     cx.stop().requested().await;
///     Ok(())
/// });
/// let only_with_ingress = Conditional::new(sweeper, Condition::installed::<Ingress>(cluster));
/// # let _ = only_with_ingress;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Conditional {
    inner: BoxRunnable,
    condition: Condition,
    grace: Duration,
}

/// What runs at the moment.
struct Running<'r> {
    future: Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'r>>,
    stop: StopHandle,
    incarnation: Option<Arc<str>>,
}

impl Conditional {
    /// Runs `runnable` while `condition` holds.
    pub fn new(runnable: impl Runnable, condition: Condition) -> Self {
        Self {
            inner: BoxRunnable::new(runnable),
            condition,
            grace: GRACE,
        }
    }

    /// How long what is wrapped has to end when the condition does not hold any more. Default: 10 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    fn start(&self, cx: &RunContext, sighting: &Sighting) -> Running<'_> {
        let (stop, child) = cx.child();
        tracing::info!(name = self.inner.name(), reason = %sighting.reason, "starting, because its condition holds");
        Running {
            future: Box::pin(run_filled(&self.inner, child, cx.clock().now() + cx.fill_limit())),
            stop,
            incarnation: sighting.incarnation.clone(),
        }
    }

    /// Stops what runs, and lets it forget.
    async fn halt(&self, running: Running<'_>, cx: &RunContext, sighting: &Sighting) -> Result<(), BoxError> {
        tracing::info!(name = self.inner.name(), reason = %sighting.reason, "stopping, because its condition has changed");
        let deadline = cx.clock().now() + self.grace;
        running.stop.stop_by(deadline);
        let result = tokio::select! {
            biased;
            result = running.future => result,
            () = cx.clock().sleep_until(deadline) => {
                tracing::warn!(name = self.inner.name(), grace = ?self.grace, "did not end in time, and is cancelled");
                Ok(())
            }
        };
        self.inner.forget();
        result
    }
}

impl Runnable for Conditional {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn needs(&self) -> Needs {
        self.inner.needs()
    }

    /// Those of what is wrapped, where all that the condition asks for is that kinds are installed. On other conditions
    /// they are filled when the condition holds.
    fn caches(&self) -> Vec<Wanted> {
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
        let mut running: Option<Running<'_>> = None;
        let waiting = Standing::Waiting {
            on: vec![self.condition.name().to_owned()],
        };
        cx.stand(waiting.clone());
        loop {
            tokio::select! {
                biased;
                _ = cx.stop().requested() => {
                    // What runs was told, too, and has as long as the whole.
                    return match running {
                        Some(running) => running.future.await,
                        None => Ok(()),
                    };
                }
                result = ended(&mut running) => {
                    running = None;
                    result?;
                    tracing::info!(name = self.inner.name(), "has ended by itself; it runs again when its condition holds anew");
                    cx.ready();
                }
                Some(sighting) = sightings.next() => match sighting.presence {
                    Presence::Present => {
                        if let Some(former) = running.take_if(|running| running.incarnation != sighting.incarnation) {
                            self.halt(former, &cx, &sighting).await?;
                        }
                        if running.is_none() {
                            running = Some(self.start(&cx, &sighting));
                        }
                    }
                    Presence::Absent => {
                        if let Some(former) = running.take() {
                            self.halt(former, &cx, &sighting).await?;
                        }
                        cx.stand(Standing::Dormant { reason: sighting.reason.to_string() });
                    }
                    Presence::Unknown => {
                        if running.is_none() {
                            cx.stand(Standing::Waiting { on: vec![sighting.reason.to_string()] });
                        }
                    }
                },
            }
        }
    }
}

async fn ended(running: &mut Option<Running<'_>>) -> Result<(), BoxError> {
    match running {
        Some(running) => running.future.as_mut().await,
        None => std::future::pending().await,
    }
}
