// SPDX-License-Identifier: Apache-2.0
//! Kinds as sources: an informer in each cluster, and a handler on it.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use steersman_cache::{
    Event, Health, InformerHandle, Object, Query, Registration, Resource, Scope, WatchError,
};
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{ObjectKey, Presence, Sighting};
use tokio::sync::watch;

use super::{EnqueueSink, Primary, SourceContext, SourceOptions, SourceState};
use crate::{
    CacheRequirement, Enqueue, Handler, Kind, ObjectEvent, RequestKey,
    cluster_session::is_over,
    indexes::Indexes,
    kind::{ClusterChoice, WhenAbsent},
    owner::Showing,
};

/// A kind and the handler for changes of its objects. Clones share it.
pub(crate) struct KindSource<R: RequestKey> {
    spec: Arc<KindSpec>,
    on_event: OnEvent<R>,
    /// True if its keys depend on the scope of the primary kind, which is not yet known.
    awaits_scope: bool,
    /// Set if the controller's keys are the keys of these objects.
    primary: Option<Arc<Primary<R>>>,
    /// Called for each deleted object.
    gone: Vec<Gone>,
    /// Called when the kind is installed after it was absent.
    installed: Option<Installed<R>>,
}

type OnEvent<R> = Arc<dyn Fn(&Event, &ClusterName, &EnqueueSink<R>) + Send + Sync>;

/// Callback for a deleted object.
pub(crate) type Gone = Arc<dyn Fn(&ClusterName, &ObjectKey) + Send + Sync>;

/// Callback for a kind that was installed in a cluster, once its objects are known.
pub(crate) type Installed<R> = Arc<dyn Fn(&ClusterName, &EnqueueSink<R>) + Send + Sync>;

/// A [`Kind`] without its type.
#[derive(Clone, Debug)]
pub(crate) struct KindSpec {
    pub(crate) resource: Resource,
    pub(crate) scope: Option<Scope>,
    pub(crate) metadata_only: bool,
    pub(crate) place: ClusterChoice,
    pub(crate) resync: Option<Duration>,
    pub(crate) presence: WhenAbsent,
    pub(crate) indexes: Indexes,
}

impl<R: RequestKey> KindSource<R> {
    pub(crate) fn new<T: 'static>(kind: Kind<T>, handler: impl Handler<T, R>) -> Self {
        let Kind {
            resource,
            scope,
            metadata_only,
            place,
            predicates,
            resync,
            presence,
            indexes,
            ..
        } = kind;
        let on_event = move |event: &Event, cluster: &ClusterName, intake: &EnqueueSink<R>| {
            let occurrence = ObjectEvent::<T>::new(event, cluster);
            let judged = catch_unwind(AssertUnwindSafe(|| {
                predicates.iter().all(|predicate| predicate.admits(&occurrence))
            }));
            // A change that no predicate can judge passes: an extra reconcile does no harm.
            if *judged.as_ref().unwrap_or(&true) {
                let mut enqueue = Enqueue::of_change(intake, cluster, occurrence.is_replay());
                handler.handle(&occurrence, &mut enqueue);
            }
            if let Err(panic) = judged {
                resume_unwind(panic); // The informer counts and names it.
            }
        };
        Self {
            spec: Arc::new(KindSpec {
                resource,
                scope,
                metadata_only,
                place,
                resync,
                presence,
                indexes,
            }),
            on_event: Arc::new(on_event),
            awaits_scope: false,
            primary: None,
            gone: Vec::new(),
            installed: None,
        }
    }

    /// Returns the state for keys if this is the primary kind of the controller.
    pub(crate) fn as_primary(&self) -> Option<&Primary<R>> {
        self.primary.as_deref()
    }

    pub(crate) fn primary(self, primary: Primary<R>) -> Self {
        Self {
            primary: Some(Arc::new(primary)),
            ..self
        }
    }

    /// Moves the source to `place` if it watches the controller's default cluster.
    pub(crate) fn following(mut self, place: &ClusterChoice) -> Self {
        if matches!(self.spec.place, ClusterChoice::Home) {
            Arc::make_mut(&mut self.spec).place = place.clone();
        }
        self
    }

    /// Delays the start until the scope of the primary kind is known.
    pub(crate) fn awaiting_scope(self) -> Self {
        Self {
            awaits_scope: true,
            ..self
        }
    }

    pub(crate) fn awaits_scope(&self) -> bool {
        self.awaits_scope
    }

    pub(crate) fn spec(&self) -> &KindSpec {
        &self.spec
    }

    pub(super) async fn run(&self, cx: SourceContext<R>) {
        let Some(cluster) = self.spec.cluster(&cx.home).cloned() else {
            return super::every::watch(self, &cx).await;
        };
        let intake = Arc::clone(&cx.intake);
        let is_spoke = cx.hub.is_spoke(cluster.name());
        let report = |state: SourceState| match is_spoke {
            true => cx.report(state.elsewhere(cluster.name())),
            false => cx.report(state),
        };
        self.watch(&cluster, &intake, &cx.wishes, report).await;
    }

    /// Sets the callbacks for each deleted object.
    pub(crate) fn telling_of_the_gone(self, told: Vec<Gone>) -> Self {
        Self { gone: told, ..self }
    }

    /// Sets the callback for the installation of the kind, after it was absent.
    pub(crate) fn on_installed(self, installed: Installed<R>) -> Self {
        Self {
            installed: Some(installed),
            ..self
        }
    }

    /// Watches one cluster until the cluster is removed.
    pub(super) async fn watch(
        &self,
        cluster: &Cluster,
        intake: &Arc<EnqueueSink<R>>,
        wishes: &SourceOptions,
        report: impl Fn(SourceState) + Send + Sync,
    ) {
        if self.spec.waits() {
            self.watch_while_present(cluster, intake, wishes, &report).await;
        } else {
            let ever = std::future::pending::<()>();
            self.watch_present(cluster, intake, wishes, &report, (ever, &mut Vec::new(), false))
                .await;
        }
        report(SourceState::Dormant {
            reason: format!("cluster {} was removed", cluster.name()),
        });
    }

    /// Watches while the kind is installed in the cluster.
    async fn watch_while_present(
        &self,
        cluster: &Cluster,
        intake: &Arc<EnqueueSink<R>>,
        wishes: &SourceOptions,
        report: &(impl Fn(SourceState) + Send + Sync),
    ) {
        let mut presence = cluster.presence(&self.spec.resource, wishes.poll_every);
        let (mut sighting, mut said) = (presence.now(), None);
        let mut before = Vec::new();
        loop {
            match sighting.presence {
                Presence::Present => {
                    let was_absent = matches!(said, Some((Presence::Absent, _)));
                    self.say(&sighting, &mut said, cluster, intake);
                    let over = presence.when(|now| is_over(&sighting, now));
                    let stay = (over, &mut before, was_absent);
                    let Some(now) = self.watch_present(cluster, intake, wishes, report, stay).await else {
                        return;
                    };
                    cluster.cache().end_idle(&self.spec.resource);
                    // For a replaced CRD, the deletions are emitted once the objects of the new one are known.
                    let left = match now.is_absent() {
                        true => std::mem::take(&mut before),
                        false => Vec::new(),
                    };
                    match &self.primary {
                        // The keys of its objects are removed too, and must not be reconciled again.
                        Some(primary) => {
                            let told = self
                                .gone
                                .iter()
                                .flat_map(|gone| left.iter().map(move |one| (gone, one)));
                            told.for_each(|(gone, one)| gone(cluster.name(), &one.key()));
                            primary.left(cluster.name(), intake);
                        }
                        None => tell_of_the_gone(left, self.teller(cluster, intake)).await,
                    }
                    sighting = now;
                    continue;
                }
                Presence::Absent => {
                    self.say(&sighting, &mut said, cluster, intake);
                    report(SourceState::Dormant {
                        reason: sighting.reason.to_string(),
                    });
                }
                // An absent kind counts as absent until its presence is known again.
                Presence::Unknown if said.is_some() => {}
                Presence::Unknown if sighting.is_pending => report(SourceState::Waiting),
                Presence::Unknown => report(SourceState::Trouble {
                    reason: sighting.reason.to_string(),
                    absent: false,
                    was_ready: false,
                }),
            }
            sighting = presence.when(|now| *now != sighting).await;
        }
    }

    /// Logs that the kind was installed or removed, once for each change.
    fn say(
        &self,
        sighting: &Sighting,
        said: &mut Option<(Presence, Option<Arc<str>>)>,
        cluster: &Cluster,
        intake: &EnqueueSink<R>,
    ) {
        let now = (sighting.presence, sighting.incarnation.clone());
        if said.replace(now.clone()).as_ref() == Some(&now) {
            return;
        }
        let (controller, kind, reason) = (intake.queue().name(), &self.spec.resource, &sighting.reason);
        let cluster = cluster.name();
        if sighting.is_present() {
            tracing::info!(controller, %kind, %cluster, %reason, "the kind is watched");
        } else {
            tracing::info!(controller, %kind, %cluster, %reason, "the kind is not watched");
        }
    }

    /// Returns the event handler, which turns events into keys.
    fn teller(
        &self,
        cluster: &Cluster,
        intake: &Arc<EnqueueSink<R>>,
    ) -> impl Fn(&Event) + Send + Sync + 'static + use<R> {
        let (intake, name) = (Arc::clone(intake), cluster.name().clone());
        let (on_event, primary) = (Arc::clone(&self.on_event), self.primary.clone());
        let gone = self.gone.clone();
        move |event: &Event| {
            if let Some(primary) = primary.as_ref().filter(|_| event.is_deletion()) {
                primary.gone(&name, event.object().key(), &intake);
            }
            if event.is_deletion() && !gone.is_empty() {
                let key = event.object().key();
                gone.iter().for_each(|gone| gone(&name, &key));
            }
            on_event(event, &name, &intake);
        }
    }

    /// Watches until the cluster is closed or `over` completes; returns the output of `over`. `before` holds objects of
    /// earlier informers whose deletion might not have been emitted; at the end it holds the objects of this one too.
    /// `was_absent` is true if the kind was installed just now.
    async fn watch_present<T>(
        &self,
        cluster: &Cluster,
        intake: &Arc<EnqueueSink<R>>,
        wishes: &SourceOptions,
        report: &(impl Fn(SourceState) + Send + Sync),
        (over, before, was_absent): (impl Future<Output = T> + Send, &mut Vec<Arc<Object>>, bool),
    ) -> Option<T> {
        let handle = Arc::new(self.teller(cluster, intake));
        let mut replays = wishes.replays.clone();
        // Earlier replay requests do not matter: a new informer emits everything.
        replays.mark_unchanged();
        let may_be_absent = self.spec.presence != WhenAbsent::Mistake;
        let mut over = std::pin::pin!(over);
        while !cluster.is_closed() {
            let informer = self.spec.wanted(cluster, wishes.poll_every).informer(cluster);
            if let Err(error) = self.spec.indexes.add_to(informer.store()) {
                let (controller, kind) = (intake.queue().name(), &self.spec.resource);
                tracing::error!(controller, %kind, %error, "cannot keep an index; lookups by it read every object");
            }
            let primary = self.primary.as_ref();
            let showing = primary.map(|primary| primary.objects.show(cluster.name(), informer.store()));
            let (name, handler) = (intake.queue().name(), Arc::clone(&handle));
            let handler = move |event: &Event| handler(event);
            let registration = match self.spec.resync {
                Some(every) => informer.handle_with_resync(name, every, handler),
                None => informer.handle(name, handler),
            };
            let ending = tokio::select! {
                biased;
                ending = &mut over => Some(ending),
                () = follow(&informer, &registration, may_be_absent, report) => None,
                () = note_sync(showing.as_ref(), &registration) => None,
                () = make_up(before, &informer, &registration, &*handle) => None,
                () = replay(&mut replays, &informer, &registration, &*handle) => None,
                () = self.note_installed(was_absent, cluster, intake, &registration) => None,
            };
            // The kind was removed, or the informer ended. The next informer emits the events in between.
            before.extend(informer.store().list(&Query::new()));
            if ending.is_some() {
                return ending;
            }
        }
        None
    }
}

impl<R: RequestKey> KindSource<R> {
    /// Calls the callback of a kind that was installed just now, once its objects are known.
    async fn note_installed(
        &self,
        was_absent: bool,
        cluster: &Cluster,
        intake: &EnqueueSink<R>,
        registration: &Registration,
    ) {
        if let Some(installed) = self.installed.as_ref().filter(|_| was_absent) {
            registration.synced().await;
            installed(cluster.name(), intake);
        }
        std::future::pending().await
    }
}

/// Emits the deletion of objects whose kind was removed.
async fn tell_of_the_gone(objects: Vec<Arc<Object>>, handle: impl Fn(&Event) + Send + Sync) {
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

/// Reports the state of an informer until it ends.
async fn follow(
    informer: &InformerHandle,
    registration: &Registration,
    may_be_absent: bool,
    report: &(impl Fn(SourceState) + Send + Sync),
) {
    let mut seen: Option<Health> = None;
    loop {
        let health = informer
            .health_when(|health| {
                seen.as_ref()
                    .is_none_or(|seen| seen.synced != health.synced || seen.trouble != health.trouble)
            })
            .await;
        if health.ended {
            return;
        }
        if health.synced && health.trouble.is_none() && !registration.is_synced() {
            registration.synced().await;
        }
        report(state_of(&health, registration, may_be_absent, informer));
        seen = Some(health);
    }
}

/// Notes when the store of the primary objects is in sync.
async fn note_sync(showing: Option<&Showing>, registration: &Registration) {
    if let Some(showing) = showing {
        registration.synced().await;
        showing.set_synced();
    }
    std::future::pending().await
}

/// Emits the missed deletions of objects that an earlier informer held, once this informer is in sync.
async fn make_up(
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

fn state_of(
    health: &Health,
    registration: &Registration,
    may_be_absent: bool,
    informer: &InformerHandle,
) -> SourceState {
    match &health.trouble {
        // The watch can notice the removal before the presence check does.
        Some(trouble) if may_be_absent && **trouble == WatchError::Absent => SourceState::Dormant {
            reason: format!("{}: {trouble}", informer.resource()),
        },
        Some(trouble) => SourceState::Trouble {
            reason: format!("{}: {trouble}", informer.resource()),
            absent: **trouble == WatchError::Absent,
            was_ready: registration.is_synced(),
        },
        None if registration.is_synced() => SourceState::Ready,
        None => SourceState::Waiting,
    }
}

impl KindSpec {
    /// Returns true if the kind is watched only while it is installed, without delaying the controller.
    pub(crate) fn waits(&self) -> bool {
        match self.presence {
            WhenAbsent::Mistake => false,
            WhenAbsent::DoWithout => true,
            // With one cluster, the whole controller waits for the kind.
            WhenAbsent::Rest => matches!(self.place, ClusterChoice::Every),
        }
    }

    /// Returns the cache requirement of the kind, with `home` as default cluster. Presence of an optional kind is polled at
    /// `poll_every`.
    pub(crate) fn wanted(&self, home: &Cluster, poll_every: Duration) -> CacheRequirement {
        let wanted = CacheRequirement::of(
            self.cluster(home).cloned(),
            self.resource.clone(),
            self.scope.clone(),
        );
        let wanted = match self.metadata_only {
            true => wanted.metadata_only(),
            false => wanted,
        };
        match self.presence {
            WhenAbsent::Mistake => wanted,
            WhenAbsent::DoWithout | WhenAbsent::Rest => wanted.polled(poll_every),
        }
    }

    pub(crate) fn is_everywhere(&self) -> bool {
        matches!(self.place, ClusterChoice::Every)
    }

    /// Returns the cluster if the kind is watched in exactly one.
    pub(crate) fn cluster<'a>(&'a self, home: &'a Cluster) -> Option<&'a Cluster> {
        match &self.place {
            ClusterChoice::Home => Some(home),
            ClusterChoice::One(cluster) => Some(cluster),
            ClusterChoice::Every => None,
        }
    }
}

impl<R: RequestKey> Clone for KindSource<R> {
    fn clone(&self) -> Self {
        Self {
            spec: Arc::clone(&self.spec),
            on_event: Arc::clone(&self.on_event),
            awaits_scope: self.awaits_scope,
            primary: self.primary.clone(),
            gone: self.gone.clone(),
            installed: self.installed.clone(),
        }
    }
}
