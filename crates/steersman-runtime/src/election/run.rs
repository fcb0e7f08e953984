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
pub(crate) struct LeaderElectionRun {
    commands: watch::Sender<Command>,
    /// `None` once the result was received.
    ended: Option<oneshot::Receiver<Ended>>,
    _host: Host,
}

/// Order to the elector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Compete for the lease.
    Contend,
    /// Keep a held lease, and acquire none.
    Abstain,
    /// End, with or without a release of the lease.
    Resign { release: bool },
}

/// Result of a participation.
pub(super) enum Ended {
    Stopped,
    Lost(String),
    Failed(ElectionError),
}

/// A participation ended without an order.
#[derive(Debug)]
pub(crate) enum ElectionEnd {
    /// The lease was lost, for this reason.
    Lease(String),
    /// The election could not start.
    Failed(ElectionError),
}

/// Thread or task of the election.
enum Host {
    Thread { _end: oneshot::Sender<()> },
    Task { _task: Task },
}

/// Inputs of an election from its run.
pub(crate) struct ElectionContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seed: u64,
    pub(crate) keeper: Arc<LeadershipKeeper>,
    pub(crate) warm: watch::Receiver<bool>,
    pub(crate) statuses: StatusRegistry,
    pub(crate) overdue: Overdue,
}

impl LeaderElectionRun {
    pub(crate) fn start(
        settings: &Settings,
        metrics: &ElectionMetrics,
        run: ElectionContext,
    ) -> Result<Self, ElectionError> {
        let (commands, receiver) = watch::channel(Command::Contend);
        let (done, ended) = oneshot::channel();
        let status = run
            .statuses
            .handle(&format!("lease {}/{}", settings.namespace, settings.lease));
        status.set_cluster(settings.cluster.name().as_str());
        let (settings, metrics) = (settings.clone(), metrics.clone());
        let (lease, spawner) = (settings.lease.clone(), settings.spawner.clone());
        let election_run = async move {
            let ended = match Lock::connect(&settings).await {
                Ok(lock) => {
                    let elector = Elector {
                        lock,
                        settings,
                        clock: run.clock,
                        random: Random::from_seed(run.seed),
                        keeper: run.keeper,
                        warm: run.warm,
                        commands: receiver,
                        metrics,
                        status,
                        overdue: run.overdue,
                        acquired: None,
                        logged_leader: None,
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
        let host = match spawner {
            Some(spawner) => Host::Task {
                _task: spawner.spawn("election", election_run),
            },
            None => Host::thread(election_run).map_err(|source| ElectionError::Thread { lease, source })?,
        };
        Ok(Self {
            commands,
            ended: Some(ended),
            _host: host,
        })
    }

    /// Waits until the participation ends without an order.
    pub(crate) async fn lost(&mut self) -> ElectionEnd {
        match self.end().await {
            Some(Ended::Lost(reason)) => ElectionEnd::Lease(reason),
            Some(Ended::Failed(error)) => ElectionEnd::Failed(error),
            Some(Ended::Stopped) => std::future::pending().await,
            None => ElectionEnd::Lease("the election ended by itself".to_owned()),
        }
    }

    /// Acquires no lease any more, and keeps a held one.
    pub(crate) fn abstain(&self) {
        self.commands.send_replace(Command::Abstain);
    }

    /// Ends the participation, after a release of the lease if `release` is true.
    pub(crate) async fn resign(mut self, release: bool) {
        self.commands.send_replace(Command::Resign { release });
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

impl Host {
    /// Starts a thread with a separate runtime, which only the election uses.
    fn thread(election_run: impl Future<Output = ()> + Send + 'static) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel::<()>();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    // The sender is only dropped, never used.
                    _ = ended => {}
                    () = election_run => {}
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
pub(crate) struct ElectionMetrics {
    status: Gauge,
    slow_paths: Counter,
}

impl ElectionMetrics {
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
