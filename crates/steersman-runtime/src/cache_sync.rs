// SPDX-License-Identifier: Apache-2.0
//! Syncs caches before a runnable that reads them starts.
//!
//! # Guarantees
//! 1. All caches sync at the same time. The wait for a cache ends when it is in sync, when it is known to be absent,
//!    forbidden or unreachable, or when its cluster is removed.
//! 2. A cache that requires certain kinds is not listed before these kinds are known to be installed.
//! 3. Caches are held while their runnable runs. Caches that depend on a kind are held only until the runnable has started,
//!    so that they can end when the kind is removed.
//! 4. Removal of a cluster waits for running runnables that [name](Runnable::clusters) it.

use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use steersman_cache::{InformerHandle, ObjectDetail, Resource, Scope};
use steersman_cluster::{Cluster, ClusterName, POLL_EVERY, PresenceWatch};
use steersman_core::MonotonicTime;

use crate::{BoxError, ClusterSet, RunContext, Runnable, RunnableStatus};

/// Objects that a runnable reads from a cache.
#[derive(Clone, Debug)]
pub struct CacheRequirement {
    /// `None` means every cluster.
    cluster: Option<Cluster>,
    resource: Resource,
    scope: Option<Scope>,
    metadata_only: bool,
    /// Poll interval for the presence of the resource, if it is required only while installed.
    if_installed: Option<Duration>,
    /// Other kinds that have to be installed as well.
    given: Vec<Installed>,
}

/// A kind that has to be installed in a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    cluster: Cluster,
    resource: Resource,
    poll_every: Duration,
}

impl Installed {
    pub(crate) fn new(cluster: &Cluster, resource: &Resource, poll_every: Duration) -> Self {
        Self {
            cluster: cluster.clone(),
            resource: resource.clone(),
            poll_every,
        }
    }

    fn presence(&self) -> PresenceWatch {
        self.cluster.presence(&self.resource, self.poll_every)
    }
}

impl CacheRequirement {
    /// Requires the objects of a resource, in `scope` or in the scope that the cluster's cache is set up for.
    #[must_use]
    pub fn new(cluster: Cluster, resource: Resource, scope: Option<Scope>) -> Self {
        Self::of(Some(cluster), resource, scope)
    }

    /// Requires the objects of a resource in every cluster that exists at the start.
    #[must_use]
    pub fn on_every_cluster(resource: Resource, scope: Option<Scope>) -> Self {
        Self::of(None, resource, scope)
    }

    pub(crate) fn of(cluster: Option<Cluster>, resource: Resource, scope: Option<Scope>) -> Self {
        Self {
            cluster,
            resource,
            scope,
            metadata_only: false,
            if_installed: None,
            given: Vec::new(),
        }
    }

    /// The resource.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Returns true if objects of this cluster are required.
    #[must_use]
    pub fn is_in(&self, cluster: &ClusterName) -> bool {
        self.cluster.as_ref().is_none_or(|own| own.name() == cluster)
    }

    /// Requires the cache only while the kind is installed. Default: a missing kind is an error.
    #[must_use]
    pub fn if_installed(self) -> Self {
        self.polled(POLL_EVERY)
    }

    pub(crate) fn polled(self, poll_every: Duration) -> Self {
        Self {
            if_installed: Some(poll_every),
            ..self
        }
    }

    pub(crate) fn metadata_only(self) -> Self {
        Self {
            metadata_only: true,
            ..self
        }
    }

    /// Requires the cache only while these kinds are installed.
    pub(crate) fn given(mut self, kinds: &[Installed]) -> Self {
        self.given.extend_from_slice(kinds);
        self
    }

    /// Returns a handle of the informer in this cluster; opens it if needed.
    pub(crate) fn informer(&self, cluster: &Cluster) -> InformerHandle {
        let cache = cluster.cache();
        match (&self.scope, self.metadata_only) {
            (Some(scope), false) => cache.informer_in(&self.resource, scope),
            (Some(scope), true) => cache.informer_in(&self.resource, &scope.clone().metadata_only()),
            (None, false) => cache.informer(&self.resource),
            (None, true) => cache.informer_for(&self.resource, ObjectDetail::Metadata),
        }
    }

    /// Returns the caches of all clusters of this requirement.
    fn parts(self, cluster_set: &ClusterSet) -> Vec<Part> {
        let clusters = self
            .cluster
            .clone()
            .map_or_else(|| cluster_set.all(), |one| vec![one]);
        clusters
            .into_iter()
            .map(|cluster| Part::new(self.clone(), cluster))
            .collect()
    }
}

/// Holds caches in sync until it is dropped.
#[derive(Debug)]
pub(crate) struct CacheSync(Vec<Part>);

/// A cache that cannot sync at the moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub(crate) struct NotSynced {
    /// The kind.
    pub kind: Resource,
    /// The cluster.
    pub cluster: Cluster,
    /// The error.
    pub reason: String,
}

/// The cache of one kind in one cluster.
#[derive(Debug)]
struct Part {
    wanted: CacheRequirement,
    cluster: Cluster,
    presences: Vec<PresenceWatch>,
    held: Option<InformerHandle>,
}

impl CacheSync {
    /// Starts to sync the required caches.
    #[must_use]
    pub(crate) fn start(
        wanted: impl IntoIterator<Item = CacheRequirement>,
        cluster_set: &ClusterSet,
    ) -> Self {
        Self(
            wanted
                .into_iter()
                .flat_map(|wanted| wanted.parts(cluster_set))
                .collect(),
        )
    }

    /// Waits until every cache is in sync or is not worth waiting for. Calls `report` with the caches that are waited for, on
    /// each change, and `missing` with each cache that is not in sync and not waited for any more.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time, and the method called again.
    pub(crate) async fn filled(
        &mut self,
        mut report: impl FnMut(Vec<String>),
        mut missing: impl FnMut(NotSynced),
    ) {
        let mut waiting: Vec<Option<String>> = self.0.iter().map(|part| Some(part.name())).collect();
        let settling = self.0.iter_mut().enumerate().map(|(number, part)| async move {
            let reason = part.settle().await;
            let (kind, cluster) = (&part.wanted.resource, &part.cluster);
            tracing::debug!(%kind, cluster = %cluster.name(), reason, "cache sync finished");
            let unfilled = reason.map(|reason| NotSynced {
                kind: kind.clone(),
                cluster: cluster.clone(),
                reason,
            });
            (number, unfilled)
        });
        let mut settling: FuturesUnordered<_> = settling.collect();
        while !settling.is_empty() {
            report(waiting.iter().flatten().cloned().collect());
            if let Some((number, unfilled)) = settling.next().await {
                waiting[number] = None;
                unfilled.into_iter().for_each(&mut missing);
            }
        }
        report(Vec::new());
    }

    /// Releases the caches that depend on a kind.
    fn release_conditional(&mut self) {
        self.0.retain(|part| part.presences.is_empty());
    }
}

impl Part {
    fn new(wanted: CacheRequirement, cluster: Cluster) -> Self {
        let own = wanted
            .if_installed
            .map(|poll_every| Installed::new(&cluster, &wanted.resource, poll_every));
        let presences: Vec<PresenceWatch> =
            wanted.given.iter().chain(&own).map(Installed::presence).collect();
        Self {
            held: presences.is_empty().then(|| wanted.informer(&cluster)),
            wanted,
            cluster,
            presences,
        }
    }

    fn name(&self) -> String {
        format!("{} (cluster {})", self.wanted.resource, self.cluster.name())
    }

    /// Waits until the cache is in sync, or cannot sync; returns the error.
    async fn settle(&mut self) -> Option<String> {
        let cluster = self.cluster.clone();
        // A removed cluster ends the wait.
        cluster.until_closed(self.settle_in_cluster()).await?
    }

    async fn settle_in_cluster(&mut self) -> Option<String> {
        for presence in &mut self.presences {
            let presence_status = presence.when(|presence_status| !presence_status.is_pending).await;
            if presence_status.is_absent() {
                return None;
            }
            if !presence_status.is_present() {
                return Some(presence_status.reason.to_string());
            }
        }
        let informer = self
            .held
            .get_or_insert_with(|| self.wanted.informer(&self.cluster));
        let trouble = informer.settled().await.err()?;
        Some(trouble.to_string())
    }
}

/// Runs a runnable once its caches are in sync, or the deadline has passed.
///
/// # Errors
/// Errors of the runnable.
///
/// # Cancel safety
/// As that of the runnable.
pub(crate) async fn run_synced(
    runnable: &impl Runnable,
    cx: RunContext,
    deadline: MonotonicTime,
) -> Result<(), BoxError> {
    let named = runnable.clusters();
    let _visits: Vec<_> = named
        .iter()
        .filter_map(|name| cx.clusters().guard(name))
        .collect();
    let mut filling = CacheSync::start(runnable.caches(), cx.clusters());
    if cx.clock().now() < deadline {
        let report = |on: Vec<String>| {
            if !on.is_empty() {
                cx.set_status(RunnableStatus::Waiting { on });
            }
        };
        tokio::select! {
            biased;
            _ = cx.stop().requested() => return Ok(()),
            // The wait at startup has logged what is not in sync, and each user of the cache reports it too.
            () = filling.filled(report, drop) => {}
            () = cx.clock().sleep_until(deadline) => {
                tracing::warn!(name = runnable.name(), "caches not in sync in time; starting without them");
            }
        }
    }
    cx.set_status(RunnableStatus::waiting_for_start());
    let mut running = std::pin::pin!(runnable.run(cx.clone()));
    tokio::select! {
        biased;
        result = &mut running => return result,
        // By then the runnable holds its own handles.
        () = cx.begun() => filling.release_conditional(),
    }
    running.await
}
