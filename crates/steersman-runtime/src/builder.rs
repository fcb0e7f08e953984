// SPDX-License-Identifier: Apache-2.0
//! Builder of controllers.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use steersman_cache::{Index, IndexValue, Resource};
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{ObjectKey, Permission};
use steersman_queue::{Group, Grouping, RateLimiter};
use tokio::sync::watch;

use crate::{
    AddError, AnyReconciler, BoxReconciler, BoxRunnable, Conditional, Controller, Declarations, Enqueue,
    Handler, Kind, KnownKind, Manager, ObjectEvent, Options, Predicate, PrimaryKind, Reconciles, Request,
    RequestKey, RunPolicy, Source,
    cluster_session::OnClusterRemoved,
    controller::{MakeSpan, Plan},
    handle_fn,
    handler::PrimaryObject,
    kind,
    namespaced::Namespaced,
    object_reconciler::Bound,
    owner::{Dependent, Owners, Parent, owned},
    permissions,
    source::{AnySource, KindSource, OnDeleted, Primary, ToRequest},
};

/// Builder of a [`Controller`]; from [`Controller::of`] and its siblings.
///
/// ```no_run
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::{ConfigMap, Secret}};
/// use steersman_runtime::{Controller, AddError, Manager, Reconciler, kind, map_fn};
/// use steersman_core::{ObjectKey, Permission};
///
/// fn add(manager: &Manager, reconciler: impl Reconciler) -> Result<(), AddError> {
///     Controller::of::<ConfigMap>("web")
///         .labels("app=web")
///         .owns::<Deployment>()
///         .watches(kind::<Secret>(), map_fn(|secret: &Secret| {
///             Some(ObjectKey::new(secret.metadata.namespace.as_deref()?, "front"))
///         }))
///         .workers(4)
///         .add_to(manager, reconciler)?;
///     Ok(())
/// }
/// ```
#[must_use = "a controller runs once it is added to a manager"]
pub struct Builder<R: RequestKey, T> {
    name: String,
    home: Option<Cluster>,
    primary: Option<PrimarySpec<R, T>>,
    /// Owned, referenced and tracked kinds. They need the primary kind, which is final only in `build`.
    dependent: Vec<Dependent<R>>,
    /// Kinds whose changes enqueue nothing.
    read: Vec<KindSource<R>>,
    sources: Vec<AnySource<R>>,
    options: Options,
    queue: steersman_queue::Options<R>,
    span: Option<MakeSpan<R>>,
    on_cluster_removed: Vec<OnClusterRemoved>,
    /// Permissions of everything except the primary kind, which is final only in `build`.
    permissions: Vec<Permission>,
}

/// Primary kind of the controller, and the key of one of its objects.
struct PrimarySpec<R: RequestKey, T> {
    kind: Kind<T>,
    source: fn(Kind<T>) -> KindSource<R>,
    to_request: ToRequest<R>,
    on_deleted: Vec<OnDeleted>,
}

/// Type of the primary kind of a controller that has none.
#[derive(Debug)]
#[non_exhaustive]
pub enum NoPrimary {}

impl<T: 'static> Builder<Request, T> {
    pub(crate) fn of_kind(name: impl Into<String>, kind: Kind<T>) -> Self {
        Self {
            primary: Some(PrimarySpec {
                kind,
                source: |kind| KindSource::new(kind, PrimaryObject),
                to_request: |cluster, key| Request::new(cluster.clone(), key),
                on_deleted: Vec::new(),
            }),
            ..Self::start(name)
        }
    }

    /// Selects objects of the primary kind by labels. The client in the context reads the kind in the same scope; see
    /// [`owns`](Self::owns).
    pub fn labels(self, selector: impl Into<String>) -> Self {
        self.primary(|kind| kind.labels(selector))
    }

    /// Selects objects of the primary kind by fields. The scope of reads follows, as with [`labels`](Self::labels).
    pub fn fields(self, selector: impl Into<String>) -> Self {
        self.primary(|kind| kind.fields(selector))
    }

    /// Selects objects of the primary kind in this namespace; several calls select several namespaces. The scope of reads
    /// follows, as with [`labels`](Self::labels).
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        self.primary(|kind| kind.namespace(namespace))
    }

    /// Drops changes of objects of the primary kind that the predicate rejects.
    pub fn when(self, predicate: Predicate<T>) -> Self {
        self.primary(|kind| kind.when(predicate))
    }

    /// Keeps an index with the cache of the primary kind; see [`Kind::index`].
    pub fn index<V: IndexValue>(self, index: &Index<V>) -> Self {
        self.primary(|kind| kind.index(index))
    }

    /// Runs the controller only while the primary kind is installed: it starts when the CRD is established, stops when the
    /// CRD is removed, and starts again when the CRD is installed again. Without this, a missing kind is an error that ends
    /// the run after the sync timeout.
    pub fn when_installed(self) -> Self {
        self.primary(Kind::when_installed)
    }

    /// Enqueues every object of the primary kind at about this interval, with low priority. Default: never; zero means
    /// never.
    pub fn resync(self, every: Duration) -> Self {
        self.primary(|kind| kind.resync(every))
    }

    /// Watches the primary kind, and the kinds that it owns, in every cluster of the manager. The client in the context is
    /// that of the request's cluster.
    ///
    /// A cluster without the kind delays no other cluster; the controller reports itself as degraded and names the cluster.
    /// With [`when_installed`](Self::when_installed), the controller works on each cluster while the kind is installed
    /// there. When the kind is removed from a cluster, the keys of that cluster are removed. A reconcile in flight there
    /// gets a stop request through [`Context::stop`](crate::Context::stop), and is cancelled if it takes longer than 10 s
    /// after that.
    pub fn on_every_cluster(self) -> Self {
        self.primary(Kind::on_every_cluster)
    }

    /// Calls `forget` for each deleted object of the primary kind, in every replica that watches it, leader or standby. Use
    /// it to drop in-memory state about the object. The function has no client, runs where changes are dispatched, and must
    /// be quick. Put cleanup into the reconciler: it is called for deletions too, and retried. Several calls add several
    /// functions.
    pub fn on_deleted_everywhere(
        mut self,
        forget: impl Fn(&ClusterName, &ObjectKey) + Send + Sync + 'static,
    ) -> Self {
        if let Some(primary) = &mut self.primary {
            primary.on_deleted.push(Arc::new(forget));
        }
        self
    }

    /// Watches a kind and enqueues the controlling owner of each changed object, if that owner is of the primary kind.
    ///
    /// The client in the context reads the kind in the same scope, from the same watch, so that a reconcile sees the change
    /// that triggered it. If a kind is watched in several scopes, a read sees the objects of all of them. A read does not
    /// find an object that a label or field selector excludes, and a namespace outside of the scope is an error. To read
    /// such an object, name another scope with [`Client::in_scope`](steersman_cluster::Client::in_scope), or read it
    /// [live](steersman_cluster::Client::live).
    pub fn owns<C: KnownKind + 'static>(self) -> Self {
        self.owns_with(kind::<C>())
    }

    /// As [`owns`](Self::owns), for some objects or changes of a kind only, in another cluster, or for a dynamic kind:
    ///
    /// ```
    /// # use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
    /// # use steersman_runtime::{Controller, generation_changed, kind};
    /// let web = Controller::of::<ConfigMap>("web")
    ///     .owns_with(kind::<Deployment>().labels("app=web").when(generation_changed()));
    /// # let _ = web;
    /// ```
    pub fn owns_with<C: 'static>(self, child: Kind<C>) -> Self {
        self.owned(child, Owners::controlling)
    }

    /// As [`owns_with`](Self::owns_with), for every owner of the primary kind, not only the controlling one.
    pub fn owns_shared<C: 'static>(self, child: Kind<C>) -> Self {
        self.owned(child, Owners::every)
    }

    fn owned<C: 'static>(self, child: Kind<C>, owners: fn(&Resource, Namespaced) -> Owners) -> Self {
        self.dependent(child, |child| owned(child, owners))
    }

    /// Adds a kind whose source depends on the primary kind.
    pub(crate) fn dependent<W: 'static>(
        mut self,
        kind: Kind<W>,
        source: impl FnOnce(Kind<W>) -> Dependent<Request>,
    ) -> Self {
        self.permissions.extend(permissions::watching(&kind, &self.name));
        self.dependent.push(source(kind));
        self
    }

    fn primary(mut self, change: impl FnOnce(Kind<T>) -> Kind<T>) -> Self {
        self.primary = self.primary.map(|primary| PrimarySpec {
            kind: change(primary.kind),
            ..primary
        });
        self
    }
}

impl<R: RequestKey> Builder<R, NoPrimary> {
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self::start(name)
    }
}

impl<R: RequestKey, T: 'static> Builder<R, T> {
    fn start(name: impl Into<String>) -> Self {
        let grouping = |key: &R| Group::new(&key.cluster()).inner(key.namespace());
        Self {
            name: name.into(),
            home: None,
            primary: None,
            dependent: Vec::new(),
            read: Vec::new(),
            sources: Vec::new(),
            options: Options::new(),
            queue: steersman_queue::Options::new().grouping(grouping),
            span: None,
            on_cluster_removed: Vec::new(),
            permissions: Vec::new(),
        }
    }

    /// Name of the controller.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Default cluster of the controller. Default: the default cluster of the manager.
    pub fn on(mut self, cluster: &Cluster) -> Self {
        self.home = Some(cluster.clone());
        self
    }

    /// Watches another kind; `handler` turns its changes into keys. Reconciles read it in the same scope, as with
    /// [`owns`](Builder::owns).
    pub fn watches<W: 'static>(mut self, kind: Kind<W>, handler: impl Handler<W, R>) -> Self {
        self.permissions.extend(permissions::watching(&kind, &self.name));
        self.sources.push(AnySource::Kind(KindSource::new(kind, handler)));
        self
    }

    /// Declares a kind that reconciles read and whose changes enqueue nothing. Its cache is in sync before the first
    /// reconcile, and a warm standby keeps it in sync.
    ///
    /// Watched kinds do not need this. A kind that is neither watched nor declared is watched from its first read on, in
    /// the scope that is set for it in the cluster's cache. A [warm](Self::warm) controller logs a warning then, because a
    /// standby does not have that cache.
    ///
    /// With [`on_every_cluster`](Builder::on_every_cluster) the kind is read in every cluster, unless it names one with
    /// [`on`](Kind::on).
    pub fn reads<W: 'static>(mut self, kind: Kind<W>) -> Self {
        self.permissions.extend(permissions::watching(&kind, &self.name));
        let nothing = handle_fn(|_: &ObjectEvent<'_, W>, _: &mut Enqueue<'_, R>| {});
        self.read.push(KindSource::new(kind, nothing));
        self
    }

    /// Declares verbs that the reconciler uses on a kind by itself, beyond those that follow from the kinds that are owned,
    /// watched and read. The RBAC rules of a program contain them. The kit declares the writes of children, status and
    /// finalizers.
    ///
    /// ```
    /// # use k8s_openapi::api::{batch::v1::Job, core::v1::ConfigMap};
    /// # use steersman_runtime::Controller;
    /// let jobs = Controller::of::<ConfigMap>("jobs").owns::<Job>().permits::<Job>(["create", "delete"]);
    /// # let _ = jobs;
    /// ```
    pub fn permits<'v, W: KnownKind>(self, verbs: impl IntoIterator<Item = &'v str>) -> Self {
        let permission = permissions::on(&Resource::of::<W>(), "", &permissions::needed_by(&self.name));
        self.permission(permission.verbs(verbs))
    }

    /// As [`permits`](Self::permits), for a subresource, one object, or a kind that is known only at run time.
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permissions.push(permission);
        self
    }

    /// Permissions that the controller needs with this reconciler.
    pub fn permissions<By: Reconciles<T>>(&self, reconciler: &impl AnyReconciler<R, By>) -> Vec<Permission> {
        let mut permissions = self.permissions.clone();
        if let Some(primary) = &self.primary {
            let mut declared = Declarations::new(&self.name, Some(primary.kind.resource()));
            reconciler.declare_any(&mut declared);
            permissions.extend(permissions::watching(&primary.kind, &self.name));
            permissions.extend(declared.permissions);
        }
        permissions.push(permissions::events(&self.name));
        permissions
    }

    /// Adds another source: a stream, a channel, a timer, or your own.
    pub fn source(mut self, source: impl Source<R>) -> Self {
        self.sources.push(AnySource::Other(Box::new(source)));
        self
    }

    /// Number of keys that are reconciled at the same time. Default: 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options = self.options.workers(workers);
        self
    }

    /// Timeout of a reconcile. On timeout the reconcile is cancelled and retried after its back-off. Default: none.
    pub fn reconcile_timeout(mut self, limit: Duration) -> Self {
        self.options = self.options.reconcile_timeout(limit);
        self
    }

    /// Logs a warning with the key when a reconcile takes longer than this. The reconcile is not cancelled. Default: 1 min;
    /// zero turns the warning off.
    pub fn reconcile_warn_after(mut self, limit: Duration) -> Self {
        self.options = self.options.reconcile_warn_after(limit);
        self
    }

    /// Limits the reconciles per minute of one key that change an object; above the limit, the key is slowed down to this
    /// rate. Default: 60; zero turns it off. See [`Options::hot_loop_limit`].
    pub fn hot_loop_limit(mut self, per_minute: u32) -> Self {
        self.options = self.options.hot_loop_limit(per_minute);
        self
    }

    /// Time until a source that is not in sync is reported as failing. Default: 2 min.
    pub fn sync_timeout(mut self, limit: Duration) -> Self {
        self.options = self.options.sync_timeout(limit);
        self
    }

    /// Keeps the caches and the queue of standby replicas filled, so that the controller works at once after failover.
    pub fn warm(mut self) -> Self {
        self.options = self.options.run_policy(RunPolicy::Warm);
        self
    }

    /// Runs the controller in every replica, leader or standby.
    pub fn without_leadership(mut self) -> Self {
        self.options = self.options.run_policy(RunPolicy::AllReplicas);
        self
    }

    /// Interval of polling the cluster for installed kinds, if they cannot be watched. The shortest interval of all
    /// controllers of a cluster applies. Default: 10 s.
    pub fn poll_every(mut self, interval: Duration) -> Self {
        self.options = self.options.poll_every(interval);
        self
    }

    /// Field manager of the writes of this controller; see [`Options::field_manager`]. Default: the name of the controller.
    pub fn field_manager(mut self, name: impl Into<String>) -> Self {
        self.options = self.options.field_manager(name);
        self
    }

    /// Sets options. Options that are unset there keep their value.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options.or(&self.options);
        self
    }

    /// Back-off of a key after failures: a [`Backoff`](steersman_queue::Backoff) with other limits, or your own. Default:
    /// 5 ms, doubled each time up to 1000 s, with jitter.
    pub fn rate_limiter(mut self, limiter: impl RateLimiter<R>) -> Self {
        self.queue = self.queue.rate_limiter(limiter);
        self
    }

    /// Number of consecutive takes from the queue that can skip a priority in which keys wait. Default: 16, so that lower
    /// priorities get a seventeenth of the takes while higher ones are busy. With 1 they get half.
    pub fn queue_starvation_limit(mut self, takes: NonZeroU32) -> Self {
        self.queue = self.queue.starvation_limit(takes);
        self
    }

    /// Groups of keys that the queue serves in turn, so that one busy group does not delay the others. Default: the cluster
    /// and namespace of the key.
    pub fn queue_grouping(mut self, grouping: impl Grouping<R>) -> Self {
        self.queue = self.queue.grouping(grouping);
        self
    }

    /// Adds fields to the log lines of a reconcile: the function returns a span, which is entered inside of the span
    /// `reconcile`. Default: the fields of `reconcile` only (`controller`, `cluster`, `kind`, `key`, `reconcile_id`,
    /// `attempt`).
    ///
    /// ```
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use steersman_runtime::{Controller, Request};
    /// let web = Controller::of::<ConfigMap>("web")
    ///     .span(|request: &Request| tracing::info_span!("web", tenant = request.key().namespace()));
    /// # let _ = web;
    /// ```
    pub fn span(mut self, span: impl Fn(&R) -> tracing::Span + Send + Sync + 'static) -> Self {
        self.span = Some(Arc::new(span));
        self
    }

    /// Calls `forget` after a cluster was removed from the manager and the reconciles of its keys have ended. Use it to drop
    /// in-memory state about its objects. It is called in replicas that reconciled keys of that cluster, must be quick, and
    /// can be called more than once. Several calls add several functions.
    pub fn on_cluster_removed(mut self, forget: impl Fn(&ClusterName) + Send + Sync + 'static) -> Self {
        self.on_cluster_removed.push(Arc::new(forget));
        self
    }

    /// Adds the controller to a manager, which runs it. The reconciler is an [`ObjectReconciler`](crate::ObjectReconciler)
    /// of the primary kind, or a [`Reconciler`](crate::Reconciler) of keys.
    ///
    /// A reconciler of another kind does not compile:
    ///
    /// ```compile_fail,E0277
    /// # use std::sync::Arc;
    /// # use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
    /// # use steersman_runtime::{BoxError, Context, Controller, Manager, ObjectReconciler};
    /// # use steersman_core::Action;
    /// struct Maps;
    ///
    /// impl ObjectReconciler<ConfigMap> for Maps {
    /// #   type Error = BoxError;
    ///     // …
    /// #   async fn reconcile(&self, _: Arc<ConfigMap>, _: Context) -> Result<Action, BoxError> {
    /// #       Ok(Action::await_change())
    /// #   }
    /// }
    ///
    /// # fn add(manager: &Manager) {
    /// Controller::of::<Deployment>("web").add_to(manager, Maps);
    /// # }
    /// ```
    ///
    /// # Errors
    /// When neither the builder nor the manager has a cluster, the manager already has a runnable of this name, or the
    /// manager is shutting down.
    pub fn add_to<By: Reconciles<T> + 'static>(
        self,
        manager: &Manager,
        reconciler: impl AnyReconciler<R, By>,
    ) -> Result<Controller<R>, AddError> {
        let home = match &self.home {
            Some(cluster) => cluster.clone(),
            None => manager.cluster()?,
        };
        let with_defaults = Self {
            options: self.options.clone().or(&manager.controller_defaults()),
            ..self
        };
        let controller = with_defaults.build(&home, reconciler);
        manager.add_boxed(match controller.condition() {
            Some(condition) => BoxRunnable::new(Conditional::new(controller.clone(), condition)),
            None => BoxRunnable::new(controller.clone()),
        })?;
        Ok(controller)
    }

    /// Builds the controller without running it. It sends no request until it runs.
    pub fn build<By: Reconciles<T> + 'static>(
        self,
        home: &Cluster,
        reconciler: impl AnyReconciler<R, By>,
    ) -> Controller<R> {
        let primary = self.primary.as_ref().map(|primary| primary.kind.resource());
        let mut declared = Declarations::new(&self.name, primary);
        let primary_kind = self.primary.as_ref().map(|primary| {
            reconciler.declare_any(&mut declared);
            PrimaryKind {
                resource: primary.kind.spec.resource.clone(),
                wanted: primary.kind.wanted(),
            }
        });
        let reconciler = BoxReconciler::new(Bound::new(reconciler, primary_kind));
        let home = self.home.clone().unwrap_or_else(|| home.clone());
        Controller(Arc::new(self.plan(home, reconciler, declared)))
    }

    fn plan(mut self, home: Cluster, reconciler: BoxReconciler<R>, declared: Declarations<R>) -> Plan<R> {
        let parent = self.primary.as_ref().map(|primary| Parent::of(&primary.kind));
        self.on_cluster_removed.extend(declared.on_cluster_removed);
        let mut kinds = Vec::new();
        if let (Some(primary), Some(parent)) = (self.primary, &parent) {
            let on_deleted = primary.on_deleted.into_iter().chain(declared.on_deleted);
            let known = Primary::new(&parent.objects, primary.to_request);
            let source = (primary.source)(primary.kind).primary(known);
            kinds.push(source.on_deleted(on_deleted.collect()));
            let dependent = self.dependent.into_iter().chain(declared.owned);
            kinds.extend(dependent.map(|source| source(parent)));
            let following = |source: KindSource<R>| source.following(&parent.clusters);
            kinds.extend(declared.watched.into_iter().map(following));
            self.read = self.read.into_iter().map(following).collect();
        }
        let kinds = kinds.into_iter().map(AnySource::Kind);
        let read = self.read.into_iter().map(AnySource::Kind);
        let series = Arc::default();
        Plan {
            sources: kinds.chain(self.sources).chain(read).collect(),
            queue: Arc::new(Plan::queue(&self.name, &home, self.queue, &series)),
            series,
            name: self.name.into(),
            home,
            reconciler,
            options: self.options,
            primary: parent.as_ref().map(|parent| parent.resource.clone()),
            unknown_scope: parent
                .filter(|parent| parent.namespaced.get().is_none())
                .map(|parent| (parent.resource, parent.namespaced)),
            span: self.span,
            on_cluster_removed: self.on_cluster_removed.into(),
            metrics: declared.metrics,
            replays: watch::Sender::default(),
            is_running: AtomicBool::new(false),
        }
    }
}

impl<R: RequestKey, T> fmt::Debug for Builder<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
