// SPDX-License-Identifier: Apache-2.0
//! Several controllers on one status.

use std::sync::Arc;

use kube::{CustomResourceExt, ResourceExt, api::Patch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_core::Action;
use steersman_kit::{ConditionSet, Conditions, KindReconciler, NoCleanup, Status, Work, managed};
use steersman_runtime::{BoxError, Controller};
use steersman_testing::{Fixture, eventually};

use super::support::*;

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
    // The full size takes long on two cores, and shows the same.
    let rounds = match std::env::var_os("STEERSMAN_KIT_ROUNDS") {
        Some(_) => 1000,
        None => 100,
    };
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
