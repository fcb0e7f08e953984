// SPDX-License-Identifier: Apache-2.0
//! A run of a controller as it works on one cluster.

use std::{future::Future, sync::Arc};

use steersman_cache::{Object, Resource};
use steersman_cluster::{Client, Cluster, ClusterName, Fence, Recorder};

use crate::{Fleet, Stop, fleet::Visit};

/// What all reconciles of one run in one cluster share.
pub(crate) struct Engagement {
    pub(crate) controller: Arc<str>,
    pub(crate) cluster: Cluster,
    /// Informers that its reads start end with it.
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) stop: Stop,
    fence: Option<Fence>,
    fleet: Fleet,
    _visit: Option<Visit>,
}

impl Engagement {
    pub(crate) fn new(
        controller: &str,
        cluster: &Cluster,
        fence: Option<Fence>,
        fleet: Fleet,
        stop: Stop,
    ) -> Self {
        Self {
            controller: controller.into(),
            client: fenced(cluster.client().for_run(), fence.as_ref()),
            recorder: match &fence {
                Some(fence) => cluster.recorder(controller).fenced(fence.clone()),
                None => cluster.recorder(controller),
            },
            cluster: cluster.clone(),
            _visit: fleet.visit(cluster.name()),
            stop,
            fence,
            fleet,
        }
    }

    /// The same, where somebody is told of what is written.
    pub(crate) fn observed(self, observer: impl Fn(&Resource, &Object) + Send + Sync + 'static) -> Self {
        Self {
            client: self.client.observed(observer),
            ..self
        }
    }

    /// Lets something end, unless the cluster goes and the grace period after that is over.
    pub(crate) async fn unless_dismissed<F: Future>(&self, work: F) -> Option<F::Output> {
        self.cluster.until_closed(work).await
    }

    pub(crate) fn client_of(&self, name: &ClusterName) -> Option<Client> {
        if name == self.cluster.name() {
            return Some(self.client.clone());
        }
        let cluster = self.fleet.get(name)?;
        Some(fenced(cluster.client(), self.fence.as_ref()))
    }
}

fn fenced(client: Client, fence: Option<&Fence>) -> Client {
    match fence {
        Some(fence) => client.fenced(fence.clone()),
        None => client,
    }
}
