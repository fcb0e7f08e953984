// SPDX-License-Identifier: Apache-2.0
//! The clusters of a manager, which can be added and removed.
//!
//! # Guarantees
//! 1. No two clusters of a set have the same name.
//! 2. A removed cluster gets no new work from users of the set, also if they used it before.
//! 3. [`ClusterRemoval::vacated`] completes when all work on the cluster has ended.
//! 4. A new cluster with the name of a removed one is another cluster.

use std::{collections::BTreeMap, fmt, sync::Arc};

use steersman_cluster::{Cluster, ClusterName};
use tokio::sync::watch;

/// A set of clusters by name. Clones refer to the same set.
#[derive(Clone)]
pub struct ClusterSet(Arc<watch::Sender<Members>>);

#[derive(Default)]
pub(crate) struct Members {
    present: BTreeMap<ClusterName, Member>,
    /// Removed clusters that are not closed yet.
    leaving: Vec<Member>,
    /// Number of clusters that were ever added.
    arrivals: u64,
}

/// A cluster of the set.
#[derive(Clone)]
pub(crate) struct Member {
    cluster: Cluster,
    /// Distinguishes the cluster from earlier ones of its name.
    number: u64,
    guards: Arc<watch::Sender<usize>>,
}

/// Guard of work on a cluster of the set. Removal of the cluster waits until it is dropped.
pub(crate) struct ClusterGuard(Member);

/// A cluster that was removed from a set; from [`ClusterSet::begin_removal`]. While it is held, no new work begins on the cluster.
#[must_use = "the cluster is not closed by itself"]
pub struct ClusterRemoval {
    member: Member,
    cluster_set: ClusterSet,
}

/// Another cluster has the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another cluster is named `{name}`; give each cluster a unique name with `Cluster::builder(name)`")]
#[non_exhaustive]
pub struct DuplicateCluster {
    /// The name of both.
    pub name: ClusterName,
}

impl ClusterSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Members::default())))
    }

    /// Adds a cluster.
    ///
    /// # Errors
    /// When a cluster of this name exists.
    pub fn insert(&self, cluster: Cluster) -> Result<(), DuplicateCluster> {
        let mut result = Ok(());
        self.0.send_if_modified(|members| {
            let name = cluster.name().clone();
            if members.present.contains_key(&name) {
                result = Err(DuplicateCluster { name });
                return false;
            }
            members.arrivals += 1;
            let member = Member {
                cluster,
                number: members.arrivals,
                guards: Arc::default(),
            };
            members.present.insert(name, member);
            true
        });
        result
    }

    /// Removes a cluster. Its users are notified, and begin no new work.
    pub fn begin_removal(&self, name: &ClusterName) -> Option<ClusterRemoval> {
        let mut removed = None;
        self.0.send_if_modified(|members| {
            removed = members.present.remove(name);
            members.leaving.extend(removed.clone());
            removed.is_some()
        });
        removed.map(|member| ClusterRemoval {
            member,
            cluster_set: self.clone(),
        })
    }

    /// Returns the cluster of this name.
    #[must_use]
    pub fn get(&self, name: &ClusterName) -> Option<Cluster> {
        Some(self.0.borrow().present.get(name)?.cluster.clone())
    }

    pub(crate) fn member(&self, name: &ClusterName) -> Option<Member> {
        self.0.borrow().present.get(name).cloned()
    }

    /// Returns all clusters, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Cluster> {
        let members = self.0.borrow();
        members
            .present
            .values()
            .map(|member| member.cluster.clone())
            .collect()
    }

    /// Returns all clusters, and removed clusters that are not closed yet, by name. Of several with the same name, the last
    /// one.
    #[must_use]
    pub fn all_and_leaving(&self) -> Vec<Cluster> {
        let members = self.0.borrow();
        let each = members.leaving.iter().chain(members.present.values());
        let by_name: BTreeMap<_, _> = each.map(|member| (member.cluster.name(), member)).collect();
        by_name
            .into_values()
            .map(|member| member.cluster.clone())
            .collect()
    }

    /// Registers work on the cluster of this name.
    pub(crate) fn guard(&self, name: &ClusterName) -> Option<ClusterGuard> {
        // Counted before the set can change, so that a removal does not miss it.
        let members = self.0.borrow();
        let member = members.present.get(name)?;
        member.guards.send_modify(|guards| *guards += 1);
        Some(ClusterGuard(member.clone()))
    }

    /// Returns true if the cluster of the guard is still in the set.
    pub(crate) fn is_current(&self, guard: &ClusterGuard) -> bool {
        let members = self.0.borrow();
        let member = members.present.get(guard.0.cluster.name());
        member.is_some_and(|member| member.is(&guard.0))
    }

    /// Returns true if a cluster of this name was removed and is not closed yet.
    pub(crate) fn is_leaving(&self, name: &ClusterName) -> bool {
        let members = self.0.borrow();
        members.leaving.iter().any(|member| member.cluster.name() == name)
    }

    /// Subscribes to changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Members> {
        self.0.subscribe()
    }
}

impl Members {
    pub(crate) fn present(&self) -> &BTreeMap<ClusterName, Member> {
        &self.present
    }
}

impl Member {
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl ClusterGuard {
    pub(crate) fn member(&self) -> &Member {
        &self.0
    }
}

impl Drop for ClusterGuard {
    fn drop(&mut self) {
        self.0.guards.send_modify(|guards| *guards -= 1);
    }
}

impl ClusterRemoval {
    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.member.cluster
    }

    /// Waits until no work on the cluster is left.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn vacated(&self) {
        // The sender lives as long as `self`.
        let _ = self
            .member
            .guards
            .subscribe()
            .wait_for(|guards| *guards == 0)
            .await;
    }
}

impl Drop for ClusterRemoval {
    fn drop(&mut self) {
        self.cluster_set
            .0
            .send_modify(|members| members.leaving.retain(|member| !member.is(&self.member)));
    }
}

impl fmt::Debug for ClusterRemoval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterRemoval")
            .field(self.member.cluster.name())
            .finish()
    }
}

impl Default for ClusterSet {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ClusterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.borrow().present.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use steersman_cluster::ClusterState;

    use super::*;

    fn cluster(name: &str) -> Cluster {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let built = Cluster::builder(name).config(config).build().now_or_never();
        built.unwrap().unwrap()
    }

    #[tokio::test]
    async fn guarantee_1_a_name_is_taken_once() {
        let cluster_set = ClusterSet::new();
        cluster_set.insert(cluster("a")).unwrap();
        assert_eq!(cluster_set.insert(cluster("a")).unwrap_err().name, "a".into());
    }

    #[tokio::test]
    async fn guarantee_3_a_removal_waits_for_work_on_the_cluster() {
        let (cluster_set, name) = (ClusterSet::new(), ClusterName::from("a"));
        cluster_set.insert(cluster("a")).unwrap();
        let guard = cluster_set.guard(&name).unwrap();
        let removal = cluster_set.begin_removal(&name).unwrap();
        assert!(removal.vacated().now_or_never().is_none());
        assert!(!cluster_set.is_current(&guard) && cluster_set.is_leaving(&name));
        assert!(cluster_set.guard(&name).is_none());
        drop(guard);
        assert!(removal.vacated().now_or_never().is_some());
        assert_eq!(cluster_set.all_and_leaving().len(), 1);
        drop(removal);
        assert!(!cluster_set.is_leaving(&name) && cluster_set.all_and_leaving().is_empty());
    }

    #[tokio::test]
    async fn guarantee_4_a_new_cluster_with_the_name_of_a_removed_one_is_another_cluster() {
        let (cluster_set, name) = (ClusterSet::new(), ClusterName::from("a"));
        cluster_set.insert(cluster("a")).unwrap();
        let guard = cluster_set.guard(&name).unwrap();
        let _departure = cluster_set.begin_removal(&name).unwrap();
        let next = cluster("a");
        next.drain();
        cluster_set.insert(next).unwrap();
        let shown = cluster_set.all_and_leaving();
        assert_eq!(shown.len(), 1, "a name is shown once");
        assert_eq!(
            shown[0].state(),
            ClusterState::Draining,
            "as the one that came last"
        );
        assert!(!cluster_set.is_current(&guard));
        assert!(cluster_set.is_current(&cluster_set.guard(&name).unwrap()));
    }
}
