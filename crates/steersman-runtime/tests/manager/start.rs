// SPDX-License-Identifier: Apache-2.0
//! The start of a manager: endpoints first, then caches, then the rest; and what is said of it meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, managed, support};
use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{Api, api::ListParams};
use steersman_cache::{Resource, Scope};
use steersman_cluster::Cluster;
use steersman_core::TestClock;
use steersman_runtime::{
    BoxError, CacheRequirement, Controller, Manager, ManagerBuilder, RunContext, RunPolicy, Runnable,
    RunnableStatus, handle_fn, kind, run_fn,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Fault, Matching},
};

use managed::{Log, Steps, cluster, cluster_through, config_map, let_go_on, run, until};
use support::{HERE, get};

/// Two clusters, each through a proxy of its own.
struct Pair {
    near: FaultProxy,
    far: FaultProxy,
    builder: ManagerBuilder,
    far_cluster: Cluster,
}

impl Pair {
    async fn new(fixture: &Fixture) -> Self {
        let (near, far) = (fixture.proxy().await, fixture.proxy().await);
        let far_cluster = cluster_through(fixture, &far, "far").await;
        let builder = Manager::builder()
            .cluster(cluster_through(fixture, &near, "near").await)
            .cluster(far_cluster.clone())
            .health(HERE);
        Self {
            near,
            far,
            builder,
            far_cluster,
        }
    }
}

/// Says when it runs.
fn task(name: &str, steps: &Steps, needs: RunPolicy) -> impl Runnable {
    let (steps, called) = (steps.clone(), name.to_owned());
    let run = move |cx: RunContext| {
        steps.add(called.clone());
        async move {
            cx.ready();
            cx.stop().requested().await;
            Ok::<(), BoxError>(())
        }
    };
    run_fn(name, run).with_policy(needs)
}

async fn readyz(manager: &Manager) -> (u16, String) {
    let reply = get(manager.addresses().health.unwrap(), "/readyz?verbose").await;
    (reply.status, reply.body)
}

// R49, R70, R71, R93
#[steersman_testing::test]
async fn no_runnable_starts_before_all_declared_caches_are_in_sync(fixture: Fixture) {
    let pair = Pair::new(&fixture).await;
    let manager = pair.builder.build().await.unwrap();
    let (steps, log) = (Steps::new(), Log::new());
    for needs in [RunPolicy::AllReplicas, RunPolicy::Warm, RunPolicy::LeaderElected] {
        manager.add(task(&format!("{needs:?}"), &steps, needs)).unwrap();
    }
    Controller::of::<ConfigMap>("near")
        .add_to(&manager, log.clone())
        .unwrap();
    let far = Controller::of::<ConfigMap>("far").watches(kind::<Secret>(), handle_fn(|_, _| {}));
    far.on(&pair.far_cluster).add_to(&manager, log.clone()).unwrap();
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();

    let both = [&pair.near, &pair.far].map(|proxy| proxy.inject(Matching::watches(), Fault::stall()));
    let running = run(&manager);
    for stall in &both {
        // They are asked for at the same time.
        stall.hit().await;
    }
    let [near, far] = both;
    drop(near);
    pair.near
        .wait_for(|all| {
            all.iter()
                .any(|one| one.is_watch() && one.bytes > 0)
                .then_some(())
        })
        .await;
    // Endpoints answer, and say what is missing.
    let address = manager.addresses().health.unwrap();
    assert_eq!(get(address, "/healthz").await.status, 200);
    let caches = get(address, "/readyz/caches").await;
    assert_eq!(caches.status, 500);
    for kind in ["configmaps/v1 (cluster far)", "secrets/v1 (cluster far)"] {
        assert!(caches.body.contains(kind), "{}", caches.body);
    }
    until_ready_lacks(&manager, "(cluster near)").await;
    assert!(steps.all().is_empty() && log.entries().is_empty());

    drop(far);
    log.saw("a", Some("1")).await;
    for needs in ["AllReplicas", "Warm", "LeaderElected"] {
        steps.saw(needs).await;
    }
    assert_eq!(steps.all(), ["AllReplicas", "Warm", "LeaderElected"]);
    loop {
        let (status, body) = readyz(&manager).await;
        if status == 200 {
            break;
        }
        assert!(body.contains("waiting") || body.contains("runnables"), "{body}");
    }
    // The lists of the start are not repeated.
    for proxy in [&pair.near, &pair.far] {
        let all = proxy.exchanges();
        let watches = all
            .iter()
            .filter(|one| one.is_watch() && one.path.contains("/configmaps"));
        assert_eq!(watches.count(), 1);
    }
    running.stop().await.unwrap();
}

async fn until_ready_lacks(manager: &Manager, part: &str) {
    while readyz(manager).await.1.contains(part) {}
}

// R49, R94
#[steersman_testing::test]
async fn after_the_timeout_runnables_with_synced_caches_start(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let clock = TestClock::new();
    let builder = managed::cluster_builder(&fixture, "default");
    let stalled = builder
        .config(proxy.endpoint().config(fixture.admin()).unwrap())
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let manager = Manager::builder()
        .cluster(stalled)
        .clock(Arc::new(clock.clone()))
        .cache_sync_timeout(Duration::from_secs(20))
        .health(HERE)
        .build()
        .await
        .unwrap();
    let (steps, free, held) = (Steps::new(), Log::new(), Log::new());
    manager
        .add(task("plain", &steps, RunPolicy::AllReplicas))
        .unwrap();
    Controller::of::<ConfigMap>("free")
        .add_to(&manager, free.clone())
        .unwrap();
    Controller::of::<Secret>("held")
        .add_to(&manager, held.clone())
        .unwrap();
    manager
        .client()
        .unwrap()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let stall = proxy.inject(Matching::any().path("/secrets"), Fault::stall());
    let running = run(&manager);
    stall.hit().await;
    let maps = manager
        .cluster()
        .unwrap()
        .cache()
        .informer(&Resource::of::<ConfigMap>());
    maps.synced().await;
    clock.advance(Duration::from_secs(19));
    let_go_on().await;
    assert!(steps.all().is_empty() && free.entries().is_empty());
    clock.advance(Duration::from_secs(1));
    steps.saw("plain").await;
    free.saw("a", Some("1")).await;
    assert!(held.entries().is_empty());
    let is_named = |standing: &RunnableStatus| standing.to_string().contains("secrets/v1");
    let standings = manager.statuses();
    standings.when(|all| all.get("held").is_some_and(is_named)).await;
    running.stop().await.unwrap();
}

// R49, R94, D24
#[steersman_testing::test]
async fn forbidden_and_unreachable_kinds_do_not_delay_the_start(fixture: Fixture) {
    let pair = Pair::new(&fixture).await;
    let _unplugged = pair.far.unplug();
    let _forbidden = pair
        .near
        .inject(Matching::any().path("/secrets"), Fault::answer(403));
    let manager = pair.builder.build().await.unwrap();
    let log = Log::new();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, log.clone())
        .unwrap();
    Controller::of::<Secret>("secrets")
        .add_to(&manager, Log::new())
        .unwrap();
    Controller::of::<ConfigMap>("far")
        .on(&pair.far_cluster)
        .add_to(&manager, Log::new())
        .unwrap();
    manager
        .client()
        .unwrap()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let running = run(&manager);
    log.saw("a", Some("1")).await;
    let expected = [
        ("secrets", "secrets/v1: forbidden"),
        ("far", "configmaps/v1: unreachable"),
    ];
    for (name, reason) in expected {
        let is_named = |text: &str| text.starts_with("degraded: ") && text.contains(reason);
        let standings = manager.statuses();
        standings
            .when(|all| all.get(name).is_some_and(|is| is_named(&is.to_string())))
            .await;
        let (status, body) = readyz(&manager).await;
        assert!(status == 500 && body.contains(reason), "{body}");
    }
    assert_eq!(manager.statuses().of("maps").unwrap().to_string(), "ready");
    // A cache that is not in sync is not called so. After the start only the default cluster counts.
    let caches = get(manager.addresses().health.unwrap(), "/readyz/caches").await;
    assert_eq!(caches.status, 500);
    let is_right = caches.body.contains("waiting for secrets/v1") && !caches.body.contains("configmaps/v1");
    assert!(is_right, "{}", caches.body);
    running.stop().await.unwrap();
}

/// Reads from caches that it names.
struct Reading {
    cluster: Cluster,
    steps: Steps,
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

// R70
#[steersman_testing::test]
async fn any_runnable_may_name_caches_that_it_needs(fixture: Fixture) {
    let cluster = cluster(&fixture).await;
    let manager = Manager::builder().cluster(cluster.clone()).build().await.unwrap();
    let steps = Steps::new();
    let reading = Reading {
        cluster,
        steps: steps.clone(),
    };
    manager.add(reading).unwrap();
    let running = run(&manager);
    steps.saw("in sync: true").await;
    running.stop().await.unwrap();
}

// R61, R70, R74
#[steersman_testing::test]
async fn a_cluster_and_its_controller_can_be_added_while_the_manager_runs(fixture: Fixture) {
    let manager = Manager::builder()
        .cluster(cluster(&fixture).await)
        .build()
        .await
        .unwrap();
    let running = run(&manager);
    manager.elected().await;
    let late = managed::cluster_builder(&fixture, "late").build().await.unwrap();
    manager.add(late.clone()).unwrap();
    let log = Log::new();
    Controller::of::<ConfigMap>("late")
        .on(&late)
        .add_to(&manager, log.clone())
        .unwrap();
    late.live().create(&config_map(&fixture, "a", "1")).await.unwrap();
    log.saw("a", Some("1")).await;
    running.stop().await.unwrap();
}

// R65, R66
#[steersman_testing::test]
async fn checks_of_ones_own_are_beside_those_of_the_manager(fixture: Fixture) {
    let manager = Manager::builder()
        .cluster(cluster(&fixture).await)
        .health(HERE)
        .build()
        .await
        .unwrap();
    let live = manager
        .healthz_check("disk", async || Ok::<_, String>(()))
        .unwrap();
    let ready = manager
        .readyz_check("upstream", async || Err("no answer".to_owned()))
        .unwrap();
    assert!(
        manager
            .readyz_check("caches", async || Ok::<_, String>(()))
            .is_err()
    );
    let running = run(&manager);
    let address = manager.addresses().health.unwrap();
    let healthz = get(address, "/healthz?verbose").await;
    assert!(
        healthz.status == 200 && healthz.body.contains("[+]disk ok"),
        "{}",
        healthz.body
    );
    let (status, body) = readyz(&manager).await;
    assert!(status == 500 && body.contains("[-]upstream failed"), "{body}");
    drop((live, ready));
    until_ready_lacks(&manager, "upstream").await;
    until(|| manager.statuses().all().is_empty()).await;
    while readyz(&manager).await.0 != 200 {}
    running.stop().await.unwrap();
}

// R45
#[steersman_testing::test]
async fn endpoints_answer_until_everything_else_has_ended(fixture: Fixture) {
    let manager = Manager::builder()
        .cluster(cluster(&fixture).await)
        .health(HERE)
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let addresses = manager.addresses();
    let steps = Steps::new();
    let asking = {
        let (steps, addresses) = (steps.clone(), addresses.clone());
        run_fn("asking", move |cx: RunContext| {
            let (steps, addresses) = (steps.clone(), addresses.clone());
            async move {
                steps.add("runs");
                cx.stop().requested().await;
                let health = get(addresses.health.unwrap(), "/healthz").await;
                let metrics = get(addresses.metrics.unwrap(), "/metrics").await;
                steps.add(format!("{} {}", health.status, metrics.status));
                Ok(())
            }
        })
    };
    manager.add(asking.with_policy(RunPolicy::AllReplicas)).unwrap();
    for _ in 0..2 {
        let running = run(&manager);
        steps.saw("runs").await;
        running.stop().await.unwrap();
        steps.saw("200 200").await;
        steps.clear();
        // The addresses are kept for the next run.
        assert_eq!(manager.addresses(), addresses);
    }
}

// R47, R52
#[steersman_testing::test]
async fn one_endpoint_has_the_metrics_of_all_clusters_and_controllers(fixture: Fixture) {
    let pair = Pair::new(&fixture).await;
    let manager = pair
        .builder
        .leader_election(elected::steady(&fixture, "one"))
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let log = Log::new();
    for (name, cluster) in [
        ("near", manager.cluster().unwrap()),
        ("far", pair.far_cluster.clone()),
    ] {
        Controller::of::<ConfigMap>(name)
            .on(&cluster)
            .add_to(&manager, log.clone())
            .unwrap();
    }
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let running = run(&manager);
    log.when(|entries| {
        entries
            .iter()
            .filter(|(request, _)| request.name() == "a")
            .count()
            >= 2
    })
    .await;
    let address = manager.addresses().metrics.unwrap();
    // Another part of the same kind has its own series.
    let selector = format!("app={}", fixture.namespace());
    let (maps, some) = (Resource::of::<ConfigMap>(), Scope::all().labels(&selector));
    let labelled = pair.far_cluster.cache().informer_in(&maps, &some);
    labelled.synced().await;
    let cached = |cluster: &str, figure: &str| {
        let scope = format!("namespaces={}", fixture.namespace());
        format!(r#"steersman_cache_{figure}{{cluster="{cluster}",kind="configmaps/v1",scope="{scope}"}} "#)
    };
    let figures = [
        "objects",
        "bytes",
        "decoded_bytes",
        "synced",
        "last_event_age_seconds",
        "events_total",
        "lists_total",
        "relists_total",
        "watches_total",
        "watch_restarts_total",
        "invalid_objects_total",
        "decode_failures_total",
    ];
    let figures = figures.map(|figure| cached("far", figure));
    let caches = [
        cached("near", "objects") + "1",
        cached("far", "objects") + "1",
        cached("far", "synced") + "1",
        cached("far", "relists_total") + "0",
        format!(
            r#"steersman_cache_objects{{cluster="far",kind="configmaps/v1",scope="labels={selector}"}} 0"#
        ),
    ];
    let expected = [
        r#"controller_runtime_reconcile_total{controller="near",result="success"} 1"#,
        r#"controller_runtime_reconcile_total{controller="far",result="success"} 1"#,
        r#"controller_runtime_max_concurrent_reconciles{controller="far"} 1"#,
        r#"steersman_runnable_state{name="near",state="ready"} 1"#,
        r#"workqueue_adds_total{controller="near",name="near"} 1"#,
        "rest_client_requests_total{",
    ];
    loop {
        let metrics = get(address, "/metrics").await.body;
        let expected = expected.iter().copied().chain(caches.iter().map(String::as_str));
        let mut expected = expected.chain(figures.iter().map(String::as_str));
        if expected.all(|series| metrics.contains(series)) {
            break;
        }
    }
    running.stop().await.unwrap();
    // One lease for all, in the first cluster; besides that a cached read sends no request.
    let leases = Api::<Lease>::namespaced(fixture.client(), fixture.namespace());
    let leases = leases.list(&ListParams::default()).await.unwrap();
    assert_eq!(leases.items.len(), 1);
    for proxy in [&pair.near, &pair.far] {
        let mut all = proxy.exchanges();
        let sent = all.len();
        all.retain(|one| !one.path.contains("/leases"));
        assert_eq!(all.len() < sent, std::ptr::eq(proxy, &pair.near));
        assert!(all.iter().all(|one| one.is_watch() || one.is_write()), "{all:?}");
    }
}
