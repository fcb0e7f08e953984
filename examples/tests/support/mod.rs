// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests of the examples: running managers, and reads from the server.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use steersman::cache::{InformerOptions, Scope};
use steersman::cluster::{Cluster, ClusterBuilder};
use steersman::core::{Spawner, Task};
use steersman::runtime::{Manager, RunError};
use steersman_testing::{Endpoint, Identity};
use tokio::{sync::oneshot, time};

/// A cluster of which one namespace counts.
pub fn cluster(endpoint: &Endpoint, identity: &Identity, name: &str, namespace: &str) -> ClusterBuilder {
    let here = Scope::all().namespace(namespace);
    Cluster::builder(name)
        .field_manager("test")
        .config(endpoint.config(identity).unwrap())
        .cache(|cache| cache.defaults(here, InformerOptions::default()))
}

/// A manager that runs in the background.
pub struct Running {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<Result<(), RunError>>,
    _task: Task,
}

pub fn run(manager: &Manager) -> Running {
    let (stop, stopped) = oneshot::channel::<()>();
    let (ending, ended) = oneshot::channel();
    let manager = manager.clone();
    let task = Spawner::current().spawn("manager", async move {
        let result = manager.run_until(async { _ = stopped.await }).await;
        _ = ending.send(result);
    });
    Running {
        stop,
        ended,
        _task: task,
    }
}

impl Running {
    pub async fn stop(self) {
        drop(self.stop);
        self.ended.await.unwrap().unwrap();
    }
}

/// Polls the server, because no event reports the state that others see.
pub async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    while !holds().await {
        time::sleep(Duration::from_millis(5)).await;
    }
}
