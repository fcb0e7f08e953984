// SPDX-License-Identifier: Apache-2.0
//! What follows for keys from the end of what they are about.

use std::sync::Arc;

use steersman_cluster::ClusterName;
use steersman_core::ObjectKey;

use super::Intake;
use crate::{
    RequestKey,
    controller::Memory,
    hot_loop::{HotLoops, ToRequest},
    owner::Primaries,
};

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
