// SPDX-License-Identifier: Apache-2.0
//! What the end of a term means for what is in flight.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{sync::Arc, thread, time::Duration};

use futures::FutureExt;
use steersman_cluster::{Fence, FenceKeeper};
use steersman_controller::{Controller, Leadership, LeadershipKeeper, Options};
use steersman_core::{Action, ObjectKey};
use steersman_testing::Fixture;
use tokio::sync::watch;

use support::{Calls, GRACE, Stage, key, until};

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
async fn guarantee_8_what_is_in_flight_is_told_when_its_term_ends(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let (fence, keeper, leadership) = leading(&stage);
    let (calls, told) = (Calls::new(), Arc::new(watch::Sender::new(false)));
    let reconciler = {
        let told = Arc::clone(&told);
        calls.then(move |key: ObjectKey, cx, time| {
            let told = Arc::clone(&told);
            async move {
                // It comes again in the next term, and is not in the way of the other then.
                if key.name() == "a" && time == 1 {
                    // Something that nobody can cancel.
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
    // The run goes on, and so does the work in the next term.
    keeper.grant(Fence::open());
    controller.enqueue(key(&fixture, "b"));
    calls.reach("b", 1).await;
    running.stop(GRACE).await.unwrap();
}

// R68
#[steersman_testing::test]
async fn guarantee_8_what_is_in_flight_does_not_outlive_its_term_while_the_run_ends(fixture: Fixture) {
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
