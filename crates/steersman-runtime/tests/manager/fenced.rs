// SPDX-License-Identifier: Apache-2.0
//! Writes of a leader after its deadline, after a suspend, and while its threads are busy.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, managed, support};
use std::{sync::Arc, thread, time::Duration};

use elected::{Replica, create_map, figure, is_about_lease, lease, leases, steady, until, user};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use managed::Running;
use serde_json::json;
use steersman_cluster::{Cluster, EventType};
use steersman_core::{Action, Clock, ObjectKey, Spawner, TestClock};
use steersman_runtime::{
    BoxError, Context, Controller, Election, LeaseLostPolicy, Manager, Reconciler, Request, RunContext,
    RunPolicy, Runnable, run_fn,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Ended, Exchange, Fault, Matching},
};
use tokio::sync::watch;

const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(10);

/// Writes on each request of the test, and reports the results.
#[derive(Clone)]
struct Writer {
    told: watch::Receiver<u32>,
    wrote: Arc<watch::Sender<Vec<Result<(), bool>>>>,
}

impl Writer {
    fn new() -> (watch::Sender<u32>, Self) {
        let (tell, told) = watch::channel(0);
        let wrote = Arc::new(watch::Sender::new(Vec::new()));
        (tell, Self { told, wrote })
    }

    /// Waits for the outcome of a write: whether it was done, or else whether the fence held it back.
    async fn outcome(&self, number: usize) -> Result<(), bool> {
        let mut wrote = self.wrote.subscribe();
        wrote.wait_for(|wrote| wrote.len() > number).await.unwrap()[number]
    }
}

impl Reconciler for Writer {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let mut told = self.told.clone();
        loop {
            tokio::select! {
                biased;
                _ = cx.stop().requested() => return Ok(Action::await_change()),
                changed = told.changed() => changed?,
            }
            let patch = Patch::Merge(json!({"data": {"written": format!("{}", *told.borrow())}}));
            let written = cx.client().patch::<ConfigMap>(request.key(), &patch).await;
            let outcome = written.map(|_| ()).map_err(|error| error.is_fenced());
            let reason = format!("Written{}", *told.borrow());
            let map = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(request.name().to_owned()),
                    namespace: Some(request.namespace().to_owned()),
                    ..ObjectMeta::default()
                },
                ..ConfigMap::default()
            };
            cx.recorder()
                .event(&map, EventType::Normal, &reason, "Writing", "");
            cx.recorder().flush().await;
            self.wrote.send_modify(|wrote| wrote.push(outcome));
        }
    }
}

/// A leader on a clock that the test moves, in the middle of a reconcile.
struct Stage {
    clock: TestClock,
    proxy: FaultProxy,
    tell: watch::Sender<u32>,
    writer: Writer,
    replica: Replica,
    running: Running,
}

async fn stage(fixture: &Fixture) -> Stage {
    let (clock, proxy, replica) = candidate(fixture, |election| election).await;
    lead(clock, proxy, replica).await
}

async fn lead(clock: TestClock, proxy: FaultProxy, replica: Replica) -> Stage {
    let (tell, writer) = Writer::new();
    Controller::of::<ConfigMap>("writer")
        .warm()
        .add_to(&replica.manager, writer.clone())
        .unwrap();
    let running = replica.run();
    replica.manager.elected().await;
    tell.send_replace(1);
    assert_eq!(writer.outcome(0).await, Ok(()));
    Stage {
        clock,
        proxy,
        tell,
        writer,
        replica,
        running,
    }
}

/// A replica on a clock that the test moves, and a map that it can write.
async fn candidate(
    fixture: &Fixture,
    more: impl FnOnce(Election) -> Election,
) -> (TestClock, FaultProxy, Replica) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    create_map(fixture, "a").await;
    let identity = user(fixture, "one").await;
    proxy.announce(&identity);
    let config = proxy.endpoint().config(&identity).unwrap();
    let cluster = managed::cluster_builder(fixture, "default")
        .config(config)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let election = steady(fixture, "one")
        .lease_duration(LEASE)
        .renew_deadline(RENEW)
        .unsynced_acquire_delay(Duration::ZERO)
        .retry_period(Duration::from_secs(2));
    let manager = Manager::builder()
        .cluster(cluster.clone())
        .leader_election(more(election));
    let manager = manager.clock(Arc::new(clock.clone())).health(support::HERE);
    let manager = manager.build().await.unwrap();
    let replica = Replica {
        manager,
        cluster,
        user: identity.name().to_owned(),
    };
    (clock, proxy, replica)
}

fn patches(proxy: &FaultProxy) -> Vec<Exchange> {
    let all = proxy.exchanges().into_iter();
    all.filter(|one| one.method == "PATCH").collect()
}

fn events(proxy: &FaultProxy) -> usize {
    let all = proxy.exchanges().into_iter();
    all.filter(|one| one.is_write() && one.path.ends_with("/events"))
        .count()
}

// R68
#[steersman_testing::test]
async fn guarantee_1_a_machine_that_was_suspended_writes_nothing_when_it_wakes_up(fixture: Fixture) {
    let stage = stage(&fixture).await;
    let told = patches(&stage.proxy)[0].query.clone();
    assert!(
        told.contains("timeout=10000ms"),
        "the server knows how long: {told}"
    );
    assert_eq!(events(&stage.proxy), 1);
    // No timer counts this.
    stage.clock.suspend(RENEW);
    assert!(!stage.replica.manager.is_leading());
    stage.tell.send_replace(2);
    assert_eq!(stage.writer.outcome(1).await, Err(true));
    assert_eq!(patches(&stage.proxy).len(), 1);
    assert_eq!(events(&stage.proxy), 1, "events are writes, too");
    // The election notices with its next timer, before it sends anything. No other replica took the lease, so it leads again.
    let renewals = |all: &[Exchange]| {
        all.iter()
            .filter(|one| is_about_lease(one) && one.is_write())
            .count()
    };
    let before = renewals(&stage.proxy.exchanges());
    stage.clock.advance(Duration::from_secs(2));
    stage.replica.manager.elected().await;
    until(async || stage.replica.manager.is_leading()).await;
    assert_eq!(
        renewals(&stage.proxy.exchanges()),
        before + 1,
        "the one by which it was taken again"
    );
    assert_eq!(lease(&fixture).await.spec.unwrap().lease_transitions, Some(0));
    stage.running.stop().await.unwrap();
}

/// Writes what it is told to, as one who knows nothing of leases: an error is its end. Says how often it ran, and how many
/// of the runs last.
fn careless(
    cluster: &Cluster,
    key: ObjectKey,
    needs: RunPolicy,
    told: watch::Receiver<u32>,
) -> (impl Runnable, watch::Receiver<(u32, u32)>) {
    struct Lasting(Arc<watch::Sender<(u32, u32)>>);
    impl Drop for Lasting {
        fn drop(&mut self) {
            self.0.send_modify(|(_, lasting)| *lasting -= 1);
        }
    }
    let (sender, counts) = watch::channel((0, 0));
    let (sender, cluster) = (Arc::new(sender), cluster.clone());
    let runnable = run_fn("careless", move |cx: RunContext| {
        sender.send_modify(|(runs, lasting)| (*runs, *lasting) = (*runs + 1, *lasting + 1));
        let lasting = Lasting(Arc::clone(&sender));
        let (cluster, key, mut told) = (cluster.clone(), key.clone(), told.clone());
        async move {
            cx.ready();
            let _lasting = lasting;
            // A warm-up runnable has to wait for it; others have it.
            let _term = tokio::select! {
                biased;
                _ = cx.stop().requested() => return Ok::<_, BoxError>(()),
                term = cx.leadership().term() => term,
            };
            let client = cx.fenced(&cluster.client());
            loop {
                tokio::select! {
                    biased;
                    _ = cx.stop().requested() => return Ok::<_, BoxError>(()),
                    changed = told.changed() => changed?,
                }
                let written = told.borrow_and_update().to_string();
                let patch = Patch::Merge(json!({"data": {"written": written}}));
                client.patch::<ConfigMap>(&key, &patch).await?;
            }
        }
    });
    (runnable.with_policy(needs), counts)
}

/// Shows that the run continues when a leader fails because its writes are fenced.
async fn goes_on_after_a_suspend(
    fixture: &Fixture,
    needs: RunPolicy,
    more: impl FnOnce(Election) -> Election,
) {
    let (clock, _proxy, replica) = candidate(fixture, more).await;
    let (tell, told) = watch::channel(0);
    let (runnable, mut counts) = careless(&replica.cluster, managed::key(fixture, "a"), needs, told);
    replica.manager.add(runnable).unwrap();
    let mut running = replica.run();
    replica.manager.elected_in("careless").await;
    let live = replica.cluster.live();
    let mut wrote = async |number: &str| {
        until(async || {
            assert!(!running.has_ended(), "the run goes on");
            let map = live.get::<ConfigMap>(&managed::key(fixture, "a")).await.unwrap();
            let data = map.as_ref().and_then(|map| map.data.as_ref());
            data.and_then(|data| data.get("written"))
                .is_some_and(|written| written == number)
        })
        .await;
    };
    tell.send_replace(1);
    wrote("1").await;
    clock.suspend(RENEW);
    tell.send_replace(2);
    // It has failed before anybody knows that the lease is lost.
    counts.wait_for(|counts| *counts == (1, 0)).await.unwrap();
    clock.advance(Duration::from_secs(2));
    wrote("2").await;
    assert_eq!(*counts.borrow(), (2, 1), "it runs in the next term");
    running.stop().await.unwrap();
}

// R68, R177
#[steersman_testing::test]
async fn guarantee_5_a_leader_that_fails_on_a_fenced_write_runs_again_in_the_next_term(fixture: Fixture) {
    goes_on_after_a_suspend(&fixture, RunPolicy::LeaderElected, |election| election).await;
}

// R68, R177
#[steersman_testing::test]
async fn guarantee_5_a_leader_with_its_own_lease_that_fails_on_a_fenced_write_runs_again(fixture: Fixture) {
    goes_on_after_a_suspend(&fixture, RunPolicy::LeaderElected, Election::per_runnable).await;
}

// R68, R177, D14
#[steersman_testing::test]
async fn guarantee_5_a_warm_up_runnable_that_fails_because_it_is_fenced_runs_again(fixture: Fixture) {
    goes_on_after_a_suspend(&fixture, RunPolicy::Warm, |election| election).await;
}

// R68, R177, D14
#[steersman_testing::test]
async fn guarantee_5_a_fenced_warm_runnable_with_its_own_lease_runs_again(fixture: Fixture) {
    goes_on_after_a_suspend(&fixture, RunPolicy::Warm, Election::per_runnable).await;
}

/// A warm-up runnable that keeps a term after its end, until the test releases it or a stop is requested.
fn deaf(let_go: watch::Receiver<bool>) -> impl Runnable {
    let run = run_fn("deaf", move |cx: RunContext| {
        let mut let_go = let_go.clone();
        async move {
            cx.ready();
            let term = cx.leadership().term().await;
            tokio::select! {
                biased;
                _ = cx.stop().requested() => return Ok::<_, BoxError>(()),
                told = let_go.wait_for(|told| *told) => drop(told?),
            }
            drop(term);
            cx.stop().requested().await;
            Ok(())
        }
    });
    run.with_policy(RunPolicy::Warm)
}

const STEP_DOWN: Duration = Duration::from_secs(30);

/// A replica that has lost its lease while its work continues.
async fn zombie(
    fixture: &Fixture,
    more: impl FnOnce(Election) -> Election,
) -> (TestClock, FaultProxy, Replica, Running, watch::Sender<bool>) {
    let more = |election: Election| more(election.step_down_timeout(STEP_DOWN));
    let (clock, proxy, replica) = candidate(fixture, more).await;
    let (let_go, told) = watch::channel(false);
    replica.manager.add(deaf(told)).unwrap();
    let running = replica.run();
    replica.manager.elected().await;
    steal_lease(fixture).await;
    replica.manager.leadership_lost().await;
    (clock, proxy, replica, running, let_go)
}

// R68, R177, D12
#[steersman_testing::test]
async fn guarantee_5_leader_work_that_does_not_end_fails_readiness_and_then_liveness(fixture: Fixture) {
    let (clock, _proxy, replica, running, let_go) = zombie(&fixture, |election| election).await;
    let probe = async |path: &str| {
        let health = replica.manager.addresses().health.unwrap();
        support::get(health, path).await
    };
    let lost = clock.now();
    assert_eq!(probe("/readyz").await.status, 200);
    until(async || {
        clock.advance(Duration::from_secs(1));
        probe("/readyz").await.status == 500
    })
    .await;
    assert!(clock.now().saturating_since(lost) >= STEP_DOWN);
    let body = probe("/readyz").await.body;
    assert!(
        body.contains("leader work is still running 30s after the lease was lost; not contending"),
        "{body}"
    );
    assert_eq!(probe("/healthz").await.status, 200);
    until(async || {
        clock.advance(Duration::from_secs(1));
        probe("/healthz").await.status == 500
    })
    .await;
    assert!(clock.now().saturating_since(lost) >= STEP_DOWN * 2);
    let body = probe("/healthz").await.body;
    assert!(body.contains("[-]leader-election failed: lease "), "{body}");
    // Its work ends at last, and it takes part again.
    let_go.send_replace(true);
    until(async || probe("/healthz").await.status == 200 && probe("/readyz").await.status == 200).await;
    clock.advance(STEP_DOWN);
    replica.manager.elected().await;
    running.stop().await.unwrap();
}

// R177, D12
#[steersman_testing::test]
async fn guarantee_5_leader_work_that_does_not_end_ends_the_run_where_that_is_the_policy(fixture: Fixture) {
    let exit = |election: Election| election.on_lease_lost(LeaseLostPolicy::StepDownOrExit);
    let (clock, _proxy, _replica, mut running, _let_go) = zombie(&fixture, exit).await;
    let lost = clock.now();
    until(async || {
        clock.advance(Duration::from_secs(1));
        running.has_ended()
    })
    .await;
    assert!(clock.now().saturating_since(lost) >= STEP_DOWN * 2);
    let error = running.ended().await.unwrap_err().to_string();
    assert!(
        error.starts_with("leadership was lost: ") && error.ends_with("leader work did not end"),
        "{error}"
    );
}

/// Shows that a write without an answer is given up when renewals fail in this way.
async fn is_given_up_at_the_deadline(fixture: &Fixture, renewals: Fault) {
    let stage = stage(fixture).await;
    let refused = stage
        .proxy
        .inject(Matching::method("PUT").path("/leases"), renewals);
    let held = stage.proxy.inject(Matching::method("PATCH"), Fault::stall());
    stage.tell.send_replace(2);
    held.hit().await;
    stage.clock.advance(RENEW - Duration::from_millis(1));
    refused.hit().await;
    assert!(stage.replica.manager.is_leading(), "until the last moment");
    stage.clock.advance(Duration::from_millis(1));
    stage.replica.manager.leadership_lost().await;
    let given_up = |all: &[Exchange]| {
        let write = all.iter().rfind(|one| one.method == "PATCH");
        (write?.ended == Some(Ended::ClientGone)).then_some(())
    };
    stage.proxy.wait_for(given_up).await;
    drop((held, refused));
    stage.running.stop().await.unwrap();
}

// R68
#[steersman_testing::test]
async fn guarantee_1_a_write_that_is_under_way_is_given_up_at_the_deadline(fixture: Fixture) {
    is_given_up_at_the_deadline(&fixture, Fault::answer(503)).await;
}

// R68
#[steersman_testing::test]
async fn guarantee_1_also_if_renewals_are_not_answered_at_all(fixture: Fixture) {
    is_given_up_at_the_deadline(&fixture, Fault::stall()).await;
}

/// Gives the lease to a holder from the past, by the calendar of everybody.
async fn steal_lease(fixture: &Fixture) {
    let theft = json!({"spec": {
        "holderIdentity": "thief", "leaseDurationSeconds": 30,
        "acquireTime": "2000-01-01T00:00:00.000000Z", "renewTime": "2000-01-01T00:00:00.000000Z",
    }});
    leases(fixture)
        .patch(elected::LEASE, &PatchParams::default(), &Patch::Merge(&theft))
        .await
        .unwrap();
}

async fn delete_lease(fixture: &Fixture) {
    leases(fixture)
        .delete(elected::LEASE, &DeleteParams::default())
        .await
        .unwrap();
}

// R68, D17
#[steersman_testing::test]
async fn guarantee_11_a_leader_creates_its_deleted_lease_again_at_once(fixture: Fixture) {
    let stage = stage(&fixture).await;
    let before = lease(&fixture).await.metadata.uid;
    // Time stands still, so that no renewal is due.
    delete_lease(&fixture).await;
    elected::held_by(&fixture, "one").await;
    assert_ne!(lease(&fixture).await.metadata.uid, before);
    assert!(stage.replica.manager.is_leading());
    stage.tell.send_replace(2);
    assert_eq!(stage.writer.outcome(1).await, Ok(()));
    stage.running.stop().await.unwrap();
}

async fn writes_nothing_more(stage: Stage) {
    stage.tell.send_replace(2);
    stage.running.stop().await.unwrap();
    assert_eq!(patches(&stage.proxy).len(), 1);
}

// R68, D17
#[steersman_testing::test]
async fn guarantee_11_a_leader_whose_deleted_lease_another_replica_created_steps_down_at_once(
    fixture: Fixture,
) {
    let stage = stage(&fixture).await;
    let creation = Matching::method("POST").path("/leases");
    let _late = stage.proxy.inject(creation, Fault::delay(Duration::from_secs(2)));
    // Time stands still, so that no renewal is due.
    delete_lease(&fixture).await;
    elected::occupy(&fixture, 30).await;
    stage.replica.manager.leadership_lost().await;
    writes_nothing_more(stage).await;
}

// R68, D17
#[steersman_testing::test]
async fn guarantee_11_a_leader_that_reads_an_old_state_of_its_lease_continues(fixture: Fixture) {
    let (clock, proxy, replica) = candidate(&fixture, |election| election).await;
    let another = json!({"type": "MODIFIED", "object": {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": elected::LEASE, "namespace": fixture.namespace(), "resourceVersion": "1"},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 30},
    }});
    let stale = Fault::respond(200, "application/json", format!("{another}\n"));
    let stale = proxy.inject(Matching::watches().path("/leases").first(1), stale);
    let stage = lead(clock, proxy, replica).await;
    stale.hit().await;
    // It asks the server before it steps down.
    let is_read = |one: &Exchange| {
        one.method == "GET" && is_about_lease(one) && !one.is_watch() && one.status == Some(200)
    };
    let read = |all: &[Exchange]| all.iter().any(is_read).then_some(());
    stage.proxy.wait_for(read).await;
    stage.tell.send_replace(2);
    assert_eq!(stage.writer.outcome(1).await, Ok(()));
    assert!(stage.replica.manager.is_leading());
    stage.running.stop().await.unwrap();
}

// R68, D17
#[steersman_testing::test]
async fn a_leader_that_must_not_watch_steps_down_with_the_renewal_that_finds_another_lease(fixture: Fixture) {
    let (clock, proxy, replica) = candidate(&fixture, |election| election).await;
    let _forbidden = proxy.inject(Matching::watches().path("/leases"), Fault::answer(403));
    let stage = lead(clock, proxy, replica).await;
    delete_lease(&fixture).await;
    let creation = Matching::method("POST").path("/leases");
    let late = stage.proxy.inject(creation, Fault::delay(Duration::from_secs(2)));
    // A renewal is due, which finds no lease. Another replica creates it sooner.
    stage.clock.advance(Duration::from_secs(2));
    late.hit().await;
    elected::occupy(&fixture, 30).await;
    stage.replica.manager.leadership_lost().await;
    writes_nothing_more(stage).await;
}

// R177
#[steersman_testing::test]
async fn guarantee_2_the_times_in_a_lease_are_ignored(fixture: Fixture) {
    let stage = stage(&fixture).await;
    steal_lease(&fixture).await;
    stage.replica.manager.leadership_lost().await;
    // It has seen the lease when it watches what becomes of it, and waits for its end by its own clock. Another watch is
    // that of the leader, which might have opened more than one.
    let watches = |all: &[Exchange]| {
        all.iter()
            .filter(|one| is_about_lease(one) && one.is_watch())
            .count()
    };
    stage
        .proxy
        .wait_for(|all| (watches(all) >= 2).then_some(()))
        .await;
    stage.clock.suspend(Duration::from_secs(3600));
    stage.clock.advance(Duration::from_secs(29));
    assert!(!stage.replica.manager.is_leading());
    stage.clock.advance(Duration::from_secs(1));
    stage.replica.manager.elected().await;
    stage.running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_4_a_program_whose_threads_are_all_blocked_keeps_its_lease(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let identity = user(&fixture, "one").await;
    proxy.announce(&identity);
    let config = proxy.endpoint().config(&identity).unwrap();
    let election = steady(&fixture, "one");
    let (leads, mut is_leading) = watch::channel(None);
    let (blocked, mut was_blocked) = watch::channel(false);
    let (look, mut was_looked_at) = watch::channel(false);
    // The manager has a runtime of its own, so that only its own threads are blocked and not those of the server.
    let program = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let cluster = steersman_cluster::Cluster::new(config).unwrap();
            let manager = Manager::builder()
                .cluster(cluster)
                .leader_election(election)
                .build()
                .await
                .unwrap();
            let running = managed::run(&manager);
            manager.elected().await;
            leads.send_replace(Some(manager.clone()));
            let spawner = Spawner::current();
            // Longer than the lease lasts, on every worker.
            let block = || async { thread::sleep(Duration::from_secs(8)) };
            let tasks = [(); 2].map(|()| spawner.spawn("blocking", block()));
            block().await;
            until(async || tasks.iter().all(steersman_core::Task::is_finished)).await;
            blocked.send_replace(true);
            was_looked_at.changed().await.unwrap();
            running.stop().await.unwrap();
        });
    });
    let manager = is_leading
        .wait_for(Option::is_some)
        .await
        .unwrap()
        .clone()
        .unwrap();
    let transitions = lease(&fixture).await.spec.unwrap().lease_transitions;
    let election = steady(&fixture, "two");
    let standby = Replica::new(&fixture, &proxy, election, "two", |builder| builder).await;
    let running = standby.run();
    was_blocked.changed().await.unwrap();
    assert!(!standby.manager.is_leading() && manager.is_leading());
    let slow = r#"leader_election_slowpath_total{name="operator"}"#;
    assert_eq!(figure(&manager, slow), Some(0.0));
    assert_eq!(lease(&fixture).await.spec.unwrap().lease_transitions, transitions);
    // It continues as before, and releases the lease.
    look.send_replace(true);
    standby.manager.elected().await;
    running.stop().await.unwrap();
    tokio::task::spawn_blocking(|| program.join().unwrap())
        .await
        .unwrap();
}
