// SPDX-License-Identifier: Apache-2.0
//! State about children that a controller keeps from one reconcile to the next.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use steersman_cache::{Object, Resource};
use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;
use steersman_runtime::{Handler, KnownKind, Request};

use crate::{Readiness, projection, tracker::Tracker};

/// State about the children of all parents of a controller: what the last apply of each child sent and got. Clones share it.
///
/// It is lost with the process. Without it, the next reconcile of a parent applies each child once.
#[derive(Clone, Default)]
pub struct ChildMemory {
    memos: Arc<Mutex<HashMap<Request, HashMap<ChildId, Memo>>>>,
    pub(crate) tracker: Tracker,
}

/// Identifies a child of a parent.
pub(crate) type ChildId = (Resource, ObjectKey);

/// State of one child.
enum Memo {
    /// The child was applied.
    Applied(Applied),
    /// A live read confirmed that the object is foreign, in this version.
    Foreign { uid: Box<str>, version: Box<str> },
}

struct Applied {
    /// Hash of the desired fields.
    desired: u64,
    uid: Box<str>,
    /// The fields that the controller owns, as the JSON of a `fieldsV1` set.
    fields: Box<str>,
    /// Hash of the values at these fields, from the answer of the server.
    live: u64,
    /// The last version in which the values were compared.
    version: Box<str>,
    /// Readiness of the child in that version.
    readiness: Option<Readiness>,
}

impl ChildMemory {
    /// Creates an empty memory. A controller needs one, for all its reconciles.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the state about the children of a parent that was deleted.
    pub fn forget(&self, parent: &Request) {
        self.lock().remove(parent);
        self.tracker.replace(parent, HashSet::new());
    }

    /// Removes the state about the children of all parents in a cluster that was removed. Pass it to
    /// [`Builder::on_cluster_removed`](steersman_runtime::Builder::on_cluster_removed) if you use
    /// [`Children`](crate::Children) without [`managed`](crate::managed).
    pub fn forget_cluster(&self, cluster: &ClusterName) {
        self.lock().retain(|parent, _| parent.cluster() != cluster);
        self.tracker.forget_cluster(cluster);
    }

    /// Handler for a kind of children: enqueues the parents that wait for an object which they do not own, because it has the
    /// name of a child. Pass it to [`Builder::watches`](steersman_runtime::Builder::watches) if you use
    /// [`Children`](crate::Children) without [`managed`](crate::managed).
    #[must_use]
    pub fn handler<C: KnownKind + 'static>(&self) -> impl Handler<C, Request> + use<C> {
        self.tracker.handler(Resource::of::<C>())
    }

    /// Returns true if neither the desired nor the owned live fields changed since the last apply.
    pub(super) fn matches(&self, parent: &Request, child: &ChildId, desired: u64, live: &Object) -> bool {
        let mut memos = self.lock();
        let memo = memos.get_mut(parent).and_then(|memos| memos.get_mut(child));
        let Some(Memo::Applied(applied)) = memo else {
            return false;
        };
        if applied.desired != desired || *applied.uid != *live.uid() {
            return false;
        }
        if *applied.version == *live.resource_version() {
            return true;
        }
        let (Ok(fields), Ok(object)) = (
            serde_json::from_str::<Value>(&applied.fields),
            serde_json::from_slice::<Value>(live.bytes()),
        ) else {
            return false;
        };
        let is_same = projection::hash_fields(&fields, &object) == applied.live;
        if is_same {
            applied.version = live.resource_version().into();
            applied.readiness = None;
        }
        is_same
    }

    /// Records the answer of the server to an apply. `live` is the object as later reads see it.
    pub(super) fn applied(
        &self,
        parent: &Request,
        child: ChildId,
        desired: u64,
        fields: &Value,
        live: &Object,
    ) {
        let Ok(object) = serde_json::from_slice::<Value>(live.bytes()) else {
            return;
        };
        let applied = Applied {
            desired,
            uid: live.uid().into(),
            live: projection::hash_fields(fields, &object),
            fields: fields.to_string().into(),
            version: live.resource_version().into(),
            readiness: None,
        };
        let mut memos = self.lock();
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
        self.lock().entry(parent.clone()).or_default().insert(child, memo);
    }

    /// Returns true if a live read confirmed this version of a foreign object.
    pub(super) fn is_confirmed_foreign(&self, parent: &Request, child: &ChildId, found: &Object) -> bool {
        let memos = self.lock();
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
        let mut memos = self.lock();
        let memo = memos.get_mut(parent).and_then(|memos| memos.get_mut(child));
        match memo {
            Some(Memo::Applied(applied)) if *applied.version == *live.resource_version() => {
                applied.readiness.get_or_insert_with(compute).clone()
            }
            _ => compute(),
        }
    }

    /// Removes the state of children that the last reconcile of the parent did not name.
    pub(crate) fn retain(&self, parent: &Request, named: &HashSet<ChildId>) {
        let mut memos = self.lock();
        if let Some(children) = memos.get_mut(parent) {
            children.retain(|child, _| named.contains(child));
            if children.is_empty() {
                memos.remove(parent);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Request, HashMap<ChildId, Memo>>> {
        self.memos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ChildMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildMemory")
            .field("parents", &self.lock().len())
            .finish_non_exhaustive()
    }
}
