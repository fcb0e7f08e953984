// SPDX-License-Identifier: Apache-2.0
//! Watches a kind in one cluster: informer, event handler, and the state that the source reports.

use std::{future::Future, sync::Arc};

use steersman_cache::{Event, Health, InformerHandle, Object, Query, Registration, WatchError};
use steersman_cluster::Cluster;
use steersman_core::{Presence, PresenceStatus};
use tokio::sync::watch;

use super::{KindSource, SourceOptions, SourceState, mapping::Deferred};
use crate::{RequestKey, cluster_session::is_over, gate::EnqueueSink, kind::WhenAbsent};

/// Reports the state of a source in one cluster.
pub(super) type Report<'a> = dyn Fn(SourceState) + Send + Sync + 'a;

/// One cluster in which a source watches its kind, for one run.
pub(super) struct ClusterWatch<'a, R: RequestKey> {
    pub(super) source: &'a KindSource<R>,
    pub(super) cluster: &'a Cluster,
    pub(super) sink: &'a Arc<EnqueueSink<R>>,
    pub(super) options: &'a SourceOptions,
    pub(super) report: &'a Report<'a>,
    /// Changes that wait for an async mapping function, if the handler has one.
    pub(super) deferred: Option<&'a Arc<Deferred<R>>>,
}

/// The presence and the incarnation that were logged last.
type Logged = Option<(Presence, Option<Arc<str>>)>;

impl<R: RequestKey> ClusterWatch<'_, R> {
    /// Watches until the cluster is removed.
    pub(super) async fn run(&self) {
        if self.source.spec().waits() {
            self.watch_while_present().await;
        } else {
            let never = std::future::pending::<()>();
            self.watch_until(never, &mut Vec::new(), false).await;
        }
        (self.report)(SourceState::Dormant {
            reason: format!("cluster {} was removed", self.cluster.name()),
        });
    }

    /// Watches while the kind is installed in the cluster.
    async fn watch_while_present(&self) {
        let resource = &self.source.spec().resource;
        let mut presence = self.cluster.presence(resource, self.options.poll_every);
        let (mut presence_status, mut logged): (_, Logged) = (presence.now(), None);
        let mut before = Vec::new();
        loop {
            match presence_status.presence {
                Presence::Present => {
                    let was_absent = matches!(logged, Some((Presence::Absent, _)));
                    self.log_presence(&presence_status, &mut logged);
                    let removed = presence.when(|now| is_over(&presence_status, now));
                    let Some(now) = self.watch_until(removed, &mut before, was_absent).await else {
                        return;
                    };
                    self.cluster.cache().end_idle(resource);
                    // For a replaced CRD, the deletions are emitted once the objects of the new one are known.
                    let deleted = match now.is_absent() {
                        true => std::mem::take(&mut before),
                        false => Vec::new(),
                    };
                    self.kind_removed(deleted).await;
                    presence_status = now;
                    continue;
                }
                Presence::Absent => {
                    self.log_presence(&presence_status, &mut logged);
                    (self.report)(SourceState::Dormant {
                        reason: presence_status.reason.to_string(),
                    });
                }
                // An absent kind counts as absent until its presence is known again.
                Presence::Unknown if logged.is_some() => {}
                Presence::Unknown if presence_status.is_pending => (self.report)(SourceState::Waiting),
                Presence::Unknown => (self.report)(SourceState::Trouble {
                    reason: presence_status.reason.to_string(),
                    absent: false,
                    was_ready: false,
                }),
            }
            presence_status = presence.when(|now| *now != presence_status).await;
        }
    }

    /// Handles the removal of the kind, and the deletion of its objects.
    async fn kind_removed(&self, deleted: Vec<Arc<Object>>) {
        match self.source.as_primary() {
            // The keys of its objects are removed too, and must not be reconciled again.
            Some(primary) => {
                let cluster = self.cluster.name();
                deleted
                    .iter()
                    .for_each(|object| self.source.notify_deleted(cluster, object));
                primary.kind_removed(cluster, self.sink);
            }
            None => emit_deletions(deleted, self.event_handler()).await,
        }
    }

    /// Logs that the kind was installed or removed, once for each change.
    fn log_presence(&self, presence_status: &PresenceStatus, logged: &mut Logged) {
        let now = (presence_status.presence, presence_status.incarnation.clone());
        if logged.replace(now.clone()).as_ref() == Some(&now) {
            return;
        }
        let (controller, kind) = (self.sink.queue().name(), &self.source.spec().resource);
        let (cluster, reason) = (self.cluster.name(), &presence_status.reason);
        if presence_status.is_present() {
            tracing::info!(controller, %kind, %cluster, %reason, "kind is installed; watching it");
        } else {
            tracing::info!(controller, %kind, %cluster, %reason, "kind is not installed; not watching it");
        }
    }

    /// Returns the function that turns events into keys.
    fn event_handler(&self) -> impl Fn(&Event) + Send + Sync + 'static + use<R> {
        let (sink, cluster) = (Arc::clone(self.sink), self.cluster.name().clone());
        let (source, deferred) = (self.source.clone(), self.deferred.cloned());
        move |event: &Event| source.handle(event, &cluster, &sink, deferred.as_deref())
    }

    /// Watches until the cluster is closed or `over` completes; returns the output of `over`. `before` holds objects of
    /// earlier informers whose deletion might not have been emitted; at the end it holds the objects of this one too.
    /// `was_absent` is true if the kind was installed just now.
    async fn watch_until<T>(
        &self,
        over: impl Future<Output = T> + Send,
        before: &mut Vec<Arc<Object>>,
        was_absent: bool,
    ) -> Option<T> {
        let (spec, name) = (self.source.spec(), self.sink.queue().name());
        let handle = Arc::new(self.event_handler());
        let mut replays = self.options.replays.clone();
        // Earlier replay requests do not matter: a new informer emits everything.
        replays.mark_unchanged();
        let mut over = std::pin::pin!(over);
        while !self.cluster.is_closed() {
            let informer = spec
                .wanted(self.cluster, self.options.poll_every)
                .informer(self.cluster);
            if let Err(error) = spec.indexes.add_to(informer.store()) {
                let kind = &spec.resource;
                tracing::error!(controller = name, %kind, %error, "cannot keep an index; lookups by it read every object");
            }
            let primary = self.source.as_primary();
            let _shown = primary.map(|primary| primary.objects.show(self.cluster.name(), informer.store()));
            let handler = Arc::clone(&handle);
            let handler = move |event: &Event| handler(event);
            let registration = match spec.resync {
                Some(every) => informer.handle_with_resync(name, every, handler),
                None => informer.handle(name, handler),
            };
            let ending = tokio::select! {
                biased;
                ending = &mut over => Some(ending),
                () = self.report_health(&informer, &registration) => None,
                () = emit_missed_deletions(before, &informer, &registration, &*handle) => None,
                () = replay(&mut replays, &informer, &registration, &*handle) => None,
                () = self.note_installed(was_absent, &registration) => None,
            };
            // The kind was removed, or the informer ended. The next informer emits the events in between.
            before.extend(informer.store().list(&Query::new()));
            if ending.is_some() {
                return ending;
            }
        }
        None
    }

    /// Reports the state of an informer until it ends. The source is ready once its handler has turned the objects that
    /// exist into keys.
    async fn report_health(&self, informer: &InformerHandle, registration: &Registration) {
        let (mut seen, mut is_ready): (Option<Health>, bool) = (None, false);
        let mut ready = std::pin::pin!(self.objects_enqueued(registration));
        loop {
            let is_new = |health: &Health| {
                seen.as_ref()
                    .is_none_or(|seen| seen.synced != health.synced || seen.error != health.error)
            };
            tokio::select! {
                biased;
                () = &mut ready, if !is_ready => {
                    is_ready = true;
                    seen = Some(informer.health());
                }
                health = informer.health_when(is_new) => seen = Some(health),
            }
            match &seen {
                Some(health) if health.ended => return,
                // Not yet a change: the handler has not received all objects.
                Some(health) if health.synced && health.error.is_none() && !is_ready => {}
                Some(health) => (self.report)(self.state_of(health, is_ready)),
                None => {}
            }
        }
    }

    /// Calls the callback of a kind that was installed just now, once its objects are known.
    async fn note_installed(&self, was_absent: bool, registration: &Registration) {
        if was_absent {
            registration.synced().await;
            self.source.notify_installed(self.cluster.name(), self.sink);
        }
        std::future::pending().await
    }

    /// Waits until the handler has received all objects that exist, and has turned them into keys.
    async fn objects_enqueued(&self, registration: &Registration) {
        registration.synced().await;
        if let Some(deferred) = self.deferred {
            deferred.caught_up().await;
        }
    }

    fn state_of(&self, health: &Health, is_ready: bool) -> SourceState {
        let spec = self.source.spec();
        let Some(error) = &health.error else {
            return match is_ready {
                true => SourceState::Ready,
                false => SourceState::Waiting,
            };
        };
        let (reason, absent) = (
            format!("{}: {error}", spec.resource),
            **error == WatchError::NotInstalled,
        );
        // The watch can notice the removal before the presence check does.
        match absent && spec.when_absent != WhenAbsent::Error {
            true => SourceState::Dormant { reason },
            false => SourceState::Trouble {
                reason,
                absent,
                was_ready: is_ready,
            },
        }
    }
}

/// Emits the deletion of objects whose kind was removed.
async fn emit_deletions(objects: Vec<Arc<Object>>, handle: impl Fn(&Event) + Send + Sync) {
    // In small chunks, so that other tasks can run in between.
    for portion in objects.chunks(256) {
        for object in portion.iter().map(Arc::clone) {
            handle(&Event::Deleted {
                object,
                final_state_known: false,
            });
        }
        tokio::task::yield_now().await;
    }
}

/// Emits the missed deletions of objects that an earlier informer held, once this informer is in sync.
async fn emit_missed_deletions(
    before: &mut Vec<Arc<Object>>,
    informer: &InformerHandle,
    registration: &Registration,
    handle: &(impl Fn(&Event) + Send + Sync),
) {
    registration.synced().await;
    // An informer that has ended too emits nothing.
    let before = if informer.is_ended() {
        Vec::new()
    } else {
        std::mem::take(before)
    };
    for old in before {
        match informer.store().get_key(&old.key()) {
            Some(new) if new.uid() == old.uid() && new.resource_version() == old.resource_version() => {}
            Some(new) if new.uid() == old.uid() => handle(&Event::Updated { old, new }),
            _ => handle(&Event::Deleted {
                object: old,
                final_state_known: false,
            }),
        }
    }
    std::future::pending().await
}

/// Emits all objects again on each replay request.
async fn replay(
    replays: &mut watch::Receiver<u64>,
    informer: &InformerHandle,
    registration: &Registration,
    handle: &(impl Fn(&Event) + Send + Sync),
) {
    while replays.changed().await.is_ok() {
        registration.synced().await;
        // In small chunks, so that other tasks can run in between.
        for portion in informer.store().list(&Query::new()).chunks(256) {
            for object in portion.iter().map(Arc::clone) {
                handle(&Event::Added {
                    object,
                    initial: true,
                });
            }
            tokio::task::yield_now().await;
        }
    }
    std::future::pending().await
}
