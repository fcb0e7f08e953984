// SPDX-License-Identifier: Apache-2.0
//! State about children that a controller keeps from one reconcile to the next.
//!
//! One lock protects the state of all parents. Nothing is parsed under it.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use serde_json::Value;
use steersman_cache::{Object, Resource};
use steersman_cluster::ClusterName;
use steersman_core::{Mutex, ObjectKey};
use steersman_runtime::{Handler, KnownKind, Request, Tracker};

use super::desired::DesiredHash;
use crate::{
    Readiness,
    apply_set::registry::{Both, SetRegistry},
    projection,
};

/// State about the children of all parents of a controller: what the last apply of each child sent and got. Clones share it.
///
/// It is lost with the process. Without it, the next reconcile of a parent applies each child once.
#[derive(Clone, Default)]
pub struct ChildMemory {
    memos: Arc<Mutex<Memos>>,
    pub(crate) tracker: Tracker,
    pub(crate) sets: SetRegistry,
}

/// Identifies a child of a parent.
pub(crate) type ChildId = (Resource, ObjectKey);

type Memos = HashMap<Request, HashMap<ChildId, Memo>>;

/// State of one child.
enum Memo {
    /// The child was applied.
    Applied(Applied),
    /// A live read confirmed that the object is foreign, in this version.
    Foreign { uid: Box<str>, version: Box<str> },
}

struct Applied {
    desired: DesiredHash,
    uid: Box<str>,
    fields: Arc<OwnedFields>,
    /// The last version in which the values were compared.
    version: Box<str>,
    /// Readiness of the child in that version.
    readiness: Option<Readiness>,
}

/// Fields that the controller owns, and their values in the answer of the server.
struct OwnedFields {
    /// JSON of a `fieldsV1` set.
    set: Box<str>,
    /// Hash of the values.
    hash: u64,
}

impl Applied {
    fn is_of(&self, live: &Object) -> bool {
        *self.version == *live.resource_version()
    }
}

impl OwnedFields {
    fn are_in(&self, live: &Object) -> bool {
        let (Ok(fields), Ok(object)) = (
            serde_json::from_str::<Value>(&self.set),
            serde_json::from_slice::<Value>(live.bytes()),
        ) else {
            return false;
        };
        projection::hash_fields(&fields, &object) == self.hash
    }
}

impl ChildMemory {
    /// Creates an empty memory. A controller needs one, for all its reconciles.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the state about the children of a parent that was deleted.
    pub fn forget(&self, parent: &Request) {
        self.memos.lock().remove(parent);
        self.tracker.forget(parent);
        self.sets.forget(parent);
    }

    /// Removes the state about the children of all parents in a cluster that was removed. Pass it to
    /// [`Builder::on_cluster_removed`](steersman_runtime::Builder::on_cluster_removed) if you use
    /// [`Children`](crate::Children) without [`managed`](crate::managed).
    pub fn forget_cluster(&self, cluster: &ClusterName) {
        self.memos.lock().retain(|parent, _| parent.cluster() != cluster);
        self.tracker.forget_cluster(cluster);
        self.sets.forget_cluster(cluster);
    }

    /// Handler for a kind of children: enqueues the parents that wait for an object which they do not own, because it has the
    /// name of a child, and the parents of apply sets with a member of this kind. Pass it to [`Builder::watches`](steersman_runtime::Builder::watches) if you use
    /// [`Children`](crate::Children) without [`managed`](crate::managed).
    #[must_use]
    pub fn handler<C: KnownKind + 'static>(&self) -> impl Handler<C, Request> + use<C> {
        Both(self.tracker.handler(Resource::of::<C>()), self.sets.handler())
    }

    /// Enqueues the parent when an object changes that has the name of a child.
    pub(super) fn track(&self, parent: &Request, child: &ChildId) {
        self.tracker.begin(parent).add_dynamic(&child.0, &child.1);
    }

    /// Returns true if neither the encoded child nor the version of the live one changed since they were last compared.
    pub(super) fn is_unchanged(
        &self,
        parent: &Request,
        child: &ChildId,
        encoded: u64,
        live: &Object,
    ) -> bool {
        let mut memos = self.memos.lock();
        applied_in(&mut memos, parent, child).is_some_and(|applied| {
            applied.desired.encoded == encoded && applied.is_of(live) && *applied.uid == *live.uid()
        })
    }

    /// Returns true if neither the desired nor the owned live fields changed since the last apply.
    pub(super) fn matches(
        &self,
        parent: &Request,
        child: &ChildId,
        desired: DesiredHash,
        live: &Object,
    ) -> bool {
        let is_same =
            |applied: &Applied| applied.desired.fields == desired.fields && *applied.uid == *live.uid();
        let found = applied_in(&mut self.memos.lock(), parent, child)
            .filter(|applied| is_same(applied))
            .map(|applied| (Arc::clone(&applied.fields), applied.is_of(live)));
        let Some((fields, is_compared)) = found else {
            return false;
        };
        if !is_compared && !fields.are_in(live) {
            return false;
        }
        let mut memos = self.memos.lock();
        if let Some(applied) = applied_in(&mut memos, parent, child).filter(|applied| is_same(applied)) {
            applied.desired = desired;
            if !is_compared {
                applied.version = live.resource_version().into();
                applied.readiness = None;
            }
        }
        true
    }

    /// Records the answer of the server to an apply. `live` is the object as later reads see it.
    pub(super) fn applied(
        &self,
        parent: &Request,
        child: ChildId,
        desired: DesiredHash,
        fields: &Value,
        live: &Object,
    ) {
        let Ok(object) = serde_json::from_slice::<Value>(live.bytes()) else {
            return;
        };
        let applied = Applied {
            desired,
            uid: live.uid().into(),
            fields: Arc::new(OwnedFields {
                hash: projection::hash_fields(fields, &object),
                set: fields.to_string().into(),
            }),
            version: live.resource_version().into(),
            readiness: None,
        };
        let mut memos = self.memos.lock();
        memos
            .entry(parent.clone())
            .or_default()
            .insert(child, Memo::Applied(applied));
    }

    /// Records that a live read confirmed a foreign object.
    pub(super) fn confirmed_foreign(&self, parent: &Request, child: ChildId, live: &Object) {
        let memo = Memo::Foreign {
            uid: live.uid().into(),
            version: live.resource_version().into(),
        };
        let mut memos = self.memos.lock();
        memos.entry(parent.clone()).or_default().insert(child, memo);
    }

    /// Returns true if a live read confirmed this version of a foreign object.
    pub(super) fn is_confirmed_foreign(&self, parent: &Request, child: &ChildId, found: &Object) -> bool {
        let memos = self.memos.lock();
        match memos.get(parent).and_then(|memos| memos.get(child)) {
            Some(Memo::Foreign { uid, version }) => {
                **uid == *found.uid() && **version == *found.resource_version()
            }
            _ => false,
        }
    }

    /// Returns the readiness of a child, which is computed once for each version.
    pub(crate) fn readiness(
        &self,
        parent: &Request,
        child: &ChildId,
        live: &Object,
        compute: impl FnOnce() -> Readiness,
    ) -> Readiness {
        let known = applied_in(&mut self.memos.lock(), parent, child)
            .filter(|applied| applied.is_of(live))
            .and_then(|applied| applied.readiness.clone());
        if let Some(known) = known {
            return known;
        }
        let readiness = compute();
        let mut memos = self.memos.lock();
        if let Some(applied) = applied_in(&mut memos, parent, child).filter(|applied| applied.is_of(live)) {
            applied.readiness = Some(readiness.clone());
        }
        readiness
    }

    /// Removes the state of children that the last reconcile of the parent did not name.
    pub(crate) fn retain(&self, parent: &Request, named: &HashSet<ChildId>) {
        let mut memos = self.memos.lock();
        if let Some(children) = memos.get_mut(parent) {
            children.retain(|child, _| named.contains(child));
            if children.is_empty() {
                memos.remove(parent);
            }
        }
    }
}

/// Returns the last apply of a child.
fn applied_in<'m>(memos: &'m mut Memos, parent: &Request, child: &ChildId) -> Option<&'m mut Applied> {
    match memos.get_mut(parent)?.get_mut(child)? {
        Memo::Applied(applied) => Some(applied),
        Memo::Foreign { .. } => None,
    }
}

impl fmt::Debug for ChildMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildMemory")
            .field("parents", &self.memos.lock().len())
            .finish_non_exhaustive()
    }
}
