// SPDX-License-Identifier: Apache-2.0
//! Lookups by index and by owner in reconciles.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use super::support::{GRACE, Stage, config_map, object};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::json;
use steersman_cache::{Index, Informer, Query};
use steersman_cluster::ObjectExt;
use steersman_core::Action;
use steersman_runtime::{BoxError, Context, Controller, ObjectReconciler, kind};
use steersman_testing::Fixture;
use tokio::sync::watch;

/// Remembers the names that it finds for each map.
#[derive(Clone)]
struct Finder {
    by_value: Index<String>,
    found: Arc<watch::Sender<Vec<String>>>,
}

impl ObjectReconciler<ConfigMap> for Finder {
    type Error = BoxError;

    async fn reconcile(&self, map: Arc<ConfigMap>, cx: Context) -> Result<Action, BoxError> {
        let value = value_of(&map);
        let query = Query::new()
            .namespace(map.key().namespace())
            .index(&self.by_value, value.as_str());
        let same = cx.client().list::<ConfigMap>(&query).await?;
        let secrets = cx.owned::<Secret>(&*map).await?;
        let names = |all: Vec<String>| all.join(",");
        let same = names(same.iter().map(|map| map.key().name().to_owned()).collect());
        let secrets = names(
            secrets
                .iter()
                .map(|secret| secret.key().name().to_owned())
                .collect(),
        );
        self.found
            .send_modify(|found| found.push(format!("{}: {same}; {secrets}", map.key().name())));
        Ok(Action::await_change())
    }
}

fn value_of(map: &ConfigMap) -> String {
    map.data.as_ref().unwrap()["value"].clone()
}

#[steersman_testing::test]
async fn reconciles_look_objects_up_by_index_and_by_owner(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let owner = client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let other = client.create(&config_map(&fixture, "b", "2")).await.unwrap();
    for (name, owner) in [("of-a", Some(&owner)), ("of-b", Some(&other)), ("of-none", None)] {
        let mut secret: Secret =
            object(json!({"metadata": {"name": name, "namespace": fixture.namespace()}}));
        if let Some(owner) = owner {
            secret.set_controller_reference(owner).unwrap();
        }
        client.create(&secret).await.unwrap();
    }
    let finder = Finder {
        by_value: Index::on("value", |map: &ConfigMap| {
            map.data.as_ref()?.get("value").cloned()
        }),
        found: Arc::default(),
    };
    let controller = Controller::of::<ConfigMap>("maps")
        .index(&finder.by_value)
        .owns_with(kind::<Secret>())
        .build(&stage.cluster, finder.clone());
    let running = stage.run(&controller);
    let mut found = finder.found.subscribe();
    for expected in ["a: a; of-a", "b: b; of-b"] {
        let all = found.wait_for(|all| all.iter().any(|one| one == expected)).await;
        drop(all.unwrap());
    }
    // A store refuses another index of a name that it has.
    let has_index = |informer: &Informer, name: &str| {
        let other: Index<String> = Index::on_header(name, |_| []);
        informer.store().add_index(&other).is_err()
    };
    for informer in stage.cluster.cache().informers() {
        let name = match informer.resource().kind() {
            "ConfigMap" => "value",
            _ => "steersman/controller",
        };
        assert!(has_index(&informer, name), "{}", informer.resource());
    }
    running.stop(GRACE).await.unwrap();
}
