// SPDX-License-Identifier: Apache-2.0
//! Selection of the objects that a controller watches.

use std::{any::TypeId, fmt, time::Duration};

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::{
    Resource as KubeResource,
    core::{DynamicObject, PartialObjectMeta},
};
use steersman_cache::{Index, IndexValue, ObjectDetail, Resource, Scope};
use steersman_cluster::Cluster;

use crate::{Predicate, indexes::Indexes};

/// A kind to watch, with its clusters, objects and changes; from [`kind`], [`metadata`], [`dynamic`] or [`projection`].
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use steersman_runtime::{generation_changed, kind};
///
/// let certificates = kind::<Secret>().labels("kind=certificate").when(generation_changed());
/// # let _ = certificates;
/// ```
#[must_use = "a kind is watched once it is passed to a controller"]
pub struct Kind<T> {
    pub(crate) spec: KindSpec,
    /// Scope of the kind, if it is known without asking a server.
    pub(crate) namespaced: Option<bool>,
    pub(crate) predicates: Vec<Predicate<T>>,
}

/// The part of a [`Kind`] that does not depend on its type.
#[derive(Clone, Debug)]
pub(crate) struct KindSpec {
    pub(crate) resource: Resource,
    /// `None` uses the scope that is set in the cluster's cache.
    pub(crate) scope: Option<Scope>,
    pub(crate) metadata_only: bool,
    pub(crate) clusters: ClusterChoice,
    pub(crate) resync: Option<Duration>,
    pub(crate) when_absent: WhenAbsent,
    pub(crate) indexes: Indexes,
}

/// Clusters in which a kind is watched.
#[derive(Clone, Debug)]
pub(crate) enum ClusterChoice {
    /// The default cluster of the controller.
    Default,
    One(Cluster),
    /// Every cluster of the manager, as clusters are added and removed.
    All,
}

/// Behaviour while the kind is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenAbsent {
    /// An error: the controller does not start.
    Error,
    /// The controller pauses until the kind is installed.
    Wait,
    /// The controller works without it.
    Skip,
}

/// Selects the objects of a type.
pub fn kind<K: KnownKind>() -> Kind<K> {
    Kind::new(Resource::of::<K>(), K::is_namespaced())
}

/// Selects the metadata of the objects of a type. Only metadata is fetched, unless another user of the cluster's cache
/// reads whole objects. Reconciles of the controller read it with
/// [`Client::metadata`](steersman_cluster::Client::metadata) or [`Context::owned_metadata`](crate::Context::owned_metadata);
/// a cached read of the whole object is an error, because it would make the cache fetch and keep all of each object.
pub fn metadata<K: KnownKind>() -> Kind<PartialObjectMeta<K>> {
    let mut kind = Kind::new(Resource::of::<K>(), K::is_namespaced());
    kind.spec.metadata_only = true;
    kind
}

/// Selects the objects of a resource that is known only at run time.
pub fn dynamic(resource: Resource) -> Kind<DynamicObject> {
    Kind::new(resource, None)
}

/// Selects the objects of a type, decoded as a smaller type with only the fields that a mapping needs. If the cluster's
/// cache keeps that projection, nothing is decoded again.
pub fn projection<K: KnownKind, P>() -> Kind<P> {
    Kind::new(Resource::of::<K>(), K::is_namespaced())
}

/// A type whose names and scope are known at compile time: the types of `k8s-openapi` and of `#[derive(CustomResource)]`.
pub trait KnownKind: KubeResource<DynamicType = (), Scope: 'static> {
    /// Returns the scope, if the type has one: true for namespaced, false for cluster-scoped.
    fn is_namespaced() -> Option<bool> {
        let scope = TypeId::of::<Self::Scope>();
        if scope == TypeId::of::<NamespaceResourceScope>() {
            Some(true)
        } else if scope == TypeId::of::<ClusterResourceScope>() {
            Some(false)
        } else {
            None
        }
    }
}

impl<K: KubeResource<DynamicType = (), Scope: 'static>> KnownKind for K {}

impl<T> Kind<T> {
    fn new(resource: Resource, namespaced: Option<bool>) -> Self {
        Self {
            spec: KindSpec {
                resource,
                scope: None,
                metadata_only: false,
                clusters: ClusterChoice::Default,
                resync: None,
                when_absent: WhenAbsent::Error,
                indexes: Indexes::default(),
            },
            namespaced,
            predicates: Vec::new(),
        }
    }

    /// Selects objects of this namespace; several calls select several namespaces. Default: the scope of the cluster's
    /// cache.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        self.scoped(|scope| scope.namespace(namespace))
    }

    /// Selects objects by labels.
    pub fn labels(self, selector: impl Into<String>) -> Self {
        self.scoped(|scope| scope.labels(selector))
    }

    /// Selects objects by fields.
    pub fn fields(self, selector: impl Into<String>) -> Self {
        self.scoped(|scope| scope.fields(selector))
    }

    /// Selects objects of this namespace by labels, instead of the selector of [`labels`](Self::labels); see
    /// [`Scope::labels_in`].
    pub fn labels_in(self, namespace: &str, selector: impl Into<String>) -> Self {
        self.scoped(|scope| scope.labels_in(namespace, selector))
    }

    /// Selects objects of this namespace by fields, instead of the selector of [`fields`](Self::fields).
    pub fn fields_in(self, namespace: &str, selector: impl Into<String>) -> Self {
        self.scoped(|scope| scope.fields_in(namespace, selector))
    }

    /// Drops changes that the predicate rejects. With several calls, all predicates have to accept.
    pub fn when(mut self, predicate: Predicate<T>) -> Self {
        self.predicates.push(predicate);
        self
    }

    /// Watches another cluster than the controller's default cluster.
    pub fn on(mut self, cluster: &Cluster) -> Self {
        self.spec.clusters = ClusterChoice::One(cluster.clone());
        self
    }

    /// Watches every cluster of the manager, as clusters are added and removed.
    pub fn on_every_cluster(mut self) -> Self {
        self.spec.clusters = ClusterChoice::All;
        self
    }

    /// Runs the controller only while the kind is installed. Without this, a missing kind is an error that ends the run.
    /// With [`on_every_cluster`](Self::on_every_cluster), each cluster is watched while the kind is installed there.
    pub fn when_installed(mut self) -> Self {
        self.spec.when_absent = WhenAbsent::Wait;
        self
    }

    /// Runs the controller also without the kind, and watches the kind while it is installed.
    pub fn optional(mut self) -> Self {
        self.spec.when_absent = WhenAbsent::Skip;
        self
    }

    /// Enqueues every object at about this interval, with low priority, in case an event was missed. Default: never; zero
    /// means never.
    pub fn resync(mut self, every: Duration) -> Self {
        self.spec.resync = Some(every);
        self
    }

    /// Keeps an index with the cache of the kind, in sync before the first reconcile. Read with it by
    /// [`Query::index`](steersman_cache::Query::index):
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// use steersman_cache::Index;
    /// use steersman_runtime::{Controller, kind, map_fn};
    ///
    /// let by_node = Index::on("node", |pod: &Pod| pod.spec.as_ref()?.node_name.clone());
    /// let nodes = Controller::of::<ConfigMap>("nodes").reads(kind::<Pod>().index(&by_node));
    /// // … and in the reconciler: cx.client().list::<Pod>(&Query::new().index(&by_node, "node-1"))
    /// # let _ = nodes;
    /// ```
    ///
    /// An index is found by its identity, not by its name: keep it and clone it. If the cache has another index of this
    /// name, an error is logged and lookups read every object.
    pub fn index<V: IndexValue>(mut self, index: &Index<V>) -> Self {
        self.spec.indexes.add(index);
        self
    }

    /// Sets the scope of a [`dynamic`] kind: namespaced or cluster-scoped. Default: discovery decides.
    pub fn namespaced(mut self, namespaced: bool) -> Self {
        self.namespaced = Some(namespaced);
        // The cache must not use its default namespaces for a cluster-scoped kind.
        self.spec.resource = self.spec.resource.namespaced(namespaced);
        self
    }

    /// Resource of this kind.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.spec.resource
    }

    pub(crate) fn wanted(&self) -> ObjectDetail {
        match self.spec.metadata_only {
            true => ObjectDetail::Metadata,
            false => ObjectDetail::Full,
        }
    }

    fn scoped(mut self, narrow: impl FnOnce(Scope) -> Scope) -> Self {
        self.spec.scope = Some(narrow(self.spec.scope.unwrap_or_default()));
        self
    }
}

impl<T> Clone for Kind<T> {
    fn clone(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            namespaced: self.namespaced,
            predicates: self.predicates.clone(),
        }
    }
}

impl<T> fmt::Debug for Kind<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind")
            .field("resource", &self.spec.resource.to_string())
            .field("scope", &self.spec.scope)
            .finish_non_exhaustive()
    }
}
