// SPDX-License-Identifier: Apache-2.0
//! Participation of one run of a manager in an election.

use std::{io, sync::Arc, thread};

use crate::{LeadershipKeeper, StatusRegistry};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use steersman_core::{Clock, Random, Task};
use tokio::{
    runtime,
    sync::{oneshot, watch},
};

use super::{ElectionError, Overdue, Settings, elector::Elector, lock::Lock};

/// A running participation. Drop ends it at once, and its lease expires.
pub(crate) struct Campaign {
    orders: watch::Sender<Order>,
    /// `None` once the result was received.
    ended: Option<oneshot::Receiver<Ended>>,
    _home: Home,
}

/// Order to the elector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Compete for the lease.
    Contend,
    /// Keep a held lease, and acquire none.
    Abstain,
    /// End, with or without a release of the lease.
    Resign { release: bool },
}

/// Result of a participation.
pub(super) enum Ended {
    AsTold,
    Lost(String),
    Failed(ElectionError),
}

/// A participation ended without an order.
#[derive(Debug)]
pub(crate) enum Loss {
    /// The lease was lost, for this reason.
    Lease(String),
    /// The election could not start.
    Failed(ElectionError),
}

/// Thread or task of the election.
enum Home {
    Thread { _end: oneshot::Sender<()> },
    Task { _task: Task },
}

/// Inputs of an election from its run.
pub(crate) struct CampaignContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seed: u64,
    pub(crate) keeper: Arc<LeadershipKeeper>,
    pub(crate) warm: watch::Receiver<bool>,
    pub(crate) statuses: StatusRegistry,
    pub(crate) overdue: Overdue,
}

impl Campaign {
    pub(crate) fn start(
        settings: &Settings,
        figures: &Figures,
        run: CampaignContext,
    ) -> Result<Self, ElectionError> {
        let (orders, receiver) = watch::channel(Order::Contend);
        let (done, ended) = oneshot::channel();
        let place = run
            .statuses
            .place(&format!("lease {}/{}", settings.namespace, settings.lease));
        place.set_cluster(settings.cluster.name().as_str());
        let (settings, figures) = (settings.clone(), figures.clone());
        let (lease, spawner) = (settings.lease.clone(), settings.spawner.clone());
        let campaign = async move {
            let ended = match Lock::connect(&settings).await {
                Ok(lock) => {
                    let elector = Elector {
                        lock,
                        settings,
                        clock: run.clock,
                        random: Random::from_seed(run.seed),
                        keeper: run.keeper,
                        warm: run.warm,
                        orders: receiver,
                        figures,
                        place,
                        overdue: run.overdue,
                        acquired: None,
                        named: None,
                    };
                    elector.run().await
                }
                Err(source) => Ended::Failed(ElectionError::Connect {
                    lease: settings.lease,
                    source: Box::new(source),
                }),
            };
            // Fails only if no task waits for the result.
            let _ = done.send(ended);
        };
        let home = match spawner {
            Some(spawner) => Home::Task {
                _task: spawner.spawn("election", campaign),
            },
            None => Home::thread(campaign).map_err(|source| ElectionError::Thread { lease, source })?,
        };
        Ok(Self {
            orders,
            ended: Some(ended),
            _home: home,
        })
    }

    /// Waits until the participation ends without an order.
    pub(crate) async fn lost(&mut self) -> Loss {
        match self.end().await {
            Some(Ended::Lost(reason)) => Loss::Lease(reason),
            Some(Ended::Failed(error)) => Loss::Failed(error),
            Some(Ended::AsTold) => std::future::pending().await,
            None => Loss::Lease("the election ended by itself".to_owned()),
        }
    }

    /// Acquires no lease any more, and keeps a held one.
    pub(crate) fn abstain(&self) {
        self.orders.send_replace(Order::Abstain);
    }

    /// Ends the participation, after a release of the lease if `release` is true.
    pub(crate) async fn resign(mut self, release: bool) {
        self.orders.send_replace(Order::Resign { release });
        if self.ended.is_some() {
            self.end().await;
        }
    }

    async fn end(&mut self) -> Option<Ended> {
        let Some(ended) = &mut self.ended else {
            return std::future::pending().await;
        };
        let result = ended.await.ok();
        self.ended = None;
        result
    }
}

impl Home {
    /// Starts a thread with a separate runtime, which only the election uses.
    fn thread(campaign: impl Future<Output = ()> + Send + 'static) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel::<()>();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    // The sender is only dropped, never used.
                    _ = ended => {}
                    () = campaign => {}
                }
            });
        };
        thread::Builder::new()
            .name("steersman-election".to_owned())
            .spawn(work)?;
        Ok(Self::Thread { _end: end })
    }
}

/// Metrics of an election. Clones share the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    status: Gauge,
    slow_paths: Counter,
}

impl Figures {
    /// Registers the metrics, with the names of client-go.
    pub(crate) fn register(&self, lease: &str, registry: &mut Registry) {
        let label = ("name".into(), lease.to_owned().into());
        let registry = registry.sub_registry_with_label(label);
        registry.register(
            "leader_election_master_status",
            "1 if this replica holds the lease, else 0",
            self.status.clone(),
        );
        registry.register(
            "leader_election_slowpath",
            "Renewals before which the lease had to be read",
            self.slow_paths.clone(),
        );
    }

    pub(super) fn leads(&self, leads: bool) {
        self.status.set(i64::from(leads));
    }

    pub(super) fn slow_path(&self) {
        self.slow_paths.inc();
    }
}
