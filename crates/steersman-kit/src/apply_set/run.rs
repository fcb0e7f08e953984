// SPDX-License-Identifier: Apache-2.0
//! One reconcile of a set: grow the inventory, apply, prune, shrink the inventory.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream};
use serde_json::Value;
use steersman_cache::{Object, Resource};
use steersman_core::{Action, ObjectKey};

use super::{
    AT_ONCE, ApplySetError, InventoryIn,
    inventory::{Inventory, InventoryObject},
    member::Member,
    names::GroupKind,
    sweep::{MemberKey, PruneDelay, Sweep, Swept},
};
use crate::{
    ChildError, Readiness,
    children::{ChildId, Children, Settled, described},
    readiness,
};

/// Result of reconciling an apply set.
#[derive(Debug)]
pub struct ApplyReport {
    pub(crate) members: Vec<MemberReport>,
    pruned: usize,
    delayed: Vec<PruneDelay>,
    requeue: Option<Duration>,
}

/// State of one member after it was applied.
#[derive(Debug)]
pub(crate) struct MemberReport {
    pub(crate) id: ChildId,
    pub(crate) result: Result<Settled, ChildError>,
    pub(crate) own_readiness: Option<Readiness>,
    pub(crate) is_optional: bool,
}

impl ApplyReport {
    fn of_members(members: Vec<MemberReport>) -> Self {
        Self {
            members,
            pruned: 0,
            delayed: Vec::new(),
            requeue: None,
        }
    }

    pub(crate) fn of_deletion(swept: &Swept) -> Self {
        Self {
            pruned: swept.deleted.len() + swept.terminating.len(),
            ..Self::of_members(Vec::new())
        }
    }

    /// Number of members that were deleted because they left the set.
    #[must_use]
    pub fn pruned(&self) -> usize {
        self.pruned
    }

    /// Kinds whose former members could not all be deleted. The next reconcile tries again.
    #[must_use]
    pub fn delayed(&self) -> &[PruneDelay] {
        &self.delayed
    }

    /// Members that are not applied, with the cause: objects of someone else, objects that are being deleted, and members of kinds
    /// that are not installed.
    pub fn not_applied(&self) -> impl Iterator<Item = (&Resource, &ObjectKey, &'static str)> {
        self.members.iter().filter_map(|member| {
            let reason = match &member.result {
                Ok(Settled::Live(_)) => return None,
                Ok(Settled::Foreign) => "it belongs to someone else",
                Ok(Settled::Terminating) => "it is being deleted",
                Ok(Settled::NotInstalled) => "its kind is not installed",
                Ok(Settled::Withheld(_)) => "its parent is only observed",
                Err(_) => "it cannot be written",
            };
            Some((&member.id.0, &member.id.1, reason))
        })
    }

    /// Members that exist with the desired fields.
    pub fn applied(&self) -> impl Iterator<Item = (&Resource, &Arc<Object>)> {
        self.members.iter().filter_map(|member| match &member.result {
            Ok(Settled::Live(object)) => Some((&member.id.0, object)),
            _ => None,
        })
    }

    /// Returns true if all members are applied and [ready](crate::readiness()).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.members.iter().all(|member| member.readiness().is_ready())
    }

    /// The action to return from the reconcile: requeues if something is left that no event reports.
    pub fn action(&self) -> Action {
        self.requeue
            .map_or_else(Action::await_change, Action::requeue_after)
    }

    /// Returns the first error of a member.
    pub(crate) fn into_result(mut self) -> Result<Self, ApplySetError> {
        let count = self
            .members
            .iter()
            .filter(|member| member.result.is_err())
            .count();
        let failed = self.members.iter().position(|member| member.result.is_err());
        let Some(failed) = failed.map(|index| self.members.swap_remove(index)) else {
            return Ok(self);
        };
        match failed.result {
            Ok(_) => Ok(self),
            Err(source) => Err(ApplySetError::Apply {
                count,
                member: described(&failed.id.0, &failed.id.1),
                source: Box::new(source),
            }),
        }
    }
}

impl MemberReport {
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.result, Ok(Settled::Live(_)))
    }

    fn readiness(&self) -> Readiness {
        match (&self.result, &self.own_readiness) {
            (Ok(Settled::Live(_)), Some(own)) => own.clone(),
            (Ok(Settled::Live(object)), None) => {
                let value: Value = serde_json::from_slice(object.bytes()).unwrap_or_default();
                readiness(self.id.0.group(), self.id.0.kind(), &value)
            }
            _ => Readiness::in_progress("NotApplied", "the member is not applied"),
        }
    }
}

/// One reconcile of a set.
pub(crate) struct SetRun {
    pub(crate) members: Children,
    pub(crate) object: InventoryObject,
    watched: Vec<Resource>,
    /// Children of the parent that were members before. They are not pruned.
    children: HashSet<MemberKey>,
}

/// Retry of kinds that could not be listed, and of terminating members of kinds that are not watched.
const RETRY: Duration = Duration::from_secs(30);

impl SetRun {
    pub(crate) fn new(children: &Children, place: InventoryIn, watched: Vec<Resource>) -> Self {
        let parent = children.parent();
        let object = InventoryObject::new(children.parent_resource(), parent.key(), place);
        let members = children.of_set(&object.id);
        members.memory().sets.add(parent, &object.id);
        Self {
            members,
            object,
            watched,
            children: HashSet::new(),
        }
    }

    /// Keeps these objects, although they are not members of the set: the reconcile named them as children.
    pub(crate) fn keeping<'a>(mut self, children: impl IntoIterator<Item = &'a ChildId>) -> Self {
        self.children = children.into_iter().map(key_of).collect();
        self
    }

    /// Applies and prunes. An object that is only observed gets no inventory, and nothing is pruned.
    pub(crate) async fn apply(&self, set: &[Box<dyn Member>]) -> Result<ApplyReport, ApplySetError> {
        let ids = self.ids(set).await?;
        if self.members.is_observing() {
            return Ok(ApplyReport::of_members(self.settle(set, ids).await));
        }
        let needed = self.object.completed(inventory_of(&ids));
        let stored = self.object.read(&self.members, false).await?;
        let grown = self
            .object
            .write(&self.members, stored, |stored| stored.merged(&needed))
            .await?;
        let mut report = ApplyReport::of_members(self.settle(set, ids).await);
        if report.members.iter().any(|member| member.result.is_err()) {
            return Ok(report);
        }
        let members = report.members.iter().map(|member| key_of(&member.id));
        let staying = members.chain(self.children.iter().cloned()).collect();
        let swept = self.sweep(&grown.inventory, &needed, &staying).run().await;
        let keep = |stored: &Inventory| {
            let unknown = Inventory {
                kinds: &stored.kinds - &grown.inventory.kinds,
                namespaces: &stored.namespaces - &grown.inventory.namespaces,
            };
            needed.merged(&swept.kept).merged(&unknown)
        };
        let stored = self.object.read(&self.members, false).await?;
        self.object.write(&self.members, stored, keep).await?;
        report.requeue = self.must_retry(&swept).then_some(RETRY);
        report.pruned = swept.deleted.len();
        report.delayed = swept.delayed;
        Ok(report)
    }

    /// Deletes all members. Members that are being deleted count as deleted.
    pub(crate) async fn delete(&self) -> Result<Swept, ApplySetError> {
        let stored = self.object.read(&self.members, true).await?;
        let (nothing, staying) = (Inventory::default(), HashSet::new());
        let swept = self.sweep(&stored.inventory, &nothing, &staying).run().await;
        // Objects of a kind that the cluster does not have cannot be left behind.
        match swept.delayed.iter().find(|delay| !delay.is_absent) {
            Some(delay) => Err(ApplySetError::Delete {
                kind: delay.kind.clone(),
                reason: delay.reason.clone(),
            }),
            None => Ok(swept),
        }
    }

    pub(crate) fn sweep<'a>(
        &'a self,
        recorded: &'a Inventory,
        needed: &'a Inventory,
        staying: &'a HashSet<MemberKey>,
    ) -> Sweep<'a> {
        Sweep {
            members: &self.members,
            watched: &self.watched,
            recorded,
            needed,
            staying,
        }
    }

    /// Returns kind and key of each member.
    pub(crate) async fn ids(&self, set: &[Box<dyn Member>]) -> Result<Vec<ChildId>, ApplySetError> {
        let (mut ids, mut known) = (Vec::with_capacity(set.len()), HashSet::new());
        for member in set {
            let resource = self.members.scoped(member.resource()).await?;
            let id = self.members.id_of(&resource, member.metadata());
            if !known.insert(key_of(&id)) {
                return Err(ApplySetError::Duplicate {
                    member: described(&id.0, &id.1),
                });
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Applies all members: namespaces and CRDs first. The result is in the order of the set, so that equal states give equal
    /// conditions.
    async fn settle(&self, set: &[Box<dyn Member>], ids: Vec<ChildId>) -> Vec<MemberReport> {
        let mut reports: Vec<Option<MemberReport>> = ids.iter().map(|_| None).collect();
        for is_first in [true, false] {
            let mut wave: Vec<BoxFuture<'_, (usize, MemberReport)>> = Vec::new();
            for (index, (id, member)) in ids.iter().zip(set).enumerate() {
                if GroupKind::of(&id.0).is_foundation() == is_first {
                    wave.push(Box::pin(async move {
                        let result = member.settle(&self.members, id).await;
                        (index, reported(id, &**member, result))
                    }));
                }
            }
            let mut settling = stream::iter(wave).buffer_unordered(AT_ONCE);
            while let Some((index, report)) = settling.next().await {
                reports[index] = Some(report);
            }
        }
        reports.into_iter().flatten().collect()
    }

    /// Returns true if something is left that no event reports.
    fn must_retry(&self, swept: &Swept) -> bool {
        let is_watched = |resource: &Resource| {
            let kind = GroupKind::of(resource);
            self.watched.iter().any(|watched| GroupKind::of(watched) == kind)
        };
        swept.delayed.iter().any(|delay| !delay.is_absent)
            || swept
                .terminating
                .iter()
                .any(|(resource, _)| !is_watched(resource))
    }
}

fn reported(id: &ChildId, member: &dyn Member, result: Result<Settled, ChildError>) -> MemberReport {
    let own_readiness = match &result {
        Ok(Settled::Live(object)) => member.own_readiness(object),
        _ => None,
    };
    MemberReport {
        id: id.clone(),
        result,
        own_readiness,
        is_optional: member.is_optional(),
    }
}

/// Inventory of these members.
pub(crate) fn inventory_of(ids: &[ChildId]) -> Inventory {
    let mut inventory = Inventory::default();
    for (resource, key) in ids {
        inventory.add(GroupKind::of(resource), key.namespace());
    }
    inventory
}

pub(crate) fn key_of((resource, key): &ChildId) -> MemberKey {
    (GroupKind::of(resource), key.clone())
}
