// SPDX-License-Identifier: Apache-2.0
//! Kinds as sources: an informer in each cluster, and a handler on it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use steersman_cache::{Event, Object};
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::ObjectKey;

use super::{
    Primary, SourceContext, SourceOptions, SourceState,
    cluster_watch::{ClusterWatch, Report},
    mapping::{self, AsyncMapping, Deferred},
};
use crate::{
    CacheRequirement, Enqueue, Handler, Kind, ObjectEvent, RequestKey,
    gate::EnqueueSink,
    kind::{ClusterChoice, KindSpec, WhenAbsent},
};

/// A kind and the handler for changes of its objects. Clones share it.
#[derive(Clone)]
pub(crate) struct KindSource<R: RequestKey> {
    spec: Arc<KindSpec>,
    on_event: OnEvent<R>,
    /// Maps the changes of objects, if the handler is an async mapping function.
    mapping: Option<AsyncMapping<R>>,
    /// True if its keys depend on the scope of the primary kind, which is not yet known.
    awaits_scope: bool,
    /// Set if the controller's keys are the keys of these objects.
    primary: Option<Arc<Primary<R>>>,
    /// Called for each deleted object.
    on_deleted: Vec<OnDeleted>,
    /// Called when the kind is installed after it was absent.
    on_installed: Option<OnInstalled<R>>,
}

type OnEvent<R> = Arc<dyn Fn(&Event, &ClusterName, &EnqueueSink<R>, Option<&Deferred<R>>) + Send + Sync>;

/// Callback for a deleted object.
pub(crate) type OnDeleted = Arc<dyn Fn(&ClusterName, &ObjectKey) + Send + Sync>;

/// Callback for a kind that was installed in a cluster, once its objects are known.
pub(crate) type OnInstalled<R> = Arc<dyn Fn(&ClusterName, &EnqueueSink<R>) + Send + Sync>;

impl<R: RequestKey> KindSource<R> {
    pub(crate) fn new<T: 'static>(kind: Kind<T>, handler: impl Handler<T, R>) -> Self {
        let Kind { spec, predicates, .. } = kind;
        let mapping = handler.mapping();
        let on_event = move |event: &Event,
                             cluster: &ClusterName,
                             sink: &EnqueueSink<R>,
                             deferred: Option<&Deferred<R>>| {
            let event = ObjectEvent::<T>::new(event, cluster);
            let admitted = catch_unwind(AssertUnwindSafe(|| {
                predicates.iter().all(|predicate| predicate.admits(&event))
            }));
            // A change that makes a predicate panic passes: an extra reconcile does no harm.
            if *admitted.as_ref().unwrap_or(&true) {
                match deferred {
                    Some(deferred) => deferred.add(event.object(), event.old(), event.is_replay()),
                    None => handler.handle(&event, &mut Enqueue::of_change(sink, cluster, event.is_replay())),
                }
            }
            if let Err(panic) = admitted {
                resume_unwind(panic); // The informer counts and names it.
            }
        };
        Self {
            spec: Arc::new(spec),
            on_event: Arc::new(on_event),
            mapping,
            awaits_scope: false,
            primary: None,
            on_deleted: Vec::new(),
            on_installed: None,
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

    /// Moves the source to `clusters` if it watches the controller's default cluster.
    pub(crate) fn following(mut self, clusters: &ClusterChoice) -> Self {
        if matches!(self.spec.clusters, ClusterChoice::Default) {
            Arc::make_mut(&mut self.spec).clusters = clusters.clone();
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
        let Some(cluster) = self.spec.cluster(&cx.home) else {
            return super::every::watch(self, &cx).await;
        };
        let is_other_cluster = cx.cluster_roles.is_other_cluster(cluster.name());
        let report = |state: SourceState| match is_other_cluster {
            true => cx.report(state.elsewhere(cluster.name())),
            false => cx.report(state),
        };
        self.watch(cluster, &cx.sink, &cx.options, &report).await;
    }

    /// Watches one cluster until the cluster is removed.
    pub(super) async fn watch(
        &self,
        cluster: &Cluster,
        sink: &Arc<EnqueueSink<R>>,
        options: &SourceOptions,
        report: &Report<'_>,
    ) {
        let mapping = self.mapping.as_ref();
        let deferred = mapping.map(|mapping| Arc::new(Deferred::new(mapping, cluster, sink, options)));
        let watching = ClusterWatch {
            source: self,
            cluster,
            sink,
            options,
            report,
            deferred: deferred.as_ref(),
        };
        tokio::select! {
            biased;
            () = watching.run() => {}
            () = mapping::run(deferred.as_deref()) => {}
        }
    }

    /// Turns an event into keys, or defers it to the mapping function.
    pub(super) fn handle(
        &self,
        event: &Event,
        cluster: &ClusterName,
        sink: &EnqueueSink<R>,
        deferred: Option<&Deferred<R>>,
    ) {
        if event.is_deletion() {
            if let Some(primary) = &self.primary {
                primary.deleted(cluster, event.object().key(), sink);
            }
            self.notify_deleted(cluster, event.object());
        }
        (self.on_event)(event, cluster, sink, deferred);
    }

    /// Calls the callbacks for a deleted object.
    pub(super) fn notify_deleted(&self, cluster: &ClusterName, object: &Object) {
        if !self.on_deleted.is_empty() {
            let key = object.key();
            self.on_deleted
                .iter()
                .for_each(|callback| callback(cluster, &key));
        }
    }

    /// Calls the callback for the installation of the kind.
    pub(super) fn notify_installed(&self, cluster: &ClusterName, sink: &EnqueueSink<R>) {
        if let Some(callback) = &self.on_installed {
            callback(cluster, sink);
        }
    }

    /// Sets the callbacks for each deleted object.
    pub(crate) fn on_deleted(self, on_deleted: Vec<OnDeleted>) -> Self {
        Self { on_deleted, ..self }
    }

    /// Sets the callback for the installation of the kind, after it was absent.
    pub(crate) fn on_installed(self, on_installed: OnInstalled<R>) -> Self {
        Self {
            on_installed: Some(on_installed),
            ..self
        }
    }
}

impl KindSpec {
    /// Returns true if the kind is watched only while it is installed, without delaying the controller.
    pub(crate) fn waits(&self) -> bool {
        match self.when_absent {
            WhenAbsent::Error => false,
            WhenAbsent::Skip => true,
            // With one cluster, the whole controller waits for the kind.
            WhenAbsent::Wait => matches!(self.clusters, ClusterChoice::All),
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
        match self.when_absent {
            WhenAbsent::Error => wanted,
            WhenAbsent::Skip | WhenAbsent::Wait => wanted.polled(poll_every),
        }
    }

    pub(crate) fn is_everywhere(&self) -> bool {
        matches!(self.clusters, ClusterChoice::All)
    }

    /// Returns the cluster if the kind is watched in exactly one.
    pub(crate) fn cluster<'a>(&'a self, home: &'a Cluster) -> Option<&'a Cluster> {
        match &self.clusters {
            ClusterChoice::Default => Some(home),
            ClusterChoice::One(cluster) => Some(cluster),
            ClusterChoice::All => None,
        }
    }
}
