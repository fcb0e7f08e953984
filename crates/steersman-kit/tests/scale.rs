// SPDX-License-Identifier: Apache-2.0
//! Tests of scale. Variables set their size; `cargo xtask test --long` runs them at the size that the requirements name.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "engine/support.rs"]
mod support;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_core::{Action, Clock, TestClock};
use steersman_kit::{ConditionSet, Conditions, KindReconciler, NoCleanup, Status, Work, managed};
use steersman_runtime::{BoxError, Controller, Manager};
use steersman_testing::{Fixture, eventually, eventually_within};

use support::*;

fn size(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// A controller that has one condition of its own on widgets.
macro_rules! partial {
    ($reconciler:ident, $status:ident, $set:ident, $name:ident) => {
        #[derive(ConditionSet, Clone, Copy, Debug)]
        #[conditions(no_summary)]
        pub(crate) enum $set {
            $name,
        }

        #[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
        #[serde(default)]
        pub(crate) struct $status {
            conditions: Conditions<$set>,
        }

        struct $reconciler;

        impl KindReconciler for $reconciler {
            type Kind = Widget;
            type Status = $status;
            type Children = ();
            type Finalizer = NoCleanup;

            async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
                work.set_false($set::$name, "Round", &widget.spec.value);
                Ok(Action::await_change())
            }
        }
    };
}
partial!(Payers, PayerStatus, PayerCond, Paid);
partial!(Auditors, AuditorStatus, AuditorCond, Audited);
partial!(Shippers, ShipperStatus, ShipperCond, Shipped);

// R96, R104, R106, guarantee 3
#[steersman_testing::test]
async fn guarantee_3_three_controllers_update_one_status_without_a_conflict(fixture: Fixture) {
    let rounds: usize = size("STEERSMAN_KIT_ROUNDS", 100);
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    let unlimited = 0;
    let of = |name: &str| Controller::of::<Widget>(name).hot_loop_limit(unlimited);
    of("payers").add_to(&manager, managed(Payers)).unwrap();
    of("auditors").add_to(&manager, managed(Auditors)).unwrap();
    of("shippers").add_to(&manager, managed(Shippers)).unwrap();
    let _running = run(manager);
    let one = key(&fixture, "one");
    client.create(&widget(&fixture, "one", "0")).await.unwrap();
    let says = async |name: &str, value: &str| {
        eventually(name, async || {
            let found: Arc<Widget> = client.get_required::<Widget>(&one).await.unwrap();
            let message = found.status.as_ref()?.conditions.named(name)?.message.clone();
            (message == value).then_some(())
        })
        .await;
    };
    for round in 1..=rounds {
        let value = Patch::Merge(json!({"spec": {"value": round.to_string()}}));
        client.patch::<Widget>(&one, &value).await.unwrap();
        for name in ["Paid", "Audited", "Shipped"] {
            says(name, &round.to_string()).await;
        }
    }
    let found = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        found.status.as_ref().unwrap().conditions.iter().count(),
        3,
        "{:?}",
        found.name_any()
    );
    let writes: Vec<_> = proxy
        .exchanges()
        .into_iter()
        .filter(|one| one.is_write() && one.path.ends_with("/status"))
        .collect();
    assert!(writes.iter().all(|write| write.status == Some(200)), "a conflict");
    assert!(
        writes.len() >= 3 * rounds && writes.len() <= 3 * (rounds + 1),
        "{} writes",
        writes.len()
    );
}

// R103, R108
#[steersman_testing::test]
async fn an_hour_of_resyncs_and_status_changes_sends_no_request(fixture: Fixture) {
    let parents: usize = size("STEERSMAN_KIT_PARENTS", 25);
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
    let limit = Duration::from_secs(3600);
    eventually_within(limit, "all parents have their status", async || {
        // Retries of requests that failed wait by this clock.
        clock.advance(Duration::from_millis(20));
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
            clock.advance(Duration::from_millis(20));
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
            // On a busy machine, a resync can begin to wait for its time only after that time was set.
            clock.advance(Duration::from_millis(200));
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
