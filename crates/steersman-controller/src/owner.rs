// SPDX-License-Identifier: Apache-2.0
//! From an object to those that own it.

use steersman_cache::{Object, Resource};
use steersman_core::ObjectKey;

use crate::{Enqueue, Handler, IntoRequest, Occurrence, RequestKey, namespaced::Namespaced};

/// Enqueues the owners of an object; from [`controller_of`] or [`owners_of`].
///
/// Owners are told by group and kind, whatever version a reference names. An object that changed hands wakes the former
/// owner, too.
#[derive(Clone, Debug)]
pub struct Owners {
    group: String,
    kind: String,
    /// Known once a server was asked, where the type does not say it.
    namespaced: Namespaced,
    controller_only: bool,
}

/// Enqueues the one that controls the object, if it is of this kind: what `owns` on a controller does.
#[must_use]
pub fn controller_of(owner: &Resource, namespaced: bool) -> Owners {
    Owners::controlling(owner, Namespaced::from(Some(namespaced)))
}

/// Enqueues every owner of this kind, also those that share the object with others.
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
        }
    }

    pub(crate) fn every(owner: &Resource, namespaced: Namespaced) -> Self {
        Self {
            controller_only: false,
            ..Self::controlling(owner, namespaced)
        }
    }

    /// The keys of the owners that are meant.
    fn keys(&self, object: &Object) -> Vec<ObjectKey> {
        let is_namespaced = self.namespaced.get().unwrap_or(true);
        let namespace = if is_namespaced { object.namespace() } else { "" };
        let owners = object.owners().into_iter();
        let mut meant = owners.filter(|owner| {
            let (group, _) = owner.api_version.rsplit_once('/').unwrap_or_default();
            let is_meant = !self.controller_only || owner.controller == Some(true);
            is_meant && owner.kind == self.kind && group == self.group
        });
        let key = |name: &str| ObjectKey::new(namespace, name);
        if self.controller_only {
            meant.next().map(|owner| key(&owner.name)).into_iter().collect()
        } else {
            meant.map(|owner| key(&owner.name)).collect()
        }
    }
}

impl<T, R: RequestKey> Handler<T, R> for Owners
where
    ObjectKey: IntoRequest<R>,
{
    fn handle(&self, occurrence: &Occurrence<'_, T>, enqueue: &mut Enqueue<'_, R>) {
        for object in occurrence.states() {
            self.keys(object).into_iter().for_each(|key| enqueue.add(key));
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
            controller_of(&webs(), true).keys(&object),
            [ObjectKey::new("ns", "a")]
        );
        assert_eq!(
            controller_of(&webs(), false).keys(&object),
            [ObjectKey::new("", "a")]
        );
    }

    #[test]
    fn another_group_of_the_same_kind_is_another_owner() {
        let object = child(&json!([
            reference("other.com/v1", "a", true),
            reference("v1", "b", true)
        ]));
        assert!(controller_of(&webs(), true).keys(&object).is_empty());
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
            controller_of(&webs(), true).keys(&object),
            [ObjectKey::new("ns", "b")]
        );
        assert_eq!(owners_of(&webs(), true).keys(&object).len(), 3);
    }
}
