// SPDX-License-Identifier: Apache-2.0
//! HTTP endpoints of a manager.

use std::{net::SocketAddr, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use steersman_core::{Clock, MonotonicTime, Spawner, Task};
use steersman_endpoints::{MetricsRegistry, MetricsServer, Routes, Server, Tls};
use tokio::sync::{mpsc, oneshot, watch};

use super::{RunError, builder::BuildError};
use crate::BoxError;

/// Configures the metrics server.
pub(super) type ServerOptions = Box<dyn FnOnce(MetricsServer) -> MetricsServer + Send>;

/// HTTP endpoints of a manager. They are bound by `build`, and served during a run.
pub(crate) struct Endpoints {
    servers: Vec<Server>,
    addresses: Addresses,
}

/// Addresses of the HTTP endpoints of a manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Addresses {
    /// Address of `/healthz` and `/readyz`.
    pub health: Option<SocketAddr>,
    /// Address of `/metrics`.
    pub metrics: Option<SocketAddr>,
}

impl Endpoints {
    pub(super) fn bind(
        health: Option<(SocketAddr, Option<Tls>)>,
        probes: Routes,
        metrics: Option<ServerOptions>,
        registry: &MetricsRegistry,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, BuildError> {
        let health = health
            .map(|(address, tls)| {
                Server::bind(address, probes, Arc::clone(clock)).map(|server| match tls {
                    Some(tls) => server.tls(tls),
                    None => server,
                })
            })
            .transpose()
            .map_err(BuildError::Health)?;
        let metrics = metrics
            .map(|options| options(MetricsServer::new(registry.clone()).clock(Arc::clone(clock))).bind())
            .transpose()
            .map_err(BuildError::Metrics)?;
        Ok(Self {
            addresses: Addresses {
                health: health.as_ref().map(Server::address),
                metrics: metrics.as_ref().map(Server::address),
            },
            servers: health.into_iter().chain(metrics).collect(),
        })
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }

    /// Starts to serve.
    pub(super) fn serve(&self, spawner: &Spawner) -> Result<Serving, RunError> {
        let (end, ending) = watch::channel(false);
        let (failures, failed) = mpsc::channel(1);
        let mut serving = Vec::new();
        for server in &self.servers {
            let server = server
                .try_clone()
                .map_err(|error| RunError::Endpoint(error.into()))?;
            let (mut ending, is_ending) = (ending.clone(), ending.clone());
            let (done, ended) = oneshot::channel();
            let failures = failures.clone();
            let task = spawner.spawn("http", async move {
                let stop = async { _ = ending.wait_for(|ending| *ending).await };
                let served = AssertUnwindSafe(server.serve(stop)).catch_unwind().await;
                let error: Option<BoxError> = match served {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error.into()),
                    Err(_) => Some("it panicked".into()),
                };
                if !*is_ending.borrow() {
                    // One failure is enough to end the run.
                    let _ = failures.try_send(error.unwrap_or_else(|| "it ended by itself".into()));
                } else if let Some(error) = error {
                    tracing::warn!(error = %steersman_core::error_chain(&*error), "HTTP endpoint failed during shutdown");
                }
                // Fails only if no task waits for the end.
                let _ = done.send(());
            });
            serving.push((ended, task));
        }
        Ok(Serving { end, failed, serving })
    }
}

/// HTTP endpoints that are being served.
pub(super) struct Serving {
    end: watch::Sender<bool>,
    failed: mpsc::Receiver<BoxError>,
    serving: Vec<(oneshot::Receiver<()>, Task)>,
}

impl Serving {
    /// Waits until an endpoint ends without a stop request: the process could not be observed any more.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub(super) async fn failed(&mut self) -> RunError {
        match self.failed.recv().await {
            Some(error) => RunError::Endpoint(error),
            None => std::future::pending().await,
        }
    }

    /// Ends the endpoints: probes last, because they report how the others end.
    pub(super) async fn end(self, deadline: MonotonicTime, clock: &Arc<dyn Clock>) {
        self.end.send_replace(true);
        let mut late = clock.sleep_until(deadline);
        for (ended, task) in self.serving {
            tokio::select! {
                biased;
                _ = ended => {}
                () = &mut late => {}
            }
            drop(task);
        }
    }
}
