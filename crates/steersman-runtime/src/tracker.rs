// SPDX-License-Identifier: Apache-2.0
//! Objects that a reconcile depends on, found while it runs.
//!
//! References that are written in the object belong into [`Builder::references`](crate::Builder::references), which needs no
//! state. A tracker is for the rest: an object whose name is the result of a lookup, or a foreign object that blocks a name.
//!
//! # Guarantees
//! 1. A change or deletion of a tracked object enqueues each object that tracks it, and no other.
//! 2. An object tracks what its last finished reconcile named, and no others.
//! 3. Nothing is missed between a call of [`Tracking::add`] and the next reconcile, also if the reconcile fails.
//! 4. The tracker forgets objects that were deleted, and clusters that were removed.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use steersman_cache::Resource;
use steersman_cluster::ClusterName;
use steersman_core::{Mutex, ObjectKey};

use crate::{Enqueue, Handler, KnownKind, ObjectEvent, Request};

type Tracked = (ClusterName, Resource, ObjectKey);

/// Objects that reconciles depend on, and that are found at run time. Clones share it.
///
/// ```
/// use std::sync::Arc;
/// use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
/// use steersman_cluster::ObjectExt;
/// use steersman_core::{Action, ObjectKey};
/// use steersman_runtime::{BoxError, Context, Controller, ObjectReconciler, Request, Tracker, kind};
///
/// struct Maps {
///     tracker: Tracker,
/// }
///
/// impl ObjectReconciler<ConfigMap> for Maps {
///     type Error = BoxError;
///
///     async fn reconcile(&self, map: Arc<ConfigMap>, cx: Context) -> Result<Action, BoxError> {
///         let request = Request::new(cx.cluster().name().clone(), map.key());
///         let mut tracking = self.tracker.begin(&request);
///         let secret = ObjectKey::new(map.key().namespace(), "found-by-a-lookup");
///         tracking.add::<Secret>(&secret); // Before the read.
///         let _found = cx.client().get::<Secret>(&secret).await?;
///         tracking.finish();
///         Ok(Action::await_change())
///     }
/// }
///
/// let tracker = Tracker::new();
/// let maps = Controller::of::<ConfigMap>("maps").tracks(kind::<Secret>(), &tracker);
/// # let _ = (maps, Maps { tracker });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tracker(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    parents: HashMap<Tracked, HashSet<Request>>,
    objects: HashMap<Request, HashSet<Tracked>>,
}

/// The objects that one reconcile names; from [`Tracker::begin`]. Without [`finish`](Self::finish), those of earlier reconciles
/// stay tracked too.
#[derive(Debug)]
#[must_use = "call `finish` at the end of the reconcile, to forget objects that it did not name"]
pub struct Tracking {
    tracker: Tracker,
    parent: Request,
    objects: HashSet<Tracked>,
}

/// Enqueues the objects that track an object of one kind; from [`Tracker::handler`].
#[derive(Clone, Debug)]
pub struct TrackingHandler {
    tracker: Tracker,
    resource: Resource,
}

impl Tracker {
    /// Creates an empty tracker. A controller needs one, for all its reconciles.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins to track objects in the reconcile of a key.
    pub fn begin(&self, parent: &Request) -> Tracking {
        Tracking {
            tracker: self.clone(),
            parent: parent.clone(),
            objects: HashSet::new(),
        }
    }

    /// Handler for the changes of a kind. [`Builder::tracks`](crate::Builder::tracks) uses it.
    #[must_use]
    pub fn handler(&self, resource: Resource) -> TrackingHandler {
        TrackingHandler {
            tracker: self.clone(),
            resource,
        }
    }

    /// Forgets what an object tracks.
    pub fn forget(&self, parent: &Request) {
        let mut inner = self.0.lock();
        inner.replace(parent, HashSet::new());
    }

    /// Forgets the objects of a cluster that was removed, and what they track.
    pub fn forget_cluster(&self, cluster: &ClusterName) {
        let mut inner = self.0.lock();
        let of_cluster = inner.objects.keys().filter(|parent| parent.cluster() == cluster);
        let of_cluster: Vec<Request> = of_cluster.cloned().collect();
        for parent in of_cluster {
            inner.replace(&parent, HashSet::new());
        }
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

impl Tracking {
    /// Reconciles the object again when this one changes, is created or is deleted, in the same cluster. Call it before you read
    /// the object.
    pub fn add<K: KnownKind>(&mut self, key: &ObjectKey) {
        self.add_dynamic(&Resource::of::<K>(), key);
    }

    /// As [`add`](Self::add), for a kind that is known at run time.
    pub fn add_dynamic(&mut self, resource: &Resource, key: &ObjectKey) {
        let cluster = self.parent.cluster().clone();
        self.add_in(&cluster, resource, key);
    }

    /// As [`add`](Self::add), for an object of another cluster.
    pub fn add_in(&mut self, cluster: &ClusterName, resource: &Resource, key: &ObjectKey) {
        let object = (cluster.clone(), resource.clone(), key.clone());
        if self.objects.insert(object.clone()) {
            self.tracker.0.lock().add(&self.parent, object);
        }
    }

    /// Ends the reconcile: objects that it did not name are no longer tracked.
    pub fn finish(self) {
        self.tracker.0.lock().replace(&self.parent, self.objects);
    }
}

impl Inner {
    fn add(&mut self, parent: &Request, object: Tracked) {
        let parents = self.parents.entry(object.clone()).or_default();
        parents.insert(parent.clone());
        self.objects.entry(parent.clone()).or_default().insert(object);
    }

    /// Replaces the objects that a parent tracks.
    fn replace(&mut self, parent: &Request, objects: HashSet<Tracked>) {
        let before = self.objects.remove(parent).unwrap_or_default();
        for old in before.difference(&objects) {
            if let Some(parents) = self.parents.get_mut(old) {
                parents.remove(parent);
                if parents.is_empty() {
                    self.parents.remove(old);
                }
            }
        }
        for object in objects {
            self.add(parent, object);
        }
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

    fn maps() -> Resource {
        Resource::new("", "v1", "ConfigMap", "configmaps")
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("web", name)
    }

    fn parent(name: &str) -> Request {
        Request::new(ClusterName::default(), key(name))
    }

    fn parents(tracker: &Tracker, name: &str) -> Vec<Request> {
        tracker.parents(&(ClusterName::default(), maps(), key(name)))
    }

    fn reconcile(tracker: &Tracker, name: &str, objects: &[&str]) {
        let mut tracking = tracker.begin(&parent(name));
        objects
            .iter()
            .for_each(|object| tracking.add_dynamic(&maps(), &key(object)));
        tracking.finish();
    }

    // R109
    #[test]
    fn guarantee_2_a_parent_tracks_the_objects_of_its_last_reconcile() {
        let tracker = Tracker::new();
        reconcile(&tracker, "one", &["a", "b"]);
        reconcile(&tracker, "two", &["b"]);
        assert_eq!(parents(&tracker, "a"), [parent("one")]);
        assert_eq!(parents(&tracker, "b").len(), 2);
        reconcile(&tracker, "one", &["b", "c"]);
        assert!(parents(&tracker, "a").is_empty());
        assert_eq!(
            (parents(&tracker, "b").len(), parents(&tracker, "c").len()),
            (2, 1)
        );
        reconcile(&tracker, "one", &[]);
        reconcile(&tracker, "two", &[]);
        assert!(tracker.is_empty() && tracker.0.lock().objects.is_empty());
    }

    // R109
    #[test]
    fn guarantee_3_a_reconcile_that_fails_keeps_the_old_and_the_new_objects() {
        let tracker = Tracker::new();
        reconcile(&tracker, "one", &["a"]);
        let mut tracking = tracker.begin(&parent("one"));
        tracking.add_dynamic(&maps(), &key("b"));
        drop(tracking);
        assert_eq!(parents(&tracker, "a"), [parent("one")]);
        assert_eq!(parents(&tracker, "b"), [parent("one")]);
    }

    // R109
    #[test]
    fn guarantee_4_a_deleted_object_and_a_removed_cluster_leave_nothing() {
        let tracker = Tracker::new();
        reconcile(&tracker, "one", &["a"]);
        tracker.forget(&parent("one"));
        assert!(tracker.is_empty() && tracker.0.lock().objects.is_empty());
        reconcile(&tracker, "one", &["a"]);
        tracker.forget_cluster(&ClusterName::from("west"));
        assert_eq!(parents(&tracker, "a"), [parent("one")]);
        tracker.forget_cluster(&ClusterName::default());
        assert!(tracker.is_empty() && tracker.0.lock().objects.is_empty());
    }

    // R109
    #[test]
    fn guarantee_1_objects_of_other_clusters_are_others() {
        let tracker = Tracker::new();
        let (east, west) = (ClusterName::from("east"), ClusterName::from("west"));
        let parent = Request::new(east.clone(), key("a"));
        let mut tracking = tracker.begin(&parent);
        tracking.add_dynamic(&maps(), &key("a"));
        tracking.add_in(&west, &maps(), &key("b"));
        tracking.finish();
        let found = |cluster: &ClusterName, name| tracker.parents(&(cluster.clone(), maps(), key(name)));
        assert_eq!(
            (found(&east, "a"), found(&west, "b")),
            (vec![parent.clone()], vec![parent])
        );
        assert!(found(&west, "a").is_empty() && found(&east, "b").is_empty());
    }
}
