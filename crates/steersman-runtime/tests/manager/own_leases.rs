// SPDX-License-Identifier: Apache-2.0
//! One lease for each controller, so that replicas share the work.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, managed};
use futures::FutureExt;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use steersman_runtime::{BoxError, Controller, RunContext, RunPolicy, Runnable, RunnableStatus, run_fn};
use steersman_testing::{FaultProxy, Fixture, proxy::Exchange};
use tokio::sync::watch;

use elected::{Replica, Sign, create_map, figure, is_about_lease, leases, signed, steady, until};

const MAPS: &str = "operator--maps";
const TICKER: &str = "operator--ticker";

/// A replica with a warm controller and a task that needs leadership, and whether that task runs.
async fn replica(fixture: &Fixture, proxy: &FaultProxy, name: &str) -> (Replica, watch::Receiver<u32>) {
    let election = steady(fixture, name).per_runnable();
    let replica = Replica::new(fixture, proxy, election, name, |builder| builder).await;
    Controller::of::<ConfigMap>("maps")
        .warm()
        .add_to(&replica.manager, Sign(name.to_owned()))
        .unwrap();
    let (sender, runs) = watch::channel(0);
    let ticker = run_fn("ticker", move |cx: RunContext| {
        let sender = sender.clone();
        async move {
            sender.send_modify(|runs| *runs += 1);
            let _ended = scopeguard(move || sender.send_modify(|runs| *runs -= 1));
            cx.stop().requested().await;
            Ok::<_, BoxError>(())
        }
    });
    replica.manager.add(ticker).unwrap();
    let everywhere = run_fn("server", async |cx: RunContext| {
        cx.stop().requested().await;
        Ok::<_, BoxError>(())
    });
    replica
        .manager
        .add(everywhere.with_policy(RunPolicy::AllReplicas))
        .unwrap();
    (replica, runs)
}

/// Does something when it drops, also if what holds it is cancelled.
fn scopeguard(at_end: impl FnMut()) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(at_end)
}

async fn holder(fixture: &Fixture, lease: &str) -> Option<String> {
    let lease: Option<Lease> = leases(fixture).get_opt(lease).await.unwrap();
    lease?.spec?.holder_identity
}

/// Creates a lease with a holder that never renews.
async fn hold(fixture: &Fixture, lease: &str) {
    let held = json!({
        "metadata": {"name": lease, "namespace": fixture.namespace()},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600},
    });
    let held = serde_json::from_value(held).unwrap();
    leases(fixture).create(&Default::default(), &held).await.unwrap();
}

async fn give(fixture: &Fixture, lease: &str, holder: &str) {
    let change = json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 60}});
    let patch = Patch::Merge(&change);
    leases(fixture)
        .patch(lease, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

// R81, D19
#[steersman_testing::test]
async fn a_leader_task_that_is_done_does_not_run_in_other_replicas(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (runs, mut counted) = watch::channel(0);
    let mut replicas = Vec::new();
    for name in ["one", "two"] {
        let election = steady(&fixture, name).per_runnable();
        let replica = Replica::new(&fixture, &proxy, election, name, |builder| builder).await;
        let runs = runs.clone();
        let once = run_fn("once", move |_: RunContext| {
            runs.send_modify(|runs| *runs += 1);
            async { Ok::<_, BoxError>(()) }
        });
        replica.manager.add(once).unwrap();
        replicas.push((replica.run(), replica));
    }
    counted.wait_for(|runs| *runs == 1).await.unwrap();
    // The other replica watches the lease, and would take it as soon as it is given up.
    let watched = |all: &[Exchange]| {
        all.iter()
            .filter(|one| one.is_watch() && is_about_lease(one))
            .count()
    };
    proxy.wait_for(|all| (watched(all) >= 2).then_some(())).await;
    let held = lease_after_renewal(&fixture, "operator--once").await;
    assert!(held.is_some_and(|holder| !holder.is_empty()));
    assert_eq!(*counted.borrow(), 1);
    // A stop hands it over, as with one lease for all.
    for (running, _) in replicas {
        running.stop().await.unwrap();
    }
}

/// A leader task that ends at once, without a word about its readiness.
struct Silent;

impl Runnable for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    async fn run(&self, _: RunContext) -> Result<(), BoxError> {
        Ok(())
    }
}

// R81, D19
#[steersman_testing::test]
async fn a_finished_leader_task_is_ready_without_a_report(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let election = steady(&fixture, "one").per_runnable();
    let replica = Replica::new(&fixture, &proxy, election, "one", |builder| builder).await;
    replica.manager.add(Silent).unwrap();
    let running = replica.run();
    managed::stands(&replica.manager, "silent", |standing| {
        *standing == RunnableStatus::Ready
    })
    .await;
    running.stop().await.unwrap();
}

/// The holder of a lease after it was renewed.
async fn lease_after_renewal(fixture: &Fixture, lease: &str) -> Option<String> {
    let version = async || {
        leases(fixture)
            .get(lease)
            .await
            .unwrap()
            .metadata
            .resource_version
    };
    let before = version().await;
    until(async || version().await != before).await;
    holder(fixture, lease).await
}

// R81, R177
#[steersman_testing::test]
async fn guarantee_10_a_replica_that_loses_one_lease_keeps_the_others(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    create_map(&fixture, "a").await;
    let (one, mut ticks) = replica(&fixture, &proxy, "one").await;
    let running = one.run();
    signed(&fixture, "a", "one").await;
    ticks.wait_for(|runs| *runs == 1).await.unwrap();
    assert!(one.manager.leads("maps") && one.manager.leads("ticker"));
    let leases_made = |all: &[Exchange]| {
        all.iter()
            .filter(|one| is_about_lease(one) && one.method == "POST")
            .count()
    };
    assert_eq!(leases_made(&proxy.exchanges()), 2, "what needs none has none");

    // Another one takes one of them: what it is for ends here, and no other.
    give(&fixture, MAPS, "another").await;
    until(async || !one.manager.leads("maps")).await;
    create_map(&fixture, "b").await;
    let watches = one.watches(&proxy).len();
    assert_eq!(holder(&fixture, TICKER).await.as_deref(), Some("one"));
    assert!(one.manager.leads("ticker") && *ticks.borrow() == 1);
    let standing = one.manager.statuses().of("maps");
    assert_eq!(standing, Some(RunnableStatus::Ready), "it stays warm");

    // The other one too, and both come back.
    give(&fixture, TICKER, "another").await;
    ticks.wait_for(|runs| *runs == 0).await.unwrap();
    give(&fixture, MAPS, "").await;
    signed(&fixture, "b", "one").await;
    assert_eq!(one.watches(&proxy).len(), watches, "it opened no watch for that");
    let status = |lease: &str| {
        figure(
            &one.manager,
            &format!(r#"leader_election_master_status{{name="{lease}"}}"#),
        )
    };
    assert_eq!((status(MAPS), status(TICKER)), (Some(1.0), Some(0.0)));
    give(&fixture, TICKER, "").await;
    ticks.wait_for(|runs| *runs == 1).await.unwrap();

    running.stop().await.unwrap();
    for lease in [MAPS, TICKER] {
        assert_eq!(
            holder(&fixture, lease).await.unwrap_or_default(),
            "",
            "{lease} is given up"
        );
    }
    assert!(!one.manager.leads("maps"));
}

// R68, R81
#[steersman_testing::test]
async fn replicas_share_the_work_and_acquire_released_leases(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    create_map(&fixture, "a").await;
    let (one, mut ticks_of_one) = replica(&fixture, &proxy, "one").await;
    let running_one = one.run();
    signed(&fixture, "a", "one").await;
    ticks_of_one.wait_for(|runs| *runs == 1).await.unwrap();
    let (two, mut ticks_of_two) = replica(&fixture, &proxy, "two").await;
    let running_two = two.run();
    until(async || two.manager.statuses().of("maps") == Some(RunnableStatus::Ready)).await;
    // One is left with the half of it.
    give(&fixture, MAPS, "two").await;
    until(async || !one.manager.leads("maps")).await;
    give(&fixture, MAPS, "").await;
    until(async || one.manager.leads("maps") || two.manager.leads("maps")).await;
    assert_ne!(one.manager.leads("maps"), two.manager.leads("maps"));
    assert!(one.manager.leads("ticker") && !two.manager.leads("ticker"));
    // And two takes over the rest.
    running_one.stop().await.unwrap();
    assert_eq!(*ticks_of_one.borrow(), 0);
    ticks_of_two.wait_for(|runs| *runs == 1).await.unwrap();
    create_map(&fixture, "b").await;
    signed(&fixture, "b", "two").await;
    running_two.stop().await.unwrap();
}

#[steersman_testing::test]
async fn with_a_lease_for_each_runnable_the_manager_itself_does_not_lead(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (one, _) = replica(&fixture, &proxy, "one").await;
    hold(&fixture, TICKER).await;
    let running = one.run();
    one.manager.elected_in("maps").await;
    assert!(one.manager.leads("maps") && !one.manager.leads("ticker"));
    assert!(one.manager.elected_in("ticker").now_or_never().is_none());
    assert!(!one.manager.is_leading());
    assert!(one.manager.elected().now_or_never().is_none());
    assert!(one.manager.leadership_lost().now_or_never().is_some());
    give(&fixture, TICKER, "").await;
    one.manager.elected_in("ticker").await;
    running.stop().await.unwrap();
    assert!(one.manager.elected_in("maps").now_or_never().is_none());
}

#[steersman_testing::test]
async fn with_one_lease_for_all_runnables_follow_the_leader(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let election = steady(&fixture, "one");
    let one = Replica::new(&fixture, &proxy, election, "one", |builder| builder).await;
    assert!(!one.manager.leads("maps"));
    let running = one.run();
    one.manager.elected_in("maps").await;
    assert!(one.manager.leads("maps") && one.manager.is_leading());
    running.stop().await.unwrap();
}

// R85, R177
#[steersman_testing::test]
async fn a_standby_opens_no_watch_for_cold_controllers(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    create_map(&fixture, "a").await;
    let (one, _) = replica(&fixture, &proxy, "one").await;
    let (secrets, lease) = (managed::Log::new(), "operator--secrets");
    hold(&fixture, lease).await;
    Controller::of::<Secret>("secrets")
        .add_to(&one.manager, secrets)
        .unwrap();
    let running = one.run();
    // All that runs at the start has begun.
    signed(&fixture, "a", "one").await;
    let of_secrets = |exchange: &Exchange| exchange.path.ends_with("/secrets");
    assert!(!one.requests(&proxy).iter().any(of_secrets));
    give(&fixture, lease, "").await;
    proxy
        .wait_for(|all| all.iter().any(of_secrets).then_some(()))
        .await;
    running.stop().await.unwrap();
}
