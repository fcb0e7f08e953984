// SPDX-License-Identifier: Apache-2.0
//! Session: the work of one run of a controller on one cluster.

mod kind_guard;

use std::{collections::BTreeMap, future::Future, sync::Arc};

use steersman_cluster::{Client, Cluster, ClusterName, Fence, RecordedEvent, Recorder};

pub(crate) use self::kind_guard::{KindGuard, is_over};
use crate::{ClusterSet, Stop, cached_reads::CachedReads, cluster_set::ClusterGuard, hot_loop::note_write};
use steersman_core::Mutex;

/// State that all reconciles of one run in one cluster share.
pub(crate) struct ClusterSession {
    pub(crate) controller: Arc<str>,
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    field_manager: Arc<str>,
    pub(crate) recorder: Recorder,
    pub(crate) stop: Stop,
    fence: Option<Fence>,
    cluster_set: ClusterSet,
    /// `None` without a run: then informers that reads start end with this session.
    reads: Option<Arc<CachedReads>>,
    /// `None` if the cluster is not in the cluster set.
    guard: Option<ClusterGuard>,
    /// Requested clients of other clusters, with the number that distinguishes a cluster from an earlier one of its name.
    other_clients: Mutex<BTreeMap<ClusterName, (u64, Client)>>,
    /// `None` if the work does not end with a kind.
    kind_guard: Option<KindGuard>,
    on_removed: Arc<[OnClusterRemoved]>,
}

/// Drops the state of a reconciler about the objects of a removed cluster.
pub(crate) type OnClusterRemoved = Arc<dyn Fn(&ClusterName) + Send + Sync>;

/// Settings of a session.
pub(crate) struct SessionOptions<'a> {
    pub(crate) controller: &'a str,
    pub(crate) field_manager: &'a str,
    /// Guard of the cluster in the cluster set; `None` if the set does not have it.
    pub(crate) guard: Option<ClusterGuard>,
    /// `None` without a run.
    pub(crate) reads: Option<Arc<CachedReads>>,
    pub(crate) fence: Option<Fence>,
    pub(crate) cluster_set: ClusterSet,
    pub(crate) stop: Stop,
    /// Called when the session has ended with its cluster.
    pub(crate) on_removed: Arc<[OnClusterRemoved]>,
}

impl ClusterSession {
    /// Creates a session.
    pub(crate) fn new(cluster: &Cluster, options: SessionOptions<'_>) -> Self {
        let SessionOptions {
            controller,
            field_manager,
            guard,
            reads,
            fence,
            cluster_set,
            stop,
            on_removed,
        } = options;
        Self {
            controller: controller.into(),
            client: client_of_run(cluster, reads.as_deref(), fence.as_ref(), field_manager),
            field_manager: field_manager.into(),
            recorder: match &fence {
                Some(fence) => cluster.recorder(controller).fenced(fence.clone()),
                None => cluster.recorder(controller),
            },
            cluster: cluster.clone(),
            guard,
            stop,
            fence,
            cluster_set,
            reads,
            other_clients: Mutex::default(),
            kind_guard: None,
            on_removed,
        }
    }

    pub(crate) fn field_manager(&self) -> &str {
        &self.field_manager
    }

    /// Adds a callback for recorded events.
    pub(crate) fn recorded(mut self, observer: impl Fn(&RecordedEvent) + Send + Sync + 'static) -> Self {
        self.recorder = self.recorder.clone().observed(observer);
        self
    }

    /// Ends the session with the kind.
    pub(crate) fn during(mut self, kind_guard: KindGuard) -> Self {
        self.stop = kind_guard.end().joined(&self.stop);
        self.kind_guard = Some(kind_guard);
        self
    }

    /// Returns true if the kind of the session was removed.
    pub(crate) fn is_over(&self) -> bool {
        self.kind_guard
            .as_ref()
            .is_some_and(|kind_guard| kind_guard.end().is_requested())
    }

    /// Returns true if work on the cluster can begin.
    pub(crate) fn is_current(&self) -> bool {
        match &self.guard {
            Some(guard) => self.cluster_set.is_current(guard),
            None => !self.cluster.is_closed() && !self.cluster_set.is_leaving(self.cluster.name()),
        }
    }

    /// Runs `work`, unless the cluster or the kind was removed and the shutdown timeout after that has passed.
    pub(crate) async fn unless_dismissed<F: Future>(&self, work: F) -> Option<F::Output> {
        let Some(kind_guard) = &self.kind_guard else {
            return self.cluster.until_closed(work).await;
        };
        let staying = async {
            tokio::select! {
                biased;
                output = work => Some(output),
                () = kind_guard.overdue() => {
                    tracing::warn!("kind was removed; cancelling the reconcile");
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
        let guard = self.cluster_set.guard(name)?;
        let member = guard.member();
        let mut other_clients = self.other_clients.lock();
        let known = other_clients
            .get(name)
            .filter(|(number, _)| *number == member.number());
        let client = match known {
            Some((_, client)) => client.clone(),
            None => client_of_run(
                member.cluster(),
                self.reads.as_deref(),
                self.fence.as_ref(),
                &self.field_manager,
            ),
        };
        other_clients.insert(name.clone(), (member.number(), client.clone()));
        drop(other_clients);
        Some((client, Some(guard)))
    }

    /// Drops the clients of removed clusters.
    pub(crate) fn drop_other_clients(&self) {
        let mut other_clients = self.other_clients.lock();
        other_clients.retain(|name, (number, _)| {
            let member = self.cluster_set.member(name);
            member.is_some_and(|member| member.number() == *number)
        });
    }
}

/// The last reconcile of a removed cluster has ended: none can add state about its objects any more.
impl Drop for ClusterSession {
    fn drop(&mut self) {
        if !self.on_removed.is_empty() && !self.is_current() {
            let name = self.cluster.name();
            self.on_removed.iter().for_each(|forget| forget(name));
        }
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
