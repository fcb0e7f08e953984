// SPDX-License-Identifier: Apache-2.0
//! What the tests share: a kind, reconcilers made of closures, and managers that run.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, Secret, Service},
};
use kube::{CustomResource, CustomResourceExt, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{Client, Cluster, ClusterBuilder, ResourceQuery};
use steersman_core::{Action, ObjectKey, Spawner, Task, error_chain};
use steersman_kit::{
    Cleaned, Cleanup, ConditionSet, Conditions, KindReconciler, NoCleanup, RunsCleanup, Status, Work,
};
use steersman_runtime::{
    AnyReconciler, BoxError, Manager, Request,
    testing::{KnownPrimary, Stand},
};
use steersman_testing::{FaultProxy, Fixture, eventually};
use tokio::sync::oneshot;

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kit.steersman.example",
    version = "v1",
    kind = "Widget",
    namespaced,
    status = "WidgetStatus"
)]
#[serde(rename_all = "camelCase", default)]
pub struct WidgetSpec {
    pub size: i32,
    pub value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub color: Option<String>,
}

#[derive(Status, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WidgetStatus {
    pub ready_replicas: i32,
    pub note: String,
    pub observed_generation: Option<i64>,
    pub conditions: Conditions<Cond>,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
pub enum Cond {
    Available,
    Configured,
}

pub type Children = (Deployment, ConfigMap, Secret, Service, StatefulSet);

type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'a>>;
type Script<R, T = Action> = Arc<dyn for<'a> Fn(&'a Widget, &'a mut Work<R>) -> Doing<'a, T> + Send + Sync>;

/// A reconciler made of a closure.
#[derive(Clone)]
pub struct Scripted(Script<Self>);

pub fn scripted(
    script: impl for<'a> Fn(&'a Widget, &'a mut Work<Scripted>) -> Doing<'a, Action> + Send + Sync + 'static,
) -> Scripted {
    Scripted(Arc::new(script))
}

impl KindReconciler for Scripted {
    type Kind = Widget;
    type Status = WidgetStatus;
    type Children = Children;
    type Finalizer = NoCleanup;

    async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        (self.0)(widget, work).await
    }

    fn on_error(&self, error: &BoxError, work: &mut Work<Self>) {
        work.set_false(Cond::Configured, "ReconcileFailed", error);
    }
}

/// A map of the widget's value, as a child.
pub fn map_of(widget: &Widget) -> ConfigMap {
    object(json!({"metadata": {"name": widget.name_any()}, "data": {"value": widget.spec.value}}))
}

pub fn deployment_of(widget: &Widget) -> Deployment {
    let labels = json!({"app": widget.name_any()});
    object(json!({
        "metadata": {"name": widget.name_any()},
        "spec": {
            "replicas": widget.spec.size,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "web", "image": "web:1", "ports": [{"containerPort": 80}]}]},
            },
        },
    }))
}

/// A reconciler with a ConfigMap under `Configured`, and nothing else to say.
pub fn configured() -> Scripted {
    scripted(|widget, work| {
        Box::pin(async move {
            work.set_true(Cond::Available);
            work.child(Cond::Configured, map_of(widget)).await;
            Ok(Action::await_change())
        })
    })
}

/// A reconciler with a Deployment and a ConfigMap.
pub fn deployed() -> Scripted {
    scripted(|widget, work| {
        Box::pin(async move {
            let deployment = work.child(Cond::Available, deployment_of(widget)).await;
            let ready = deployment.and_then(|found| found.status.as_ref()?.ready_replicas);
            work.status_mut().ready_replicas = ready.unwrap_or(0);
            work.child(Cond::Configured, map_of(widget)).await;
            Ok(Action::await_change())
        })
    })
}

/// A reconciler with a cleanup, made of two closures.
pub struct Cleaning {
    pub reconcile: Script<Self>,
    pub cleanup: Script<Self, Cleaned>,
}

impl KindReconciler for Cleaning {
    type Kind = Widget;
    type Status = WidgetStatus;
    type Children = (ConfigMap,);
    type Finalizer = RunsCleanup;

    async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        (self.reconcile)(widget, work).await
    }

    fn on_error(&self, error: &BoxError, work: &mut Work<Self>) {
        work.set_false(Cond::Available, "CleanupFailed", error);
    }
}

impl Cleanup for Cleaning {
    const FINALIZER: &str = "kit.steersman.example/cleanup";

    async fn cleanup(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Cleaned, BoxError> {
        (self.cleanup)(widget, work).await
    }
}

pub fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub fn widget(fixture: &Fixture, name: &str, value: &str) -> Widget {
    let spec = json!({"size": 1, "value": value});
    object(json!({
        "apiVersion": "kit.steersman.example/v1", "kind": "Widget",
        "metadata": {"name": name, "namespace": fixture.namespace()}, "spec": spec,
    }))
}

pub fn key(fixture: &Fixture, name: &str) -> ObjectKey {
    ObjectKey::new(fixture.namespace(), name)
}

/// A stand with the kind installed.
pub async fn stand(fixture: &Fixture) -> Stand {
    fixture.install(&Widget::crd()).await;
    let stand = Stand::new(fixture.client()).await.unwrap().controller("widgets");
    let query = ResourceQuery::of::<Widget>();
    eventually("discovery of the kind", async || {
        stand.cluster().mapper().resolve_anew(&query).await.ok()
    })
    .await;
    stand
}

/// A stand with a widget `one` of this value, a client of its server, and the key of the widget.
pub async fn with_widget(fixture: &Fixture, value: &str) -> (Stand, Client, ObjectKey) {
    let stand = stand(fixture).await;
    let client = stand.cluster().live();
    client.create(&widget(fixture, "one", value)).await.unwrap();
    (stand, client, key(fixture, "one"))
}

/// Calls a reconciler that succeeds, and returns its writes.
pub async fn call<By: KnownPrimary>(
    stand: &Stand,
    key: ObjectKey,
    reconciler: &impl AnyReconciler<Request, By>,
) -> Vec<String> {
    let outcome = stand.call(key, reconciler).await;
    if let Err(error) = &outcome.result {
        panic!("{}", error_chain(&**error));
    }
    writes(&outcome)
}

/// The writes of an outcome, as text.
pub fn writes(outcome: &steersman_runtime::testing::Outcome) -> Vec<String> {
    outcome.writes.iter().map(ToString::to_string).collect()
}

/// Status and reason of a condition; empty if there is none.
pub fn condition(widget: &Widget, name: &str) -> (String, String) {
    let found = widget
        .status
        .as_ref()
        .and_then(|status| status.conditions.named(name));
    found.map_or_else(Default::default, |found| {
        (found.status.clone(), found.reason.clone())
    })
}

/// Waits until a condition has this status and reason, and returns the object.
pub async fn when_condition(client: &Client, key: &ObjectKey, name: &str, is: (&str, &str)) -> Arc<Widget> {
    let what = format!("{name} {is:?} of {key}");
    eventually(&what, async || {
        let found = client.live().get::<Widget>(key).await.unwrap()?;
        let (status, reason) = condition(&found, name);
        ((&*status, &*reason) == is).then_some(found)
    })
    .await
}

/// A cluster whose cache holds the objects of the test's namespace.
pub fn cluster_builder(fixture: &Fixture, name: &str) -> ClusterBuilder {
    let here = Scope::all().namespace(fixture.namespace());
    Cluster::builder(name)
        .field_manager("tests")
        .config(fixture.endpoint().config(fixture.admin()).unwrap())
        .cache(|cache| {
            cache
                .defaults(here, InformerOptions::default())
                .linger(Duration::ZERO)
        })
}

/// The same through a proxy.
pub async fn cluster_through(fixture: &Fixture, proxy: &FaultProxy) -> Cluster {
    let config = proxy.endpoint().config(fixture.admin()).unwrap();
    let builder = cluster_builder(fixture, "default").config(config);
    builder.build().await.unwrap()
}

/// A manager that runs until it is dropped.
pub struct Running {
    pub manager: Manager,
    _stop: oneshot::Sender<()>,
    task: Task,
}

pub fn run(manager: Manager) -> Running {
    let (stop, stopped) = oneshot::channel::<()>();
    let running = manager.clone();
    let task = Spawner::current().spawn("manager", async move {
        let until = async { _ = stopped.await };
        running.run_until(until).await.unwrap();
    });
    Running {
        manager,
        _stop: stop,
        task,
    }
}

impl Running {
    /// Stops the manager, and waits until it has ended.
    pub async fn end(self) {
        let Self { _stop, task, .. } = self;
        drop(_stop);
        eventually("the manager has ended", async || task.is_finished().then_some(())).await;
    }
}

/// A manager of this cluster, not yet running.
pub async fn manager(cluster: Cluster) -> Manager {
    Manager::builder().cluster(cluster).build().await.unwrap()
}

pub fn labels(object: &impl ResourceExt) -> BTreeMap<String, String> {
    object.labels().clone()
}

/// Five children of four kinds.
pub fn five() -> Scripted {
    scripted(|widget, work| {
        Box::pin(async move {
            let name = widget.name_any();
            work.child(Cond::Available, deployment_of(widget)).await;
            work.child(Cond::Configured, map_of(widget)).await;
            let other: ConfigMap =
                object(json!({"metadata": {"name": format!("{name}-b")}, "data": {"a": "b"}}));
            work.child(Cond::Configured, other).await;
            let secret: Secret = object(json!({"metadata": {"name": name}, "stringData": {"a": "b"}}));
            work.child(Cond::Configured, secret).await;
            let service: Service = object(json!({
                "metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
            }));
            work.child(Cond::Configured, service).await;
            Ok(Action::await_change())
        })
    })
}
