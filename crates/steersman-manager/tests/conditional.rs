// SPDX-License-Identifier: Apache-2.0
//! Controllers that run only while their kind is installed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kinds;
mod managed;

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_controller::{Controller, Standing, dynamic};
use steersman_manager::Manager;
use steersman_testing::{Fixture, proxy::Exchange};

use kinds::{TestKind, Uids};
use managed::{Log, cluster_through, config_map, run};

/// The requests for a kind's collection.
fn requests_for(exchanges: &[Exchange], kind: &TestKind) -> usize {
    let suffix = format!("/{}", kind.resource.plural());
    exchanges
        .iter()
        .filter(|exchange| exchange.path.ends_with(&suffix))
        .count()
}

// R1, R2, R3, R4, R6, R10, R26, R37, R38, R39, R40, R168
#[steersman_testing::test]
async fn a_controller_starts_stops_and_starts_again_with_its_kind(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let client = fixture_client(&fixture).await;
    let manager = Manager::builder().cluster(cluster).build().await.unwrap();
    let widgets = TestKind::new(&fixture, "Widget");
    let (seen, others) = (Uids::of(&widgets), Log::new());
    Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .run_on(&manager, seen.clone())
        .unwrap();
    Controller::of::<ConfigMap>("maps")
        .run_on(&manager, others.clone())
        .unwrap();
    let running = run(&manager);

    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    others.saw("a", Some("1")).await;
    let standings = manager.standings();
    standings
        .when(|all| matches!(all.get("widgets"), Some(Standing::Dormant { .. })))
        .await;
    assert_eq!(
        requests_for(&proxy.exchanges(), &widgets),
        0,
        "an absent kind costs no request"
    );
    let watch = proxy.wait_for(maps_watch).await;

    let mut former = Vec::new();
    for cycle in 0..3 {
        widgets.install().await;
        widgets.apply(&client, "one").await;
        let uid = seen.saw("one").await;
        assert!(
            !former.contains(&uid),
            "an object of a former incarnation was reconciled"
        );
        former.push(uid);
        seen.clear();
        widgets.uninstall().await;
        standings
            .when(|all| matches!(all.get("widgets"), Some(Standing::Dormant { .. })))
            .await;
        let is_open = |exchange: &Exchange| {
            exchange.path.ends_with("/widgets") && exchange.is_watch() && exchange.is_open()
        };
        proxy
            .wait_for(|exchanges| (!exchanges.iter().any(is_open)).then_some(()))
            .await;
        let name = format!("other-{cycle}");
        client.create(&config_map(&fixture, &name, "1")).await.unwrap();
        others.saw(&name, Some("1")).await;
    }
    assert_eq!(
        maps_watch(&proxy.exchanges()),
        Some(watch),
        "another controller's watch was disturbed"
    );
    running.stop().await.unwrap();
}

/// The number of the one connection by which config maps are watched.
fn maps_watch(exchanges: &[Exchange]) -> Option<usize> {
    let mut open = exchanges.iter().enumerate().filter(|(_, exchange)| {
        exchange.path.ends_with("/configmaps") && exchange.is_watch() && exchange.is_open()
    });
    let (index, _) = open.next()?;
    assert!(open.next().is_none(), "config maps are watched twice");
    Some(index)
}

async fn fixture_client(fixture: &Fixture) -> steersman_cluster::Client {
    managed::cluster(fixture).await.live()
}
