// SPDX-License-Identifier: Apache-2.0
//! Effects of the end of a term on reconciles in flight.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::json;
use steersman_cluster::{Cluster, Fence, FenceKeeper};
use steersman_core::{Action, Clock, ObjectKey, TestClock};
use steersman_runtime::{
    Controller, Leadership, Options, Request, RequestKey, Source, SourceContext, kind, map_metadata,
    testing::LeadershipKeeper,
};
use steersman_testing::Fixture;
use tokio::sync::{Mutex, watch};

use support::{Calls, GRACE, Stage, config_map, key, secret, until};

/// Leadership that lasts until the fence or the term is ended.
fn leading(stage: &Stage) -> (FenceKeeper, LeadershipKeeper, Leadership) {
    let (fence_keeper, fence) = Fence::new(Arc::clone(&stage.clock));
    fence_keeper.open_until(None);
    let (keeper, leadership) = LeadershipKeeper::new();
    keeper.grant(fence);
    (fence_keeper, keeper, leadership)
}

// R68
#[steersman_testing::test]
async fn guarantee_8_reconciles_in_flight_get_a_stop_request_when_their_term_ends(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (fence, keeper, leadership) = leading(&stage);
    let (calls, told) = (Calls::new(), Arc::new(watch::Sender::new(false)));
    let reconciler = {
        let told = Arc::clone(&told);
        calls.then(move |key: ObjectKey, cx, time| {
            let told = Arc::clone(&told);
            async move {
                // It is reconciled again in the next term, and does not block the other one then.
                if key.name() == "a" && time == 1 {
                    // Work that cannot be cancelled.
                    let busy = tokio::task::spawn_blocking(move || {
                        while !cx.stop().is_requested() {
                            thread::sleep(Duration::from_millis(1));
                        }
                        told.send_replace(true);
                    });
                    busy.await?;
                }
                Ok(Action::await_change())
            }
        })
    };
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, reconciler);
    let running = controller.clone().spawn(&stage.context_led("keys", leadership));
    controller.enqueue(key(&fixture, "a"));
    calls.reach("a", 1).await;
    assert!(!*told.borrow());
    fence.close("the lease was lost");
    keeper.revoke();
    told.subscribe().wait_for(|told| *told).await.unwrap();
    keeper.vacated().await;
    // The run continues, and so does the work in the next term.
    keeper.grant(Fence::open());
    controller.enqueue(key(&fixture, "b"));
    calls.reach("b", 1).await;
    running.stop(GRACE).await.unwrap();
}

// R68
#[steersman_testing::test]
async fn guarantee_8_a_reconcile_in_flight_does_not_outlive_its_term_during_shutdown(fixture: Fixture) {
    // Time stands still, so that no grace period is ever over.
    let (_clock, stage) = Stage::timed(&fixture).await;
    for drains in [false, true] {
        let (fence, keeper, leadership) = leading(&stage);
        let (calls, told) = (Calls::new(), Arc::new(watch::Sender::new(false)));
        let reconciler = {
            let told = Arc::clone(&told);
            calls.then(move |_: ObjectKey, cx, _| {
                let told = Arc::clone(&told);
                async move {
                    cx.stop().requested().await;
                    told.send_replace(true);
                    std::future::pending().await
                }
            })
        };
        let controller = Controller::<ObjectKey>::named("keys")
            .options(Options::new().drain(drains))
            .build(&stage.cluster, reconciler);
        let running = controller.clone().spawn(&stage.context_led("keys", leadership));
        controller.enqueue(key(&fixture, "a"));
        calls.reach("a", 1).await;
        controller.enqueue(key(&fixture, "b"));
        let mut stopped = Box::pin(running.stop(GRACE));
        assert!(stopped.as_mut().now_or_never().is_none());
        told.subscribe().wait_for(|told| *told).await.unwrap();
        fence.close("the lease was lost");
        keeper.revoke();
        stopped.await.unwrap();
        keeper.vacated().await;
        assert_eq!(calls.count("b"), 0, "nothing begins without leadership");
        until(|| controller.depth().in_flight() == 0).await;
    }
}

/// A cluster that gets no request.
async fn unused_cluster(clock: &Arc<dyn Clock>) -> Cluster {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("not reachable"))
    });
    let builder = Cluster::builder("default")
        .field_manager("test")
        .service(kube::Client::new(service, "default"));
    builder.clock(Arc::clone(clock)).build().await.unwrap()
}

// R68
#[tokio::test]
async fn guarantee_6_a_worker_that_waits_for_a_key_begins_nothing_after_the_end_of_its_term() {
    let clock: Arc<dyn Clock> = Arc::new(TestClock::new());
    let stage = Stage::on(unused_cluster(&clock).await, clock);
    let (_fence, keeper, leadership) = leading(&stage);
    let calls = Calls::new();
    let controller = Controller::<ObjectKey>::named("keys").build(&stage.cluster, calls.only());
    let running = controller.clone().spawn(&stage.context_led("keys", leadership));
    controller.enqueue(ObjectKey::new("ns", "a"));
    calls.reach("a", 1).await;
    // On one thread, tasks run in the order in which they are woken: the worker before the run, which pauses the queue.
    controller.enqueue(ObjectKey::new("ns", "b"));
    keeper.revoke();
    keeper.vacated().await;
    assert_eq!(calls.count("b"), 0, "nothing begins without leadership");
    assert_eq!(controller.depth().warm(), 1, "the key waits for the next term");
    keeper.grant(Fence::open());
    calls.reach("b", 1).await;
    running.stop(GRACE).await.unwrap();
}

/// A source that has something for itself while it runs, such as a port.
#[derive(Default)]
struct Exclusive {
    port: Mutex<()>,
    runs: Arc<AtomicUsize>,
}

impl<R: RequestKey> Source<R> for Exclusive {
    fn name(&self) -> String {
        "exclusive".to_owned()
    }

    async fn run(&self, cx: SourceContext<R>) {
        let _port = self.port.lock().await;
        self.runs.fetch_add(1, Ordering::SeqCst);
        cx.ready();
        std::future::pending().await
    }
}

// R77, D15
#[steersman_testing::test]
async fn guarantee_9_a_source_continues_when_a_term_ends(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (calls, source) = (Calls::new(), Exclusive::default());
    let runs = Arc::clone(&source.runs);
    let controller = Controller::<ObjectKey>::named("keys")
        .source(source)
        .build(&stage.cluster, calls.only());
    let (keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("keys", leadership));
    for term in 1..=3 {
        keeper.grant(Fence::open());
        controller.enqueue(key(&fixture, "a"));
        calls.reach("a", term).await;
        keeper.revoke();
        keeper.vacated().await;
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    running.stop(GRACE).await.unwrap();
}

// R77, D15
#[steersman_testing::test]
async fn guarantee_9_every_object_of_every_kind_is_enqueued_again_after_a_lost_term(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    // The object that this one triggers does not exist.
    client.create(&secret(&fixture, "s", &json!({}))).await.unwrap();
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps")
        .watches(
            kind::<Secret>(),
            map_metadata(|secret| {
                (secret.name() == "s").then(|| ObjectKey::new(secret.namespace(), "of-secret"))
            }),
        )
        .build(&stage.cluster, calls.only::<Request>());
    let (keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    for term in 1..=3 {
        keeper.grant(Fence::open());
        calls.reach("a", term).await;
        calls.reach("of-secret", term).await;
        keeper.revoke();
        keeper.vacated().await;
    }
    keeper.grant(Fence::open());
    calls.reach("of-secret", 4).await;
    until(|| controller.depth() == Default::default()).await;
    let (a, of_secret) = (calls.count("a"), calls.count("of-secret"));
    controller.replay();
    calls.reach("a", a + 1).await;
    calls.reach("of-secret", of_secret + 1).await;
    running.stop(GRACE).await.unwrap();
}
