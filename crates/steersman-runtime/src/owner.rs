// SPDX-License-Identifier: Apache-2.0
//! Handlers from an object to its owners.

mod owned;
mod primaries;

use std::sync::Arc;

use steersman_cache::{Object, Resource};
use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;

pub(crate) use self::owned::{Dependent, Parent, owned};
#[cfg(test)]
pub(crate) use self::primaries::DELETIONS_MAX;
pub(crate) use self::primaries::Primaries;
use self::primaries::Referent;
use crate::{Enqueue, Handler, IntoRequest, ObjectEvent, RequestKey, namespaced::Namespaced};

/// Enqueues the owners of an object; from [`controller_of`] or [`owners_of`].
///
/// Owners are matched by group and kind, whatever the version of the reference. When the owner of an object changes, the
/// former owner is enqueued too.
///
/// Handlers that a controller makes for [`owns`](crate::Builder::owns) compare UIDs with the existing owners: an object of
/// a deleted owner does not enqueue a new object of the same name. An owner that is not in the cache is enqueued, because
/// it might not have arrived yet. If the cache still has an older owner of the name, the newer one is enqueued when it
/// arrives.
#[derive(Clone, Debug)]
pub struct Owners {
    group: String,
    kind: String,
    /// Set after discovery, if the type does not define it.
    namespaced: Namespaced,
    controller_only: bool,
    /// The existing owners, if the controller watches them.
    primaries: Option<Arc<Primaries>>,
}

/// Enqueues the controlling owner of an object, if it is of this kind. [`owns`](crate::Builder::owns) uses it.
#[must_use]
pub fn controller_of(owner: &Resource, namespaced: bool) -> Owners {
    Owners::controlling(owner, Namespaced::from(Some(namespaced)))
}

/// Enqueues every owner of this kind, not only the controlling one.
#[must_use]
pub fn owners_of(owner: &Resource, namespaced: bool) -> Owners {
    Owners::every(owner, Namespaced::from(Some(namespaced)))
}

impl Owners {
    pub(crate) fn controlling(owner: &Resource, namespaced: Namespaced) -> Self {
        Self {
            group: owner.group().to_owned(),
            kind: owner.kind().to_owned(),
            namespaced,
            controller_only: true,
            primaries: None,
        }
    }

    /// Compares owners with these existing objects.
    pub(crate) fn among(self, primaries: &Arc<Primaries>) -> Self {
        Self {
            primaries: Some(Arc::clone(primaries)),
            ..self
        }
    }

    pub(crate) fn every(owner: &Resource, namespaced: Namespaced) -> Self {
        Self {
            controller_only: false,
            ..Self::controlling(owner, namespaced)
        }
    }

    /// Returns the keys of the matching owners, with the state of each.
    fn keys(&self, object: &Object, cluster: &ClusterName) -> Vec<(ObjectKey, Referent)> {
        let is_namespaced = self.namespaced.get().unwrap_or(true);
        let namespace = if is_namespaced { object.namespace() } else { "" };
        let meant = object.owners().into_iter().filter(|owner| {
            let (group, _) = owner.api_version.rsplit_once('/').unwrap_or_default();
            let is_meant = !self.controller_only || owner.controller == Some(true);
            is_meant && owner.kind == self.kind && group == self.group
        });
        let at_most = if self.controller_only { 1 } else { usize::MAX };
        meant
            .take(at_most)
            .map(|owner| {
                let key = ObjectKey::new(namespace, &owner.name);
                let primaries = self.primaries.as_ref();
                let referent = primaries.map(|primaries| primaries.referent(cluster, &key, &owner.uid));
                (key, referent.unwrap_or(Referent::Missing))
            })
            .filter(|(_, referent)| *referent != Referent::Replaced)
            .collect()
    }
}

impl<T, R: RequestKey> Handler<T, R> for Owners
where
    ObjectKey: IntoRequest<R>,
{
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        for object in event.states() {
            for (key, referent) in self.keys(object, event.cluster()) {
                match &self.primaries {
                    Some(primaries) if referent == Referent::Missing => enqueue.add_missing(key, primaries),
                    Some(_) => enqueue.add_own(key),
                    None => enqueue.add(key),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn child(owners: &Value) -> Object {
        let whole = json!({"metadata": {"name": "child", "namespace": "ns", "ownerReferences": owners}});
        Object::from_slice(&serde_json::to_vec(&whole).unwrap()).unwrap()
    }

    fn keys(owners: &Owners, object: &Object) -> Vec<ObjectKey> {
        let keys = owners.keys(object, &ClusterName::default());
        keys.into_iter().map(|(key, _)| key).collect()
    }

    fn reference(api_version: &str, name: &str, controller: bool) -> Value {
        json!({"apiVersion": api_version, "kind": "Web", "name": name, "uid": name, "controller": controller})
    }

    fn webs() -> Resource {
        Resource::new("example.com", "v1", "Web", "webs")
    }

    #[test]
    fn an_owner_is_found_whatever_version_the_reference_names() {
        let object = child(&json!([reference("example.com/v1beta1", "a", true)]));
        assert_eq!(
            keys(&controller_of(&webs(), true), &object),
            [ObjectKey::new("ns", "a")]
        );
        assert_eq!(
            keys(&controller_of(&webs(), false), &object),
            [ObjectKey::new("", "a")]
        );
    }

    #[test]
    fn another_group_of_the_same_kind_is_another_owner() {
        let object = child(&json!([
            reference("other.com/v1", "a", true),
            reference("v1", "b", true)
        ]));
        assert!(keys(&controller_of(&webs(), true), &object).is_empty());
    }

    #[test]
    fn of_several_owners_one_controls() {
        let references = json!([
            reference("example.com/v1", "a", false),
            reference("example.com/v1", "b", true),
            reference("example.com/v1", "c", true),
        ]);
        let object = child(&references);
        assert_eq!(
            keys(&controller_of(&webs(), true), &object),
            [ObjectKey::new("ns", "b")]
        );
        assert_eq!(keys(&owners_of(&webs(), true), &object).len(), 3);
    }
}
