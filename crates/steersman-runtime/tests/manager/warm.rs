// SPDX-License-Identifier: Apache-2.0
//! Standby replicas that are warm: what they have, what they say, and what they do when they win.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, managed, support};
use std::{
    io::{self, Write},
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use elected::{Replica, Sign, create_map, figure, held_by, leases, occupy, signed, steady, until, user};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::DeleteParams;
use managed::Log;
use steersman_runtime::{
    Addresses, BoxError, Controller, Election, Manager, ManagerBuilder, Options, RunContext, RunError,
    RunPolicy, RunnableStatus, run_fn,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Exchange, Fault, Matching},
};
use support::{HERE, get};
use tokio::sync::watch;

const DEPTH: &str = r#"workqueue_depth{controller="maps",name="maps",priority="-100"}"#;
const PENDING: &str = r#"controller_warm_pending{controller="maps",name="maps"}"#;
const QUEUED_SECONDS: &str = r#"workqueue_queue_duration_seconds_sum{controller="maps",name="maps"}"#;

/// A replica with a controller of config maps that signs, which is warm.
async fn signer(fixture: &Fixture, proxy: &FaultProxy, name: &str) -> Replica {
    let replica = Replica::new(fixture, proxy, steady(fixture, name), name, plain).await;
    Controller::of::<ConfigMap>("maps")
        .warm()
        .add_to(&replica.manager, Sign(name.to_owned()))
        .unwrap();
    replica
}

/// Returns true if a replica has observed the lease.
fn looked(all: &[Exchange]) -> bool {
    let mut watches = all.iter().filter(|one| one.is_watch());
    watches.any(|one| one.path.contains("/leases"))
}

fn plain(builder: ManagerBuilder) -> ManagerBuilder {
    builder
}

fn probed(builder: ManagerBuilder) -> ManagerBuilder {
    builder.health(HERE)
}

async fn probe(addresses: &Addresses, path: &str) -> (u16, String) {
    let reply = get(addresses.health.unwrap(), path).await;
    (reply.status, reply.body)
}

/// How often a kind was asked for: once if its list is a part of its watch.
fn asked(requests: &[Exchange], kind: &str) -> usize {
    let reads = requests.iter().filter(|one| !one.is_write());
    reads.filter(|one| one.path.ends_with(kind)).count()
}

/// All that was logged in this process.
fn logged() -> &'static Mutex<Vec<u8>> {
    static LOGGED: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    static ONCE: Once = Once::new();
    struct Writer;
    impl Write for Writer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            LOGGED.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    ONCE.call_once(|| {
        let to_memory = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Writer);
        to_memory
            .with_env_filter("steersman_runtime=debug")
            .try_init()
            .unwrap();
    });
    &LOGGED
}

// R77, R79, R80, R84, R86, R89, R92, D26
#[steersman_testing::test]
async fn a_warm_standby_has_all_ready_and_writes_nothing_before_it_wins(fixture: Fixture) {
    const OBJECTS: u16 = 50;
    let proxy = fixture.proxy().await;
    let names: Vec<_> = (0..OBJECTS).map(|number| format!("map-{number}")).collect();
    for name in &names {
        create_map(&fixture, name).await;
    }
    let one = signer(&fixture, &proxy, "one").await;
    let running_one = one.run();
    for name in &names {
        signed(&fixture, name, "one").await;
    }
    let two = signer(&fixture, &proxy, "two").await;
    let running_two = two.run();
    until(async || figure(&two.manager, PENDING) == Some(f64::from(OBJECTS))).await;
    assert_eq!(
        figure(&two.manager, DEPTH),
        Some(0.0),
        "nothing that could be done now"
    );
    // So long it waits, and none of it counts as time in the queue.
    let wait = Duration::from_secs(3);
    tokio::time::sleep(wait).await;
    assert!(two.writes(&proxy).is_empty());
    assert_eq!(asked(&two.requests(&proxy), "/configmaps"), 1);

    running_one.stop().await.unwrap();
    for name in &names {
        signed(&fixture, name, "two").await;
    }
    assert_eq!(figure(&two.manager, PENDING), Some(0.0));
    let queued = figure(&two.manager, QUEUED_SECONDS).unwrap();
    let queued = Duration::from_secs_f64(queued);
    assert!(
        queued < u32::from(OBJECTS) * wait,
        "all keys waited {queued:?} together"
    );
    assert_eq!(asked(&two.requests(&proxy), "/configmaps"), 1);
    running_two.stop().await.unwrap();
}

// R83, R88
#[steersman_testing::test]
async fn warm_runnables_start_between_all_replicas_and_leader_elected(fixture: Fixture) {
    let (proxy, log) = (fixture.proxy().await, logged());
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", plain).await;
    let (said, mut heard) = watch::channel(Vec::new());
    let said = Arc::new(said);
    // In an order that is not that of the phases.
    let names = ["leader", "warm", "always"].map(|name| format!("{name} of {}", fixture.namespace()));
    let needs = [RunPolicy::LeaderElected, RunPolicy::Warm, RunPolicy::AllReplicas];
    for (name, needs) in names.iter().zip(needs) {
        let said = Arc::clone(&said);
        let runnable = run_fn(name, move |cx: RunContext| {
            let said = Arc::clone(&said);
            async move {
                said.send_modify(|said| said.push((needs, "runs")));
                cx.ready();
                if needs == RunPolicy::Warm {
                    let term = cx.leadership().term().await;
                    said.send_modify(|said| said.push((needs, "acts")));
                    drop(term);
                }
                cx.stop().requested().await;
                Ok::<(), BoxError>(())
            }
        });
        one.manager.add(runnable.with_policy(needs)).unwrap();
    }
    occupy(&fixture, 3600).await;
    let running = one.run();
    heard.wait_for(|said| said.len() == 2).await.unwrap();
    proxy.wait_for(|all| looked(all).then_some(())).await;
    assert!(
        heard
            .borrow()
            .iter()
            .all(|said| *said != (RunPolicy::LeaderElected, "runs"))
    );
    leases(&fixture)
        .delete(elected::LEASE, &DeleteParams::default())
        .await
        .unwrap();
    // A lease that was deleted is held by the one who was seen to hold it. So the holder has to give it up.
    let free = serde_json::json!({"metadata": {"name": elected::LEASE}, "spec": {"holderIdentity": ""}});
    let free = serde_json::from_value(free).unwrap();
    leases(&fixture).create(&Default::default(), &free).await.unwrap();
    heard.wait_for(|said| said.len() == 4).await.unwrap();
    for said in [(RunPolicy::Warm, "acts"), (RunPolicy::LeaderElected, "runs")] {
        assert!(heard.borrow()[2..].contains(&said));
    }
    let log = String::from_utf8_lossy(&log.lock().unwrap()).into_owned();
    let places = names.map(|name| log.find(&format!("starting runnable name=\"{name}\"")).unwrap());
    assert!(places[2] < places[1] && places[1] < places[0], "{places:?}");
    running.stop().await.unwrap();
}

// R87, R93
#[steersman_testing::test]
async fn readiness_waits_for_warmth_and_names_the_kind_while_the_process_is_healthy(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stall = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::stall());
    let barrier = Duration::from_millis(100);
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        probed(builder).cache_sync_timeout(barrier)
    })
    .await;
    Controller::of::<ConfigMap>("maps")
        .warm()
        // Long enough to be seen on a busy machine.
        .sync_timeout(Duration::from_secs(5))
        .add_to(&one.manager, Log::new())
        .unwrap();
    let addresses = one.manager.addresses();
    let running = one.run();
    stall.hit().await;
    until(async || {
        probe(&addresses, "/readyz/warm")
            .await
            .1
            .contains("maps: waiting for configmaps/v1")
    })
    .await;
    let (status, body) = probe(&addresses, "/readyz").await;
    assert_eq!(status, 500);
    assert!(body.contains("[-]runnables failed: "), "{body}");
    assert!(
        body.contains("[-]warm failed: maps: waiting for configmaps/v1"),
        "{body}"
    );
    assert_eq!(probe(&addresses, "/healthz").await, (200, "ok".to_owned()));
    // A warm-up that takes too long is called so. It is not waited for any more, and still not ready.
    until(async || {
        let (status, body) = probe(&addresses, "/readyz").await;
        let said = "[-]runnables failed: maps: degraded: configmaps/v1 not in sync in time";
        status == 500 && body.contains(said) && body.contains("[+]warm ok")
    })
    .await;
    assert_eq!(probe(&addresses, "/readyz/warm").await, (200, "ok".to_owned()));
    drop(stall);
    until(async || probe(&addresses, "/readyz").await.0 == 200).await;
    assert_eq!(probe(&addresses, "/readyz/warm").await, (200, "ok".to_owned()));
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn readiness_can_leave_warmth_out_for_those_whom_their_own_lists_need(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stall = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::stall());
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        probed(builder).ready_before_sync(true)
    })
    .await;
    Controller::of::<ConfigMap>("maps")
        .warm()
        .add_to(&one.manager, Log::new())
        .unwrap();
    let addresses = one.manager.addresses();
    let running = one.run();
    stall.hit().await;
    assert_eq!(probe(&addresses, "/readyz").await, (200, "ok".to_owned()));
    let (status, body) = probe(&addresses, "/readyz/warm").await;
    assert_eq!(
        (status, &*body),
        (500, "internal server error: caches are being filled\n")
    );
    drop(stall);
    until(async || probe(&addresses, "/readyz/warm").await.0 == 200).await;
    running.stop().await.unwrap();
}

// R90
#[steersman_testing::test]
async fn a_warm_up_that_is_forbidden_is_retried_unready_or_ends_the_run_if_strict(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    for is_strict in [false, true] {
        let name = if is_strict { "strict" } else { "patient" };
        let forbidden = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::answer(403));
        let one = Replica::new(&fixture, &proxy, steady(&fixture, name), name, probed).await;
        Controller::of::<ConfigMap>("maps")
            .warm()
            .options(Options::new().strict(is_strict))
            .add_to(&one.manager, Log::new())
            .unwrap();
        let addresses = one.manager.addresses();
        let running = one.run();
        if is_strict {
            let error = running.ended().await.unwrap_err();
            assert!(
                matches!(&error, RunError::Runnable { name, .. } if name == "maps"),
                "{error}"
            );
            continue;
        }
        until(async || {
            let (status, body) = probe(&addresses, "/readyz").await;
            status == 500 && body.contains("[-]warm failed: maps: degraded: configmaps/v1:")
        })
        .await;
        drop(forbidden);
        until(async || probe(&addresses, "/readyz").await.0 == 200).await;
        running.stop().await.unwrap();
    }
}

/// Shows that a replica without read permission for a kind leaves a lease to others only until its patience ends.
async fn leads_without(fixture: &Fixture, election: Election, leads: impl Fn(&Manager) -> bool) {
    let proxy = fixture.proxy().await;
    let _forbidden = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::answer(403));
    // Its patience outlasts the test.
    let election = election.unsynced_acquire_delay(Duration::from_secs(3600));
    let one = Replica::new(fixture, &proxy, election, "one", probed).await;
    Controller::of::<ConfigMap>("maps")
        .warm()
        .sync_timeout(Duration::from_millis(500))
        .add_to(&one.manager, Log::new())
        .unwrap();
    let addresses = one.manager.addresses();
    let running = one.run();
    until(async || leads(&one.manager)).await;
    until(async || probe(&addresses, "/readyz/warm").await.0 == 200).await;
    let (status, body) = probe(&addresses, "/readyz").await;
    assert_eq!(status, 500, "{body}");
    assert!(
        body.contains("[-]runnables failed: maps: degraded: configmaps/v1: "),
        "{body}"
    );
    assert!(body.contains("[+]warm ok"), "{body}");
    running.stop().await.unwrap();
}

// R90
#[steersman_testing::test]
async fn a_forbidden_kind_counts_as_warm_after_the_sync_timeout(fixture: Fixture) {
    leads_without(&fixture, steady(&fixture, "one"), Manager::is_leading).await;
}

// R90, R177
#[steersman_testing::test]
async fn a_forbidden_kind_counts_as_warm_after_the_sync_timeout_with_a_lease_for_each_runnable(
    fixture: Fixture,
) {
    let election = steady(&fixture, "one").per_runnable();
    leads_without(&fixture, election, |manager| manager.leads("maps")).await;
}

// R90, R94, D16
#[steersman_testing::test]
async fn a_cluster_that_stalls_or_refuses_past_the_sync_timeout_leaves_the_replica_warm(fixture: Fixture) {
    for (name, fault) in [("one", Fault::stall()), ("two", Fault::answer(403))] {
        let (proxy, far_proxy) = (fixture.proxy().await, fixture.proxy().await);
        let trouble = far_proxy.inject(Matching::method("GET").path("/configmaps"), fault);
        // Its patience outlasts the test.
        let election = steady(&fixture, name).unsynced_acquire_delay(Duration::from_secs(3600));
        let one = Replica::new(&fixture, &proxy, election, name, |builder| {
            probed(builder).cache_sync_timeout(Duration::from_millis(100))
        })
        .await;
        let far = managed::cluster_through(&fixture, &far_proxy, "far").await;
        one.manager.add_cluster(far).unwrap();
        Controller::of::<ConfigMap>("maps")
            .on_every_cluster()
            .warm()
            .sync_timeout(Duration::from_millis(500))
            .add_to(&one.manager, Sign(name.to_owned()))
            .unwrap();
        let addresses = one.manager.addresses();
        let running = one.run();
        one.manager.elected().await;
        let shows = async |line: &str| {
            let (status, body) = probe(&addresses, "/readyz?verbose").await;
            assert!(body.contains("[+]warm ok"), "{body}");
            status == 200 && body.contains(line)
        };
        until(async || shows("runnable maps: partially degraded: ").await).await;
        drop(trouble);
        until(async || shows("runnable maps: ready\n").await).await;
        running.stop().await.unwrap();
    }
}

/// A warm-up from a function that the test controls.
fn warming<F, Fut>(one: &Replica, then: F) -> watch::Sender<bool>
where
    F: Fn(RunContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let (go_on, told) = watch::channel(false);
    let then = Arc::new(then);
    let runnable = run_fn("loader", move |cx: RunContext| {
        let (mut told, then) = (told.clone(), Arc::clone(&then));
        async move {
            told.wait_for(|told| *told).await?;
            then(cx).await
        }
    });
    one.manager.add(runnable.with_policy(RunPolicy::Warm)).unwrap();
    go_on
}

/// Shows that a replica with such a warm-up is cold until the test continues it, and leads after that.
async fn is_cold_until(fixture: &Fixture, warming: impl FnOnce(&Replica) -> watch::Sender<bool>) {
    let proxy = fixture.proxy().await;
    let election = steady(fixture, "one").unsynced_acquire_delay(Duration::from_secs(3600));
    let one = Replica::new(fixture, &proxy, election, "one", probed).await;
    let go_on = warming(&one);
    let addresses = one.manager.addresses();
    let running = one.run();
    until(async || {
        let (status, body) = probe(&addresses, "/readyz/warm").await;
        assert_eq!(status, 500, "{body}");
        body.contains("loader: waiting for its start") && one.manager.statuses().of("loader").is_some()
    })
    .await;
    // It has seen that the lease is free.
    let looked = |all: &[Exchange]| {
        let watches = |one: &Exchange| one.path.contains("/leases") && one.is_watch();
        all.iter().any(watches)
    };
    proxy.wait_for(|all| looked(all).then_some(())).await;
    assert!(!one.manager.is_leading());
    go_on.send_replace(true);
    one.manager.elected().await;
    assert_eq!(probe(&addresses, "/readyz").await.0, 200);
    running.stop().await.unwrap();
}

// R83
#[steersman_testing::test]
async fn a_warm_function_is_awaited_until_it_reports_ready(fixture: Fixture) {
    is_cold_until(&fixture, |one| {
        warming(one, async |cx| {
            cx.ready();
            cx.stop().requested().await;
            Ok(())
        })
    })
    .await;
}

// R83
#[steersman_testing::test]
async fn a_warm_up_that_has_ended_is_not_waited_for(fixture: Fixture) {
    is_cold_until(&fixture, |one| warming(one, async |_| Ok(()))).await;
}

// R85, R91
#[steersman_testing::test]
async fn controllers_without_leadership_work_at_once_and_override_defaults(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    create_map(&fixture, "a").await;
    occupy(&fixture, 3600).await;
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        builder.controllers(Options::new().run_policy(RunPolicy::Warm))
    })
    .await;
    let (always, cold) = (Log::new(), Log::new());
    Controller::of::<ConfigMap>("always")
        .without_leadership()
        .add_to(&one.manager, always.clone())
        .unwrap();
    Controller::of::<Secret>("cold")
        .options(Options::new().run_policy(RunPolicy::LeaderElected))
        .add_to(&one.manager, cold.clone())
        .unwrap();
    Controller::of::<ConfigMap>("maps")
        .add_to(&one.manager, Log::new())
        .unwrap();
    let running = one.run();
    always.saw("a", Some("1")).await;
    until(async || figure(&one.manager, PENDING) == Some(1.0)).await;
    let requests = one.requests(&proxy);
    assert_eq!(asked(&requests, "/configmaps"), 1);
    assert!(
        requests.iter().all(|one| !one.path.contains("secrets")),
        "it waits for leadership, and is not warm"
    );
    running.stop().await.unwrap();
}

// R63, R91
#[steersman_testing::test]
async fn without_an_election_a_warm_controller_works_at_once(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    create_map(&fixture, "a").await;
    let identity = user(&fixture, "one").await;
    let cluster = elected::cluster_of(&fixture, &proxy, &identity);
    let manager = steersman_runtime::Manager::builder()
        .cluster(cluster)
        .build()
        .await
        .unwrap();
    let log = Log::new();
    Controller::of::<ConfigMap>("maps")
        .warm()
        .add_to(&manager, log.clone())
        .unwrap();
    let running = managed::run(&manager);
    manager.elected().await;
    log.saw("a", Some("1")).await;
    assert_eq!(proxy.exchanges().iter().filter(|one| one.is_watch()).count(), 1);
    running.stop().await.unwrap();
}

// R94, R95
#[steersman_testing::test]
async fn a_lease_acquired_during_a_list_delays_only_runnables_that_need_the_list(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    create_map(&fixture, "a").await;
    let stall = proxy.inject(Matching::method("GET").path("/secrets"), Fault::stall());
    let election = steady(&fixture, "one").unsynced_acquire_delay(Duration::ZERO);
    let one = Replica::new(&fixture, &proxy, election, "one", |builder| {
        builder.cache_sync_timeout(Duration::from_millis(100))
    })
    .await;
    let (maps, secrets) = (Log::new(), watch::Sender::new(0));
    Controller::of::<ConfigMap>("maps")
        .warm()
        .add_to(&one.manager, maps.clone())
        .unwrap();
    let counts = secrets.clone();
    let counting = steersman_runtime::reconcile_fn(
        move |_: steersman_runtime::Request, _: steersman_runtime::Context| {
            counts.send_modify(|count| *count += 1);
            async { Ok::<_, BoxError>(steersman_core::Action::await_change()) }
        },
    );
    Controller::of::<Secret>("secrets")
        .warm()
        .add_to(&one.manager, counting)
        .unwrap();
    let secret = serde_json::json!({"metadata": {"name": "s", "namespace": fixture.namespace()}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let kube = fixture.client();
    kube::Api::<Secret>::namespaced(kube, fixture.namespace())
        .create(&Default::default(), &secret)
        .await
        .unwrap();
    let running = one.run();
    held_by(&fixture, "one").await;
    maps.saw("a", Some("1")).await;
    assert!(matches!(
        one.manager.statuses().of("secrets"),
        Some(RunnableStatus::Waiting { .. })
    ));
    assert_eq!(*secrets.borrow(), 0);
    drop(stall);
    secrets.subscribe().wait_for(|count| *count == 1).await.unwrap();
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_8_a_cold_replica_leaves_the_lease_to_a_warm_one_for_a_time(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let names = ["cold", "warm"];
    let identity = format!("system:serviceaccount:{}:cold", fixture.namespace());
    let _stall = proxy.inject(
        Matching::method("GET").path("/configmaps").identity(identity),
        Fault::stall(),
    );
    let mut replicas = Vec::new();
    for name in names {
        let election = steady(&fixture, name).unsynced_acquire_delay(Duration::from_secs(5));
        let replica = Replica::new(&fixture, &proxy, election, name, plain).await;
        Controller::of::<ConfigMap>("maps")
            .warm()
            .add_to(&replica.manager, Log::new())
            .unwrap();
        replicas.push(replica);
    }
    let (warm, cold) = (replicas.pop().unwrap(), replicas.pop().unwrap());
    let running_cold = cold.run();
    proxy.wait_for(|all| looked(all).then_some(())).await;
    let running_warm = warm.run();
    warm.manager.elected().await;
    assert!(!cold.manager.is_leading());
    // It has to lead when no other replica does.
    running_warm.stop().await.unwrap();
    cold.manager.elected().await;
    running_cold.stop().await.unwrap();
}
