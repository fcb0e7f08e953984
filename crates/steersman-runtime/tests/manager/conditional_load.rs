// SPDX-License-Identifier: Apache-2.0
//! Conditional controllers beside others, many of them, and many times.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, kinds, managed};
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use k8s_openapi::{api::core::v1::ConfigMap, kube_aggregator::pkg::apis::apiregistration::v1::APIService};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PostParams},
};
use serde_json::json;
use steersman_cache::Resource;
use steersman_cluster::{Cluster, DeleteOptions};
use steersman_core::{Action, Random};
use steersman_runtime::{
    BoxError, Context, Controller, Manager, Reconciler, Request, RunnableStatus, dynamic,
};
use steersman_testing::{
    Fixture, ServerKind,
    proxy::{Exchange, Fault, Matching},
};

use elected::{figure, lease};
use kinds::{TestKind, Uids, conditional, is_watch};
use managed::{Log, cluster, cluster_through, config_map, is_dormant, key, manager_of, run, stands};

/// Number of installs and removals of a kind while others are busy.
const CYCLES: u32 = 20;

/// So many changes are enough to compare one who has to do with that and one who has not.
const ENOUGH: u32 = 80;

/// A thread can stall for some cycles, so the tests wait for many.
const LATE: u32 = 5;

/// Factor of lost throughput that counts as blocked.
const SLOWER: u32 = 5;

// R6, R16, R39, R40
#[steersman_testing::test]
async fn a_busy_controller_is_not_disturbed_by_other_kinds_that_are_installed_and_removed(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let client = cluster(&fixture).await.live();
    let manager = Manager::builder()
        .cluster(watched)
        .leader_election(elected::steady(&fixture, "one"))
        .build()
        .await
        .unwrap();
    let (widgets, log) = (TestKind::new(&fixture, "Widget"), Log::new());
    let seen = conditional(&manager, "widgets", &widgets);
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, log.clone())
        .unwrap();
    // The same without installs and removals: the speed of the machine.
    let (undisturbed, other_log) = (manager_of(cluster(&fixture).await).await, Log::new());
    Controller::of::<ConfigMap>("undisturbed")
        .add_to(&undisturbed, other_log.clone())
        .unwrap();
    let (running, other_running) = (run(&manager), run(&undisturbed));
    manager.elected().await;
    let taken = lease(&fixture).await.spec.unwrap();
    // Number of installs and removals, and the work of each of the two since the last check.
    let [cycle, done, other_done] = [0, 0, 0].map(AtomicU32::new);
    let load = {
        // Several objects, each of which is changed as soon as its last change was seen. However slow the machine is: what
        // a change needs is a small part of what a cycle does, so one that is older than a whole cycle was held up.
        let change = async |name: String, log: &Log, done: &AtomicU32| {
            for number in 0.. {
                if cycle.load(Ordering::Relaxed) == CYCLES {
                    return number;
                }
                let value = number.to_string();
                client.apply(&config_map(&fixture, &name, &value)).await.unwrap();
                let changed = cycle.load(Ordering::Relaxed);
                log.saw(&name, Some(&value)).await;
                let reconciled = cycle.load(Ordering::Relaxed);
                assert!(
                    reconciled <= changed + LATE,
                    "a late reconcile: changed in cycle {changed}, and reconciled in cycle {reconciled}"
                );
                done.fetch_add(1, Ordering::Relaxed);
            }
            unreachable!("it is over before numbers are")
        };
        let changes = (0..8).map(|number| change(format!("load-{number}"), &log, &done));
        let others = (0..8).map(|number| change(format!("other-{number}"), &other_log, &other_done));
        let (changes, others) = (changes.collect::<Vec<_>>(), others.collect::<Vec<_>>());
        let (changes, others) = (
            futures::future::join_all(changes),
            futures::future::join_all(others),
        );
        async { tokio::join!(changes, others).0 }
    };
    let cycles = async {
        for number in 1..=CYCLES {
            widgets.install().await;
            widgets.apply(&client, "one").await;
            seen.saw("one").await;
            widgets.uninstall().await;
            stands(&manager, "widgets", is_dormant).await;
            seen.clear();
            cycle.store(number, Ordering::Relaxed);
            if other_done.load(Ordering::Relaxed) >= ENOUGH {
                let [done, others] = [&done, &other_done].map(|count| count.swap(0, Ordering::Relaxed));
                assert!(
                    done * SLOWER >= others,
                    "held up until cycle {number}: {done} reconciles, and {others} where nothing comes or goes"
                );
            }
        }
    };
    let (changes, ()): (Vec<u32>, _) = tokio::join!(load, cycles);
    assert!(
        changes.iter().all(|changes| *changes > CYCLES),
        "the other controller had little to do: {changes:?}"
    );
    let is_maps = |exchange: &&Exchange| exchange.path.ends_with("/configmaps") && exchange.is_watch();
    assert_eq!(
        proxy.exchanges().iter().filter(is_maps).count(),
        1,
        "its watch was opened again"
    );
    let failed = r#"controller_runtime_reconcile_errors_total{controller="maps"}"#;
    assert_eq!(figure(&manager, failed), Some(0.0));
    let held = lease(&fixture).await.spec.unwrap();
    assert_eq!(held.acquire_time, taken.acquire_time, "the lease was taken anew");
    assert_eq!(held.holder_identity, taken.holder_identity);
    other_running.stop().await.unwrap();
    running.stop().await.unwrap();
}

// R4, R12, R26
#[steersman_testing::test]
async fn the_informer_of_a_removed_kind_ends_at_once(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    // Other unused informers are kept for an hour.
    let watched = managed::cluster_builder(&fixture, "default")
        .config(proxy.endpoint().config(fixture.admin()).unwrap())
        .cache(|cache| cache.linger(Duration::from_secs(3600)))
        .build()
        .await
        .unwrap();
    let client = cluster(&fixture).await.live();
    let cache = watched.cache().clone();
    let manager = manager_of(watched).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let seen = conditional(&manager, "widgets", &widgets);
    let running = run(&manager);
    // The server would end the watch itself after a second, and would be asked again after another one.
    for _ in 0..3 {
        widgets.install().await;
        widgets.apply(&client, "one").await;
        seen.saw("one").await;
        assert_eq!(cache.informers().len(), 1);
        widgets.uninstall().await;
        stands(&manager, "widgets", is_dormant).await;
        managed::until(|| cache.informers().is_empty()).await;
        seen.clear();
    }
    // One may be refused, where the server ends a watch before the definition is seen to go.
    let is_widgets = |one: &&Exchange| is_watch(one, "widgets") && one.status == Some(200);
    let watches = proxy.exchanges();
    let watches: Vec<_> = watches.iter().filter(is_widgets).collect();
    assert_eq!(watches.len(), 3, "{watches:#?}");
    running.stop().await.unwrap();
}

// R172
#[steersman_testing::test]
async fn a_closed_gate_drops_only_its_own_handles(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched).await;
    let (gadgets, log, gated) = (TestKind::new(&fixture, "Gadget"), Log::new(), Log::new());
    Controller::of::<ConfigMap>("always")
        .add_to(&manager, log.clone())
        .unwrap();
    Controller::of::<ConfigMap>("gated")
        .watches(
            dynamic(gadgets.resource.clone()).when_installed(),
            steersman_runtime::map_metadata(|gadget| Some(gadget.key())),
        )
        .add_to(&manager, gated.clone())
        .unwrap();
    let running = run(&manager);
    for cycle in 0..3 {
        gadgets.install().await;
        let name = format!("map-{cycle}");
        client.create(&config_map(&fixture, &name, "1")).await.unwrap();
        gated.saw(&name, Some("1")).await;
        gadgets.uninstall().await;
        stands(&manager, "gated", is_dormant).await;
        client
            .delete::<ConfigMap>(&key(&fixture, &name), DeleteOptions::default())
            .await
            .unwrap();
        log.saw(&name, None).await;
    }
    let is_maps = |exchange: &&Exchange| exchange.path.ends_with("/configmaps") && exchange.is_watch();
    assert_eq!(proxy.exchanges().iter().filter(is_maps).count(), 1);
    running.stop().await.unwrap();
}

/// How many requests it costs that so many controllers wait for their kinds, each in a group of its own, while somebody
/// else asks a hundred times.
async fn cost_of_waiting(fixture: &Fixture, count: usize) -> Vec<Exchange> {
    let proxy = fixture.proxy().await;
    let watched = cluster_through(fixture, &proxy, "default").await;
    let manager = manager_of(watched).await;
    let kinds: Vec<_> = (0..count)
        .map(|number| {
            let mut kind = TestKind::new(fixture, &format!("Kind{number}"));
            let (group, plural) = (format!("g{number}.{}", fixture.group()), kind.resource.plural());
            kind.resource = Resource::new(&group, "v1", kind.resource.kind(), plural);
            kind
        })
        .collect();
    for kind in &kinds {
        conditional(&manager, kind.resource.kind(), kind);
    }
    let running = run(&manager);
    for kind in &kinds {
        stands(&manager, kind.resource.kind(), is_dormant).await;
    }
    for _ in 0..100 {
        fixture.client().apiserver_version().await.unwrap();
    }
    let requests = proxy.exchanges();
    running.stop().await.unwrap();
    requests
}

// R2, R24
#[steersman_testing::test]
async fn a_thousand_dormant_controllers_cost_as_much_as_one(fixture: Fixture) {
    let one = cost_of_waiting(&fixture, 1).await;
    let thousand = cost_of_waiting(&fixture, 1000).await;
    // Discovery is asked once where definitions are known before services are.
    assert!(thousand.len() <= one.len() + 1, "{one:#?} {thousand:#?}");
}

// R2, R24
#[steersman_testing::test]
async fn many_installs_leave_no_task_behind_where_discovery_is_polled(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let _refused = ["/customresourcedefinitions", "/apiservices"]
        .map(|path| proxy.inject(Matching::any().path(path), Fault::answer(403)));
    let watched = cluster_through(&fixture, &proxy, "default").await;
    let manager = manager_of(watched).await;
    let every = Duration::from_millis(300);
    let kinds: Vec<_> = (0..1000)
        .map(|number| TestKind::new(&fixture, &format!("Kind{number}")))
        .collect();
    for kind in &kinds {
        Controller::of_kind(kind.resource.kind(), dynamic(kind.resource.clone()))
            .when_installed()
            .poll_every(every)
            .add_to(&manager, Uids::of(kind))
            .unwrap();
    }
    let running = run(&manager);
    for kind in &kinds {
        stands(&manager, kind.resource.kind(), is_dormant).await;
    }
    let asked = |all: &[Exchange]| {
        let asked = all.iter().filter(|one| one.path == "/apis");
        asked.map(|one| one.arrived).collect::<Vec<_>>()
    };
    let before = asked(&proxy.exchanges()).len();
    let asked = proxy
        .wait_for(|all| Some(asked(all)).filter(|asked| asked.len() >= before + 4))
        .await;
    let pauses: Vec<_> = asked[before..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.iter().all(|pause| *pause >= every), "{pauses:?}");
    running.stop().await.unwrap();
}

/// Registers an aggregated group whose server is not there.
async fn break_a_group(admin: &Client) -> Api<APIService> {
    let services: Api<APIService> = Api::all(admin.clone());
    let broken: APIService = serde_json::from_value(json!({
        "metadata": {"name": "v1.broken.example"},
        "spec": {
            "group": "broken.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true, "service": {"name": "nobody", "namespace": "default", "port": 443},
        },
    }))
    .unwrap();
    services.create(&PostParams::default(), &broken).await.unwrap();
    services
}

/// Remembers what it sees, and lets go of what is to be deleted.
struct LetGo(Uids, Resource);

impl Reconciler for LetGo {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let objects = cx.client().of(&self.1);
        if let Some(object) = objects.get(request.key()).await?
            && object.metadata.deletion_timestamp.is_some()
        {
            let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            objects.patch(request.key(), &release).await?;
            return Ok(Action::await_change());
        }
        self.0.reconcile(request, cx).await
    }
}

/// The numbers up to ten in an order that is the seed's.
fn order(random: &Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..10).collect();
    order.sort_by_cached_key(|_| random.next_u64());
    order
}

// R7, R10
#[steersman_testing::test]
async fn ten_kinds_are_installed_and_removed_in_random_order_beside_a_broken_group(fixture: Fixture) {
    let own = fixture.own_server(Default::default()).await;
    let config = own.endpoint().config(own.admin()).unwrap();
    let watched = Cluster::builder("default").field_manager("test").config(config);
    let watched = watched.build().await.unwrap();
    let (client, admin) = (watched.live(), own.client());
    let services = break_a_group(&admin).await;
    let manager = manager_of(watched).await;
    let kinds: Vec<_> = (0..10)
        .map(|number| TestKind::at(&fixture, &admin, "default", &format!("Kind{number}")))
        .collect();
    let seen: Vec<_> = kinds.iter().map(Uids::of).collect();
    for (kind, seen) in kinds.iter().zip(&seen) {
        Controller::of_kind(kind.resource.kind(), dynamic(kind.resource.clone()))
            .when_installed()
            .add_to(&manager, LetGo(seen.clone(), kind.resource.clone()))
            .unwrap();
    }
    let running = run(&manager);
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/held"]}}));
    for seed in 1..=3 {
        let random = Random::from_seed(seed);
        for index in order(&random) {
            kinds[index].install().await;
            kinds[index].apply(&client, "one").await;
            // The object stays until its controller lets go, and the definition as long as the object.
            let objects = client.of(&kinds[index].resource);
            objects.patch(&kinds[index].key("one"), &hold).await.unwrap();
        }
        for seen in &seen {
            seen.saw("one").await;
        }
        for index in order(&random) {
            kinds[index].begin_uninstall().await;
        }
        for (kind, seen) in kinds.iter().zip(&seen) {
            stands(&manager, kind.resource.kind(), is_dormant).await;
            seen.clear();
        }
        for kind in &kinds {
            kind.gone().await;
        }
    }
    services
        .delete("v1.broken.example", &DeleteParams::default())
        .await
        .unwrap();
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn a_broken_api_service_stops_nothing(fixture: Fixture) {
    // For itself alone: a broken group disturbs everybody who asks this server what it has.
    let own = fixture.own_server(Default::default()).await;
    let config = own.endpoint().config(own.admin()).unwrap();
    let watched = steersman_cluster::Cluster::builder("default")
        .field_manager("test")
        .config(config)
        .build()
        .await
        .unwrap();
    let client = watched.live();
    let admin = own.endpoint().client(own.admin()).unwrap();
    let manager = manager_of(watched).await;
    let widgets = TestKind::at(&fixture, &admin, "default", "Widget");
    let seen = conditional(&manager, "widgets", &widgets);
    let running = run(&manager);
    widgets.install().await;
    widgets.apply(&client, "one").await;
    seen.saw("one").await;
    let services = break_a_group(&admin).await;
    for number in 0..5 {
        let name = format!("another-{number}");
        widgets.apply(&client, &name).await;
        seen.saw(&name).await;
    }
    assert_eq!(manager.statuses().of("widgets"), Some(RunnableStatus::Ready));
    widgets.uninstall().await;
    stands(&manager, "widgets", is_dormant).await;
    widgets.install().await;
    seen.clear();
    widgets.apply(&client, "one").await;
    seen.saw("one").await;
    services
        .delete("v1.broken.example", &DeleteParams::default())
        .await
        .unwrap();
    running.stop().await.unwrap();
}

// R9, R20, R21, D26
#[steersman_testing::test]
async fn many_installs_leave_no_task_behind(fixture: Fixture) {
    let cycles = match fixture.server_kind() {
        ServerKind::Embedded => 30,
        _ => 12,
    };
    let watched = cluster(&fixture).await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let seen = conditional(&manager, "widgets", &widgets);
    let running = run(&manager);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    stands(&manager, "widgets", is_dormant).await;
    let mut most = 0;
    for cycle in 0..cycles {
        widgets.install().await;
        widgets.apply(&client, "one").await;
        seen.saw("one").await;
        widgets.uninstall().await;
        stands(&manager, "widgets", is_dormant).await;
        seen.clear();
        if cycle < 5 {
            most = most.max(tasks());
        }
    }
    // Connections that are kept for the next request come and go. One task left behind in each cycle would be more than these.
    let connections = 4;
    while tasks() > most + connections {
        tokio::task::yield_now().await;
    }
    let text = manager.metrics().encode(steersman_endpoints::Exposition::Text);
    let series = text
        .lines()
        .filter(|line| line.starts_with("workqueue_adds_total{"))
        .count();
    assert_eq!(series, 1, "{text}");
    running.stop().await.unwrap();
}
