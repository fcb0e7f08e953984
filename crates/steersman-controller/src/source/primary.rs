// SPDX-License-Identifier: Apache-2.0
//! What follows for keys from the end of what they are about.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;
use steersman_queue::Queue;

use super::Intake;
use crate::{
    RequestKey,
    controller::Memory,
    hot_loop::{HotLoops, ToRequest},
    owner::Primaries,
};

/// So many keys may wait beside two for each object, before it is looked which of them are about nothing any more.
const SPARE: usize = 1000;

/// What a source knows of the keys of its controller, if those are the keys of its objects.
pub(crate) struct Primary<R: RequestKey> {
    /// Where its objects can be seen while it runs.
    pub(crate) objects: Arc<Primaries>,
    pub(crate) to_request: ToRequest<R>,
    pub(crate) hot_loops: Arc<HotLoops<R>>,
    /// What the reconciler remembers of keys, where it is several in one.
    pub(crate) memory: Option<Arc<dyn Memory<R>>>,
}

impl<R: RequestKey> Primary<R> {
    /// An object has gone. Its failures are not those of another one that gets its name.
    pub(super) fn gone(&self, cluster: &ClusterName, key: ObjectKey, intake: &Intake<R>) {
        let key = (self.to_request)(cluster, key);
        intake.queue().forget(&key);
        self.hot_loops.forget(&key);
        if let Some(memory) = &self.memory {
            memory.forget(&key);
        }
    }

    /// Takes out the keys of objects that are gone, where there are many more keys than objects. While another replica leads,
    /// nobody works on keys here, and nobody would ever take out those of what came and went. Says how many went.
    pub(crate) fn forget_the_gone(&self, queue: &Queue<R>) -> usize {
        if queue.depth().warm() <= SPARE + 2 * self.objects.count() {
            return 0;
        }
        let (clusters, living) = self.living();
        let mut gone = Vec::new();
        queue.purge(|key| {
            let is_gone = key.cluster().is_some_and(|name| clusters.contains(name)) && !living.contains(key);
            if is_gone {
                gone.push(key.clone());
            }
            is_gone
        });
        // An object is in its store before its key is enqueued. So those that came meanwhile are seen now.
        let (_, living) = self.living();
        let (came, gone): (Vec<R>, Vec<R>) = gone.into_iter().partition(|key| living.contains(key));
        came.into_iter().for_each(|key| _ = queue.add(key));
        gone.len()
    }

    /// The clusters whose objects are known, and the keys of these objects.
    fn living(&self) -> (BTreeSet<ClusterName>, HashSet<R>) {
        let (mut clusters, mut keys) = (BTreeSet::new(), HashSet::new());
        for (cluster, objects) in self.objects.all() {
            let those = objects
                .iter()
                .map(|object| (self.to_request)(&cluster, object.key()));
            keys.extend(those);
            clusters.insert(cluster);
        }
        (clusters, keys)
    }

    /// The kind has gone from a cluster, and all keys with it.
    pub(super) fn left(&self, cluster: &ClusterName, intake: &Intake<R>) {
        let is_meant = |key: &R| key.cluster() == Some(cluster);
        intake.purge(is_meant);
        self.hot_loops.forget_all(is_meant);
        if let Some(memory) = &self.memory {
            memory.forget_all(&is_meant);
        }
    }
}
