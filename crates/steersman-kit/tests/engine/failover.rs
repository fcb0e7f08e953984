// SPDX-License-Identifier: Apache-2.0
//! The first reconciles of a new process.

use kube::CustomResourceExt;
use steersman_kit::managed;
use steersman_runtime::Controller;
use steersman_testing::Fixture;

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
    let is_write = |one: &&steersman_testing::proxy::Exchange| one.is_write() && one.ended.is_some();
    steersman_testing::eventually("five applies", async || {
        (proxy.exchanges().iter().filter(is_write).count() >= 5).then_some(())
    })
    .await;
    controller.replay();
    // Another parent shows that the replay of the first is over.
    client.create(&widget(&fixture, "two", "1")).await.unwrap();
    when_condition(
        &client,
        &key(&fixture, "two"),
        "Configured",
        ("True", "Configured"),
    )
    .await;
    let all = proxy.exchanges();
    let ours = all
        .iter()
        .filter(|one| one.is_write() && !one.path.contains("/two"));
    let creates = |path: &str| {
        path.ends_with("/configmaps")
            || path.ends_with("/secrets")
            || path.ends_with("/services")
            || path.ends_with("/deployments")
    };
    let ours: Vec<_> = ours
        .filter(|one| !creates(&one.path))
        .map(|one| one.path.clone())
        .collect();
    assert_eq!(ours.len(), 5, "{ours:?}");
}
