// SPDX-License-Identifier: Apache-2.0
//! Kinds that a reconciler declares by itself.

use std::{fmt, sync::Arc};

use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;

use crate::{
    Handler, IntoRequest, Kind, Request, RequestKey,
    cluster_session::OnClusterRemoved,
    owner::{Owned, Owners, owned},
    source::{KindSource, OnDeleted},
};

/// Kinds that a reconciler needs; see [`ObjectReconciler::declare`](crate::ObjectReconciler::declare). They are added to those
/// of the [`Builder`](crate::Builder).
pub struct Declarations<R: RequestKey = Request> {
    pub(crate) owned: Vec<Owned<R>>,
    pub(crate) watched: Vec<KindSource<R>>,
    pub(crate) on_deleted: Vec<OnDeleted>,
    pub(crate) on_cluster_removed: Vec<OnClusterRemoved>,
}

impl<R: RequestKey> Declarations<R> {
    pub(crate) fn new() -> Self {
        Self {
            owned: Vec::new(),
            watched: Vec::new(),
            on_deleted: Vec::new(),
            on_cluster_removed: Vec::new(),
        }
    }

    /// Same as [`Builder::owns_with`](crate::Builder::owns_with).
    pub fn owns<C: 'static>(&mut self, child: Kind<C>)
    where
        ObjectKey: IntoRequest<R>,
    {
        self.owned.push(owned(child, Owners::controlling));
    }

    /// Same as [`Builder::watches`](crate::Builder::watches), in the clusters of the primary kind.
    pub fn watches<W: 'static>(&mut self, kind: Kind<W>, handler: impl Handler<W, R>) {
        self.watched.push(KindSource::new(kind, handler));
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
}

impl<R: RequestKey> fmt::Debug for Declarations<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declarations")
            .field("owned", &self.owned.len())
            .field("watched", &self.watched.len())
            .finish_non_exhaustive()
    }
}
