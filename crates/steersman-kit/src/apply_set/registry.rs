// SPDX-License-Identifier: Apache-2.0
//! Finds the parent of a member by the label of the set.
//!
//! A member in another namespace has no controller reference, and a member that an earlier process created is not known to this
//! one. Each change of an object with the label of a set enqueues the parent of the set.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use steersman_cache::{Index, Object};
use steersman_cluster::ClusterName;
use steersman_core::Mutex;
use steersman_runtime::{Enqueue, Handler, ObjectEvent, Request};

use super::names;

/// Finds members by the id of their set.
pub(crate) static BY_SET: LazyLock<Index<String>> = LazyLock::new(|| {
    Index::on_header("steersman/apply-set", |object: &Object| {
        object.label(names::PART_OF).map(|id| id.into_owned())
    })
});

/// Parents of the sets that this process has reconciled. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetRegistry(Arc<Mutex<Parents>>);

/// Parents by the id of their set.
type Parents = HashMap<(ClusterName, Arc<str>), Request>;

/// Enqueues the parent of the set that an object belongs to.
#[derive(Debug)]
pub(crate) struct SetHandler(SetRegistry);

impl SetRegistry {
    pub(crate) fn handler(&self) -> SetHandler {
        SetHandler(self.clone())
    }

    pub(crate) fn add(&self, parent: &Request, id: &Arc<str>) {
        let set = (parent.cluster().clone(), Arc::clone(id));
        let mut parents = self.0.lock();
        parents.entry(set).or_insert_with(|| parent.clone());
    }

    pub(crate) fn forget(&self, parent: &Request) {
        self.0.lock().retain(|_, known| known != parent);
    }

    pub(crate) fn forget_cluster(&self, cluster: &ClusterName) {
        self.0.lock().retain(|(of, _), _| of != cluster);
    }

    fn parent_of(&self, cluster: &ClusterName, object: &Object) -> Option<Request> {
        let parents = self.0.lock();
        if parents.is_empty() {
            return None;
        }
        // Controllers that copy labels do not copy the annotation to an object of the same name.
        object.annotation(names::MEMBER)?;
        let id = object.label(names::PART_OF)?;
        parents.get(&(cluster.clone(), Arc::from(&*id))).cloned()
    }
}

impl<T> Handler<T, Request> for SetHandler {
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, Request>) {
        for object in event.states() {
            if let Some(parent) = self.0.parent_of(event.cluster(), object) {
                enqueue.add(parent);
            }
        }
    }
}

/// Two handlers of one kind.
pub(crate) struct Both<A, B>(pub(crate) A, pub(crate) B);

impl<T, A: Handler<T, Request>, B: Handler<T, Request>> Handler<T, Request> for Both<A, B> {
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, Request>) {
        self.0.handle(event, enqueue);
        self.1.handle(event, enqueue);
    }
}
