// SPDX-License-Identifier: Apache-2.0
//! Caches are filled before those begin that read from them, at the start and later.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, kinds, managed, support};
use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::stream;
use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cache::Resource;
use steersman_cluster::Cluster;
use steersman_core::{Presence, PresenceStatus, TestClock};
use steersman_endpoints::{Checks, Routes, Server};
use steersman_runtime::{
    BoxError, CacheRequirement, Conditional, Controller, Manager, ManagerBuilder, RunCondition, RunContext,
    RunError, RunPolicy, Runnable, RunnableStatus, dynamic, run_fn,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Exchange, Fault, Injected, Matching},
};

use kinds::{TestKind, Uids};
use managed::{Log, Steps, cluster, cluster_builder, cluster_through, let_go_on, run, until};
use support::{HERE, get};

/// The limit does not pass during a test: a start has another reason.
const FAR_AWAY: Duration = Duration::from_secs(3600);

fn patient(cluster: Cluster) -> ManagerBuilder {
    Manager::builder()
        .cluster(cluster)
        .cache_sync_timeout(FAR_AWAY)
        .health(HERE)
}

/// Says when it runs.
fn task(name: &str, steps: &Steps) -> impl Runnable {
    with_policy(RunPolicy::AllReplicas, name, steps)
}

fn with_policy(needs: RunPolicy, name: &str, steps: &Steps) -> impl Runnable {
    let (steps, called) = (steps.clone(), name.to_owned());
    let run = move |cx: RunContext| {
        steps.add(called.clone());
        async move {
            cx.stop().requested().await;
            Ok::<(), BoxError>(())
        }
    };
    run_fn(name, run).with_policy(needs)
}

async fn ready(manager: &Manager, name: &str) {
    let is_ready = |standing: &RunnableStatus| *standing == RunnableStatus::Ready;
    let standings = manager.statuses();
    standings.when(|all| all.get(name).is_some_and(is_ready)).await;
}

/// Returns the caches that `/readyz` reports as not in sync.
async fn waiting(manager: &Manager) -> String {
    get(manager.addresses().health.unwrap(), "/readyz/caches")
        .await
        .body
}

// R49
#[steersman_testing::test]
async fn guarantee_2_a_kind_that_may_be_absent_and_is_not_holds_the_start(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let widgets = TestKind::new(&fixture, "Widget");
    widgets.install().await;
    // A real server takes a moment until it has what was defined. The cluster that is looked at knows nothing of this.
    let other = cluster(&fixture).await;
    let mut presence = other.presence(&widgets.resource, FAR_AWAY);
    presence.when(PresenceStatus::is_present).await;
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    for is_whole in [true, false] {
        let manager = patient(cluster.clone()).build().await.unwrap();
        let kind = dynamic(widgets.resource.clone());
        let reconciler = Uids::of(&widgets);
        match is_whole {
            true => Controller::of_kind("widgets", kind.when_installed()).add_to(&manager, reconciler),
            false => Controller::of_kind("widgets", kind.optional()).add_to(&manager, reconciler),
        }
        .unwrap();
        let steps = Steps::new();
        manager.add(task("plain", &steps)).unwrap();
        // The server does not say yet whether it answers for the kind.
        let stall = proxy.inject(Matching::method("GET").path("/widgets"), Fault::stall());
        let running = run(&manager);
        stall.hit().await;
        assert!(waiting(&manager).await.contains(&widgets.resource.to_string()));
        let_go_on().await;
        assert!(steps.all().is_empty() && manager.statuses().all().is_empty());
        drop(stall);
        steps.saw("plain").await;
        ready(&manager, "widgets").await;
        running.stop().await.unwrap();
    }
}

// R93
#[steersman_testing::test]
async fn a_list_longer_than_stuck_after_fails_the_liveness_probe_until_it_ends(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let limit = FAR_AWAY / 2;
    let manager = patient(cluster_through(&fixture, &proxy, "default").await)
        .clock(Arc::new(clock.clone()))
        .stuck_after(limit)
        .build()
        .await
        .unwrap();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, Log::new())
        .unwrap();
    let healthz = async || get(manager.addresses().health.unwrap(), "/healthz").await;
    let stall = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::stall());
    let running = run(&manager);
    stall.hit().await;
    assert_eq!(healthz().await.parts(), (200, "ok"));
    clock.advance(limit - Duration::from_secs(1));
    assert_eq!(healthz().await.parts(), (200, "ok"));
    clock.advance(Duration::from_secs(1));
    let expected =
        "[-]stuck failed: caches: waiting for configmaps/v1 (cluster default)\nhealthz check failed\n";
    assert_eq!(healthz().await.parts(), (500, expected));
    drop(stall);
    ready(&manager, "maps").await;
    assert_eq!(healthz().await.parts(), (200, "ok"));
    running.stop().await.unwrap();
}

/// A webhook of this process, and where it answers.
fn webhook() -> (SocketAddr, impl Runnable) {
    let mut routes = Routes::new();
    Checks::new().mount(&mut routes, "/convert").unwrap();
    let server = Server::bind(HERE, routes, support::real_time()).unwrap();
    let address = server.address();
    let serving = run_fn("webhook", move |cx: RunContext| {
        let server = server.try_clone();
        async move {
            let stop = async move { _ = cx.stop().requested().await };
            Ok::<(), BoxError>(server?.serve(stop).await?)
        }
    });
    (address, serving.with_policy(RunPolicy::BeforeCaches))
}

// R49, R93
#[steersman_testing::test]
async fn guarantee_1_a_list_may_need_a_webhook_of_this_process_which_is_called_once_that_is_ready(
    fixture: Fixture,
) {
    let proxy = fixture.proxy().await;
    elected::create_map(&fixture, "a").await;
    for is_warm in [false, true] {
        let manager = patient(cluster_through(&fixture, &proxy, "default").await)
            .leader_election(elected::steady(&fixture, &format!("warm-{is_warm}")))
            .ready_before_sync(true)
            .build()
            .await
            .unwrap();
        let (address, webhook) = webhook();
        manager.add(webhook).unwrap();
        let (maps, log) = (Controller::of::<ConfigMap>("maps"), Log::new());
        let maps = if is_warm { maps.warm() } else { maps };
        maps.add_to(&manager, log.clone()).unwrap();
        // As a server does that cannot convert what it is asked for.
        let stall = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::stall());
        let running = run(&manager);
        stall.hit().await;
        elected::until(async || {
            let readyz = get(manager.addresses().health.unwrap(), "/readyz").await;
            readyz.status == 200
        })
        .await;
        assert_eq!(get(address, "/convert").await.status, 200);
        assert!(log.entries().is_empty());
        drop(stall);
        log.saw("a", Some("1")).await;
        running.stop().await.unwrap();
    }
}

#[steersman_testing::test]
async fn guarantee_1_runnables_without_caches_start_before_them_and_stop_after_them(fixture: Fixture) {
    let proxy = Arc::new(fixture.proxy().await);
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let manager = patient(cluster).build().await.unwrap();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, Log::new())
        .unwrap();
    let (steps, seen) = (Steps::new(), Arc::clone(&proxy));
    manager
        .add(with_policy(RunPolicy::BeforeCaches, "webhook", &steps))
        .unwrap();
    // Nothing is read by the time that this one is there.
    let first = run_fn("looks", move |cx: RunContext| {
        assert!(seen.exchanges().is_empty());
        let seen = Arc::clone(&seen);
        async move {
            cx.stop().requested().await;
            let is_open = |all: &[_]| all.iter().any(|one: &Exchange| one.is_watch() && one.is_open());
            seen.wait_for(|all| (!is_open(all)).then_some(())).await;
            Ok(())
        }
    });
    manager.add(first.with_policy(RunPolicy::BeforeCaches)).unwrap();
    manager.add(task("plain", &steps)).unwrap();
    let stall = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::stall());
    let running = run(&manager);
    stall.hit().await;
    assert_eq!(steps.all(), ["webhook"]);
    drop(stall);
    steps.saw("plain").await;
    // It ends only if the watches have ended before.
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_3_a_webhook_that_fails_ends_a_run_whose_caches_are_not_filled(fixture: Fixture) {
    let proxy = Arc::new(fixture.proxy().await);
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let manager = patient(cluster).build().await.unwrap();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, Log::new())
        .unwrap();
    let stall = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::stall());
    let asked = Arc::clone(&proxy);
    let webhook = run_fn("webhook", move |_: RunContext| {
        let asked = Arc::clone(&asked);
        async move {
            let is_asked = |all: &[Exchange]| all.iter().any(|one| one.path.ends_with("/configmaps"));
            asked.wait_for(|all| is_asked(all).then_some(())).await;
            Err::<(), BoxError>("its port is gone".into())
        }
    });
    manager.add(webhook.with_policy(RunPolicy::BeforeCaches)).unwrap();
    let error = run(&manager).ended().await.unwrap_err();
    assert!(
        matches!(&error, RunError::Runnable { name, .. } if name == "webhook"),
        "{error}"
    );
    drop(stall);
}

// R49, R168
#[steersman_testing::test]
async fn guarantee_2_an_absent_or_unknown_kind_does_not_delay_the_start(fixture: Fixture) {
    let (near, far) = (fixture.proxy().await, fixture.proxy().await);
    let _unplugged = far.unplug();
    let far = cluster_through(&fixture, &far, "far").await;
    let near = cluster_through(&fixture, &near, "near").await;
    let manager = patient(near.clone()).cluster(far.clone()).build().await.unwrap();
    let widgets = TestKind::new(&fixture, "Widget");
    for cluster in [&near, &far] {
        Controller::of_kind(cluster.name().to_string(), dynamic(widgets.resource.clone()))
            .on(cluster)
            .when_installed()
            .add_to(&manager, Uids::of(&widgets))
            .unwrap();
    }
    let steps = Steps::new();
    manager.add(task("plain", &steps)).unwrap();
    let running = run(&manager);
    steps.saw("plain").await;
    let standings = manager.statuses();
    standings
        .when(|all| matches!(all.get("near"), Some(RunnableStatus::Dormant { .. })))
        .await;
    running.stop().await.unwrap();
}

// R49, R70, R74
#[steersman_testing::test]
async fn guarantee_2_every_cluster_holds_the_start_of_a_controller_on_all(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let far = cluster_through(&fixture, &proxy, "far").await;
    let manager = patient(cluster(&fixture).await).build().await.unwrap();
    manager.add(far).unwrap();
    Controller::of::<ConfigMap>("everywhere")
        .on_every_cluster()
        .add_to(&manager, Log::new())
        .unwrap();
    let steps = Steps::new();
    manager.add(task("plain", &steps)).unwrap();
    let stall = proxy.inject(Matching::any(), Fault::stall());
    let running = run(&manager);
    stall.hit().await;
    until_waiting_for_far_alone(&manager).await;
    assert!(steps.all().is_empty());
    drop(stall);
    steps.saw("plain").await;
    ready(&manager, "everywhere").await;
    running.stop().await.unwrap();
}

async fn until_waiting_for_far_alone(manager: &Manager) {
    let expected = "internal server error: waiting for configmaps/v1 (cluster far)\n";
    while waiting(manager).await != expected {}
}

/// Reads from a cache that it names, and from no other.
#[derive(Clone)]
struct Reading {
    cluster: Cluster,
    steps: Steps,
}

impl Reading {
    fn new(cluster: &Cluster) -> Self {
        Self {
            cluster: cluster.clone(),
            steps: Steps::new(),
        }
    }

    /// The objects that it found at its start.
    async fn found(&self) -> Vec<String> {
        until(|| !self.steps.all().is_empty()).await;
        self.steps.all()
    }
}

impl Runnable for Reading {
    fn name(&self) -> &str {
        "reading"
    }

    fn caches(&self) -> Vec<CacheRequirement> {
        let maps = Resource::of::<ConfigMap>();
        vec![CacheRequirement::new(self.cluster.clone(), maps, None)]
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        let informer = self.cluster.cache().informer(&Resource::of::<ConfigMap>());
        self.steps.add(format!("in sync: {}", informer.health().synced));
        cx.ready();
        cx.stop().requested().await;
        Ok(())
    }
}

fn stalled_maps(proxy: &FaultProxy) -> Injected {
    proxy.inject(Matching::any().path("/configmaps"), Fault::stall())
}

// R70
#[steersman_testing::test]
async fn a_runnable_added_later_starts_when_its_caches_are_in_sync_and_delays_no_other(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let manager = patient(cluster.clone()).build().await.unwrap();
    let running = run(&manager);
    manager.elected().await;
    let stall = stalled_maps(&proxy);
    let (reading, steps) = (Reading::new(&cluster), Steps::new());
    manager.add(reading.clone()).unwrap();
    stall.hit().await;
    let standings = manager.statuses();
    let names_it =
        |standing: &RunnableStatus| standing.to_string() == "waiting for configmaps/v1 (cluster default)";
    standings
        .when(|all| all.get("reading").is_some_and(names_it))
        .await;
    manager.add(task("plain", &steps)).unwrap();
    steps.saw("plain").await;
    assert!(reading.steps.all().is_empty());
    drop(stall);
    assert_eq!(reading.found().await, ["in sync: true"]);
    running.stop().await.unwrap();
}

// R70
#[steersman_testing::test]
async fn a_runnable_that_needs_leadership_has_its_caches_when_it_leads(fixture: Fixture) {
    let elections = [
        elected::steady(&fixture, "one"),
        elected::steady(&fixture, "two").per_runnable(),
    ];
    for election in elections {
        let cluster = cluster(&fixture).await;
        let manager = patient(cluster.clone())
            .leader_election(election)
            .build()
            .await
            .unwrap();
        let reading = Reading::new(&cluster);
        manager.add(reading.clone()).unwrap();
        let running = run(&manager);
        assert_eq!(reading.found().await, ["in sync: true"]);
        running.stop().await.unwrap();
    }
}

// R70
#[steersman_testing::test]
async fn a_conditional_runnable_has_its_caches_when_the_condition_holds(fixture: Fixture) {
    let cluster = cluster(&fixture).await;
    let manager = patient(cluster.clone()).build().await.unwrap();
    let reading = Reading::new(&cluster);
    let holds = RunCondition::from_stream("it is time", || {
        stream::iter([PresenceStatus::new(Presence::Present, "it is")])
    });
    manager.add(Conditional::new(reading.clone(), holds)).unwrap();
    let running = run(&manager);
    assert_eq!(reading.found().await, ["in sync: true"]);
    running.stop().await.unwrap();
}

// R70
#[steersman_testing::test]
async fn a_runnable_that_waits_for_its_caches_can_be_stopped(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let manager = patient(cluster.clone())
        .shutdown_timeout(FAR_AWAY)
        .build()
        .await
        .unwrap();
    let running = run(&manager);
    manager.elected().await;
    let stall = stalled_maps(&proxy);
    let reading = Reading::new(&cluster);
    manager.add(reading.clone()).unwrap();
    stall.hit().await;
    running.stop().await.unwrap();
    assert!(reading.steps.all().is_empty());
}

/// Reads from a declared cache after a stop request.
struct Farewell(Reading);

impl Runnable for Farewell {
    fn name(&self) -> &str {
        "farewell"
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::AllReplicas
    }

    fn caches(&self) -> Vec<CacheRequirement> {
        self.0.caches()
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        cx.ready();
        cx.stop().requested().await;
        let informer = self.0.cluster.cache().informer(&Resource::of::<ConfigMap>());
        self.0.steps.add(format!("in sync: {}", informer.health().synced));
        Ok(())
    }
}

// R45
#[steersman_testing::test]
async fn guarantee_1_caches_end_after_the_runnables_that_need_them(fixture: Fixture) {
    // Nothing lingers there, so that a cache exists only while it is held.
    let cluster = cluster(&fixture).await;
    let manager = patient(cluster.clone()).build().await.unwrap();
    let farewell = Farewell(Reading::new(&cluster));
    let steps = farewell.0.steps.clone();
    manager.add(farewell).unwrap();
    let running = run(&manager);
    ready(&manager, "farewell").await;
    let_go_on().await;
    running.stop().await.unwrap();
    assert_eq!(steps.all(), ["in sync: true"]);
    assert!(cluster.cache().informers().is_empty());
}

// R59
#[steersman_testing::test]
async fn a_stop_ends_idle_informers_and_connections_close_with_the_last_handle(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let lingering = cluster_builder(&fixture, "far")
        .config(proxy.endpoint().config(fixture.admin()).unwrap())
        .cache(|cache| cache.linger(FAR_AWAY));
    let far = lingering.build().await.unwrap();
    let manager = patient(cluster(&fixture).await).build().await.unwrap();
    manager.add(far.clone()).unwrap();
    Controller::of::<ConfigMap>("far")
        .on(&far)
        .add_to(&manager, Log::new())
        .unwrap();
    let running = run(&manager);
    ready(&manager, "far").await;
    running.stop().await.unwrap();
    proxy
        .wait_for(|all| all.iter().all(|one| !one.is_open()).then_some(()))
        .await;
    drop((manager, far));
    proxy.has_connections(0).await;
}
