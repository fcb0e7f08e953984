// SPDX-License-Identifier: Apache-2.0
//! Finds and deletes the members that left a set.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::{StreamExt, future::BoxFuture, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    api::{DeleteParams, Preconditions},
    core::{DynamicObject, PartialObjectMeta},
};
use serde_json::Value;
use steersman_cache::{ObjectDetail, Query, Resource};
use steersman_cluster::{Deletion, Error, MapError, ResourceQuery};
use steersman_core::{ObjectKey, error_chain};

use super::{AT_ONCE, inventory::Inventory, names, names::GroupKind, registry::BY_SET};
use crate::{children::Children, projection};

/// Identifies a member, whatever its version.
pub(crate) type MemberKey = (GroupKind, ObjectKey);

/// A kind whose members could not all be found or deleted. The inventory keeps it, and the next reconcile tries again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneDelay {
    /// The kind, such as `Deployment.apps`.
    pub kind: String,
    /// Cause.
    pub reason: String,
    /// True if the cluster does not have the kind.
    pub is_absent: bool,
}

/// Result of a sweep.
#[derive(Default)]
pub(crate) struct Swept {
    pub(crate) deleted: Vec<(Resource, ObjectKey)>,
    /// Members that a finalizer or a grace period keeps.
    pub(crate) terminating: Vec<(Resource, ObjectKey)>,
    pub(crate) delayed: Vec<PruneDelay>,
    /// Entries of the inventory that still have members, or might have.
    pub(crate) kept: Inventory,
}

/// A sweep of one set.
pub(crate) struct Sweep<'a> {
    pub(crate) members: &'a Children,
    /// Kinds that the controller watches.
    pub(crate) watched: &'a [Resource],
    pub(crate) recorded: &'a Inventory,
    /// Inventory of the members that stay.
    pub(crate) needed: &'a Inventory,
    /// Members that stay.
    pub(crate) staying: &'a HashSet<MemberKey>,
}

type Found = BTreeMap<MemberKey, (Resource, ObjectMeta)>;

type Deleting = (GroupKind, Resource, ObjectKey, Result<Pruned, Error>);

enum Pruned {
    Deleted,
    Terminating,
    NotOurs,
}

impl Sweep<'_> {
    /// Deletes the members that left the set.
    pub(crate) async fn run(&self) -> Swept {
        let mut swept = Swept::default();
        let found = self.find(&mut swept).await;
        let (last, first): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|((kind, _), _)| kind.is_foundation());
        for wave in [first, last] {
            let mut deletions: Vec<BoxFuture<'_, Deleting>> = Vec::new();
            for ((kind, key), (resource, metadata)) in wave {
                deletions.push(Box::pin(async move {
                    let pruned = self.prune(&resource, &key, &metadata).await;
                    (kind, resource, key, pruned)
                }));
            }
            let mut deletions = stream::iter(deletions).buffer_unordered(AT_ONCE);
            while let Some((kind, resource, key, pruned)) = deletions.next().await {
                match pruned {
                    Ok(Pruned::Deleted) => swept.deleted.push((resource, key)),
                    Ok(Pruned::NotOurs) => {}
                    Ok(Pruned::Terminating) => {
                        swept.kept.add(kind, key.namespace());
                        swept.terminating.push((resource, key));
                    }
                    Err(error) => {
                        swept.kept.add(kind.clone(), key.namespace());
                        swept.delay(&kind, &error_chain(&error), false);
                    }
                }
            }
        }
        swept
            .deleted
            .sort_by_key(|(resource, key)| (resource.kind().to_owned(), key.clone()));
        swept.delayed.sort_by(|one, other| one.kind.cmp(&other.kind));
        swept.delayed.dedup_by(|one, other| one.kind == other.kind);
        swept
    }

    /// Finds objects with the label of the set that are not to stay, without deleting them.
    pub(crate) async fn find(&self, swept: &mut Swept) -> Found {
        let mut found = Found::new();
        for resource in self.watched {
            let kind = GroupKind::of(resource);
            let query = Query::new().index(&*BY_SET, self.id());
            match self.list(self.members.client(), resource, &query).await {
                Ok(objects) => self.add(&mut found, resource, objects),
                // Discovery knows more about it below, if the set has members of the kind.
                Err(error) if error.is_absent() => {}
                Err(error) => {
                    if self.recorded.kinds.contains(&kind) {
                        swept.keep(&kind, self.recorded);
                    }
                    swept.delay(&kind, &error_chain(&error), false);
                }
            }
        }
        // Nothing leaves the inventory before the server confirms that it has no members there.
        let leaving: BTreeSet<&String> = self
            .recorded
            .namespaces
            .difference(&self.needed.namespaces)
            .collect();
        for kind in &self.recorded.kinds {
            let namespaces: Vec<&String> = match self.needed.kinds.contains(kind) {
                true => leaving.iter().copied().collect(),
                false => self.recorded.namespaces.iter().collect(),
            };
            let is_leaving = !self.needed.kinds.contains(kind);
            if !is_leaving && namespaces.is_empty() {
                continue;
            }
            if let Err((reason, is_absent)) = self.find_live(kind, &namespaces, is_leaving, &mut found).await
            {
                swept.keep(kind, self.recorded);
                swept.delay(kind, &reason, is_absent);
            }
        }
        found
    }

    /// Lists the members of a kind in these namespaces from the server.
    async fn find_live(
        &self,
        kind: &GroupKind,
        namespaces: &[&String],
        is_leaving: bool,
        found: &mut Found,
    ) -> Result<(), (String, bool)> {
        let query = ResourceQuery::kind(&kind.group, &kind.kind);
        let mapping = self.members.cluster().mapper().resolve(&query).await;
        let mapping = mapping.map_err(|error| {
            let is_absent = matches!(error, MapError::NoMatch { .. });
            (error_chain(&error), is_absent)
        })?;
        let resource = mapping.resource();
        let live = self.members.client().live();
        let of_set = || Query::new().label(names::PART_OF, self.id());
        let queries: Vec<Query> = match mapping.is_namespaced() {
            true => namespaces.iter().map(|name| of_set().namespace(name)).collect(),
            // The namespaces of the set do not matter for it.
            false if is_leaving => vec![of_set()],
            false => Vec::new(),
        };
        for query in queries {
            let objects = self.list(&live, resource, &query).await;
            let objects = objects.map_err(|error| (error_chain(&error), error.is_absent()))?;
            self.add(found, resource, objects);
        }
        Ok(())
    }

    async fn list(
        &self,
        client: &steersman_cluster::Client,
        resource: &Resource,
        query: &Query,
    ) -> Result<Vec<ObjectMeta>, Error> {
        let client = client.of_as::<PartialObjectMeta<DynamicObject>>(resource, ObjectDetail::Full);
        let objects = client.list(query).await?;
        Ok(objects.iter().map(|object| object.metadata.clone()).collect())
    }

    /// Adds the objects that have the marks of a member and are not to stay.
    fn add(&self, found: &mut Found, resource: &Resource, objects: Vec<ObjectMeta>) {
        for metadata in objects {
            let key = key_of(&metadata);
            let member = (GroupKind::of(resource), key);
            if !self.staying.contains(&member) && self.is_marked(resource, &member.1, &metadata) {
                found
                    .entry(member)
                    .or_insert_with(|| (resource.clone(), metadata));
            }
        }
    }

    fn id(&self) -> &str {
        self.members.ownership().set.as_deref().unwrap_or_default()
    }

    /// Returns true if an object has the label of the set, and the annotation that binds it to the uid of the parent and to its
    /// own name. Controllers that copy labels and annotations to their own objects do not give them that.
    fn is_marked(&self, resource: &Resource, key: &ObjectKey, metadata: &ObjectMeta) -> bool {
        let text = |pairs: &Option<BTreeMap<String, String>>, name: &str| {
            pairs.as_ref().and_then(|pairs| pairs.get(name)).cloned()
        };
        let member = self.members.ownership().member_of(resource, key);
        text(&metadata.labels, names::PART_OF).as_deref() == Some(self.id())
            && text(&metadata.annotations, names::MEMBER) == Some(member)
    }

    /// Deletes a member, if the server confirms that it is one.
    async fn prune(&self, resource: &Resource, key: &ObjectKey, found: &ObjectMeta) -> Result<Pruned, Error> {
        if found.deletion_timestamp.is_some() {
            return Ok(Pruned::Terminating);
        }
        let live = self.members.client().live();
        let values = live.of_as::<Value>(resource, ObjectDetail::Full);
        let mut tries = 0;
        loop {
            let Some(object) = values.get(key).await? else {
                return Ok(Pruned::Deleted);
            };
            let metadata = object.get("metadata").cloned().unwrap_or_default();
            let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap_or_default();
            if !self.is_marked(resource, key, &metadata) || !self.is_owned(&object, &metadata) {
                return Ok(Pruned::NotOurs);
            }
            if metadata.deletion_timestamp.is_some() {
                return Ok(Pruned::Terminating);
            }
            let options = DeleteParams::background().preconditions(Preconditions {
                uid: metadata.uid,
                resource_version: metadata.resource_version,
            });
            tries += 1;
            match self.members.client().of(resource).delete(key, options).await {
                Ok(Deletion::Done) => return Ok(Pruned::Deleted),
                Ok(Deletion::Begun(_)) => return Ok(Pruned::Terminating),
                Err(error) if error.is_not_found() && !error.is_absent() => return Ok(Pruned::Deleted),
                // It changed after it was read: the checks are repeated.
                Err(error) if error.is_conflict() && tries < TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if the parent controls the object, or, without a controller, if the field manager of the set owns the label.
    fn is_owned(&self, object: &Value, metadata: &ObjectMeta) -> bool {
        let mut owners = metadata.owner_references.iter().flatten();
        if let Some(controller) = owners.find(|owner| owner.controller == Some(true)) {
            return controller.uid == self.members.ownership().owner.uid;
        }
        let manager = self.members.field_manager();
        projection::entries(object).any(|entry| {
            let is_entry = |operation| projection::is_entry(entry, manager, operation);
            (is_entry("Apply") || is_entry("Update")) && names::owns_part_of(entry)
        })
    }
}

/// A deletion is repeated this often after conflicts.
const TRIES: u32 = 5;

impl Swept {
    fn delay(&mut self, kind: &GroupKind, reason: &str, is_absent: bool) {
        self.delayed.push(PruneDelay {
            kind: kind.to_string(),
            reason: reason.to_owned(),
            is_absent,
        });
    }

    /// Keeps a kind, and all namespaces in which it might have members.
    fn keep(&mut self, kind: &GroupKind, recorded: &Inventory) {
        self.kept.kinds.insert(kind.clone());
        self.kept.namespaces.extend(recorded.namespaces.iter().cloned());
    }
}

fn key_of(metadata: &ObjectMeta) -> ObjectKey {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    ObjectKey::new(&text(&metadata.namespace), &text(&metadata.name))
}
