// SPDX-License-Identifier: Apache-2.0
//! Which objects a controller watches.

use std::{any::TypeId, fmt, time::Duration};

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::{
    Resource as KubeResource,
    core::{DynamicObject, PartialObjectMeta},
};
use steersman_cache::{Index, IndexValue, ObjectDetail, Resource, Scope};
use steersman_cluster::Cluster;

use crate::{Predicate, indexes::Indexes};

/// A kind to watch, in which clusters, and which of its objects and changes; from [`kind`], [`metadata`], [`dynamic`]
/// or [`projection`].
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use steersman_runtime::{generation_changed, kind};
///
/// let certificates = kind::<Secret>().labels("kind=certificate").when(generation_changed());
/// # let _ = certificates;
/// ```
#[must_use = "a kind is watched once it is given to a controller"]
pub struct Kind<T> {
    pub(crate) resource: Resource,
    /// Whether its objects are in namespaces, where that is known before a server was asked.
    pub(crate) namespaced: Option<bool>,
    /// Nothing, where the cluster's cache decides.
    pub(crate) scope: Option<Scope>,
    pub(crate) metadata_only: bool,
    pub(crate) place: ClusterChoice,
    pub(crate) predicates: Vec<Predicate<T>>,
    pub(crate) resync: Option<Duration>,
    pub(crate) presence: WhenAbsent,
    pub(crate) indexes: Indexes,
}

/// In which clusters.
#[derive(Clone, Debug)]
pub(crate) enum ClusterChoice {
    /// The controller's own.
    Home,
    One(Cluster),
    /// Every cluster of the host, as they come and go.
    Every,
}

/// What it means that the server does not have the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenAbsent {
    /// A mistake: the controller does not start.
    Mistake,
    /// The controller rests until the kind is installed.
    Rest,
    /// The controller works without it.
    DoWithout,
}

/// The objects of a type.
pub fn kind<K: KnownKind>() -> Kind<K> {
    Kind::new(Resource::of::<K>(), K::is_namespaced())
}

/// The metadata of the objects of a type. Unless another user of the cluster's cache reads whole objects, only metadata is fetched.
pub fn metadata<K: KnownKind>() -> Kind<PartialObjectMeta<K>> {
    Kind {
        metadata_only: true,
        ..Kind::new(Resource::of::<K>(), K::is_namespaced())
    }
}

/// The objects of a resource that is known only when the program runs.
pub fn dynamic(resource: Resource) -> Kind<DynamicObject> {
    Kind::new(resource, None)
}

/// The objects of a type as a smaller one, which has only the fields that a mapping needs. Where the cluster's cache keeps
/// that projection, nothing is decoded for it.
pub fn projection<K: KnownKind, P>() -> Kind<P> {
    Kind::new(Resource::of::<K>(), K::is_namespaced())
}

/// A type whose names and scope are known when the program is compiled: those of `k8s-openapi`, and what
/// `#[derive(CustomResource)]` makes.
pub trait KnownKind: KubeResource<DynamicType = (), Scope: 'static> {
    /// Whether its objects are in namespaces, where the type says so.
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
            resource,
            namespaced,
            scope: None,
            metadata_only: false,
            place: ClusterChoice::Home,
            predicates: Vec::new(),
            resync: None,
            presence: WhenAbsent::Mistake,
            indexes: Indexes::default(),
        }
    }

    /// Those of this namespace; said several times, those of each. Default: as the cluster's cache is set up.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        self.scoped(|scope| scope.namespace(namespace))
    }

    /// Those that a label selector selects.
    pub fn labels(self, selector: impl Into<String>) -> Self {
        self.scoped(|scope| scope.labels(selector))
    }

    /// Those that a field selector selects.
    pub fn fields(self, selector: impl Into<String>) -> Self {
        self.scoped(|scope| scope.fields(selector))
    }

    /// Only changes that the predicate admits. Said several times, all have to.
    pub fn when(mut self, predicate: Predicate<T>) -> Self {
        self.predicates.push(predicate);
        self
    }

    /// Those of another cluster than the controller's own.
    pub fn on(mut self, cluster: &Cluster) -> Self {
        self.place = ClusterChoice::One(cluster.clone());
        self
    }

    /// Those of every cluster of the manager, as clusters come and go.
    pub fn on_every_cluster(mut self) -> Self {
        self.place = ClusterChoice::Every;
        self
    }

    /// The controller runs only while the kind is installed. Without this, a kind that is not there is a mistake that
    /// ends the run. With [`on_every_cluster`](Self::on_every_cluster), each cluster is watched while it has the kind.
    pub fn when_installed(mut self) -> Self {
        self.presence = WhenAbsent::Rest;
        self
    }

    /// The controller works without the kind, and watches it while it is installed.
    pub fn optional(mut self) -> Self {
        self.presence = WhenAbsent::DoWithout;
        self
    }

    /// Every object again at about this interval, with low priority, in case something was missed. Default, and
    /// with zero: never.
    pub fn resync(mut self, every: Duration) -> Self {
        self.resync = Some(every);
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
        self.indexes.add(index);
        self
    }

    /// Says that objects of a [`dynamic`] kind are not in namespaces, or that they are. Default: the server is asked.
    pub fn namespaced(mut self, namespaced: bool) -> Self {
        self.namespaced = Some(namespaced);
        // For the cache, whose default namespaces are not meant for a kind that is in none.
        self.resource = self.resource.namespaced(namespaced);
        self
    }

    /// Which resource it is.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    pub(crate) fn wanted(&self) -> ObjectDetail {
        match self.metadata_only {
            true => ObjectDetail::Metadata,
            false => ObjectDetail::Whole,
        }
    }

    fn scoped(mut self, narrow: impl FnOnce(Scope) -> Scope) -> Self {
        self.scope = Some(narrow(self.scope.unwrap_or_default()));
        self
    }
}

impl<T> Clone for Kind<T> {
    fn clone(&self) -> Self {
        Self {
            resource: self.resource.clone(),
            namespaced: self.namespaced,
            scope: self.scope.clone(),
            metadata_only: self.metadata_only,
            place: self.place.clone(),
            predicates: self.predicates.clone(),
            resync: self.resync,
            presence: self.presence,
            indexes: self.indexes.clone(),
        }
    }
}

impl<T> fmt::Debug for Kind<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind")
            .field("resource", &self.resource.to_string())
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
