// SPDX-License-Identifier: Apache-2.0
//! State of a controller after its kind was removed, and while its presence is unknown.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{kinds, managed, support};
use std::{sync::Arc, time::Duration};

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use steersman_cache::Resource;
use steersman_cluster::{Cluster, POLL_EVERY};
use steersman_core::{Action, Presence, PresenceStatus, TestClock};
use steersman_runtime::{
    BoxError, Conditional, Context, Controller, Manager, Reconciler, Request, RunCondition, RunnableStatus,
    dynamic, map_metadata, reconcile_fn,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Fault, Injected, Matching},
};
use tokio::sync::watch;

use kinds::{TestKind, Uids};
use managed::{cluster, cluster_builder, is_dormant, let_go_on, manager_of, run, stands, until};

fn is_empty(controller: &Controller) -> bool {
    let depth = controller.depth();
    depth.ready() + depth.warm() + depth.delayed() + depth.in_flight() == 0
}

/// A reconciler whose work depends on the name of the object, and which remembers what it was asked for.
#[derive(Clone, Default)]
struct Moody(Arc<watch::Sender<Vec<String>>>);

/// Remembers that a reconcile ended before it was done.
struct Cancelled(Moody);

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.note("cancelled");
    }
}

impl Moody {
    fn note(&self, what: &str) {
        self.0.send_modify(|noted| noted.push(what.to_owned()));
    }

    fn count(&self, what: &str) -> usize {
        self.0.borrow().iter().filter(|noted| *noted == what).count()
    }

    async fn noted(&self, what: &str) {
        let mut noted = self.0.subscribe();
        noted
            .wait_for(|noted| noted.iter().any(|is| is == what))
            .await
            .unwrap();
    }
}

impl Reconciler for Moody {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        self.note(request.name());
        match request.name() {
            "failing" => Err("as it always does".into()),
            "endless" => {
                let _cancelled = Cancelled(self.clone());
                std::future::pending().await
            }
            "orderly" => {
                cx.stop().requested().await;
                self.note("ended in order");
                Ok(Action::await_change())
            }
            _ => Ok(Action::await_change()),
        }
    }
}

// R10, R26
#[steersman_testing::test]
async fn a_key_in_back_off_is_removed_with_its_kind(fixture: Fixture) {
    let client = cluster(&fixture).await.live();
    let manager = manager_of(cluster(&fixture).await).await;
    let (widgets, moody) = (TestKind::new(&fixture, "Widget"), Moody::default());
    let controller = Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .add_to(&manager, moody.clone())
        .unwrap();
    let running = run(&manager);
    widgets.install().await;
    widgets.apply(&client, "failing").await;
    until(|| moody.count("failing") >= 3).await;
    widgets.uninstall().await;
    stands(&manager, "widgets", is_dormant).await;
    assert!(is_empty(&controller), "{:?}", controller.depth());

    let failed = moody.count("failing");
    widgets.install().await;
    widgets.apply(&client, "another").await;
    moody.noted("another").await;
    assert_eq!(moody.count("failing"), failed, "its object was never made again");
    running.stop().await.unwrap();
}

// R5, R10
#[steersman_testing::test]
async fn a_key_in_back_off_is_removed_with_the_kind_of_its_cluster(fixture: Fixture) {
    let client = cluster(&fixture).await.live();
    let manager = manager_of(cluster(&fixture).await).await;
    let (widgets, moody) = (TestKind::new(&fixture, "Widget"), Moody::default());
    let controller = Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .on_every_cluster()
        .when_installed()
        .add_to(&manager, moody.clone())
        .unwrap();
    let running = run(&manager);
    for cycle in 1..=2 {
        widgets.install().await;
        widgets.apply(&client, "failing").await;
        until(|| moody.count("failing") >= 3 * cycle).await;
        widgets.uninstall().await;
        // It would fail for ever.
        until(|| is_empty(&controller)).await;
    }
    running.stop().await.unwrap();
}

// R26, R39
#[steersman_testing::test]
async fn reconciles_in_flight_when_the_kind_is_removed_end_in_time_or_are_cancelled(fixture: Fixture) {
    let watched = cluster(&fixture).await;
    let client = watched.live();
    let manager = manager_of(watched.clone()).await;
    let (widgets, moody) = (TestKind::new(&fixture, "Widget"), Moody::default());
    let controller = Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .workers(2)
        .build(&watched, moody.clone());
    let installed = RunCondition::present(&watched, widgets.resource.clone(), POLL_EVERY);
    let conditional =
        Conditional::new(controller.clone(), installed).shutdown_timeout(Duration::from_secs(2));
    manager.add(conditional).unwrap();
    let running = run(&manager);
    widgets.install().await;
    for name in ["endless", "orderly"] {
        widgets.apply(&client, name).await;
        moody.noted(name).await;
    }
    widgets.uninstall().await;
    moody.noted("ended in order").await;
    moody.noted("cancelled").await;
    stands(&manager, "widgets", is_dormant).await;
    until(|| is_empty(&controller)).await;

    widgets.install().await;
    widgets.apply(&client, "another").await;
    moody.noted("another").await;
    assert_eq!(moody.count("endless"), 1);
    running.stop().await.unwrap();
}

// R5, R26, R39
#[steersman_testing::test]
async fn reconciles_in_flight_where_one_of_several_clusters_loses_the_kind_end_in_time_or_are_cancelled(
    fixture: Fixture,
) {
    let own = fixture.own_server(Default::default()).await;
    let config = own.endpoint().config(own.admin()).unwrap();
    let other = Cluster::builder("other").field_manager("test").config(config);
    let other = other.build().await.unwrap();
    let watched = cluster(&fixture).await;
    let clients = [cluster(&fixture).await.live(), other.live()];
    let here = TestKind::new(&fixture, "Widget");
    let there = TestKind::at(&fixture, &own.client(), "default", "Widget");
    let (clock, moody) = (TestClock::new(), Moody::default());
    let manager = Manager::builder()
        .cluster(watched.clone())
        .cluster(other)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let controller = Controller::of_kind("widgets", dynamic(here.resource.clone()))
        .on_every_cluster()
        .when_installed()
        .workers(4)
        .add_to(&manager, moody.clone())
        .unwrap();
    let running = run(&manager);
    there.install().await;
    there.apply(&clients[1], "orderly").await;
    moody.noted("orderly").await;
    here.install().await;
    for name in ["endless", "orderly"] {
        here.apply(&clients[0], name).await;
    }
    until(|| controller.depth().in_flight() == 3).await;

    here.uninstall().await;
    moody.noted("ended in order").await;
    clock.advance(Duration::from_secs(9));
    let_go_on().await;
    assert_eq!(moody.count("cancelled"), 0, "the grace period is not over");
    clock.advance(Duration::from_secs(1));
    moody.noted("cancelled").await;
    // The informer of the other cluster continues, and those of this cluster have ended.
    until(|| controller.depth().in_flight() == 1).await;
    assert_eq!(moody.count("ended in order"), 1);
    until(|| watched.cache().informers().is_empty()).await;

    here.install().await;
    here.apply(&clients[0], "another").await;
    moody.noted("another").await;
    assert_eq!(moody.count("endless"), 1);
    running.stop().await.unwrap();
    assert_eq!(moody.count("ended in order"), 2);
}

/// A cluster that has to poll: watches of CRDs and APIServices are forbidden.
async fn polling(builder: steersman_cluster::ClusterBuilder, proxy: &FaultProxy) -> (Cluster, [Injected; 2]) {
    let refused = ["/customresourcedefinitions", "/apiservices"]
        .map(|path| proxy.inject(Matching::any().path(path), Fault::answer(403)));
    (builder.build().await.unwrap(), refused)
}

fn presence(cluster: &Cluster, resource: &Resource) -> Presence {
    let all = cluster.presences();
    let found = all.iter().find(|(found, _)| found == resource);
    found.unwrap().1.presence
}

async fn is_ready(manager: &Manager) -> bool {
    let reply = support::get(manager.addresses().health.unwrap(), "/readyz").await;
    reply.status == 200
}

// R2, R24
#[steersman_testing::test]
async fn a_discovery_that_fails_changes_nothing_for_those_that_run_and_those_that_rest(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let config = proxy.endpoint().config(fixture.admin()).unwrap();
    let (watched, _refused) = polling(cluster_builder(&fixture, "default").config(config), &proxy).await;
    let client = cluster(&fixture).await.live();
    let manager = Manager::builder()
        .cluster(watched.clone())
        .health(support::HERE)
        .build()
        .await
        .unwrap();
    let [widgets, gadgets, extras] = ["Widget", "Gadget", "Extra"].map(|kind| TestKind::new(&fixture, kind));
    let (seen, resting) = (Uids::of(&widgets), Uids::of(&gadgets));
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .watches(
            dynamic(extras.resource.clone()).optional(),
            map_metadata(|extra| Some(extra.key())),
        )
        .poll_every(Duration::from_millis(50))
        .add_to(&manager, seen.clone())
        .unwrap();
    Controller::of_kind("gadgets", dynamic(gadgets.resource.clone()))
        .when_installed()
        .add_to(&manager, resting.clone())
        .unwrap();
    let running = run(&manager);
    widgets.install().await;
    widgets.apply(&client, "one").await;
    seen.saw("one").await;
    stands(&manager, "gadgets", is_dormant).await;
    assert!(is_ready(&manager).await);

    // Discovery knows nothing any more.
    let broken = proxy.inject(Matching::reads().path("/apis"), Fault::answer(503));
    let kinds = [&widgets, &gadgets, &extras].map(|kind| kind.resource.clone());
    until(|| {
        let mut all = kinds.iter().map(|kind| presence(&watched, kind));
        all.all(|presence| presence == Presence::Unknown)
    })
    .await;
    for round in 0..3 {
        broken.hit_times(broken.hits() + 1).await;
        let name = format!("round-{round}");
        widgets.apply(&client, &name).await;
        seen.saw(&name).await;
        assert!(is_ready(&manager).await);
        assert_eq!(manager.statuses().of("widgets"), Some(RunnableStatus::Ready));
        assert!(is_dormant(&manager.statuses().of("gadgets").unwrap()));
    }
    drop(broken);
    gadgets.install().await;
    gadgets.apply(&client, "one").await;
    resting.saw("one").await;
    widgets.uninstall().await;
    stands(&manager, "widgets", is_dormant).await;
    running.stop().await.unwrap();
}

// R2, R24
#[steersman_testing::test]
async fn a_part_of_discovery_that_is_missing_is_not_absent(fixture: Fixture) {
    // For itself alone: a broken group disturbs everybody who asks this server what it has.
    let own = fixture.own_server(Default::default()).await;
    let proxy = FaultProxy::start(own.endpoint()).await.unwrap();
    let config = proxy.endpoint().config(own.admin()).unwrap();
    let (watched, _refused) = polling(Cluster::builder("default").config(config), &proxy).await;
    let admin = own.client();
    let client = Cluster::builder("admin")
        .field_manager("test")
        .config(own.endpoint().config(own.admin()).unwrap())
        .build()
        .await
        .unwrap()
        .live();
    let manager = Manager::builder()
        .cluster(watched.clone())
        .health(support::HERE)
        .build()
        .await
        .unwrap();
    let widgets = TestKind::at(&fixture, &admin, "default", "Widget");
    let seen = Uids::of(&widgets);
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .poll_every(Duration::from_millis(50))
        .add_to(&manager, seen.clone())
        .unwrap();
    let things = Resource::new("broken.example", "v1", "Thing", "things");
    Controller::of_kind("things", dynamic(things.clone()))
        .when_installed()
        .add_to(&manager, Uids::of(&widgets))
        .unwrap();
    let running = run(&manager);
    widgets.install().await;
    widgets.apply(&client, "one").await;
    seen.saw("one").await;
    stands(&manager, "things", is_dormant).await;

    let broken: APIService = serde_json::from_value(json!({
        "metadata": {"name": "v1.broken.example"},
        "spec": {
            "group": "broken.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true, "service": {"name": "nobody", "namespace": "default", "port": 443},
        },
    }))
    .unwrap();
    let services: Api<APIService> = Api::all(admin.clone());
    services.create(&PostParams::default(), &broken).await.unwrap();
    until(|| presence(&watched, &things) == Presence::Unknown).await;
    assert!(is_dormant(&manager.statuses().of("things").unwrap()));
    assert!(is_ready(&manager).await);
    // The rest is reported as before.
    assert_eq!(presence(&watched, &widgets.resource), Presence::Present);
    widgets.uninstall().await;
    stands(&manager, "widgets", is_dormant).await;
    seen.clear();
    widgets.install().await;
    widgets.apply(&client, "two").await;
    seen.saw("two").await;
    running.stop().await.unwrap();
}

// R2
#[steersman_testing::test]
async fn a_late_detected_removal_of_a_kind_is_not_an_error(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let config = proxy.endpoint().config(fixture.admin()).unwrap();
    let (watched, _refused) = polling(cluster_builder(&fixture, "default").config(config), &proxy).await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched.clone()).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let seen = Uids::of(&widgets);
    widgets.install().await;
    widgets.apply(&client, "one").await;
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .poll_every(Duration::from_secs(3600))
        .add_to(&manager, seen.clone())
        .unwrap();
    // It will be asked for once, and discovery may be late.
    let mut looked = watched.presence(&widgets.resource, Duration::from_millis(50));
    looked.when(PresenceStatus::is_present).await;
    let running = run(&manager);
    drop(looked);
    let first = seen.saw("one").await;

    // The server closes the watch of a removed kind, and returns 404 for it.
    widgets.uninstall().await;
    proxy
        .wait_for(|all| {
            let mut asked = all.iter().filter(|one| one.path.ends_with("/widgets"));
            asked.any(|one| one.status == Some(404)).then_some(())
        })
        .await;
    let_go_on().await;
    assert_eq!(manager.statuses().of("widgets"), Some(RunnableStatus::Ready));

    // A kind that is installed again before the next poll looks unchanged, and has other objects.
    widgets.install().await;
    widgets.apply(&client, "one").await;
    until(|| {
        let seen = seen.seen();
        seen.iter()
            .any(|(_, uid)| uid.as_ref().is_some_and(|uid| *uid != first))
    })
    .await;
    running.stop().await.unwrap();
}

// R171
#[steersman_testing::test]
async fn a_kind_that_is_installed_again_with_another_schema_is_read_by_it(fixture: Fixture) {
    let client = cluster(&fixture).await.live();
    let manager = manager_of(cluster(&fixture).await).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let sizes = Arc::new(watch::Sender::new(Value::Null));
    let (resource, told) = (widgets.resource.clone(), Arc::clone(&sizes));
    let reconciler = reconcile_fn(move |request: Request, cx: Context| {
        let (resource, told) = (resource.clone(), Arc::clone(&told));
        async move {
            if let Some(found) = cx.client().of(&resource).get(request.key()).await? {
                told.send_replace(found.data["size"].clone());
            }
            Ok::<_, BoxError>(Action::await_change())
        }
    });
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    for (kind, size) in [
        ("integer", json!(7)),
        ("string", json!("seven")),
        ("integer", json!(8)),
    ] {
        let schema = json!({"type": "object", "properties": {"size": {"type": kind}}});
        widgets.install_with("Namespaced", schema).await;
        let mut one = widgets.object("one");
        one.data = json!({"size": size});
        while let Err(error) = client.of(&widgets.resource).apply(&one).await {
            assert!(kinds::is_early(&error), "{error:?}");
            tokio::task::yield_now().await;
        }
        sizes.subscribe().wait_for(|found| *found == size).await.unwrap();
        widgets.uninstall().await;
        stands(&manager, "widgets", is_dormant).await;
    }
    running.stop().await.unwrap();
}
