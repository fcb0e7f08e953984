// SPDX-License-Identifier: Apache-2.0
//! Sources of the kinds that a controller owns.

use std::sync::Arc;

use steersman_cache::Resource;
use steersman_core::ObjectKey;
use steersman_queue::Add;

use super::{Owners, Primaries};
use crate::{
    IntoRequest, Kind, RequestKey,
    indexes::BY_CONTROLLER,
    kind::{ClusterChoice, WhenAbsent},
    namespaced::Namespaced,
    source::KindSource,
};

/// Makes the source of a kind that depends on the primary kind, once that is final.
pub(crate) type Dependent<R> = Box<dyn FnOnce(&Parent) -> KindSource<R> + Send>;

/// Facts about the primary kind that such sources need.
pub(crate) struct Parent {
    pub(crate) resource: Resource,
    pub(crate) namespaced: Namespaced,
    pub(crate) clusters: ClusterChoice,
    pub(crate) objects: Arc<Primaries>,
}

impl Parent {
    pub(crate) fn of<T>(kind: &Kind<T>) -> Self {
        Self {
            resource: kind.spec.resource.clone(),
            namespaced: Namespaced::from(kind.namespaced),
            clusters: kind.spec.clusters.clone(),
            objects: Arc::default(),
        }
    }
}

/// Watches the children of the primary kind, and keeps their index by owner.
pub(crate) fn owned<C: 'static, R: RequestKey>(
    child: Kind<C>,
    owners: fn(&Resource, Namespaced) -> Owners,
) -> Dependent<R>
where
    ObjectKey: IntoRequest<R>,
{
    Box::new(move |parent| {
        let owners = owners(&parent.resource, parent.namespaced.clone()).among(&parent.objects);
        let mut child = child.index(&BY_CONTROLLER);
        // An owner and its children are in the same cluster.
        if let (ClusterChoice::Default, clusters) | (_, clusters @ ClusterChoice::All) =
            (&child.spec.clusters, &parent.clusters)
        {
            child.spec.clusters = clusters.clone();
        }
        let is_optional = child.spec.when_absent == WhenAbsent::Skip;
        let source = KindSource::new(child, owners).awaiting_scope();
        if !is_optional {
            return source;
        }
        // No change of a child can enqueue a parent that has none yet.
        let parents = Arc::clone(&parent.objects);
        source.on_installed(Arc::new(move |cluster, sink| {
            for key in parents.keys(cluster) {
                sink.add(key.into_request(cluster), Add::new().retractable());
            }
        }))
    })
}
