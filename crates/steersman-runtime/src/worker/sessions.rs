// SPDX-License-Identifier: Apache-2.0
//! The sessions of one term: one for each cluster that its workers work on.

use std::{collections::BTreeMap, sync::Arc};

use steersman_core::RwLock;

use steersman_cluster::{Cluster, ClusterName};
use steersman_queue::Item;
use tokio::sync::Notify;

use super::WorkerPool;
use crate::{
    RequestKey,
    cluster_session::{ClusterSession, KindGuard, SessionOptions},
    cluster_set::ClusterGuard,
    kind::WhenAbsent,
};

#[derive(Default)]
pub(super) struct Sessions {
    by_cluster: RwLock<BTreeMap<ClusterName, Arc<ClusterSession>>>,
    /// Notified of each cluster whose kind was removed.
    kind_removed: Arc<Notify>,
}

/// A cluster to work on.
struct SessionCluster {
    cluster: Cluster,
    /// Excludes another cluster of the same name. `None` if the cluster is not in the cluster set.
    guard: Option<ClusterGuard>,
}

impl<R: RequestKey> WorkerPool<R> {
    /// Returns the session of a key's cluster, unless the cluster or the kind was removed.
    pub(super) fn session(&self, key: &R) -> Option<Arc<ClusterSession>> {
        let name = key.cluster().unwrap_or_else(|| self.run.plan.home.name());
        let sessions = &self.sessions.by_cluster;
        let known = sessions.read();
        if let Some(found) = known.get(name).filter(|found| self.is_active(found)) {
            return Some(Arc::clone(found));
        }
        drop(known);
        let opened = self.open_session(self.session_cluster(name)?)?;
        if !self.is_active(&opened) {
            return None;
        }
        let mut all = sessions.write();
        // Another worker might have been faster.
        let session = match all.remove(name).filter(|other| self.is_active(other)) {
            Some(other) => other,
            None => opened,
        };
        all.insert(name.clone(), Arc::clone(&session));
        Some(session)
    }

    /// Returns the key, unless it has to wait until its cluster is in sync. Applies to controllers of every cluster.
    pub(super) fn pass_gate(&self, item: Item<R>) -> Option<Item<R>> {
        let name = item.key().cluster().filter(|_| self.run.plan.is_everywhere());
        match name.and_then(|name| self.run.cx.clusters().member(name)) {
            Some(member) => self.run.gates.sink(&member).hold_back(item),
            None => Some(item),
        }
    }

    /// Returns true if new work on the cluster can begin. The whole controller ends with its default cluster.
    fn is_active(&self, session: &ClusterSession) -> bool {
        let is_home = session.cluster.name() == self.run.plan.home.name();
        !session.is_over() && (is_home || session.is_current())
    }

    /// Returns the cluster of this name: the default one, one of the cluster set, or one that a source is bound to.
    fn session_cluster(&self, name: &ClusterName) -> Option<SessionCluster> {
        let (plan, clusters) = (&self.run.plan, self.run.cx.clusters());
        let guard = clusters.guard(name);
        let cluster = match &guard {
            _ if name == plan.home.name() => plan.home.clone(),
            Some(guard) => guard.member().cluster().clone(),
            None => plan.bound_cluster(name).filter(|_| !clusters.is_leaving(name))?,
        };
        Some(SessionCluster { cluster, guard })
    }

    /// Waits until the kind was removed from a cluster.
    pub(crate) async fn kind_removed(&self) {
        self.sessions.kind_removed.notified().await;
    }

    /// Ends the work on clusters that were removed or lost the kind, and drops the keys of removed clusters.
    pub(crate) fn dismiss_absent(&self) {
        let sessions = &self.sessions.by_cluster;
        let mut all = sessions.write();
        all.retain(|_, session| self.is_active(session));
        all.values().for_each(|one| one.drop_other_clients());
        drop(all);
        let is_gone = |name: &ClusterName| self.session_cluster(name).is_none();
        let is_of_removed = |key: &R| key.cluster().is_some_and(is_gone);
        self.run.plan.queue.purge(is_of_removed);
        self.unsynced.lock().retain(|key, _| !is_of_removed(key));
    }

    fn open_session(&self, SessionCluster { cluster, guard }: SessionCluster) -> Option<Arc<ClusterSession>> {
        let (plan, cx) = (&self.run.plan, &self.run.cx);
        let session = ClusterSession::new(
            &cluster,
            SessionOptions {
                controller: &plan.name,
                field_manager: plan.options.field_manager_of(&plan.name),
                guard,
                reads: Some(Arc::clone(&self.run.reads)),
                fence: Some(self.term.fence().clone()),
                cluster_set: cx.clusters().clone(),
                stop: cx.stop().joined(self.term.stop()),
                on_removed: Arc::clone(&plan.on_cluster_removed),
            },
        );
        let Some(kind) = plan.passing_kind(&cluster) else {
            return Some(Arc::new(session));
        };
        let presence = cluster.presence(&kind.resource, plan.options.polled_every());
        // A key that changed during its reconcile is handed out once more before it is removed from the queue.
        if kind.when_absent == WhenAbsent::Wait && presence.now().is_absent() {
            return None;
        }
        let guard = KindGuard::follow(presence, cx, &self.sessions.kind_removed);
        Some(Arc::new(session.during(guard)))
    }
}
