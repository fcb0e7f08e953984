// SPDX-License-Identifier: Apache-2.0
//! The clusters that something runs on, which come and go.

use std::{collections::BTreeMap, fmt, sync::Arc};

use steersman_cluster::{Cluster, ClusterName};
use tokio::sync::watch;

/// A set of clusters by name. Clones are one fleet.
#[derive(Clone)]
pub struct Fleet(Arc<watch::Sender<Members>>);

type Members = BTreeMap<ClusterName, Member>;

#[derive(Clone)]
pub(crate) struct Member {
    cluster: Cluster,
    visits: Arc<watch::Sender<usize>>,
}

/// Work on a cluster of a fleet. Whoever lets the cluster go waits until it drops.
pub(crate) struct Visit(Arc<watch::Sender<usize>>);

/// A cluster that was taken out of a fleet; from [`Fleet::depart`].
#[must_use = "the cluster is not closed by itself"]
pub struct Departure(Member);

/// There is another cluster of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is a cluster named `{name}` already: give each cluster a name of its own with `Cluster::builder(name)`"
)]
#[non_exhaustive]
pub struct NameTaken {
    /// The name that both have.
    pub name: ClusterName,
}

impl Fleet {
    /// Without clusters.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Members::new())))
    }

    /// Adds a cluster.
    ///
    /// # Errors
    /// When there is one of this name.
    pub fn insert(&self, cluster: Cluster) -> Result<(), NameTaken> {
        let mut result = Ok(());
        self.0.send_if_modified(|members| {
            let name = cluster.name().clone();
            if members.contains_key(&name) {
                result = Err(NameTaken { name });
                return false;
            }
            let visits = Arc::new(watch::Sender::new(0));
            members.insert(name, Member { cluster, visits });
            true
        });
        result
    }

    /// Takes a cluster out. Those who work on it are told, and begin nothing new.
    pub fn depart(&self, name: &ClusterName) -> Option<Departure> {
        let mut removed = None;
        self.0.send_if_modified(|members| {
            removed = members.remove(name);
            removed.is_some()
        });
        removed.map(Departure)
    }

    /// The cluster of this name.
    #[must_use]
    pub fn get(&self, name: &ClusterName) -> Option<Cluster> {
        Some(self.0.borrow().get(name)?.cluster.clone())
    }

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Cluster> {
        let members = self.0.borrow();
        members.values().map(|member| member.cluster.clone()).collect()
    }

    /// Says that somebody works on the cluster of this name.
    pub(crate) fn visit(&self, name: &ClusterName) -> Option<Visit> {
        let visits = Arc::clone(&self.0.borrow().get(name)?.visits);
        visits.send_modify(|visits| *visits += 1);
        Some(Visit(visits))
    }

    /// A receiver that is told of each change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Members> {
        self.0.subscribe()
    }
}

impl Member {
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.send_modify(|visits| *visits -= 1);
    }
}

impl Departure {
    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// Waits until nobody works on it any more.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn vacated(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.visits.subscribe().wait_for(|visits| *visits == 0).await;
    }
}

impl fmt::Debug for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Departure").field(self.0.cluster.name()).finish()
    }
}

impl Default for Fleet {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.borrow().keys()).finish()
    }
}
