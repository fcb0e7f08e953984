// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests of controllers: a stage to run them without a manager, objects, and recording reconcilers.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeMap, fmt, future::Future, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{Client, Cluster, ClusterBuilder, DeleteOptions};
use steersman_core::{Action, Clock, ObjectKey, Random, Spawner, TestClock, TokioClock};
use steersman_runtime::{
    BoxError, Context, Controller, Leadership, Reconciler, RequestKey, RunContext, RunnableStatus,
    RunningController, Stop, StopHandle, reconcile_fn, testing::RuntimeContext,
};
use steersman_testing::{FaultProxy, Fixture};
use tokio::sync::watch;

/// How long a controller that is stopped has, where the test is not about that.
pub const GRACE: Duration = Duration::from_secs(30);

/// A stage for controllers: a cluster whose cache holds the namespace of the test, and what a manager would
/// hand to them.
pub struct Stage {
    pub cluster: Cluster,
    pub clock: Arc<dyn Clock>,
    pub runtime: Arc<RuntimeContext>,
    stop: Stop,
    _handle: StopHandle,
}

impl Stage {
    pub async fn new(fixture: &Fixture) -> Self {
        Self::of(cluster_builder(fixture, "default"), Arc::new(TokioClock::new())).await
    }

    /// All requests go through a proxy.
    pub async fn through(fixture: &Fixture, proxy: &FaultProxy) -> Self {
        let builder = cluster_through(fixture, proxy, "default");
        Self::of(builder, Arc::new(TokioClock::new())).await
    }

    /// The test advances the clock.
    pub async fn timed(fixture: &Fixture) -> (TestClock, Self) {
        let clock = TestClock::new();
        let builder = cluster_builder(fixture, "default");
        let stage = Self::of(builder, Arc::new(clock.clone())).await;
        (clock, stage)
    }

    pub async fn of(builder: ClusterBuilder, clock: Arc<dyn Clock>) -> Self {
        let cluster = builder.clock(Arc::clone(&clock)).build().await.unwrap();
        Self::on(cluster, clock)
    }

    pub fn on(cluster: Cluster, clock: Arc<dyn Clock>) -> Self {
        let random = Arc::new(Random::from_seed(7));
        let runtime = RuntimeContext::new(Arc::clone(&clock), random, Spawner::current());
        let runtime = Arc::new(runtime);
        runtime.clusters().insert(cluster.clone()).unwrap();
        let (handle, stop) = StopHandle::new();
        Self {
            cluster,
            clock,
            runtime,
            stop,
            _handle: handle,
        }
    }

    pub fn run<R: RequestKey>(&self, controller: &Controller<R>) -> RunningController<R> {
        controller.clone().spawn(&self.context(controller.name()))
    }

    pub fn context(&self, name: &str) -> RunContext {
        self.context_led(name, Leadership::always())
    }

    /// For one whose leadership the test keeps.
    pub fn context_led(&self, name: &str, leadership: Leadership) -> RunContext {
        self.runtime.context(name, leadership, self.stop.clone())
    }

    /// Waits until the one of this name stands so, and says how.
    pub async fn stands(&self, name: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut found = String::new();
        let look = |all: &BTreeMap<String, RunnableStatus>| {
            found = all.get(name).map(ToString::to_string).unwrap_or_default();
            condition(&found)
        };
        self.runtime.statuses().when(look).await;
        found
    }

    /// The value of a series, such as `workqueue_adds_total{name="web",controller="web"}`.
    pub fn metric(&self, series: &str) -> f64 {
        let mut registry = Registry::default();
        self.runtime.metrics().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        let value = line.unwrap_or_else(|| panic!("no {series} in\n{text}"));
        value.trim().parse().unwrap()
    }

    /// How often reconciles of a controller ended so.
    pub fn reconciled(&self, controller: &str, result: &str) -> u64 {
        let series =
            format!("controller_runtime_reconcile_total{{controller=\"{controller}\",result=\"{result}\"}}");
        self.metric(&series) as u64
    }

    /// The value of a series that has a controller for its only label.
    pub fn count(&self, series: &str, controller: &str) -> u64 {
        self.metric(&format!("{series}{{controller=\"{controller}\"}}")) as u64
    }

    pub fn live(&self) -> Client {
        self.cluster.live()
    }
}

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

pub fn cluster_through(fixture: &Fixture, proxy: &FaultProxy, name: &str) -> ClusterBuilder {
    proxy.announce(fixture.admin());
    cluster_builder(fixture, name).config(proxy.endpoint().config(fixture.admin()).unwrap())
}

pub fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub fn config_map(fixture: &Fixture, name: &str, value: &str) -> ConfigMap {
    object(json!({
        "metadata": {"name": name, "namespace": fixture.namespace()},
        "data": {"value": value},
    }))
}

pub fn secret(fixture: &Fixture, name: &str, labels: &Value) -> Secret {
    object(json!({"metadata": {"name": name, "namespace": fixture.namespace(), "labels": labels}}))
}

pub fn key(fixture: &Fixture, name: &str) -> ObjectKey {
    ObjectKey::new(fixture.namespace(), name)
}

pub async fn delete<K: steersman_cluster::Kind>(client: &Client, key: &ObjectKey) {
    client.delete::<K>(key, DeleteOptions::default()).await.unwrap();
}

/// Arguments of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub key: String,
    pub priority: i32,
    /// How often it failed in succession before.
    pub attempt: u32,
}

/// The calls of a reconciler, in order. Clones are the same.
#[derive(Clone)]
pub struct Calls(Arc<watch::Sender<Vec<Call>>>);

impl Calls {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }

    pub fn all(&self) -> Vec<Call> {
        self.0.borrow().clone()
    }

    /// The keys, in order.
    pub fn keys(&self) -> Vec<String> {
        self.0.borrow().iter().map(|call| call.key.clone()).collect()
    }

    /// How often the object of this name was reconciled.
    pub fn count(&self, name: &str) -> usize {
        count(&self.0.borrow(), name)
    }

    pub async fn when(&self, condition: impl FnMut(&Vec<Call>) -> bool) {
        self.0.subscribe().wait_for(condition).await.unwrap();
    }

    /// Waits until the object of this name was reconciled so often.
    pub async fn reach(&self, name: &str, times: usize) {
        self.when(|calls| count(calls, name) >= times).await;
    }

    /// Adds a call, and says the how manyth it is of its key.
    pub fn add(&self, key: &impl fmt::Display, cx: &Context) -> usize {
        let key = key.to_string();
        let (priority, attempt) = (cx.priority(), cx.attempt() - 1);
        self.0.send_modify(|calls| {
            calls.push(Call {
                key: key.clone(),
                priority,
                attempt,
            });
        });
        self.0.borrow().iter().filter(|call| call.key == key).count()
    }

    /// A reconciler that is recorded here, and then calls `work` with the number of calls for its key.
    pub fn then<R, F, Fut>(&self, work: F) -> impl Reconciler<R>
    where
        R: RequestKey,
        F: Fn(R, Context, usize) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Action, BoxError>> + Send + 'static,
    {
        let calls = self.clone();
        reconcile_fn(move |key: R, cx: Context| {
            let time = calls.add(&key, &cx);
            work(key, cx, time)
        })
    }

    /// One that does nothing.
    pub fn only<R: RequestKey>(&self) -> impl Reconciler<R> {
        self.then(|_, _, _| async { Ok(Action::await_change()) })
    }
}

fn count(calls: &[Call], name: &str) -> usize {
    let is_meant = |call: &&Call| call.key == name || call.key.ends_with(&format!("/{name}"));
    calls.iter().filter(is_meant).count()
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
