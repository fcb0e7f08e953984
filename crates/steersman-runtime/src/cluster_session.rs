// SPDX-License-Identifier: Apache-2.0
//! Session: the work of one run of a controller on one cluster.

mod kind_guard;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use steersman_cluster::{Client, Cluster, ClusterName, Fence, RecordedEvent, Recorder};

pub(crate) use self::kind_guard::{KindGuard, is_over};
use crate::{
    ClusterSet, Metrics, Stop, cached_reads::CachedReads, cluster_set::ClusterGuard, hot_loop::note_write,
};

/// State that all reconciles of one run in one cluster share.
pub(crate) struct ClusterSession {
    pub(crate) controller: Arc<str>,
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    field_manager: Arc<str>,
    pub(crate) recorder: Recorder,
    pub(crate) stop: Stop,
    pub(crate) metrics: Metrics,
    pub(crate) recovers_panics: bool,
    /// Timeout of each of several handlers.
    pub(crate) handler_limit: Option<Duration>,
    fence: Option<Fence>,
    fleet: ClusterSet,
    /// `None` without a run: then informers that reads start end with this session.
    reads: Option<Arc<CachedReads>>,
    /// `None` if the cluster is not in the cluster set.
    visit: Option<ClusterGuard>,
    /// Requested clients of other clusters, with the number that distinguishes a cluster from an earlier one of its name.
    guests: Mutex<BTreeMap<ClusterName, (u64, Client)>>,
    /// `None` if the work does not end with a kind.
    stay: Option<KindGuard>,
}

impl ClusterSession {
    /// Creates a session. The guard is that of this cluster in the cluster set.
    pub(crate) fn new(
        (controller, field_manager): (&str, &str),
        (cluster, visit): (&Cluster, Option<ClusterGuard>),
        reads: Option<Arc<CachedReads>>,
        fence: Option<Fence>,
        fleet: ClusterSet,
        stop: Stop,
    ) -> Self {
        Self {
            controller: controller.into(),
            client: client_of_run(cluster, reads.as_deref(), fence.as_ref(), field_manager),
            field_manager: field_manager.into(),
            recorder: match &fence {
                Some(fence) => cluster.recorder(controller).fenced(fence.clone()),
                None => cluster.recorder(controller),
            },
            cluster: cluster.clone(),
            visit,
            stop,
            metrics: Metrics::new(),
            recovers_panics: true,
            handler_limit: None,
            fence,
            fleet,
            reads,
            guests: Mutex::default(),
            stay: None,
        }
    }

    pub(crate) fn field_manager(&self) -> &str {
        &self.field_manager
    }

    /// Sets the metrics, and the behaviour on panics.
    pub(crate) fn counted(self, metrics: Metrics, recovers_panics: bool) -> Self {
        Self {
            metrics,
            recovers_panics,
            ..self
        }
    }

    /// Sets the timeout of each of several handlers.
    pub(crate) fn limited(self, handler_limit: Option<Duration>) -> Self {
        Self {
            handler_limit,
            ..self
        }
    }

    /// Adds a callback for recorded events.
    pub(crate) fn recorded(self, observer: impl Fn(&RecordedEvent) + Send + Sync + 'static) -> Self {
        Self {
            recorder: self.recorder.observed(observer),
            ..self
        }
    }

    /// Ends the session with the kind.
    pub(crate) fn during(self, stay: KindGuard) -> Self {
        Self {
            stop: stay.end().joined(&self.stop),
            stay: Some(stay),
            ..self
        }
    }

    /// Returns true if the kind of the session was removed.
    pub(crate) fn is_over(&self) -> bool {
        self.stay.as_ref().is_some_and(|stay| stay.end().is_requested())
    }

    /// Returns true if work on the cluster can begin.
    pub(crate) fn is_current(&self) -> bool {
        match &self.visit {
            Some(visit) => self.fleet.is_there(visit),
            None => !self.cluster.is_closed() && !self.fleet.is_leaving(self.cluster.name()),
        }
    }

    /// Runs `work`, unless the cluster or the kind was removed and the shutdown timeout after that has passed.
    pub(crate) async fn unless_dismissed<F: Future>(&self, work: F) -> Option<F::Output> {
        let Some(stay) = &self.stay else {
            return self.cluster.until_closed(work).await;
        };
        let staying = async {
            tokio::select! {
                biased;
                output = work => Some(output),
                () = stay.outstayed() => {
                    tracing::warn!("the kind was removed and the reconcile did not end in time; cancelling it");
                    None
                }
            }
        };
        self.cluster.until_closed(staying).await.flatten()
    }

    /// Returns the client of a cluster of the cluster set, and a guard if it is another cluster.
    pub(crate) fn client_of(&self, name: &ClusterName) -> Option<(Client, Option<ClusterGuard>)> {
        if name == self.cluster.name() {
            return Some((self.client.clone(), None));
        }
        let visit = self.fleet.visit(name)?;
        let member = visit.member();
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        let known = guests.get(name).filter(|(number, _)| *number == member.number());
        let client = match known {
            Some((_, client)) => client.clone(),
            None => client_of_run(
                member.cluster(),
                self.reads.as_deref(),
                self.fence.as_ref(),
                &self.field_manager,
            ),
        };
        guests.insert(name.clone(), (member.number(), client.clone()));
        drop(guests);
        Some((client, Some(visit)))
    }

    /// Drops the clients of removed clusters.
    pub(crate) fn dismiss_guests(&self) {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.retain(|name, (number, _)| {
            let member = self.fleet.member(name);
            member.is_some_and(|member| member.number() == *number)
        });
    }
}

/// Returns a client for reconciles: it reads for this run and writes with the field manager of the controller; its writes
/// are fenced and counted.
fn client_of_run(
    cluster: &Cluster,
    reads: Option<&CachedReads>,
    fence: Option<&Fence>,
    field_manager: &str,
) -> Client {
    let client = match reads {
        Some(reads) => reads.client(cluster),
        None => cluster.client().for_run(),
    }
    .observed(note_write)
    .field_manager(field_manager);
    match fence {
        Some(fence) => client.fenced(fence.clone()),
        None => client,
    }
}
