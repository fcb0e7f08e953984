// SPDX-License-Identifier: Apache-2.0
//! External resources: a process that dies at any request leaves exactly one bucket, and none after the deletion.

mod service;

use std::{sync::Arc, time::Duration};

use kube::{CustomResourceExt, api::Patch};
use serde_json::{Value, json};
use steersman_cluster::{Client as ClusterClient, Cluster, DeleteOptions, ObjectExt};
use steersman_core::{Action, TestClock};
use steersman_kit::{
    Cleaned, Cleanup, ExternalResource, ExternalState, KindReconciler, Managed, RunsCleanup, Switches, Work,
    managed,
};
use steersman_runtime::{BoxError, Context, ObjectReconciler};
use steersman_testing::{
    FaultProxy, Fixture, ServerKind,
    proxy::{Fault, Injected, Matching},
};

use self::service::{Client, Moment, Service};
use super::support::*;

const SETTLED: Action = Action::requeue_after(Duration::from_secs(300));

/// Rents a bucket in the region that the value of a widget names.
struct Renting<const TAKES_TOKEN: bool>(Client<TAKES_TOKEN>);

impl<const TAKES_TOKEN: bool> KindReconciler for Renting<TAKES_TOKEN> {
    type Kind = Widget;
    type Status = WidgetStatus;
    type Children = ();
    type Finalizer = RunsCleanup;

    async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let bucket = ExternalResource::new("bucket", &self.0);
        match bucket.ensure(widget, &widget.spec.value, work.context()).await? {
            ExternalState::Ready(region) => {
                work.status_mut().note = region;
                Ok(SETTLED)
            }
            ExternalState::Waiting(delay) => Ok(Action::requeue_after(delay)),
            _ => Err("unknown state".into()),
        }
    }
}

impl<const TAKES_TOKEN: bool> Cleanup for Renting<TAKES_TOKEN> {
    const FINALIZER: &str = "kit.steersman.example/bucket";

    async fn cleanup(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Cleaned, BoxError> {
        let bucket = ExternalResource::new("bucket", &self.0);
        bucket.remove(widget, work.context()).await
    }
}

type Process<const TAKES_TOKEN: bool> = (Cluster, Managed<Renting<TAKES_TOKEN>>);

/// A server, a service, and processes that die.
struct Stage<'f, const TAKES_TOKEN: bool> {
    fixture: &'f Fixture,
    proxy: FaultProxy,
    service: Service,
    clock: Arc<TestClock>,
    client: ClusterClient,
    _beside: Cluster,
    /// The process that runs, if it has not died.
    process: Option<Process<TAKES_TOKEN>>,
    /// The fault at which the process dies.
    fault: Option<Injected>,
    crashes: usize,
}

impl<'f, const TAKES_TOKEN: bool> Stage<'f, TAKES_TOKEN> {
    async fn new(fixture: &'f Fixture) -> Self {
        fixture.install(&Widget::crd()).await;
        let clock = Arc::new(TestClock::new());
        let beside = cluster_builder(fixture, "beside").build().await.unwrap();
        Self {
            fixture,
            proxy: fixture.proxy().await,
            service: Service::start(TAKES_TOKEN, &clock).await,
            clock,
            client: beside.live(),
            _beside: beside,
            process: None,
            fault: None,
            crashes: 0,
        }
    }

    /// A new process: nothing in memory.
    async fn process(&self) -> Process<TAKES_TOKEN> {
        let config = self.proxy.endpoint().config(self.fixture.admin()).unwrap();
        let clock = Arc::clone(&self.clock);
        let builder = cluster_builder(self.fixture, "default")
            .config(config)
            .clock(clock);
        let reconciler = managed(Renting(Client::of(&self.service)));
        (builder.build().await.unwrap(), reconciler)
    }

    /// Reconciles a widget until it is settled or does not exist any more. After an error, another process continues.
    async fn settle(&mut self, name: &str) {
        let key = key(self.fixture, name);
        for _ in 0..100 {
            let (cluster, reconciler) = match self.process.take() {
                Some(process) => process,
                None => self.process().await,
            };
            let Some(widget) = self.client.get::<Widget>(&key).await.unwrap() else {
                return;
            };
            if widget.is_being_deleted() && widget.metadata.finalizers.is_none() {
                return;
            }
            let (_handle, cx) = Context::standalone(&cluster);
            let result = reconciler.reconcile(widget, cx).await;
            // A failed write of the status does not end a cleanup, but the death of the process does.
            let is_dead = result.is_err() || self.fault.as_ref().is_some_and(|fault| fault.hits() > 0);
            match result {
                _ if is_dead => {
                    self.fault = None;
                    self.crashes += 1;
                    continue;
                }
                Ok(SETTLED) => {
                    self.process = Some((cluster, reconciler));
                    return;
                }
                // The next event, or the requeue.
                _ => self.clock.advance(Duration::from_secs(5)),
            }
            self.process = Some((cluster, reconciler));
        }
        panic!("{name} does not settle: {:?}", self.service.state().calls);
    }

    /// Creates a widget, changes it and deletes it.
    async fn live(&mut self, name: &str, context: &str) {
        let key = key(self.fixture, name);
        self.client
            .create(&widget(self.fixture, name, "eu"))
            .await
            .unwrap();
        self.settle(name).await;
        self.check(1, "eu", context);
        let patch = Patch::Merge(json!({"spec": {"value": "us"}}));
        self.client.patch::<Widget>(&key, &patch).await.unwrap();
        self.settle(name).await;
        self.check(1, "us", context);
        let found = self.client.get_required::<Widget>(&key).await.unwrap();
        assert_eq!(found.status.as_ref().unwrap().note, "us", "{context}");
        self.client
            .delete::<Widget>(&key, DeleteOptions::default())
            .await
            .unwrap();
        self.settle(name).await;
        self.check(0, "", context);
    }

    fn check(&self, count: usize, region: &str, context: &str) {
        let state = self.service.state();
        let regions: Vec<&str> = state.buckets.values().map(|it| it.region.as_str()).collect();
        assert_eq!(regions, vec![region; count], "{context}: {:?}", state.calls);
        assert_eq!(state.created, 1, "{context}: {:?}", state.calls);
    }

    fn forget(&mut self) {
        let mut state = self.service.state();
        (state.created, state.kill_at) = (0, None);
        state.calls.clear();
        drop(state);
        self.crashes = 0;
    }
}

/// Kills the process before and after each request to the API server, and each call of the service.
async fn survives_a_crash_at_every_boundary<const TAKES_TOKEN: bool>(fixture: &Fixture) {
    let mut stage = Stage::<TAKES_TOKEN>::new(fixture).await;
    stage.live("plain", "without a crash").await;
    assert_eq!(stage.crashes, 0);
    let is_write =
        |it: &&steersman_testing::proxy::Exchange| it.method == "PATCH" && it.path.contains("/plain");
    let writes = stage.proxy.exchanges().iter().filter(is_write).count();
    let calls = stage.service.state().calls.len();
    assert!(writes >= 6 && calls >= 7, "{writes} writes, {calls} calls");
    // A death before a request leaves the state that a death after the request before it leaves. The embedded server is fast
    // enough to show that too.
    let moments: &[Moment] = match fixture.server_kind() {
        ServerKind::Real => &[Moment::After],
        _ => &[Moment::Before, Moment::After],
    };
    for at in 0..writes {
        for moment in moments {
            stage.forget();
            let fault = match moment {
                Moment::Before => Fault::answer(500),
                Moment::After => Fault::drop_response(),
            };
            let name = format!("write-{at}-{moment:?}").to_lowercase();
            let matching = Matching::method("PATCH")
                .path(format!("/{name}"))
                .after(at)
                .first(1);
            stage.fault = Some(stage.proxy.inject(matching, fault));
            stage.live(&name, &name).await;
            assert_eq!(stage.crashes, 1, "{name}");
        }
    }
    for at in 0..calls {
        for moment in moments {
            stage.forget();
            stage.service.state().kill_at = Some((at, *moment));
            let name = format!("call-{at}-{moment:?}").to_lowercase();
            stage.live(&name, &name).await;
            assert_eq!(stage.crashes, 1, "{name}");
        }
    }
}

#[steersman_testing::test]
async fn guarantee_2_and_4_with_tokens_a_crash_at_any_boundary_leaves_one_resource_and_none_after_the_deletion(
    fixture: Fixture,
) {
    survives_a_crash_at_every_boundary::<true>(&fixture).await;
}

#[steersman_testing::test]
async fn guarantee_3_and_4_without_tokens_a_crash_at_any_boundary_leaves_one_resource_and_none_after_the_deletion(
    fixture: Fixture,
) {
    survives_a_crash_at_every_boundary::<false>(&fixture).await;
}

#[steersman_testing::test]
async fn guarantee_1_an_outdated_parent_calls_nothing(fixture: Fixture) {
    let mut stage = Stage::<true>::new(&fixture).await;
    let one = key(&fixture, "one");
    stage.client.create(&widget(&fixture, "one", "eu")).await.unwrap();
    let outdated = stage.client.get_required::<Widget>(&one).await.unwrap();
    stage.settle("one").await;
    let calls = stage.service.state().calls.len();
    let (cluster, _) = stage.process().await;
    let (_handle, cx) = Context::standalone(&cluster);
    let api = Client::<true>::of(&stage.service);
    let bucket = ExternalResource::new("bucket", &api);
    let error = bucket.ensure(&*outdated, "eu", &cx).await.unwrap_err();
    assert!(error.to_string().contains("has changed"), "{error}");
    assert_eq!(stage.service.state().calls.len(), calls);
}

#[steersman_testing::test]
async fn guarantee_5_a_resource_that_others_deleted_is_created_again(fixture: Fixture) {
    let mut stage = Stage::<false>::new(&fixture).await;
    stage.client.create(&widget(&fixture, "one", "eu")).await.unwrap();
    stage.settle("one").await;
    let tag = stage.service.state().buckets["b1"].tag.clone();
    stage.service.state().buckets.clear();
    stage.settle("one").await;
    let state = stage.service.state();
    assert_eq!((state.created, state.buckets.len()), (2, 1));
    assert_ne!(state.buckets["b2"].tag, tag);
}

#[steersman_testing::test]
async fn guarantee_6_a_copy_of_the_parent_has_its_own_resource(fixture: Fixture) {
    let mut stage = Stage::<true>::new(&fixture).await;
    stage.client.create(&widget(&fixture, "one", "eu")).await.unwrap();
    stage.settle("one").await;
    let found = stage
        .client
        .get_required::<Widget>(&key(&fixture, "one"))
        .await
        .unwrap();
    let mut copy = widget(&fixture, "two", "us");
    copy.metadata.annotations.clone_from(&found.metadata.annotations);
    assert!(copy.metadata.annotations.is_some());
    stage.client.create(&copy).await.unwrap();
    stage.settle("two").await;
    assert_eq!(stage.service.state().buckets.len(), 2);
    let two = key(&fixture, "two");
    let deleted = stage
        .client
        .delete::<Widget>(&two, DeleteOptions::default())
        .await;
    deleted.unwrap();
    stage.settle("two").await;
    let state = stage.service.state();
    let left: Vec<&String> = state.buckets.keys().collect();
    assert_eq!(left, ["b1"]);
}

#[steersman_testing::test]
async fn guarantee_7_a_settled_resource_costs_one_observation(fixture: Fixture) {
    let mut stage = Stage::<true>::new(&fixture).await;
    stage.client.create(&widget(&fixture, "one", "eu")).await.unwrap();
    stage.settle("one").await;
    let writes = || stage.proxy.exchanges().iter().filter(|it| it.is_write()).count();
    let (before, calls) = (writes(), stage.service.state().calls.len());
    let (cluster, reconciler) = stage.process().await;
    let (_handle, cx) = Context::standalone(&cluster);
    let widget = stage
        .client
        .get_required::<Widget>(&key(&fixture, "one"))
        .await
        .unwrap();
    assert_eq!(reconciler.reconcile(widget, cx).await.unwrap(), SETTLED);
    assert_eq!((writes(), stage.service.state().calls.len()), (before, calls + 1));
}

#[steersman_testing::test]
async fn nothing_is_created_or_changed_for_an_observed_object(fixture: Fixture) {
    let mut stage = Stage::<true>::new(&fixture).await;
    let observe = json!({"metadata": {"annotations": {(Switches::OBSERVE_ONLY): "true"}}});
    let mut one = widget(&fixture, "one", "eu");
    one.metadata.annotations = Some([(Switches::OBSERVE_ONLY.to_owned(), "true".to_owned())].into());
    stage.client.create(&one).await.unwrap();
    let reconciled = async |stage: &Stage<'_, true>| {
        let (cluster, reconciler) = stage.process().await;
        let (_handle, cx) = Context::standalone(&cluster);
        let found = stage.client.get_required::<Widget>(&key(&fixture, "one")).await;
        reconciler.reconcile(found.unwrap(), cx).await.unwrap()
    };
    assert_ne!(reconciled(&stage).await, SETTLED);
    assert_eq!(stage.service.state().calls.len(), 0);
    // A bucket that exists is observed, and not moved.
    let change = |observe: Value| Patch::Merge(observe);
    let normal = json!({"metadata": {"annotations": {(Switches::OBSERVE_ONLY): null}}});
    let one = key(&fixture, "one");
    stage.client.patch::<Widget>(&one, &change(normal)).await.unwrap();
    stage.settle("one").await;
    stage.check(1, "eu", "normal");
    stage
        .client
        .patch::<Widget>(&one, &change(observe))
        .await
        .unwrap();
    assert_eq!(reconciled(&stage).await, SETTLED);
    let moved = json!({"spec": {"value": "us"}});
    stage.client.patch::<Widget>(&one, &change(moved)).await.unwrap();
    assert_ne!(reconciled(&stage).await, SETTLED);
    stage.check(1, "eu", "observed");
}
