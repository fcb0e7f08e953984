// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests of managers: clusters, objects, recording reconcilers, and running managers.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{Cluster, ClusterBuilder};
use steersman_core::{Action, ObjectKey, Spawner, Task};
use steersman_runtime::{BoxError, Context, Manager, Reconciler, Request, RunError, RunnableStatus};
use steersman_testing::{FaultProxy, Fixture};
use tokio::sync::{oneshot, watch};

/// A cluster whose cache holds the namespace of the test. Unused informers end at once.
pub fn cluster_builder(fixture: &Fixture, name: &str) -> ClusterBuilder {
    let here = Scope::all().namespace(fixture.namespace());
    Cluster::builder(name)
        .field_manager("test")
        .config(fixture.endpoint().config(fixture.admin()).unwrap())
        .cache(|cache| {
            cache
                .defaults(here, InformerOptions::default())
                .linger(Duration::ZERO)
        })
}

pub async fn cluster(fixture: &Fixture) -> Cluster {
    cluster_builder(fixture, "default").build().await.unwrap()
}

/// The same through a proxy.
pub async fn cluster_through(fixture: &Fixture, proxy: &FaultProxy, name: &str) -> Cluster {
    let config = proxy.endpoint().config(fixture.admin()).unwrap();
    cluster_builder(fixture, name)
        .config(config)
        .build()
        .await
        .unwrap()
}

/// A manager that has this cluster and nothing else.
pub async fn manager_of(cluster: Cluster) -> Manager {
    Manager::builder().cluster(cluster).build().await.unwrap()
}

/// Waits until a runnable stands so.
pub async fn stands(manager: &Manager, name: &str, so: impl Fn(&RunnableStatus) -> bool) {
    manager
        .statuses()
        .when(|all| all.get(name).is_some_and(&so))
        .await;
}

pub fn is_dormant(standing: &RunnableStatus) -> bool {
    matches!(standing, RunnableStatus::Dormant { .. })
}

pub fn config_map(fixture: &Fixture, name: &str, value: &str) -> ConfigMap {
    let map = json!({
        "metadata": {"name": name, "namespace": fixture.namespace()},
        "data": {"value": value},
    });
    serde_json::from_value(map).unwrap()
}

pub fn key(fixture: &Fixture, name: &str) -> ObjectKey {
    ObjectKey::new(fixture.namespace(), name)
}

/// A manager that runs in the background.
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<Result<(), RunError>>,
    task: Task,
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
        stop: Some(stop),
        ended,
        task,
    }
}

impl Running {
    /// Tells it to stop, and waits for its end.
    pub async fn stop(mut self) -> Result<(), RunError> {
        self.stop.take();
        self.ended.await.unwrap()
    }

    /// Tells it to stop.
    pub fn tell(&mut self) {
        self.stop.take();
    }

    /// Returns true if it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.task.is_finished()
    }

    /// Waits for its end.
    pub async fn ended(self) -> Result<(), RunError> {
        self.ended.await.unwrap()
    }
}

/// A reconciler that remembers which config maps it was asked about, and what they said.
#[derive(Clone)]
pub struct Log(Arc<watch::Sender<Vec<Entry>>>);

/// A key, and the value of the map or nothing if there was none.
pub type Entry = (Request, Option<String>);

impl Log {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.0.borrow().clone()
    }

    /// Waits until a map of this name was seen with this value.
    pub async fn saw(&self, name: &str, value: Option<&str>) {
        self.when(|log| {
            log.iter()
                .any(|(request, seen)| request.name() == name && seen.as_deref() == value)
        })
        .await;
    }

    pub async fn when(&self, condition: impl FnMut(&Vec<Entry>) -> bool) {
        self.0.subscribe().wait_for(condition).await.unwrap();
    }

    pub fn count(&self, name: &str) -> usize {
        self.entries()
            .iter()
            .filter(|(request, _)| request.name() == name)
            .count()
    }
}

impl Reconciler for Log {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let map = cx.client().get::<ConfigMap>(request.key()).await?;
        let value = map.map(|map| {
            map.data
                .as_ref()
                .and_then(|data| data.get("value").cloned())
                .unwrap_or_default()
        });
        self.0.send_modify(|log| log.push((request, value)));
        Ok(Action::await_change())
    }
}

/// The recorded steps, in order. Clones share them.
#[derive(Clone)]
pub struct Steps(Arc<watch::Sender<Vec<String>>>);

impl Steps {
    pub fn new() -> Self {
        Self(Arc::default())
    }

    pub fn add(&self, step: impl Into<String>) {
        self.0.send_modify(|steps| steps.push(step.into()));
    }

    pub fn all(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    pub fn clear(&self) {
        self.0.send_modify(Vec::clear);
    }

    /// Waits until this has happened.
    pub async fn saw(&self, step: &str) {
        let mut steps = self.0.subscribe();
        let happened = steps.wait_for(|steps| steps.iter().any(|is| is == step));
        happened.await.unwrap();
    }
}

/// Lets everything that can go on do so. Only for a look at what must not have happened.
pub async fn let_go_on() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Polls until a condition holds.
pub async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}
