// SPDX-License-Identifier: Apache-2.0
//! The cached reads of one run of a controller.
//!
//! # Guarantees
//! 1. A kind that the controller watches in a cluster is read there from the informers that trigger it, so that a reconcile
//!    sees at least the change that triggered it.
//! 2. The run holds each additional informer that a reconcile has opened, also after it has lost leadership.
//! 3. Such an informer counts for the status of the controller: if it is in the default cluster and fails, the controller
//!    is degraded.
//! 4. A warm controller that opens one logs a warning, once for each kind: a standby does not have it.
//! 5. A key that failed because caches of some kinds were not in sync is reconciled again as soon as one of them is,
//!    whatever its back-off. The recovery of another kind does not retry it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::future::select_all;
use steersman_cache::{Health, InformerHandle, ObjectDetail, ReadScopes, Resource, WatchError};
use steersman_cluster::{Client, Cluster, ClusterName};
use tokio::sync::{Notify, watch};

use crate::{
    ClusterSet, RequestKey, RunContext, RunPolicy,
    controller::Plan,
    kind::KindSpec,
    source::{Reporter, SourceState},
};
use steersman_core::Mutex;

/// Clients for the reads of the reconciles of a run, one for each cluster.
pub(crate) struct CachedReads {
    controller: Arc<str>,
    default_cluster: Cluster,
    is_warm: bool,
    watched: Vec<KindSpec>,
    clients: Mutex<BTreeMap<ClusterName, (Cluster, Client)>>,
    /// Notified when an informer is opened or released.
    changed: Arc<Notify>,
    recoveries: watch::Sender<Recoveries>,
}

/// Counts recoveries: an informer became readable that was not before.
#[derive(Default)]
pub(crate) struct Recoveries {
    count: u64,
    /// Number of the last recovery of each kind.
    last: BTreeMap<Resource, u64>,
}

impl CachedReads {
    pub(crate) fn new<R: RequestKey>(plan: &Plan<R>) -> Self {
        let watched = plan.sources.iter().filter_map(|source| source.kind().cloned());
        Self {
            controller: Arc::clone(&plan.name),
            default_cluster: plan.home.clone(),
            is_warm: plan.options.needed() == RunPolicy::Warm,
            watched: watched.collect(),
            clients: Mutex::default(),
            changed: Arc::default(),
            recoveries: watch::Sender::default(),
        }
    }

    /// Returns the client for a cluster, without fences.
    pub(crate) fn client(&self, cluster: &Cluster) -> Client {
        let mut clients = self.clients.lock();
        let known = clients
            .get(cluster.name())
            .filter(|(known, _)| known.ptr_eq(cluster));
        if let Some((_, client)) = known {
            return client.clone();
        }
        let client = cluster.client().for_run_in(self.scopes(cluster));
        let replaced = clients.insert(cluster.name().clone(), (cluster.clone(), client.clone()));
        drop(clients);
        drop(replaced);
        client
    }

    /// Returns the scopes in which the controller watches kinds in a cluster.
    fn scopes(&self, cluster: &Cluster) -> ReadScopes {
        let watched = self.watched.iter().filter(|kind| {
            let place = kind.cluster(&self.default_cluster);
            place.is_none_or(|place| place.name() == cluster.name())
        });
        let scopes = ReadScopes::new().notifying(Arc::clone(&self.changed));
        watched.fold(scopes, |scopes, kind| {
            let wanted = match kind.metadata_only {
                true => ObjectDetail::Metadata,
                false => ObjectDetail::Full,
            };
            scopes.with(kind.resource.clone(), kind.scope.clone(), wanted)
        })
    }

    /// Drops the clients of removed clusters.
    fn dismiss_absent(&self, cluster_set: &ClusterSet) {
        let is_present = |cluster: &Cluster| {
            let member = cluster_set.member(cluster.name());
            let is_bound = || {
                let mut places = self
                    .watched
                    .iter()
                    .map(|kind| kind.cluster(&self.default_cluster));
                places.any(|place| place.is_some_and(|place| place.ptr_eq(cluster)))
            };
            member.is_some_and(|member| member.cluster().ptr_eq(cluster))
                || self.default_cluster.ptr_eq(cluster)
                || is_bound() && !cluster.is_closed()
        };
        let mut clients = self.clients.lock();
        let absent = clients.iter().filter(|(_, (cluster, _))| !is_present(cluster));
        let absent: Vec<ClusterName> = absent.map(|(name, _)| name.clone()).collect();
        let dropped: Vec<_> = absent.iter().map(|name| clients.remove(name)).collect();
        // Dropped after the lock is released: the end of a cluster frees its caches.
        drop(clients);
        drop(dropped);
    }

    /// Returns the informers that reads have opened.
    fn opened(&self) -> Vec<Opened> {
        let clients = self.clients.lock();
        let of_cluster = |(cluster, (_, client)): (&ClusterName, &(Cluster, Client))| {
            let opened = client.reader().opened().into_iter();
            let with_cluster = opened.map(|(informer, is_declared)| Opened {
                cluster: cluster.clone(),
                informer,
                is_declared,
            });
            with_cluster.collect::<Vec<_>>()
        };
        clients.iter().flat_map(of_cluster).collect()
    }

    /// Watches the recoveries.
    pub(crate) fn recoveries(&self) -> watch::Receiver<Recoveries> {
        self.recoveries.subscribe()
    }

    /// Number of recoveries so far.
    pub(crate) fn recovery_count(&self) -> u64 {
        self.recoveries.borrow().count
    }

    /// Number of the last recovery of each kind.
    pub(crate) fn last_recoveries(&self) -> BTreeMap<Resource, u64> {
        self.recoveries.borrow().last.clone()
    }

    /// Reports the state of the undeclared informers, and publishes recoveries, for as long as the run lasts.
    pub(crate) async fn follow(&self, cx: &RunContext, reporter: &Reporter) {
        let mut members = cx.clusters().subscribe();
        let (mut warned, mut was_readable) = (BTreeSet::new(), BTreeSet::new());
        loop {
            self.dismiss_absent(cx.clusters());
            let opened = self.opened();
            self.warn(&opened, &mut warned);
            let known: Vec<Readability> = opened
                .iter()
                .map(|one| Readability::of(&one.informer.health()))
                .collect();
            let own = self.default_cluster.name();
            let state = self.state(&opened, &known);
            reporter.report(match cx.cluster_roles().is_other_cluster(own) {
                true => state.elsewhere(own),
                false => state,
            });
            let now_readable = readable(&opened, &known);
            let recovered = now_readable.difference(&was_readable);
            let recovered: Vec<Resource> = recovered.map(|(_, kind, _)| kind.clone()).collect();
            was_readable = now_readable;
            if !recovered.is_empty() {
                self.recoveries
                    .send_modify(|recoveries| recoveries.add(recovered));
            }
            let changes = opened.iter().zip(&known).map(|(one, known)| {
                Box::pin(
                    one.informer
                        .health_when(move |health| Readability::of(health) != *known),
                )
            });
            let changes: Vec<_> = changes.collect();
            let change = async {
                match changes.is_empty() {
                    true => std::future::pending().await,
                    false => _ = select_all(changes).await,
                }
            };
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                _ = members.changed() => {}
                () = change => {}
            }
        }
    }

    /// Returns the state of the undeclared informers in the default cluster. Sources report the declared ones, and other
    /// clusters have their own state.
    fn state(&self, opened: &[Opened], known: &[Readability]) -> SourceState {
        let is_counted = |one: &Opened| !one.is_declared && one.cluster == *self.default_cluster.name();
        let undeclared = opened.iter().zip(known).filter(|(one, _)| is_counted(one));
        let reasons = undeclared.filter_map(|(one, known)| {
            let trouble = known.error.as_ref()?;
            Some(format!("{}: {trouble}", one.informer.resource()))
        });
        let reasons: Vec<String> = reasons.collect();
        match reasons.is_empty() {
            true => SourceState::Ready,
            false => SourceState::Trouble {
                reason: reasons.join("; "),
                absent: false,
                was_ready: true,
            },
        }
    }

    fn warn(&self, opened: &[Opened], warned: &mut BTreeSet<Resource>) {
        for one in opened.iter().filter(|one| self.is_warm && !one.is_declared) {
            let (kind, scope) = (one.informer.resource(), one.informer.scope());
            if warned.insert(kind.clone()) {
                tracing::warn!(
                    controller = %self.controller, %kind, %scope, cluster = %one.cluster,
                    hint = "declare it with `.reads(kind::<…>())`, so that standbys keep it in sync",
                    "undeclared kind read; a standby has no informer for it"
                );
            }
        }
    }
}

impl Recoveries {
    fn add(&mut self, kinds: Vec<Resource>) {
        self.count += 1;
        self.last.extend(kinds.into_iter().map(|kind| (kind, self.count)));
    }
}

/// An informer that a read has opened.
struct Opened {
    cluster: ClusterName,
    informer: InformerHandle,
    is_declared: bool,
}

/// The relevant part of the health of an informer.
#[derive(PartialEq, Eq)]
struct Readability {
    is_readable: bool,
    error: Option<Arc<WatchError>>,
}

impl Readability {
    fn of(health: &Health) -> Self {
        Self {
            is_readable: health.synced && !health.absent,
            // For a reader, a kind that is not installed is an answer, not a failure.
            error: health.error.clone().filter(|_| !health.absent),
        }
    }
}

/// Returns the informers that are readable.
fn readable(opened: &[Opened], known: &[Readability]) -> BTreeSet<(ClusterName, Resource, String)> {
    let readable = opened.iter().zip(known).filter(|(_, known)| known.is_readable);
    let name = |(one, _): (&Opened, &Readability)| {
        let (resource, scope) = (one.informer.resource().clone(), one.informer.scope());
        (one.cluster.clone(), resource, scope.to_string())
    };
    readable.map(name).collect()
}
