// SPDX-License-Identifier: Apache-2.0
//! Kinds that a reconciler declares by itself.

use std::{fmt, sync::Arc};

use steersman_cache::Resource;
use steersman_cluster::ClusterName;
use steersman_core::{ObjectKey, Permission};

use crate::{
    Handler, IntoRequest, Kind, Request, RequestKey,
    cluster_session::OnClusterRemoved,
    metrics::{DeclaredMetric, DeclaredValue},
    owner::{Dependent, Owners, owned},
    permissions,
    source::{KindSource, OnDeleted},
};

/// Kinds that a reconciler needs; see [`ObjectReconciler::declare`](crate::ObjectReconciler::declare). They are added to those
/// of the [`Builder`](crate::Builder).
pub struct Declarations<R: RequestKey = Request> {
    controller: String,
    primary: Option<Resource>,
    pub(crate) owned: Vec<Dependent<R>>,
    pub(crate) watched: Vec<KindSource<R>>,
    pub(crate) on_deleted: Vec<OnDeleted>,
    pub(crate) on_cluster_removed: Vec<OnClusterRemoved>,
    pub(crate) metrics: Vec<DeclaredMetric>,
    pub(crate) permissions: Vec<Permission>,
}

impl<R: RequestKey> Declarations<R> {
    pub(crate) fn new(controller: &str, primary: Option<&Resource>) -> Self {
        Self {
            controller: controller.to_owned(),
            primary: primary.cloned(),
            owned: Vec::new(),
            watched: Vec::new(),
            on_deleted: Vec::new(),
            on_cluster_removed: Vec::new(),
            metrics: Vec::new(),
            permissions: Vec::new(),
        }
    }

    /// Same as [`Builder::owns_with`](crate::Builder::owns_with).
    pub fn owns<C: 'static>(&mut self, child: Kind<C>)
    where
        ObjectKey: IntoRequest<R>,
    {
        self.permissions
            .extend(permissions::watching(&child, &self.controller));
        self.owned.push(owned(child, Owners::controlling));
    }

    /// Same as [`Builder::watches`](crate::Builder::watches), in the clusters of the primary kind.
    pub fn watches<W: 'static>(&mut self, kind: Kind<W>, handler: impl Handler<W, R>) {
        self.permissions
            .extend(permissions::watching(&kind, &self.controller));
        self.watched.push(KindSource::new(kind, handler));
    }

    /// Same as [`Builder::permits`](crate::Builder::permits), for verbs on a resource, or on one of its subresources if
    /// `subresource` is not empty. The function adds the verbs.
    pub fn permits(
        &mut self,
        resource: &Resource,
        subresource: &str,
        verbs: impl FnOnce(Permission) -> Permission,
    ) {
        let needed_by = permissions::needed_by(&self.controller);
        let permission = permissions::on(resource, subresource, &needed_by);
        self.permissions.push(verbs(permission));
    }

    /// Primary kind of the controller, if it has one.
    #[must_use]
    pub fn primary(&self) -> Option<&Resource> {
        self.primary.as_ref()
    }

    /// Same as [`Builder::on_deleted_everywhere`](crate::Builder::on_deleted_everywhere).
    pub fn on_deleted_everywhere(
        &mut self,
        forget: impl Fn(&ClusterName, &ObjectKey) + Send + Sync + 'static,
    ) {
        self.on_deleted.push(Arc::new(forget));
    }

    /// Same as [`Builder::on_cluster_removed`](crate::Builder::on_cluster_removed).
    pub fn on_cluster_removed(&mut self, forget: impl Fn(&ClusterName) + Send + Sync + 'static) {
        self.on_cluster_removed.push(Arc::new(forget));
    }

    /// Adds a gauge to the metrics of the controller, with the label `controller` and one more. `value` is called at each scrape.
    /// Its name begins with `steersman_` or with the name of your operator; the same name is the same metric in all controllers.
    pub fn gauge(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: Option<(&'static str, &'static str)>,
        value: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        self.metrics.push(DeclaredMetric {
            name,
            help,
            label,
            value: DeclaredValue::Gauge(Arc::new(value)),
        });
    }

    /// As [`gauge`](Self::gauge), for a value that never decreases. `_total` is added to the name.
    pub fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: Option<(&'static str, &'static str)>,
        value: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.metrics.push(DeclaredMetric {
            name,
            help,
            label,
            value: DeclaredValue::Counter(Arc::new(value)),
        });
    }
}

impl<R: RequestKey> fmt::Debug for Declarations<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declarations")
            .field("owned", &self.owned.len())
            .field("watched", &self.watched.len())
            .finish_non_exhaustive()
    }
}
