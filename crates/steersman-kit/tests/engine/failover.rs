// SPDX-License-Identifier: Apache-2.0
//! The first reconciles of a new process.

use std::time::Duration;

use kube::CustomResourceExt;
use steersman_cluster::Client;
use steersman_kit::managed;
use steersman_runtime::{Controller, Election, Manager};
use steersman_testing::{FaultProxy, Fixture, eventually, proxy::Exchange};

use super::support::*;

// R103: after a failover at most one apply per child
#[steersman_testing::test]
async fn a_new_process_applies_each_child_at_most_once(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let one = key(&fixture, "one");
    let process = async || {
        let proxy = fixture.proxy().await;
        let manager = manager(cluster_through(&fixture, &proxy).await).await;
        let controller = Controller::of::<Widget>("widgets")
            .add_to(&manager, managed(five()))
            .unwrap();
        (run(manager), controller, proxy)
    };
    let (first, _first_controller, _first_proxy) = process().await;
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    when_condition(&client, &one, "Configured", ("True", "Configured")).await;
    first.end().await;
    let (_second, controller, proxy) = process().await;
    eventually("five applies", async || {
        (writes_to_one(&proxy).len() >= 5).then_some(())
    })
    .await;
    controller.replay();
    assert_eq!(writes_until_idle(&fixture, &client, &proxy).await, 5);
}

/// Counts the writes to the first widget and its children. Another widget shows that what was queued before it is over.
async fn writes_until_idle(fixture: &Fixture, client: &Client, proxy: &FaultProxy) -> usize {
    client.create(&widget(fixture, "two", "1")).await.unwrap();
    let two = key(fixture, "two");
    when_condition(client, &two, "Configured", ("True", "Configured")).await;
    writes_to_one(proxy).len()
}

/// The paths of the writes to the first widget and its children that have ended.
fn writes_to_one(proxy: &FaultProxy) -> Vec<String> {
    let is_ours = |one: &Exchange| {
        let object = one.path.trim_end_matches("/status");
        one.is_write() && one.ended.is_some() && (object.ends_with("/one") || object.ends_with("/one-b"))
    };
    let all = proxy.exchanges().into_iter();
    all.filter(is_ours).map(|one| one.path).collect()
}

// R103: after a failover at most one apply per child
#[steersman_testing::test]
async fn a_standby_that_takes_over_the_lease_applies_each_child_at_most_once(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let one = key(&fixture, "one");
    let replica = async |name: &str| {
        let proxy = fixture.proxy().await;
        let election = Election::new("operator")
            .namespace(fixture.namespace())
            .identity(name)
            .lease_duration(Duration::from_secs(6))
            .renew_deadline(Duration::from_secs(4))
            .retry_period(Duration::from_millis(300));
        let manager = Manager::builder()
            .cluster(cluster_through(&fixture, &proxy).await)
            .leader_election(election)
            .build()
            .await
            .unwrap();
        let controller = Controller::of::<Widget>("widgets")
            .add_to(&manager, managed(five()))
            .unwrap();
        (run(manager), controller, proxy)
    };
    let (leader, _leading, _leader_proxy) = replica("leader").await;
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    when_condition(&client, &one, "Configured", ("True", "Configured")).await;
    let (_standby, controller, proxy) = replica("standby").await;
    eventually("the standby contends for the lease", async || {
        let is_contending = |one: &Exchange| one.path.contains("/leases") && one.ended.is_some();
        proxy.exchanges().iter().any(is_contending).then_some(())
    })
    .await;
    assert_eq!(writes_to_one(&proxy), [""; 0], "a standby does not write");
    leader.end().await;
    eventually("five applies", async || {
        (writes_to_one(&proxy).len() >= 5).then_some(())
    })
    .await;
    controller.replay();
    assert_eq!(writes_until_idle(&fixture, &client, &proxy).await, 5);
}
