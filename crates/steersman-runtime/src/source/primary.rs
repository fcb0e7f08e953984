// SPDX-License-Identifier: Apache-2.0
//! Effects of deleted objects and removed kinds on keys.

use std::sync::Arc;

use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;

use crate::{RequestKey, gate::EnqueueSink, owner::Primaries};

/// Makes the key of an object.
pub(crate) type ToRequest<R> = fn(&ClusterName, ObjectKey) -> R;

/// State of a primary source: the controller's keys are the keys of its objects.
pub(crate) struct Primary<R: RequestKey> {
    /// Read access to its objects while it runs.
    pub(crate) objects: Arc<Primaries>,
    to_request: ToRequest<R>,
}

impl<R: RequestKey> Primary<R> {
    pub(crate) fn new(objects: &Arc<Primaries>, to_request: ToRequest<R>) -> Self {
        Self {
            objects: Arc::clone(objects),
            to_request,
        }
    }

    /// Handles the deletion of an object. A new object of the same name starts without its failures.
    pub(crate) fn deleted(&self, cluster: &ClusterName, key: ObjectKey, sink: &EnqueueSink<R>) {
        let request = (self.to_request)(cluster, key.clone());
        sink.queue().forget(&request);
        self.objects.bound_missing(cluster, key, sink, self.to_request);
    }

    /// Removes all keys of a cluster whose kind was removed.
    pub(super) fn kind_removed(&self, cluster: &ClusterName, sink: &EnqueueSink<R>) {
        sink.purge(|key: &R| key.cluster() == Some(cluster));
        self.objects.forget_deletions(cluster);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;
    use steersman_cache::{Event, Object, Resource, Revision, Store, StoreOptions, store};
    use steersman_core::TestClock;
    use steersman_queue::{Add, Options, Queue};

    use super::*;
    use crate::{
        Enqueue, Handler, ObjectEvent, Request, controller_of, gate::Gates, handler::PrimaryObject,
        owner::DELETIONS_MAX,
    };

    fn queue(options: Options<Request>) -> (Queue<Request>, EnqueueSink<Request>) {
        let clock = Arc::new(TestClock::new());
        let queue = Queue::new(clock.clone(), options);
        let sink = Gates::new(queue.clone(), clock, BTreeSet::new()).ungated();
        (queue, sink)
    }

    fn primary(objects: &Arc<Primaries>) -> Primary<Request> {
        Primary::new(objects, |cluster, key| Request::new(cluster.clone(), key))
    }

    /// A primary source whose store is in sync and empty.
    fn synced() -> (Primary<Request>, Arc<Store>) {
        let (objects, (mut writer, store)) = (Arc::<Primaries>::default(), store(StoreOptions::new()));
        writer.set_revision(&Revision::new("1"));
        let shown = objects.show(&ClusterName::default(), &store);
        (primary(&objects), shown)
    }

    fn job_key(number: usize) -> ObjectKey {
        ObjectKey::new("ns", &format!("job-{number}"))
    }

    fn request(number: usize) -> Request {
        Request::new(ClusterName::default(), job_key(number))
    }

    fn object(name: &str, owners: &serde_json::Value) -> Arc<Object> {
        let metadata = json!({
            "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "1",
            "ownerReferences": owners,
        });
        let bytes = serde_json::to_vec(&json!({ "metadata": metadata })).unwrap();
        Arc::new(Object::from_slice(&bytes).unwrap())
    }

    fn job(number: usize) -> Arc<Object> {
        object(&format!("job-{number}"), &json!([]))
    }

    fn pod(number: usize) -> Arc<Object> {
        let (name, uid) = (format!("job-{number}"), format!("uid-job-{number}"));
        let owner =
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": true});
        object(&format!("pod-{number}"), &json!([owner]))
    }

    fn added(object: Arc<Object>) -> Event {
        Event::Added {
            object,
            initial: false,
        }
    }

    fn deletion(object: Arc<Object>) -> Event {
        Event::Deleted {
            object,
            final_state_known: true,
        }
    }

    fn dispatch(handler: &impl Handler<Object, Request>, event: &Event, sink: &EnqueueSink<Request>) {
        let cluster = ClusterName::default();
        let mut enqueue = Enqueue::of_change(sink, &cluster, false);
        handler.handle(&ObjectEvent::new(event, &cluster), &mut enqueue);
    }

    // R77, D3
    #[test]
    fn a_standby_keeps_the_keys_of_the_last_deletions_and_of_other_sources() {
        let (queue, sink) = queue(Options::new().paused());
        let ((primary, _shown), cluster) = (synced(), ClusterName::default());
        for number in 0..5000 {
            dispatch(&PrimaryObject, &added(job(number)), &sink);
            if number % 10 == 0 {
                sink.add(request(number), Add::new());
            }
            primary.deleted(&cluster, job_key(number), &sink);
            dispatch(&PrimaryObject, &deletion(job(number)), &sink);
            assert!(queue.depth().warm() <= 2 * DELETIONS_MAX + number / 10 + 2);
        }
        let is_kept = |number: usize| queue.status(&request(number)).is_some();
        assert!((4000..5000).all(is_kept), "the last ones");
        assert!(
            (0..4000).step_by(10).all(is_kept),
            "those that another source enqueued"
        );
        assert!(
            !(0..3000).any(|number| number % 10 != 0 && is_kept(number)),
            "earlier ones"
        );
    }

    // R77, D3
    #[test]
    fn a_standby_bounds_the_keys_that_children_of_deleted_objects_enqueue() {
        let (queue, sink) = queue(Options::new().paused());
        let (objects, cluster) = (Arc::<Primaries>::default(), ClusterName::default());
        let primary = primary(&objects);
        let (mut writer, store) = store(StoreOptions::new());
        let _shown = objects.show(&cluster, &store);
        writer.set_revision(&Revision::new("1"));
        let jobs = Resource::new("batch", "v1", "Job", "jobs");
        let owners = controller_of(&jobs, true).among(&objects);
        let living = 1_000_000;
        writer.apply(job(living));
        dispatch(&owners, &added(pod(living)), &sink);
        for number in 0..4000 {
            writer.apply(job(number));
            dispatch(&PrimaryObject, &added(job(number)), &sink);
            dispatch(&owners, &added(pod(number)), &sink);
            if number % 10 == 0 {
                sink.add(request(number), Add::new());
            }
            writer.remove(&job(number));
            primary.deleted(&cluster, job_key(number), &sink);
            dispatch(&PrimaryObject, &deletion(job(number)), &sink);
            // Garbage collection deletes a Pod after its Job, and some Pods much later.
            dispatch(&owners, &deletion(pod(number)), &sink);
            if number >= 2000 {
                dispatch(&owners, &deletion(pod(number - 2000)), &sink);
            }
            assert!(queue.depth().warm() <= 2 * DELETIONS_MAX + number / 10 + 2);
        }
        let is_kept = |number: usize| queue.status(&request(number)).is_some();
        assert!(is_kept(living), "a key of an object that exists");
        assert!(
            (0..4000).step_by(10).all(is_kept),
            "keys that another source enqueued"
        );
        assert!((3600..4000).all(is_kept), "the last deletions");
    }

    // D3
    #[test]
    fn a_child_does_not_bound_keys_while_the_owners_are_not_in_sync() {
        let (queue, sink) = queue(Options::new().paused());
        let objects = Arc::<Primaries>::default();
        let (_writer, store) = store(StoreOptions::new());
        let _shown = objects.show(&ClusterName::default(), &store);
        let jobs = Resource::new("batch", "v1", "Job", "jobs");
        let owners = controller_of(&jobs, true).among(&objects);
        (0..3000).for_each(|number| dispatch(&owners, &added(pod(number)), &sink));
        assert_eq!(queue.depth().warm(), 3000);
    }

    // D3
    #[test]
    fn an_object_that_is_deleted_again_is_the_last_one() {
        let (queue, sink) = queue(Options::new().paused());
        let ((primary, _shown), cluster) = (synced(), ClusterName::default());
        let delete = |number| {
            primary.deleted(&cluster, job_key(number), &sink);
            dispatch(&PrimaryObject, &deletion(job(number)), &sink);
        };
        (0..DELETIONS_MAX).for_each(delete);
        delete(0);
        (DELETIONS_MAX..2 * DELETIONS_MAX).for_each(delete);
        assert!(queue.status(&request(0)).is_some());
        assert!(queue.status(&request(1)).is_none());
    }

    // D3
    #[test]
    fn a_leader_keeps_the_keys_of_all_deletions() {
        let (queue, sink) = queue(Options::new());
        let ((primary, _shown), cluster) = (synced(), ClusterName::default());
        for number in 0..3000 {
            primary.deleted(&cluster, job_key(number), &sink);
            dispatch(&PrimaryObject, &deletion(job(number)), &sink);
        }
        assert_eq!(queue.depth().ready(), 3000);
    }
}
