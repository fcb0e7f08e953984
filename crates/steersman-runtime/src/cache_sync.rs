// SPDX-License-Identifier: Apache-2.0
//! Caches that are filled before something begins that reads from them.
//!
//! # Guarantees
//! 1. All are filled at the same time. One is waited for until it is in sync, or known to be absent, forbidden or out of
//!    reach, or its cluster is gone.
//! 2. One that is wanted only with certain kinds is not asked for before it is known that they are installed.
//! 3. They are kept while what wants them runs; those that depend on a kind until it has begun, so that they can end when
//!    the kind goes.
//! 4. Whoever lets a cluster go waits for those that run and [name](Runnable::clusters) it.

use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use steersman_cache::{InformerHandle, ObjectDetail, Resource, Scope};
use steersman_cluster::{Cluster, ClusterName, POLL_EVERY, PresenceWatch};
use steersman_core::MonotonicTime;

use crate::{BoxError, ClusterSet, RunContext, Runnable, RunnableStatus};

/// Objects that somebody will read from a cache.
#[derive(Clone, Debug)]
pub struct CacheRequirement {
    /// Nothing for every cluster.
    cluster: Option<Cluster>,
    resource: Resource,
    scope: Option<Scope>,
    metadata_only: bool,
    /// How often to look whether the resource itself is installed, where it is wanted only then.
    if_installed: Option<Duration>,
    /// Other kinds without which it is not wanted.
    given: Vec<Installed>,
}

/// A kind that a cluster has to have.
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
    /// The objects of a resource as the cluster's cache is set up for it, or a part of them.
    #[must_use]
    pub fn new(cluster: Cluster, resource: Resource, scope: Option<Scope>) -> Self {
        Self::of(Some(cluster), resource, scope)
    }

    /// The same in every cluster that there is when something begins.
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

    /// Whether objects of this cluster are wanted.
    #[must_use]
    pub fn is_in(&self, cluster: &ClusterName) -> bool {
        self.cluster.as_ref().is_none_or(|own| own.name() == cluster)
    }

    /// Only where the cluster has the kind. Default: it is a mistake if it does not.
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

    /// Only while these are there.
    pub(crate) fn given(mut self, kinds: &[Installed]) -> Self {
        self.given.extend_from_slice(kinds);
        self
    }

    /// The informer in this cluster, or a share in it.
    pub(crate) fn informer(&self, cluster: &Cluster) -> InformerHandle {
        let cache = cluster.cache();
        match (&self.scope, self.metadata_only) {
            (Some(scope), false) => cache.informer_in(&self.resource, scope),
            (Some(scope), true) => cache.informer_in(&self.resource, &scope.clone().metadata_only()),
            (None, false) => cache.informer(&self.resource),
            (None, true) => cache.informer_for(&self.resource, ObjectDetail::Metadata),
        }
    }

    /// What it is in each cluster.
    fn parts(self, fleet: &ClusterSet) -> Vec<Part> {
        let clusters = self.cluster.clone().map_or_else(|| fleet.all(), |one| vec![one]);
        clusters
            .into_iter()
            .map(|cluster| Part::new(self.clone(), cluster))
            .collect()
    }
}

/// Caches that are filled, as long as it is held.
#[derive(Debug)]
pub(crate) struct CacheSync(Vec<Part>);

/// A cache that cannot be filled at the moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub(crate) struct NotSynced {
    /// Of which kind.
    pub kind: Resource,
    /// Where.
    pub cluster: Cluster,
    /// What is in the way.
    pub reason: String,
}

/// One of them.
#[derive(Debug)]
struct Part {
    wanted: CacheRequirement,
    cluster: Cluster,
    presences: Vec<PresenceWatch>,
    held: Option<InformerHandle>,
}

impl CacheSync {
    /// Begins to fill what is wanted.
    #[must_use]
    pub(crate) fn start(wanted: impl IntoIterator<Item = CacheRequirement>, fleet: &ClusterSet) -> Self {
        Self(
            wanted
                .into_iter()
                .flat_map(|wanted| wanted.parts(fleet))
                .collect(),
        )
    }

    /// Waits until there is nothing more to wait for. `told` hears what is waited for, whenever that changes, and `missing`
    /// what is waited for no more though it is not filled.
    ///
    /// # Cancel safety
    /// It can be dropped at any time, and be called again.
    pub(crate) async fn filled(
        &mut self,
        mut told: impl FnMut(Vec<String>),
        mut missing: impl FnMut(NotSynced),
    ) {
        let mut waiting: Vec<Option<String>> = self.0.iter().map(|part| Some(part.name())).collect();
        let settling = self.0.iter_mut().enumerate().map(|(number, part)| async move {
            let reason = part.settle().await;
            let (kind, cluster) = (&part.wanted.resource, &part.cluster);
            tracing::debug!(%kind, cluster = %cluster.name(), reason, "settled");
            let unfilled = reason.map(|reason| NotSynced {
                kind: kind.clone(),
                cluster: cluster.clone(),
                reason,
            });
            (number, unfilled)
        });
        let mut settling: FuturesUnordered<_> = settling.collect();
        while !settling.is_empty() {
            told(waiting.iter().flatten().cloned().collect());
            if let Some((number, unfilled)) = settling.next().await {
                waiting[number] = None;
                unfilled.into_iter().for_each(&mut missing);
            }
        }
        told(Vec::new());
    }

    /// Lets those go that depend on a kind.
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

    /// Waits until it is filled, or there is nothing to wait for; gives what is in its way.
    async fn settle(&mut self) -> Option<String> {
        let cluster = self.cluster.clone();
        // A cluster that goes is waited for no longer.
        cluster.until_closed(self.settle_in_cluster()).await?
    }

    async fn settle_in_cluster(&mut self) -> Option<String> {
        for presence in &mut self.presences {
            let sighting = presence.when(|sighting| !sighting.is_pending).await;
            if sighting.is_absent() {
                return None;
            }
            if !sighting.is_present() {
                return Some(sighting.reason.to_string());
            }
        }
        let informer = self
            .held
            .get_or_insert_with(|| self.wanted.informer(&self.cluster));
        let trouble = informer.settled().await.err()?;
        Some(trouble.to_string())
    }
}

/// Runs something as soon as the caches that it wants are filled, or the deadline has passed.
///
/// # Errors
/// Those of what runs.
///
/// # Cancel safety
/// As that of what runs.
pub(crate) async fn run_synced(
    runnable: &impl Runnable,
    cx: RunContext,
    deadline: MonotonicTime,
) -> Result<(), BoxError> {
    let named = runnable.clusters();
    let _visits: Vec<_> = named
        .iter()
        .filter_map(|name| cx.clusters().visit(name))
        .collect();
    let mut filling = CacheSync::start(runnable.caches(), cx.clusters());
    if cx.clock().now() < deadline {
        let told = |on: Vec<String>| {
            if !on.is_empty() {
                cx.set_status(RunnableStatus::Waiting { on });
            }
        };
        tokio::select! {
            biased;
            _ = cx.stop().requested() => return Ok(()),
            // The barrier of the start has said what is not filled, and so does whoever needs it.
            () = filling.filled(told, drop) => {}
            () = cx.clock().sleep_until(deadline) => {
                tracing::warn!(name = runnable.name(), "its caches are not in sync in time; it starts without them");
            }
        }
    }
    cx.set_status(RunnableStatus::its_start());
    let mut running = std::pin::pin!(runnable.run(cx.clone()));
    tokio::select! {
        biased;
        result = &mut running => return result,
        // It has its own shares by then.
        () = cx.begun() => filling.release_conditional(),
    }
    running.await
}
