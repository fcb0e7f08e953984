// SPDX-License-Identifier: Apache-2.0
//! Objects that a parent waits for without owning them, such as a foreign object that has the name of a child.
//!
//! # Guarantees
//! 1. A change or deletion of a tracked object enqueues each parent that tracks it, in the same cluster.
//! 2. A parent tracks the objects that its last reconcile named, and no others.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use steersman_cache::Resource;
use steersman_cluster::ClusterName;
use steersman_core::{Mutex, ObjectKey};
use steersman_runtime::{Enqueue, Handler, ObjectEvent, Request};

type Tracked = (ClusterName, Resource, ObjectKey);

/// Which parents wait for which objects. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    parents: HashMap<Tracked, HashSet<Request>>,
    objects: HashMap<Request, HashSet<Tracked>>,
}

/// Enqueues the parents that track an object of one kind.
#[derive(Debug)]
pub(crate) struct TrackingHandler {
    tracker: Tracker,
    resource: Resource,
}

impl Tracker {
    /// Handler for the changes of a kind.
    pub(crate) fn handler(&self, resource: Resource) -> TrackingHandler {
        TrackingHandler {
            tracker: self.clone(),
            resource,
        }
    }

    /// Replaces the objects that a parent tracks.
    pub(crate) fn replace(&self, parent: &Request, objects: HashSet<(Resource, ObjectKey)>) {
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        let tracked = objects
            .into_iter()
            .map(|(resource, key)| (parent.cluster().clone(), resource, key));
        let tracked: HashSet<Tracked> = tracked.collect();
        // The new ones first: no moment passes in which an object that stays is not tracked.
        for object in &tracked {
            inner
                .parents
                .entry(object.clone())
                .or_default()
                .insert(parent.clone());
        }
        for old in inner.objects.remove(parent).unwrap_or_default() {
            if !tracked.contains(&old)
                && let Some(parents) = inner.parents.get_mut(&old)
            {
                parents.remove(parent);
                if parents.is_empty() {
                    inner.parents.remove(&old);
                }
            }
        }
        if !tracked.is_empty() {
            inner.objects.insert(parent.clone(), tracked);
        }
    }

    /// Adds an object to those that a parent tracks.
    pub(crate) fn add(&self, parent: &Request, resource: &Resource, key: &ObjectKey) {
        let mut inner = self.0.lock();
        let object = (parent.cluster().clone(), resource.clone(), key.clone());
        inner
            .parents
            .entry(object.clone())
            .or_default()
            .insert(parent.clone());
        inner.objects.entry(parent.clone()).or_default().insert(object);
    }

    /// Removes all parents and objects of a cluster.
    pub(crate) fn forget_cluster(&self, cluster: &ClusterName) {
        let mut inner = self.0.lock();
        inner.objects.retain(|parent, _| parent.cluster() != cluster);
        inner.parents.retain(|(of, ..), _| of != cluster);
    }

    fn parents(&self, object: &Tracked) -> Vec<Request> {
        let inner = self.0.lock();
        let parents = inner.parents.get(object).into_iter().flatten();
        parents.cloned().collect()
    }

    fn is_empty(&self) -> bool {
        let inner = self.0.lock();
        inner.parents.is_empty()
    }
}

impl<T> Handler<T, Request> for TrackingHandler {
    fn handle(&self, event: &ObjectEvent<'_, T>, enqueue: &mut Enqueue<'_, Request>) {
        if self.tracker.is_empty() {
            return;
        }
        let object = (
            event.cluster().clone(),
            self.resource.clone(),
            event.object().key(),
        );
        for parent in self.tracker.parents(&object) {
            enqueue.add(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // R109
    #[test]
    fn guarantee_2_a_parent_tracks_the_objects_of_its_last_reconcile() {
        let tracker = Tracker::default();
        let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
        let key = |name: &str| ObjectKey::new("web", name);
        let parent = |name: &str| Request::new(ClusterName::default(), key(name));
        let parents = |name: &str| tracker.parents(&(ClusterName::default(), maps.clone(), key(name)));
        let objects = |names: &[&str]| names.iter().map(|name| (maps.clone(), key(name))).collect();
        tracker.replace(&parent("one"), objects(&["a", "b"]));
        tracker.replace(&parent("two"), objects(&["b"]));
        assert_eq!(parents("a"), [parent("one")]);
        assert_eq!(parents("b").len(), 2);
        tracker.replace(&parent("one"), objects(&["b", "c"]));
        assert!(parents("a").is_empty());
        assert_eq!((parents("b").len(), parents("c").len()), (2, 1));
        tracker.replace(&parent("one"), objects(&[]));
        tracker.replace(&parent("two"), objects(&[]));
        assert!(tracker.is_empty() && tracker.0.lock().objects.is_empty());
    }

    // R109
    #[test]
    fn guarantee_1_objects_of_other_clusters_are_others() {
        let tracker = Tracker::default();
        let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
        let key = ObjectKey::new("web", "a");
        let parent = Request::new(ClusterName::from("east"), key.clone());
        tracker.add(&parent, &maps, &key);
        assert_eq!(
            tracker.parents(&(ClusterName::from("east"), maps.clone(), key.clone())),
            [parent]
        );
        assert!(
            tracker
                .parents(&(ClusterName::from("west"), maps, key))
                .is_empty()
        );
    }
}
