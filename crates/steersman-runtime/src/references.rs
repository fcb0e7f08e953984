// SPDX-License-Identifier: Apache-2.0
//! References: objects that the primary objects of a controller name without owning them.
//!
//! The primary kind has an index from the keys of the referenced objects to the objects that name them. A change of a
//! referenced object looks up the index, where changes are dispatched.
//!
//! # Guarantees
//! 1. A referenced object that is created, changed or deleted enqueues every object that names it, and no other.
//! 2. An object that does not name it any more is not enqueued by its next change.
//! 3. A reconcile sees the referenced object at least in the state that enqueued it: an object that begins to name it reads it
//!    from the same informer.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use serde::de::DeserializeOwned;
use steersman_cache::Index;
use steersman_core::ObjectKey;

use crate::{
    Builder, Enqueue, Handler, Kind, KnownKind, ObjectEvent, Request, Tracker, kind,
    kind::ClusterChoice,
    owner::{Dependent, Primaries},
    source::KindSource,
};

/// A referenced object: a name in the namespace of the object that names it, or a key in any namespace.
///
/// Strings and keys convert into it. An empty name refers to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reference {
    /// A name: in the namespace of the referring object, or without one if the kind is cluster-scoped.
    Name(String),
    /// A key.
    Key(ObjectKey),
}

impl From<String> for Reference {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

impl From<&str> for Reference {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<ObjectKey> for Reference {
    fn from(key: ObjectKey) -> Self {
        Self::Key(key)
    }
}

impl Reference {
    /// Returns the keys that the referenced object can have: two if the scope of its kind is not known, because no kind has both.
    fn keys(self, namespace: &str, namespaced: Option<bool>) -> Vec<ObjectKey> {
        match self {
            Self::Name(name) if name.is_empty() => Vec::new(),
            Self::Key(key) if key.name().is_empty() => Vec::new(),
            Self::Name(name) => {
                let beside = Some(ObjectKey::new(namespace, &name)).filter(|_| namespaced != Some(false));
                let global = Some(ObjectKey::new("", &name)).filter(|_| namespaced != Some(true));
                beside.into_iter().chain(global).collect()
            }
            Self::Key(key) => vec![key],
        }
    }
}

/// A function from an object to its references: `Fn(&T) -> I`, with any iterator of names and keys.
pub trait ReferenceFn<T>: Fn(&T) -> <Self as ReferenceFn<T>>::References + Send + Sync + 'static {
    /// References of one object.
    type References: IntoIterator<Item: Into<Reference>>;
}

impl<T, F, I> ReferenceFn<T> for F
where
    F: Fn(&T) -> I + Send + Sync + 'static,
    I: IntoIterator<Item: Into<Reference>>,
{
    type References = I;
}

impl<T> Builder<Request, T>
where
    T: kube::Resource + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches a kind whose objects the primary objects name, and reconciles every object that names a changed one.
    ///
    /// The function returns the references of an object: names in its namespace, or keys, as an `Option`, a `Vec` or any other
    /// iterator. A referenced object need not exist: the object that names it is reconciled when it is created, changed and
    /// deleted. Reconciles read the kind in the same scope, from the same watch, as with [`owns`](Self::owns).
    ///
    /// ```
    /// # use k8s_openapi::api::{apps::v1::Deployment, core::v1::{ConfigMap, Pod, Secret}};
    /// # use steersman_runtime::Controller;
    /// let pods = Controller::of::<Pod>("pods")
    ///     .references::<Secret>(|pod| {
    ///         let secrets = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    ///         secrets.map(|secret| secret.name.clone()).collect::<Vec<_>>()
    ///     });
    /// # let _ = pods;
    /// ```
    ///
    /// A change of an object that only changes its references is a change of the primary kind, and has to pass its
    /// [predicates](Self::when). Changes of referenced objects do not.
    pub fn references<W: KnownKind + 'static>(self, references: impl ReferenceFn<T>) -> Self {
        self.references_with(kind::<W>(), references)
    }

    /// As [`references`](Self::references), for some objects or changes of a kind only, for metadata, for a dynamic kind, or in
    /// another cluster:
    ///
    /// ```
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// # use steersman_core::ObjectKey;
    /// # use steersman_runtime::{Controller, metadata};
    /// # fn example(hub: &steersman_cluster::Cluster) {
    /// let maps = Controller::of::<ConfigMap>("maps")
    ///     .on_every_cluster()
    ///     .references_with(metadata::<Secret>().on(hub).labels("shared=true"), |map| {
    ///         let name = map.data.as_ref()?.get("secret")?;
    ///         Some(ObjectKey::new("shared", name))
    ///     });
    /// # let _ = maps;
    /// # }
    /// ```
    ///
    /// References are to objects of the same cluster. If the kind names another cluster with [`on`](Kind::on), they are to
    /// objects of that cluster, from objects in all clusters of the controller.
    pub fn references_with<W: 'static>(self, referenced: Kind<W>, references: impl ReferenceFn<T>) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespaced = referenced.namespaced;
        let index = Index::on(&format!("steersman/references/{number}"), move |object: &T| {
            let namespace = object.meta().namespace.as_deref().unwrap_or_default();
            let found = references(object).into_iter();
            let keys = found.flat_map(|reference| reference.into().keys(namespace, namespaced));
            keys.collect::<Vec<_>>()
        });
        self.index(&index)
            .dependent(referenced, |referenced| referred(referenced, index))
    }

    /// Watches a kind, and reconciles the objects whose reconciles named a changed object with this [`Tracker`]. It is for
    /// references that only a reconcile finds; see [`references`](Self::references) for those that are written in the object.
    pub fn tracks<W: 'static>(self, tracked: Kind<W>, tracker: &Tracker) -> Self {
        let (deleted, removed) = (tracker.clone(), tracker.clone());
        let handler = tracker.handler(tracked.resource().clone());
        self.on_deleted_everywhere(move |cluster, key| {
            deleted.forget(&Request::new(cluster.clone(), key.clone()));
        })
        .on_cluster_removed(move |cluster| removed.forget_cluster(cluster))
        .dependent(tracked, |tracked| {
            Box::new(move |parent| KindSource::new(tracked, handler).following(&parent.clusters))
        })
    }
}

/// Makes the source of a referenced kind.
fn referred<W: 'static>(referenced: Kind<W>, index: Index<ObjectKey>) -> Dependent<Request> {
    Box::new(move |parent| {
        let same_cluster = match (&referenced.spec.clusters, &parent.clusters) {
            (ClusterChoice::Default, _) | (ClusterChoice::All, ClusterChoice::All) => true,
            (ClusterChoice::One(_) | ClusterChoice::All, _) => false,
        };
        let referrers = Referrers {
            index,
            same_cluster,
            objects: Arc::clone(&parent.objects),
        };
        KindSource::new(referenced, referrers).following(&parent.clusters)
    })
}

/// Enqueues the primary objects that name an object.
struct Referrers {
    index: Index<ObjectKey>,
    /// False if objects of all clusters name it.
    same_cluster: bool,
    objects: Arc<Primaries>,
}

impl<W> Handler<W, Request> for Referrers {
    fn handle(&self, event: &ObjectEvent<'_, W>, enqueue: &mut Enqueue<'_, Request>) {
        let key = event.object().key();
        let cluster = Some(event.cluster()).filter(|_| self.same_cluster);
        for (cluster, referrer) in self.objects.by_index(&self.index, &key, cluster) {
            enqueue.add_own(Request::new(cluster, referrer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_beside_the_object_unless_the_kind_is_cluster_scoped() {
        let keys = |reference: Reference, namespaced| reference.keys("web", namespaced);
        let (beside, global) = (ObjectKey::new("web", "a"), ObjectKey::new("", "a"));
        let both = [beside, global];
        assert_eq!(keys("a".into(), Some(true)), both[..1]);
        assert_eq!(keys("a".into(), Some(false)), both[1..]);
        assert_eq!(keys("a".into(), None), both);
    }

    #[test]
    fn a_key_is_in_its_own_namespace_and_an_empty_name_refers_to_nothing() {
        let other = ObjectKey::new("other", "a");
        let found = Reference::from(other.clone()).keys("web", Some(true));
        assert_eq!(found, [other]);
        assert!(Reference::from(String::new()).keys("web", None).is_empty());
        let unnamed = Reference::from(ObjectKey::new("web", ""));
        assert!(unnamed.keys("web", None).is_empty());
    }
}
