// SPDX-License-Identifier: Apache-2.0
//! Steady state: resyncs and changes of children's status cause no request.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service},
};
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use serde_json::json;
use steersman_core::{Action, Clock, TestClock};
use steersman_kit::managed;
use steersman_runtime::{Controller, Manager};
use steersman_testing::{Fixture, eventually_within};

use super::support::*;

/// Five children of four kinds.
fn five() -> Scripted {
    scripted(|widget, work| {
        Box::pin(async move {
            let name = widget.name_any();
            work.child(Cond::Available, deployment_of(widget)).await;
            work.child(Cond::Configured, map_of(widget)).await;
            let other: ConfigMap =
                object(json!({"metadata": {"name": format!("{name}-b")}, "data": {"a": "b"}}));
            work.child(Cond::Configured, other).await;
            let secret: Secret = object(json!({"metadata": {"name": name}, "stringData": {"a": "b"}}));
            work.child(Cond::Configured, secret).await;
            let service: Service = object(json!({
                "metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
            }));
            work.child(Cond::Configured, service).await;
            Ok(Action::await_change())
        })
    })
}

// R103, R108
#[steersman_testing::test]
async fn an_hour_of_resyncs_and_status_changes_sends_no_request(fixture: Fixture) {
    let parents: usize = std::env::var("STEERSMAN_KIT_PARENTS")
        .ok()
        .map_or(25, |text| text.parse().unwrap());
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let clock = TestClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let config = proxy.endpoint().config(fixture.admin()).unwrap();
    let builder = cluster_builder(&fixture, "default")
        .config(config)
        .clock(Arc::clone(&shared));
    let manager = Manager::builder()
        .cluster(builder.build().await.unwrap())
        .clock(shared)
        .build()
        .await
        .unwrap();
    let controller = Controller::of::<Widget>("widgets")
        .resync(Duration::from_secs(30))
        .workers(4)
        .add_to(&manager, managed(five()))
        .unwrap();
    let running = run(manager);
    for number in 0..parents {
        client
            .create(&widget(&fixture, &format!("w{number}"), "1"))
            .await
            .unwrap();
    }
    let limit = Duration::from_secs(300);
    eventually_within(limit, "all parents have their status", async || {
        let query = steersman_cache::Query::new().namespace(fixture.namespace());
        let all = client.list::<Widget>(&query).await.unwrap();
        let done = all.iter().filter(|one| condition(one, "Configured").0 == "True");
        (done.count() == parents).then_some(())
    })
    .await;
    let reconciles = || {
        let text = running
            .manager
            .metrics()
            .encode(steersman_endpoints::Exposition::Text);
        let lines = text
            .lines()
            .filter(|line| line.starts_with("controller_runtime_reconcile_total"));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>() as usize
    };
    // Let the last events of the own writes arrive.
    let idle = async || {
        let mut last = (0, 0);
        eventually_within(limit, "the controller is idle", async || {
            let now = (
                reconciles(),
                proxy.exchanges().iter().filter(|one| !one.is_watch()).count(),
            );
            let is_idle = now == last && controller.depth().ready() + controller.depth().in_flight() == 0;
            last = now;
            tokio::time::sleep(Duration::from_millis(50)).await;
            is_idle.then_some(())
        })
        .await;
    };
    idle().await;
    let (requests, before) = (
        proxy.exchanges().iter().filter(|one| !one.is_watch()).count(),
        reconciles(),
    );
    for minute in 0..60 {
        clock.advance(Duration::from_secs(60));
        // Changes of the status of a child that say nothing new about its readiness.
        let name = format!("w{}", minute % parents);
        let churn = Patch::Merge(json!({"status": {"collisionCount": minute + 1}}));
        client
            .patch_status::<Deployment>(&key(&fixture, &name), &churn)
            .await
            .unwrap();
        let expected = before + minute * parents;
        eventually_within(limit, "a round of resyncs", async || {
            (reconciles() >= expected).then_some(())
        })
        .await;
    }
    idle().await;
    assert!(
        reconciles() >= before + 59 * parents,
        "{} reconciles",
        reconciles() - before
    );
    let sent: Vec<_> = proxy
        .exchanges()
        .into_iter()
        .filter(|one| !one.is_watch())
        .skip(requests)
        .collect();
    assert!(sent.is_empty(), "{sent:?}");
    running.end().await;
}

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
